"""One attempt at a pod, and its answer on the way to the client: bytes as they come, cancelled from either end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from aiohttp.http import StreamWriter
from multidict import CIMultiDict

from modelyard.router.process.exchange import Broken, Declined, Exchange, KeptAnswer, Unanswered
from modelyard.router.process.pod_client import PodAnswer, PodClient
from modelyard.router.process.pod_connection import PodConnector
from modelyard.router.process.telemetry import RouterMetrics
from modelyard.router.settings import RouterSettings
from modelyard.routing import (
    UNREACHABLE_AFTER,
    Attempt,
    Calls,
    Connector,
    CountedAnswer,
    Decider,
    Forward,
    RoutedPod,
    answer_reader,
    is_retriable,
)

HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade"),
    }
)
_NOT_SENT = HOP_BY_HOP | {"host", "content-length", "accept-encoding", "expect", "x-request-id"}
_NOT_KEPT = HOP_BY_HOP | {"content-length"}
WHOLE = 1 << 20
"""Bytes of an answer up to which it is kept, for its usage and to be able to try again."""
MOST_ERROR = 1 << 16
MOST_MESSAGE = 200
"""Characters of an error: that of a malformed answer quotes it."""


@dataclass(slots=True, eq=False)
class Flow:
    """A stream in progress: since when it waits, and for whom."""

    exchange: Exchange
    task: asyncio.Task[Any] | None
    since: float
    on_client: bool = False
    stalled: bool = False


class Upstream:
    """Attempts at pods, and streams in progress."""

    def __init__(self, settings: RouterSettings, metrics: RouterMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._flows: set[Flow] = set()
        connector = PodConnector(limit=0, keepalive_timeout=30, ssl=settings.verify_pods)
        self._pods = PodClient(connector, settings.connect_seconds)
        self.session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_seconds),
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept", "Content-Type"),
        )
        """For what pods are asked beside requests, over the same connections."""

    async def close(self) -> None:
        """Close all connections."""
        await self.session.close()

    async def watch(self) -> None:
        """Break off, for ever, streams that neither end moves on."""
        clock, limit = asyncio.get_running_loop().time, self._settings.stall_seconds
        while True:
            await asyncio.sleep(min(1.0, limit / 4))
            for flow in [one for one in self._flows if clock() - one.since > limit and not one.stalled]:
                flow.stalled = True
                if flow.on_client:
                    if flow.exchange.http.transport is not None:
                        flow.exchange.http.transport.abort()
                elif flow.task is not None:
                    flow.task.cancel()

    async def send(
        self, decider: Decider, forward: Forward, attempt: Attempt, exchange: Exchange, *, others: bool
    ) -> web.StreamResponse:
        """Make an attempt and pass its answer on. Raises ``Unanswered`` and ``Broken``."""
        record = exchange.record
        decider.begun(forward, attempt)
        answered = False
        answer: PodAnswer | None = None
        prefill: asyncio.Task[bytes] | None = None
        try:
            record.sent = asyncio.get_running_loop().time()
            body, prefill = await self.prepare(decider, forward, attempt, exchange)
            asked = self._ask(attempt.pod.url, body, forward, attempt, exchange)
            answer = await (asked if prefill is None else _together(asked, prefill))
            record.upstream_status = answer.status
            if is_retriable(answer.status, others=others and len(forward.attempts) > 1):
                exchange.sends -= 1
                kept = await self._kept(answer, attempt.pod, exchange)
                raise Unanswered(attempt.pod, f"answered {answer.status}", kept=kept)
            answered = True
            decider.answered(forward, attempt, answer.status)
            response = await self._pass_on(answer, attempt.pod, forward, exchange)
            if prefill is not None:
                await after(prefill)
            return response
        except Declined as no:
            record.upstream_status = no.kept.status
            return await exchange.answer(no.kept.status, no.kept.body, no.kept.headers)
        finally:
            decider.ended(forward, attempt, was_answered=answered)
            if answer is not None:
                answer.close()
            if prefill is not None and not prefill.done():
                prefill.cancel()
                await asyncio.gather(prefill, return_exceptions=True)

    async def prepare(
        self, decider: Decider, forward: Forward, attempt: Attempt, exchange: Exchange
    ) -> tuple[bytes, asyncio.Task[bytes] | None]:
        """The body for the answering pod, after the prefill call where there is one; or beside it, which then is told.

        Raises ``Unanswered`` and ``Declined``.
        """
        calls = decider.calls(forward, attempt)
        if calls.prefill is None:
            return calls.body, None
        call = self._prefill(forward, attempt, calls, exchange)
        if forward.connector is Connector.BOOTSTRAP:
            return calls.body, asyncio.create_task(call)
        told = await call
        if forward.connector is Connector.NIXL:
            return decider.decode_body(forward, attempt, parsed(told)), None
        return calls.body, None

    async def _ask(self, url: str, body: bytes, forward: Forward, attempt: Attempt, exchange: Exchange) -> PodAnswer:
        """Send, and wait for the head of the answer. A connection that was kept and is dead is replaced, once."""
        pod = attempt.pod
        limit, head = forward.server.timeout, _request_head(url, exchange)
        if limit is None:  # for all attempts together: a long answer is not computed by one pod after another
            limit = self._settings.head_seconds
            until = exchange.head_until = min(exchange.head_until, asyncio.get_running_loop().time() + limit)
        else:
            until = asyncio.get_running_loop().time() + limit
        post = partial(self._pods.post, url, head, body, until, exchange.account, exchange.reservation.hold)
        sends = exchange.sends

        def sent() -> None:
            exchange.sends += 1

        try:
            try:
                answer = await post(sent)
            except aiohttp.ClientConnectorError:
                raise
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                exchange.sends = sends
                answer = await post(sent)
        except TimeoutError as error:
            if isinstance(error, aiohttp.ClientError):  # it did not take the connection in time
                pod.failed = max(pod.failed, UNREACHABLE_AFTER)
                raise Unanswered(pod, "took no connection", timed_out=True) from error
            raise Unanswered(pod, f"sent no answer within {limit:g} s", timed_out=True) from error
        except aiohttp.ClientConnectionError as error:
            # It is tried last until its metrics can be read again.
            pod.failed = max(pod.failed, UNREACHABLE_AFTER)
            raise Unanswered(pod, f"failed: {_told(error)}") from error
        except aiohttp.ClientError as error:
            raise Unanswered(pod, f"failed: {_told(error)}") from error
        if answer.status < 200:  # no client is offered it: what comes behind would be no HTTP
            answer.close()
            raise Unanswered(pod, f"answered {answer.status}, which nobody asked for")
        return answer

    async def _prefill(self, forward: Forward, attempt: Attempt, calls: Calls, exchange: Exchange) -> bytes:
        """The prefill call of a pair, to its end. Raises ``Unanswered``; 4xx of the engine are the client's."""
        assert attempt.prefill is not None
        assert calls.prefill is not None
        clock = asyncio.get_running_loop().time
        begun = clock()
        apart = Attempt(attempt.prefill)
        answer = await self._ask(attempt.prefill.url, calls.prefill, forward, apart, exchange)
        try:
            kept = await self._kept(answer, attempt.prefill, exchange, WHOLE)
        finally:
            answer.close()
        if not is_retriable(answer.status, others=True) and 400 <= answer.status < 500:
            raise Declined(kept)
        if not 200 <= answer.status < 300:
            exchange.sends -= 1
            raise Unanswered(attempt.prefill, f"answered {answer.status}", kept=kept)
        self._metrics.prefilled(exchange.record, clock() - begun)
        return kept.body

    async def _kept(self, answer: PodAnswer, pod: RoutedPod, exchange: Exchange, most: int = MOST_ERROR) -> KeptAnswer:
        body = bytearray()
        while len(body) < most and (more := await self._piece(answer, pod)):
            body += more
            if (full := exchange.reservation.hold(len(more))) is not None:  # until the request is over
                raise Unanswered(pod, f"sent an answer for which no memory is left: {full.message}")
        return KeptAnswer(answer.status, _response_headers(answer, length=False), bytes(body[:most]))

    async def _piece(self, answer: PodAnswer, pod: RoutedPod) -> bytes:
        """The next bytes of an answer of which nothing was sent yet; none: it has ended. Raises ``Unanswered``."""
        limit = self._settings.stall_seconds
        try:
            if answer.is_whole:
                return await answer.read()
            async with asyncio.timeout(limit):
                return await answer.read()
        except TimeoutError:
            raise Unanswered(pod, f"sent nothing for {limit:g} s", timed_out=True) from None
        except aiohttp.ClientError as error:
            raise Unanswered(pod, f"broke off its answer: {_told(error)}") from error

    async def _pass_on(
        self, answer: PodAnswer, pod: RoutedPod, forward: Forward, exchange: Exchange
    ) -> web.StreamResponse:
        kind = answer.content_type
        counted = answer_reader(
            kind,
            answer.status,
            answer.headers.get("Content-Encoding", ""),
            writes=forward.question.writes,
            withhold=forward.withhold,
        )
        if kind != "application/json":
            return await self._stream(answer, pod, exchange, counted)
        body, whole = bytearray(), False
        try:
            while len(body) <= WHOLE and (chunk := await self._piece(answer, pod)):
                body += chunk
                async with exchange.account:
                    counted.feed(chunk)
                if exchange.reservation.hold(len(chunk)) is not None:
                    break
            else:
                whole = len(body) <= WHOLE
        finally:
            exchange.count(counted)
        if not whole:
            exchange.reservation.hold(-len(body))
            return await self._stream(answer, pod, exchange, counted, bytes(body))
        response = await exchange.answer(answer.status, bytes(body), _response_headers(answer, length=False))
        exchange.record.last = asyncio.get_running_loop().time()
        return response

    async def _stream(
        self,
        answer: PodAnswer,
        pod: RoutedPod,
        exchange: Exchange,
        reader: CountedAnswer,
        ahead: bytes = b"",
    ) -> web.StreamResponse:
        """The head is sent with the first piece, until which another pod may be tried; ``ahead`` was read before."""
        record, clock = exchange.record, asyncio.get_running_loop().time
        flow = Flow(exchange, asyncio.current_task(), clock())
        self._flows.add(flow)
        response: web.StreamResponse | None = None
        held = 0
        try:
            chunk = ahead or await answer.read()
            response = await exchange.begin(answer.status, _response_headers(answer, length=not reader.is_stream))
            record.first, record.streamed = clock(), reader.is_stream
            writer = exchange.http.writer
            assert isinstance(writer, StreamWriter)
            while chunk:
                async with exchange.account:
                    sent = chunk if chunk is ahead else reader.feed(chunk)
                    if sent:
                        held += _hold(exchange, len(sent))
                        await writer.write(sent, drain=False)  # waits for nothing
                if sent:
                    flow.since, flow.on_client = clock(), True
                    await writer.drain()
                    flow.on_client = False
                flow.since = clock()
                held += _hold(exchange, _unsent(exchange) + reader.kept - held)
                chunk = await answer.read()
            if rest := reader.end():
                await response.write(rest)
            record.last = clock()
            await response.write_eof()
            exchange.complete = True
            return response
        except (aiohttp.ClientError, TimeoutError) as error:
            if isinstance(error, aiohttp.ClientConnectionResetError):  # the client's, not the engine's
                raise asyncio.CancelledError from error
            if response is None:
                raise Unanswered(pod, f"broke off its answer: {_told(error)}") from error
            raise Broken(f"the engine broke off its answer: {_told(error)}") from error
        except asyncio.CancelledError:
            if not flow.stalled:
                raise
            if flow.on_client or flow.task is None:
                raise
            flow.task.uncancel()
            why = f"sent nothing for {self._settings.stall_seconds:g} s"
            raise (Unanswered(pod, why, timed_out=True) if response is None else Broken(f"the engine {why}")) from None
        finally:
            self._flows.discard(flow)
            exchange.reservation.hold(-held)
            reader.end()  # of an answer that broke off too
            exchange.count(reader)


