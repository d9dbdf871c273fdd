"""Hours of virtual time with noisy load and instances that take their time: nothing flaps, nothing runs away."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from binding_decisions import decide_binding
from policy_builders import METRIC, SETTINGS, WRITTEN, binding, policy, target

from modelyard.autoscaling.fleet.binding_view import Behaviour, DirectionLimits, Panic
from modelyard.autoscaling.memory.bindings import BindingMemory

MODEL = Behaviour(DirectionLimits(1, 100, 15, "Or", 0), DirectionLimits(1, 100, 15, "Or", 300), Panic(1000, 0, 200, 60))
TICK = 15
Load = Callable[[float], float]


@dataclass
class Run:
    """What came of it: the changes of the replicas (time, before, after), and at how many ticks too few were ready."""

    changes: list[tuple[float, int, int]] = field(default_factory=list)
    short: int = 0
    most: int = 0

    @property
    def reversals(self) -> int:
        """Changes against the direction of the one before."""
        ways = [after > before for _, before, after in self.changes]
        return sum(one is not other for one, other in pairwise(ways))


def run(
    load: Load,
    hours: float = 3.0,
    behaviour: Behaviour = WRITTEN,
    noise: float = 0.0,
    startup: float = 90.0,
    low: int = 1,
    high: int = 20,
    tolerance: int = 10,
) -> Run:
    """One workload whose instances carry 10 each and become ready ``startup`` seconds after they are asked for."""
    chance = random.Random(7)
    ready_at = [-1.0] * max(low, 1)
    memory, found = BindingMemory(), Run()
    rules = policy(behaviour, tolerance=tolerance)
    for now in range(0, int(hours * 3600), TICK):
        wanted = max(0.0, load(now) * chance.gauss(1, noise))
        ready = sum(at <= now for at in ready_at)
        instances = tuple({METRIC: max(0.0, wanted * 10 / ready * chance.gauss(1, noise))} for _ in range(ready))
        unready = len(ready_at) - ready
        seen = target("w", len(ready_at), low, high, instances=instances, unready=unready, ready=ready, demand=wanted)
        decision = decide_binding(replace(binding(seen, policy_view=rules), memory=memory), SETTINGS, float(now))
        memory = decision.memory
        write = decision.records[0].writes.scale
        if write is not None:
            found.changes.append((now, len(ready_at), write))
            ready_at = sorted(ready_at)[:write] + [now + startup] * (write - len(ready_at))
        found.short += ready < wanted / 1.2
        found.most = max(found.most, len(ready_at))
    return found


@pytest.mark.parametrize("behaviour", [WRITTEN, MODEL], ids=["by hand", "of a Model"])
@pytest.mark.parametrize("level", [0.5, 4.6, 5.0, 9.5])
def test_a_noisy_constant_load_does_not_make_it_flap(behaviour: Behaviour, level: float) -> None:
    """Up as soon as the noise asks for it, down only after five quiet minutes: never more than a few times an hour."""
    found = run(lambda _: level, behaviour=behaviour, noise=0.1)
    assert len(found.changes) <= 12
    assert found.reversals <= 8
    assert found.most <= level * 1.5 + 2


@pytest.mark.parametrize("startup", [0.0, 90.0, 600.0])
def test_a_step_is_followed_without_overshoot(startup: float) -> None:
    """What is on its way is counted, however long it takes: the queue of those who wait does not add to it."""
    found = run(lambda now: 2.0 if now < 1800 else 12.0, startup=startup)
    assert found.most == 12
    assert found.reversals == 0
    assert found.short * TICK <= 2 * startup + 120  # the first instance, then the step in two strides


def test_it_comes_down_again_once() -> None:
    found = run(lambda now: 12.0 if now < 3600 else 3.0, hours=2)
    assert [change for change in found.changes if change[0] >= 3600] == [(3900.0, 12, 3)]


def test_short_bursts_are_not_chased_down_and_up_again() -> None:
    """A burst every four minutes keeps what it needs; one every twenty lets it go in between."""
    often = run(lambda now: 10.0 if now % 240 < 60 else 2.0)
    assert len([1 for change in often.changes if change[0] > 600]) == 0
    rarely = run(lambda now: 10.0 if now % 1200 < 60 else 2.0)
    assert rarely.reversals <= 2 * 3 * 3


def test_nothing_to_do_and_back_and_the_last_one_goes_only_when_it_is_quiet() -> None:
    found = run(lambda now: 3.0 if now % 1800 < 120 else 0.0, low=0)
    assert found.reversals <= 2 * 6
    assert run(lambda _: 0.3, low=0).changes == []


def test_a_thousand_instances() -> None:
    found = run(lambda now: 100.0 if now < 600 else 900.0, hours=1, high=1000, startup=120)
    assert found.most == 900
    assert found.reversals == 0
