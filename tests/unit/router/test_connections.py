"""One connection of a client, at any timing of its bytes."""

from __future__ import annotations

import asyncio

from aiohttp import web

from modelyard.router.service import MOST_AHEAD, Connection, Listener

PIECE = b"x" * (MOST_AHEAD + 1)
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def answer(http: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text=str(len(await http.read())))


async def connected() -> tuple[Connection, Wire]:
    listener, wire = Listener(answer, 0, lambda: None), Wire()
    connection = listener()
    assert isinstance(connection, Connection)
    connection.connection_made(wire)
    await asyncio.sleep(0)
    return connection, wire


async def test_a_long_body_is_taken_however_fast_it_comes() -> None:
    """Its second piece may come before the request has a task, with uvloop it does."""
    for passes in range(6):
        connection, wire = await connected()
        connection.data_received(HEAD % (3 * len(PIECE)) + PIECE)
        for _ in range(passes):
            await asyncio.sleep(0)
        connection.data_received(PIECE)
        connection.data_received(PIECE)
        while b"\r\n\r\n" not in wire.written and not wire.aborted:
            await asyncio.sleep(0)
        assert wire.written.endswith(str(3 * len(PIECE)).encode()), passes
        connection.connection_lost(None)


async def test_a_head_without_end_is_cut_off_on_a_kept_connection_too() -> None:
    connection, wire = await connected()
    for _ in range(2):
        wire.written = b""
        connection.data_received(HEAD % 1 + b"x")
        while not wire.written.endswith(b"\r\n\r\n1"):
            await asyncio.sleep(0)
    while connection.ended < 2:
        await asyncio.sleep(0)
    assert not wire.aborted
    head = b"GET /v1/models HTTP/1.1\r\n"
    while not wire.aborted and len(head) < 4 * MOST_AHEAD:
        more = b"X-%d: %s\r\n" % (len(head), b"y" * 1000)
        head += more
        connection.data_received(more)
        await asyncio.sleep(0)
    assert wire.aborted
    assert wire.written.count(b" 400 ") <= 1
    connection.connection_lost(None)
