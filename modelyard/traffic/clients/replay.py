"""Replaying a trace against whatever endpoints are ready, in compressed time.

Each request is sent at its recorded time divided by the compression, whether or not earlier ones have been answered
(open loop). Every request sent ends in exactly one ``RequestResult``.

Streams are not parsed: the first chunk with content is found by a byte pattern, and the numbers of tokens come from the
usage in the last chunk.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import aiohttp
import numpy as np
import orjson
from numpy.typing import NDArray

from modelyard.hosts import HostsFile, ServiceResolver
from modelyard.traffic.router import Endpoints, EndpointSource
from modelyard.traffic.traces import Ending, Results, Trace

_ATTEMPTS: Final = 2
"""At least; of many endpoints that end together each may be met once."""
_CONTENT: Final = re.compile(rb'"(?:content|text)":\s*"[^"]')
_PROMPT_TOKENS: Final = re.compile(rb'"prompt_tokens":\s*(\d+)')
_OUTPUT_TOKENS: Final = re.compile(rb'"completion_tokens":\s*(\d+)')
_DONE: Final = b"data: [DONE]"
# Enough for the usage chunk and [DONE].
_TAIL: Final = 2048


@dataclass(slots=True)
class RequestResult:
    """One request as its client saw it. Times and durations are virtual seconds, ``at`` from the replay's start.

    ``ttft`` and ``e2e`` count from ``at``, the moment the request was due, so they contain ``late`` (until this process
    got round to sending it: what the client itself adds), ``queued`` (time spent waiting for an endpoint) and any
    retry. ``itl`` is (last token - first token) / (tokens - 1), ``None`` for one token. ``output_tokens`` is what the
    engine reported.
    """

    index: int
    at: float
    ending: Ending = Ending.UNFINISHED
    pod: str = ""
    variant: str = ""
    attempts: int = 0
    late: float = 0.0
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

    ``connect_anew``: each request has a connection of its own, so that a Service's pods, which share connections, share
    the requests. ``endpoint_wait`` and ``request_timeout`` (which includes that wait) are virtual seconds;
    ``refresh_interval`` and ``ejection_time`` are those of ``Endpoints``, in wall seconds.
    """

    model: str
    time_compression: float = 1.0
    endpoint_wait: float = 300.0
    request_timeout: float = 600.0
    refresh_interval: float = 0.25
    ejection_time: float = 1.0
    connect_anew: bool = False

    def __post_init__(self) -> None:
        for name in ("time_compression", "endpoint_wait", "request_timeout", "refresh_interval", "ejection_time"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a finite number > 0, not {value!r}")


class Replay:
    """One replay of ``trace``. Await ``run`` once; the other members may be read meanwhile (progress bars).

    ``on_result`` is called with each result as it comes, in the event loop: it must be quick. ``admits``
    decides by index and lateness (virtual seconds) whether a request is sent; one that is not has no result.
    """

    def __init__(
        self,
        trace: Trace,
        source: EndpointSource,
        settings: ReplaySettings,
        on_result: Callable[[RequestResult], None] | None = None,
        admits: Callable[[int, float], bool] | None = None,
    ) -> None:
        self.trace = trace
        self.settings = settings
        self.endpoints = Endpoints(
            source, refresh_interval=settings.refresh_interval, ejection_time=settings.ejection_time
        )
        self.results: list[RequestResult] = []
        self.sent = 0
        self._on_result = on_result
        self._admits = admits
        self._origin = math.nan

    @property
    def virtual_time(self) -> float:
        """Virtual seconds since the replay began; NaN before."""
        return (asyncio.get_running_loop().time() - self._origin) * self.settings.time_compression

    async def run(self) -> list[RequestResult]:
        """Send every admitted request, wait for every answer, return the results in order of completion.

        When cancelled, requests in flight are dropped and recorded as unfinished; those not yet due have no result.
        """
        compression = self.settings.time_compression
        async with self.endpoints.running(), open_session(self.settings.connect_anew) as session:
            loop = asyncio.get_running_loop()
            self._origin = loop.time()
            async with asyncio.TaskGroup() as tasks:
                for index, at in enumerate(self.trace.at.tolist()):
                    delay = self._origin + at / compression - loop.time()
                    if delay > 0:
                        await asyncio.sleep(delay)
                    if self._admits is None or self._admits(index, max(0.0, self.virtual_time - at)):
                        tasks.create_task(self._serve(session, index, at))
        return self.results

    async def _serve(self, session: aiohttp.ClientSession, index: int, at: float) -> None:
        # Counted here and not by the caller: a task cancelled before it starts leaves no result.
        self.sent += 1
        result = RequestResult(index, at, late=max(0.0, self.virtual_time - at))
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
        while result.attempts < max(_ATTEMPTS, self.endpoints.count):
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


class RequestFailed(Exception):
    """``ending`` says of which kind, the message has the details; ``status`` is the HTTP status if there was one."""

    def __init__(self, ending: Ending, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.ending = ending
        self.status = status


class Answered(NamedTuple):
    """A complete answer: when its first and last tokens came (by the event loop's clock), and the usage reported."""

    first: float
    last: float
    prompt_tokens: int
    output_tokens: int


def chat_body(model: str, prompt_tokens: int, output_tokens: int) -> bytes:
    """A chat request whose prompt has ``prompt_tokens`` words and whose answer has exactly ``output_tokens`` tokens."""
    head = {
        "model": model,
        "max_tokens": output_tokens,
        "min_tokens": output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return b"".join(
        (orjson.dumps(head)[:-1], b',"messages":[{"role":"user","content":"', b"tok " * prompt_tokens, b'"}]}')
    )


def open_session(connect_anew: bool = False) -> aiohttp.ClientSession:
    """A session for any number of concurrent streams; ``connect_anew``: a connection for each request.

    Bound each request's time by ``asyncio.timeout``.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, resolver=ServiceResolver(HostsFile.found()), force_close=connect_anew),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Content-Type": "application/json"},
        auto_decompress=False,
    )


async def send(session: aiohttp.ClientSession, base_url: str, body: bytes) -> Answered:
    """POST ``body`` to the engine's chat endpoint and read the stream to its end. Raises ``RequestFailed``, also where
    it sends elsewhere."""
    url = f"{base_url}/v1/chat/completions"
    clock = asyncio.get_running_loop().time
    begun = False
    try:
        async with session.post(url, data=body, allow_redirects=False) as response:
            if response.status != 200:
                text = (await response.content.read(500)).decode(errors="replace")
                ending = Ending.UNAVAILABLE if response.status == 503 else Ending.REJECTED
                raise RequestFailed(ending, f"HTTP {response.status}: {text}", response.status)
            begun = True
            first: float | None = None
            last = 0.0
            tail = b""
            read = response.content.readany
            while data := await read():
                last = clock()
                if first is None and _CONTENT.search(data):
                    first = last
                tail = data if len(data) >= _TAIL else tail[-_TAIL:] + data
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        ending = Ending.BROKEN if begun else Ending.UNAVAILABLE
        raise RequestFailed(ending, f"{type(error).__name__}: {error}") from error
    prompt_tokens, output_tokens = _PROMPT_TOKENS.search(tail), _OUTPUT_TOKENS.search(tail)
    if first is None or _DONE not in tail or prompt_tokens is None or output_tokens is None:
        raise RequestFailed(Ending.BROKEN, f"the stream ended without content, usage or [DONE]: ...{tail[-200:]!r}")
    return Answered(first, last, int(prompt_tokens[1]), int(output_tokens[1]))
