"""What hostile and unlucky clients, engines and moments do to a router: a clear answer each, and no harm to others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from own_authority import vouched
from prometheus_client import CollectorRegistry, Counter
from router_world import (
    RecordingEngine,
    RouterWorld,
    abort,
    an_address,
    chat,
    engine_process,
    eventually,
    everything_of,
    hang,
    running,
    status,
    streaming,
)

from modelyard.objects import Key
from modelyard.router.process.gauges import EnginePoller
from modelyard.router.process.service import RouterError
from modelyard.router.process.telemetry import MOST_SERIES, AccessLog, BoundedSeries, RequestRecord, RouterMetrics
from modelyard.router.process.wake_queue import QueueFull, WakeQueue
from modelyard.routing.fleet import RoutedFleet

pytestmark = pytest.mark.integration

CONTENT = '{"choices":[{"delta":{"content":"tok"}}]}'


@pytest.fixture
async def world() -> AsyncIterator[RouterWorld]:
    async with running(max_body=1 << 20, body_seconds=10.0, idle_seconds=10.0) as found:
        found.server()
        found.route()
        await found.recording("a")
        yield found


@pytest.fixture
async def hasty() -> AsyncIterator[RouterWorld]:
    """One that waits for nobody."""
    async with running(body_seconds=2.0, idle_seconds=2.0, stall_seconds=2.0) as found:
        found.server()
        found.route()
        yield found


async def raw(world: RouterWorld, sent: bytes, *, wait: bool = True) -> tuple[int, bytes]:
    """Status and everything that comes back for these very bytes, until the router closes or the answer is there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.router.port)
    try:
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        async with asyncio.timeout(120):
            head = await reader.readuntil(b"\r\n\r\n") if wait else await reader.read()
        if not head:
            return 0, b""
        found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(found[1])) if wait and found else head
        return int(head.split()[1]), body
    finally:
        writer.close()


async def listens(world: RouterWorld) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", world.router.port)
    except ConnectionError:
        return False
    writer.close()
    return True


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = json.dumps(chat()).encode()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"model":"m"} {}', 400),
        (b'{"model":"m","x":NaN}', 400),
        (b'{"model":"m","x":"\xff\xfe"}', 400),
        (b'{"model":"m","x":"\\ud800"}', 400),
        (b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        (b'{"model":"m","x":[' + b"[]," * 120_000 + b"[]]}", 400),
        (b'{"model":"m","x":' + b"9" * 5000 + b"}", 400),
        (b'{"model":["m"]}', 400),
        (b'{"model":" "}', 400),
        (b"[1]", 400),
        (b'{"model":"m","messages":"no list","prompt":{"a":1}}', 200),
    ],
    ids=lambda one: str(one[:40]) if isinstance(one, bytes) else None,
)
async def test_bodies_of_all_kinds(world: RouterWorld, body: bytes, code: int) -> None:
    found, _, told = await world.post(body)
    assert found == code
    if code == 400:
        assert told["error"]["type"] == "invalid_request_error"


async def test_a_body_beyond_the_limit_is_refused_before_it_is_read(world: RouterWorld) -> None:
    size = 100 * 2**20
    code, told = await raw(world, HEAD + b"Content-Length: %d\r\n\r\n" % size)
    assert (code, json.loads(told)["error"]["code"]) == (413, "request_too_large")

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 2**20

    with contextlib.suppress(aiohttp.ClientError):
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{world.url}/v1/chat/completions", data=pieces()) as answer,
        ):
            assert answer.status == 413
    assert (await world.post(chat()))[0] == 200


async def test_bodies_together_have_a_bound() -> None:
    async with running(max_body=1 << 20, max_bodies=1 << 20) as world:
        world.server()
        world.route()
        engine = await world.recording("a", hang)
        big = chat(user="x" * 700_000)
        first = asyncio.create_task(world.post(big))
        await asyncio.wait_for(engine.began.wait(), 120)
        code, headers, told = await world.post(big)
        assert (code, headers["Retry-After"]) == (503, "5")
        assert "bytes of bodies" in told["error"]["message"]
        first.cancel()
        await asyncio.wait_for(engine.cancelled.wait(), 120)


