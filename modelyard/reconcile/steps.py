"""Steps of a plan: which of them a run has to carry out now, and the part of the plan that belongs to each. Pure.

A lifecycle whose work fans out, over nodes or candidates, names the steps in its plans (``Plan.steps``). What belongs
to no step, such as the status, is the step ``REST``. Plans without steps consist of it alone.
"""

from __future__ import annotations

from dataclasses import replace

from modelyard.reconcile.plan import Plan, PlanStep, StepId, StepPhase

REST = StepId("")
"""The step that carries out what belongs to no other one."""


def part_of(plan: Plan, step: StepId) -> Plan:
    """Return the plan with the marks, children and deletions of this step only.

    The status and the memory of the object are written with whatever depends on them.
    """
    if step == REST:
        return _without_steps(plan)
    own = plan.steps.get(step, PlanStep(StepPhase.DONE))
    part = replace(
        plan,
        marks=own.marks,
        apply=own.apply,
        hand_over=own.hand_over,
        delete=own.delete,
        awaits=own.awaits,
        finalizer=plan.finalizer or None,
        fill=plan.fill if own.keeps else {},
        scales=(),
    )
    return part if own.writes else replace(part, annotations={}, status=None, finalizer=None)


def _without_steps(plan: Plan) -> Plan:
    owned = {id(deed) for own in plan.steps.values() for deed in own.deeds}
    if not owned:
        return plan
    return replace(
        plan,
        marks=tuple(mark for mark in plan.marks if id(mark) not in owned),
        apply=tuple(body for body in plan.apply if id(body) not in owned),
        hand_over=tuple(secret for secret in plan.hand_over if id(secret) not in owned),
        delete=tuple(child for child in plan.delete if id(child) not in owned),
    )


def state_of(plan: Plan, step: StepId) -> PlanStep:
    """Return the state of a step; one that the plan does not name is done."""
    if step != REST:
        return plan.steps.get(step, PlanStep(StepPhase.DONE))
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
    if pending:
        return pending
    rest = part_of(plan, REST).writes or (waits and state_of(plan, REST).awaits)
    return [REST] if rest else []
