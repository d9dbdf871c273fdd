"""Replaying a trace against whatever endpoints are ready, in compressed time.

Each request is sent at its recorded time divided by the compression, whether or not earlier ones have been answered
(open loop). Every request sent ends in exactly one ``RequestResult``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
import numpy as np
from numpy.typing import NDArray

from modelyard.traffic.client import Answered, RequestFailed, chat_body, open_session, send
from modelyard.traffic.latency import Ending, Results
from modelyard.traffic.router import Endpoints, EndpointSource
from modelyard.traffic.trace import Trace

_ATTEMPTS: Final = 2


@dataclass(slots=True)
class RequestResult:
    """One request as its client saw it. Times and durations are virtual seconds, ``at`` from the replay's start.

    ``ttft`` and ``e2e`` count from ``at``, the moment the request was due, so they contain ``queued`` (time spent
    waiting for an endpoint) and any retry. ``itl`` is (last token - first token) / (tokens - 1), ``None`` for one
    token. ``output_tokens`` is what the engine reported.
    """

    index: int
    at: float
    ending: Ending = Ending.UNFINISHED
    pod: str = ""
    variant: str = ""
    attempts: int = 0
    queued: float = 0.0
    ttft: float | None = None
    itl: float | None = None
    e2e: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    status: int | None = None
    error: str = ""


def columns(results: Sequence[RequestResult]) -> Results:
    """As columns, in the same order; the tokens are those that the engine reported."""

    def times(seconds: Iterable[float | None]) -> NDArray[np.float64]:
        return np.array([math.nan if second is None else second for second in seconds], dtype=np.float64)

    at = times(result.at for result in results)
    return Results(
        at,
        np.array([result.output_tokens for result in results], dtype=np.int64),
        at + times(result.ttft for result in results),
        at + times(result.e2e for result in results),
        np.array([result.ending for result in results], dtype=np.int8),
    )


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How to replay.

    ``endpoint_wait`` and ``request_timeout`` (which includes that wait) are virtual seconds; ``refresh_interval`` and
    ``ejection_time`` are those of ``Endpoints``, in wall seconds.
    """

    model: str
    time_compression: float = 1.0
    endpoint_wait: float = 300.0
    request_timeout: float = 600.0
    refresh_interval: float = 0.25
    ejection_time: float = 1.0

    def __post_init__(self) -> None:
        for name in ("time_compression", "endpoint_wait", "request_timeout", "refresh_interval", "ejection_time"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a finite number > 0, not {value!r}")


class Replay:
    """One replay of ``trace``. Await ``run`` once; the other members may be read meanwhile (progress bars).

    ``on_result`` is called with each result as it comes, in the event loop: it must be quick.
    """

    def __init__(
        self,
        trace: Trace,
        source: EndpointSource,
        settings: ReplaySettings,
        on_result: Callable[[RequestResult], None] | None = None,
    ) -> None:
        self.trace = trace
        self.settings = settings
        self.endpoints = Endpoints(
            source, refresh_interval=settings.refresh_interval, ejection_time=settings.ejection_time
        )
        self.results: list[RequestResult] = []
        self.sent = 0
        self._on_result = on_result
        self._origin = math.nan

    @property
    def in_flight(self) -> int:
        """Requests due and not ended, those waiting for an endpoint included."""
        return self.sent - len(self.results)

    @property
    def virtual_time(self) -> float:
        """Virtual seconds since the replay began; NaN before."""
        return (asyncio.get_running_loop().time() - self._origin) * self.settings.time_compression

    async def run(self) -> list[RequestResult]:
        """Send everything, wait for every answer, return the results in order of completion.

        When cancelled, requests in flight are dropped and recorded as unfinished; those not yet due have no result.
        """
        compression = self.settings.time_compression
        async with self.endpoints.running(), open_session() as session:
            loop = asyncio.get_running_loop()
            self._origin = loop.time()
            async with asyncio.TaskGroup() as tasks:
                for index, at in enumerate(self.trace.at.tolist()):
                    delay = self._origin + at / compression - loop.time()
                    if delay > 0:
                        await asyncio.sleep(delay)
                    tasks.create_task(self._serve(session, index, at))
        return self.results

    async def _serve(self, session: aiohttp.ClientSession, index: int, at: float) -> None:
        # Counted here and not by the caller: a task cancelled before it starts leaves no result.
        self.sent += 1
        result = RequestResult(index, at)
        try:
            async with asyncio.timeout(self.settings.request_timeout / self.settings.time_compression):
                await self._try_endpoints(session, result)
        except TimeoutError:
            result.ending = Ending.TIMEOUT
            result.error = f"no answer within {self.settings.request_timeout:g} virtual s"
        except asyncio.CancelledError:
            result.ending, result.error = Ending.UNFINISHED, "the replay was stopped"
            raise
        finally:
            self.results.append(result)
            if self._on_result is not None:
                self._on_result(result)

    async def _try_endpoints(self, session: aiohttp.ClientSession, result: RequestResult) -> None:
        compression, trace = self.settings.time_compression, self.trace
        body = chat_body(self.settings.model, int(trace.prompt[result.index]), int(trace.output[result.index]))
        while result.attempts < _ATTEMPTS:
            asked = self.virtual_time
            endpoint = await self.endpoints.acquire(self.settings.endpoint_wait / compression)
            result.queued += self.virtual_time - asked
            if endpoint is None:
                why = f"no ready endpoint within {self.settings.endpoint_wait:g} virtual s"
                result.ending = Ending.NO_ENDPOINT
                result.error = f"{why}; before: {result.error}" if result.error else why
                return
            result.attempts += 1
            result.pod, result.variant = endpoint.pod, endpoint.variant
            try:
                self._answered(result, await send(session, endpoint.url, body))
                return
            except RequestFailed as error:
                result.ending, result.error, result.status = error.ending, str(error), error.status
                # Not begun: another endpoint may be asked without doing work twice.
                if error.ending is not Ending.UNAVAILABLE:
                    return
                self.endpoints.eject(endpoint)
            finally:
                self.endpoints.release(endpoint)

    def _answered(self, result: RequestResult, answer: Answered) -> None:
        compression = self.settings.time_compression
        first, last = ((wall - self._origin) * compression for wall in (answer.first, answer.last))
        gaps = answer.output_tokens - 1
        result.ending, result.status, result.error = Ending.OK, 200, ""
        result.ttft, result.e2e = first - result.at, last - result.at
        result.itl = (last - first) / gaps if gaps > 0 else None
        result.prompt_tokens, result.output_tokens = answer.prompt_tokens, answer.output_tokens
