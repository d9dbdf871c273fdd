"""The queries of load and performance against a real Prometheus that watched engines of several kinds at work."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest
from fleet_fixture import Gauges, MetricSource, eventually, steadily
from made_up_engine import MADE_UP
from prometheus_server import PrometheusServer, free_port

from modelyard.metrics.prometheus.client import Prometheus, PrometheusError, PrometheusSettings
from modelyard.metrics.prometheus.loads import LoadHistory
from modelyard.metrics.prometheus.served import read_served
from modelyard.metrics.prometheus.signals import read_signals
from modelyard.metrics.vocabulary.queries import offered_load
from modelyard.metrics.vocabulary.values import PodPerformance, Signals
from modelyard.metrics.vocabulary.vocabulary import ENGINES

pytestmark = pytest.mark.integration

WINDOW = 10.0
NAN = math.nan


def histogram(name: str, per_second: float, mean: float) -> dict[str, Any]:
    return {f"{name}_sum": steadily(per_second * mean), f"{name}_count": steadily(per_second)}


def engines() -> dict[tuple[str, str], Gauges]:
    """One namespace per case; the model is always ``m``."""
    cache = 'vllm:cache_config_info{{namespace="{}",pod="p",engine="{}",num_gpu_blocks="{}",block_size="16"}} 1'
    vllm = {
        **histogram("vllm:request_prompt_tokens", 5, 512),
        **histogram("vllm:request_generation_tokens", 5, 128),
        **histogram("vllm:time_to_first_token_seconds", 5, 0.25),
        **histogram("vllm:inter_token_latency_seconds", 600, 0.02),
        **histogram("vllm:time_per_output_token_seconds", 600, 0.9),
        "vllm:prefix_cache_hits_total": steadily(30),
        "vllm:prefix_cache_queries_total": steadily(120),
    }
    sglang = {
        "sglang:token_usage": 0.4,
        "sglang:num_requests_total": steadily(6),
        "sglang:num_aborted_requests_total": steadily(1.5),
        "sglang:num_running_reqs": 3.0,
        "sglang:num_queue_reqs": steadily(2),
        "sglang:prompt_tokens_total": steadily(600),
        "sglang:generation_tokens_total": steadily(300),
        "sglang:cached_tokens_total": steadily(150),
        "sglang:max_total_num_tokens": 250000.0,
        **histogram("sglang:time_to_first_token_seconds", 6, 0.1),
        **histogram("sglang:inter_token_latency_seconds", 300, 0.01),
    }
    older = {
        "vllm:gpu_cache_usage_perc": 0.2,
        **histogram("vllm:request_prompt_tokens", 0, 1),
        **histogram("vllm:time_per_output_token_seconds", 100, 0.03),
    }
    trtllm = {
        "trtllm_kv_cache_utilization": 0.3,
        "trtllm_num_requests_running": 7.0,
        "trtllm_num_requests_waiting": 2.0,
        "trtllm_request_success_total": steadily(2),
        "trtllm_prompt_tokens_total": steadily(400),
        "trtllm_generation_tokens_total": steadily(100),
        "trtllm_prompt_cached_tokens_total": steadily(100),
        "trtllm_kv_cache_max_blocks": 500.0,
        "trtllm_kv_cache_tokens_per_block": 32.0,
        **histogram("trtllm_time_to_first_token_seconds", 2, 0.3),
        **histogram("trtllm_time_per_output_token_seconds", 2, 0.04),
    }
    tgi = {
        "tgi_batch_current_size": 5.0,
        "tgi_queue_size": 1.0,
        "tgi_request_success": steadily(3),
        **histogram("tgi_request_input_length", 3, 300),
        **histogram("tgi_request_generated_tokens", 3, 60),
        **histogram("tgi_request_mean_time_per_token_duration", 3, 0.05),
    }
    made_up = {
        "made:cache_percent": 45.0,
        "made:busy": 4.0,
        "made:pending": 3.0,
        "made:answers_total": steadily(2),
        "made:read_tokens_total": steadily(200),
        "made:written_tokens_total": steadily(40),
        "made:known_tokens_total": steadily(20),
        **histogram("made:first_ms", 2, 150),
        **histogram("made:next_ms", 40, 15),
    }
    nothing: dict[str, Any] = {"kv": None, "waiting": None, "running": None, "finished": None}
    return {
        ("tensorrt-llm", "p"): Gauges("m", **nothing, more=trtllm),
        ("tgi", "p"): Gauges("m", **nothing, more=tgi),
        ("made-up", "p"): Gauges(
            "m",
            **nothing,
            more=made_up,
            raw=['made:cache{namespace="made-up",pod="p",pages="100",page="16",shard="0"} 1'],
            label="model",
        ),
        ("plain", "p"): Gauges("m", finished=steadily(4), waiting=2, running=8),
        ("saturated", "p"): Gauges(
            "m",
            finished=steadily(5),
            waiting=steadily(3),
            running=16,
            more=vllm,
            raw=[cache.format("saturated", 0, 1000), cache.format("saturated", 1, 1000)],
        ),
        ("fresh", "p"): Gauges("m", finished=None, waiting=None, running=steadily(2)),
        ("draining", "p"): Gauges("m", finished=steadily(1), waiting=steadily(-10, 1000), running=16),
        ("odd", "p"): Gauges("m", finished=steadily(4), waiting=NAN, running=NAN),
        ("odd", "q"): Gauges("m", finished=steadily(1), waiting=0, running=math.inf),
        ("sglang", "p"): Gauges("m", kv=None, waiting=None, running=None, finished=None, more=sglang),
        ("older", "p"): Gauges("m", kv=None, finished=0, more=older, raw=[cache.format("older", 0, "None")]),
        ("mute", "p"): Gauges("m", waiting=None, running=None, finished=None),
        **ranks(),
    }


def waiting_at(pod: str, prefix: str, size: float, octets: float) -> list[str | Callable[[float], str]]:
    """The queue of an endpoint picker, in two priorities."""
    of = f'namespace="gateway",pod="{pod}",inference_pool="pool",model_name="m",target_model_name=""'
    return [
        f'{prefix}_flow_control_queue_{unit}{{{of},priority="{priority}"}} {value / 2}'
        for unit, value in (("size", size), ("bytes", octets))
        for priority in (0, 1)
    ]


def ranks() -> dict[tuple[str, str], Gauges]:
    """Pods whose engines run on several ranks: data-parallel ones, and others that repeat their values."""
    nothing: dict[str, Any] = {"kv": None, "waiting": None, "running": None, "finished": None}

    def sglang(space: str, *series: tuple[str, float, float, float, float], pod: str = "p") -> Gauges:
        """Series of ranks: labels, running and waiting requests, use and size of the cache."""
        raw = []
        for labels, running, waiting, use, tokens in series:
            of = f'namespace="{space}",pod="{pod}",model_name="m",{labels}'
            raw += [
                f"sglang:num_running_reqs{{{of}}} {running}",
                f"sglang:num_queue_reqs{{{of}}} {waiting}",
                f"sglang:token_usage{{{of}}} {use}",
                f"sglang:max_total_num_tokens{{{of}}} {tokens}",
            ]
        return Gauges("m", **nothing, raw=raw)

    def vllm(space: str, *engines: tuple[str, float, float, float, str]) -> Gauges:
        raw = []
        for engine, running, waiting, use, size in engines:
            of = f'namespace="{space}",pod="p",{engine}'
            raw += [
                f'vllm:num_requests_running{{{of},model_name="m"}} {running}',
                f'vllm:num_requests_waiting{{{of},model_name="m"}} {waiting}',
                f'vllm:kv_cache_usage_perc{{{of},model_name="m"}} {use}',
                f"vllm:cache_config_info{{{of},{size}}} 1",
            ]
        return Gauges("m", **nothing, raw=raw)

    def cached(source: str, per_second: float) -> Callable[[float], str]:
        value = steadily(per_second)
        of = f'namespace="hits",pod="p",model_name="m",cache_source="{source}"'
        return lambda now: f"sglang:cached_tokens_total{{{of}}} {value(now)}"

    shared = {"sglang:token_usage": 0.1, "sglang:prompt_tokens_total": steadily(600)}
    parts = [cached("device", 100), cached("host", 50), cached("total", 150)]
    blocks = 'num_gpu_blocks="1000",block_size="16"'
    return {
        # One queue and one cache, shown by four tensor-parallel ranks; the second one is a moment later.
        ("tensor", "p"): sglang(
            "tensor",
            ('tp_rank="0",pp_rank="0"', 10, 4, 0.5, 1000),
            ('tp_rank="1",pp_rank="0"', 11, 4, 0.5, 1000),
            ('tp_rank="0",pp_rank="1"', 10, 4, 0.5, 1000),
            ('tp_rank="1",pp_rank="1"', 10, 4, 0.5, 1000),
        ),
        # The engine goes on in another pod, which repeats what the first says.
        ("nodes", "p"): sglang("nodes", ('tp_rank="0",pp_rank="0"', 10, 4, 0.5, 1000)),
        ("nodes", "q"): sglang("nodes", ('tp_rank="8",pp_rank="0"', 10, 4, 0.5, 1000), pod="q"),
        # Two data-parallel ranks of two tensor-parallel ranks each, in parts by priority.
        ("data", "p"): sglang(
            "data",
            ('dp_rank="0",tp_rank="0",pp_rank="0",priority=""', 10, 4, 0.9, 1000),
            ('dp_rank="0",tp_rank="0",pp_rank="0",priority="1"', 7, 3, 0.9, 1000),
            ('dp_rank="0",tp_rank="1",pp_rank="0",priority=""', 10, 4, 0.9, 1000),
            ('dp_rank="1",tp_rank="2",pp_rank="0",priority=""', 30, 1, 0.1, 1000),
            ('dp_rank="1",tp_rank="3",pp_rank="0",priority=""', 30, 1, 0.1, 1000),
        ),
        ("engines", "p"): vllm(
            "engines",
            ('engine="0"', 10, 3, 0.95, blocks),
            ('engine="1"', 2, 1, 0.15, f'kv_cache_size_tokens="9000",{blocks}'),
        ),
        ("hits", "p"): Gauges("m", **nothing, more=shared, raw=parts),
        # A page with a label that the query uses for its own ends: what it makes equal must fail no other's query.
        ("labels", "p"): Gauges(
            "m",
            **nothing,
            raw=[
                f'sglang:cached_tokens_total{{namespace="labels",pod="p",model_name="m",cache_source="total"{more}}} 1'
                for more in ("", ',part="total"', ',part="top"')
            ],
        ),
        # Endpoint pickers: one of the transition, which shows old and new names, and an older one.
        ("gateway", "today"): Gauges(
            "m",
            **nothing,
            raw=[
                line
                for prefix in ("llm_d_epp", "inference_extension")
                for line in waiting_at("today", prefix, size=3, octets=8000)
            ],
        ),
        ("gateway", "older"): Gauges(
            "m", **nothing, raw=waiting_at("older", "inference_extension", size=2, octets=400)
        ),
        # Two monitors scrape one page.
        ("twice", "p"): vllm(
            "twice",
            ('engine="0",job="a",instance="10.0.0.1:8000"', 10, 3, 0.5, blocks),
            ('engine="0",job="b",instance="10.0.0.1:8000"', 10, 3, 0.5, blocks),
        ),
    }


@dataclass
class Served:
    """A Prometheus that has watched the engines for a while."""

    source: MetricSource
    url: str


@pytest.fixture(scope="module")
async def engines_at_work(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    source = MetricSource()
    source.pods.update(engines())
    server = PrometheusServer(tmp_path_factory.mktemp("prometheus"), free_port(), source.address, interval="1s")
    server.start()
    async with Prometheus(PrometheusSettings(base_url=server.url, timeout=30)) as prometheus:
        async with asyncio.timeout(120):
            while True:
                answer = await prometheus.query(
                    'count_over_time(vllm:num_requests_running{namespace="plain"}[1m])', "a test"
                )
                if answer and (answer[0].value or 0) >= WINDOW + 2:
                    break
                await asyncio.sleep(0.2)
    yield Served(source, server.url)
    server.kill()
    source.close()


@pytest.fixture
async def prometheus(engines_at_work: Served) -> AsyncIterator[Prometheus]:
    async with Prometheus(PrometheusSettings(base_url=engines_at_work.url, timeout=30)) as client:
        yield client


async def read(prometheus: Prometheus, history: LoadHistory | None = None, **options: Any) -> Signals:
    return await read_signals(prometheus, peak_window=30, load_window=WINDOW, loads=history, **options)


async def read_whole(prometheus: Prometheus, **options: Any) -> Signals:
    """Signals of a time in which no scrape failed: after one that did, a busy machine's series are not there."""

    async def whole() -> Signals | None:
        signals = await read(prometheus, **options)
        scraped = await prometheus.query("min_over_time(up[10s])", "a test")
        return signals if [one.value for one in scraped] == [1] else None

    return cast(Signals, await eventually(whole, "no scrape fails"))


