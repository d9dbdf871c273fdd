"""The front of a router: HTTP in, the decision asked for, HTTP out to the pods. Decides nothing itself."""

from __future__ import annotations

import asyncio
import logging
import re
from random import Random
from typing import Any
from urllib.parse import unquote

import orjson
from aiohttp import web

from modelyard.router.process.body_reader import BodyReader, is_long
from modelyard.router.process.configured import Configured
from modelyard.router.process.exchange import Broken, Exchange, Unanswered
from modelyard.router.process.processor_shares import ProcessorShares
from modelyard.router.process.telemetry import AccessLog, RequestRecord, RouterMetrics
from modelyard.router.process.upstream import Upstream
from modelyard.router.process.wake_queue import QueueFull, WakeQueue
from modelyard.router.settings import RouterSettings
from modelyard.routing import (
    Arrival,
    Decider,
    Destination,
    ErrorAnswer,
    Forward,
    Left,
    NotServed,
    OverBudget,
    Principal,
    Question,
    RequestCapacity,
    Reservation,
    RoutedPod,
    RouteTable,
    client_of,
    copied_bytes,
    errors,
    likely_model,
    most_attempts,
    pause,
)

log = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
_ID = re.compile(r"[\x21-\x7e]{1,128}")
MOST_HEAD = 1 << 16
"""Characters of all headers of a request together."""
LEAVING = 1.0
"""Seconds to wait for news of the pods where the only one refused: it may be going away."""


