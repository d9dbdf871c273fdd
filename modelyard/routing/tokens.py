"""Who a bearer token says its holder is: a JSON Web Token, by the keys that its issuer publishes, or an API key.

Pure: keys, rules and time come in, claims or the reason why not come out. A key decides which algorithms a token may
be signed with, never the token, and only asymmetric ones are known. Source: kthena-routing, 16.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import jwt
import orjson

LONGEST_TOKEN = 16_384
LEEWAY = 30.0
"""Seconds by which the clocks of issuer and router may differ."""
ISSUED_AHEAD = 60.0
_MOST_KEYS = 100
_SHORTEST_RSA = 2048
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ALGORITHMS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("RSA", ""): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""Algorithms by type and curve of a key."""
_SIGNATURE_ONLY: Any = {
    "verify_signature": True,
    **dict.fromkeys([f"verify_{one}" for one in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")], False),
}


class SigningKey(NamedTuple):
    """A public key of an issuer and what may be signed with it."""

    id: str
    algorithms: tuple[str, ...]
    key: Any


class TokenRules(NamedTuple):
    """What a token has to say. No ``audiences``: not checked."""

    issuer: str = ""
    audiences: tuple[str, ...] = ()


class TokenRejected(Exception):
    """A token that is not good; the message never holds any of it. ``unknown_key``: newer keys may know it."""

    def __init__(self, message: str, *, unknown_key: bool = False) -> None:
        super().__init__(message)
        self.unknown_key = unknown_key


def read_keys(document: bytes) -> list[SigningKey]:
    """The keys of a JWK set that signatures can be checked with. Raises ``ValueError``: it is none, or has none."""
    try:
        listed = orjson.loads(document)["keys"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError("not a JSON Web Key Set") from error
    if not isinstance(listed, list):
        raise ValueError("not a JSON Web Key Set: keys is no list")
    found = [key for one in listed[:_MOST_KEYS] if (key := _signing_key(one)) is not None]
    if not found:
        raise ValueError(
            f"none of the {len(listed)} keys can check a signature (RSA of 2048 bits or more, EC, Ed25519)"
        )
    return found


def _signing_key(told: Any) -> SigningKey | None:
    if not isinstance(told, dict) or told.get("use", "sig") != "sig" or "d" in told:
        return None
    algorithms = _ALGORITHMS.get((str(told.get("kty")), str(told.get("crv", ""))), ())
    if "alg" in told:
        algorithms = tuple(one for one in algorithms if one == told["alg"])
    if not algorithms:
        return None
    try:
        key = jwt.PyJWK(told, algorithms[0]).key
    except Exception:  # whatever is wrong with it, the others count
        return None
    if told["kty"] == "RSA" and key.key_size < _SHORTEST_RSA:
        return None
    id_ = told.get("kid")
    return SigningKey(id_ if isinstance(id_, str) else "", algorithms, key)


def claims_of(token: str, keys: Sequence[SigningKey], rules: TokenRules, now: float) -> dict[str, Any]:
    """What a token says, if it is good at ``now`` (Unix seconds). Raises ``TokenRejected``."""
    if len(token) > LONGEST_TOKEN:
        raise TokenRejected("the token is too long")
    try:
        header = jwt.get_unverified_header(token)
    except Exception as error:  # parsed before anything is checked: whatever a client has thought of
        raise TokenRejected("the token is not a JSON Web Token") from error
    id_, algorithm = header.get("kid"), header.get("alg")
    fitting = [one for one in keys if algorithm in one.algorithms and (id_ is None or one.id == id_)]
    if not fitting:
        raise TokenRejected("no key of the issuer fits the token", unknown_key=id_ not in {one.id for one in keys})
    if len(fitting) > 1:
        raise TokenRejected("the token does not say which key it is signed with")
    try:
        claims: dict[str, Any] = jwt.decode(token, fitting[0].key, [str(algorithm)], options=_SIGNATURE_ONLY)
    except Exception as error:
        raise TokenRejected("the token's signature does not hold") from error
    still_good(claims, now)
    if claims.get("iss", "") != rules.issuer:
        raise TokenRejected("the token is of another issuer")
    meant = claims.get("aud", [])
    meant = [meant] if isinstance(meant, str) else meant
    if rules.audiences and not (isinstance(meant, list) and any(one in rules.audiences for one in meant)):
        raise TokenRejected("the token is meant for another audience")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject:
        raise TokenRejected("the token names no subject")
    return claims


def still_good(claims: Mapping[str, Any], now: float) -> None:
    """Check the times of a token whose signature holds. Raises ``TokenRejected``."""
    expires, begins, issued = (claims.get(name) for name in ("exp", "nbf", "iat"))
    if not _is_time(expires):
        raise TokenRejected("the token has no time of expiry")
    if now > expires + LEEWAY:
        raise TokenRejected("the token has expired")
    if begins is not None and not (_is_time(begins) and now >= begins - LEEWAY):
        raise TokenRejected("the token is not valid yet")
    if issued is not None and not (_is_time(issued) and now >= issued - ISSUED_AHEAD):
        raise TokenRejected("the token was issued in the future")


def _is_time(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12


def bearer(header: str) -> str | None:
    """The token of an ``Authorization`` header: two fields, of which the first is ``Bearer`` in any case."""
    fields = header.split()
    return fields[1] if len(fields) == 2 and fields[0].lower() == "bearer" else None


def digest(api_key: str) -> bytes:
    """What is kept and compared of an API key, so that looking it up tells nothing of others."""
    return hashlib.sha256(api_key.encode("utf-8", "replace")).digest()


def may_use(claims: Mapping[str, Any], claim: str, model: str) -> bool:
    """Whether a claim, a list of model names or a text with spaces between them, has the model or ``*``."""
    told = claims.get(claim)
    names = told.split() if isinstance(told, str) else told
    return isinstance(names, list) and (model in names or "*" in names)
