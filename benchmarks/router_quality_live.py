"""The same as ``router_quality.py`` on the wire: the router, simulated engines as processes, a client that streams.

    python benchmarks/router_quality_live.py [--pods 4] [--load 0.8] [--requests 400]

Prompts are words, one a token, so that those that share blocks in the trace share them as text. Router and client are
in this process; time is real, so 400 requests at 80 % of four pods take about a minute for each set.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import aiohttp
import numpy as np
import orjson
import uvloop
from router_quality import BLOCK, SETS, Asked, play, read

from modelyard.objects.parse import pod as parse_pod
from modelyard.router.process.service import RouterProcess
from modelyard.router.settings import RouterSettings
from modelyard.routing import objects
from modelyard.routing.plugins import Configuration, Plugins

SPACE = "bench"
TOLD = ("random", "least request", "prefix-aware", "full")
OPTIONS = ("--model", "m", "--profile", "h100", "--max-model-len", "400000", "--prefix-segment", str(BLOCK))
HITS = re.compile(r"^vllm:prefix_cache_(hits|queries)_total\{.*\} (\S+)$", re.M)


def metadata(name: str) -> dict[str, object]:
    made = "2026-01-01T00:00:00Z"
    return {"name": name, "namespace": SPACE, "uid": name, "creationTimestamp": made, "labels": {"app": "engine"}}


@contextlib.contextmanager
def engines(count: int, port: int):
    """Processes on loopback addresses of their own."""
    addresses = [f"127.78.0.{number + 1}" for number in range(count)]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "modelyard.engine", *OPTIONS, "--host", one, "--port", str(port)],
            stdout=subprocess.PIPE,
        )
        for one in addresses
    ]
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"serving ")
        yield addresses
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def routing(addresses: Sequence[str], port: int, chosen: Plugins) -> AsyncIterator[RouterProcess]:
    """A router that knows these pods without a cluster."""
    # Blocks of text: about 512 words of some five bytes.
    text = replace(chosen, block_size=2048, max_blocks=512)
    router = RouterProcess(RouterSettings(port=0, metrics_port=0, log="none", leave_seconds=0.0), Configuration(text))
    rules = [{"targetModels": [{"modelServerName": "server"}]}]
    labels = {"matchLabels": {"app": "engine"}}
    server = {"inferenceEngine": "vLLM", "workloadSelector": labels, "workloadPort": {"port": port}}
    route = objects.route({"metadata": metadata("route"), "spec": {"modelName": "m", "rules": rules}})
    ready = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    pods = [
        parse_pod(
            {"metadata": metadata(one), "spec": {}, "status": {"phase": "Running", "podIP": one, "conditions": ready}}
        )
        for one in addresses
    ]
    servers = [objects.server({"metadata": metadata("server"), "spec": server})]
    router.take(router.decider.fleet.update([route], lambda _: servers, lambda _: pods, [SPACE]))
    task = asyncio.create_task(router.run(None))
    await router.started.wait()
    await asyncio.sleep(2)  # engines' metrics have been read
    try:
        yield router
    finally:
        router.stop()
        await task


def body(one: Asked) -> bytes:
    words = [f"{block} " * BLOCK for block in one.blocks]
    rest = f"{one.at} " * (one.prompt - BLOCK * len(one.blocks))
    asked = {
        "model": "m",
        "prompt": "".join([*words, rest]),
        "max_tokens": one.output,
        "ignore_eos": True,
        "stream": True,
    }
    return orjson.dumps(asked)


async def times(session: aiohttp.ClientSession, url: str, one: Asked, start: float) -> tuple[float, float]:
    """TTFT and mean ITL of one request, sent at its time."""
    sent = body(one)
    await asyncio.sleep(start + one.at - time.monotonic())
    began = time.monotonic()
    async with session.post(f"{url}/v1/completions", data=sent) as answer:
        assert answer.status == 200, await answer.text()
        first = 0.0
        async for _ in answer.content.iter_any():
            first = first or time.monotonic()
    return first - began, (time.monotonic() - first) / max(1, one.output - 1)


async def measured(asked: Sequence[Asked], pods: int, port: int, chosen: Plugins) -> tuple[np.ndarray, float]:
    with engines(pods, port) as addresses:
        async with (
            routing(addresses, port, chosen) as router,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        ):
            url, start = f"http://127.0.0.1:{router.port}", time.monotonic() + 1
            found = np.array(await asyncio.gather(*(times(session, url, one, start) for one in asked)))
            totals = {"hits": 0.0, "queries": 0.0}
            for one in addresses:
                async with session.get(f"http://{one}:{port}/metrics") as page:
                    for name, value in HITS.findall(await page.text()):
                        totals[name] += float(value)
    return found, totals["hits"] / totals["queries"]


async def run(options: argparse.Namespace) -> int:
    asked = read(options.requests, 0)
    burst = play([one._replace(at=0.0) for one in asked], options.pods, None, 0)
    stretch = burst.seconds / options.load / asked[-1].at
    paced = [one._replace(at=one.at * stretch) for one in asked]
    print(f"{len(asked)} requests, {options.pods} pods, {len(asked) / paced[-1].at:.2f} requests/s")
    print("| set | TTFT p50 | p95 | p99 | ITL p50 | prefix hits | in the simulator: TTFT p50 | p95 | prefix hits |")
    print("| --- | --: | --: | --: | --: | --: | --: | --: | --: |")
    worst = {}
    for name in TOLD:
        chosen = SETS[name]
        assert chosen is not None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        found, hits = await measured(paced, options.pods, port, chosen)
        same = play(paced, options.pods, chosen, 0)
        ttft = [f"{np.percentile(found[:, 0], part):.2f} s" for part in (50, 95, 99)]
        there = [f"{np.percentile(same.ttft, part):.2f} s" for part in (50, 95)]
        cells = [
            name,
            *ttft,
            f"{np.percentile(found[:, 1], 50) * 1000:.1f} ms",
            f"{hits:.1%}",
            *there,
            f"{same.hits:.1%}",
        ]
        print("|", " | ".join(cells), "|", flush=True)
        worst[name] = float(np.percentile(found[:, 0], 95))
    return 0 if worst["full"] <= worst["least request"] else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=4)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--requests", type=int, default=400)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