async def test_a_copy_of_a_body_that_is_edited_counts_too() -> None:
    async with running(max_body=1 << 20, max_bodies=1 << 20) as world:
        world.server(model="real")
        world.route()
        engine = await world.recording("a")
        code, headers, told = await world.post(chat(user="x" * 600_000))
        assert (code, headers["Retry-After"]) == (503, "5")
        assert "bytes of bodies" in told["error"]["message"]
        assert (await world.post(chat(user="x" * 400_000)))[0] == 200
        assert [body["model"] for body in engine.bodies] == ["real"]
        await eventually(lambda: world.router.front.capacity.memory.used == 0, "nothing is held any more")


async def test_requests_together_have_a_bound() -> None:
    async with running(max_requests=1) as world:
        world.server()
        world.route()
        engine = await world.recording("a", hang)
        first = asyncio.create_task(world.post(chat()))
        await asyncio.wait_for(engine.began.wait(), 120)
        assert (await world.post(chat()))[0] == 503
        first.cancel()
        await asyncio.wait_for(engine.cancelled.wait(), 120)


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % len(BODY) + BODY,
        HEAD + b"Content-Length: %d\r\nContent-Length: 5\r\n\r\n" % len(BODY) + BODY,
        HEAD + b"Content-Length: +%d\r\n\r\n" % len(BODY) + BODY,
        HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\n{}\n0\n\n",
        HEAD + b"X-A: 1\r\n X-B: folded\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"X-\x00: 1\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"".join(b"X-%d: 1\r\n" % number for number in range(10_000)) + b"Content-Length: 2\r\n\r\n{}",
        HEAD + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
        b"POST /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/chat/completions HTTP/3.7\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
    ids=lambda one: str(one[85:130]),
)
async def test_what_could_be_read_in_two_ways_is_not_read_at_all(world: RouterWorld, sent: bytes) -> None:
    smuggled = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
    code, _ = await raw(world, sent + smuggled, wait=False)
    assert code in (0, 400)
    assert (await world.post(chat()))[0] == 200
    engine = world.engine("a")
    assert len(engine.asked) == 1, "something was smuggled through"


