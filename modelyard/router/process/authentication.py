"""Who sends a request, by JSON Web Token or API key; the issuer's keys are fetched, kept and renewed here.

A token that names a key nobody knows asks for the keys again, at most once in ``ASK_AGAIN`` seconds; a failure keeps
the keys there are. Tokens are never logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from modelyard.backoff import Backoff
from modelyard.metrics.endpoints import read_body
from modelyard.routing import AuthSettings, ErrorAnswer, Principal, tokens, unauthorized

logger = logging.getLogger(__name__)

ASK_AGAIN = 30.0
_TRIES = 3
_RETRIES = Backoff(0.5)
_LARGEST = 1 << 20
_TIMEOUT = aiohttp.ClientTimeout(total=5)
_MOST_KEPT = 10_000
_MOST_API_KEYS = 10_000


class TokenAdmission:
    """Admits callers by tokens where the settings ask for them, else everybody. Use within ``running()``."""

    def __init__(self, settings: AuthSettings, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._keys: list[tokens.SigningKey] = []
        self._good: OrderedDict[bytes, Mapping[str, Any]] = OrderedDict()
        self._asked = -math.inf
        self._asking = asyncio.Lock()
        self._api_keys: dict[bytes, str] = {}
        self.replace(settings)

    def replace(self, settings: AuthSettings) -> None:
        """Other settings from now on. Keys of another issuer are asked for by the first token that needs them.

        Raises ``OSError``: the API keys cannot be read, and nothing is changed.
        """
        self._api_keys = _api_keys(settings.api_keys_directory)
        self._settings = settings
        self._rules = tokens.TokenRules(settings.issuer, settings.audiences)
        self._consumed = frozenset[str]() if settings.forward_token else frozenset({"authorization"})
        self._keys, self._asked = [], -math.inf
        self._good.clear()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[TokenAdmission]:
        """Fetch the keys, and renew them while the block runs. Begins without any where they are not to be had."""
        for attempt in range(_TRIES):
            if await self._renew():
                break
            await asyncio.sleep(_RETRIES.delay(attempt))
        task = asyncio.create_task(self._keep_fresh(), name="token-keys")
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | ErrorAnswer:
        """Return the caller by the first value of each header (names in lower case), or 401."""
        if not self._settings.enabled:
            return Principal()
        token = tokens.bearer(headers.get("authorization", ""))
        if token is None:
            return unauthorized("Authorization header missing or invalid")
        subject = self._api_keys.get(tokens.digest(token))
        if subject is not None:
            return Principal(subject, {self._settings.models_claim: ["*"]}, self._consumed)
        if not self._settings.jwks_uri:
            return unauthorized("Unauthorized: unknown API key")
        try:
            try:
                claims = self._claims(token)
            except tokens.TokenRejected as why:
                if not why.unknown_key or not await self._ask_again():
                    raise
                claims = self._claims(token)
        except tokens.TokenRejected as why:
            return unauthorized(f"Unauthorized: {why}")
        return Principal(claims["sub"], claims, self._consumed)

    def allows(self, principal: Principal, model: str) -> ErrorAnswer | None:
        """403 where a claim lists the models that may be used, and this one is not among them."""
        claim = self._settings.models_claim
        if not claim or not self._settings.enabled or tokens.may_use(principal.claims, claim, model):
            return None
        text = f"the claim {claim!r} of the token does not list the model {model[:256]!r}"
        return ErrorAnswer(403, text, "authorization", "permission_error", "model_not_allowed", "model")

    def _claims(self, token: str) -> Mapping[str, Any]:
        digest = tokens.digest(token)
        known = self._good.get(digest)
        if known is not None:
            tokens.still_good(known, self._clock())
            return known
        told = tokens.claims_of(token, self._keys, self._rules, self._clock())
        # What is asked of them later: a token may have sixteen thousand characters, and a holder many tokens.
        asked = ("sub", "exp", "nbf", "iat", self._settings.models_claim)
        claims = {name: told[name] for name in asked if name in told}
        self._good[digest] = claims
        if len(self._good) > _MOST_KEPT:
            self._good.popitem(last=False)
        return claims

    async def _ask_again(self) -> bool:
        """Fetch the keys for a token that no key fits; whether they were fetched since the token was looked at."""
        before = self._asked
        async with self._asking:  # those who come meanwhile wait for the same answer
            if self._asked != before:
                return True
            if time.monotonic() - self._asked < ASK_AGAIN:
                return False
            return await self._renew()

    async def _renew(self) -> bool:
        uri = self._settings.jwks_uri
        if not uri:
            return True
        self._asked = time.monotonic()
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=True) as session,
                session.get(uri, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    raise ValueError(f"it answered with {answer.status}")
                body = await read_body(answer, _LARGEST)
            keys = tokens.read_keys(body)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            logger.warning("the keys at auth.jwksUri cannot be renewed, %d are kept: %r", len(self._keys), error)
            return False
        if uri == self._settings.jwks_uri:  # still
            self._keys = keys
            self._good.clear()  # a key that is gone vouches for nothing
        return True

    async def _keep_fresh(self) -> None:
        while True:
            # Without keys nobody gets in: they are asked for more often.
            await asyncio.sleep(self._settings.refresh_seconds if self._keys else ASK_AGAIN)
            await self._renew()
            try:
                self._api_keys = _api_keys(self._settings.api_keys_directory)
            except OSError as error:
                logger.warning("the API keys cannot be read again, %d are kept: %r", len(self._api_keys), error)


def _api_keys(directory: str) -> dict[bytes, str]:
    """Subjects by the digest of their key, from a mounted Secret; its hidden entries are how Kubernetes replaces it."""
    if not directory:
        return {}
    found = {}
    for path in sorted(Path(directory).iterdir())[:_MOST_API_KEYS]:
        if not path.name.startswith(".") and path.is_file() and (key := path.read_text(errors="replace").strip()):
            found[tokens.digest(key)] = path.name
    return found
