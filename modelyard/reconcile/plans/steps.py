"""Steps of a plan: which of them a run has to carry out now, and the part of the plan that belongs to each. Pure.

A lifecycle whose work fans out, over nodes or candidates, names the steps in its plans (``Plan.steps``). What belongs
to no step, such as the status, is the step ``REST``. Plans without steps consist of it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from modelyard.reconcile.plans.plan import Plan, PlanStep, StepId, StepPhase

REST = StepId("")
"""The step that carries out what belongs to no other one."""
_NO_STEP = PlanStep(StepPhase.DONE)


def with_steps(plan: Plan, steps: Mapping[StepId, PlanStep]) -> Plan:
    """Return the plan with these steps, and all that they write."""
    sources = (plan, *steps.values())
    return replace(plan, steps=steps, **_deeds(lambda name: (deed for each in sources for deed in getattr(each, name))))


def part_of(plan: Plan, step: StepId) -> Plan:
    """Return the plan with the marks, children and deletions of this step only.

    The status and the memory of the object are written with whatever depends on them.
    """
    if step == REST:
        owned = {id(deed) for own in plan.steps.values() for deed in own.deeds}
        rest = _deeds(lambda name: (deed for deed in getattr(plan, name) if id(deed) not in owned))
        # The finalizer goes when all else is done, what other steps write included.
        return replace(plan, **rest, finalizer=plan.finalizer or None) if owned else plan
    own = plan.steps.get(step, _NO_STEP)
    part = replace(
        plan,
        **_deeds(lambda name: getattr(own, name)),
        awaits=own.awaits,
        finalizer=plan.finalizer or None,
        fill=plan.fill if own.keeps else {},
        scales=(),
    )
    return part if own.writes else replace(part, annotations={}, status=None, finalizer=None)


def _deeds(of: Callable[[str], Iterable[object]]) -> dict[str, Any]:
    return {name: tuple(of(name)) for name in ("marks", "apply", "hand_over", "delete")}


def state_of(plan: Plan, step: StepId) -> PlanStep:
    """Return the state of a step; one that the plan does not name is done."""
    if step != REST:
        return plan.steps.get(step, _NO_STEP)
    awaits = () if plan.steps else plan.awaits
    state = StepPhase.ACTIVE if awaits or part_of(plan, REST).writes else StepPhase.DONE
    return PlanStep(state, plan.message, awaits=awaits)


def pending_steps(plan: Plan, waits: bool = True, stays: bool = False) -> list[StepId]:
    """Return the steps to run now, in order; ``REST`` only where there is no other one.

    ``waits``: also those that have nothing to write and something to wait for, and with ``stays`` those that wait for
    their turn or for something outside, which come back in a later run otherwise.
    """
    pending = [
        step for step, own in plan.steps.items() if own.writes or (waits and (own.awaits or (stays and own.unfinished)))
    ]
    rest = part_of(plan, REST).writes or (waits and state_of(plan, REST).awaits)
    return pending or ([REST] if rest else [])
