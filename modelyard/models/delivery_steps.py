"""The steps of a delivery: one for each node that is not done. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from modelyard.models.legs import Leg, NodeStage
from modelyard.reconcile.plan import Mark, PlanStep, StepId, StepPhase


def delivery_steps(parts: Iterable[Leg], acting: Iterable[tuple[Leg, tuple[Mark, ...]]]) -> dict[StepId, PlanStep]:
    """Return the steps of the nodes that are not done; ``acting`` are those that something is written for now."""
    marks = {leg.node: marks for leg, marks in acting}
    steps = {}
    for leg in parts:
        state = _STATES[leg.stage]
        if leg.node in marks:
            deeds = PlanStep(state, "", None, marks[leg.node], leg.apply, leg.hand_over, leg.delete, leg.awaits)
        elif state is not StepPhase.DONE or leg.awaits:
            deeds = PlanStep(state, awaits=leg.awaits)
        else:
            continue
        progress = leg.entry.progress if leg.entry is not None else None
        share = progress.completed_bytes / progress.total_bytes if progress and progress.total_bytes > 0 else None
        message = f"{leg.reason}: {leg.message}" if leg.message else leg.reason
        steps[step_of(leg)] = replace(deeds, message=message, progress=share)
    return steps


_STATES = {
    NodeStage.READY: StepPhase.DONE,
    NodeStage.GONE: StepPhase.DONE,
    NodeStage.ACTIVE: StepPhase.ACTIVE,
    NodeStage.REMOVING: StepPhase.ACTIVE,
    NodeStage.WAITING: StepPhase.WAITING,
    NodeStage.FAILED: StepPhase.FAILED,
}


def step_of(leg: Leg) -> StepId:
    """Return the step that a node is at: ``fetch``, ``verify`` or ``remove``, of a claim ``inspect``."""
    if leg.stage in (NodeStage.REMOVING, NodeStage.GONE):
        return StepId("remove", leg.node)
    if not leg.node:
        return StepId("inspect")
    checking = leg.stage is NodeStage.READY and (leg.starts or leg.job is not None)
    return StepId("verify" if checking else "fetch", leg.node)
