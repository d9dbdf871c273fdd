"""Tokens signed with real keys, which an issuer publishes over HTTP, changes and withdraws."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from modelyard.router.process import authentication
from modelyard.router.process.authentication import TokenAdmission
from modelyard.routing import tokens
from modelyard.routing.configuration import AuthSettings
from modelyard.routing.errors import ErrorAnswer
from modelyard.routing.seams import Principal

NOW = 1_800_000_000.0
RSA, OTHER, SHORT = (rsa.generate_private_key(65537, size) for size in (2048, 2048, 1024))
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
GOOD = {"iss": "https://issuer", "aud": ["models"], "sub": "ann", "exp": NOW + 60, "nbf": NOW - 60, "iat": NOW - 60}
RULES = tokens.TokenRules("https://issuer", ("models", "others"))


def published(key: Any, kid: str = "", **more: str) -> dict[str, Any]:
    kind = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    algorithm: Any = next((one for base, one in kind.items() if isinstance(key, base)), OKPAlgorithm)
    return {**json.loads(algorithm.to_jwk(key.public_key())), **({"kid": kid} if kid else {}), **more}


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def signed(key: Any = RSA, kid: str | None = "one", algorithm: str = "RS256", **claims: Any) -> str:
    told = {name: value for name, value in {**GOOD, **claims}.items() if value is not None}
    return jwt.encode(told, key, algorithm, {"kid": kid} if kid else None)


KEYS = tokens.read_keys(key_set(published(RSA, "one"), published(EC, "two"), published(ED, "three")))


@pytest.mark.parametrize(
    "token",
    [
        signed(),
        signed(algorithm="PS512"),
        signed(EC, "two", "ES256"),
        signed(ED, "three", "EdDSA"),
        signed(EC, None, "ES256"),
        signed(aud="others"),
        signed(exp=NOW - 29, nbf=NOW + 29, iat=NOW + 59),
        signed(nbf=None, iat=None),
    ],
)
def test_good_tokens(token: str) -> None:
    assert tokens.claims_of(token, KEYS, RULES, NOW)["sub"] == "ann"


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


PEM = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
CONFUSED = jwt.PyJWS()
CONFUSED._algorithms["HS256"].prepare_key = lambda key: key  # as an attacker signs: with the public key as the secret


@pytest.mark.parametrize(
    ("token", "told"),
    [
        (CONFUSED.encode(json.dumps(GOOD).encode(), PEM, "HS256", {"kid": "one"}), "no key"),
        (f"{part({'alg': 'none', 'kid': 'one'})}.{part(GOOD)}.", "no key"),
        (signed(OTHER), "signature"),
        (signed(OTHER, "none of these"), "no key"),
        (signed(EC, "one", "ES256"), "no key"),
        (jwt.encode(GOOD, RSA, "RS256", {"kid": "one", "crit": ["x"], "x": 1}), "not a JSON Web Token"),
        (signed()[:-8] + "AAAAAAAA", "signature"),
        (signed(exp=NOW - 31), "expired"),
        (signed(exp=None), "no time of expiry"),
        (signed(exp="tomorrow"), "no time of expiry"),
        (signed(exp=True), "no time of expiry"),
        (signed(nbf=NOW + 31), "not valid yet"),
        (signed(iat=NOW + 61), "future"),
        (signed(iss="https://other"), "issuer"),
        (signed(iss=None), "issuer"),
        (signed(aud=["else"]), "audience"),
        (signed(aud=None), "audience"),
        (signed(aud={"models": 1}), "audience"),
        (signed(sub=None), "subject"),
        (signed(sub=""), "subject"),
        ("", "not a JSON Web Token"),
        ("a.b", "not a JSON Web Token"),
        (f"{part({'alg': ['RS256'], 'kid': 'one'})}.{part(GOOD)}.", "no key"),
        (f"{part({'alg': 'RS256', 'kid': ['one']})}.{part(GOOD)}.", "not a JSON Web Token"),
        (f"{base64.urlsafe_b64encode(b'[' * 6000).decode()}.e.e", "not a JSON Web Token"),
        ("x" * 20_000, "too long"),
    ],
)
def test_bad_tokens(token: str, told: str) -> None:
    with pytest.raises(tokens.TokenRejected, match=told) as why:
        tokens.claims_of(token, KEYS, RULES, NOW)
    assert len(token) < 20 or token[:20] not in str(why.value)


def test_which_keys_of_a_set_count() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0", "alg": "HS256", "kid": "one"}
    bad = (secret, published(SHORT), published(RSA, use="enc"), published(RSA, alg="HS256"), {"kty": "RSA", "n": 7}, 5)
    found = tokens.read_keys(key_set(*bad, published(RSA, "good", alg="PS256")))
    assert [(one.id, one.algorithms) for one in found] == [("good", ("PS256",))]
    for document in (key_set(*bad), b"[]", b'{"keys": {}}', b"{"):
        with pytest.raises(ValueError, match=r"key|Key"):
            tokens.read_keys(document)
    doubled = tokens.read_keys(key_set(published(RSA), published(OTHER)))
    with pytest.raises(tokens.TokenRejected, match="which key"):
        tokens.claims_of(signed(kid=None), doubled, RULES, NOW)


class Issuer:
    """Serves ``body`` as its key set."""

    def __init__(self) -> None:
        self.body = key_set(published(RSA, "one"))
        self.status = 200
        self.asked = 0
        self.url = ""

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(status=self.status, body=self.body, headers={"Location": self.url})


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    made, app = Issuer(), web.Application()
    app.router.add_get("/keys", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/keys"
    yield made
    await runner.cleanup()


def settings(issuer: Issuer, **more: Any) -> AuthSettings:
    return AuthSettings(issuer="https://issuer", audiences=("models",), jwks_uri=issuer.url, **more)


async def who(admission: TokenAdmission, token: str, scheme: str = "Bearer ") -> str | int:
    found = await admission.authenticate({"authorization": scheme + token})
    return found.subject if isinstance(found, Principal) else found.status


async def test_keys_are_fetched_once_rotated_and_withdrawn(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with TokenAdmission(settings(issuer), lambda: NOW).running() as admission:
        assert [await who(admission, signed()) for _ in range(5)] == ["ann"] * 5
        assert [await who(admission, signed(), scheme) for scheme in ("", "Basic ", "bearer ", "Bearer x ")] == [
            401, 401, "ann", 401
        ]  # fmt: skip
        assert await admission.authenticate({}) == ErrorAnswer(
            401, "Authorization header missing or invalid", "authentication", "authentication_error", "invalid_api_key"
        )
        assert issuer.asked == 1
        issuer.body = key_set(published(OTHER, "two"))
        assert await who(admission, signed(OTHER, "two")) == 401  # asked a moment ago
        assert issuer.asked == 1
        monkeypatch.setattr(authentication, "ASK_AGAIN", 0.0)
        assert await who(admission, signed(OTHER, "two")) == "ann"
        assert issuer.asked == 2
        assert await who(admission, signed()) == 401  # its key is gone, whatever was known of it
        for status, body in ((500, b""), (302, b""), (200, b"x"), (200, b" " * (2 << 20))):
            issuer.status, issuer.body = status, body
            assert await who(admission, signed(RSA, "three")) == 401
            assert await who(admission, signed(OTHER, "two")) == "ann"
        assert issuer.asked == 7


async def test_a_token_that_was_good_expires(issuer: Issuer) -> None:
    now = NOW
    async with TokenAdmission(settings(issuer), lambda: now).running() as admission:
        assert await who(admission, signed()) == "ann"
        now += 100
        assert await who(admission, signed()) == 401


async def test_without_keys_nobody_gets_in_and_traffic_can_begin_later(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer.status = 503
    monkeypatch.setattr(authentication, "ASK_AGAIN", 0.0)
    async with TokenAdmission(settings(issuer), lambda: NOW).running() as admission:
        assert await who(admission, signed()) == 401
        issuer.status = 200
        assert await who(admission, signed()) == "ann"


async def test_models_by_claim_and_api_keys(issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bob").write_text("key-of-bob\n")
    (tmp_path / "..data").mkdir()
    monkeypatch.setattr(authentication, "ASK_AGAIN", 0.0)
    more = {"models_claim": "models", "api_keys_directory": str(tmp_path)}
    async with TokenAdmission(settings(issuer, **more), lambda: NOW).running() as admission:
        assert [await who(admission, key) for key in ("key-of-bob", "key-of-ann", "")] == ["bob", 401, 401]

        def may(one: Principal) -> list[bool]:
            return [admission.allows(one, model) is None for model in ("llama", "other")]

        bob = await admission.authenticate({"authorization": "Bearer key-of-bob"})
        assert isinstance(bob, Principal)
        assert (may(bob), bob.consumed) == ([True, True], {"authorization"})
        for told, expected in (
            (["llama"], [True, False]),
            ("llama qwen", [True, False]),
            (["*"], [True, True]),
            (None, [False, False]),
            ({"llama": 1}, [False, False]),
        ):
            principal = await admission.authenticate({"authorization": f"Bearer {signed(models=told)}"})
            assert isinstance(principal, Principal)
            assert may(principal) == expected
