"""The engine of ``router.py``, and the fronts that it measures. Each runs as a process: ``router_fronts.py NAME``."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from pathlib import Path
from typing import cast

import aiohttp
import orjson
import uvloop
from aiohttp import web

from modelyard.objects import Key, Pod
from modelyard.router.process.limits import SharedLimits
from modelyard.router.process.service import RouterProcess
from modelyard.router.process.workers import SHARED, share
from modelyard.router.settings import RouterSettings
from modelyard.routing import objects

ENGINE, ROUTER, NGINX, METRICS, BARE = 18711, 18712, 18713, 18714, 18715
PODS = tuple(f"127.77.0.{number}" for number in range(1, 5))
EVENTS = 200
ANSWER = orjson.dumps(
    {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * 300}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 500, "completion_tokens": 60, "total_tokens": 560},
    }
)
CHUNK = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"tok "}}]}\n\n'
LAST = (
    b'data: {"choices":[],"usage":{"prompt_tokens":500,"completion_tokens":200,"total_tokens":700}}\n\ndata: [DONE]\n\n'
)
PAGE = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.1\n"


class Engine(asyncio.Protocol):
    """Answers at once, or streams at the pace it is told."""

    def __init__(self) -> None:
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        self.rest += data
        while b"\r\n\r\n" in self.rest:
            head, _, body = self.rest.partition(b"\r\n\r\n")
            lower = head.lower()
            at = lower.find(b"content-length:")
            length = int(lower[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(body) < length:
                return
            body, self.rest = body[:length], body[length:]
            if head.startswith(b"GET"):
                self.answer(PAGE, b"text/plain") if b"/metrics" in head else self.answer(b'{"data":[]}')
            elif b'"stream":true' in body:
                pace = float(lower.partition(b"x-pace:")[2].split(b"\r\n", 1)[0])
                self.task = asyncio.ensure_future(self.stream(pace))
            else:
                self.answer(ANSWER)

    def answer(self, body: bytes, kind: bytes = b"application/json") -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (kind, len(body))
        self.transport.write(head + body)

    async def stream(self, pace: float) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.transport.write(head)
        for _ in range(EVENTS):
            await asyncio.sleep(pace)
            if self.transport.is_closing():
                return
            self.transport.write(b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK))
        self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(LAST), LAST))


def serve_engine() -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Engine, "0.0.0.0", ENGINE, backlog=4096)
        await server.serve_forever()

    uvloop.run(run())


def serve_bare() -> None:
    """A proxy of aiohttp alone, that gives the pods their turns."""
    pods = itertools.cycle(f"http://{pod}:{ENGINE}" for pod in PODS)

    async def run() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

            async def proxy(http: web.BaseRequest) -> web.StreamResponse:
                kind = {"Content-Type": http.headers["Content-Type"], "X-Pace": http.headers["X-Pace"]}
                async with session.post(next(pods) + http.raw_path, data=await http.read(), headers=kind) as answer:
                    kind = {"Content-Type": answer.headers["Content-Type"]}
                    if answer.content_type == "application/json":
                        return web.Response(status=answer.status, body=await answer.read(), headers=kind)
                    response = web.StreamResponse(status=answer.status, headers=kind)
                    await response.prepare(http)
                    async for chunk in answer.content.iter_any():
                        await response.write(chunk)
                    return response

            runner = web.ServerRunner(web.Server(proxy, access_log=None))
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", BARE, backlog=4096).start()
            await asyncio.Event().wait()

    uvloop.run(run())


def serve_router() -> None:
    """A router that knows four pods, without a cluster; one of two workers where there is a folder that they share."""

    def metadata(name: str) -> dict[str, str]:
        return {"name": name, "namespace": "shop", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}

    shared = os.environ.get(SHARED)
    settings = RouterSettings(
        port=ROUTER, metrics_port=METRICS, log="json", leave_seconds=0, workers=2 if shared else 1
    )
    selector = {"matchLabels": {"app": "m"}}
    spec = {"inferenceEngine": "vLLM", "workloadSelector": selector, "workloadPort": {"port": ENGINE}}
    route = {
        "modelName": "m",
        "rules": [{"targetModels": [{"modelServerName": "m"}]}],
        "rateLimit": {"inputTokensPerUnit": 2_000_000_000, "outputTokensPerUnit": 2_000_000_000, "unit": "second"},
    }
    pods = tuple(
        Pod(Key("shop", ip), ip, None, 0.0, 1.0, "Running", labels={"app": "m"}, ip=ip, started="1") for ip in PODS
    )

    async def run() -> None:
        router = RouterProcess(share(settings), limits=SharedLimits(Path(shared)) if shared else None)
        found = objects.server({"metadata": metadata("m"), "spec": spec})
        asked = objects.route({"metadata": metadata("m"), "spec": route})
        assert found.problem is None
        assert asked.problem is None
        router.take(router.decider.fleet.update((asked,), lambda _: (found,), lambda _: pods, ["shop"]))
        await router.run(None)

    uvloop.run(run())


if __name__ == "__main__":
    {"engine": serve_engine, "router": serve_router, "bare": serve_bare}[sys.argv[1]]()
