"""Last stage: from the working states to decisions, with conditions, notices, memory and what to write."""

from __future__ import annotations

from modelyard.autoscaling import conditions
from modelyard.autoscaling.accelerators import ACCELERATOR_LABEL, UNRESOLVED
from modelyard.autoscaling.conditions import Story
from modelyard.autoscaling.decision import (
    Action,
    Alternative,
    Decision,
    Identity,
    Now,
    Record,
    Target,
    VariantDecision,
    Why,
    Writes,
)
from modelyard.autoscaling.kinds import VARIANTS
from modelyard.autoscaling.memory.variants import MOST_SCALINGS, SLOMemory, VariantMemory
from modelyard.autoscaling.settings import Mode
from modelyard.autoscaling.startup import learn_startup
from modelyard.autoscaling.variants import health, regret, wake
from modelyard.autoscaling.variants.shortage import capacity_limited
from modelyard.autoscaling.variants.slo import stories
from modelyard.autoscaling.variants.slo.work import VariantWork
from modelyard.autoscaling.variants.state import State
from modelyard.objects import Condition
from modelyard.objects.documents import counted
from modelyard.reconcile.plan import Subject

_NOT_COUNTED = ("AtZero",)
_TRACKED = ("transition_since", "transition_target", "relax_since", "partial_since")


def make_record(
    state: State, now: float, limiter: bool = False, alternatives: tuple[Alternative, ...] = ()
) -> VariantDecision:
    """The decision about one variant. ``limiter`` says whether GPUs were limited, ``alternatives`` are its group's."""
    variant, workload, target, current = state.variant, state.workload, state.target, state.current
    scale = None
    if state.decided and state.mode is Mode.DIRECT and workload is not None and target != state.spec:
        scale = target
    publish = state.publish and target is not None
    changed = state.decided and target is not None and target != (current if state.desired is None else state.desired)
    applied, applied_message = _applied(state) if publish else (None, "")
    told = state.slo is not None and state.decided
    subject = Subject(VARIANTS, variant.key, variant.uid, variant.generation, variant.resource_version)
    subject = subject._replace(ignored=variant.ignored)
    record = Record(
        identity=Identity(
            subject=subject,
            form=variant.form,
            model_id=variant.model_id,
            variant_id=variant.slo.variant_id if variant.slo is not None else None,
        ),
        now=Now(
            workload=state.workload_id,
            current=current,
            ready=state.ready,
            reporting=len(state.units),
            desired=state.desired,
            accelerator=state.accelerator,
            cost=variant.cost,
            gpus=state.gpus,
            allocation=stories.current_allocation(state),
        ),
        target=Target(replicas=target, action=Action.of(target, current), decided=state.decided),
        why=Why(
            reason=state.reason,
            message=state.message,
            steps=state.steps,
            limited_by=state.limited_by,
            evidence=state.evidence,
            prediction=state.slo.prediction if told and state.slo is not None else None,
            alternatives=alternatives if told else (),
        ),
        bounds=state.bounds,
        writes=Writes(mode=state.mode, scale=scale, publish=publish, applied=applied, applied_message=applied_message),
    )
    return Decision(
        subject=subject,
        records=(record,),
        memory=_memory(state, changed, now),
        conditions=_conditions(state, state.message, now, limiter),
        notices=state.notices,
        message=state.message,
    )


def _conditions(state: State, message: str, now: float, limiter: bool) -> tuple[Condition, ...]:
    optimization: Story = state.optimization or _optimized(state.slo, message)
    metrics: Story | None = state.metrics
    if metrics is None and state.decided:
        metrics = health.available(state)
    accelerator: Story | None = None
    if state.accelerator_missing:
        text = (
            f"accelerator unknown: set the label {ACCELERATOR_LABEL} on the VariantAutoscaling, or a GPU product in "
            f"the workload's node selector; published as {UNRESOLVED!r}"
        )
        accelerator = ("False", "AcceleratorUnresolved", text)
    elif any(c.type == conditions.ACCELERATOR_RESOLVED for c in state.variant.conditions):
        accelerator = ("True", "AcceleratorResolved", f"accelerator is {state.accelerator}")
    own: tuple[tuple[str, Story | None], ...] = ()
    if (work := state.slo) is not None and (work.spec is not None or work.profile is not None):
        own = (
            (conditions.PROFILE_VALID, stories.profile_valid(work)),
            (conditions.SLO_FEASIBLE, stories.slo_feasible(work)),
            (conditions.PROFILE_DRIFT, stories.profile_drift(state)),
            (conditions.CAPACITY_LIMITED, stories.capacity_limited(state, limiter)),
        )
        if work.price_problem:
            accelerator = ("False", "UnitCostMissing", work.price_problem)
    elif not state.decided:
        own = ((conditions.CAPACITY_LIMITED, None),)  # nothing new is known of it
    elif limited := capacity_limited(state):
        own = ((conditions.CAPACITY_LIMITED, limited),)
    return conditions.build(
        state.variant.conditions,
        (
            (conditions.TARGET_RESOLVED, state.target_resolved),
            (conditions.METRICS_AVAILABLE, metrics),
            (conditions.OPTIMIZATION_READY, optimization),
            (conditions.ACCELERATOR_RESOLVED, accelerator),
            (conditions.SCALE_FROM_ZERO, wake.condition(state)),
            *own,
        ),
        state.variant.generation,
        now,
    )


