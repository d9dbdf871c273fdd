"""Pods that are killed between prefill and decode, and thousands of streams that are open at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import subprocess
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from router_world import RouterWorld, an_address, chat, engine_process, eventually, running, whole

pytestmark = pytest.mark.integration

PARAMETERS = {"kv_transfer_params": {"remote_engine_id": "e1"}}
SLOW, LONG = (
    ("--delta", "200", "--max-num-batched-tokens", "1", "--max-num-seqs", "1"),
    [{"role": "user", "content": "word " * 3000}],
)
"""An engine that computes one token of a prompt in a step, and a prompt that takes it ten minutes."""
WAYS = pytest.mark.parametrize(
    ("engine", "connector"),
    [("vLLM", "http"), ("vLLM", "nixl"), ("vLLM", "lmcache"), ("SGLang", None)],
    ids=["http", "nixl", "lmcache", "side by side"],
)


def split(world: RouterWorld, engine: str, connector: str | None) -> None:
    """A server whose prompts are computed apart."""
    groups = {"groupKey": "g", "prefillLabels": {"role": "p"}, "decodeLabels": {"role": "d"}}
    more = {"kvConnector": {"type": connector}} if connector else {}
    world.server(workloadSelector={"matchLabels": {"app": "server"}, "pdGroup": groups}, inferenceEngine=engine, **more)
    world.route()


@contextlib.contextmanager
def slow(world: RouterWorld, name: str, role: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A pod whose engine is a process, and its address."""
    address = an_address()
    with engine_process(address, world.engine_port, *SLOW) as process:
        world.pod(name, address, g="0", role=role)
        yield process, address


async def busy(world: RouterWorld, address: str) -> None:
    """Wait until the engine there works on a request."""
    async with asyncio.timeout(120), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://{address}:{world.engine_port}/metrics") as answer:
                if re.search(r"^vllm:num_requests_(running|waiting)\S* [1-9]", await answer.text(), re.MULTILINE):
                    return
            await asyncio.sleep(0.02)


def under_way(world: RouterWorld) -> int:
    pods = [pod for one in world.router.decider.fleet.backends.values() for pod in one.pods]
    return sum(pod.outstanding + pod.queued_tokens for pod in pods)


@WAYS
async def test_a_decode_pod_killed_before_its_answer_gives_way_to_another(engine: str, connector: str | None) -> None:
    async with running() as world:
        split(world, engine, connector)
        with slow(world, "killed", "d") as (process, address):

            async def computes(_: web.Request, __: bytes) -> web.Response:
                if process.poll() is None:
                    if connector is None:  # both are asked at once
                        await busy(world, address)
                    process.kill()
                    process.wait()
                return web.json_response(PARAMETERS)

            first = await world.recording("p", computes, g="0", role="p")
            other = await world.recording("other", g="0", role="d")
            pods = [pod for one in world.router.decider.fleet.backends.values() for pod in one.pods]
            idle = next(pod for pod in pods if pod.key.name == "other")
            idle.outstanding += 5  # so that it is the second choice
            async with asyncio.timeout(120):
                code, _, told = await world.post(chat(max_tokens=50, messages=LONG))
            idle.outstanding -= 5
        assert (code, told["usage"]["completion_tokens"]) == (200, 3)
        assert [one["max_tokens"] for one in first.bodies] == [1, 1], "the prompt is computed again for the other pod"
        (body,) = other.bodies
        assert body["max_tokens"] == 50
        if connector == "nixl":
            assert body["kv_transfer_params"] == PARAMETERS["kv_transfer_params"]
        if connector is None:
            rooms = [one["bootstrap_room"] for one in first.bodies]
            assert rooms[0] != rooms[1] == body["bootstrap_room"]
        await eventually(lambda: under_way(world) == 0, "nothing under way")


@WAYS
async def test_a_prefill_pod_killed_over_the_prompt_leaves_it_to_the_decode_pod(
    engine: str, connector: str | None
) -> None:
    async with running() as world:
        split(world, engine, connector)
        abandoned = asyncio.Event()

        async def waits_for_its_prompt(request: web.Request, body: bytes) -> web.Response:
            if "bootstrap_room" not in json.loads(body):
                return await whole(request, body)
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                abandoned.set()
                raise
            raise AssertionError

        decode = await world.recording("d", waits_for_its_prompt, g="0", role="d")
        with slow(world, "killed", "p") as (process, address):
            asked = asyncio.create_task(world.post(chat(max_tokens=50, messages=LONG)))
            await busy(world, address)
            process.kill()
            async with asyncio.timeout(120):
                code, _, told = await asked
                if connector is None:
                    await abandoned.wait()
        assert (code, told["usage"]["completion_tokens"]) == (200, 3)
        assert len(decode.asked) == (2 if connector is None else 1)
        assert decode.bodies[-1]["max_tokens"] == 50
        assert not {"kv_transfer_params", "bootstrap_room"} & decode.bodies[-1].keys()
        await eventually(lambda: under_way(world) == 0, "nothing under way")


@pytest.mark.timeout(1200)  # five thousand take four minutes at a load of 15
@pytest.mark.parametrize("count", [1000, pytest.param(5000, marks=pytest.mark.long)])
async def test_thousands_of_streams_are_open_at_once_and_each_gets_all_of_its_own(count: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY:
        count = min(count, (most - 1000) // 4)  # both ends of two connections
    body = json.dumps(chat(stream=True)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    rounds = [asyncio.Event() for _ in range(3)]

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            asked = await reader.readuntil(b"\r\n\r\n")
            if asked.startswith(b"GET"):
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            length = re.search(rb"content-length: (\d+)", asked, re.IGNORECASE)
            assert length is not None
            await reader.readexactly(int(length[1]))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for number, turn in enumerate(rounds):
                event = b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % number
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
                await turn.wait()
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            await writer.drain()

    patient = {"connect_seconds": 300.0, "head_seconds": 1200.0, "stall_seconds": 1200.0}
    async with running(**patient) as world, contextlib.AsyncExitStack() as stack:
        world.server()
        world.route()
        address = an_address()
        server = await asyncio.start_server(engine, address, world.engine_port, backlog=4096)
        stack.callback(server.close)
        world.pod("a", address)
        gate, streaming = asyncio.Semaphore(100), list[asyncio.StreamReader]()

        async def opened() -> None:
            async with gate:
                reader, writer = await asyncio.open_connection("127.0.0.1", world.router.port)
                stack.callback(writer.close)
                writer.write(head + body)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
                streaming.append(reader)

        async with asyncio.timeout(1100):
            await asyncio.gather(*[opened() for _ in range(count)])
            for number, turn in enumerate(rounds):
                told = b'"content":"%d"' % number
                await asyncio.gather(*[one.readuntil(told) for one in streaming])
                assert world.router.front.capacity.places.used == count
                turn.set()
            await asyncio.gather(*[one.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n") for one in streaming])
            while world.router.front.capacity.places.used or under_way(world):
                await asyncio.sleep(0.05)
    lines: list[dict[str, Any]] = [json.loads(line) for line in world.lines]
    assert {one["status_code"] for one in lines} == {200}
