"""Policy bindings exactly as documented: plain arithmetic, windows that start empty, nothing guarded at zero.

Source: Kthena autoscaler reference, "Recommended replicas" and "Corrected replicas (behaviour)".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modelyard.autoscaling.bindings import Corrector, Metered, Recommendation, TargetMetrics, windows
from modelyard.autoscaling.fleet import TargetView
from modelyard.autoscaling.memory import BindingMemory


class DocumentedCorrector(Corrector):
    """Limits that hold at zero too, and scale-down limited from the lowest replicas of its period."""

    @classmethod
    def started(cls, memory: BindingMemory, current: int, now: float) -> BindingMemory:
        """Windows start empty."""
        return memory

    def noted(self, corrected: int) -> int:
        return corrected

    def panics(self) -> bool:
        """At zero any recommendation starts a panic."""
        return self.reaches_threshold()

    def panic_limit(self, base: int) -> int | None:
        """Return the most replicas in panic, at zero too."""
        return base + base * self.behaviour.panic.percent // 100

    def shrinking_base(self, period: float) -> int | None:
        return windows.lowest_line(self.memory.corrected, period, self.now, self.tick, self.current)

    def growth_limit(self, base: int) -> int | None:
        """Return the most replicas a scale-up may lead to, at zero too."""
        return self._bound(self.behaviour.up, base, 1)


class PublishedTargetMetrics(TargetMetrics):
    """Targets looked at as one instance with the sum of their values; the last instance goes at once."""

    histograms_from_start = True
    corrector = DocumentedCorrector

    def recommend(self, metered: Metered) -> Recommendation:
        """Return what the sums of the targets' values ask for, unweighted."""
        sums = [(target, [_summed(target.instances)]) for target in metered.targets]
        return metered._replace(weighted=False).recommend(sums, doubts=False)

    def may_sleep(self, targets: Sequence[TargetView]) -> list[TargetView]:
        """No target waits until it is idle."""
        return []

    def wake(self, metered: Metered, advice: Recommendation) -> int | None:
        """Nothing is woken past the limits."""
        return None


def _summed(instances: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for values in instances:
        for name, value in values.items():
            total[name] = total.get(name, 0.0) + value
    return total
