"""The sampled metrics as the ``Signals`` of a decision: what the loop's queries would have answered at that moment.

Each expression here mirrors one of ``modelyard.metrics``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from modelyard.metrics.values import ModelLoad, PodPerformance, PodSignal, Signals
from modelyard.replay.metrics import Metrics, PodSample, PodSeries, delta, increase

Pair = tuple[str, str]
"""(namespace, model)"""

Field = Callable[[PodSample], float]


def _finished(sample: PodSample) -> float:
    return sample.finished


def _running(sample: PodSample) -> float:
    return sample.running


def _waiting(sample: PodSample) -> float:
    return sample.waiting


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

    def read(
        self,
        now: float,
        *,
        peak_window: float,
        load_window: float,
        retentions: Iterable[int] = (),
        gateway_queue: dict[str, float] | None = None,
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
            rates = series.window(now, 5 * peak_window)
            if peaks:
                finished = increase(rates, _finished, now, 5 * peak_window) / (5 * peak_window)
                pods.append(
                    PodSignal(
                        namespace=namespace,
                        pod=series.pod.name,
                        model=model,
                        kv=max(sample.kv for sample in peaks),
                        waiting=float(max(sample.waiting for sample in peaks)),
                        running=None if instant is None else float(instant.running),
                        completed_rate=_known(finished),
                        sampled_at=None if instant is None else instant.at + origin,
                    )
                )
            if instant is not None:
                seen[pair] = max(instant.at + origin, seen.get(pair, -math.inf))
            within = series.window(now, load_window)
            if len(within) >= 2:
                grown = (
                    increase(within, _finished, now, load_window)
                    + delta(within, _running, now, load_window)
                    + delta(within, _waiting, now, load_window)
                )
                arrivals[pair] = arrivals.get(pair, 0.0) + grown / load_window
            if peaks or within:
                performance.append(_performance(series, within, now, load_window))
            for period in periods:
                count = increase(series.window(now, period), _finished, now, period)
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


def _performance(series: PodSeries, within: list[PodSample], now: float, window: float) -> PodPerformance:
    config = series.pod.core.config

    def ratio(top: Field, bottom: Field, scale: float = 1.0) -> float | None:
        below = increase(within, bottom, now, window)
        if not below > 0:
            return None
        return _known(scale * increase(within, top, now, window) / below)

    return PodPerformance(
        namespace=series.pod.variant.key.namespace,
        pod=series.pod.name,
        model=series.pod.variant.model,
        completed=_known(increase(within, _finished, now, window)),
        prompt_tokens=ratio(lambda s: s.prompt_tokens, lambda s: s.finished_sized),
        output_tokens=ratio(lambda s: s.output_tokens, lambda s: s.finished_sized),
        ttft=ratio(lambda s: s.ttft, lambda s: s.ttft_count, 1000.0),
        itl=ratio(lambda s: s.itl, lambda s: s.itl_count, 1000.0),
        kv_tokens=config.kv_capacity,
        prefix_hit_rate=ratio(lambda s: s.prefix_hits, lambda s: s.prefix_queries),
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
