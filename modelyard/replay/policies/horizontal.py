"""The horizontal pod autoscaler's algorithm, and the two policies made of it: plain HPA and KEDA.

Source: the Kubernetes documentation, "Horizontal Pod Autoscaling" (algorithm details, behaviour), and KEDA's "Scaling
Deployments" (activation, cooldown). ``Horizontal`` decides for one workload; ``HPAPolicy`` and ``KEDAPolicy`` do so
for every variant from the sampled metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from modelyard.metrics.vocabulary import Signal
from modelyard.objects import Key
from modelyard.replay.simulation import Metrics, SimulatedFleet, VariantSpec, field_of

SYNC: Final = 15.0
"""The controller's sync period, seconds."""
METRICS: Final = {
    "queue": field_of(Signal.WAITING),
    "kv": field_of(Signal.KV_USE),
    "running": field_of(Signal.RUNNING),
}


@dataclass(frozen=True, slots=True)
class HorizontalBehaviour:
    """The default behaviour of ``autoscaling/v2``: growth by the larger of 100 % and 4 pods per 15 s without
    stabilization, shrinking without limit after 300 s of stabilization; ratios within 10 % are left alone."""

    tolerance: float = 0.1
    up_percent: float = 100.0
    up_pods: int = 4
    up_period: float = 15.0
    up_window: float = 0.0
    down_window: float = 300.0


class Horizontal:
    """One HPA. Ask it every sync period with ``pods`` (a metric per pod) or ``external`` (one total)."""

    def __init__(self, behaviour: HorizontalBehaviour, minimum: int = 1, maximum: int = 100) -> None:
        if not 0 <= minimum <= maximum or maximum < 1:
            raise ValueError(f"min ({minimum}) must be between 0 and max ({maximum}), and max at least 1")
        self.behaviour = behaviour
        self.minimum = minimum
        self.maximum = maximum
        self._recommended: list[tuple[float, int]] = []
        self._grown: list[tuple[float, int]] = []
        self._started = False

    def pods(self, now: float, current: int, values: Mapping[str, float], ready: int, target: float) -> int:
        """For a metric per pod with an average target (``Pods`` metrics).

        ``values`` by ready pod; ``ready`` counts them all: one without a value is taken to be at the target when the
        others ask for less, and at zero when they ask for more; so are pods that are not ready yet, when they ask for
        more. The count is not changed when those assumptions turn the direction round.
        """
        if not values:
            return current
        total, count = sum(values.values()), len(values)
        ratio = total / count / target
        missing, unready = max(0, ready - count), max(0, current - ready)
        if not missing and not (unready and ratio > 1):
            wanted = current if self._tolerated(ratio) else _ceil(ratio * count)
            return self._settle(now, current, wanted)
        if ratio < 1:
            total, count = total + missing * target, count + missing
        elif ratio > 1:
            count += missing + unready
        rebalanced = total / count / target
        turned = (ratio < 1 < rebalanced) or (rebalanced < 1 < ratio)
        wanted = current if self._tolerated(rebalanced) or turned else _ceil(rebalanced * count)
        if (rebalanced < 1 and wanted > current) or (rebalanced > 1 and wanted < current):
            wanted = current
        return self._settle(now, current, wanted)

    def external(self, now: float, current: int, total: float, target: float) -> int:
        """For one metric of the whole workload with an average target (``External`` with ``AverageValue``)."""
        tolerated = current and self._tolerated(total / (target * current))
        return self._settle(now, current, current if tolerated else _ceil(total / target))

    def _tolerated(self, ratio: float) -> bool:
        return abs(1 - ratio) <= self.behaviour.tolerance

    def _settle(self, now: float, current: int, wanted: int) -> int:
        b = self.behaviour
        wanted = min(max(wanted, self.minimum), self.maximum)
        longest = max(b.down_window, b.up_window)
        if not self._started:
            # The controller's first look at a workload counts as a recommendation to leave it as it is.
            self._started = True
            self._recommended.append((now, current))
        self._recommended = [(at, n) for at, n in self._recommended if at > now - longest]
        highest = max([wanted, *(n for at, n in self._recommended if at > now - b.down_window)])
        lowest = min([wanted, *(n for at, n in self._recommended if at > now - b.up_window)])
        self._recommended.append((now, wanted))
        stable = min(max(current, lowest), highest)
        if stable > current:
            self._grown = [(at, n) for at, n in self._grown if at > now - b.up_period]
            start = current - sum(n for _, n in self._grown)
            stable = min(stable, max(start + b.up_pods, _ceil(start * (1 + b.up_percent / 100))))
            stable = max(stable, current)
            if stable > current:
                self._grown.append((now, stable - current))
        return min(max(stable, self.minimum), self.maximum)