class Front:
    """Handles every request of a server."""

    def __init__(
        self,
        decider: Decider,
        upstream: Upstream,
        configured: Configured,
        wake_queue: WakeQueue,
        metrics: RouterMetrics,
        access_log: AccessLog,
        settings: RouterSettings,
    ) -> None:
        self.decider = decider
        self.limits = configured.limits
        self.wake_queue = wake_queue
        self.capacity = RequestCapacity(settings.max_requests, settings.max_bodies, settings.client_share)
        """Capacity for requests in progress."""
        self.shares = ProcessorShares()
        """Processor time of requests in progress."""
        self.reader = BodyReader()
        """Reads long bodies."""
        self.leaving = False
        """Whether connections are closed after their answer."""
        self._upstream = upstream
        self._metrics = metrics
        self._log = access_log
        self._settings = settings
        self._admission = configured.admission
        self._user_queues = configured.user_queues
        self._random = Random()
        self._listed: tuple[RouteTable | None, bytes] = (None, b"")
        self._news = asyncio.Event()
        self._over = asyncio.Event()

    def changed(self) -> None:
        """The pods are others than before."""
        self._news.set()
        self._news = asyncio.Event()

    async def idle(self, seconds: float) -> bool:
        """Wait until no request is in progress; whether that came to be in time."""
        try:
            async with asyncio.timeout(seconds):
                while self.capacity.places.used:
                    self._over.clear()
                    await self._over.wait()
        except TimeoutError:
            return False
        return True

    async def __call__(self, http: web.BaseRequest, kind: type[Exchange] = Exchange) -> web.StreamResponse:
        """Answer one request, by an exchange of this kind."""
        clock = asyncio.get_running_loop().time
        path = http.raw_path.partition("?")[0]
        told = path if path.isascii() else path.encode("utf-8", "replace").decode()
        record = RequestRecord(http.method, told, clock())
        given = http.headers.get(REQUEST_ID, "")
        record.request_id = given if _ID.fullmatch(given) else f"{self._random.getrandbits(128):032x}"
        client = client_of(http.remote or "")
        reservation = Reservation(self.capacity, client)
        account = self.shares.open(("client", client))
        exchange = kind(http, record, self._settings, reservation, account, lambda: self.leaving)
        try:
            if refusal := reservation.refusal:
                return await exchange.refuse(refusal)
            return await self._answer(http, path, record, exchange)
        except Broken as error:
            record.reason, record.message = "proxy", str(error)
            return await exchange.break_off(str(error))
        except asyncio.CancelledError:
            if not exchange.complete:
                record.reason, record.message = "client_gone", "the client closed the connection"
                record.status = 499
            raise
        except Exception:
            log.exception("request %s", record.request_id)
            if exchange.begun:
                record.reason = "internal"
                return await exchange.break_off("the router failed on this request")
            return await exchange.refuse(errors.internal())
        finally:
            reservation.release()
            account.close()
            self._over.set()
            now = clock()
            self._metrics.over(record, now)
            self._log.add(record, now, f"HTTP/{http.version.major}.{http.version.minor}")

    async def _answer(
        self, http: web.BaseRequest, path: str, record: RequestRecord, exchange: Exchange
    ) -> web.StreamResponse:
        headers: dict[str, str] = {}
        size = 0
        async with exchange.account:
            for name, value in http.headers.items():
                headers.setdefault(name.lower(), value)
                size += len(name) + len(value)
        if size > MOST_HEAD:
            return await exchange.refuse(errors.head_too_large(MOST_HEAD))
        if full := exchange.reservation.hold(size):
            return await exchange.refuse(full)
        principal = await self._admission.authenticate(headers)
        if isinstance(principal, ErrorAnswer):
            return await exchange.refuse(principal)
        record.user = principal.subject
        if principal.subject:
            exchange.account.charge_to(("user", principal.subject))
        if path == "/v1/models" or path.startswith("/v1/models/"):
            return await self._models(http, path, exchange)
        body = await self._body(http, exchange)
        if isinstance(body, ErrorAnswer):
            return await exchange.refuse(body)
        question = await self._understood(Arrival(http.method, path, headers, body, exchange.among), exchange)
        record.understood = asyncio.get_running_loop().time()
        if isinstance(question, ErrorAnswer):
            return await exchange.refuse(question)
        record.model, record.tokens_in = question.model, question.tokens
        exchange.estimated = question.tokens
        label = self._metrics.label(question.model)
        self._metrics.arrived(label)
        try:
            return await self._serve(question, principal, exchange)
        finally:
            self._metrics.arrived(label, -1)

    async def _understood(self, arrival: Arrival, exchange: Exchange) -> Question | ErrorAnswer:
        """Read a request. A long body takes too long to be read while everything else waits."""
        decider, summary = self.decider, None
        if is_long(arrival.body):
            if refused := decider.refusal(arrival):
                return refused
            content_type, most_hashed = arrival.headers.get("content-type", ""), decider.configuration.most_hashed
            routes = decider.fleet.table.tried(likely_model(arrival.body)).routes
            namespace = routes[0].key.namespace if routes else ""
            summary = await self.reader.read(arrival.body, content_type, most_hashed, exchange.account, namespace)
        async with exchange.account:
            return decider.question(arrival, summary)

    async def _serve(self, question: Question, principal: Principal, exchange: Exchange) -> web.StreamResponse:
        async with exchange.account:
            destination = self.decider.destination(question)
        if isinstance(destination, ErrorAnswer):
            return await exchange.refuse(destination)
        route, record = destination.route, exchange.record
        if full := exchange.reservation.charge_to(route.key.namespace):
            return await exchange.refuse(full)
        exchange.account.charge_to(("namespace", route.key.namespace))
        record.route, record.server, record.instead_of = str(route.key), str(destination.server), destination.instead_of
        if no := self._admission.allows(principal, question.model):
            return await exchange.refuse(no)
        if route.budget is not None and question.request.data.get("background"):
            return await exchange.refuse(errors.in_background())
        if route.budget is None:
            return await self._serve_in_turn(question, destination, principal, exchange)
        admitted = await self.limits.admit(route.key, question.tokens)
        if isinstance(admitted, OverBudget):
            return await exchange.refuse(errors.limited(admitted), _left(route.budget, admitted))
        exchange.headers.update(_left(route.budget, admitted))
        try:
            return await self._serve_in_turn(question, destination, principal, exchange)
        finally:
            # Not even a client that is gone may get its tokens for nothing.
            await self.limits.settle(route.key, question.tokens, *(exchange.spent or (0, 0)))

    async def _serve_in_turn(
        self, question: Question, destination: Destination, principal: Principal, exchange: Exchange
    ) -> web.StreamResponse:
        exchange.consumed = principal.consumed
        clock = asyncio.get_running_loop().time
        came = clock()
        try:
            async with self._user_queues.turn(question.model, principal):
                exchange.record.waited = clock() - came
                try:
                    return await self._forward(question, destination, exchange)
                finally:
                    record = exchange.record
                    self._user_queues.used(question.model, principal, record.tokens_in, record.tokens_out)
        except NotServed as refused:
            return await exchange.refuse(refused.answer)

    async def _forward(self, question: Question, destination: Destination, exchange: Exchange) -> web.StreamResponse:
        record, tried, failed = exchange.record, set[RoutedPod](), None
        patient = True
        while True:
            forward = await self._plan(question, destination, tried, exchange)
            if isinstance(forward, ErrorAnswer):
                return await exchange.refuse(forward) if failed is None else await exchange.give_up(failed)
            if record.attempts >= most_attempts(forward):
                assert failed is not None
                return await exchange.give_up(failed)
            if not forward.attempts:
                assert failed is not None
                if not (patient and await self._pods_changed()):
                    return await exchange.give_up(failed)
                patient = False
                continue
            if delay := pause(forward, record.attempts, self._random.random()):
                await asyncio.sleep(delay)
            if forward.connector is not None and question.request.segments is None and is_long(question.request.raw):
                segments = await self.reader.find_segments(question.request.raw, exchange.account)
                if isinstance(segments, ErrorAnswer):
                    return await exchange.refuse(segments)
                forward.question = question = question._replace(request=question.request._replace(segments=segments))
            attempt = forward.attempts[0]
            if record.attempts:
                self._metrics.retried(record.server)
            record.attempts += 1
            record.upstream_model = forward.upstream_model
            record.pod = attempt.pod.key.name
            record.prefill = attempt.prefill.key.name if attempt.prefill else ""
            others = record.attempts < most_attempts(forward)
            copied = copied_bytes(forward, attempt)
            self._metrics.attempt(record.server)
            try:
                if full := exchange.reservation.hold(copied):
                    return await exchange.refuse(full)
                return await exchange.send(self._upstream, self.decider, forward, attempt, others=others)
            except Unanswered as error:
                failed = error
                tried.add(error.pod)
            finally:
                exchange.reservation.hold(-copied)
                self._metrics.attempt(record.server, -1)

    async def _plan(
        self, question: Question, destination: Destination, tried: set[RoutedPod], exchange: Exchange
    ) -> Forward | ErrorAnswer:
        clock = asyncio.get_running_loop().time
        key, deadline = destination.server, clock() + self._settings.wait_seconds
        while not self.decider.fleet.has_pods(key):
            backend = self.decider.fleet.backends.get(key)
            if backend is None or backend.server.problem is not None:
                break
            came = clock()
            upstream = question.model if destination.lora or not backend.server.model else backend.server.model
            try:
                if not await self.wake_queue.wait(key, question.model, upstream, deadline - came):
                    return errors.no_pods(key)
            except QueueFull:
                return errors.busy(f"too many requests wait for the first pod of {key}")
            finally:
                exchange.record.waited += clock() - came
        async with exchange.account:
            return self.decider.forward(question, destination, clock(), tried)

    async def _pods_changed(self) -> bool:
        try:
            async with asyncio.timeout(LEAVING):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def _body(self, http: web.BaseRequest, exchange: Exchange) -> bytes | ErrorAnswer:
        """The whole body, which counts among those that are held until the request is over."""
        settings = self._settings
        if (http.content_length or 0) > settings.max_body:
            return errors.too_large(settings.max_body)
        if http.headers.get("Expect", "").lower() == "100-continue":
            await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            http.writer.output_size = 0
        content = http.content
        parts: list[bytes] = []
        try:
            if content.is_eof():  # as most are with their heads
                found = content.read_nowait()
                if len(found) > settings.max_body:
                    return errors.too_large(settings.max_body)
                return exchange.reservation.hold(len(found)) or found
            async with asyncio.timeout(settings.body_seconds):
                size = 0
                while chunk := await content.readany():
                    parts.append(chunk)
                    size += len(chunk)
                    if size > settings.max_body:
                        return errors.too_large(settings.max_body)
                    if full := exchange.reservation.hold(len(chunk)):
                        return full
                    async with exchange.account:
                        pass  # not asked for the next piece, the connection is not read either
        except TimeoutError:
            return errors.too_slow(settings.body_seconds)
        except web.RequestPayloadError:
            return errors.malformed("the body is not what its headers say")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _models(self, http: web.BaseRequest, path: str, exchange: Exchange) -> web.StreamResponse:
        if http.method not in ("GET", "HEAD"):
            return await exchange.refuse(errors.wrong_method(http.method, "/v1/models", "GET"))
        table = self.decider.fleet.table
        if path == "/v1/models":
            if self._listed[0] is not table:  # thousands of names take milliseconds
                self._listed = table, orjson.dumps({"object": "list", "data": [_entry(name) for name in table.names]})
            told = self._listed[1]
        else:
            wanted = unquote(path.removeprefix("/v1/models/"))
            if wanted not in table:
                return await exchange.refuse(errors.unknown_model(wanted))
            told = orjson.dumps(_entry(wanted))
        return await exchange.answer(200, told, {"Content-Type": "application/json"})


def _entry(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "modelyard"}


def _left(budget: Any, left: Left | OverBudget) -> dict[str, str]:
    told = {}
    for name, limit in (("tokens", budget.input), ("output-tokens", budget.output)):
        if limit is not None:
            told[f"x-ratelimit-limit-{name}"] = str(limit)
    if isinstance(left, Left):
        for name, value in (("tokens", left.input), ("output-tokens", left.output)):
            if value is not None:
                told[f"x-ratelimit-remaining-{name}"] = str(max(0, int(value)))
    elif left.retry_after is not None:
        told[f"x-ratelimit-reset-{'tokens' if left.kind == 'input' else 'output-tokens'}"] = f"{left.retry_after:.3f}s"
    return told
