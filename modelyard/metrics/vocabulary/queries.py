"""The PromQL of one tick: a constant number of queries for the whole fleet, grouped by namespace, model and pod.

Model names never enter a query (they come back as labels), so no model name needs escaping; namespaces do. Semantics:
WVA saturation reference, "Replica signals" and "Token-analyzer signals"; WVA SLO reference, "Load".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache, wraps
from typing import NamedTuple, ParamSpec

from modelyard.metrics.vocabulary.values import Measure, Needed, Over, PodPerformance, PodSignal
from modelyard.metrics.vocabulary.vocabulary import ENGINES, Engine, Join, Signal, ranks

_P = ParamSpec("_P")

MODEL = "namespace, model_name"
BY_POD = "namespace, model_name, pod, pod_name"
SCRAPE_LABELS = "job, service, endpoint, container"
"""Labels by which two scrapes of one page differ."""
GATEWAY_QUEUE = "inference_extension_flow_control_queue_size"
"""The published name of requests that wait at a gateway, which Modelyard's router shows."""
_PREFIXES = ("llm_d_epp", "llm_d_router_epp", "inference_extension")
"""Prefixes of an endpoint picker's metrics, newest first. Releases of the transition show several, equal in value."""
QUEUE_SIZES = tuple(f"{prefix}_flow_control_queue_size" for prefix in _PREFIXES)
QUEUE_BYTES = tuple(f"{prefix}_flow_control_queue_bytes" for prefix in _PREFIXES)


def duration(seconds: float) -> str:
    """A PromQL duration in the largest unit that divides it exactly; below one second (or zero) ``1s``.

    >>> duration(600), duration(3600), duration(172800), duration(5400), duration(0.2), duration(7.5)
    ('10m', '1h', '2d', '90m', '1s', '7500ms')
    """
    if seconds < 1:
        return "1s"
    milliseconds = round(seconds * 1000)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def quoted(value: str) -> str:
    """A PromQL string literal: backslash doubled, then quote escaped, newline as ``\\n``."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def namespace_matcher(namespaces: Iterable[str]) -> str:
    """``{namespace=~"a|b"}``, or nothing for the whole cluster."""
    names = sorted(set(namespaces))
    if not names:
        return ""
    return "{namespace=~" + quoted("|".join(re.escape(name) for name in names)) + "}"


METRIC = "$metric"
_AGGREGATE = {Join.SUM: "sum", Join.MEAN: "avg", Join.MAX: "max"}

SIZED = 30
"""Load windows over which sizes are told apart: of long prompts there are few."""
SIZES = {Signal.REQUEST_PROMPT_TOKENS: "sizes of prompts", Signal.REQUEST_OUTPUT_TOKENS: "sizes of answers"}
"""Purposes of the queries for histograms of request sizes."""

GATEWAY = "gateway queue"
GATEWAY_BYTES = "bytes of the gateway queue"
LOAD = "offered load"
"""The purposes of the queries that are not of a pod."""


def _kept(build: Callable[_P, str]) -> Callable[_P, str]:
    """The same text from tick to tick, so it is kept by what it is made of, the engines' tables included."""

    made: Callable[..., str] = lru_cache(maxsize=256)(lambda engines, *args, **kwargs: build(*args, **kwargs))

    @wraps(build)
    def text(*args: _P.args, **kwargs: _P.kwargs) -> str:
        return made(tuple(ENGINES.values()), *args, **kwargs)

    return text


@_kept
def each(signal: Signal, aggregate: str, by: str, series: str) -> str:
    """``series`` of every metric that gives this signal, aggregated, so that each is taken under the first name it is
    exposed with: our labels, our units. Ranks that repeat each other count once."""
    return first(
        f"{aggregate} by ({by}) ({_ours(engine, _distinct(engine, series, name), family.scale)})"
        for engine in ENGINES.values()
        if (family := engine.of.get(signal))
        for name in family.names
    )


def _distinct(engine: Engine, series: str, name: str) -> str:
    """Return the series of ``name`` without those that repeat another's value.

    Ranks of a tensor- or pipeline-parallel engine show the same requests and the same cache. In one pod, the highest of
    them counts. In the further pods of an engine that spans several, where no data-parallel rank is named, only rank 0
    counts.
    """
    series = series.replace(METRIC, name)
    if not engine.shards:
        return series
    identity = ", ".join(filter(None, ("namespace, pod, pod_name, instance", engine.rank, *engine.shards)))
    alone = f'{engine.rank}="", ' if engine.rank else ""
    for shard in engine.shards:
        series += f' unless on ({identity}) {name}{{{alone}{shard}!~"|0"}}'
    return f"max without ({', '.join((*engine.shards, *engine.repeats))}) ({series})"