async def measured(look: Callable[[], Awaitable[Mapping[str, float | None]]], expected: Mapping[str, float]) -> None:
    """Wait until rates are as they were made: scrapes of a busy machine that come late distort them."""
    seen: dict[str, float | None] = {}

    async def near() -> bool:
        seen.update(await look())
        return {name: seen.get(name) for name in expected} == pytest.approx(expected, rel=0.15)

    try:
        await eventually(near, f"{expected}")
    except AssertionError as error:
        raise AssertionError(f"{error}; last seen {seen}") from None


async def test_offered_load_is_completions_plus_what_piles_up(prometheus: Prometheus) -> None:
    async def loads() -> dict[str, float | None]:
        signals = await read(prometheus, LoadHistory(20, 0.5))
        assert signals.error is None
        assert not signals.partial_errors
        found = {namespace: load.arrivals for (namespace, _), load in signals.loads.items()}
        assert found["draining"] == 0, "never negative"
        assert "mute" not in found, "missing is not zero"
        return found

    expected = {
        "plain": 4.0,
        "saturated": 8.0,  # completions are flat at 5/s, the queue grows by 3/s
        "fresh": 2.0,  # no request finished yet, so there is no counter
        "odd": 5.0,  # NaN and infinity are left out, of one pod and of one part
        "sglang": 8.0,
    }
    await measured(loads, expected)


