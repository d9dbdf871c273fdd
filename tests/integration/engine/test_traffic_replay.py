"""The replayer against real engine processes, and against servers that behave badly."""

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager

import numpy as np
import pytest
from aiohttp import web

from modelyard.traffic.clients.replay import Replay, ReplaySettings, columns
from modelyard.traffic.router import Endpoint
from modelyard.traffic.traces.latency import SLO, Ending, Latency
from modelyard.traffic.traces.trace import Trace

pytestmark = pytest.mark.integration

COMPRESSION = 20.0


def trace_of(rows, duration):
    """A trace of (at, prompt, output)."""
    at, prompt, output = (np.array(column) for column in zip(*rows, strict=True))
    return Trace(at, prompt, output, duration)


def steady(count, rate, prompt=50, output=100):
    """``count`` equal requests at ``rate`` per virtual second."""
    return trace_of([(i / rate, prompt, output) for i in range(count)], count / rate)


def settings(**changes):
    return ReplaySettings("m", **({"time_compression": COMPRESSION, "refresh_interval": 0.05} | changes))


def source_of(*endpoints):
    async def source():
        return endpoints

    return source


async def until(condition):
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never")


def check_complete(replay):
    assert replay.sent == len(replay.results)
    assert sorted(result.index for result in replay.results) == list(range(len(replay.trace)))


async def test_traffic_is_spread_and_measured(start_engine):
    engines = [start_engine("--time-compression", str(COMPRESSION)) for _ in range(2)]
    endpoints = [Endpoint(f"pod-{i}", engine.url, f"variant-{i}") for i, engine in enumerate(engines)]
    seen = []
    replay = Replay(steady(200, 40), source_of(*endpoints), settings(), on_result=seen.append)
    results = await replay.run()
    check_complete(replay)
    assert seen == results
    assert Counter(result.ending for result in results) == {Ending.OK: 200}
    assert all((r.prompt_tokens, r.output_tokens, r.attempts) == (50, 100, 1) for r in results)
    everything = Latency.of(columns(results), SLO())
    assert (everything.requests, everything.answered) == (200, 200)
    assert 0 < everything.ttft.p50 <= everything.ttft.p99
    served = Counter(result.variant for result in results)
    assert sorted(served) == ["variant-0", "variant-1"]
    assert min(served.values()) > 60
    for index, engine in enumerate(engines):
        scrape = await engine.metrics()
        assert scrape("vllm:request_success_total", finished_reason="length") == served[f"variant-{index}"]
        # What the client measures contains what the engine measured.
        mine = [result for result in results if result.variant == f"variant-{index}"]
        assert sum(r.ttft for r in mine) >= scrape("vllm:time_to_first_token_seconds_sum")
        assert sum(r.e2e for r in mine) >= scrape("vllm:e2e_request_latency_seconds_sum")
        assert all(0 < result.ttft <= result.e2e and result.itl >= 0 for result in mine)


@pytest.mark.timing_sensitive("the client must see the first answers before the engine has sent the last")
async def test_no_request_is_lost_when_an_engine_is_killed(start_engine):
    engines = [start_engine("--time-compression", str(COMPRESSION)) for _ in range(2)]
    endpoints = [Endpoint(f"pod-{i}", engine.url) for i, engine in enumerate(engines)]

    def kill_midway(_):
        if len(replay.results) == 20:
            engines[0].process.kill()

    # A burst that has only begun to end when the engine dies, and more when it is dead.
    burst = [(i / 200, 50, 50 + 20 * i) for i in range(200)]
    later = [(60 + i / 50, 50, 50) for i in range(200)]
    trace = trace_of([*burst, *later], 64.0)
    # The source goes on naming the dead one, as a cluster does until it notices.
    replay = Replay(trace, source_of(*endpoints), settings(), on_result=kill_midway)
    results = await replay.run()
    check_complete(replay)
    endings = Counter(result.ending for result in results)
    assert set(endings) <= {Ending.OK, Ending.BROKEN}
    assert endings[Ending.BROKEN] > 0, "what was in progress there is gone, and counted"
    assert all(result.pod == "pod-0" and result.error for result in results if result.ending is Ending.BROKEN)
    retried = [result for result in results if result.attempts == 2]
    assert retried, "refused connections were tried again"
    assert all(result.pod == "pod-1" for result in retried)
    scrape = await engines[1].metrics()
    served = sum(result.ending is Ending.OK and result.pod == "pod-1" for result in results)
    assert scrape("vllm:request_success_total", finished_reason="length") == served


async def test_no_request_is_lost_when_several_engines_end_together(start_engine):
    engines = [start_engine("--time-compression", str(COMPRESSION)) for _ in range(4)]
    endpoints = [Endpoint(f"pod-{i}", engine.url) for i, engine in enumerate(engines)]

    def end_midway(_):
        if len(replay.results) == 100:
            for engine in engines[:3]:
                engine.process.terminate()

    # The source goes on naming those that end, as a gateway that hears of it late.
    replay = Replay(steady(600, 40), source_of(*endpoints), settings(), on_result=end_midway)
    results = await replay.run()
    check_complete(replay)
    assert {result.ending for result in results} == {Ending.OK}
    # A request that comes to the one that is left after all the others.
    last = Replay(steady(1, 1), source_of(endpoints[3], *endpoints[:3]), settings())
    assert [(result.ending, result.attempts) for result in await last.run()] == [(Ending.OK, 4)]


