"""One simulated engine as an HTTP server: the OpenAI API, ``/health`` and ``/metrics``.

One process per pod. Virtual time is wall time × ``time_compression``, counted from the server's
start. A single driver task sleeps until the iteration in progress ends and then takes all iterations that are due.
First and last tokens are sent at once; in between each stream sends at most one chunk per ``flush_interval`` of wall
time, with all the tokens it got meanwhile. So the cost does not grow with the compression, while the numbers of tokens
and what a client measures (time to first token, mean time between tokens) stay right.

SIGTERM drains: ``/health`` answers 503, new requests are refused with 503, those in flight finish, then the server
ends.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from modelyard.engine.config import MAX_BODY, EngineConfig
from modelyard.engine.core import EngineCore, Rejected
from modelyard.engine.metrics import EngineCollector, buckets
from modelyard.engine.openai import Answer, ApiError, Generation, models_body, parse_adapter, parse_generation
from modelyard.engine.request import EventKind, Request
from modelyard.engine.stats import EngineStats
from modelyard.metrics.vocabulary import ENGINES

# Wall seconds; timers of an event loop are not much finer.
_LEAST_SLEEP: Final = 0.001
_STREAM_HEADERS: Final = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How an engine is served.

    ``models`` are the served names, the first being the ``model_name`` label. ``startup_delay`` is virtual seconds
    until the model counts as loaded. ``mean_output_tokens`` is the mean length of an answer that the client does not
    fix by ``ignore_eos`` or ``min_tokens``. ``failure_rate`` is the share of requests answered with 500.
    ``flush_interval`` is wall seconds; by default 4 ms, and 100 ms with time compression. ``metrics`` is the
    engine whose table of metrics is shown. ``adapters`` are the folders of LoRA adapters by name, served beside the
    model; ``live_adapters``: others may be loaded and unloaded.
    """

    models: tuple[str, ...]
    time_compression: float = 1.0
    startup_delay: float = 0.0
    mean_output_tokens: float = 200.0
    failure_rate: float = 0.0
    flush_interval: float | None = None
    metrics: str = "vllm"
    seed: int = 0
    adapters: Mapping[str, str] = field(default_factory=dict)
    live_adapters: bool = False

    def __post_init__(self) -> None:
        if not self.models or not all(self.models):
            raise ValueError("models: at least one non-empty model name is needed")
        if not (math.isfinite(self.time_compression) and self.time_compression > 0):
            raise ValueError(f"time_compression must be > 0, not {self.time_compression!r}")
        if not (math.isfinite(self.startup_delay) and self.startup_delay >= 0):
            raise ValueError(f"startup_delay must be >= 0, not {self.startup_delay!r}")
        if not (math.isfinite(self.mean_output_tokens) and self.mean_output_tokens >= 1):
            raise ValueError(f"mean_output_tokens must be >= 1, not {self.mean_output_tokens!r}")
        if not 0 <= self.failure_rate <= 1:
            raise ValueError(f"failure_rate must be between 0 and 1, not {self.failure_rate!r}")
        if self.flush_interval is not None and not 0 < self.flush_interval <= 1:
            raise ValueError(f"flush_interval must be in (0, 1] seconds, not {self.flush_interval!r}")
        if self.metrics not in ENGINES:
            raise ValueError(f"metrics must be one of {', '.join(ENGINES)}, not {self.metrics!r}")


class _Listener:
    """Connects a request in the core (as its ``tag``) to the handler that answers it."""

    __slots__ = ("sent", "streams", "waiter")

    def __init__(self, streams: bool) -> None:
        self.streams = streams
        self.sent = 0
        self.waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        _ring(self.waiter)


