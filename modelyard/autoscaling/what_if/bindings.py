"""The targets of policy bindings in virtual time: instances come after their start-up and share the held metrics.

Metrics that add up keep their total over all instances of a binding, shares are diluted; instances take their part by
the capacity the binding declares for their target. Totals measured elsewhere and demand stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import fsum

from modelyard.autoscaling.bindings import parse_choice, units
from modelyard.autoscaling.configuration import FleetSettings, Mode
from modelyard.autoscaling.decisions import BindingDecision
from modelyard.autoscaling.fleet import BindingView, TargetView


@dataclass(slots=True)
class _Target:
    """One target: how many instances are ready, and when the others will be."""

    view: TargetView
    current: int
    ready: int
    coming: list[float] = field(default_factory=list)

    def scale(self, wanted: int, ready_at: float) -> None:
        """Instances that are not ready go first."""
        more = wanted - self.current
        self.coming += [ready_at] * more
        for _ in range(-more):
            if self.coming:
                self.coming.pop()
            else:
                self.ready = max(0, self.ready - 1)
        self.current = wanted

    def arrive(self, now: float) -> None:
        self.ready += sum(at <= now for at in self.coming)
        self.coming = [at for at in self.coming if at > now]


class VirtualBinding:
    """One binding of a fleet."""

    def __init__(self, view: BindingView, settings: FleetSettings, now: float) -> None:
        self.view = view
        self._settings = settings
        self._targets: dict[str, _Target] = {}
        for target in view.targets:
            if target.current is None:
                continue
            ready = len(target.instances)
            soon = now + self._startup(target)
            coming = [soon] * max(target.unready, target.current - ready)
            self._targets[str(target.workload)] = _Target(target, target.current, ready, coming)
        capacities = parse_choice(view.annotations, [target.name for target in view.targets]).capacities
        self._weights = {str(target.workload): capacities.get(target.name, 1.0) for target in view.targets}

    def _startup(self, target: TargetView) -> float:
        return self._settings.startup_default if target.startup_seconds is None else target.startup_seconds

    def follow(self, decision: BindingDecision, now: float) -> None:
        self.view = replace(
            self.view,
            memory=decision.memory,
            conditions=decision.conditions,
            status={**self.view.status, "units": units(decision)},
        )
        for record in decision.records:
            target = self._targets.get(str(record.now.workload))
            follows = record.writes.mode is Mode.SIGNAL and record.target.decided
            wanted = record.target.replicas if follows else record.writes.scale
            if target is not None and wanted is not None and wanted != target.current:
                target.scale(wanted, now + self._startup(target.view))

    def at(self, now: float) -> BindingView:
        for scaled in self._targets.values():
            scaled.arrive(now)
        values = self._values()
        targets = []
        for target in self.view.targets:
            if (known := self._targets.get(key := str(target.workload))) is not None:
                count, ready, coming = known.current, known.ready, len(known.coming)
                target = replace(target, current=count, ready=ready, unready=coming, instances=values[key])
            targets.append(target)
        return replace(self.view, targets=tuple(targets))

    def starting(self, now: float) -> bool:
        return any(at > now for target in self._targets.values() for at in target.coming)

    def _values(self) -> dict[str, tuple[Mapping[str, float], ...]]:
        if all(target.ready == len(target.view.instances) for target in self._targets.values()):
            return {key: target.view.instances for key, target in self._targets.items()}
        measured = [(self._weights[k], one) for k, t in self._targets.items() for one in t.view.instances]
        # A share that is diluted and a sum that is split are the same arithmetic: each takes its part of the whole.
        whole = fsum(self._weights[key] * target.ready for key, target in self._targets.items())
        means: dict[str, float] = {}
        for name in sorted({name for _, one in measured for name in one}):
            have = [(weight, one[name]) for weight, one in measured if name in one]
            per_weight = fsum(value for _, value in have) / fsum(weight for weight, _ in have)
            means[name] = per_weight * fsum(weight for weight, _ in measured) / whole if whole else 0.0
        return {
            key: tuple({n: v * self._weights[key] for n, v in means.items()} for _ in range(target.ready))
            for key, target in self._targets.items()
        }
