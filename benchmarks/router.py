"""What the router adds to a request, beside nginx as a plain proxy in the same run.

    python benchmarks/router.py [--seconds 6] [--rates 100,1000] [--rounds 3] [--streams 100] [--open 1000]

The proxy under test has one core; the client and the engine, a loop that answers at once, share another (so figures are
ratios, of this machine). The router does all it does in service: it matches a route with a budget, ranks four pods by
load, latency and prefix, asks for usage and keeps it back, and writes its log. Beside it are nginx, and what a front in
Python costs that does nothing else: ``bare``, aiohttp's server and client. Prints for each: added p50 and p99 in ms;
requests per second at full load with 32 connections, turn by turn, and CPU seconds of the proxy per 1,000 requests,
each the median of the rounds; CPU seconds per 1,000 chunks of streams; and memory for each open stream. Then, with
client, engine and router on both cores together, what two worker processes carry that one does not. nginx comes from
Debian's package, unpacked into the cache; without APT that row is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
from router_fronts import BARE, ENGINE, EVENTS, PODS, ROUTER

from modelyard.local.binaries.apt import Apt
from modelyard.local.paths import BinaryNotFound, cache_dir
from modelyard.router.process.workers import METRICS, SHARED

NGINX = 18713
FRONTS = Path(__file__).with_name("router_fronts.py")
TEXT = "The quick brown fox jumps over the lazy dog. " * 45
PACE = 0.02
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
    return await at_rate_of(request(False), port, rate, seconds)


def posted(body: bytes) -> bytes:
    """Return the request with this body."""
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def at_rate_of(raw: bytes, port: int, rate: float, seconds: float) -> list[float]:
    """Latencies of an open loop of this request."""
    free = await connections(port, 64)
    times, tasks = list[float](), set[asyncio.Task[None]]()

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


def started(
    argv: list[str], cores: list[int], port: int, **environment: str
) -> tuple[subprocess.Popen[bytes], tuple[psutil.Process, ...]]:
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, env={**os.environ, **environment})
    own = psutil.Process(process.pid)
    own.cpu_affinity(cores)
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
        one.cpu_affinity(cores)
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
    rounds = [[full_load(one, options.seconds) for one in proxies] for _ in range(options.rounds)]
    for one, found_of in zip(proxies, zip(*rounds, strict=True), strict=True):
        carried, costs = (statistics.median(values) for values in zip(*found_of, strict=True))
        cpu = f", {1e3 * costs:.4f} CPU s per 1,000: {1 / costs:.0f}/s per core" if costs else ""
        yield f"{one.name:7} full load: {carried:.0f} requests/s{cpu}"
    chunks = dict[str, float]()
    for one in proxies[1:]:
        before = one.cpu()
        uvloop.run(streams(one.port, options.streams))
        chunks[one.name] = (one.cpu() - before) / (options.streams * EVENTS)
        yield f"{one.name:7} {options.streams} streams: {1e3 * chunks[one.name]:.4f} CPU s per 1,000 chunks"

    async def opened(one: Proxy) -> float:
        before = one.memory()
        task = asyncio.create_task(streams(one.port, options.open, 0.1))
        await asyncio.sleep(12)
        held = one.memory() - before
        await task
        return held

    for one in proxies[1:]:
        yield f"{one.name:7} {options.open} open streams: {uvloop.run(opened(one)) / options.open / 1024:.1f} KiB each"
    if (names := [one.name for one in proxies])[1] != "nginx":
        return
    for index, name in enumerate(names[2:], 2):
        times = sorted(one[index][1] / one[1][1] for one in rounds)
        told = ", ".join(f"{one:.1f}" for one in times)
        yield f"{name} against nginx per request: {told} times the CPU; per chunk {chunks[name] / chunks['nginx']:.1f}"


def full_load(one: Proxy, seconds: float) -> tuple[float, float]:
    """Requests per second, and CPU seconds of the proxy for each."""
    before = one.cpu()
    count = uvloop.run(at_full(one.port, seconds))
    return count / seconds, (one.cpu() - before) / count


def side_by_side(name: str, one: Proxy, options: argparse.Namespace) -> str:
    found = zip(*(full_load(one, options.seconds) for _ in range(options.rounds)), strict=True)
    carried, cost = (statistics.median(values) for values in found)
    return f"{name}, client and engine on two cores: {carried:.0f} requests/s, {1e3 * cost:.4f} CPU s per 1,000"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rates", default="100,1000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--open", type=int, default=1000)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    client, proxy = cores[:1], cores[-1:]
    os.sched_setaffinity(0, client)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ends:

        def start(what: str, argv: list[str], where: list[int], port: int, **environment: str) -> Proxy:
            process, found = started(argv, where, port, **environment)
            ends.callback(process.wait)
            ends.callback(process.terminate)
            return Proxy(what, port, found)

        def own(what: str, where: list[int], port: int, **environment: str) -> Proxy:
            return start(what, [sys.executable, str(FRONTS), what], where, port, **environment)

        engine = own("engine", client, ENGINE)
        proxies = [Proxy("direct", ENGINE, ()), own("bare", proxy, BARE), own("router", proxy, ROUTER)]
        if program := nginx(Path(name)):
            servers = " ".join(f"server {pod}:{ENGINE};" for pod in PODS)
            (Path(name) / "nginx.conf").write_text(NGINX_CONFIG.format(folder=name, servers=servers, port=NGINX))
            argv = [str(program), "-c", f"{name}/nginx.conf", "-p", name]
            proxies.insert(1, start("nginx", argv, proxy, NGINX))
        for line in measured(proxies, options):
            print(line, flush=True)
        os.sched_setaffinity(0, cores)
        for one in (*engine.processes, *proxies[-1].processes):
            one.cpu_affinity(cores)
        print(side_by_side("one worker", proxies[-1], options), flush=True)
        for process in proxies[-1].processes:
            process.terminate()
            process.wait()
        pair = [own("router", cores, ROUTER, **{SHARED: name, METRICS: name}).processes for _ in range(2)]
        print(side_by_side("two workers", Proxy("router", ROUTER, (*pair[0], *pair[1])), options))


if __name__ == "__main__":
    main()
