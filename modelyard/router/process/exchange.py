"""A request and its answer, as far as both ends know of it; and how an attempt at an answer may end."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

import orjson
from aiohttp import web
from multidict import CIMultiDict

from modelyard.router.process.processor_shares import Account
from modelyard.router.process.telemetry import RequestRecord
from modelyard.router.settings import RouterSettings
from modelyard.routing import (
    STREAMS,
    Attempt,
    Charge,
    CountedAnswer,
    Decider,
    ErrorAnswer,
    Forward,
    Reservation,
    RoutedPod,
    charge,
    errors,
)

MOST_UNSENT = 1 << 13
"""Bytes that a client may have left untaken of an answer that is broken off, to be sent the error."""


class KeptAnswer(NamedTuple):
    """An engine's answer, kept."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Unanswered(Exception):
    """An attempt that may be followed by another. ``pod`` is the one that failed, ``kept`` what it said, if it did."""

    def __init__(self, pod: RoutedPod, why: str, *, timed_out: bool = False, kept: KeptAnswer | None = None) -> None:
        super().__init__(f"pod {pod.key} {why}")
        self.pod, self.timed_out, self.kept = pod, timed_out, kept


class Declined(Exception):
    """A prefill pod refused the request itself; another would too."""

    def __init__(self, kept: KeptAnswer) -> None:
        super().__init__()
        self.kept = kept


class Broken(Exception):
    """An answer that broke off after a part of it was sent."""


class AttemptMaker(Protocol):
    """Has an attempt made, and its answer passed on."""

    async def send(
        self, decider: Decider, forward: Forward, attempt: Attempt, exchange: Exchange, *, others: bool
    ) -> web.StreamResponse:
        """Raises ``Unanswered`` and ``Broken``."""


class Exchange:
    """A request and its answer. ``headers`` go on whatever is answered."""

    def __init__(
        self,
        http: web.BaseRequest,
        record: RequestRecord,
        settings: RouterSettings,
        reservation: Reservation,
        account: Account,
        leaving: Callable[[], bool],
    ) -> None:
        self.http, self.record, self.settings, self.reservation = http, record, settings, reservation
        self.account = account
        """Processor time of this request."""
        self.headers: dict[str, str] = {}
        self.consumed: frozenset[str] = frozenset()
        self.estimated = 0
        """Tokens of the prompt, about."""
        self.sends = 0
        """Pods that took the request and have not refused it."""
        self._charge: Charge | None = None
        self.head_until = math.inf
        """Time by which the head of the answer must be there, where the ModelServer sets no time."""
        self.complete = False
        """Whether the last byte was sent."""
        self.among: frozenset[str] | None = None
        """The addresses of the only pods that it may go to."""
        self._response: web.StreamResponse | None = None
        self._leaving = leaving

    @property
    def begun(self) -> bool:
        """Whether something was sent to the client."""
        return self._response is not None

    @property
    def spent(self) -> Charge | None:
        """Tokens to charge: by the answer, or the prompt alone once a pod has it; ``None``: no pod worked on it."""
        return self._charge or (Charge(self.estimated, 0) if self.sends else None)

    def count(self, answer: CountedAnswer) -> None:
        """Charge for an answer, as far as it came."""
        self._charge = charge(self.estimated, answer)
        self.record.tokens_in, self.record.tokens_out = self._charge

    def send(
        self, upstream: AttemptMaker, decider: Decider, forward: Forward, attempt: Attempt, *, others: bool
    ) -> Awaitable[web.StreamResponse]:
        """Have an attempt made. Raises ``Unanswered`` and ``Broken``."""
        return upstream.send(decider, forward, attempt, self, others=others)

    async def begin(self, status: int, headers: Mapping[str, str] | CIMultiDict[str]) -> web.StreamResponse:
        """Send the head of an answer whose body follows in pieces."""
        response = web.StreamResponse(status=status, headers=self._complete(headers))
        return await self._started(response)

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> web.StreamResponse:
        """Send a whole answer."""
        self.record.status = status
        response = await self._started(web.Response(status=status, body=body, headers=self._complete(headers)))
        await response.write_eof()
        self.complete = True
        return response

    async def refuse(self, error: ErrorAnswer, more: Mapping[str, str] | None = None) -> web.StreamResponse:
        """Send an error of the router's own."""
        self.record.reason, self.record.message = error.reason, error.message
        headers = {"Content-Type": "application/json", **error.headers, **(more or {})}
        return await self.answer(error.status, error.body, headers)

    async def give_up(self, failed: Unanswered) -> web.StreamResponse:
        """No attempt is left: what the last engine said, or what went wrong."""
        if failed.kept is not None:
            self.record.reason, self.record.message = "proxy", str(failed)
            return await self.answer(failed.kept.status, failed.kept.body, failed.kept.headers)
        error = errors.failed(timed_out=failed.timed_out, paired=bool(self.record.prefill))
        return await self.refuse(error._replace(message=f"{error.message}: {failed}"))

    async def break_off(self, why: str) -> web.StreamResponse:
        """End an answer so that nobody takes it for whole."""
        response, http = self._response, self.http
        assert response is not None
        if http.transport is not None and http.transport.get_write_buffer_size() > MOST_UNSENT:
            http.transport.abort()  # the client takes nothing: not the error either
            return response
        if response.content_type in STREAMS:
            told = orjson.dumps({"error": {"message": why, "type": "api_error", "param": None, "code": None}})
            with contextlib.suppress(ConnectionError):
                await response.write(b"data: " + told + b"\n\n")
        if http.transport is not None:
            http.transport.close()
        return response

    def _complete(self, headers: Mapping[str, str] | CIMultiDict[str]) -> CIMultiDict[str]:
        found = headers if isinstance(headers, CIMultiDict) else CIMultiDict(headers)  # made for this answer
        found.update(self.headers)
        found["x-request-id"] = self.record.request_id
        return found

    async def _started(self, response: web.StreamResponse) -> web.StreamResponse:
        self._response = response
        self.record.status = response.status
        if self._leaving():
            response.force_close()
        await response.prepare(self.http)
        return response
