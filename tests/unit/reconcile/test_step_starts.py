"""How often the steps of an object begin in one run: those of one that changes all the time begin rarely."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.reconcile.kernel import run_view
from modelyard.reconcile.kernel.run_view import (
    STARTS,
    RunView,
    StayLimits,
    StepFailed,
    carry_out_step,
    run_steps,
)
from modelyard.reconcile.plans.plan import Plan, PlanStep, StepId, StepPhase, Subject

KEY, OTHER = Key("evil", "x"), Key("shop", "y")


class View:
    """Stands in for ``RunView``: the plans of an object, of which each has other steps than the one before."""

    def __init__(self, plans: int, steps: int = 1, **step: Any) -> None:
        self.left = plans
        self.late_writes = 0
        self.count = 0
        self.width = steps
        self.step = {"awaits": ("x",), **step}

    async def plan(self, key: Key) -> Plan:
        subject = Subject(CONFIG_MAPS, key, "uid", 1)
        if key == OTHER or self.left <= 0:
            return Plan(subject)
        self.left -= 1
        self.count += 1
        one = PlanStep(StepPhase.ACTIVE, **self.step)
        names = [StepId("measure", f"{self.count}-{number}") for number in range(self.width)]
        return Plan(subject, awaits=("x",), steps=dict.fromkeys(names, one))

    async def changed(self) -> None:
        await asyncio.sleep(0.001)


async def starts(view: View, monkeypatch: pytest.MonkeyPatch, pause: float) -> int:
    monkeypatch.setattr(run_view, "LONGEST_WAIT", pause)
    begun = []

    async def runner(key: Key, step: StepId) -> None:
        begun.append(step)

    acted = await run_steps(cast(RunView, view), [KEY, OTHER], runner, StayLimits())
    assert acted.settled == {KEY, OTHER}, "it goes on to the end"
    return len(begun)


async def test_an_object_whose_steps_change_all_the_time_has_few_task_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await starts(View(5 * STARTS), monkeypatch, 3600.0) == STARTS + 1


async def test_the_steps_of_such_an_object_go_on_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    assert STARTS + 1 < await starts(View(5 * STARTS), monkeypatch, 0.05) < 4 * STARTS


async def test_the_many_steps_of_an_object_begin_together(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await starts(View(1, steps=5 * STARTS), monkeypatch, 3600.0) == 5 * STARTS


async def test_the_reason_of_a_failed_step_is_one_line() -> None:
    class Failed(View):
        async def plan(self, key: Key) -> Plan:
            step = PlanStep(StepPhase.FAILED, "no\n12:00:00 | INFO | all is well")
            return Plan(Subject(CONFIG_MAPS, key, "uid", 1), steps={StepId("measure", "a"): step})

        def rest(self, key: Key, step: StepId) -> None:
            return

    with pytest.raises(StepFailed, match=r"^no\\n12:00:00 \| INFO \| all is well$"):
        await carry_out_step(cast(RunView, Failed(1)), KEY, StepId("measure", "a"))