@pytest.mark.parametrize(
    ("space", "running", "waiting", "kv", "mean_kv", "engines", "tokens"),
    [
        ("tensor", 10, 4, 0.5, 0.5, None, 1000),
        ("nodes", 10, 4, 0.5, 0.5, None, 1000),
        ("data", 40, 5, 0.9, 0.5, 2, 2000),
        ("engines", 12, 4, 0.95, 0.55, 2, 25000),
    ],
)
async def test_data_parallel_ranks_add_up_and_other_ranks_repeat(
    prometheus: Prometheus,
    space: str,
    running: float,
    waiting: float,
    kv: float,
    mean_kv: float,
    engines: float | None,
    tokens: int,
) -> None:
    signals = await read_whole(prometheus, performance_in=[space])
    (pod,) = (pod for pod in signals.pods if pod.namespace == space)
    assert (pod.running, pod.waiting, pod.kv, pod.engines) == (running, waiting, kv, engines)
    (done,) = signals.performance
    assert (done.kv_tokens, done.mean_kv) == (tokens, pytest.approx(mean_kv))


async def test_cached_tokens_are_not_added_to_their_total(prometheus: Prometheus) -> None:
    signals = await read_whole(prometheus, performance_in=["hits", "labels"])
    assert signals.partial_errors == (), "the page of another namespace"
    (done,) = (pod for pod in signals.performance if pod.namespace == "hits")
    assert done.prefix_hit_rate == pytest.approx(0.25, rel=0.01)


