"""Fleet queries in, ``Signals`` out.

A failing query never looks like zero: if KV use or queue length cannot be read at all, the whole signal source counts
as failed; any other query's failure leaves its values unknown and is named.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Container, Iterable, Mapping
from itertools import pairwise
from math import prod
from types import MappingProxyType

from modelyard.metrics.prometheus.client import Prometheus, PrometheusError, Sample
from modelyard.metrics.prometheus.loads import LoadHistory, Pair, model_of
from modelyard.metrics.vocabulary import (
    ENGINES,
    GATEWAY,
    GATEWAY_BYTES,
    LOAD,
    QUEUE_BYTES,
    SIZES,
    Buckets,
    ModelLoad,
    Over,
    PodMeasures,
    PodPerformance,
    PodSignal,
    Signal,
    Signals,
    SizeBuckets,
    finished_over,
    fleet_queries,
    gateway_waiting,
    offered_load,
    performance_queries,
    ranks,
    seen_over,
    size_queries,
    with_errors,
)

PodKey = tuple[str, str, str]
"""(namespace, pod, model)"""

LOOK_BACK = 3600.0
"""Seconds to look back for a model that reports nothing now."""
LOOK_AGAIN = 300.0
"""Seconds after which the look back is repeated for models already asked about; it is the dearest query there is."""
MOST_BUCKETS = 200
"""Of a histogram of request sizes."""
BELIEVABLE = 1e15
"""Requests per second, tokens of a cache: what is beyond is damaged."""
LOOK_FOR_NEW = 60.0
"""Seconds after which it is repeated for models that were not asked about: anybody may name new ones in every tick."""


class LastSeen:
    """When models that report nothing now were last seen: what tells *stale* from *never there*.

    Only words of a condition depend on it, so it is asked rarely, for the silent models' namespaces, and may fail.
    """

    def __init__(self) -> None:
        self._asked: set[Pair] = set()
        self._at = float("-inf")
        self._found: dict[Pair, float] = {}

    async def of(self, prometheus: Prometheus, silent: set[Pair]) -> dict[Pair, float]:
        """Last sample times of these models, as far as known."""
        now = asyncio.get_running_loop().time()
        if now - self._at >= (LOOK_AGAIN if silent <= self._asked else LOOK_FOR_NEW):
            self._asked, self._at = set(silent), now
            try:
                samples = await prometheus.query(
                    seen_over(LOOK_BACK, {namespace for namespace, _ in silent}), "when models were last seen"
                )
            except PrometheusError:
                samples = []
            self._found = {model_of(sample.labels): sample.value for sample in samples if sample.value is not None}
        return {pair: self._found[pair] for pair in silent if pair in self._found}


async def read_signals(
    prometheus: Prometheus,
    *,
    peak_window: float,
    namespaces: Iterable[str] = (),
    gateways: Collection[str] = (),
    retentions: Mapping[int, Collection[str]] = MappingProxyType({}),
    expected: Iterable[Pair] = (),
    last_seen: LastSeen | None = None,
    loads: LoadHistory | None = None,
    load_window: float = 60.0,
    performance_in: Iterable[str] = (),
    latency_in: Collection[str] | None = None,
    caches_in: Collection[str] | None = None,
    shares_in: Collection[str] = (),
) -> Signals:
    """All signals of one tick.

    ``gateways`` are the namespaces whose gateways serve all of them (see ``gateway_queue``).
    ``retentions`` are the scale-to-zero retentions in force (seconds), one query each, with the namespaces to count in
    (none: all of ``namespaces``). ``expected`` are the (namespace, model) pairs that should report: if any is silent,
    one more query tells stale from never seen.
    ``loads``: measure offered load too, and keep its history there. ``performance_in``: the namespaces whose engines'
    performance is needed; none costs nothing. Both are taken over ``load_window`` seconds. ``latency_in`` and
    ``caches_in`` are those of them whose TTFT and ITL, or whose caches, matter (``None``: all);
    ``shares_in`` those in which shares of requests within their targets are aimed at: there sizes are told apart.
    """
    namespaces = list(namespaces)
    periods = {f"finished requests over {period} s": period for period in sorted(retentions)}
    measured = sorted(set(performance_in))
    asked = fleet_queries(peak_window, namespaces)
    asked |= {purpose: finished_over(period, retentions[period] or namespaces) for purpose, period in periods.items()}
    if loads is not None:
        asked[LOAD] = offered_load(load_window, namespaces)
    if measured:
        asked |= performance_queries(load_window, measured, latency_in, caches_in, shares_in)
        asked |= size_queries(load_window, shares_in)
        if caches_in is None or caches_in:
            asked[GATEWAY_BYTES] = gateway_waiting(QUEUE_BYTES)
    answers = await asyncio.gather(
        *(prometheus.query(text, purpose) for purpose, text in asked.items()), return_exceptions=True
    )
    found: dict[str, list[Sample]] = {}
    failures: dict[str, str] = {}
    for purpose, answer in zip(asked, answers, strict=True):
        if isinstance(answer, PrometheusError):
            failures[purpose] = str(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[purpose] = answer

    for vital in ("kv", "waiting"):
        if (error := failures.get(PodSignal.measures()[vital].purpose)) is not None:
            return Signals(error=error, partial_errors=tuple(failures.values()))

    pods = read_pods(found)
    counts = {
        (*model_of(sample.labels), period): sample.value
        for purpose, period in periods.items()
        for sample in found.get(purpose, ())
        if sample.value is not None
    }
    seen: dict[Pair, float] = {}
    for pod in pods:
        if pod.sampled_at is not None:
            seen[pod.namespace, pod.model] = max(pod.sampled_at, seen.get((pod.namespace, pod.model), 0.0))
    if silent := set(expected) - seen.keys():
        seen.update(await (last_seen or LastSeen()).of(prometheus, silent))
    # A window that few asked for is the affair of those few.
    own = {purpose: retentions[period] for purpose, period in periods.items() if retentions[period]}
    known = ((pod.namespace, pod.pod, pod.model) for pod in pods if pod.namespace in measured)
    performance = read_performance(found, known) if measured else ()
    offered: Mapping[Pair, ModelLoad] = {}
    if loads is not None:
        sizes = together(one for one in performance if one.namespace in shares_in)
        offered, problem = await loads.update(prometheus, found.get(LOAD), load_window, namespaces, sizes, shares_in)
        if problem:
            failures["load history"] = problem
    return Signals(
        pods=pods,
        request_counts=counts,
        last_seen=seen,
        gateway_queue=gateway_queue(found.get(GATEWAY, ()), gateways),
        gateway_bytes=gateway_queue(found.get(GATEWAY_BYTES, ()), gateways),
        loads=offered,
        performance=performance,
        sizes=request_sizes(found),
        partial_errors=tuple(text for purpose, text in failures.items() if purpose not in own),
        errors_in=with_errors(
            {}, ((space, text) for purpose, text in failures.items() for space in sorted(own.get(purpose, ())))
        ),
        gateway_unknown=GATEWAY in failures,
    )


def gateway_queue(samples: Iterable[Sample], gateways: Container[str] = ()) -> dict[Pair, float]:
    """Queued requests (or their bytes) by namespace and model: the target model where there is one, else the model
    asked for.

    Any pod may show such a series, and what it shows counts for its own namespace. Only those of ``gateways``, which
    are namespaces, count for all: that is the namespace ``""``; or for that of the ModelServer that a router among
    them names, since its pods are there. A series without namespace is nobody's.
    """
    queue: dict[Pair, float] = {}
    for sample in samples:
        space = sample.labels.get("namespace", "")
        model = sample.labels.get("target_model_name") or sample.labels.get("model_name", "")
        if model and sample.value is not None and (space or space in gateways):
            waited_for = sample.labels.get("model_server", "").partition("/")[0]
            place = waited_for if space in gateways else space, model
            queue[place] = queue.get(place, 0.0) + sample.value
    return queue


def read_pods(answers: Mapping[str, list[Sample]]) -> tuple[PodSignal, ...]:
    """One entry per pod and model whose engine says something now; a rate outlives its pod by its window."""
    values = _by_field(PodSignal, answers)
    now = [name for name, measure in PodSignal.measures().items() if measure.over in (Over.NOW, Over.TIME, Over.PEAK)]
    keys = sorted(set().union(*(values[name] for name in now)))
    return tuple(
        PodSignal(key[0], key[1], key[2], **{name: of.get(key) for name, of in values.items()}) for key in keys
    )


def read_performance(answers: Mapping[str, list[Sample]], known: Iterable[PodKey] = ()) -> tuple[PodPerformance, ...]:
    """One entry per pod and model that any answer names, or that is ``known`` to serve it from other signals.

    A purpose without an answer (its query failed) leaves its values unknown.
    """
    caches = cache_sizes(answers.get(PodPerformance.measures()["kv_tokens"].purpose, ()))
    values = _by_field(PodPerformance, answers)
    keys = sorted(set(known).union(*values.values()))
    return tuple(
        PodPerformance(
            key[0], key[1], key[2], kv_tokens=caches.get(key[:2]), **{name: of.get(key) for name, of in values.items()}
        )
        for key in keys
    )


def together(pods: Iterable[PodPerformance]) -> dict[Pair, tuple[float, float]]:
    """Mean tokens of prompts and answers by model, over what its pods finished."""
    sums: dict[Pair, list[float]] = {}
    for pod in pods:
        count = pod.completed or 0.0  # damaged where it is negative
        if count > 0 and pod.prompt_tokens is not None and pod.output_tokens is not None:
            values = (count, count * pod.prompt_tokens, count * pod.output_tokens)
            sums[pod.namespace, pod.model] = [
                a + b for a, b in zip(sums.get((pod.namespace, pod.model), (0.0, 0.0, 0.0)), values, strict=True)
            ]
    return {pair: (prompt / count, output / count) for pair, (count, prompt, output) in sums.items()}


def request_sizes(answers: Mapping[str, list[Sample]]) -> dict[Pair, SizeBuckets]:
    """What is known of the sizes of each model's requests. A histogram with a bound that is no number, a count that
    falls, or more than ``MOST_BUCKETS`` is left out."""
    prompts, outputs = (_histograms(answers.get(purpose, ())) for purpose in SIZES.values())
    return {
        pair: SizeBuckets(prompts.get(pair, ()), outputs.get(pair, ()))
        for pair in sorted(prompts.keys() | outputs.keys())
    }


def _histograms(samples: Iterable[Sample]) -> dict[Pair, Buckets]:
    counts: dict[Pair, dict[float, float]] = {}
    for sample in samples:
        bound, pair = _number(sample.labels.get("le")), model_of(sample.labels)
        counts.setdefault(pair, {})[bound] = math.nan if sample.value is None else sample.value
    result = {}
    for pair, of in counts.items():
        bounds = sorted(of)
        shares = [after - before for before, after in pairwise([0.0, *(of[bound] for bound in bounds)])]
        if len(bounds) > MOST_BUCKETS or any(map(math.isnan, bounds)):
            continue
        # Sums of what is beyond belief raise.
        if all(0 <= share < BELIEVABLE for share in shares) and (total := math.fsum(shares)) > 0:
            result[pair] = tuple((bound, share / total) for bound, share in zip(bounds, shares, strict=True))
    return result


def _number(text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        return math.nan


def _by_field(told: type[PodMeasures], answers: Mapping[str, list[Sample]]) -> dict[str, dict[PodKey, float | None]]:
    fields = {}
    for name, measure in told.measures().items():
        if measure.over is not Over.CACHE:
            fields[name] = by_pod(answers.get(measure.purpose, ()))
            if measure.scale != 1 or measure.limit is not None:
                fields[name] = {key: measure.value(value) for key, value in fields[name].items()}
    return fields


def by_pod(samples: Iterable[Sample]) -> dict[PodKey, float | None]:
    """Values by namespace, pod and model; series without a pod are left out."""
    values: dict[PodKey, float | None] = {}
    for sample in samples:
        labels = sample.labels
        pod = labels.get("pod") or labels.get("pod_name", "")
        if pod:
            values[labels.get("namespace", ""), pod, labels.get("model_name", "")] = sample.value
    return values


def cache_sizes(samples: Iterable[Sample]) -> dict[tuple[str, str], int]:
    """KV-cache tokens by (namespace, pod): a size or blocks x block size from an info metric's labels, else the value
    itself.

    The engines of a pod (data parallelism) have a cache each: their sizes add up. A size that an engine does not know
    (yet) is left out.
    """
    configs = [config for engine in ENGINES.values() if (config := engine.of.get(Signal.KV_CONFIG)) is not None]
    engines: dict[tuple[str, str, str], int] = {}
    for sample in samples:
        labels = sample.labels
        pod = labels.get("pod") or labels.get("pod_name", "")
        rank = next((labels[label] for label in ranks() if labels.get(label)), "")
        size = next(
            (
                _whole(labels.get(config.size)) or prod(_whole(labels.get(label)) for label in config.factors)
                for config in configs
                if any(label in labels for label in (*config.factors, config.size))
            ),
            int(sample.value or 0),
        )
        if pod and 0 < size < BELIEVABLE:
            engine = labels.get("namespace", ""), pod, rank
            engines[engine] = max(size, engines.get(engine, 0))
    sizes: dict[tuple[str, str], int] = {}
    for (namespace, pod, _), size in engines.items():
        sizes[namespace, pod] = sizes.get((namespace, pod), 0) + size
    return sizes


def _whole(text: str | None) -> int:
    # Python refuses to read thousands of digits.
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 20 else 0
