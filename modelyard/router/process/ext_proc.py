"""The front for gateways: the endpoint picker of the Gateway API Inference Extension, by Envoy's ext_proc contract.

The gateway speaks HTTP with clients and pods and asks here about each request, on a gRPC stream of its own. A request
goes the way of every request (``Front``); only an attempt is another thing: the gateway is told the ranked pods and
tries them itself, and what it then says of the answer is what a router's own client would have seen.
Needs the packages of the extra ``gateway``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import grpc
from aiohttp import HttpVersion11, web
from envoy.config.core.v3 import base_pb2 as base
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2 as modes
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages, external_processor_pb2_grpc as service
from google.protobuf import struct_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from multidict import CIMultiDict

from modelyard.router.process.exchange import AttemptMaker, Broken, Declined, Exchange
from modelyard.router.process.front import Front
from modelyard.router.process.upstream import Upstream, after
from modelyard.router.settings import RouterSettings
from modelyard.routing import SLICE, Attempt, CountedAnswer, Decider, Forward, answer_reader, errors, is_retriable

DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
CLUSTER = "x-modelyard-cluster"
"""Names the ModelServer, as ``namespace/name``: for gateways whose routes choose their cluster by a header."""
NAME = "envoy.service.ext_proc.v3.ExternalProcessor"
_RETRY_ON = "gateway-error,reset,connect-failure,refused-stream,retriable-status-codes"
_STREAMED = modes.ProcessingMode.STREAMED
_DUPLEX = modes.ProcessingMode.FULL_DUPLEX_STREAMED
_PIECE = 1 << 16
_ROOM = 1 << 20
"""Bytes of a message beside its body."""
SPARE = 100
"""Streams beside those of ``max_requests``: what is beyond that is answered, and so are questions about health."""


class GatewayTalk:
    """What a gateway says of one request, on one stream; to ``Front``, an HTTP request without a connection."""

    version = HttpVersion11
    transport = None
    remote = None  # the gateway's own, whoever its client is

    def __init__(self, context: Any, first: Any) -> None:
        self._context = context
        head = first.request_headers
        given = _listed(head)
        pseudo = {name: value for name, value in given if name.startswith(":")}
        self.method, self.raw_path = pseudo.get(":method", ""), pseudo.get(":path", "")
        # Whether to send the body is between the client and the gateway.
        passed = [one for one in given if not one[0].startswith(":") and one[0] != "expect"]
        self.headers = CIMultiDict(passed)
        self.among = _subset(first.metadata_context)
        self.returns = first.protocol_config.response_body_mode
        """How the bodies of answers come here, if they do."""
        self._duplex = first.protocol_config.request_body_mode == _DUPLEX
        self._whole = head.end_of_stream
        self._head_awaited = not head.end_of_stream
        self._trailers = False

    @property
    def content_length(self) -> int | None:
        """That of the request, where it is told."""
        told = self.headers.get("content-length", "")
        return int(told) if told.isascii() and told.isdigit() and len(told) < 20 else None

    @property
    def content(self) -> GatewayTalk:
        """The body."""
        return self

    def is_eof(self) -> bool:
        """Whether all of it is there: it has to be asked for."""
        return False

    async def readany(self) -> bytes:
        """The next bytes of the body; none: it has ended."""
        if self._head_awaited and not self._duplex:
            # The body comes once its head was answered. With full duplex that would send the head on its way.
            await self._write(request_headers=messages.HeadersResponse())
        self._head_awaited = False
        while not self._whole:
            message = await self._read()
            if message is None:
                raise asyncio.CancelledError
            self._trailers = message.WhichOneof("request") == "request_trailers"
            self._whole = self._trailers or message.request_body.end_of_stream
            if piece := message.request_body.body:
                return bytes(piece)
        return b""

    async def send_on(
        self, body: bytes, headers: Mapping[str, str], removed: Sequence[str], *, unchanged: bool
    ) -> None:
        """Let the request go with these headers and this body."""
        where = struct_pb2.Struct()
        where.update({"envoy.lb": {DESTINATION: headers[DESTINATION]}})
        replaced = {} if unchanged or self._duplex else {"content-length": str(len(body))}
        edits = _edits({**headers, **replaced}, removed)
        change = messages.CommonResponse(header_mutation=edits, clear_route_cache=True)
        if self._duplex:
            await self._write(request_headers=messages.HeadersResponse(response=change), dynamic_metadata=where)
            for piece, last in _pieces(body):
                await self._write(request_body=_piece(piece, last=last and not self._trailers))
            if self._trailers:
                await self._write(request_trailers=messages.TrailersResponse())
            return
        if not unchanged:
            change.body_mutation.body = body
        await self._write(request_body=messages.BodyResponse(response=change), dynamic_metadata=where)

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Answer the request, or put another answer in the place of the one that came."""
        told = messages.ImmediateResponse(headers=_edits(headers), body=body, details="modelyard")
        told.status.code = status
        await self._write(immediate_response=told)

    async def answers(self) -> AsyncIterator[tuple[str, Any]]:
        """What is told of the answer, each with its kind, until the stream ends."""
        while (message := await self._read()) is not None:
            yield message.WhichOneof("request"), message

    async def head(self, headers: Mapping[str, str]) -> None:
        """Let the head of the answer go, with these headers more."""
        change = messages.CommonResponse(header_mutation=_edits(headers))
        await self._write(response_headers=messages.HeadersResponse(response=change))

    async def piece(self, body: bytes, *, changed: bool, last: bool) -> None:
        """Let a piece of the answer go."""
        if self.returns == _DUPLEX:
            for part, end in _pieces(body):
                await self._write(response_body=_piece(part, last=last and end))
            return
        change = messages.CommonResponse()
        if changed and body:
            change.body_mutation.body = body
        elif changed:
            change.body_mutation.clear_body = True
        await self._write(response_body=messages.BodyResponse(response=change))

    async def trailers(self) -> None:
        """Let the trailers of the answer go."""
        await self._write(response_trailers=messages.TrailersResponse())

    async def abort(self, why: str) -> None:
        """End it so that the gateway breaks the answer off."""
        await self._context.abort(grpc.StatusCode.ABORTED, why)

    async def _read(self) -> Any:
        message = await self._context.read()
        return None if message is grpc.aio.EOF else message

    async def _write(self, **parts: Any) -> None:
        await self._context.write(messages.ProcessingResponse(**parts))


