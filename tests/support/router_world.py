"""A router in this process before engines of all kinds, without a cluster: routes, servers and pods are what a test
says they are. Pods are loopback addresses, as on the local cluster, so that those of a server share a port."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from yarl import URL

from deployments.profile import free_port
from modelyard.objects import Pod
from modelyard.objects.parse import pod as parse_pod
from modelyard.router.process.service import RouterProcess
from modelyard.router.settings import RouterSettings
from modelyard.routing import objects

NAMESPACE = "shop"
_numbers = itertools.count(2)


def an_address() -> str:
    """A loopback address that no other pod of this process has."""
    number = next(_numbers)
    return f"127.77.{number // 250}.{number % 250 + 1}"


class RecordingEngine:
    """Answers as a test says, and keeps what it was asked: (path with query, headers, body)."""

    def __init__(self, answer: Callable[[web.Request, bytes], Awaitable[web.StreamResponse]] | None = None) -> None:
        self.asked: list[tuple[str, Any, bytes]] = []
        self.cancelled = asyncio.Event()
        self.began = asyncio.Event()
        self._answer = answer or whole
        self._runner: web.AppRunner | None = None

    @property
    def bodies(self) -> list[Any]:
        return [orjson.loads(body) for _, _, body in self.asked]

    async def start(self, host: str, port: int) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.asked.append((request.raw_path, request.headers.copy(), body))
        self.began.set()
        try:
            return await self._answer(request, body)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


async def whole(_: web.Request, body: bytes) -> web.Response:
    """An answer in one piece."""
    return web.json_response({"object": "chat.completion", "choices": [], "usage": USAGE})


def status(code: int, text: str = '{"object":"error","message":"no"}') -> Any:
    """An engine that always answers so."""

    async def answer(_: web.Request, __: bytes) -> web.Response:
        return web.Response(status=code, text=text, content_type="application/json")

    return answer


def streaming(*events: str, after: Callable[[web.Request], Awaitable[None]] | None = None) -> Any:
    """An engine that streams these events, and then does ``after``."""

    async def answer(request: web.Request, _: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for event in events:
            await response.write(f"data: {event}\n\n".encode())
        if after is not None:
            await after(request)
        await response.write_eof()
        return response

    return answer


RECORDED = Path(__file__).parents[1] / "data" / "vllm-0.32"
"""Answers of a real vLLM."""


def replaying(raw: bytes, media: str = "text/event-stream", piece: int = 700) -> Any:
    """An engine that answers with these bytes, in pieces."""

    async def answer(request: web.Request, _: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": media})
        await response.prepare(request)
        for start in range(0, len(raw), piece):
            await response.write(raw[start : start + piece])
        await response.write_eof()
        return response

    return answer


RESPONSES_AND_MESSAGES: list[tuple[str, dict[str, Any], Any, bytes, tuple[int, int]]] = [
    (path, body, replaying(raw, media, piece), raw, tokens)
    for path, body, media, piece, raw, tokens in [
        ("/v1/responses", {"input": "hi", "stream": True}, "text/event-stream", 700,
         (RECORDED / "responses-stream.sse").read_bytes(), (31, 8)),
        ("/v1/messages", {"messages": [], "stream": True}, "text/event-stream", 700,
         (RECORDED / "messages-stream.sse").read_bytes(), (16, 8)),
        ("/v1/responses", {"input": "hi"}, "application/json", 700,
         (RECORDED / "responses.json").read_bytes(), (16, 8)),
        ("/v1/responses", {"input": "hi"}, "application/json", 1 << 16,
         b'{"padding":"' + b"x" * 1_500_000 + b'",' + (RECORDED / "responses.json").read_bytes()[1:], (16, 8)),
    ]
]  # fmt: skip
"""Path and body of a request, the engine's answer, its bytes, and the tokens that it counted."""


async def hang(request: web.Request, _: bytes = b"") -> Any:
    """Never answer."""
    await asyncio.sleep(3600)


async def abort(request: web.Request, _: bytes = b"") -> Any:
    """Die: the connection is reset."""
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(3600)


async def everything_of(answer: aiohttp.ClientResponse) -> bytes:
    """What came of an answer that broke off, as it must have."""
    seen = b""
    try:
        while chunk := await answer.content.readany():
            seen += chunk
    except aiohttp.ClientPayloadError:
        return seen
    raise AssertionError(f"it came to a good end: {seen[-200:]!r}")


