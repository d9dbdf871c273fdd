"""Requests to pods over kept connections: a pod that answers without end or sense keeps neither the loop nor memory."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import aiohttp
import pytest

from modelyard.metrics.endpoints.bounded_connection import MOST_HEAD, MOST_INTERIM, SLICE, BoundedConnection
from modelyard.metrics.endpoints.scrape import Scraper
from modelyard.metrics.vocabulary.pages import MetricsEndpoint, Scrape
from modelyard.router.process.pod_client import PodAnswer, PodClient
from modelyard.router.process.pod_connection import HEAD_SLICE, PAUSE_AT, PodConnector
from modelyard.router.process.processor_shares import ProcessorShares
from modelyard.routing.errors import ErrorAnswer, busy

HEAD = ("POST /v1/completions HTTP/1.1", "Host: pod")
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


Does = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


class Pod:
    """A pod that does as a test says with each request; ``left`` is set when the router closes the connection."""

    def __init__(self, does: Does, after: bytes) -> None:
        self._does, self._after = does, after
        self.left = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(self._after)
                await self._does(reader, writer)
        self.left.set()
        writer.close()


@contextlib.asynccontextmanager
async def running(does: Does, after: bytes = b"{}") -> AsyncIterator[Pod]:
    """A pod that begins when these bytes of a request are there."""
    pod = Pod(does, after)
    server = await asyncio.start_server(pod.serve, "127.0.0.1")
    pod.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield pod


class Asker:
    """Asks pods, as requests of one namespace; ``held`` is the number of bytes in memory, ``most`` its limit."""

    def __init__(self, connector: PodConnector) -> None:
        self.held = self.peak = 0
        self.most = math.inf
        self._client = PodClient(connector, 10)
        self._account = ProcessorShares().open(("namespace", "shop"))

    async def post(self, pod: Pod, seconds: float = math.inf) -> PodAnswer:
        until = asyncio.get_running_loop().time() + seconds
        return await self._client.post(pod.url, HEAD, b"{}", until, self._account, self.hold)

    def hold(self, more: int) -> ErrorAnswer | None:
        self.held += more
        self.peak = max(self.peak, self.held)
        return busy("bytes of one namespace") if self.held > self.most else None


@pytest.fixture
async def asker() -> AsyncIterator[Asker]:
    async with PodConnector() as connector:
        yield Asker(connector)


async def whole(answer: PodAnswer) -> bytes:
    parts = []
    while part := await answer.read():
        parts.append(part)
    answer.close()
    return b"".join(parts)


def sends(*pieces: bytes) -> Does:
    async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return send


def endless(piece: bytes, first: bytes = b"") -> Does:
    async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while True:
            writer.write(piece)
            await writer.drain()

    return send


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all slices that were parsed."""
    lengths: list[int] = []
    parse = BoundedConnection._parse

    def note(connection: BoundedConnection, data: bytes) -> None:
        lengths.append(len(data))
        parse(connection, data)

    monkeypatch.setattr(BoundedConnection, "_parse", note)
    return lengths


async def test_what_comes_on_a_kept_connection_before_a_request_is_no_answer_to_it(asker: Asker) -> None:
    unasked = asyncio.Event()

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_answer(b"asked"))
        await unasked.wait()
        writer.write(_answer(b"unasked"))
        await reader.read()

    async with running(send) as pod:
        first = await asker.post(pod)
        protocol = first._protocol
        assert await whole(first) == b"asked"
        assert not protocol.should_close
        unasked.set()
        async with asyncio.timeout(120):
            await pod.left.wait()
        assert protocol.should_close
        assert await whole(await asker.post(pod)) == b"asked"


async def test_a_second_answer_to_one_request_is_no_answer_to_the_next(asker: Asker) -> None:
    answers = []
    async with running(sends(_answer(b"asked") + _answer(b"unasked"))) as pod:
        for _ in range(3):
            with contextlib.suppress(aiohttp.ClientError):
                answers.append(await whole(await asker.post(pod)))
        async with asyncio.timeout(30):
            await pod.left.wait()
    assert set(answers) <= {b"asked"}
    assert asker.held == 0


async def test_a_connection_is_kept_for_the_next_request(asker: Asker) -> None:
    async with running(sends(INTERIM * 2 + _answer(b"x" * 100_000))) as pod:
        connections = set()
        for _ in range(3):
            answer = await asker.post(pod)
            connections.add(answer._protocol)
            assert await whole(answer) == b"x" * 100_000
        assert len(connections) == 1
        assert asker.held == 0


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (INTERIM, "interim answers"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n", "interim answers"),
        (b"HTTP/1.1 102 P\n\n", "interim answers"),
        (b"HTTP/1.1 200 OK\r\n" + b"".join(b"x: %s\r\n" % (b"a" * 4000) for _ in range(100)), "larger than 65536"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: 1\r\n" * 200, "Too many headers"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000, "(?i)too long|more than"),
        (b"HTTP/1.1 200 " + b"a" * 100_000, "(?i)too long|more than"),
    ],
    ids=["100", "103", "102", "headers", "many headers", "long header", "long reason"],
)  # fmt: skip
async def test_a_pod_that_never_comes_to_its_answer_is_left_after_a_bounded_part_of_it(
    asker: Asker, parsed: list[int], sent: bytes, why: str
) -> None:
    async with running(endless(sent)) as pod:
        with pytest.raises(aiohttp.ClientPayloadError, match=why):
            await asker.post(pod)
        async with asyncio.timeout(120):
            await pod.left.wait()
    assert max(parsed) <= HEAD_SLICE
    assert sum(parsed) <= MOST_HEAD + HEAD_SLICE
    if "interim" in why:
        assert sum(parsed) <= MOST_INTERIM * len(sent) + 2 * HEAD_SLICE
    assert asker.held == 0