class GatewayExchange(Exchange):
    """A request of which a gateway asks."""

    def __init__(self, http: web.BaseRequest, *given: Any) -> None:
        super().__init__(http, *given)
        self.talk = cast(GatewayTalk, http)
        self.among = self.talk.among

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> web.StreamResponse:
        """As of every exchange."""
        self.record.status = status
        self._response = web.Response(status=status)
        self.complete = True
        await self.talk.answer(status, body, self._complete(headers))
        return self._response

    async def break_off(self, why: str) -> web.StreamResponse:
        """As of every exchange."""
        with contextlib.suppress(grpc.aio.AbortError):
            await self.talk.abort(why)
        return self._response or web.Response(status=500)

    async def send(
        self, upstream: AttemptMaker, decider: Decider, forward: Forward, attempt: Attempt, *, others: bool
    ) -> web.StreamResponse:
        """Have the gateway try the ranked pods, this attempt first. Raises ``Unanswered`` and ``Broken``."""
        assert isinstance(upstream, Upstream)
        record = self.record
        if self.talk.returns not in (_STREAMED, _DUPLEX):
            # What cannot be kept from the client is not asked for.
            forward.changes = {name: value for name, value in forward.changes.items() if name != "stream_options"}
        # One prefill call was made; its result is good for the decode pods of its pod.
        ways = [one for one in forward.attempts if one.prefill is attempt.prefill]
        listed = [ways[place] for place in errors.tries(len(ways), forward.server.retry)]
        decider.begun(forward, attempt)
        prefill: asyncio.Task[bytes] | None = None
        underway = _Underway(decider, forward, attempt)
        try:
            record.sent = asyncio.get_running_loop().time()
            body, prefill = await upstream.prepare(decider, forward, attempt, self)
            headers, unchanged = self._request_headers(forward, listed), body is forward.question.request.raw
            # What is compressed cannot be counted.
            removed = sorted({"accept-encoding", *self.consumed})
            await self.talk.send_on(body, headers, removed, unchanged=unchanged)
            self._response = web.StreamResponse()
            self.sends += 1
            await self._follow(underway, listed)
            if prefill is not None:
                await after(prefill)
            return self._response
        except Declined as no:
            record.upstream_status = no.kept.status
            return await self.answer(no.kept.status, no.kept.body, no.kept.headers)
        finally:
            underway.end()
            if prefill is not None and not prefill.done():
                prefill.cancel()
                await asyncio.gather(prefill, return_exceptions=True)

    def _request_headers(self, forward: Forward, listed: Sequence[Attempt]) -> dict[str, str]:
        told = {
            DESTINATION: ",".join(one.pod.address for one in listed),
            CLUSTER: str(forward.destination.server),
            "x-request-id": self.record.request_id,
            "x-envoy-max-retries": str(len(listed) - 1),
            "x-envoy-retry-on": _RETRY_ON,
            "x-envoy-retriable-status-codes": "429,502,503,504" if len(listed) > 1 else "502,503,504",
        }
        if forward.server.timeout is not None:
            told["x-envoy-upstream-rq-per-try-timeout-ms"] = str(max(1, round(1000 * forward.server.timeout)))
        return told

    async def _follow(self, underway: _Underway, listed: Sequence[Attempt]) -> None:
        record, talk, clock = self.record, self.talk, asyncio.get_running_loop().time
        reader: CountedAnswer | None = None
        seen = False
        try:
            async for kind, message in talk.answers():
                if kind == "response_headers":
                    seen = True
                    status, media, encoding, size = _told(message.response_headers)
                    record.status = record.upstream_status = status
                    record.first = clock()
                    tries = underway.served(_served(message), listed)
                    record.pod, record.attempts = underway.attempt.pod.key.name, record.attempts + tries
                    self.sends -= is_retriable(status, others=False)
                    underway.answered(status)
                    reader = answer_reader(
                        media,
                        status,
                        encoding,
                        writes=underway.forward.question.writes,
                        withhold=underway.forward.withhold,
                    )
                    record.streamed = reader.is_stream
                    if talk.returns == modes.ProcessingMode.NONE:
                        reader.skip(size)
                    # Where it was the last word, the gateway may end the stream as soon as it is answered.
                    self.complete = message.response_headers.end_of_stream or talk.returns == modes.ProcessingMode.NONE
                    await talk.head({**self.headers, "x-request-id": record.request_id})
                elif kind == "response_body":
                    chunk, last = message.response_body.body, message.response_body.end_of_stream
                    sent = chunk if reader is None else await self._read(reader, chunk, last=last)
                    record.last, self.complete = clock(), last
                    await talk.piece(sent, changed=sent != chunk, last=last)
                elif kind == "response_trailers":
                    self.complete = True
                    await talk.trailers()
                if self.complete and talk.returns != modes.ProcessingMode.NONE:
                    return
        finally:
            if reader is not None:
                reader.end()  # of an answer that broke off too
                self.count(reader)
        if not seen:
            raise asyncio.CancelledError  # the client's doing: the gateway has a status for everything else
        if not self.complete:
            raise Broken("the answer did not come to its end")

    async def _read(self, reader: CountedAnswer, chunk: bytes, *, last: bool) -> bytes:
        parts = []
        for start in range(0, len(chunk), SLICE) or (0,):
            async with self.account:
                parts.append(reader.feed(chunk[start : start + SLICE]))
        if last:
            parts.append(reader.end())
        return b"".join(parts)


