"""What the router adds to a request, beside nginx as a plain proxy in the same run.

    python benchmarks/router.py [--seconds 6] [--rates 100,500] [--streams 100] [--open 1000]

The proxy under test has one core; the client and the engine, a loop that answers at once, share another (so figures are
ratios, of this machine). The router does all it does in service: it matches a route with a budget, ranks four pods by
load, latency and prefix, asks for usage and keeps it back, and writes its log. Prints for no proxy, nginx and the
router: added p50 and p99 in ms; requests per second at full load with 32 connections; CPU seconds of the proxy per
1,000 requests and per 1,000 chunks of streams; and memory for each open stream. nginx comes from Debian's package,
unpacked into the cache; without APT that row is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

import orjson
import psutil
import uvloop

from modelyard.local.binaries.apt import Apt
from modelyard.local.paths import BinaryNotFound, cache_dir
from modelyard.objects import Key, Pod
from modelyard.router.service import RouterProcess
from modelyard.router.settings import RouterSettings
from modelyard.routing import objects

ENGINE, ROUTER, NGINX, METRICS = 18711, 18712, 18713, 18714
PODS = tuple(f"127.77.0.{number}" for number in range(1, 5))
TEXT = "The quick brown fox jumps over the lazy dog. " * 45
EVENTS, PACE = 200, 0.02
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
NGINX_CONFIG = """
worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 16384; }}
http {{
  access_log {folder}/access.log; client_body_temp_path {folder}; proxy_temp_path {folder};
  fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  keepalive_requests 1000000000; client_max_body_size 32m;
  upstream engines {{ {servers} keepalive 2048; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


def request(stream: bool, pace: float = PACE) -> bytes:
    """What a client sends; the engine streams at ``pace`` seconds between events."""
    body = {"model": "m", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 200, "stream": stream}
    raw = orjson.dumps(body)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Pace: {pace}\r\n"
    return f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


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


class Connection(asyncio.Protocol):
    """One kept connection of the client; ``ask`` gives the seconds until the answer was whole."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.done: asyncio.Future[float] | None = None

    def ask(self, raw: bytes) -> asyncio.Future[float]:
        self.rest, self.begun = b"", time.perf_counter()
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(raw)
        return self.done

    def data_received(self, data: bytes) -> None:
        assert self.done is not None
        self.rest += data
        head, end, body = self.rest.partition(b"\r\n\r\n")
        if not end:
            return
        if b"200 OK" not in head[:20]:
            self.done.set_exception(RuntimeError(self.rest[:400].decode("latin-1")))
            return
        at = head.lower().find(b"content-length:")
        if at >= 0:
            whole = len(body) >= int(head[at + 15 :].split(b"\r\n", 1)[0])
        else:
            whole = body.endswith(b"0\r\n\r\n")
            self.rest = head + end + body[-16:]
        if whole and not self.done.done():
            self.done.set_result(time.perf_counter() - self.begun)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(ConnectionError("closed"))


async def connections(port: int, count: int) -> list[Connection]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(count)]


async def at_rate(port: int, rate: float, seconds: float) -> list[float]:
    """Latencies of an open loop."""
    free = await connections(port, 64)
    raw, times, tasks = request(False), list[float](), set[asyncio.Task[None]]()

    async def one(connection: Connection) -> None:
        times.append(await connection.ask(raw))
        free.append(connection)

    clock = asyncio.get_running_loop().time
    begun = clock()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, begun + number / rate - clock()))
        if free:
            task = asyncio.create_task(one(free.pop()))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return times


async def at_full(port: int, seconds: float) -> int:
    """Answers of a closed loop of 32 connections."""
    raw, until, count = request(False), time.perf_counter() + seconds, 0

    async def one(connection: Connection) -> None:
        nonlocal count
        while time.perf_counter() < until:
            await connection.ask(raw)
            count += 1

    await asyncio.gather(*map(one, await connections(port, 32)))
    return count


async def streams(port: int, count: int, pace: float = PACE) -> None:
    raw = request(True, pace)
    await asyncio.gather(*(one.ask(raw) for one in await connections(port, count)))


class Proxy(NamedTuple):
    name: str
    port: int
    processes: tuple[psutil.Process, ...]

    def cpu(self) -> float:
        return sum(sum(one.cpu_times()[:2]) for one in self.processes)

    def memory(self) -> float:
        return sum(one.memory_info().rss for one in self.processes)


def serve_engine() -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Engine, "0.0.0.0", ENGINE, backlog=4096)
        await server.serve_forever()

    uvloop.run(run())


def serve_router() -> None:
    """A router that knows four pods, without a cluster."""

    def metadata(name: str) -> dict[str, str]:
        return {"name": name, "namespace": "shop", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}

    settings = RouterSettings(port=ROUTER, metrics_port=METRICS, log="json", leave_seconds=0)
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
        router = RouterProcess(settings)
        found = objects.server({"metadata": metadata("m"), "spec": spec})
        asked = objects.route({"metadata": metadata("m"), "spec": route})
        assert found.problem is None
        assert asked.problem is None
        router.take(router.decider.fleet.update((asked,), lambda _: (found,), lambda _: pods, ["shop"]))
        await router.run(None)

    uvloop.run(run())


def nginx(folder: Path) -> Path | None:
    """The program, obtained once."""
    program = cache_dir() / "nginx-debian/usr/sbin/nginx"
    if not program.is_file():
        try:
            apt = Apt(folder / "apt")
            apt.update()
            apt.unpack(["nginx"], program.parents[2])
        except BinaryNotFound as error:
            print(f"without nginx: {error}", file=sys.stderr)
            return None
    return program


def started(argv: list[str], core: int, port: int) -> tuple[subprocess.Popen[bytes], tuple[psutil.Process, ...]]:
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    own = psutil.Process(process.pid)
    own.cpu_affinity([core])
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except ConnectionRefusedError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.1)
    time.sleep(2.0)  # the engines' metrics are read
    found = (own, *own.children())
    for one in found:
        one.cpu_affinity([core])
    return process, found


def percentiles(times: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(times, n=100)
    return 1000 * cuts[49], 1000 * cuts[98]


def measured(proxies: list[Proxy], options: argparse.Namespace) -> Iterator[str]:
    for rate in map(float, options.rates.split(",")):
        found = {one.name: percentiles(uvloop.run(at_rate(one.port, rate, options.seconds))) for one in proxies}
        base = found["direct"]
        for name, (p50, p99) in found.items():
            added = "" if name == "direct" else f", added {p50 - base[0]:.2f} / {p99 - base[1]:.2f}"
            yield f"{name:7} at {rate:g}/s: p50 {p50:.2f}, p99 {p99:.2f} ms{added}"
    cost: dict[tuple[str, str], float] = {}
    for one in proxies:
        before = one.cpu()
        count = uvloop.run(at_full(one.port, options.seconds))
        spent = one.cpu() - before
        cost["request", one.name] = spent / count
        cpu = f", {1e3 * spent / count:.4f} CPU s per 1,000: {count / spent:.0f}/s per core" if spent else ""
        yield f"{one.name:7} full load: {count / options.seconds:.0f} requests/s{cpu}"
    for one in proxies[1:]:
        before = one.cpu()
        uvloop.run(streams(one.port, options.streams))
        spent = (one.cpu() - before) / (options.streams * EVENTS)
        cost["chunk", one.name] = spent
        yield f"{one.name:7} {options.streams} streams: {1e3 * spent:.4f} CPU s per 1,000 chunks"

    async def opened(one: Proxy) -> float:
        before = one.memory()
        task = asyncio.create_task(streams(one.port, options.open, 0.1))
        await asyncio.sleep(12)
        held = one.memory() - before
        await task
        return held

    for one in proxies[1:]:
        yield f"{one.name:7} {options.open} open streams: {uvloop.run(opened(one)) / options.open / 1024:.1f} KiB each"
    for kind in ("request", "chunk"):
        if (kind, "nginx") in cost:
            yield f"router against nginx per {kind}: {cost[kind, 'router'] / cost[kind, 'nginx']:.1f} times the CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("serve", nargs="?", choices=("engine", "router"), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rates", default="100,500")
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--open", type=int, default=1000)
    options = parser.parse_args()
    if options.serve:
        return serve_engine() if options.serve == "engine" else serve_router()
    cores = sorted(os.sched_getaffinity(0))
    client, proxy = cores[0], cores[-1]
    os.sched_setaffinity(0, {client})
    processes = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            for what, core, port in (("engine", client, ENGINE), ("router", proxy, ROUTER)):
                processes.append(started([sys.executable, __file__, what], core, port))
            proxies = [Proxy("direct", ENGINE, ()), Proxy("router", ROUTER, processes[1][1])]
            if program := nginx(folder):
                servers = " ".join(f"server {pod}:{ENGINE};" for pod in PODS)
                (folder / "nginx.conf").write_text(NGINX_CONFIG.format(folder=folder, servers=servers, port=NGINX))
                processes.append(started([str(program), "-c", str(folder / "nginx.conf"), "-p", name], proxy, NGINX))
                proxies.insert(1, Proxy("nginx", NGINX, processes[-1][1]))
            for line in measured(proxies, options):
                print(line, flush=True)
        finally:
            for process, _ in reversed(processes):
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
