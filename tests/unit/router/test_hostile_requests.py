"""Malformed and unusual requests to a router that serves a neighbour as well."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from aiohttp import web
from router_world import RouterWorld, chat, eventually, running

BODY = json.dumps(chat()).encode()
LINE = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
WHOLE = LINE + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = LINE + b"Transfer-Encoding: chunked\r\n\r\n"


async def answers_to(world: RouterWorld, sent: bytes) -> list[int]:
    """Send all, then nothing more; return the status of each answer that comes until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.router.port)
    codes = list[int]()

    async def send() -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(sent)
            await writer.drain()

    sending = asyncio.create_task(send())
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while head := (await reader.readuntil(b"\r\n\r\n")).lower():
            codes.append(int(head.split()[1]))
            length = head.partition(b"content-length: ")[2].split()
            is_head = sent.startswith(b"HEAD")
            await reader.readexactly(int(length[0]) if length and not is_head else 0)
    sending.cancel()
    writer.close()
    return codes


@pytest.mark.parametrize(
    ("sent", "codes", "asked"),
    [
        (b"\x16\x03\x01\x02\x00\x01" * 100 + b"\r\n\r\n", [400], 0),
        (b"G" * 300_000, [400], 0),
        (b"POST / HTTP/1.1\r\nHost: x\r\n" + b"x: y\r\n" * 60_000, [400], 0),
        (LINE + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [400], 0),
        (LINE + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde", [400], 0),
        (b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", [200], 0),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", [404], 0),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 300_000, [404, 400], 0),
        (LINE + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + b"x" * 300_000, [400, 400], 0),
        (CHUNKED + b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY) + b"trailer: x\r\n" * 60_000, [400], 0),
        (CHUNKED + b"%x\r\n%b\r\n0\r\nx-model: z\r\n\r\n" % (len(BODY), BODY), [200], 1),
        (CHUNKED + b"ffffffffffffffffff\r\nx", [400], 0),
        (CHUNKED + b"-1\r\nx", [400], 0),
    ],
    ids=[
        "TLS",
        "line",
        "head",
        "two lengths",
        "lengths",
        "HEAD",
        "OPTIONS",
        "CONNECT",
        "upgrade",
        "endless trailers",
        "trailers",
        "chunk",
        "negative",
    ],
)
async def test_what_is_no_plain_request_is_refused_and_forgotten(sent: bytes, codes: list[int], asked: int) -> None:
    async with running(idle_seconds=1.0, body_seconds=1.0) as world:
        world.server()
        world.route()
        engine = await world.recording("a")
        await world.neighbour("quiet")
        world.tell()
        assert await answers_to(world, sent) == codes
        assert len(engine.asked) == asked
        assert (await world.post(chat("quiet")))[0] == 200
        await eventually(lambda: world.router.front.capacity.places.used == 0, "the request to end")
        assert (world.router.front.capacity.memory.used, len(world.router.front.shares.queue.accounts)) == (0, 0)


async def test_of_pipelined_requests_one_at_a_time_is_in_progress() -> None:
    async with running() as world:
        world.server()
        world.route()
        most = [0]

        async def count(_: web.Request, __: bytes) -> web.Response:
            most[0] = max(most[0], world.router.front.capacity.places.used)
            return web.json_response({})

        engine = await world.recording("a", count)
        last = WHOLE.replace(b"Host: x", b"Host: x\r\nConnection: close")
        codes = await answers_to(world, WHOLE * 500 + last)
        assert codes == [200] * 501
        assert (len(engine.asked), most[0]) == (501, 1)
