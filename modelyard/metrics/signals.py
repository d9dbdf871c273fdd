"""Fleet queries in, ``Signals`` out.

A failing query never looks like zero: if KV use or queue length cannot be read at all, the whole signal source counts
as failed; any other query's failure leaves its values unknown and is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from math import prod

from modelyard.metrics.client import Prometheus, PrometheusError, Sample
from modelyard.metrics.loads import LoadHistory, Pair, model_of
from modelyard.metrics.queries import (
    Purpose,
    finished_over,
    fleet_queries,
    offered_load,
    performance_queries,
    seen_over,
)
from modelyard.metrics.values import ModelLoad, PodPerformance, PodSignal, Signals
from modelyard.metrics.vocabulary import ENGINES, Signal

PodKey = tuple[str, str, str]
"""(namespace, pod, model)"""

POD_FIELDS = {
    "kv": Purpose.KV,
    "waiting": Purpose.WAITING,
    "running": Purpose.RUNNING,
    "completed_rate": Purpose.FINISHED,
    "sampled_at": Purpose.SAMPLED,
}
"""The fields of a ``PodSignal`` and what answers them."""
PERFORMANCE_FIELDS = {
    "completed": Purpose.COMPLETED,
    "prompt_tokens": Purpose.PROMPT,
    "output_tokens": Purpose.OUTPUT,
    "ttft": Purpose.TTFT,
    "itl": Purpose.ITL,
    "prefix_hit_rate": Purpose.HITS,
}
"""The same of a ``PodPerformance``."""

LOOK_BACK = 3600.0
"""Seconds to look back for a model that reports nothing now."""
LOOK_AGAIN = 300.0
"""Seconds after which the look back is repeated for models already asked about; it is the dearest query there is."""


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
        if not silent <= self._asked or now - self._at >= LOOK_AGAIN:
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
    retentions: Iterable[int] = (),
    expected: Iterable[Pair] = (),
    last_seen: LastSeen | None = None,
    loads: LoadHistory | None = None,
    load_window: float = 60.0,
    performance_in: Iterable[str] = (),
    latency_in: Iterable[str] | None = None,
    caches_in: Iterable[str] | None = None,
) -> Signals:
    """All signals of one tick.

    ``retentions`` are the scale-to-zero retentions in force (seconds), one query each. ``expected`` are the
    (namespace, model) pairs that should report: if any is silent, one more query tells stale from never seen.
    ``loads``: measure offered load too, and keep its history there. ``performance_in``: the namespaces whose engines'
    performance is needed; none costs nothing. Both are taken over ``load_window`` seconds. ``latency_in`` and
    ``caches_in`` are those of them whose TTFT and ITL, or whose caches, matter (``None``: all).
    """
    namespaces = list(namespaces)
    periods = {f"finished requests over {period} s": period for period in sorted(set(retentions))}
    measured = sorted(set(performance_in))
    asked = fleet_queries(peak_window, namespaces)
    asked |= {purpose: finished_over(period, namespaces) for purpose, period in periods.items()}
    if loads is not None:
        asked[Purpose.LOAD] = offered_load(load_window, namespaces)
    if measured:
        asked |= performance_queries(load_window, measured, latency_in, caches_in)
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

    for vital in (Purpose.KV, Purpose.WAITING):
        if vital in failures:
            return Signals(error=failures[vital], partial_errors=tuple(failures.values()))

    values = {name: by_pod(found.get(purpose, ())) for name, purpose in POD_FIELDS.items()}
    keys = sorted(values["kv"].keys() | values["waiting"].keys() | values["running"].keys())
    pods = tuple(
        PodSignal(key[0], key[1], key[2], **{name: of.get(key) for name, of in values.items()}) for key in keys
    )
    counts = {
        (*model_of(sample.labels), period): sample.value
        for purpose, period in periods.items()
        for sample in found.get(purpose, ())
        if sample.value is not None
    }
    seen: dict[Pair, float] = {}
    for (namespace, _, model), at in values["sampled_at"].items():
        if at is not None:
            seen[namespace, model] = max(at, seen.get((namespace, model), 0.0))
    if silent := set(expected) - seen.keys():
        seen.update(await (last_seen or LastSeen()).of(prometheus, silent))
    offered: Mapping[Pair, ModelLoad] = {}
    if loads is not None:
        offered, problem = await loads.update(prometheus, found.get(Purpose.LOAD), load_window, namespaces)
        if problem:
            failures["load history"] = problem
    performance = read_performance(found, (key for key in keys if key[0] in measured)) if measured else ()
    return Signals(
        pods=pods,
        request_counts=counts,
        last_seen=seen,
        gateway_queue=gateway_queue(found.get(Purpose.GATEWAY, ())),
        loads=offered,
        performance=performance,
        partial_errors=tuple(failures.values()),
    )


def gateway_queue(samples: Iterable[Sample]) -> dict[str, float]:
    """Queued requests by model: the target model where there is one, else the model asked for."""
    queue: dict[str, float] = {}
    for sample in samples:
        model = sample.labels.get("target_model_name") or sample.labels.get("model_name", "")
        if model and sample.value is not None:
            queue[model] = queue.get(model, 0.0) + sample.value
    return queue


def read_performance(answers: Mapping[str, list[Sample]], known: Iterable[PodKey] = ()) -> tuple[PodPerformance, ...]:
    """One entry per pod and model that any answer names, or that is ``known`` to serve it from other signals.

    A purpose without an answer (its query failed) leaves its values unknown.
    """
    values = {name: by_pod(answers.get(purpose, ())) for name, purpose in PERFORMANCE_FIELDS.items()}
    for name, of in values.items():
        if name in ("ttft", "itl"):
            values[name] = {key: value and value * 1000 for key, value in of.items()}
        elif name == "prefix_hit_rate":
            values[name] = {key: value and min(max(value, 0.0), 1.0) for key, value in of.items()}
    caches = cache_sizes(answers.get(Purpose.CACHE, ()))
    keys = sorted(set(known).union(*values.values()))
    return tuple(
        PodPerformance(
            key[0], key[1], key[2], kv_tokens=caches.get(key[:2]), **{name: of.get(key) for name, of in values.items()}
        )
        for key in keys
    )


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
    """KV-cache tokens by (namespace, pod): blocks x block size from an info metric's labels, else the value itself.

    The engines of a pod (data parallelism) have a cache each: their sizes add up. A size that an engine does not know
    (yet) is left out.
    """
    configs = ((engine.rank, engine.of.get(Signal.KV_CONFIG)) for engine in ENGINES.values())
    kinds = [(rank, config.factors) for rank, config in configs if config is not None]
    engines: dict[tuple[str, str, str], int] = {}
    for sample in samples:
        labels = sample.labels
        pod = labels.get("pod") or labels.get("pod_name", "")
        rank, size = next(
            (
                (labels.get(rank, ""), prod(_whole(labels.get(label)) for label in factors))
                for rank, factors in kinds
                if any(label in labels for label in factors)
            ),
            ("", int(sample.value or 0)),
        )
        if pod and size > 0:
            engine = labels.get("namespace", ""), pod, rank
            engines[engine] = max(size, engines.get(engine, 0))
    sizes: dict[tuple[str, str], int] = {}
    for (namespace, pod, _), size in engines.items():
        sizes[namespace, pod] = sizes.get((namespace, pod), 0) + size
    return sizes


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0