def _optimized(work: VariantWork | None, message: str) -> Story:
    if work is not None and work.problem and work.spec is None:
        return ("True", "SaturationOnlyMode", f"{message}; {work.problem}")
    if work is None or work.problem or work.alone:
        return ("True", "SaturationOnlyMode", message)
    if work.override:
        return ("True", "SaturationSafetyOverride", message)
    return ("True", "OptimizationSucceeded", message)


def _applied(state: State) -> tuple[bool, str]:
    """Whether the published target was observed where it has to arrive: at the workload or its scaler."""
    workload, target = state.workload, state.target
    if workload is None:
        return False, "the workload is not known"
    if state.spec == target and workload.status_replicas == target:
        return True, ""
    asked = next((c for c in state.consumers if c.desired == target), None)
    if asked is not None:
        return True, f"taken over by {asked.kind} {asked.key}"
    has = counted(workload.status_replicas, "replica")
    where = f"{workload.id} asks for {state.spec} and has {has}, published are {target}"
    if state.mode is Mode.DIRECT:
        return False, where
    if not state.consumers and state.consumers_error is not None:
        return False, f"{where}; HPAs and ScaledObjects could not be listed: {state.consumers_error}"
    if not state.consumers:
        return False, f"{where}; no HPA or ScaledObject targets it"
    names = ", ".join(f"{c.kind} {c.key}" for c in state.consumers)
    return False, f"{where}; waiting for {names}"


def _memory(state: State, changed: bool, now: float) -> VariantMemory:
    old, updates = state.memory, state.updates
    fresh: dict[str, object] = {}
    if state.decided and state.rules.follows_transitions:
        target, current = state.target, state.current
        if target != current and (
            updates.get("transition_since") is None or updates.get("transition_target") != target
        ):
            # Only a target that was published before goes on; what else is remembered belongs to a finished scaling.
            same = state.desired == target == old.transition_target and state.timed_out_from is None
            updates["transition_since"] = old.transition_since if same and old.transition_since is not None else now
            updates["transition_target"] = target
        for name in _TRACKED:
            if getattr(old, name) != (value := updates.get(name)):
                fresh[name] = value
        since, waiting = updates.get("stuck_since", {}), updates.get("stuck_waiting", {})
        if since != old.stuck_since or waiting != old.stuck_waiting:
            fresh["stuck_since"], fresh["stuck_waiting"] = since, waiting
    elif old.relax_since is not None:
        # "Without a break" includes ticks in which nothing could be seen.
        fresh["relax_since"] = None
    if state.workload is not None and old.workload_uid != state.workload.uid:
        fresh["workload_uid"] = state.workload.uid
    if state.slo is not None:
        if state.slo.memory != (old.slo or SLOMemory()):
            fresh["slo"] = state.slo.memory
    elif state.variant.form != "slo" and old.slo is not None:
        fresh["slo"] = None
    for name in ("woken_at", "compute_limits", "token_capacity"):
        if name in updates:
            fresh[name] = updates[name]
    if state.pods:
        learnt = learn_startup(old.startup_seconds, state.pods)
        if learnt != old.startup_seconds:
            fresh["startup_seconds"] = learnt
    if changed and state.reason not in _NOT_COUNTED:
        before = state.current if state.desired is None else state.desired
        if state.rules.follows_transitions:
            fresh |= regret.after(old, before or 0, state.target or 0, state.shrink_delay, now)
        direction = "up" if (state.target or 0) > (before or 0) else "down"
        key = f"{direction}/{state.reason}"
        if key in old.scalings or len(old.scalings) < MOST_SCALINGS:
            fresh["scalings"] = {**old.scalings, key: old.scalings.get(key, 0) + 1}
    return old.model_copy(update=fresh) if fresh else old
