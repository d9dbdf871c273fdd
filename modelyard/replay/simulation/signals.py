"""The sampled metrics as the ``Signals`` of a decision: what the loop's queries would have answered at that moment.

What is measured of a pod is answered here by ``Over``, as ``modelyard.metrics.vocabulary.queries`` asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from modelyard.metrics.prometheus import together
from modelyard.metrics.vocabulary import (
    SIZED,
    SIZES,
    Buckets,
    Measure,
    ModelLoad,
    Over,
    PodMeasures,
    PodPerformance,
    PodSignal,
    Signal,
    Signals,
    SizeBuckets,
)
from modelyard.replay.simulation.metrics import (
    ENGINE,
    MEASURES,
    Metrics,
    PodSample,
    PodSeries,
    delta,
    field,
    field_of,
    increase,
    metrics_of,
)

Pair = tuple[str, str]
"""(namespace, model)"""

_FINISHED, _RUNNING, _WAITING = (field_of(signal) for signal in (Signal.FINISHED, Signal.RUNNING, Signal.WAITING))
_SIZED = {Signal.REQUEST_PROMPT_TOKENS: "prompt_tokens", Signal.REQUEST_OUTPUT_TOKENS: "generation_tokens"}
_FIELDS = {measure: [field(metric) for metric in metrics_of(measure)] for measure in MEASURES}


_BUCKETS: tuple[Callable[[PodSample], Any], ...] = tuple(field(f"{ENGINE.of[signal].name}_bucket") for signal in SIZES)


def _shares(counts: Mapping[float, int]) -> Buckets:
    total = sum(counts.values())
    return tuple((bound, counts[bound] / total) for bound in sorted(counts)) if total else ()


class SignalReader:
    """Reads one tick's signals, and keeps the history of offered load between ticks.

    ``origin`` is the epoch second of the trace's start: what goes into a decision is in epoch seconds. ``history`` is
    how many seconds of load are kept.
    """

    def __init__(self, metrics: Metrics, origin: float, *, history: float) -> None:
        self._metrics = metrics
        self._origin = origin
        self._history = history
        self._loads: dict[Pair, list[tuple[float, float]]] = {}
        self._sizes: dict[Pair, list[tuple[float, float, float]]] = {}

    def read(
        self,
        now: float,
        *,
        peak_window: float,
        load_window: float,
        retentions: Iterable[int] = (),
        gateway_queue: dict[Pair, float] | None = None,
    ) -> Signals:
        """The signals at ``now`` (seconds from the trace's start)."""
        pods: list[PodSignal] = []
        performance: list[PodPerformance] = []
        arrivals: dict[Pair, float] = {}
        seen: dict[Pair, float] = {}
        sizes: dict[Pair, list[dict[float, int]]] = {}
        periods = sorted(set(retentions))
        counts: dict[tuple[str, str, int], float] = {}
        before: set[tuple[str, str, int]] = set()
        metrics, origin = self._metrics, self._origin
        for series in metrics.series(now):
            spec = series.pod.variant
            namespace, model = spec.key.namespace, spec.model
            pair = (namespace, model)
            instant = metrics.instant(series, now)
            peaks = series.window(now, peak_window)
            if peaks:
                pods.append(
                    PodSignal(namespace, series.pod.name, model, **self._values(PodSignal, series, now, peak_window))
                )
            if instant is not None:
                seen[pair] = max(instant.at + origin, seen.get(pair, -math.inf))
            within = series.window(now, load_window)
            if len(within) >= 2:
                grown = (
                    increase(within, _FINISHED, now, load_window)
                    + delta(within, _RUNNING, now, load_window)
                    + delta(within, _WAITING, now, load_window)
                )
                arrivals[pair] = arrivals.get(pair, 0.0) + grown / load_window
            if peaks or within:
                measured = self._values(PodPerformance, series, now, load_window)
                performance.append(PodPerformance(namespace, series.pod.name, model, **measured))
            self._count(series, now - SIZED * load_window, sizes.setdefault(pair, [{} for _ in SIZES]))
            for period in periods:
                count = increase(series.window(now, period), _FINISHED, now, period)
                key = (namespace, model, period)
                if not math.isnan(count):
                    counts[key] = counts.get(key, 0.0) + count
                if series.window(now - period, 300.0):
                    before.add(key)
        return Signals(
            pods=tuple(sorted(pods, key=lambda signal: (signal.namespace, signal.pod, signal.model))),
            request_counts={key: count for key, count in counts.items() if key in before},
            last_seen=seen,
            gateway_queue=gateway_queue or {},
            loads=self._load(now, arrivals, together(performance)),
            performance=tuple(sorted(performance, key=lambda one: (one.namespace, one.pod, one.model))),
            sizes={pair: SizeBuckets(*map(_shares, of)) for pair, of in sizes.items()},
        )

    def _count(self, series: PodSeries, begin: float, sums: Sequence[dict[float, int]]) -> None:
        newest = series.samples[-1]
        oldest = next(sample for sample in series.samples if sample.at > begin or sample is newest)
        for read, signal, found in zip(_BUCKETS, SIZES, sums, strict=True):
            bounds = getattr(series.pod.core.stats, _SIZED[signal]).bounds
            for bound, early, late in zip((*bounds, math.inf), read(oldest), read(newest), strict=True):
                found[bound] = found.get(bound, 0) + late - early

    def _values(self, told: type[PodMeasures], series: PodSeries, now: float, window: float) -> dict[str, Any]:
        return {name: self._value(measure, series, now, window) for name, measure in told.measures().items()}

    def _value(self, measure: Measure, series: PodSeries, now: float, window: float) -> float | None:
        if measure.over is Over.CACHE:
            return series.pod.core.config.kv_capacity
        if measure.over is Over.ENGINES:
            return 1.0  # a simulated pod runs one engine
        fields = _FIELDS[measure]
        if not fields:
            return None
        if measure.over in (Over.NOW, Over.TIME):
            newest = self._metrics.instant(series, now)
            if newest is None:
                return None
            return measure.value(newest.at + self._origin if measure.over is Over.TIME else fields[0](newest))
        span = 5 * window if measure.over in (Over.RATE, Over.STEADY) else window
        samples = series.window(now, span)
        if measure.over is Over.PEAK:
            return measure.value(max(map(fields[0], samples), default=None))
        found, *count = (increase(samples, one, now, span) for one in fields)
        if measure.over in (Over.MEAN, Over.STEADY):
            found = found / count[0] if count[0] > 0 else math.nan
        elif measure.over is Over.RATE:
            found /= span
        return measure.value(found) if math.isfinite(found) else None

    def _load(
        self, now: float, arrivals: dict[Pair, float], sizes: Mapping[Pair, tuple[float, float]]
    ) -> dict[Pair, ModelLoad]:
        at = now + self._origin
        for pair, rate in arrivals.items():
            self._loads.setdefault(pair, []).append((at, max(0.0, rate)))
        for pair, size in sizes.items():
            self._sizes.setdefault(pair, []).append((at, *size))
        begin = at - self._history
        self._loads = {
            pair: kept for pair, points in self._loads.items() if (kept := [one for one in points if one[0] >= begin])
        }
        self._sizes = {pair: [one for one in points if one[0] >= begin] for pair, points in self._sizes.items()}
        return {
            pair: ModelLoad(
                max(0.0, arrivals[pair]) if pair in arrivals else None, tuple(points), tuple(self._sizes.get(pair, ()))
            )
            for pair, points in sorted(self._loads.items())
        }
