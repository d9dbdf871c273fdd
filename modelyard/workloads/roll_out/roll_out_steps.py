"""The steps of a service's roll-out: one for each component, then the comparison with the previous revision. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from modelyard.reconcile.plans import Plan, PlanStep, StepId, StepPhase
from modelyard.workloads.rendering import Refused
from modelyard.workloads.roll_out.changes import identity
from modelyard.workloads.roll_out.rollout_state import Standing
from modelyard.workloads.roll_out.standing import ComponentStanding


def roll_out_steps(
    plan: Plan, here: Standing, awaited: Collection[ComponentStanding], ready: Mapping[str, str]
) -> dict[StepId, PlanStep]:
    """Return the steps that are not done.

    The first one also has what belongs to no component (a ServiceAccount) and what is deleted; until that is done the
    others write nothing. A run stays for the ``awaited``; ``ready`` are the conditions of a ready service.
    """
    if isinstance(here.result, Refused):
        return {StepId("resolve"): PlanStep(StepPhase.FAILED if here.stuck else StepPhase.WAITING, str(here.result))}
    component_of = {identity(child.body): child.component for child in here.result.children}
    bodies: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in here.states}
    shared: list[Mapping[str, Any]] = []
    for body in plan.apply:
        bodies.get(component_of.get(identity(body), ""), shared).append(body)
    steps: dict[StepId, PlanStep] = {}
    for kind, state in here.states.items():
        if state.rolled_out and not bodies[kind]:
            continue
        is_first = not steps
        steps[StepId("roll out", kind)] = PlanStep(
            _state(state, state in awaited),
            state.message,
            min(0.99, state.ready_pods / max(1, state.wanted)),
            apply=(*shared, *bodies[kind]) if is_first else () if shared else tuple(bodies[kind]),
            delete=plan.delete if is_first else (),
            awaits=(state.message,) if state in awaited else (),
        )
    if here.watch is not None:
        steps[StepId("compare")] = PlanStep(StepPhase.ACTIVE, here.watch.words, awaits=(here.watch.words,))
    if not steps and not here.stuck and not _is_ready(plan, ready):
        # Not in the service's pods, such as the address of its route.
        steps[StepId("become ready")] = PlanStep(StepPhase.WAITING, plan.message)
    return steps


def _state(component: ComponentStanding, is_awaited: bool) -> StepPhase:
    if component.rolled_out or is_awaited:
        return StepPhase.ACTIVE
    is_final = component.trouble is not None and component.trouble.final
    return StepPhase.FAILED if is_final else StepPhase.WAITING


def _is_ready(plan: Plan, ready: Mapping[str, str]) -> bool:
    conditions = plan.wanted.conditions if plan.wanted is not None else ()
    status = {condition.type: str(condition.status) for condition in conditions}
    return all(status.get(type) == wanted for type, wanted in ready.items())
