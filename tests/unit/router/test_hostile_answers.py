"""Pods that answer without end, through a router that serves a neighbour as well."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from router_world import RecordingEngine, RouterWorld, an_address, chat, eventually, running

from modelyard.metrics.endpoints.bounded_connection import SLICE, BoundedConnection

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
NEWLINES = b"10000\r\n" + b"\n" * 0x10000 + b"\r\n"


class HostilePod:
    """A pod that answers each request by ``first``, and then by ``piece`` again and again; none: by nothing more."""

    def __init__(self, first: bytes, piece: bytes) -> None:
        self._first, self._piece = first, piece
        self.asked = self.left = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            if (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST"):
                self.asked += 1
                try:
                    writer.write(self._first)
                    while self._piece:
                        writer.write(self._piece)
                        await writer.drain()
                    await reader.read()  # the request's body
                    await reader.read()
                finally:
                    self.left += 1
        writer.close()


Start = Callable[[RouterWorld, bytes, bytes], Awaitable[HostilePod]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Give a namespace a hostile pod: its model has no others than these."""
    numbers = itertools.count()
    async with contextlib.AsyncExitStack() as ends:

        async def start(world: RouterWorld, first: bytes, piece: bytes) -> HostilePod:
            pod, address = HostilePod(first, piece), an_address()
            await ends.enter_async_context(await asyncio.start_server(pod.serve, address, world.engine_port))
            world.server()
            world.route()
            world.pod(f"hostile-{next(numbers)}", address)
            return pod

        yield start


async def neighbour(world: RouterWorld) -> RecordingEngine:
    engine = await world.neighbour("quiet")
    world.tell()
    return engine


async def ask(world: RouterWorld) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.router.port)
    body = json.dumps(chat(stream=True)).encode()
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return reader, writer


async def test_a_pod_that_answers_continue_for_ever_is_left_at_once(start: Start) -> None:
    async with running() as world:
        pod = await start(world, b"", INTERIM * 10_000)
        await neighbour(world)
        code, _, answer = await world.post(chat())
        assert code == 502
        assert "pod shop/hostile-0 failed: it sent more than 16 interim answers" in answer["error"]["message"]
        await eventually(lambda: pod.left == pod.asked == 1, "the pod's connection to close")
        assert (await world.post(chat("quiet")))[0] == 200


@pytest.mark.parametrize(
    "first",
    [b"", INTERIM, b"HTTP/1.1 200 OK\r\n", STREAM + b"1\r\n\n\r\n1;"],
    ids=["nothing", "interim", "head", "stream"],
)
async def test_a_pod_sees_its_connection_closed_when_the_client_leaves(start: Start, first: bytes) -> None:
    async with running() as world:
        pod = await start(world, first, b"")
        _, writer = await ask(world)
        await eventually(lambda: pod.asked == 1, "the request to arrive")
        writer.close()
        await eventually(lambda: pod.left == 1, "the pod's connection to close")
        await eventually(lambda: world.router.front.capacity.places.used == 0, "the request to end")
        assert world.router.front.capacity.memory.used == 0


@pytest.mark.parametrize("trickle", [INTERIM, b"HTTP/1.1 200 OK\r\nx: y"], ids=["interim", "head"])
async def test_without_a_time_out_of_the_server_the_head_of_an_answer_has_one(start: Start, trickle: bytes) -> None:
    async with running(head_seconds=0.5) as world:
        pods = [await start(world, trickle, b"") for _ in range(3)]
        code, _, answer = await world.post(chat())
        assert (code, sum(pod.asked for pod in pods)) == (504, 1), "all attempts together have that time"
        assert "sent no answer within 0.5 s" in answer["error"]["message"]
        await eventually(lambda: sum(pod.left for pod in pods) == 1, "the pod's connection to close")


@pytest.mark.parametrize(
    "piece",
    [NEWLINES, b"1\r\n\n\r\n" * 10_000, b"1;" + b"x" * 60_000 + b"\r\n\n\r\n"],
    ids=["newlines", "chunks", "extensions"],
)
async def test_a_neighbour_is_answered_between_the_slices_of_eight_endless_streams(
    start: Start, piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = list[int]()
    parse = BoundedConnection._parse

    def note(connection: BoundedConnection, data: bytes) -> None:
        lengths.append(len(data))
        parse(connection, data)

    monkeypatch.setattr(BoundedConnection, "_parse", note)
    async with running() as world:
        ticks = itertools.count()
        world.router.front.shares.clock = lambda: next(ticks) * 0.0005  # of a slice, by each look at it
        await start(world, STREAM, piece)
        await neighbour(world)

        async def read(reader: asyncio.StreamReader) -> None:
            while await reader.read(1 << 16):
                pass

        streams = [await ask(world) for _ in range(8)]
        reading = [asyncio.create_task(read(reader)) for reader, _ in streams]
        await eventually(lambda: len(lengths) > 100, "the streams to begin")
        before = len(lengths)
        for _ in range(5):
            assert (await world.post(chat("quiet")))[0] == 200
        assert max(lengths) <= SLICE
        assert len(lengths) - before <= 5 * 100, "slices of the streams for each answer of the neighbour"
        for task, (_, writer) in zip(reading, streams, strict=True):
            task.cancel()
            writer.close()
        await asyncio.gather(*reading, return_exceptions=True)
        await eventually(lambda: world.router.front.capacity.places.used == 0, "the streams to end")
        assert world.router.front.capacity.memory.used == 0


async def test_streams_that_their_clients_do_not_take_hold_no_more_than_a_namespaces_memory(start: Start) -> None:
    most = 4 << 20
    async with running(max_bodies=most, max_body=1 << 20) as world:
        pod = await start(world, STREAM, b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await neighbour(world)
        capacity, peak = world.router.front.capacity, 0
        streams = list[asyncio.StreamWriter]()
        while not pod.left:
            streams.append((await ask(world))[1])
            for _ in range(20):
                await asyncio.sleep(0)
                peak = max(peak, capacity.memory.used)
            assert (await world.post(chat("quiet")))[0] == 200
        assert peak <= most
        for writer in streams:
            writer.close()
        await eventually(lambda: capacity.places.used == 0, "the streams to end")
        assert capacity.memory.used == 0
