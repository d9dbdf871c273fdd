"""The forecast in a closed loop: load goes up and down in steps, pods take a minute to start."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from builders import NOW, records
from slo_builders import SLO, STILL, slo_fleet

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.memory.variants import AUTOSCALING_STATE, VariantMemory
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.objects import Pod
from modelyard.reconcile.plans.memory import parse_memory, render_memory

TICK, START_UP = 15.0, 60.0


@dataclass
class World:
    """One variant whose workload follows every decision; ``births`` are the times its pods were created."""

    births: list[float] = field(default_factory=lambda: [NOW - 3600.0])
    memory: VariantMemory = field(default_factory=VariantMemory)
    desired: int = 1
    history: list[tuple[float, float]] = field(default_factory=lambda: [(NOW - 600.0, 5.0)])
    now: float = NOW

    def step(self, load: float, settings: FleetSettings) -> int:
        self.history = [*(point for point in self.history if point[0] > self.now - 300), (self.now, load)]
        ready = [born for born in self.births if self.now - born >= START_UP]
        count = len(self.births)
        variant = SLO(replicas=count, serving={"desired": self.desired, "memory": self.memory, "ready": len(ready)})
        fleet = slo_fleet(variant, load=load, now=self.now, history=((self.now - 300, load), *self.history))
        fleet = replace(fleet, pods=tuple(self.pod(pod, i) for i, pod in enumerate(fleet.pods)))
        reporting = {pod.key.name for pod in fleet.pods if pod.ready_since is not None}
        signals = tuple(s for s in fleet.signals.pods if s.pod in reporting)
        fleet = replace(fleet, signals=replace(fleet.signals, pods=signals))
        record = records(decide(fleet, settings))["v1"]
        # The memory goes through its text in every tick, as when a worker dies and another carries on.
        self.memory, _ = parse_memory(VariantMemory, AUTOSCALING_STATE, render_memory(record.memory))
        self.desired = record.target.replicas
        if record.writes.scale is not None:
            self.births = self.births[: record.writes.scale] + [self.now] * (record.writes.scale - count)
        self.now += TICK
        return self.desired

    def pod(self, pod: Pod, index: int) -> Pod:
        born = self.births[index]
        ready = born + START_UP
        return replace(pod, created=born, ready_since=ready if ready <= self.now else None)


def follow(stairs: list[float], ticks: int, settings: FleetSettings = STILL) -> list[int]:
    world = World()
    return [world.step(load, settings) for load in stairs for _ in range(ticks)]


def directions(sizes: list[int]) -> list[int]:
    """Changes of direction: 1 for up, -1 for down, repeated ones merged."""
    signs = [1 if b > a else -1 for a, b in pairwise(sizes) if a != b]
    return [s for i, s in enumerate(signs) if i == 0 or s != signs[i - 1]]


def test_replicas_follow_the_staircase_up_at_once_and_down_once():
    ticks = 40
    sizes = follow([30.0, 60.0, 90.0, 60.0, 30.0], ticks)
    at = [sizes[i * ticks] for i in range(3)]
    assert at == [2, 4, 5]
    assert [sizes[(i + 1) * ticks - 1] for i in range(5)] == [2, 4, 5, 4, 2]
    assert directions(sizes) == [1, -1]


def test_a_load_that_wobbles_about_an_edge_settles():
    sizes = follow([37.0, 38.0] * 30, 1)
    assert sizes[-40:] == [3] * 40


def test_head_room_asks_for_replicas_before_they_are_needed():
    ramp = [5.0 + 0.5 * i for i in range(60)]
    world, ahead = World(), World()
    plain = [world.step(load, STILL) for load in ramp]
    early = [ahead.step(load, FleetSettings()) for load in ramp]
    assert all(a >= b for a, b in zip(early, plain, strict=True))
    assert early.index(2) < plain.index(2)
