"""The engine's ``/metrics`` in the words of a real one: names, types, labels and buckets are those of its table.

**Durations are virtual seconds**: what the simulated hardware would have reported. Rates, which Prometheus derives
from its own clock, are therefore ``time_compression`` times higher than the simulated hardware's.

Every label set exists from the start, at zero. LoRA series are absent, as on a real engine that runs without LoRA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from modelyard.engine.core import EngineCore
from modelyard.engine.stats import Histogram
from modelyard.metrics.vocabulary import Engine, Family, Kind, Signal

_HISTOGRAMS: Final[Mapping[Signal, Mapping[str, str]]] = {
    Signal.TTFT: {"": "ttft"},
    Signal.ITL: {"": "itl"},
    Signal.TPOT: {"": "tpot"},
    Signal.E2E: {"": "e2e"},
    Signal.QUEUE_TIME: {"": "queue"},
    Signal.INFERENCE_TIME: {"": "inference"},
    Signal.PREFILL_TIME: {"": "prefill"},
    Signal.DECODE_TIME: {"": "decode"},
    Signal.STAGE_TIMES: {"prefill_waiting": "queue", "prefill_forward": "prefill", "decode_forward": "decode"},
    Signal.REQUEST_PROMPT_TOKENS: {"": "prompt_tokens"},
    Signal.REQUEST_OUTPUT_TOKENS: {"": "generation_tokens"},
    Signal.REQUEST_LONGEST: {"": "max_generation_tokens"},
    Signal.REQUEST_MAX_TOKENS: {"": "max_tokens"},
    Signal.REQUEST_N: {"": "n"},
    Signal.STEP_TOKENS: {"": "iteration_tokens"},
}
"""The attributes of ``EngineStats`` by the value of the label that splits the family."""


def _throughput(core: EngineCore) -> float:
    running = core.num_running
    return 1000 * running / (core.config.alpha + core.config.beta * running) if running else 0


def _hit_rate(core: EngineCore) -> float:
    queries = core.stats.prefix_queries_total
    return core.stats.prefix_hits_total / queries if queries else 0


_VALUES: Final[Mapping[Signal, Callable[[EngineCore], float | Mapping[str, float]]]] = {
    Signal.RUNNING: lambda core: core.num_running,
    Signal.WAITING: lambda core: core.num_waiting,
    Signal.WAITING_REASONS: lambda core: {"capacity": core.num_waiting, "deferred": 0},
    Signal.RETRACTED: lambda core: sum(1 for request in core.waiting if request.preemptions),
    Signal.KV_USE: lambda core: core.kv_usage,
    Signal.KV_TOKENS: lambda core: core.config.kv_capacity,
    Signal.KV_USED_TOKENS: lambda core: core.kv_used_blocks * core.config.block_size,
    Signal.KV_CONFIG: lambda core: 1,
    Signal.KV_BLOCKS: lambda core: core.config.num_blocks,
    Signal.KV_BLOCK_SIZE: lambda core: core.config.block_size,
    Signal.BATCH_USE: lambda core: core.num_running / core.config.max_num_seqs,
    Signal.THROUGHPUT: _throughput,
    Signal.DISAGGREGATED: lambda core: 0,
    Signal.SLEEP: lambda core: {"awake": 1, "weights_offloaded": 0, "discard_all": 0},
    Signal.FINISHED: lambda core: core.stats.finished,
    Signal.ABORTED: lambda core: core.stats.finished["abort"],
    Signal.PREEMPTIONS: lambda core: core.stats.preemptions_total,
    Signal.PROMPT_TOKENS: lambda core: core.stats.prompt_tokens_total,
    Signal.OUTPUT_TOKENS: lambda core: core.stats.generation_tokens_total,
    Signal.PREFIX_LOOKUPS: lambda core: core.stats.prefix_queries_total,
    Signal.PREFIX_HITS: lambda core: core.stats.prefix_hits_total,
    Signal.PREFIX_HIT_RATE: _hit_rate,
    Signal.TOKENS_BY_MODE: lambda core: {
        "prefill_compute": max(0, core.stats.prompt_tokens_total - core.stats.prefix_hits_total),
        "prefill_cache": core.stats.prefix_hits_total,
        "decode": core.stats.generation_tokens_total,
    },
}


def buckets(engine: Engine, max_model_len: int) -> Mapping[str, Sequence[float]]:
    """The bounds of an engine's histograms by attribute of ``EngineStats``, in seconds or tokens."""
    bounds: dict[str, Sequence[float]] = {}
    for family in engine.families:
        if family.kind is Kind.HISTOGRAM:
            own = one_two_five(max_model_len) if family.buckets is None else family.buckets
            for attribute in _HISTOGRAMS[family.signal].values():
                bounds.setdefault(attribute, [bound * family.scale for bound in own])
    return bounds


