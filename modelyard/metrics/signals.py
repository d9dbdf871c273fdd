"""Fleet queries in, ``Signals`` out.

A failing query never looks like zero: if KV use or queue length cannot be read at all, the whole signal source counts
as failed; any other query's failure leaves its values unknown and is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from math import prod

from modelyard.metrics.client import Prometheus, PrometheusError, Sample
from modelyard.metrics.loads import LoadHistory
from modelyard.metrics.queries import (
    FleetQueries,
    Purpose,
    finished_over,
    offered_load,
    performance_queries,
    seen_over,
)
from modelyard.metrics.values import ModelLoad, PodPerformance, PodSignal, Signals
from modelyard.metrics.vocabulary import ENGINES, Signal

Pair = tuple[str, str]
"""(namespace, model)"""

PodKey = tuple[str, str, str]
"""(namespace, pod, model)"""

OFFERED_LOAD = "offered load"

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
            self._found = {
                (sample.labels.get("namespace", ""), sample.labels.get("model_name", "")): sample.value
                for sample in samples
                if sample.value is not None
            }
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
    texts = FleetQueries.build(peak_window, namespaces)
    periods = sorted(set(retentions))
    measured = sorted(set(performance_in))
    asked: dict[str, str] = {
        "KV-cache use": texts.kv,
        "waiting requests": texts.waiting,
        "running requests": texts.running,
        "finished requests": texts.finished_rate,
        "sample times": texts.sampled_at,
        "gateway queue": texts.gateway_queue,
        **{f"finished requests over {period} s": finished_over(period, namespaces) for period in periods},
        **({} if loads is None else {OFFERED_LOAD: offered_load(load_window, namespaces)}),
        **(performance_queries(load_window, measured, latency_in, caches_in) if measured else {}),
    }
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

    for vital in ("KV-cache use", "waiting requests"):
        if vital in failures:
            return Signals(error=failures[vital], partial_errors=tuple(failures.values()))

    kv = by_pod(found["KV-cache use"])
    waiting = by_pod(found["waiting requests"])
    running = by_pod(found.get("running requests", []))
    rate = by_pod(found.get("finished requests", []))
    sampled = by_pod(found.get("sample times", []))
    keys = sorted(kv.keys() | waiting.keys() | running.keys())
    pods = tuple(
        PodSignal(
            namespace=key[0],
            pod=key[1],
            model=key[2],
            kv=kv.get(key),
            waiting=waiting.get(key),
            running=running.get(key),
            completed_rate=rate.get(key),
            sampled_at=sampled.get(key),
        )
        for key in keys
    )
    counts = {
        (sample.labels.get("namespace", ""), sample.labels.get("model_name", ""), period): sample.value
        for period in periods
        for sample in found.get(f"finished requests over {period} s", [])
        if sample.value is not None
    }
    seen: dict[Pair, float] = {}
    for (namespace, _, model), at in sampled.items():
        if at is not None:
            seen[namespace, model] = max(at, seen.get((namespace, model), 0.0))
    if silent := set(expected) - seen.keys():
        seen.update(await (last_seen or LastSeen()).of(prometheus, silent))
    offered: Mapping[Pair, ModelLoad] = {}
    if loads is not None:
        offered, problem = await loads.update(prometheus, found.get(OFFERED_LOAD), load_window, namespaces)
        if problem:
            failures["load history"] = problem
    performance = read_performance(found, (key for key in keys if key[0] in measured)) if measured else ()
    return Signals(
        pods=pods,
        request_counts=counts,
        last_seen=seen,
        gateway_queue=gateway_queue(found.get("gateway queue", [])),
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
    completed = by_pod(answers.get(Purpose.COMPLETED, ()))
    prompt = by_pod(answers.get(Purpose.PROMPT, ()))
    output = by_pod(answers.get(Purpose.OUTPUT, ()))
    ttft = by_pod(answers.get(Purpose.TTFT, ()))
    itl = by_pod(answers.get(Purpose.ITL, ()))
    hits = by_pod(answers.get(Purpose.HITS, ()))
    caches = cache_sizes(answers.get(Purpose.CACHE, ()))
    keys = {*completed, *prompt, *output, *ttft, *itl, *hits, *known}
    return tuple(
        PodPerformance(
            namespace=key[0],
            pod=key[1],
            model=key[2],
            completed=completed.get(key),
            prompt_tokens=prompt.get(key),
            output_tokens=output.get(key),
            ttft=_milliseconds(ttft.get(key)),
            itl=_milliseconds(itl.get(key)),
            kv_tokens=caches.get(key[:2]),
            prefix_hit_rate=_fraction(hits.get(key)),
        )
        for key in sorted(keys)
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


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _fraction(value: float | None) -> float | None:
    return None if value is None else min(max(value, 0.0), 1.0)
