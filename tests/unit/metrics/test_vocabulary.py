"""One table per engine: what a new one needs is a table, and nothing else names an engine's metrics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from made_up_engine import MADE_UP
from prometheus_client import CollectorRegistry, generate_latest

from modelyard.autoscaling.bindings.names import is_latency, is_ratio
from modelyard.autoscaling.bindings.samples import PodHistory, pod_values
from modelyard.autoscaling.reading.bindings.values import demand_metrics
from modelyard.engine.config import EngineConfig
from modelyard.engine.core import EngineCore
from modelyard.engine.metrics import EngineCollector, buckets
from modelyard.engine.stats import EngineStats
from modelyard.metrics.prometheus.client import Sample
from modelyard.metrics.prometheus.signals import cache_sizes
from modelyard.metrics.vocabulary.pages import parse
from modelyard.metrics.vocabulary.queries import fleet_queries, offered_load, performance_queries
from modelyard.metrics.vocabulary.values import PodPerformance, PodSignal
from modelyard.metrics.vocabulary.vocabulary import ENGINES, Engine, Kind, Ratio, Signal

SOURCES = Path(__file__).resolve().parents[3] / "modelyard"


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setitem(ENGINES, MADE_UP.name, MADE_UP)
    return MADE_UP


def page_of(engine: Engine) -> tuple[EngineCore, bytes]:
    core = EngineCore(EngineConfig(max_num_seqs=4), stats=EngineStats(buckets(engine, 4096)))
    for _ in range(10):
        core.submit(100, 50)
    core.advance(0.5)
    registry = CollectorRegistry()
    registry.register(EngineCollector(core, engine, "m"))
    return core, generate_latest(registry)


@pytest.mark.parametrize("engine", [*ENGINES.values(), MADE_UP], ids=lambda engine: engine.name)
def test_a_page_in_an_engines_words_is_read_by_its_table(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, engine.name, engine)
    core, body = page_of(engine)
    shown = [family for family in engine.families if not family.optional]
    page = parse(body, [family.name for family in shown])
    assert not page.problems
    types: dict[str, set[str]] = {}
    for sample in page.samples:
        types.setdefault(sample.name, set()).add(sample.type)
    for family in shown:
        parts = ("_bucket", "_count", "_sum") if family.kind is Kind.HISTOGRAM else ("",)
        assert [types.get(family.name + part) for part in parts] == [{family.kind}] * len(parts), family.name
    values = pod_values(demand_metrics(), page.samples, PodHistory(), "", 0.0).values
    assert sum(values.values()) == core.num_running + core.num_waiting > 0


def test_a_fifth_engine_is_one_more_table(made_up: Engine) -> None:
    core, body = page_of(made_up)
    page = parse(body, ["made:cache_percent", "made:first_ms", "made:cache"])
    seen = {sample.name: sample for sample in page.samples}
    assert seen["made:cache_percent"].value == pytest.approx(100 * core.kv_usage)
    assert seen["made:first_ms_sum"].value == pytest.approx(1000 * core.stats.ttft.total)
    assert seen["made:cache_percent"].labels == {"model": "m", "shard": "0"}
    blocks = seen["made:cache"].labels
    assert int(blocks["pages"]) * int(blocks["page"]) == core.config.kv_capacity
    assert cache_sizes(
        [
            Sample({"namespace": "n", "pod": "p", "pages": "10", "page": "16", "shard": "0"}, 1.0),
            Sample({"namespace": "n", "pod": "p", "pages": "10", "page": "16", "shard": "1"}, 1.0),
        ]
    ) == {("n", "p"): 320}
    assert is_ratio("made:cache_percent")
    assert is_latency("made:first_ms")


def test_every_query_asks_every_engine_that_has_the_signal(made_up: Engine) -> None:
    queries = fleet_queries(60)
    asked = {
        Signal.KV_USE: queries[PodSignal.measures()["kv"].purpose],
        Signal.WAITING: queries[PodSignal.measures()["waiting"].purpose],
        Signal.RUNNING: queries[PodSignal.measures()["sampled_at"].purpose],
        Signal.FINISHED: offered_load(60),
    }
    for signal, text in asked.items():
        for engine in ENGINES.values():
            for name in engine.of[signal].names if signal in engine.of else ():
                assert name in re.findall(r"[\w:]+", text), (engine.name, signal)
    assert "made_pending" in queries[PodSignal.measures()["waiting"].purpose]
    assert '* 0.01, "model_name", "$1", "model", "(.+)")' in queries[PodSignal.measures()["kv"].purpose]
    measures = {measure.purpose: measure for measure in PodPerformance.measures().values()}
    for purpose, text in performance_queries(60, ["chat"]).items():
        assert "made:" in text or measures[purpose].signal not in made_up.of


def test_means_come_from_histograms_or_else_from_counters() -> None:
    sglang, trtllm = ENGINES["sglang"], ENGINES["tensorrt-llm"]
    assert list(sglang.ratios(Signal.REQUEST_PROMPT_TOKENS)) == [
        Ratio("sglang:prompt_tokens_histogram_sum", "sglang:prompt_tokens_histogram_count"),
        Ratio("sglang_prompt_tokens_histogram_sum", "sglang_prompt_tokens_histogram_count"),
        Ratio("sglang:prompt_tokens_total", "sglang:num_requests_total"),
        Ratio("sglang_prompt_tokens_total", "sglang_num_requests_total"),
    ]
    assert list(trtllm.ratios(Signal.REQUEST_OUTPUT_TOKENS)) == [
        Ratio("trtllm_generation_tokens_total", "trtllm_request_success_total")
    ]
    assert list(ENGINES["vllm"].ratios(Signal.PREFIX_HIT_RATE))[:2] == [
        Ratio("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
        Ratio("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"),
    ]
    assert list(ENGINES["tgi"].ratios(Signal.TTFT)) == []


def test_shares_and_times_of_an_engine_are_known_whatever_their_names() -> None:
    assert is_ratio("sglang:cache_hit_rate")
    assert is_ratio("vllm:gpu_cache_usage_perc")
    assert is_ratio("somebodys_cache_usage_perc")
    assert not is_ratio("vllm:num_requests_waiting")
    assert not is_ratio("somebodys_hit_rate")
    assert is_latency("somebodys_wait_seconds")


def test_no_engines_metric_is_named_outside_the_tables() -> None:
    families = [family for engine in ENGINES.values() for family in engine.families]
    names = re.compile("|".join(sorted({f"{name}\\b" for family in families for name in family.names})))
    found = {
        str(path.relative_to(SOURCES)): names.findall(text)
        for path in SOURCES.rglob("*.py")
        if names.search(text := path.read_text())
    }
    assert set(found) == {"metrics/vocabulary/vocabulary.py"}
