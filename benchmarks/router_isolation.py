"""Attacks of one tenant on its neighbours at one router: latencies of a neighbour with and without each attack.

    python benchmarks/router_isolation.py [--seconds 8] [--rate 30] [--only tokens-20,newlines-8]

The attacker, clients and pods, has one core; the router, its process for long bodies, the neighbour's client and its
engine share another. The neighbour asks ``--rate`` times a second for a short answer that its engine gives at once.
Prints the neighbour's p50 and p99 in ms for each attack, as differences from the run without one right before it, and
how many requests of the attacker were answered. All clients have the same address, as behind a proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import psutil
import uvloop
from router import FRONTS, at_rate_of, percentiles, posted, started
from router_fronts import ENGINE

from modelyard.objects import Key, Pod
from modelyard.router.process.service import RouterProcess
from modelyard.router.settings import RouterSettings
from modelyard.routing import objects

ROUTER, METRICS, POD = 18722, 18723, 18724
NEIGHBOUR = orjson.dumps({"model": "neighbour", "messages": [{"role": "user", "content": "x" * 2000}]})
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
NEWLINES = b"10000\r\n" + b"\n" * 65_536 + b"\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
SLOWEST = "(a|aa|aaa|aaaa)*(b|bb|bbb)*(c|cc|ccc)*d"


def prompt_of_token_ids() -> bytes:
    return orjson.dumps({"model": "attacker", "prompt": [number % 9 for number in range(999_000)]})


def many_values() -> bytes:
    members = ",".join(f'"k{number}":{{}}' for number in range(90_000))
    return f'{{"model":"attacker",{members}}}'.encode()


def for_pod(behaviour: str) -> Callable[[], bytes]:
    return lambda: orjson.dumps({"model": "attacker", "prompt": behaviour, "stream": True})


class Attack(NamedTuple):
    name: str
    clients: int
    body: Callable[[], bytes]
    headers: str = ""


ATTACKS = [
    *(Attack(f"tokens-{clients}", clients, prompt_of_token_ids) for clients in (1, 4, 20)),
    Attack("continue-1", 1, for_pod("continue")),
    *(Attack(f"newlines-{clients}", clients, for_pod("newlines")) for clients in (1, 8)),
    Attack("values-8", 8, many_values),
    Attack("conditions-8", 8, for_pod("answer"), f"X-Team: {'a' * 4000}\r\n"),
    Attack("small-64", 64, for_pod("answer")),
]


async def attack(chosen: Attack) -> None:
    """Ask again and again until ended; print the number of answers in time for it to be read."""
    body = chosen.body()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{chosen.headers}"
    sent = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    answers = 0
    print("none", flush=True)

    async def client() -> None:
        nonlocal answers
        while True:
            with contextlib.suppress(OSError, EOFError):
                reader, writer = await asyncio.open_connection("127.0.0.1", ROUTER)
                try:
                    while True:
                        writer.write(sent)
                        await writer.drain()
                        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
                        answers += 1
                        print(answers, answer[9:12].decode(), flush=True)
                        if b"content-length: " not in answer:
                            while await reader.read(1 << 20):
                                pass
                            break
                        await reader.readexactly(int(answer.partition(b"content-length: ")[2].split()[0]))
                finally:
                    writer.close()
            await asyncio.sleep(0.01)

    await asyncio.gather(*(client() for _ in range(chosen.clients)))


async def pod(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer as the prompt says: once, with interim answers without end, or with a stream of newlines without end."""
    with contextlib.suppress(OSError, EOFError):
        while head := (await reader.readuntil(b"\r\n\r\n")).lower():
            length = head.partition(b"content-length: ")[2].split()
            body = await reader.readexactly(int(length[0]) if length else 0)
            if b'"newlines"' in body:
                writer.write(STREAM)
            while b'"newlines"' in body or b'"continue"' in body:
                writer.write(NEWLINES if b'"newlines"' in body else b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
                await writer.drain()
            writer.write(ANSWER)


async def serve_pod() -> None:
    server = await asyncio.start_server(pod, "127.0.0.1", POD, limit=1 << 22, backlog=4096)
    await server.serve_forever()


async def serve_router() -> None:
    router = RouterProcess(RouterSettings(port=ROUTER, metrics_port=METRICS, log="none", leave_seconds=0))
    routes, servers, pods = list[objects.Route](), dict[str, list[objects.Server]](), dict[str, list[Pod]]()
    for namespace, port in (("neighbour", ENGINE), ("attacker", POD)):
        metadata = {"namespace": namespace, "name": "m", "uid": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"}
        target: dict[str, Any] = {"targetModels": [{"modelServerName": "m"}]}
        condition = {"modelMatch": {"headers": {"X-Team": {"regex": SLOWEST}}}}
        rules = [condition | target, target] if namespace == "attacker" else [target]
        labels = {"app": namespace}
        ready = Pod(Key(namespace, "p"), "p", None, 0.0, 1.0, "Running", labels=labels, ip="127.0.0.1", started="1")
        selector = {"matchLabels": labels}
        spec = {"inferenceEngine": "vLLM", "workloadSelector": selector, "workloadPort": {"port": port}}
        servers[namespace], pods[namespace] = [objects.server({"metadata": metadata, "spec": spec})], [ready]
        routes.append(objects.route({"metadata": metadata, "spec": {"modelName": namespace, "rules": rules}}))
        assert routes[-1].problem is None, routes[-1].problem
    router.take(router.decider.fleet.update(routes, servers.__getitem__, pods.__getitem__, list(servers)))
    await router.front.reader.start()
    await router.run(None)


def measured(chosen: Attack | None, cores: list[int], options: argparse.Namespace) -> tuple[float, float, str]:
    """Measure the neighbour; return its p50 and p99, and what the attacker was answered last."""
    with tempfile.NamedTemporaryFile() as printed, contextlib.ExitStack() as ends:
        if chosen is not None:
            attacker = subprocess.Popen([sys.executable, __file__, "attack", chosen.name], stdout=printed)
            ends.callback(attacker.wait)
            ends.callback(attacker.kill)
            psutil.Process(attacker.pid).cpu_affinity(cores)
            while not Path(printed.name).read_text():
                time.sleep(0.1)
            time.sleep(2.0)
        p50, p99 = percentiles(uvloop.run(at_rate_of(posted(NEIGHBOUR), ROUTER, options.rate, options.seconds)))
        return p50, p99, (Path(printed.name).read_text().splitlines() or [""])[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rate", type=float, default=30.0)
    parser.add_argument("--only", default=",".join(chosen.name for chosen in ATTACKS))
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    theirs, ours = cores[:1], cores[-1:]
    os.sched_setaffinity(0, ours)
    with contextlib.ExitStack() as ends:

        def start(argv: list[str], where: list[int], port: int) -> None:
            process, _ = started([sys.executable, *argv], where, port)
            ends.callback(process.wait)
            ends.callback(process.terminate)

        start([str(FRONTS), "engine"], ours, ENGINE)
        start([__file__, "pod"], theirs, POD)
        print("attack          p50     p99  ms alone    p50     p99  ms under attack   added p99   attacker's answers")
        for name in options.only.split(","):
            chosen = next(attack for attack in ATTACKS if attack.name == name)
            with contextlib.ExitStack() as own:
                process, _ = started([sys.executable, __file__, "router"], ours, ROUTER)
                own.callback(process.wait)
                own.callback(process.terminate)
                alone, attacked = measured(None, theirs, options), measured(chosen, theirs, options)
            figures = f"{alone[0]:7.1f} {alone[1]:7.1f}           {attacked[0]:7.1f} {attacked[1]:7.1f}"
            print(f"{name:12} {figures}             {attacked[1] - alone[1]:+9.1f}   {attacked[2]}", flush=True)


if __name__ == "__main__":
    roles = {"router": serve_router, "pod": serve_pod}
    if len(sys.argv) > 1 and sys.argv[1] in roles:
        uvloop.run(roles[sys.argv[1]]())
    elif sys.argv[1:2] == ["attack"]:
        uvloop.run(attack(next(chosen for chosen in ATTACKS if chosen.name == sys.argv[2])))
    else:
        main()