def _ceil(value: float) -> int:
    return math.ceil(round(value, 9))


def _values(key: Key, metric: str, now: float, metrics: Metrics) -> dict[str, float]:
    values: dict[str, float] = {}
    for series in metrics.series(now):
        if series.pod.variant.key == key and (sample := metrics.instant(series, now)) is not None:
            values[series.pod.name] = float(METRICS[metric](sample))
    return values


class _Horizontals:
    interval = SYNC
    keep = 0.0

    def __init__(self, metric: str, target: float, minimum: int, maximum: int) -> None:
        if metric not in METRICS:
            raise ValueError(f"no metric {metric!r}: choose queue (requests waiting), running or kv (a fraction)")
        if not (math.isfinite(target) and target > 0):
            raise ValueError(f"{metric} must be a number > 0 per replica, not {target!r}")
        Horizontal(HorizontalBehaviour(), minimum, maximum)
        self.metric = metric
        self.target = target
        self.minimum = minimum
        self.maximum = maximum
        self._scalers: dict[Key, Horizontal] = {}

    def initial(self, variants: Sequence[VariantSpec]) -> Mapping[Key, int]:
        for spec in variants:
            self._scalers[spec.key] = Horizontal(HorizontalBehaviour(), max(1, self.minimum), self.maximum)
        return {spec.key: min(max(spec.initial, self.minimum, 1), self.maximum) for spec in variants}


class HPAPolicy(_Horizontals):
    """A Kubernetes HPA per variant on a metric of its pods: ``hpa:queue=2`` is two waiting requests a pod."""

    def __init__(self, metric: str, target: float, minimum: int = 1, maximum: int = 100) -> None:
        super().__init__(metric, target, max(1, minimum), maximum)
        self.name = f"hpa:{metric}={target:g}"

    def tick(self, now: float, fleet: SimulatedFleet, metrics: Metrics) -> Mapping[Key, int]:
        """One sync of every variant's autoscaler."""
        wanted: dict[Key, int] = {}
        for key, scaler in self._scalers.items():
            ready = {pod.name for pod in fleet.pods_of(key) if pod.ready}
            values = {pod: value for pod, value in _values(key, self.metric, now, metrics).items() if pod in ready}
            wanted[key] = scaler.pods(now, fleet.spec[key], values, len(ready), self.target)
        return wanted


class KEDAPolicy(_Horizontals):
    """A KEDA ScaledObject per variant: a total from Prometheus over a threshold, zero and back by activation.

    Between 1 and ``maximum`` KEDA's HPA acts on total / threshold; from zero the first replica comes as soon as the
    total is above 0, and the last one goes ``cooldown`` seconds after it last was. The total contains what waits at the
    router (shared among the model's variants), or nothing would ever wake.
    """

    def __init__(
        self, metric: str, target: float, minimum: int = 0, maximum: int = 100, cooldown: float = 300.0
    ) -> None:
        super().__init__(metric, target, minimum, maximum)
        if not cooldown >= 0:
            raise ValueError(f"cooldown must be a number of seconds >= 0, not {cooldown!r}")
        self.cooldown = cooldown
        self.name = f"keda:{metric}={target:g}"
        self._active_at: dict[Key, float] = {}

    def tick(self, now: float, fleet: SimulatedFleet, metrics: Metrics) -> Mapping[Key, int]:
        """One poll and one sync."""
        wanted: dict[Key, int] = {}
        for key, scaler in self._scalers.items():
            spec = fleet.variants[key]
            siblings = sum(other.model == spec.model for other in fleet.variants.values())
            queued = fleet.queued(spec.model) / siblings if self.metric != "kv" else float(fleet.queued(spec.model) > 0)
            values = _values(key, self.metric, now, metrics)
            total = sum(values.values()) + queued
            current = fleet.spec[key]
            if total > 0 or (not values and current):
                self._active_at[key] = now
            idle = now - self._active_at.setdefault(key, now)
            active = total > 0
            if current == 0:
                wanted[key] = max(1, self.minimum) if active else self.minimum
            elif not active and self.minimum == 0 and idle >= self.cooldown:
                wanted[key] = 0
            else:
                wanted[key] = scaler.external(now, current, total, self.target)
        return wanted
