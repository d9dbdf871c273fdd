"""The sampled metrics as the ``Signals`` of a decision: what the loop's queries would have answered at that moment.

What is measured of a pod is answered here by ``Over``, as ``modelyard.metrics.queries`` asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from modelyard.metrics.queries import TAILS
from modelyard.metrics.values import Measure, ModelLoad, Over, PodMeasures, PodPerformance, PodSignal, Signals
from modelyard.metrics.vocabulary import Signal
from modelyard.replay.metrics import (
    MEASURES,
    Metrics,
    PodSample,
    PodSeries,
    delta,
    field,
    field_of,
    increase,
    metrics_of,
    quantile,
)

Pair = tuple[str, str]
"""(namespace, model)"""

_FINISHED, _RUNNING, _WAITING = (field_of(signal) for signal in (Signal.FINISHED, Signal.RUNNING, Signal.WAITING))
_TAILED = {Signal.TTFT: "ttft", Signal.TPOT: "tpot"}
_FIELDS = {measure: [field(metric) for metric in metrics_of(measure)] for measure in MEASURES}


class SignalReader:
    """Reads one tick's signals, and keeps the history of offered load between ticks.

    ``origin`` is the epoch second of the trace's start: what goes into a decision is in epoch seconds. ``history`` is
    how many seconds of load are kept.
    """

    def __init__(
        self, metrics: Metrics, origin: float, *, history: float, tails: Mapping[Signal, float] = TAILS
    ) -> None:
        self._metrics = metrics
        self._origin = origin
        self._history = history
        self._tails = tails
        self._loads: dict[Pair, list[tuple[float, float]]] = {}

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
            loads=self._load(now, arrivals),
            performance=tuple(sorted(performance, key=lambda one: (one.namespace, one.pod, one.model))),
        )

    def _values(self, told: type[PodMeasures], series: PodSeries, now: float, window: float) -> dict[str, Any]:
        return {name: self._value(measure, series, now, window) for name, measure in told.measures().items()}

    def _value(self, measure: Measure, series: PodSeries, now: float, window: float) -> float | None:
        """What the query of a measure would have answered for one pod."""
        if measure.over is Over.CACHE:
            return series.pod.core.config.kv_capacity
        fields = _FIELDS[measure]
        if not fields:
            return None
        if measure.over in (Over.NOW, Over.TIME):
            newest = self._metrics.instant(series, now)
            if newest is None:
                return None
            return measure.value(newest.at + self._origin if measure.over is Over.TIME else fields[0](newest))
        span = 5 * window if measure.over in (Over.RATE, Over.STEADY, Over.TAIL) else window
        samples = series.window(now, span)
        if measure.over is Over.TAIL:
            return measure.value(self._tail(measure, series, samples))
        if measure.over is Over.PEAK:
            return measure.value(max(map(fields[0], samples), default=None))
        found, *count = (increase(samples, one, now, span) for one in fields)
        if measure.over in (Over.MEAN, Over.STEADY):
            found = found / count[0] if count[0] > 0 else math.nan
        elif measure.over is Over.RATE:
            found /= span
        return measure.value(found) if math.isfinite(found) else None

    def _tail(self, measure: Measure, series: PodSeries, samples: Sequence[PodSample]) -> float | None:
        place = quantile(samples, _FIELDS[measure][0], self._tails[measure.signal])
        if math.isnan(place):
            return None
        bounds: tuple[float, ...] = (0.0, *getattr(series.pod.core.stats, _TAILED[measure.signal]).bounds)
        # As Prometheus has it, the last bucket has no width.
        whole = min(int(place), len(bounds) - 1)
        upper = bounds[min(whole + 1, len(bounds) - 1)]
        return bounds[whole] + (upper - bounds[whole]) * (place - whole)

    def _load(self, now: float, arrivals: dict[Pair, float]) -> dict[Pair, ModelLoad]:
        at = now + self._origin
        for pair, rate in arrivals.items():
            points = self._loads.setdefault(pair, [])
            points.append((at, max(0.0, rate)))
        begin = at - self._history
        for pair, points in list(self._loads.items()):
            kept = [point for point in points if point[0] >= begin]
            if kept:
                self._loads[pair] = kept
            else:
                del self._loads[pair]
        return {
            pair: ModelLoad(max(0.0, arrivals[pair]) if pair in arrivals else None, tuple(points))
            for pair, points in sorted(self._loads.items())
        }