async def test_of_a_gateways_queue_under_old_and_new_names_the_new_one_counts(prometheus: Prometheus) -> None:
    signals = await read_whole(prometheus, performance_in=["hits"])
    assert signals.gateway_queue["gateway", "m"] == 3 + 2
    assert signals.gateway_bytes["gateway", "m"] == 8000 + 400
    without = await read(prometheus, performance_in=["hits"], caches_in=())
    assert without.gateway_bytes == {}, "only the token analyzer asks for them"


async def test_what_two_monitors_scrape_waits_once(prometheus: Prometheus) -> None:
    signals = await read_whole(prometheus)
    (pod,) = (pod for pod in signals.pods if pod.namespace == "twice")
    assert (pod.waiting, pod.engines) == (3, None)


async def test_a_model_that_vanishes_has_no_load_but_a_past(prometheus: Prometheus, engines_at_work: Served) -> None:
    history = LoadHistory(60, 0.5)
    engines_at_work.source.pods["gone", "p"] = Gauges("m", finished=steadily(3))
    try:
        async with asyncio.timeout(120):
            while ("gone", "m") not in (await read(prometheus, history)).loads:
                await asyncio.sleep(0.2)
    finally:
        del engines_at_work.source.pods["gone", "p"]
    async with asyncio.timeout(120):
        while (await read(prometheus, history)).loads["gone", "m"].arrivals is not None:
            await asyncio.sleep(0.2)
    assert (await read(prometheus, history)).loads["gone", "m"].history