class _Underway:
    """The attempt whose load is counted: the first of the list, until the gateway tells which pod it came to be."""

    def __init__(self, decider: Decider, forward: Forward, attempt: Attempt) -> None:
        self.forward, self.attempt = forward, attempt
        self._decider = decider
        self._answered = False

    def served(self, address: str, listed: Sequence[Attempt]) -> int:
        """This address has answered; how many of the list were tried before it."""
        index = next((index for index, one in enumerate(listed) if one.pod.address == address), 0)
        if listed[index] is not self.attempt:
            self._decider.ended(self.forward, self.attempt, was_answered=False)
            self.attempt = listed[index]
            self._decider.begun(self.forward, self.attempt)
        return index

    def answered(self, status: int) -> None:
        self._answered = True
        self._decider.answered(self.forward, self.attempt, status)

    def end(self) -> None:
        self._decider.ended(self.forward, self.attempt, was_answered=self._answered)


class _Processor(service.ExternalProcessorServicer):  # type: ignore[misc]
    def __init__(self, front: Front, idle: float) -> None:
        self._front, self._idle = front, idle

    async def Process(self, _: Any, context: Any) -> None:
        try:
            async with asyncio.timeout(self._idle):
                first = await context.read()
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no request within {self._idle:g} s")
        if first is grpc.aio.EOF:
            return
        if first.WhichOneof("request") != "request_headers":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "request_header_mode must be SEND")
        with contextlib.suppress(asyncio.CancelledError):
            await self._front(cast(web.BaseRequest, GatewayTalk(context, first)), GatewayExchange)


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    def __init__(self, unready: Callable[[], str | None]) -> None:
        self._unready = unready

    async def Check(self, request: Any, context: Any) -> Any:
        if request.service not in ("", "liveness", "readiness", NAME):
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        well = request.service == "liveness" or self._unready() is None
        states = health_pb2.HealthCheckResponse
        return states(status=states.SERVING if well else states.NOT_SERVING)


