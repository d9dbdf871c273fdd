"""The steps of a plan: each deed belongs to one of them, and which of them a run carries out now."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS, NODES
from modelyard.reconcile.plans.plan import Child, Mark, Plan, PlanStep, Status, StepId, StepPhase, Subject
from modelyard.reconcile.plans.steps import REST, part_of, pending_steps, state_of

SUBJECT = Subject(CONFIG_MAPS, Key("shop", "m"), "uid", 1)
A, B = StepId("fetch", "a"), StepId("fetch", "b")


def child(name: str) -> Child:
    return Child(CONFIG_MAPS, Key("shop", name), name)


def plan(*steps: PlanStep, **more: Any) -> Plan:
    """A plan with steps ``fetch a``, ``fetch b``, ... of which it consists, and more that belongs to none."""
    named = {StepId("fetch", "abcdef"[number]): step for number, step in enumerate(steps)}
    deleted = tuple(deed for step in steps for deed in step.delete)
    marks = tuple(mark for step in steps for mark in step.marks)
    return Plan(SUBJECT, delete=(*deleted, *more.pop("delete", ())), marks=marks, steps=named, **more)


def test_a_step_has_its_deeds_and_what_they_depend_on() -> None:
    mark = Mark(NODES, Key("", "a"), "n", labels={"x": "y"})
    whole = plan(
        PlanStep(StepPhase.ACTIVE, marks=(mark,), delete=(child("a"),)),
        PlanStep(StepPhase.ACTIVE, delete=(child("b"),)),
        delete=(child("rest"),),
        annotations={"memory": "1"},
        status=Status({"state": "x"}),
        finalizer=True,
    )
    part = part_of(whole, A)
    assert (part.marks, part.delete) == ((mark,), (child("a"),))
    assert (part.annotations, part.status, part.finalizer) == (whole.annotations, whole.status, True)
    assert part_of(whole, REST).delete == (child("rest"),)


def test_a_step_without_deeds_writes_nothing_unless_the_memory_is_its_own() -> None:
    whole = plan(PlanStep(StepPhase.ACTIVE, awaits=("x",)), annotations={"memory": "1"}, finalizer=True)
    assert not part_of(whole, A).writes
    assert not part_of(whole, StepId("unknown")).writes
    keeps = plan(PlanStep(StepPhase.ACTIVE, keeps=True), annotations={"memory": "1"})
    assert part_of(keeps, A).annotations


def test_the_finalizer_is_taken_off_when_no_step_has_anything_left_to_write() -> None:
    whole = plan(PlanStep(StepPhase.ACTIVE, delete=(child("a"),)), finalizer=False)
    assert part_of(whole, A).finalizer is None
    assert part_of(whole, REST).finalizer is None, "nobody would delete the child"
    assert part_of(plan(PlanStep(StepPhase.DONE), finalizer=False), REST).finalizer is False


@pytest.mark.parametrize(
    ("step", "in_time", "late", "stays"),
    [
        (PlanStep(StepPhase.ACTIVE, delete=(child("a"),)), True, True, True),
        (PlanStep(StepPhase.ACTIVE, keeps=True), True, True, True),
        (PlanStep(StepPhase.ACTIVE, awaits=("x",)), True, False, True),
        (PlanStep(StepPhase.WAITING), False, False, True),
        (PlanStep(StepPhase.BLOCKED), False, False, False),
        (PlanStep(StepPhase.FAILED), False, False, False),
        (PlanStep(StepPhase.DONE), False, False, False),
    ],
    ids=["writes", "keeps", "awaits", "waits", "blocked", "failed", "done"],
)
def test_which_steps_run(step: PlanStep, in_time: bool, late: bool, stays: bool) -> None:
    whole = plan(step)
    assert (pending_steps(whole) == [A]) == in_time
    assert (pending_steps(whole, waits=False) == [A]) == late
    assert (pending_steps(whole, stays=True) == [A]) == stays


def test_the_rest_comes_after_the_steps() -> None:
    status = Status({"state": "x"})
    assert pending_steps(plan(PlanStep(StepPhase.ACTIVE, awaits=("x",)), status=status)) == [A]
    assert pending_steps(plan(PlanStep(StepPhase.FAILED), status=status)) == [REST]
    assert pending_steps(plan(PlanStep(StepPhase.ACTIVE, awaits=("x",)), status=status), waits=False) == [REST]
    assert pending_steps(plan(PlanStep(StepPhase.DONE))) == []


def test_a_plan_without_steps_is_one() -> None:
    assert pending_steps(Plan(SUBJECT, awaits=("x",))) == [REST]
    assert pending_steps(Plan(SUBJECT, awaits=("x",)), waits=False) == []
    assert state_of(Plan(SUBJECT, awaits=("x",)), REST).phase is StepPhase.ACTIVE
    assert state_of(Plan(SUBJECT), REST).phase is StepPhase.DONE
    assert part_of(whole := Plan(SUBJECT, delete=(child("a"),)), REST) == whole


@given(st.lists(st.lists(st.integers(0, 99), max_size=3), max_size=6), st.lists(st.integers(0, 99), max_size=3))
def test_every_deed_belongs_to_one_step(owned: list[list[int]], rest: list[int]) -> None:
    steps = [PlanStep(StepPhase.ACTIVE, delete=tuple(child(str(n)) for n in numbers)) for numbers in owned]
    whole = plan(*steps, delete=tuple(child(str(n)) for n in rest))
    parts = [deed for step in (*whole.steps, REST) for deed in part_of(whole, step).delete]
    assert sorted(parts, key=str) == sorted(whole.delete, key=str)