class RouterWorld:
    """The router and what it is told of. ``url`` is where it listens."""

    def __init__(self, router: RouterProcess) -> None:
        self.router = router
        self.lines: list[str] = []
        self.engine_port = free_port()
        self._routes: dict[str, objects.Route] = {}
        self._servers: dict[str, objects.Server] = {}
        self._pods: dict[str, Pod] = {}
        self._uids = itertools.count()
        self._engines: dict[str, RecordingEngine] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.router.port}"

    @property
    def pods(self) -> list[Pod]:
        return list(self._pods.values())

    def tell(self) -> None:
        """Make the router see what there is now."""
        servers, pods = self._servers.values(), tuple(self._pods.values())
        spaces = {NAMESPACE, *(one.key.namespace for one in servers)}
        change = self.router.decider.fleet.update(
            tuple(self._routes.values()),
            lambda space: tuple(one for one in servers if one.key.namespace == space),
            lambda _: pods,
            sorted(spaces),
        )
        self.router.take(change)

    def route(self, name: str = "route", model: str = "m", *servers: str, **spec: Any) -> None:
        rules = [{"targetModels": [{"modelServerName": one} for one in servers or ("server",)]}]
        body = {"modelName": model, "rules": rules, **spec}
        self._routes[name] = objects.route({"metadata": self._metadata(name), "spec": body})
        assert self._routes[name].problem is None, self._routes[name].problem
        self.tell()

    def server(self, name: str = "server", **spec: Any) -> None:
        body = {
            "inferenceEngine": "vLLM",
            "workloadSelector": {"matchLabels": {"app": name}},
            "workloadPort": {"port": self.engine_port},
            **spec,
        }
        self._servers[name] = objects.server({"metadata": self._metadata(name), "spec": body})
        assert self._servers[name].problem is None, self._servers[name].problem
        self.tell()

    def pod(self, name: str, address: str, server: str = "server", deleting: bool = False, **labels: str) -> None:
        condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        meta = {**self._metadata(name), "labels": {"app": server, **labels}}
        if name in self._pods:
            meta["uid"] = self._pods[name].uid
        if deleting:
            meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        told = {"phase": "Running", "podIP": address, "conditions": [condition]}
        self._pods[name] = parse_pod({"metadata": meta, "spec": {}, "status": told})
        self.tell()

    def leaves(self, name: str) -> None:
        """A pod is being deleted."""
        found = self._pods[name]
        labels = {key: value for key, value in found.labels.items() if key != "app"}
        self.pod(name, found.ip, found.labels["app"], deleting=True, **labels)

    def gone(self, *names: str) -> None:
        """Pods are gone."""
        for name in names:
            self._pods.pop(name)
        self.tell()

    async def recording(self, name: str, answer: Any = None, server: str = "server", **labels: str) -> RecordingEngine:
        """A pod with an engine that answers so."""
        engine, address = RecordingEngine(answer), an_address()
        await engine.start(address, self.engine_port)
        self._engines[name] = engine
        self.pod(name, address, server, **labels)
        return engine

    async def neighbour(self, name: str, answer: Any = None) -> RecordingEngine:
        """An engine of another namespace that has all of this name: model, route, server and namespace."""
        labels = {"matchLabels": {"app": name}}
        spec = {"inferenceEngine": "vLLM", "workloadSelector": labels, "workloadPort": {"port": self.engine_port}}
        self._routes[name] = objects.route(
            {
                "metadata": {**self._metadata(name), "namespace": name},
                "spec": {"modelName": name, "rules": [{"targetModels": [{"modelServerName": name}]}]},
            }
        )
        self._servers[name] = objects.server({"metadata": {**self._metadata(name), "namespace": name}, "spec": spec})
        return await self.recording(name, answer, name)

    def unserve(self, server: str) -> None:
        """A ModelServer is gone."""
        self._servers.pop(server)
        self.tell()

    def engine(self, name: str) -> RecordingEngine:
        return self._engines[name]

    async def close(self) -> None:
        for engine in self._engines.values():
            await engine.stop()

    def _metadata(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}-{next(self._uids)}",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }

    async def post(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> tuple[int, Any, Any]:
        """Status, headers and body (parsed, where it is JSON) of one request."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        async with (
            aiohttp.ClientSession() as session,
            session.post(URL(self.url + path, encoded=True), data=data, headers=headers) as answer,
        ):
            raw = await answer.read()
            is_json = answer.content_type == "application/json"
            return answer.status, answer.headers, orjson.loads(raw) if is_json else raw


def chat(model: str = "m", **more: Any) -> dict[str, Any]:
    """A request."""
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **more}


@contextlib.asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[RouterWorld]:
    """A router with these settings, which ends with the block."""
    given = {
        "port": 0,
        "metrics_port": 0,
        "log": "json",
        "leave_seconds": 0.0,
        "drain_seconds": 30.0,
        "wait_seconds": 0.0,
        **settings,
    }
    lines: list[str] = []
    router = RouterProcess(RouterSettings(**given), write=lambda text: lines.extend(text.splitlines()))
    world = RouterWorld(router)
    world.lines = lines
    task = asyncio.create_task(router.run(None))
    started = asyncio.create_task(router.started.wait())
    await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    try:
        yield world
    finally:
        if not task.done() and not router.front.leaving:
            router.stop()
        await task
        await world.close()


@contextlib.contextmanager
def engine_process(address: str, port: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A simulated engine as a process of its own, listening."""
    process = subprocess.Popen(
        [sys.executable, "-m", "modelyard.engine", "--model", "m", "--host", address, "--port", str(port), *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving "), f"the engine did not start: {line!r}"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def eventually(condition: Any, what: str) -> None:
    """Wait for it; two minutes at most."""
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"never: {what}")


async def logged(world: RouterWorld, count: int = 1) -> list[dict[str, Any]]:
    """The lines of the access log, once there are so many."""
    await eventually(lambda: len(world.lines) >= count, f"{count} lines in the log")
    return [json.loads(line) for line in world.lines]