def first(choices: Iterable[str]) -> str:
    """What the first of these gives for a series. Nested to the right: what is found first is compared once, not with
    every name after it."""
    *before, last = choices
    return "".join(f"{choice} or (" for choice in before) + last + ")" * len(before)


@_kept
def ratios(signal: Signal, by: str, growth: str, *, some: bool = False) -> str:
    """A mean or a share over what ``growth`` covers, as for ``each``; with ``some`` only where there was any."""

    def grown(engine: Engine, metric: str) -> str:
        family = engine.by_name.get(metric)
        series = _ours(engine, _distinct(engine, growth, metric))
        if family is None or family.total is None:
            return f"sum by ({by}) ({series})"
        # The sum is shown next to its parts, or instead of them. A page may have labels of any name, and series that a
        # replacement makes equal fail the query for all: they are added up by labels that it keeps apart.
        label, value = family.total
        parted = f'label_replace(sum by ({by}, {label}) ({series}), "part", "$1", "{label}", "({value})")'
        return f"max by ({by}) (sum by ({by}, part) ({parted}))"

    return first(
        f"{_scaled(grown(engine, ratio.top), ratio.scale)} / "
        + (f"({grown(engine, ratio.bottom)} > 0)" if some else grown(engine, ratio.bottom))
        for engine in ENGINES.values()
        for ratio in engine.ratios(signal)
    )


def _ours(engine: Engine, series: str, scale: float = 1.0) -> str:
    series = _scaled(series, scale)
    if engine.model in ("", "model_name"):
        return series
    return f'label_replace({series}, "model_name", "$1", "{engine.model}", "(.+)")'


def _scaled(series: str, scale: float) -> str:
    return series if scale == 1 else f"({series}) * {scale:g}"


def fleet_queries(peak_window: float, namespaces: Iterable[str] = ()) -> dict[str, str]:
    """PromQL by purpose for these namespaces (none: all), with peaks over ``peak_window`` seconds."""
    where = namespace_matcher(namespaces)
    pods = {measure.purpose: _of_pods(measure, where, peak_window) for measure in PodSignal.measures().values()}
    return pods | {GATEWAY: gateway_waiting()}


def gateway_waiting(names: Iterable[str] = QUEUE_SIZES) -> str:
    """Requests that wait at gateways, by the namespace that shows them, the model asked for and the one they go to; of
    routers also by the ModelServer that they wait for.

    ``names`` are those of one metric, newest first: of each gateway's page, the first that it shows counts.
    """
    place = "namespace, model_server, target_model_name, model_name"
    shown = first(f"sum by ({place}, pod, pod_name, job, instance) ({name})" for name in names)
    return f"sum by ({place}) ({shown})"


def performance_queries(
    window: float,
    namespaces: Collection[str],
    latency_in: Collection[str] | None = None,
    caches_in: Collection[str] | None = None,
    shares_in: Collection[str] | None = None,
) -> dict[str, str]:
    """PromQL by purpose for these namespaces (none: nothing); means and counts over ``window`` seconds.

    ``latency_in``, ``caches_in`` and ``shares_in``: the namespaces whose latencies or caches matter, or in which shares
    of requests within their targets are aimed at; ``None``: all of them.
    """
    wanted = {
        Needed.ALWAYS: namespaces, Needed.LATENCIES: latency_in, Needed.CACHES: caches_in, Needed.SHARES: shares_in
    }  # fmt: skip
    spaces = {needed: namespaces if given is None else given for needed, given in wanted.items()}
    where = {needed: namespace_matcher(given) for needed, given in spaces.items() if given}
    return {
        measure.purpose: _of_pods(measure, where[measure.needed], window)
        for measure in PodPerformance.measures().values()
        if measure.needed in where
    }


def size_queries(window: float, namespaces: Collection[str]) -> dict[str, str]:
    """PromQL by purpose for histograms of request sizes, by model, over ``SIZED`` windows; none for no namespaces."""
    if not namespaces:
        return {}
    grown = f"rate({METRIC}_bucket{namespace_matcher(namespaces)}[{duration(SIZED * window)}])"
    return {purpose: each(signal, "sum", f"{MODEL}, le", grown) for signal, purpose in SIZES.items()}


def mean_sizes(signal: Signal, window: float, namespaces: Collection[str]) -> str:
    """Mean tokens of the requests that finished in ``window`` seconds, by model, where any did."""
    return ratios(signal, MODEL, f"increase({METRIC}{namespace_matcher(namespaces)}[{duration(window)}])", some=True)