async def test_the_past_is_measured_again_after_a_restart_and_a_quiet_tick_asks_nothing_more(
    prometheus: Prometheus,
) -> None:
    before = prometheus.queries
    await read(prometheus)
    without = prometheus.queries - before

    history = LoadHistory(20, 0.5)
    before = prometheus.queries
    first = (await read(prometheus, history)).loads["saturated", "m"]
    assert prometheus.queries - before == without + 2, "the load itself, and its past once"
    assert len(first.history) > 4
    assert [at for at, _ in first.history] == sorted({at for at, _ in first.history})
    assert first.history[-1][1] == first.arrivals
    assert first.history[-2][1] == pytest.approx(8, rel=0.15)

    before = prometheus.queries
    second = (await read(prometheus, history)).loads["saturated", "m"]
    assert prometheus.queries - before == without + 1
    *known, latest = second.history
    assert known == list(first.history[-len(known) :]), "the past is kept as it was, but for what is too old by now"
    assert len(known) > 4
    assert latest[0] > first.history[-1][0]


async def test_sizes_of_requests_have_a_past_that_is_measured_again_where_shares_are_aimed_at(
    prometheus: Prometheus,
) -> None:
    spaces = ["saturated", "sglang"]
    history = LoadHistory(20, 0.5)
    before = prometheus.queries
    await read(prometheus, LoadHistory(20, 0.5), performance_in=spaces)
    usual = prometheus.queries - before
    before = prometheus.queries
    signals = await read(prometheus, history, performance_in=spaces, shares_in=["saturated"])
    assert not signals.partial_errors
    assert prometheus.queries - before == usual + 8, (
        "two histograms, four means over five windows, the past of the means of sizes"
    )
    first = signals.loads["saturated", "m"].sizes
    assert len(first) > 4
    for at, prompt, output in first:
        assert at > 0
        assert (prompt, output) == (pytest.approx(512, rel=0.01), pytest.approx(128, rel=0.01))
    assert signals.loads["sglang", "m"].sizes == ()
    assert signals.sizes == {}, "these engines have sums and counts, but no buckets"
    signals = await read(prometheus, history, performance_in=spaces, shares_in=["saturated"])
    second = signals.loads["saturated", "m"].sizes
    assert second[-1][0] > first[-1][0]
    assert set(second[:-1]) <= set(first)


async def test_a_gap_in_the_ticks_is_filled(prometheus: Prometheus) -> None:
    now = [0.0]
    begun = time.time()
    history = LoadHistory(20, 0.5, clock=lambda: begun - 100 + now[0])
    await read(prometheus, history)
    now[0] = 100.0
    before = prometheus.queries
    filled = (await read(prometheus, history)).loads["saturated", "m"]
    asked = prometheus.queries - before
    assert len(filled.history) > 4
    now[0] = 100.5
    before = prometheus.queries
    await read(prometheus, history)
    assert prometheus.queries - before == asked - 1


