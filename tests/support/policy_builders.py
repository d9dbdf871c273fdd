"""Short ways to make bindings, and a small world in which the decisions of one take effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from binding_decisions import decide_binding

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.decision import BindingDecision
from modelyard.autoscaling.fleet.binding_view import (
    Behaviour,
    BindingView,
    DirectionLimits,
    Panic,
    PolicyView,
    TargetView,
)
from modelyard.autoscaling.memory.bindings import BindingMemory
from modelyard.objects import Key, WorkloadId

SETTINGS = FleetSettings()
METRIC = "waiting"
NO_PANIC = Panic(0, 0, 200, 0)
WRITTEN = Behaviour(DirectionLimits(4, 100, 60, "Or", 0), DirectionLimits(0, 100, 60, "Or", 300), NO_PANIC)
FREE = Behaviour(DirectionLimits(0, 0, 0, "Or", 0), DirectionLimits(0, 0, 0, "Or", 0), NO_PANIC)


def policy(
    behaviour: Behaviour = WRITTEN, targets: Mapping[str, float] | None = None, tolerance: int = 10
) -> PolicyView:
    return PolicyView(Key("ns", "pol"), 1, tolerance, targets or {METRIC: 10.0}, behaviour)


def target(name: str = "w", current: int | None = 1, low: int = 1, high: int = 20, **rest: Any) -> TargetView:
    workload = WorkloadId(rest.pop("namespace", "ns"), "apps", "Deployment", name)
    return TargetView(name, workload, low, high, current=current, **rest)


def each(count: int, value: float, metric: str = METRIC) -> tuple[Mapping[str, float], ...]:
    return tuple({metric: value} for _ in range(count))


def binding(
    *targets: TargetView, policy_view: PolicyView | None = None, optimizer: bool = False, **rest: Any
) -> BindingView:
    given = {
        "key": Key("ns", "b"),
        "uid": "u",
        "generation": 3,
        "resource_version": "7",
        "policy_name": "pol",
        **rest,
    }
    return BindingView(
        optimizer=optimizer, targets=targets, policy=policy() if policy_view is None else policy_view, **given
    )


class World:
    """One workload under one binding: ticks, loads, and a process that can be killed between any two ticks."""

    def __init__(
        self,
        behaviour: Behaviour,
        current: int,
        low: int = 1,
        high: int = 20,
        settings: FleetSettings = SETTINGS,
        **view: Any,
    ) -> None:
        self.policy = policy(behaviour, tolerance=0)
        self.current, self.low, self.high, self.settings, self.extra = current, low, high, settings, view
        self.memory = BindingMemory()
        self.last: BindingDecision | None = None

    def kill(self) -> None:
        """Everything but what is stored with the binding is lost."""
        self.memory = BindingMemory.model_validate_json(self.memory.model_dump_json(exclude_defaults=True))

    def tick(self, now: float, demand: float) -> int:
        """Decide at ``now`` with load for ``demand`` instances, then let the workload follow."""
        load = demand * 10.0
        seen = target(
            "w",
            self.current,
            self.low,
            self.high,
            instances=each(self.current, load / self.current) if self.current else (),
            demand=load,
        )
        view = replace(binding(seen, policy_view=self.policy), memory=self.memory, **self.extra)
        self.last = decide_binding(view, self.settings, now)
        self.memory = self.last.memory
        write = self.last.records[0].writes.scale
        if write is not None:
            self.current = write
        return self.current

    def run(self, demand: Callable[[float], float], until: float, step: float = 15) -> dict[float, int]:
        """The replicas after every tick at which they changed."""
        changes: dict[float, int] = {}
        now, before = 0.0, self.current
        while now <= until:
            after = self.tick(now, demand(now))
            if after != before:
                changes[now] = after
            before, now = after, now + step
        return changes