def _of_pods(measure: Measure, where: str, window: float) -> str:
    metric, span = METRIC + where, duration(window)
    if measure.over is Over.CACHE:
        return _caches(where)
    if measure.over in (Over.MEAN, Over.STEADY):
        over = span if measure.over is Over.MEAN else duration(5 * window)
        return ratios(measure.signal, BY_POD, f"rate({metric}[{over}])")
    series = {
        Over.NOW: metric,
        Over.TIME: f"timestamp({metric})",
        # A window's peak skips NaN; an engine that says NaN now is missing, whatever it said before in the window.
        # Clamped, only NaN differs from 0; comparing the metric with itself costs twice as much.
        Over.PEAK: f"max_over_time({metric}[{span}]) unless (clamp({metric}, 0, 0) != 0)",
        Over.RATE: f"rate({metric}[{duration(5 * window)}])",
        Over.GROWTH: f"increase({metric}[{span}])",
    }
    if measure.over is Over.ENGINES:
        # Nothing of pods with one engine, which most have: no answer is 1.
        one_each = each(measure.signal, "max", ", ".join((BY_POD, *ranks())), metric)
        return f"count by ({BY_POD}) ({one_each}) > 1"
    join = Join.MAX if measure.over is Over.TIME else measure.join
    if measure.over is Over.PEAK and join is Join.SUM:
        # A pod that two monitors scrape has no second queue.
        return each(measure.signal, "sum", BY_POD, f"max without ({SCRAPE_LABELS}) ({series[Over.PEAK]})")
    return each(measure.signal, _AGGREGATE[join], BY_POD, series[measure.over])


@_kept
def _caches(where: str) -> str:
    return first(_cache(where))


def _cache(where: str) -> Iterator[str]:
    """KV-cache sizes of each engine: tokens, or an info metric's labels, or blocks times their size."""
    pod = "namespace, pod, pod_name"
    for engine in ENGINES.values():
        found = engine.of
        if tokens := found.get(Signal.KV_TOKENS):
            labels = ", ".join(filter(None, (pod, engine.rank)))
            yield from (f"max by ({labels}) ({_distinct(engine, METRIC + where, name)})" for name in tokens.names)
        elif config := found.get(Signal.KV_CONFIG):
            labels = ", ".join(filter(None, (pod, *config.factors, config.size, engine.rank)))
            yield from (f"max by ({labels}) ({name}{where})" for name in config.names)
        elif (blocks := found.get(Signal.KV_BLOCKS)) and (size := found.get(Signal.KV_BLOCK_SIZE)):
            for names in zip(blocks.names, size.names, strict=False):
                yield " * ".join(f"max by ({pod}) ({name}{where})" for name in names)


def finished_over(retention_seconds: int, namespaces: Iterable[str] = ()) -> str:
    """Requests finished over the retention, by namespace and model; only of models observed since before it began.

    A Prometheus that has just started, or lost scrapes, would else report nothing finished for a busy model.
    """
    where = namespace_matcher(namespaces)
    window = duration(retention_seconds)
    counted = each(Signal.FINISHED, "sum", MODEL, f"increase({METRIC}{where}[{window}])")
    before = each(Signal.RUNNING, "max", MODEL, f"max_over_time({METRIC}{where}[5m] offset {window})")
    return f"({counted}) and on ({MODEL}) ({before})"


def seen_over(seconds: float, namespaces: Iterable[str] = ()) -> str:
    """Newest sample time of each model's engines, looking further back than an instant query does."""
    inner = each(Signal.RUNNING, "max", MODEL, f"timestamp({METRIC}{namespace_matcher(namespaces)})")
    return f"max_over_time(({inner})[{duration(seconds)}:{duration(max(seconds / 60, 1))}])"


def offered_load(window: float, namespaces: Iterable[str] = ()) -> str:
    """Requests per second that arrive, by namespace and model: completions plus the growth of running and waiting.

    Completions alone level off at what the engines can do; requests that pile up are arrivals too. All in one query:
    whichever part is missing (no counter before an engine's first completion) is left out of the sum, a part that is
    NaN likewise, and a queue that drains faster than requests come in gives 0. Growth is taken per series, so that
    requests lost with a pod that went away are not counted as negative arrivals. Source: WVA SLO reference, "Load".
    """
    where = namespace_matcher(namespaces)
    span = duration(window)
    seconds = max(window, 1.0)

    def part(name: str, signal: Signal, grown: str) -> str:
        inner = f"sum by ({MODEL}) ({each(signal, 'sum', BY_POD, f'({grown}) > -Inf < Inf')})"
        return f'label_replace({inner}, "part", "{name}", "", "")'

    grown = f"delta({METRIC}{where}[{span}]) / {seconds:g}"
    parts = (
        part("finished", Signal.FINISHED, f"rate({METRIC}{where}[{span}])"),
        part("running", Signal.RUNNING, grown),
        part("waiting", Signal.WAITING, grown),
    )
    return f"clamp_min(sum by ({MODEL}) ({' or '.join(parts)}), 0)"


class Expression(NamedTuple):
    """PromQL of somebody in a namespace."""

    namespace: str
    text: str


Answers = Mapping[Expression, float | str]
"""A number by expression, or why there is none."""