async def test_interim_answers_that_trickle_renew_no_time(asker: Asker) -> None:
    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(INTERIM[:1] if writer.transport.get_write_buffer_size() else INTERIM)
            await writer.drain()
            await asyncio.sleep(0.05)

    async with running(trickle) as pod:
        with pytest.raises(TimeoutError):
            await asker.post(pod, 0.3)
        async with asyncio.timeout(120):
            await pod.left.wait()


@pytest.mark.parametrize(
    "sent", [INTERIM, b"HTTP/1.1 200 OK\r\n", CHUNKED + b"1;" + b"a" * 100], ids=["interim", "head", "body"]
)
async def test_the_pod_sees_its_connection_closed_when_the_client_has_left(asker: Asker, sent: bytes) -> None:
    begun = asyncio.Event()

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        begun.set()
        await reader.readexactly(1)

    async def ask(pod: Pod) -> bytes:
        answer = await asker.post(pod)
        try:
            return await answer.read()
        finally:
            answer.close()

    async with running(begin) as pod:
        asking = asyncio.create_task(ask(pod))
        await begun.wait()
        asking.cancel()
        async with asyncio.timeout(120):
            await pod.left.wait()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert asker.held == 0


@pytest.mark.parametrize(
    "piece",
    [b"1\r\na\r\n" * 50_000, b"1;" + b"e" * 300_000 + b"\r\na\r\n", b"40000\r\n" + b"a" * 0x40000 + b"\r\n"],
    ids=["tiny chunks", "chunk extensions", "large chunks"],
)
async def test_an_answer_is_parsed_in_slices_and_a_neighbours_between_them(
    asker: Asker, parsed: list[int], piece: bytes
) -> None:
    read, order = asyncio.Event(), list[str]()

    async def hostile() -> None:
        answer = await asker.post(pod)
        with contextlib.suppress(aiohttp.ClientError):
            while await answer.read():
                order.append("hostile")
                read.set()
                await asyncio.sleep(0)  # as the account makes it wait for its turn

    async with running(endless(piece, CHUNKED)) as pod, running(sends(_answer(b"mine"))) as neighbour:
        task = asyncio.create_task(hostile())
        await read.wait()
        order.clear()
        for _ in range(5):
            assert await whole(await asker.post(neighbour)) == b"mine"
            order.append("mine")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert max(parsed) <= SLICE
    assert asker.peak <= PAUSE_AT + 256_000, "and no more is read ahead"


async def test_of_an_answer_that_nobody_takes_no_more_is_read_than_may_be_held(asker: Asker) -> None:
    asker.most = 100
    async with running(sends(CHUNKED + b"5\r\nfirst\r\n", b"400\r\n" + b"a" * 1024 + b"\r\n")) as pod:
        with pytest.raises(aiohttp.ClientPayloadError, match=r"no memory is left for its answer: .*one namespace"):
            await whole(await asker.post(pod))
        async with asyncio.timeout(120):
            await pod.left.wait()


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        ((CHUNKED + b"3\r\nabc\r\n0\r\n\r\n",), b"abc"),
        ((CHUNKED, b"3\r\nab", b"c\r\n0\r\nX-Trailer: 1\r\n\r\n"), b"abc"),
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), b""),
        ((INTERIM, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", b"abc"), b"abc"),
    ],
)
async def test_answers_of_every_framing_are_whole(asker: Asker, pieces: Sequence[bytes], body: bytes) -> None:
    async with running(sends(*pieces)) as pod:
        for _ in range(2):
            assert await whole(await asker.post(pod)) == body


@pytest.mark.parametrize("size", [10, 300_000])
async def test_an_answer_that_ends_with_its_connection_is_whole(asker: Asker, size: int) -> None:
    async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * size)
        await writer.drain()
        writer.close()
        raise ConnectionError

    async with running(send) as pod:
        assert await whole(await asker.post(pod)) == b"x" * size
    assert asker.held == 0


@pytest.mark.parametrize(
    "sent",
    [
        CHUNKED + b"3\r\nab",
        CHUNKED + b"zz\r\nab",
        CHUNKED + b"3\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + b"a" * 200_000,
    ],
    ids=["cut", "no size", "longer than it says", "shorter than it says"],
)
async def test_an_answer_that_breaks_off_is_an_error(asker: Asker, sent: bytes) -> None:
    async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        writer.close()
        raise ConnectionError

    async with running(send) as pod:
        with pytest.raises(aiohttp.ClientPayloadError):
            await whole(await asker.post(pod))
    assert asker.held == 0


@pytest.mark.parametrize(
    "sent",
    [
        INTERIM * 100_000,
        b"HTTP/1.1 204 No Content\r\n\r\n" * 100_000,
        CHUNKED + b"1\r\na\r\n" * 100_000,
    ],
    ids=["interim answers", "answers without end", "tiny chunks"],
)
async def test_pages_of_metrics_are_bounded_as_answers_are(sent: bytes, parsed: list[int]) -> None:
    async with running(sends(sent), b"\r\n\r\n") as pod, Scraper() as scraper:
        host, _, port = pod.url.partition("://")[2].partition(":")
        page = Scrape(MetricsEndpoint("a", "1", "a", host), int(port), "/metrics")
        for _ in range(2):
            await scraper.scrape({page: ()})
        async with asyncio.timeout(120):
            await pod.left.wait()
    assert max(parsed) <= SLICE
    assert sum(parsed) <= 2 * 2 * MOST_HEAD