class EndpointPicker:
    """The gRPC server."""

    def __init__(self, front: Front, settings: RouterSettings, unready: Callable[[], str | None]) -> None:
        most = settings.max_body + _ROOM
        limits = [(f"grpc.max_{way}_message_length", most) for way in ("receive", "send")]
        self._server = grpc.aio.server(
            options=[*limits, ("grpc.so_reuseport", int(settings.workers > 1))],
            maximum_concurrent_rpcs=settings.max_requests + SPARE,
        )
        service.add_ExternalProcessorServicer_to_server(_Processor(front, settings.idle_seconds), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(_Health(unready), self._server)
        self._settings = settings

    def bind(self) -> int:
        """Take the port; which it is. Raises ``OSError`` where that, or the certificate, cannot be used."""
        settings = self._settings
        where = f"{f'[{settings.host}]' if ':' in settings.host else settings.host}:{settings.ext_proc_port}"
        try:
            if settings.tls_cert:
                pair = Path(settings.tls_key).read_bytes(), Path(settings.tls_cert).read_bytes()
                return int(self._server.add_secure_port(where, grpc.ssl_server_credentials([pair])))
            return int(self._server.add_insecure_port(where))
        except RuntimeError as error:
            raise OSError(str(error)) from None

    async def start(self) -> None:
        """Answer from now on."""
        await self._server.start()

    async def stop(self, seconds: float) -> None:
        """No new requests; those in progress have so long."""
        await self._server.stop(seconds)


def _listed(head: Any) -> list[tuple[str, str]]:
    return [(one.key, (one.raw_value or one.value.encode()).decode("utf-8", "replace")) for one in head.headers.headers]


def _told(head: Any) -> tuple[int, str, str, int]:
    """Return status, media type, encoding and length (0: not known) of an answer."""
    found = dict(_listed(head))
    status, size = found.get(":status", ""), found.get("content-length", "")
    media = found.get("content-type", "").partition(";")[0].strip().lower()
    return (
        int(status) if len(status) == 3 and status.isascii() and status.isdecimal() else 0,
        media,
        found.get("content-encoding", ""),
        int(size) if size.isascii() and size.isdecimal() and len(size) < 16 else 0,
    )


def _served(message: Any) -> str:
    told = message.metadata_context.filter_metadata.get("envoy.lb")
    if told is not None and SERVED in told.fields:
        return str(told.fields[SERVED].string_value)
    for attributes in message.attributes.values():
        if "upstream.address" in attributes.fields:
            return str(attributes.fields["upstream.address"].string_value)
    return ""


def _subset(context: Any) -> frozenset[str] | None:
    """The addresses that the gateway allows; ``None``: it says nothing of it."""
    told = context.filter_metadata.get("envoy.lb.subset_hint")
    if told is None or SUBSET not in told.fields:
        return None
    value = told.fields[SUBSET]
    parts = [one.string_value for one in value.list_value.values] or value.string_value.split(",")
    return frozenset(one.strip() for one in parts if one.strip())


def _edits(headers: Mapping[str, str], removed: Sequence[str] = ()) -> Any:
    edits = messages.HeaderMutation(remove_headers=removed)
    for name, value in headers.items():
        edits.set_headers.add(
            header=base.HeaderValue(key=name.lower(), raw_value=value.encode()),
            append_action=base.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
        )
    return edits


def _pieces(body: bytes) -> list[tuple[bytes, bool]]:
    """The body in pieces, each with whether it is the last; there is one, however small it is."""
    parts = [body[start : start + _PIECE] for start in range(0, len(body), _PIECE)] or [b""]
    return [(part, index == len(parts) - 1) for index, part in enumerate(parts)]


def _piece(body: bytes, *, last: bool) -> Any:
    told = messages.BodyResponse()
    told.response.body_mutation.streamed_response.body = body
    told.response.body_mutation.streamed_response.end_of_stream = last
    return told