async def test_performance_of_each_engine_in_the_units_of_the_model(prometheus: Prometheus) -> None:
    spaces = ["saturated", "sglang", "older", "mute"]

    async def completed() -> dict[str, float | None]:
        found = (await read(prometheus, performance_in=spaces)).performance
        return {one.namespace: one.completed for one in found}

    await measured(completed, {"saturated": 5 * WINDOW, "sglang": 6 * WINDOW})
    signals = await read_whole(prometheus, performance_in=spaces)
    assert not signals.partial_errors
    found: dict[str, PodPerformance] = {one.namespace: one for one in signals.performance}
    assert found.keys() == {"saturated", "sglang", "older", "mute"}, "and of no other namespace"

    def near(value: float) -> Any:
        return pytest.approx(value, rel=0.01)

    busy = found["saturated"]
    assert (busy.prompt_tokens, busy.output_tokens) == (near(512), near(128))
    assert (busy.ttft, busy.itl) == (near(250), near(20)), "the newer name of the latency between tokens wins"
    assert busy.kv_tokens == 2 * 1000 * 16, "two engines in one pod; the metric names no model"
    assert busy.prefix_hit_rate == near(0.25)
    sglang = found["sglang"]
    assert (sglang.prompt_tokens, sglang.output_tokens) == (near(100), near(50))
    assert (sglang.ttft, sglang.itl) == (near(100), near(10))
    assert sglang.kv_tokens == 250000
    assert sglang.prefix_hit_rate == near(0.25)
    older = found["older"]
    assert older.completed == 0
    assert older.prompt_tokens is None, "0/0 says nothing"
    assert older.itl == near(30)
    assert older.kv_tokens is None, "its cache has no size yet"
    assert found["mute"].completed is None