async def test_requests_wait_for_the_first_endpoint(start_engine):
    engine = start_engine("--time-compression", str(COMPRESSION))
    endpoints = []

    async def source():
        return endpoints

    replay = Replay(steady(30, 100), source, settings())
    running = asyncio.create_task(replay.run())
    await until(lambda: replay.endpoints.waiting == 30)
    endpoints.append(Endpoint("pod-0", engine.url))
    results = await running
    check_complete(replay)
    assert all(r.ending is Ending.OK and 0 < r.queued < r.ttft for r in results)


async def test_a_client_that_does_not_keep_to_the_trace_says_so(start_engine):
    engine = start_engine("--time-compression", str(COMPRESSION))

    def stall(_):
        if len(replay.results) == 1:
            time.sleep(0.5)  # As a starved machine does; 10 virtual seconds.

    replay = Replay(steady(100, 10), source_of(Endpoint("pod-0", engine.url)), settings(), on_result=stall)
    results = await replay.run()
    check_complete(replay)
    assert max(result.late for result in results) > 5
    assert all(0 <= result.late <= result.ttft for result in results), (
        "what the client adds is part of what it measures"
    )


async def test_the_wait_for_an_endpoint_is_bounded():
    replay = Replay(steady(10, 100), source_of(), settings(endpoint_wait=1))
    results = await replay.run()
    check_complete(replay)
    assert {result.ending for result in results} == {Ending.NO_ENDPOINT}
    assert "no ready endpoint within 1 virtual s" in results[0].error


async def test_a_loading_engine_is_left_for_another(start_engine):
    loading = start_engine("--time-compression", str(COMPRESSION), "--startup-delay", "100000")
    ready = start_engine("--time-compression", str(COMPRESSION))
    endpoints = Endpoint("loading", loading.url), Endpoint("ready", ready.url)
    replay = Replay(steady(30, 100), source_of(*endpoints), settings())
    results = await replay.run()
    check_complete(replay)
    assert {(result.ending, result.pod) for result in results} == {(Ending.OK, "ready")}
    assert any(result.attempts == 2 for result in results)


async def test_a_refused_request_fails_after_its_second_try():
    # Port 9 (discard) is served by nobody.
    dead = Endpoint("dead", "http://127.0.0.1:9")
    replay = Replay(steady(3, 100), source_of(dead), settings(ejection_time=0.05))
    results = await replay.run()
    check_complete(replay)
    assert {(r.ending, r.attempts) for r in results} == {(Ending.UNAVAILABLE, 2)}
    assert all("127.0.0.1" in result.error for result in results)


async def test_a_stopped_replay_accounts_for_what_it_sent(start_engine):
    engine = start_engine("--max-num-seqs", "2")
    replay = Replay(steady(1000, 1, output=5000), source_of(Endpoint("pod-0", engine.url)), settings())
    running = asyncio.create_task(replay.run())
    await until(lambda: replay.sent - len(replay.results) >= 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(replay.results) == replay.sent < 1000
    assert {result.ending for result in replay.results} == {Ending.UNFINISHED}
    await engine.eventually(
        lambda m: m("vllm:num_requests_running") + m("vllm:num_requests_waiting") == 0, "the engine was told"
    )


@asynccontextmanager
async def server(handler):
    """A server that answers chat requests with ``handler``."""
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", handler)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield Endpoint("pod", f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


async def replay_one(handler, **changes):
    async with server(handler) as endpoint:
        (result,) = await Replay(steady(1, 1), source_of(endpoint), settings(**changes)).run()
    return result


@pytest.mark.parametrize(
    ("status", "ending"),
    [(500, Ending.REJECTED), (404, Ending.REJECTED), (429, Ending.REJECTED)],
)
async def test_error_statuses(status, ending):
    async def answer(_):
        return web.Response(status=status, text="the reason")

    result = await replay_one(answer)
    assert (result.ending, result.status, result.attempts) == (ending, status, 1)
    assert result.error == f"HTTP {status}: the reason"


CONTENT = b'data: {"choices":[{"index":0,"delta":{"content":"tok "}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":9}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("parts", "ending"),
    [
        ([CONTENT, USAGE, DONE], Ending.OK),
        # Cut anywhere; a role chunk first, whose content is empty.
        (
            [
                b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
                CONTENT[:20],
                CONTENT[20:] + USAGE[:50],
                USAGE[50:],
                DONE[:5],
                DONE[5:],
            ],
            Ending.OK,
        ),
        ([CONTENT, DONE], Ending.BROKEN),
        ([CONTENT, USAGE], Ending.BROKEN),
        ([USAGE, DONE], Ending.BROKEN),
        ([], Ending.BROKEN),
    ],
)
async def test_streams_are_complete_or_broken(parts, ending):
    async def answer(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            await asyncio.sleep(0.01)
        await response.write_eof()
        return response

    result = await replay_one(answer)
    assert result.ending is ending, result.error
    if ending is Ending.OK:
        assert (result.prompt_tokens, result.output_tokens) == (5, 9)


async def test_an_answer_that_never_ends_times_out():
    async def answer(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(CONTENT)
        await asyncio.sleep(600)

    result = await replay_one(answer, request_timeout=10)
    assert result.ending is Ending.TIMEOUT
    assert "10 virtual s" in result.error