async def after(prefill: asyncio.Task[bytes]) -> None:
    """The decode call was answered; what its prefill call says now is no news to the client."""
    with contextlib.suppress(Unanswered, Declined):
        await prefill


async def _together(decode: Coroutine[Any, Any, PodAnswer], prefill: asyncio.Task[bytes]) -> Any:
    """The head of the decode call's answer, while the prefill call may go on; where that fails first, its error."""
    asked = asyncio.create_task(decode)
    try:
        await asyncio.wait({asked, prefill}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            await prefill
        return await asked
    finally:
        if not asked.done():
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)


def parsed(body: bytes) -> Any:
    """The JSON value, or ``None``."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _request_head(url: str, exchange: Exchange) -> list[str]:
    http, left_out = exchange.http, _NOT_SENT
    if exchange.consumed:
        left_out = left_out | exchange.consumed
    if named := http.headers.getall("Connection", ()):
        left_out = left_out | _listed(named)
    told = [f"{name}: {value}" for name, value in http.headers.items() if name.lower() not in left_out]
    target, host = http.raw_path.partition("#")[0], url.partition("://")[2]
    return [f"{http.method} {target} HTTP/1.1", f"Host: {host}", *told, f"x-request-id: {exchange.record.request_id}"]


def _response_headers(answer: PodAnswer, *, length: bool) -> CIMultiDict[str]:
    left_out = HOP_BY_HOP if length else _NOT_KEPT
    if named := answer.headers.getall("Connection", ()):
        left_out = left_out | _listed(named)
    return CIMultiDict([(name, value) for name, value in answer.headers.items() if name.lower() not in left_out])


def _listed(values: Iterable[str]) -> frozenset[str]:
    return frozenset(one.strip().lower() for value in values for one in value.split(","))


def _hold(exchange: Exchange, more: int) -> int:
    if more and (full := exchange.reservation.hold(more)) is not None and more > 0:
        exchange.reservation.hold(-more)
        raise Broken(f"no memory is left for the answer: {full.message}")
    return more


def _unsent(exchange: Exchange) -> int:
    transport = exchange.http.transport
    return 0 if transport is None else transport.get_write_buffer_size()


def _told(error: BaseException) -> str:
    return str(error)[:MOST_MESSAGE] or type(error).__name__
