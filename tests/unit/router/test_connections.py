"""Connections of clients, at any timing of their bytes and in any number."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Iterator

import pytest
from aiohttp import web

from modelyard.metrics.endpoints.bounded_connection import SLICE
from modelyard.router.process.connections import MOST_ACCEPTED, MOST_AHEAD, Acceptor, Connection, Listener
from modelyard.router.process.processor_shares import PASS_SECONDS, ProcessorShares

PIECE = b"x" * (MOST_AHEAD + 1)
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False
        self._reads = True
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def reads(self) -> bool:
        return self._reads

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True


async def answer(http: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text=str(len(await http.read())))


async def connected(shares: ProcessorShares | None = None) -> tuple[Connection, Wire]:
    listener, wire = Listener(answer, 0, lambda: None, shares or ProcessorShares()), Wire()
    connection = listener.connection("10.0.0.7")
    assert listener.count(connection.client, 1)
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


def ticking() -> ProcessorShares:
    """Shares of which each look at the clock takes a quarter of a pass."""
    ticks = itertools.count()
    return ProcessorShares(lambda: next(ticks) * PASS_SECONDS / 4)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each step in which what clients sent is parsed."""
    sizes = list[int]()
    receive = web.RequestHandler.data_received

    def note(connection: web.RequestHandler, data: bytes) -> None:
        if data:
            sizes.append(len(data))
        receive(connection, data)

    monkeypatch.setattr(web.RequestHandler, "data_received", note)
    return sizes


@pytest.mark.parametrize("piece", [b"1\r\nx\r\n", b"1;" + b"y" * 90 + b"\r\nx\r\n"], ids=["chunks", "extensions"])
async def test_a_client_is_read_in_slices_and_no_further_while_the_router_is_busy(
    parsed: list[int], piece: bytes
) -> None:
    connection, wire = await connected(ticking())
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    count = 200_000 // len(piece)
    connection.data_received(head + piece * count)
    assert not wire.reads()
    connection.data_received(piece)  # as TLS may hand on what it had read
    connection.data_received(b"0\r\n\r\n")
    steps = list[int]()
    while b"\r\n\r\n" not in wire.written:
        before = len(parsed)
        assert not wire.reads() or before == 0 or sum(parsed) >= 200_000
        await asyncio.sleep(0)
        steps.append(len(parsed) - before)
    assert max(parsed) <= SLICE
    assert max(steps) <= 4, "slices in a pass of the event loop"
    assert wire.written.endswith(str(count + 1).encode())
    await asyncio.sleep(0)
    assert wire.reads()
    connection.connection_lost(None)


async def test_bytes_that_come_one_by_one_are_parsed_in_turns_while_the_router_is_busy(parsed: list[int]) -> None:
    shares = ticking()
    clients = [await connected(shares) for _ in range(50)]
    steps = list[int]()
    for byte in HEAD[:20]:
        for connection, wire in clients:
            if wire.reads():
                connection.data_received(bytes([byte]))
        before = len(parsed)
        await asyncio.sleep(0)
        steps.append(len(parsed) - before)
    assert max(steps) <= 4, "of 50 connections in a pass"
    for connection, _ in clients:
        connection.connection_lost(None)
    await asyncio.sleep(0)
    assert (len(shares.queue.accounts), len(shares.queue)) == (0, 0), "nothing is kept"


async def test_a_client_that_leaves_has_nothing_more_parsed(parsed: list[int]) -> None:
    shares = ticking()
    connection, _ = await connected(shares)
    connection.data_received(HEAD % 400_000 + b"x" * 400_000)
    connection.connection_lost(None)
    before = len(parsed)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(parsed) == before
    assert len(shares.queue.accounts) == 0


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        yield found


def connect(bound: socket.socket, client: str) -> socket.socket:
    found = socket.socket()
    found.bind((client, 0))
    found.connect(bound.getsockname())
    return found


async def test_a_flood_of_connections_begins_a_few_at_a_time_and_another_clients_in_its_turn(
    bound: socket.socket,
) -> None:
    begun = list[str]()

    class Noted(Listener):
        def connection(self, client: str) -> Connection:
            begun.append(client)
            return super().connection(client)

    acceptor = Acceptor(Noted(answer, 0, lambda: None, ticking()), bound)
    acceptor.start()
    opened = [connect(bound, "127.0.0.2") for _ in range(300)]
    opened.append(connect(bound, "127.0.0.3"))
    most = 0
    while len(begun) < 301:
        before = len(begun)
        await asyncio.sleep(0)
        most = max(most, len(begun) - before)
    assert most <= 4, "connections that begin in a pass"
    assert begun.index("127.0.0.3") <= 300 * 4 / MOST_ACCEPTED + 20, "it waits to be accepted, not for those before it"
    for client in opened:
        client.close()
    await acceptor.close()


async def test_of_a_client_with_too_many_connections_more_are_closed_before_anything_is_made_for_them(
    bound: socket.socket,
) -> None:
    made, closed = list[int](), list[int]()

    class Noted(Listener):
        def connection(self, client: str) -> Connection:
            made.append(1)
            return super().connection(client)

    acceptor = Acceptor(Noted(answer, 3, lambda: closed.append(1), ProcessorShares()), bound)
    acceptor.start()
    opened = [connect(bound, "127.0.0.2") for _ in range(40)]
    opened.append(connect(bound, "127.0.0.3"))
    while len(made) + len(closed) < 41:
        await asyncio.sleep(0.001)
    assert len(made) == 4
    for client in opened:
        client.close()
    await acceptor.close()
