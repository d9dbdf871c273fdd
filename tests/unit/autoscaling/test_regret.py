"""After a scale-down that was taken back, the next one waits longer; that is forgotten step by step."""

from __future__ import annotations

import pytest
from builders import NOW, Serving, one

from modelyard.autoscaling.memory.variants import VariantMemory
from modelyard.autoscaling.variants.regret import FORGET, MOST, WINDOW, Shrink, after, regrets, shrink_delay

D = 120.0
LOW = ((0.05, 0.0),) * 3


def flap(memory: VariantMemory, at: float, back: float) -> VariantMemory:
    shrunk = memory.model_copy(update=after(memory, 3, 2, D, at))
    return shrunk.model_copy(update=after(shrunk, 2, 3, D, at + back))


def delay(memory: VariantMemory, at: float, replicas: int = 3) -> float:
    return shrink_delay([Shrink(memory, replicas, replicas - 1), Shrink(VariantMemory(), 9, 8)], D, at)


def test_every_regret_makes_the_delay_longer_up_to_a_limit():
    memory, found = VariantMemory(), []
    for i in range(6):
        found.append(delay(memory, NOW + 1000 * i))
        memory = flap(memory, NOW + 1000 * i, 100)
    assert found == [D, 4 * D, 16 * D, 32 * D, 32 * D, 32 * D]
    assert memory.regrets == MOST


def test_only_the_step_that_was_regretted_waits():
    memory = flap(VariantMemory(), NOW, 10)
    assert [delay(memory, NOW + 20, replicas) for replicas in (6, 4, 3, 2, 1)] == [D, D, 4 * D, D, D]
    assert shrink_delay([Shrink(memory, 20, 2)], D, NOW + 20) == 4 * D


def test_what_is_wanted_back_much_later_is_no_regret():
    assert flap(VariantMemory(), NOW, WINDOW * D + 1).regrets == 0
    assert flap(VariantMemory(), NOW, WINDOW * D).regrets == 1


def test_it_is_forgotten_one_by_one():
    memory = flap(flap(VariantMemory(), NOW, 10), NOW + 20, 10)
    assert [regrets(memory, D, NOW + 30 + share * FORGET * D) for share in (0, 0.9, 1, 2, 9)] == [2, 2, 1, 0, 0]


def test_without_a_delay_there_is_none_to_double():
    assert shrink_delay([Shrink(flap(VariantMemory(), NOW, 0), 3, 2)], 0.0, NOW) == 0.0


@pytest.mark.parametrize(("ago", "target"), [(400, 3), (500, 2)])
def test_the_decision_waits_and_says_why(ago, target):
    memory = VariantMemory(relax_since=NOW - ago, regrets=1, regretted=2, regretted_at=NOW - 600)
    record = one(Serving(load=LOW, desired=3, memory=memory))
    assert record.target.replicas == target
    if target == 3:
        assert "soon wanted back" in record.why.message
    else:
        assert record.memory.shrunk_at == NOW


def test_a_load_that_is_gone_is_at_no_edge():
    """Nothing runs and nothing waits: idle replicas are not kept for what was regretted under load."""
    memory = VariantMemory(relax_since=NOW - 130, regrets=3, regretted=2, regretted_at=NOW - 600)
    assert one(Serving(load=((0.0, 0.0),) * 3, running=0, desired=3, memory=memory)).target.replicas == 2
    assert one(Serving(load=((0.0, 0.0),) * 3, running=1, desired=3, memory=memory)).target.replicas == 3


def test_growing_again_is_remembered_as_regret():
    memory = VariantMemory(shrunk_at=NOW - 60)
    record = one(Serving(load=((0.95, 9.0),) * 2, desired=2, memory=memory))
    assert record.target.replicas > 2
    assert (record.memory.regrets, record.memory.regretted, record.memory.regretted_at) == (1, 2, NOW)
    assert record.memory.shrunk_at is None


def test_published_mode_remembers_nothing_of_it():
    memory = VariantMemory(shrunk_at=NOW - 60)
    annotations = {"modelyard.dev/compatibility": "published"}
    record = one(Serving(load=((0.95, 9.0),) * 2, desired=2, memory=memory, variant={"annotations": annotations}))
    assert record.memory.regrets == 0


def test_a_clock_set_back_does_not_make_it_last_longer():
    ahead = VariantMemory(regrets=3, regretted_at=NOW + 1e6, shrunk_at=NOW + 1e6).not_after(NOW)
    assert (ahead.regretted_at, ahead.shrunk_at) == (NOW, NOW)


def test_a_tenth_goes_at_a_time_from_a_large_model():
    memory = VariantMemory(relax_since=NOW - 3600)
    assert one(Serving(load=((0.05, 0.0),) * 40, desired=40, memory=memory)).target.replicas == 36