async def test_heads_have_a_bound_ended_or_not(world: RouterWorld) -> None:
    fields = b"".join(b"X-%d: " % number + b"a" * 16_000 + b"\r\n" for number in range(10))
    ended = fields[: 7 * len(fields) // 10]
    code, told = await raw(world, HEAD + ended + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
    assert (code, json.loads(told)["error"]["code"]) == (431, "headers_too_large")
    assert (await world.post(chat()))[0] == 200
    async with running() as patient:
        reader, writer = await asyncio.open_connection("127.0.0.1", patient.router.port)
        writer.write(HEAD + fields)
        with contextlib.suppress(ConnectionError):
            assert not await asyncio.wait_for(reader.read(), 120), "it goes on reading"
        writer.close()


async def test_an_answer_in_one_piece_that_stalls_is_let_go(hasty: RouterWorld) -> None:
    async def half(request: web.Request, _: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"{")
        return await hang(request)

    engine = await hasty.recording("half", half)
    code, _, told = await asyncio.wait_for(hasty.post(chat()), 120)
    assert (code, told["error"]["type"]) == (504, "timeout_error")
    assert "sent nothing for 2 s" in told["error"]["message"]
    await asyncio.wait_for(engine.cancelled.wait(), 120)


async def test_engines_of_one_namespace_that_hang_leave_room_for_all_others() -> None:
    async with running(max_requests=8, max_waiting=8, wait_seconds=60.0) as world:
        hung = await world.neighbour("hung", hang)
        world.server()
        world.route()
        await world.recording("a")
        async with asyncio.TaskGroup() as group:
            waiting = []
            for number in range(6):  # one by one: a client may have four in the beginning of a request at a time
                waiting.append(group.create_task(world.post(chat("hung"))))
                await eventually(lambda number=number: len(hung.asked) == number + 1, f"request {number + 1}")
            code, headers, told = await world.post(chat("hung"))
            assert (code, headers["Retry-After"]) == (503, "5")
            assert "6 requests of one namespace" in told["error"]["message"]
            assert (await world.post(chat()))[0] == 200
            for one in waiting:
                one.cancel()


async def test_no_request_writes_fields_or_lines_of_its_own_into_the_log() -> None:
    async with running(log="text") as world:
        world.server()
        world.route()
        await world.recording("a")
        forged = 'm" 200 user=admin model_route=shop/other\n[2026] "GET / HTTP/1.1" 200'
        assert (await world.post(chat(forged)))[0] == 404
        assert (await world.post(chat()))[0] == 200
        await eventually(lambda: len(world.lines) >= 2, "both lines")
    bad, good = world.lines
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", bad)
    assert not re.search("user=|model_route=|GET", outside), bad
    assert " model_name=m model_route=shop/route model_server=shop/server selected_pod=a " in good


async def test_a_subject_that_is_no_text_is_logged_nevertheless() -> None:
    lines: list[str] = []
    access_log = AccessLog("json", RouterMetrics(RoutedFleet()), lines.append)
    access_log.add(RequestRecord("POST", "/", 0.0, user="\ud800" + "x" * 10_000), 1.0, "HTTP/1.1")
    writing = asyncio.create_task(access_log.run())
    await asyncio.sleep(0)
    writing.cancel()
    await writing
    assert len(lines) == 1
    assert len(lines[0]) < 1000


async def test_what_engines_answer_makes_few_series() -> None:
    codes = iter(range(200, 300))

    async def anything(_: web.Request, __: bytes) -> web.Response:
        return web.Response(status=next(codes), text="said")

    async with running() as world:
        world.server()
        world.route()
        await world.recording("a", anything)
        found = {(await world.post(chat()))[0] for _ in range(60)}
        assert len(found) == 60
        page = world.router.metrics.page().decode()
        assert set(re.findall(r'_requests_total\{.*status_code="(\w+)"', page)) == {"200", "2xx"}
        assert 'kthena_router_pods{model_server="shop/server"} 1.0' in page
        world.unserve("server")
        assert 'kthena_router_pods{model_server="shop/server"}' not in world.router.metrics.page().decode()


def test_the_routes_of_a_namespace_have_so_many_series_and_take_none_of_others() -> None:
    registry = CollectorRegistry()
    series = BoundedSeries(Counter("asked", "Requests", ["route"], registry=registry))
    series("shop", "shop/route").inc(3)
    for number in range(MOST_SERIES + 10):
        series("hostile", f"hostile/{number}").inc()
    told = {
        one.labels["route"]: one.value for one in next(iter(registry.collect())).samples if one.name == "asked_total"
    }
    assert (len(told), told["shop/route"]) == (MOST_SERIES + 1, 3.0)
    assert "hostile/0" not in told
    series("hostile", "hostile/0").inc()
    assert registry.get_sample_value("asked_total", {"route": "hostile/0"}) == 1.0


async def test_slow_clients_are_let_go(hasty: RouterWorld) -> None:
    await hasty.recording("a")
    assert (await raw(hasty, b"POST /v1/chat/comp", wait=False))[0] == 0
    code, told = await raw(hasty, HEAD + b"Content-Length: 100\r\n\r\n{")
    assert (code, json.loads(told)["error"]["code"]) == (408, "request_timeout")
    assert (await hasty.post(chat()))[0] == 200


async def opened(world: RouterWorld, sent: bytes = b"", source: str = "127.0.0.1") -> tuple[Any, asyncio.StreamWriter]:
    """A connection from this address, on which these bytes were sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.router.port, local_addr=(source, 0))
    writer.write(sent)
    return reader, writer


async def answer_on(reader: Any) -> int:
    """The status of the next answer; 0 where the connection is closed instead."""
    try:
        async with asyncio.timeout(120):
            head = await reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            await reader.readexactly(int(found[1]) if found else 0)
    except (ConnectionError, asyncio.IncompleteReadError):
        return 0
    return int(head.split()[1])


WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


async def test_of_one_client_so_many_connections_are_without_a_request() -> None:
    async with running(max_idle=2) as world, contextlib.AsyncExitStack() as stack:
        world.server()
        world.route()
        await world.recording("a")

        async def connected(*given: Any) -> tuple[Any, asyncio.StreamWriter]:
            reader, writer = await opened(world, *given)
            stack.callback(writer.close)
            return reader, writer

        silent, _ = await connected()
        half, asks = await connected(HEAD)
        assert await answer_on((await connected())[0]) == 0
        assert await answer_on((await connected(WHOLE, "127.0.0.2"))[0]) == 200
        asks.write(WHOLE.removeprefix(HEAD))
        assert await answer_on(half) == 200
        asks.write(WHOLE)
        assert await answer_on(half) == 200, "it is kept alive"
        page = world.router.metrics.page().decode()
        assert "kthena_router_connections_closed_total 1.0" in page
        asks.close()
        async with asyncio.timeout(120):
            while await answer_on((await connected(WHOLE))[0]) != 200:  # once it was seen to be gone
                await asyncio.sleep(0.02)
        assert not silent.at_eof()


async def test_a_connection_too_many_is_closed_behind_its_answer() -> None:
    async with running(max_idle=1) as world:
        world.server()
        world.route()
        gate = asyncio.Event()

        async def wait(_: web.Request) -> None:
            await gate.wait()

        engine = await world.recording("a", streaming(CONTENT, after=wait))
        first, asks = await opened(world, WHOLE)
        await asyncio.wait_for(engine.began.wait(), 120)
        _, silent = await opened(world)
        gate.set()
        async with asyncio.timeout(120):
            assert (await first.read()).endswith(b"0\r\n\r\n"), "the whole answer, and then the end"
        for one in (asks, silent):
            one.close()


@pytest.mark.parametrize(
    ("bounds", "sent"),
    [
        ({"max_requests": 4}, HEAD + b"Content-Length: 100\r\n\r\n{"),
        ({"max_bodies": 1 << 20}, HEAD + b"Content-Length: 400000\r\n\r\n" + b" " * 250_000),
    ],
    ids=["places", "bytes"],
)
async def test_half_bodies_of_one_client_leave_room_for_others(bounds: dict[str, int], sent: bytes) -> None:
    async with running(**bounds) as world, contextlib.AsyncExitStack() as stack:
        world.server()
        world.route()
        await world.recording("a")
        memory = world.router.front.capacity.memory
        for _ in range(2):
            stack.callback((await opened(world, sent))[1].close)
        body = len(sent.partition(b"\r\n\r\n")[2])
        await eventually(lambda: memory.used > 2 * body, "all of it is held")
        code, headers, told = await world.post(chat(user="x" * 100_000))
        assert (code, headers["Retry-After"], told["error"]["type"]) == (429, "5", "rate_limit_error")
        assert "of one client" in told["error"]["message"]
        reader, writer = await opened(world, WHOLE, "127.0.0.2")
        stack.callback(writer.close)
        assert await answer_on(reader) == 200


async def test_a_client_that_asks_before_it_sends_is_told_to_go_on(world: RouterWorld) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.router.port)
    writer.write(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
    async with asyncio.timeout(120):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()
    code, _ = await raw(world, HEAD + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
    assert code == 413


async def test_compressed_bodies_are_refused(world: RouterWorld) -> None:
    assert (await world.post(b"\x1f\x8b", **{"Content-Encoding": "gzip"}))[0] == 415


async def test_a_client_that_takes_nothing_is_let_go(hasty: RouterWorld) -> None:
    event = json.dumps({"choices": [{"delta": {"content": "x" * 60_000}}]})
    engine = RecordingEngine(streaming(*[event] * 2000))
    await engine.start(address := an_address(), hasty.engine_port)
    hasty.pod("b", address)
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", hasty.router.port)
        body = json.dumps(chat(stream=True)).encode()
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await asyncio.wait_for(engine.cancelled.wait(), 120)
        writer.close()
    finally:
        await engine.stop()


async def test_an_engine_that_stalls_is_let_go(hasty: RouterWorld) -> None:
    engine = await hasty.recording("b", streaming(CONTENT, after=hang))
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{hasty.url}/v1/chat/completions", json=chat(stream=True)) as answer,
    ):
        seen = await everything_of(answer)
    assert b"sent nothing for 2 s" in seen
    await asyncio.wait_for(engine.cancelled.wait(), 120)


async def test_requests_for_a_server_at_zero_wait_for_its_first_pod() -> None:
    async with running(wait_seconds=60.0, max_waiting=8) as world:
        world.server(model="real/name")
        world.route()
        asked = [asyncio.create_task(world.post(chat())) for _ in range(2)]
        labels = 'model_name="m",model_server="shop/server",target_model_name="real/name"'
        queue = f"inference_extension_flow_control_queue_size{{{labels}}} "

        async def page() -> str:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{world.router.metrics_port}/metrics") as answer,
            ):
                return await answer.text()

        while queue + "2.0" not in await page():
            await asyncio.sleep(0.02)
        code, headers, told = await world.post(chat())  # a server may have a quarter of the places
        assert (code, headers["Retry-After"]) == (503, "5")
        assert "wait for the first pod" in told["error"]["message"]
        await world.recording("a")
        assert [(await one)[0] for one in asked] == [200, 200]
        assert queue + "0.0" in await page()


async def test_no_namespace_has_more_than_half_of_the_places_to_wait() -> None:
    wake_queue = WakeQueue(8, lambda *_: None)
    waiting = [
        asyncio.create_task(wake_queue.wait(Key("hung", server), "m", "m", 60.0)) for server in "ab" for _ in range(2)
    ]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await wake_queue.wait(Key("hung", "c"), "m", "m", 60.0)
    waiting.append(asyncio.create_task(wake_queue.wait(Key("shop", "server"), "m", "m", 60.0)))
    await asyncio.sleep(0)
    assert wake_queue.waiting == 5
    wake_queue.wake(wake_queue.servers)
    assert all(await asyncio.gather(*waiting))


async def test_waiting_ends_with_503_and_with_404_where_the_server_goes() -> None:
    async with running(wait_seconds=0.3) as world:
        world.server()
        world.route()
        code, headers, told = await world.post(chat())
        assert (code, headers["Retry-After"]) == (503, "5")
        assert "no available pods" in told["error"]["message"]
    async with running(wait_seconds=60.0) as world:
        world.server()
        world.route()
        asked = asyncio.create_task(world.post(chat()))
        while not world.router.wake_queue.waiting:
            await asyncio.sleep(0.02)
        world.unserve("server")
        assert (await asked)[0] == 404


async def test_sigterm_loses_no_request() -> None:
    go_on = asyncio.Event()

    async def wait(_: Any) -> None:
        await go_on.wait()

    async with running(leave_seconds=5.0) as world:
        world.server()
        world.route()
        engine = await world.recording("a", streaming(CONTENT, after=wait))
        first = asyncio.create_task(world.post(chat(stream=True)))
        await asyncio.wait_for(engine.began.wait(), 120)
        world.router.stop()
        await eventually(lambda: world.router.front.leaving, "leaving")
        async with aiohttp.ClientSession() as session, session.get(f"{world.url}/readyz") as answer:
            assert answer.status == 503
        late = asyncio.create_task(world.post(chat(stream=True)))  # sent before everybody knew
        while len(engine.asked) < 2:
            await asyncio.sleep(0.02)
        while await listens(world):
            await asyncio.sleep(0.05)
        go_on.set()
        assert [(await one)[2] for one in (first, late)] == [f"data: {CONTENT}\n\n".encode()] * 2
        assert (await late)[1]["Connection"] == "close"


async def test_an_engine_that_switches_protocols_unasked_has_not_answered(world: RouterWorld) -> None:
    async def switch(request: Any, _: bytes) -> Any:
        switched = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
        request.transport.write(switched + b"HTTP/1.1 ")
        await hang(request)

    world.gone("a")
    await world.recording("switches", switch)
    code, _, told = await world.post(chat())
    assert (code, told["error"]["type"]) == (502, "api_error")


async def test_a_connection_to_a_pod_is_kept_unless_something_is_left_on_it() -> None:
    heads, over = list[list[bytes]](), asyncio.Event()
    told = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received: list[bytes] = []
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                received.append(await reader.readuntil(b"\r\n\r\n"))
                if received[-1].startswith(b"GET "):
                    break  # a poll of the metrics, which has connections of its own
                if len(received) == 1:
                    heads.append(received)
                size = int(received[-1].lower().partition(b"content-length:")[2].split()[0])
                if size < 1 << 20:
                    await reader.readexactly(size)
                writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n" + told)
                if size >= 1 << 20:  # it is answered before it was read
                    await over.wait()
        writer.close()

    async with running() as world, await asyncio.start_server(serve, "127.0.0.1", world.engine_port):
        world.server()
        world.route()
        world.pod("a", "127.0.0.1")
        name = b"X-Name: caf\xe9\r\n"
        for _ in range(2):
            assert await raw(world, HEAD + name + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY) == (200, b"{}")
        assert [len(one) for one in heads] == [2]
        assert all(name in one for one in heads[0])
        large = await world.post(chat(prompt="x" * (24 << 20)))
        assert (large[0], large[2]) == (200, {})
        assert (await world.post(chat()))[0] == 200
        assert [len(one) for one in heads] == [3, 1]
        over.set()


async def test_a_pod_s_list_of_models_is_read_whole_and_nowhere_else(world: RouterWorld) -> None:
    reached, names = [], [f"adapter-{number}" for number in range(900)]

    async def internal(request: web.Request) -> web.Response:
        reached.append(request.path)
        return web.json_response({"data": [{"id": "m"}]})

    async def elsewhere(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": f"http://{addresses[0]}:{world.engine_port}/metadata"})

    async def in_pieces(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(text := json.dumps({"data": [{"id": one} for one in names]}).encode()), 4000):
            await response.write(text[start : start + 4000])
            await asyncio.sleep(0)
        return response

    async def many_values(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}, *[[]] * 20_000]})

    addresses = [an_address() for _ in range(4)]
    async with contextlib.AsyncExitStack() as stack:
        for address, answer in zip(addresses, (internal, elsewhere, in_pieces, many_values), strict=True):
            app = web.Application()
            app.router.add_get("/{path:.*}", answer)
            runner = web.AppRunner(app)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, address, world.engine_port).start()
        world.gone("a")
        world.pod("elsewhere", addresses[1])
        world.pod("pieces", addresses[2])
        world.pod("many", addresses[3])
        fleet = world.router.decider.fleet
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await EnginePoller(fleet, session, 1.0).once()
        found = {pod.key.name: pod.models for one in fleet.backends.values() for pod in one.pods}
        assert found == {"elsewhere": frozenset(), "pieces": frozenset(names), "many": frozenset()}
        assert not reached, "the router was sent to another address"


async def test_an_engine_that_is_killed_costs_its_own_streams_only() -> None:
    options = ("--alpha", "20", "--mean-output-tokens", "40")
    async with running() as world, contextlib.AsyncExitStack() as stack:
        world.server()
        world.route()
        addresses = [an_address() for _ in range(2)]
        engines = [stack.enter_context(engine_process(one, world.engine_port, *options)) for one in addresses]
        for number, address in enumerate(addresses):
            world.pod(f"pod-{number}", address)
        broken: list[int] = []
        wrong: list[Any] = []

        async def client() -> None:
            async with aiohttp.ClientSession() as session:
                for _ in range(6):
                    body = chat(stream=True, max_tokens=30, ignore_eos=True)
                    try:
                        async with session.post(f"{world.url}/v1/chat/completions", json=body) as answer:
                            text = (await answer.read()).decode()
                        if answer.status != 200 or text.count("tok ") != 30:
                            wrong.append((answer.status, text[-200:]))
                    except aiohttp.ClientPayloadError:
                        broken.append(1)

        clients = [asyncio.create_task(client()) for _ in range(10)]
        fleet = world.router.decider.fleet
        victim = next(iter(fleet.backends.values())).pods[0]
        while victim.outstanding < 3:
            await asyncio.sleep(0.005)
        engines[0].kill()
        on_their_way = victim.outstanding
        await asyncio.gather(*clients)
        assert not wrong
        assert len(broken) <= on_their_way


async def test_prefill_and_decode_find_each_other() -> None:
    groups = {"groupKey": "g", "prefillLabels": {"role": "p"}, "decodeLabels": {"role": "d"}}
    split = {"workloadSelector": {"matchLabels": {"app": "server"}, "pdGroup": groups}}
    params = {"remote_block_ids": [1, 2], "remote_host": "h"}
    async with running() as world:
        world.route()
        prefill = await world.recording("p", status(200, json.dumps({"kv_transfer_params": params})), g="0", role="p")
        decode = await world.recording("d", g="0", role="d")
        await world.recording("other", g="1", role="d")  # no prefill pod in its group
        asked = chat(stream=True, max_tokens=50, min_tokens=3)
        seen = {}
        for connector, engine in (("http", "vLLM"), ("nixl", "vLLM"), (None, "SGLang")):
            more = {"kvConnector": {"type": connector}} if connector else {}
            world.server(**split, inferenceEngine=engine, model="real", **more)
            assert (await world.post(asked))[0] == 200
            seen[connector] = prefill.bodies[-1], decode.bodies[-1]
        for first, second in seen.values():
            assert (first["max_tokens"], first["min_tokens"], first["model"]) == (1, 1, "real")
            assert "stream" not in first
            assert (second["max_tokens"], second["min_tokens"], second["model"]) == (50, 3, "real")
            assert second["stream_options"] == {"include_usage": True}
        assert seen["nixl"][0]["kv_transfer_params"]["do_remote_decode"] is True
        assert seen["nixl"][1]["kv_transfer_params"] == params
        first, second = seen[None]
        assert first["bootstrap_room"] == second["bootstrap_room"]
        assert second["bootstrap_host"].startswith("127.77.")

        world.gone("p")
        world.server(**split)
        await world.recording("dies", abort, g="0", role="p")
        assert (await world.post(asked))[0] == 200, "by the decode pod alone"
        assert decode.bodies[-1]["max_tokens"] == 50
        second = await world.recording("p2", g="0", role="p")
        for _ in range(4):
            assert (await world.post(asked))[0] == 200
        assert len(second.asked) == 4, "the one that died is tried last"
        world.gone("dies", "p2", "d")
        await world.recording("picky", status(400, '{"message":"too long"}'), g="0", role="p")
        waiting = await world.recording("waits", hang, g="0", role="d")
        for engine in ("SGLang", "vLLM"):
            world.server(**split, inferenceEngine=engine)
            code, _, told = await world.post(asked)
            assert (code, told) == (400, {"message": "too long"})
        assert len(waiting.asked) <= 1
        world.gone("picky", "waits")
        assert (await world.post(asked))[0] == 200, "without prefill pods the decode pods do it all"


async def test_tls_and_what_cannot_be_used_for_it(tmp_path: Path) -> None:
    async with running() as plain:
        with pytest.raises(RouterError, match="cannot listen on"):
            async with running(port=plain.router.port):
                pass
    with pytest.raises(RouterError, match="give both or neither"):
        async with running(tls_cert="a"):
            pass
    with pytest.raises(RouterError, match="No such file"):
        async with running(tls_cert=str(tmp_path / "a"), tls_key=str(tmp_path / "b")):
            pass
    found = vouched(tmp_path)
    async with running(tls_cert=str(found.certificate), tls_key=str(found.key)) as world:
        world.server()
        world.route()
        await world.recording("a")
        trust = ssl.create_default_context(cafile=str(found.authority))
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"https://localhost:{world.router.port}/v1/completions", json=chat(), ssl=trust) as answer,
        ):
            assert answer.status == 200