async def test_engines_of_other_makes_are_read_by_their_tables(
    prometheus: Prometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = prometheus.queries
    await read(prometheus, LoadHistory(20, 0.5), performance_in=["tgi"])
    usual = prometheus.queries - before
    monkeypatch.setitem(ENGINES, MADE_UP.name, MADE_UP)
    others = ["made-up", "tensorrt-llm", "tgi"]
    before = prometheus.queries
    signals = await read(prometheus, LoadHistory(20, 0.5), performance_in=others)
    assert prometheus.queries - before == usual, "one more engine is no further query"
    assert not signals.partial_errors
    pods = {one.namespace: one for one in signals.pods if one.namespace in others}
    assert {space: (pod.model, pod.kv, pod.waiting, pod.running) for space, pod in pods.items()} == {
        "made-up": ("m", pytest.approx(0.45), 3, 4),
        "tensorrt-llm": ("m", 0.3, 2, 7),
        "tgi": ("m", None, 1, 5),
    }

    async def load() -> dict[str, float | None]:
        return {"made-up": (await read(prometheus, LoadHistory(20, 0.5))).loads["made-up", "m"].arrivals}

    await measured(load, {"made-up": 2.0})
    found = {one.namespace: one for one in signals.performance}

    def near(*values: float | None) -> tuple[Any, ...]:
        return tuple(value if value is None else pytest.approx(value, rel=0.01) for value in values)

    def of(one: PodPerformance) -> tuple[float | None, ...]:
        return one.prompt_tokens, one.output_tokens, one.ttft, one.itl, one.kv_tokens, one.prefix_hit_rate

    assert of(found["made-up"]) == near(100, 20, 150, 15, 1600, 0.1)
    assert of(found["tensorrt-llm"]) == near(200, 50, 300, 40, 16000, 0.25)
    assert of(found["tgi"]) == near(300, 60, None, 50, None, None)


async def test_performance_is_asked_only_where_it_is_needed(prometheus: Prometheus) -> None:
    before = prometheus.queries
    assert (await read(prometheus)).performance == ()
    usual = prometheus.queries - before
    before = prometheus.queries
    await read(prometheus, performance_in=["saturated"])
    one = prometheus.queries - before
    before = prometheus.queries
    await read(prometheus, performance_in=["saturated", "sglang", "older", "plain"])
    assert usual < one == prometheus.queries - before


async def test_latencies_and_caches_are_asked_only_where_they_matter(prometheus: Prometheus) -> None:
    both = ["saturated", "sglang"]
    before = prometheus.queries
    signals = await read(prometheus, performance_in=both, latency_in=["saturated"], caches_in=["sglang"])
    asked = prometheus.queries - before
    vllm, sglang = signals.performance
    assert (vllm.ttft, vllm.itl) == (pytest.approx(250, rel=0.01), pytest.approx(20, rel=0.01))
    assert (vllm.kv_tokens, vllm.prefix_hit_rate) == (None, None)
    assert (sglang.ttft, sglang.itl) == (None, None)
    assert sglang.kv_tokens == 250000
    assert sglang.prefix_hit_rate == pytest.approx(0.25, rel=0.01)
    before = prometheus.queries
    (vllm, _) = (await read(prometheus, performance_in=both, latency_in=(), caches_in=())).performance
    assert prometheus.queries - before == asked - 6
    assert vllm.prompt_tokens == pytest.approx(512, rel=0.01)


@dataclass
class Broken:
    """An HTTP server in the manner of Prometheus, of which some answers fail."""

    failing: str
    paths: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.paths.append(self.path)
                bad = outer.failing in self.path
                result = [{"metric": {"namespace": "n", "model_name": "m"}, "value": [0, "2"]}]
                body = b"no" if bad else json.dumps({"data": {"result": result}}).encode()
                self.send_response(422 if bad else 200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def broken(request: pytest.FixtureRequest) -> Iterator[Broken]:
    server = Broken(request.param)
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.mark.parametrize("broken", ["query_range"], indirect=True)
async def test_a_past_that_cannot_be_read_is_named_and_not_asked_for_at_every_tick(broken: Broken) -> None:
    history = LoadHistory(20, 0.5)
    url = f"http://127.0.0.1:{broken.server.server_port}"
    async with Prometheus(PrometheusSettings(base_url=url, timeout=30)) as prometheus:
        first = await read(prometheus, history)
        second = await read(prometheus, history)
    assert any("load history" in text for text in first.partial_errors)
    assert not second.partial_errors
    assert sum("query_range" in path for path in broken.paths) == 1
    assert [rate for _, rate in second.loads["n", "m"].history] == [2, 2]


@pytest.mark.parametrize("broken", ["request_prompt_tokens"], indirect=True)
async def test_a_failing_query_leaves_its_values_unknown(broken: Broken) -> None:
    url = f"http://127.0.0.1:{broken.server.server_port}"
    async with Prometheus(PrometheusSettings(base_url=url, timeout=30)) as prometheus:
        signals = await read(prometheus, performance_in=["n"])
    assert signals.error is None
    assert [text for text in signals.partial_errors if "prompt tokens" in text]


@pytest.mark.parametrize("broken", ["%5B1d%5D"], indirect=True)
async def test_a_window_is_asked_for_and_fails_where_it_is_used(broken: Broken) -> None:
    url = f"http://127.0.0.1:{broken.server.server_port}"
    async with Prometheus(PrometheusSettings(base_url=url, timeout=30)) as prometheus:
        signals = await read(prometheus, retentions={600: (), 86400: {"hostile"}})
    (long,) = [path for path in broken.paths if "%5B1d%5D" in path]
    assert "hostile" in long
    assert not [path for path in broken.paths if "hostile" in path and path != long]
    assert (signals.error, signals.partial_errors) == (None, ())
    assert ["86400 s" in text for text in signals.errors_in.pop("hostile")] == [True]
    assert not signals.errors_in


async def test_an_unreachable_server_says_so_for_ranges_too() -> None:
    settings = PrometheusSettings(base_url=f"http://127.0.0.1:{free_port()}", timeout=1, attempts=1)
    async with Prometheus(settings) as prometheus:
        with pytest.raises(PrometheusError, match="connection failed"):
            await prometheus.query_range(offered_load(4), "load history", 0, 10, 1)


async def test_what_pods_served_is_read_as_of_any_moment(prometheus: Prometheus) -> None:
    now = time.time()
    found = (await read_served(prometheus, "saturated", WINDOW, now))["p"]
    assert found.failed == 0
    assert found.ttft == pytest.approx(0.25, rel=0.01)
    assert await read_served(prometheus, "saturated", WINDOW, now - 3600) == {}

    async def served() -> dict[str, float | None]:
        busy, sglang = [
            (await read_served(prometheus, space, WINDOW, time.time()))["p"] for space in ("saturated", "sglang")
        ]
        return {"busy": busy.requests, "sglang": sglang.requests, "failed": sglang.failed}

    await measured(served, {"busy": 5 * WINDOW, "sglang": 6 * WINDOW, "failed": 1.5 * WINDOW})