class EngineServer:
    """The engine, its driver and its HTTP handlers.

    ``app`` is the aiohttp application; the driver runs between the application's start-up and clean-up.
    """

    def __init__(
        self, config: EngineConfig, settings: ServerSettings, incomplete: Callable[[], str | None] = lambda: None
    ) -> None:
        """``incomplete`` says why it does not serve yet, beside what it knows itself."""
        engine = ENGINES[settings.metrics]
        self.settings = settings
        self.core = EngineCore(config, stats=EngineStats(buckets(engine, config.context_limit)), seed=settings.seed)
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(self.core, engine, settings.models[0]))
        self._random = random.Random(settings.seed)
        self._adapters = dict(settings.adapters)
        self._incomplete = incomplete
        self._created = int(time.time())
        self._origin = 0.0
        self._alarm: asyncio.Future[None] | None = None
        self._driver: asyncio.Task[None] | None = None
        self._in_flight = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.app = web.Application(client_max_size=MAX_BODY)
        self.app.add_routes(
            [
                web.post("/v1/chat/completions", partial(self._generate, chat=True)),
                web.post("/v1/completions", partial(self._generate, chat=False)),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
            ]
        )
        if settings.live_adapters:
            self.app.add_routes(
                [
                    web.post("/v1/load_lora_adapter", self._load_adapter),
                    web.post("/v1/unload_lora_adapter", self._unload_adapter),
                ]
            )
        self.app.cleanup_ctx.append(self._driven)

    @property
    def virtual_time(self) -> float:
        """Virtual seconds since the server started."""
        return (asyncio.get_running_loop().time() - self._origin) * self.settings.time_compression

    def _wall(self, virtual: float) -> float:
        return self._origin + virtual / self.settings.time_compression

    async def drain(self) -> None:
        """Refuse new requests and return when those in flight have been answered."""
        self._draining = True
        await self._idle.wait()

    async def driver_failure(self) -> None:
        """Return only by raising what ended the driver: without it every request would hang."""
        if self._driver is not None:
            await asyncio.shield(self._driver)

    async def _driven(self, _: web.Application) -> AsyncIterator[None]:
        self._origin = asyncio.get_running_loop().time()
        self._driver = asyncio.create_task(self._drive(), name="engine-driver")
        yield
        self._driver.cancel()
        await asyncio.gather(self._driver, return_exceptions=True)

    async def _drive(self) -> None:
        core = self.core
        flush_interval = self.settings.flush_interval
        if flush_interval is None:
            flush_interval = 0.004 if self.settings.time_compression <= 1 else 0.1
        clock = asyncio.get_running_loop().time
        next_flush = 0.0
        while True:
            result = self._wall(core.next_result_time())
            flush = max(self._wall(core.next_event_time()), next_flush)
            await self._sleep_until(max(min(result, flush), clock() + _LEAST_SLEEP))
            self._advance()
            if clock() >= next_flush:
                next_flush = clock() + flush_interval
                for request in core.running:
                    listener = request.tag
                    assert isinstance(listener, _Listener)
                    if listener.streams and core.generated(request) > listener.sent:
                        listener.wake()

    async def _sleep_until(self, wall: float) -> None:
        """Sleep until ``wall`` on the loop's clock (``inf``: without end), or until a request comes in."""
        loop = asyncio.get_running_loop()
        alarm = self._alarm = loop.create_future()
        timer = loop.call_at(wall, _ring, alarm) if wall < math.inf else None
        try:
            await alarm
        finally:
            if timer is not None:
                timer.cancel()

    def _advance(self) -> None:
        for event in self.core.advance(self.virtual_time):
            if event.kind is not EventKind.PREEMPTED:
                listener = event.request.tag
                assert isinstance(listener, _Listener)
                if listener.streams or event.kind is EventKind.FINISHED:
                    listener.wake()

    def _unready(self) -> str | None:
        if self._draining:
            return "the engine is shutting down"
        if self.virtual_time < self.settings.startup_delay:
            return "the model is still being loaded"
        return self._incomplete()

    async def _health(self, _: web.Request) -> web.Response:
        why = self._unready()
        return web.Response(status=503, text=why) if why else web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        if why := self._unready():
            return _error(ApiError(503, "ServiceUnavailableError", why))
        limit = self.core.config.context_limit
        return _json(models_body(self.settings.models, self._adapters, self._created, limit))

    async def _load_adapter(self, http: web.Request) -> web.Response:
        try:
            name, path = parse_adapter(await http.read(), "lora_name", "lora_path")
            if name in self._adapters or name in self.settings.models:
                raise ApiError(400, "InvalidUserInput", f"The lora adapter '{name}' has already been loaded.")
            if not await asyncio.to_thread(Path(path).is_dir):
                raise ApiError(404, "NotFoundError", f"No adapter found for {path}")
        except ApiError as error:
            return _error(error)
        self._adapters[name] = path
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload_adapter(self, http: web.Request) -> web.Response:
        try:
            (name,) = parse_adapter(await http.read(), "lora_name")
            if name not in self._adapters:
                raise ApiError(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
        except ApiError as error:
            return _error(error)
        del self._adapters[name]
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def _metrics(self, _: web.Request) -> web.Response:
        # Always the classic text format: the client library's OpenMetrics encoder turns the colon of a name into `_`.
        self._advance()
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _generate(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        self._in_flight += 1
        self._idle.clear()
        try:
            # Decided before the body is read: a request that came in before SIGTERM is in flight.
            if why := self._unready():
                return _error(ApiError(503, "ServiceUnavailableError", why))
            generation = parse_generation(await http.read(), chat=chat, segment=self.core.config.prefix_segment)
            request = self._submit(generation)
            try:
                answer = Answer(generation, request.number, int(time.time()))
                return await (self._stream if generation.stream else self._whole)(http, request, answer)
            finally:
                # The client went away (this task is cancelled, or a write failed); no effect on a finished request.
                self._advance()
                self.core.cancel(request)
        except ApiError as error:
            return _error(error)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    def _submit(self, generation: Generation) -> Request:
        if generation.model not in self.settings.models and generation.model not in self._adapters:
            raise ApiError(404, "NotFoundError", f"the model `{generation.model}` does not exist", "model")
        if self.settings.failure_rate and self._random.random() < self.settings.failure_rate:
            self.core.stats.finished["error"] += 1
            raise ApiError(500, "InternalServerError", "injected failure")
        room = self.core.config.context_limit - generation.prompt_tokens
        max_tokens = generation.max_tokens if generation.max_tokens is not None else max(1, room)
        output_tokens = max_tokens
        if not generation.ignore_eos and generation.min_tokens < max_tokens:
            output_tokens = max(1, generation.min_tokens, min(max_tokens, self._natural_length()))
        self._advance()
        try:
            request = self.core.submit(
                generation.prompt_tokens,
                output_tokens,
                max_tokens=max_tokens,
                reason="length" if output_tokens == max_tokens else "stop",
                tag=_Listener(generation.stream),
                prefix=generation.prefix,
            )
        except Rejected as error:
            if error.retryable:
                raise ApiError(429, "RateLimitError", str(error)) from None
            raise ApiError(400, "BadRequestError", str(error), "max_tokens") from None
        _ring(self._alarm)
        return request

    def _natural_length(self) -> int:
        """Length of an answer that ends by itself: log-normal, as answers of chat models roughly are."""
        spread = 0.7
        return round(self._random.lognormvariate(math.log(self.settings.mean_output_tokens) - spread**2 / 2, spread))

    async def _whole(self, _: web.Request, request: Request, answer: Answer) -> web.Response:
        listener = request.tag
        assert isinstance(listener, _Listener)
        listener.waiter = asyncio.get_running_loop().create_future()
        await listener.waiter
        return _json(answer.whole(request.reason, request.output_tokens))

    async def _stream(self, http: web.Request, request: Request, answer: Answer) -> web.StreamResponse:
        listener = request.tag
        assert isinstance(listener, _Listener)
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        loop = asyncio.get_running_loop()
        core = self.core
        prefix = answer.prefix()
        try:
            await response.prepare(http)
            while (tokens := core.generated(request)) < request.output_tokens:
                if tokens > listener.sent:
                    chunk = answer.content(prefix, tokens - listener.sent)
                    listener.sent = tokens
                    await response.write(chunk)
                else:
                    listener.waiter = loop.create_future()
                    await listener.waiter
            # One write for all that remains.
            rest = answer.content(prefix, tokens - listener.sent) if tokens > listener.sent else b""
            await response.write_eof(rest + answer.end(request.reason, tokens))
        except ConnectionError:
            # The client went away; the caller aborts the request.
            pass
        return response


def _ring(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json")


def _error(error: ApiError) -> web.Response:
    return _json(error.body(), error.status)