def one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... up to ``limit``."""
    steps = (mantissa * 10**exponent for exponent in range(len(str(limit))) for mantissa in (1, 2, 5))
    return tuple(float(step) for step in steps if step <= limit)


def _buckets(attribute: str, core: EngineCore) -> tuple[int, ...]:
    histogram: Histogram = getattr(core.stats, attribute)
    return tuple(histogram.counts)


def readers(engine: Engine) -> Mapping[str, Callable[[EngineCore], Any]]:
    """What reads an engine's metrics in our units, by the name of their samples. Several series of one are added up;
    of a histogram there are ``_sum``, ``_count`` and ``_bucket`` (all its buckets, each by itself), unless a label
    splits it."""
    found: dict[str, Callable[[EngineCore], Any]] = {}
    for family in engine.families:
        if family.kind is not Kind.HISTOGRAM:
            found[family.name] = partial(_added, _VALUES[family.signal])
        elif attribute := _HISTOGRAMS[family.signal].get(""):
            found[f"{family.name}_sum"] = attrgetter(f"stats.{attribute}.total")
            found[f"{family.name}_count"] = attrgetter(f"stats.{attribute}.count")
            found[f"{family.name}_bucket"] = partial(_buckets, attribute)
    return found


def _added(value: Callable[[EngineCore], float | Mapping[str, float]], core: EngineCore) -> float:
    found = value(core)
    return sum(found.values()) if isinstance(found, Mapping) else found


def samples(core: EngineCore, family: Family, labels: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Names, labels and values of a family now; ``labels`` are on all of them."""
    own = {**labels, **family.labels}
    config = core.config
    if family.factors:
        own |= zip(family.factors, (str(config.num_blocks), str(config.block_size)), strict=True)
    if family.kind is Kind.HISTOGRAM:
        for value, attribute in _HISTOGRAMS[family.signal].items():
            mine = {**own, family.split: value} if family.split else own
            yield from _histogram(family, mine, getattr(core.stats, attribute))
        return
    found = _VALUES[family.signal](core)
    if isinstance(found, Mapping) and family.split:
        for value, number in found.items():
            yield family.name, {**own, family.split: value}, number / family.scale
    else:
        # Without their reasons, only the requests that were served count as finished.
        total = sum(found.values()) - found.get("abort", 0) if isinstance(found, Mapping) else found
        yield family.name, own, total / family.scale


def _histogram(
    family: Family, labels: dict[str, str], histogram: Histogram
) -> Iterator[tuple[str, dict[str, str], float]]:
    for bound, number in histogram.cumulative():
        le = "+Inf" if bound == float("inf") else str(bound / family.scale)
        yield f"{family.name}_bucket", {**labels, "le": le}, number
    yield f"{family.name}_count", labels, histogram.count
    yield f"{family.name}_sum", labels, histogram.total / family.scale


class EngineCollector(Collector):
    """The families of an engine's table for one simulated engine. ``model`` is the first served model name."""

    def __init__(self, core: EngineCore, engine: Engine, model: str) -> None:
        self._core = core
        self._engine = engine
        self._model = {engine.model: model} if engine.model else {}

    def collect(self) -> Iterator[Metric]:
        """The families with their values now."""
        for family in self._engine.families:
            if family.optional:
                continue
            metric = Metric(family.base, family.signal.value, family.kind)
            labels = {**(self._model if family.model else {}), **self._engine.labels}
            for name, own, value in samples(self._core, family, labels):
                metric.add_sample(name, own, value)
            yield metric
