"""Last stage: from sized variants to decisions, with conditions, notices, memory and what to write."""

from __future__ import annotations

from collections.abc import Mapping

from modelyard.autoscaling.configuration import Mode
from modelyard.autoscaling.decisions import (
    Action,
    ConditionValue,
    Decision,
    DecisionFacts,
    Identity,
    Now,
    Reason,
    Record,
    Step,
    Target,
    TickContext,
    VariantDecision,
    Why,
    Writes,
    conditions,
)
from modelyard.autoscaling.fleet import ACCELERATOR_LABEL, UNRESOLVED, VARIANTS, learn_startup
from modelyard.autoscaling.memory import MOST_SCALINGS, SLOMemory, VariantMemory
from modelyard.autoscaling.variants import health, regret
from modelyard.autoscaling.variants.demand import ModelDemand
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.proposal import MOST, Origin, Proposal, Sized, Tracked, shortage_value
from modelyard.autoscaling.variants.shortage import EXHAUSTED, SUFFICIENT
from modelyard.autoscaling.variants.slo import Outlook, conditions as slo_conditions
from modelyard.autoscaling.variants.wake import scale_from_zero
from modelyard.objects import Condition, Notice, counted, cut
from modelyard.reconcile.plans import Subject


def make_record(
    sized: Sized,
    demand: ModelDemand | None,
    proposal: Proposal | None,
    target: ConditionValue | None,
    outlook: Outlook,
    tick: TickContext,
) -> VariantDecision:
    """Return the decision about one variant; ``target`` is the condition of its workload."""
    seen, proposed, replicas = sized.seen, sized.proposed, sized.replicas
    variant, workload, current = seen.variant, seen.workload, seen.current
    scales = proposed.decided and seen.mode is Mode.DIRECT and workload is not None and replicas != seen.spec
    publish = proposed.publish and replicas is not None
    before = current if seen.desired is None else seen.desired
    changed = proposed.decided and replicas is not None and replicas != before
    applied, applied_message = _applied(sized) if publish else (None, "")
    is_strategys = proposed.decided and proposed.origin is not Origin.ASLEEP
    is_expected = seen.objective is not None and proposed.decided
    message, reason = sized.message, sized.reason
    version = variant.resource_version
    subject = Subject(VARIANTS, variant.key, variant.uid, variant.generation, version, ignored=variant.ignored)
    record = Record(
        identity=Identity(
            subject=subject,
            form=variant.form,
            model_id=variant.model_id,
            variant_id=variant.slo.variant_id if variant.slo is not None else None,
        ),
        now=Now(
            workload=seen.workload_id,
            current=current,
            ready=seen.ready,
            reporting=len(seen.units),
            desired=seen.desired,
            accelerator=seen.accelerator_name,
            cost=variant.cost,
            gpus=seen.gpus,
            allocation=slo_conditions.current_allocation(seen),
        ),
        target=Target(replicas=replicas, action=Action.of(replicas, current), decided=proposed.decided),
        why=Why(
            reason=reason,
            message=message,
            facts=_facts(sized, demand, proposal),
            steps=_steps(sized, demand),
            limited_by=sized.limited_by,
            evidence=proposal.evidence if proposal is not None and is_strategys else None,
            prediction=outlook.predictions.get(seen.key) if is_expected else None,
            alternatives=outlook.alternatives.get(seen.key, ()) if is_expected else (),
        ),
        bounds=seen.bounds,
        writes=Writes(
            seen.mode, replicas if scales else None, publish=publish, applied=applied, applied_message=applied_message
        ),
    )
    return Decision(
        subject=subject,
        records=(record,),
        memory=_memory(sized, demand, changed, reason, tick),
        conditions=_conditions(sized, demand, target, reason, message, tick),
        notices=_notices(sized, demand),
        message=message,
    )


def _facts(sized: Sized, demand: ModelDemand | None, proposal: Proposal | None) -> DecisionFacts:
    if demand is None or proposal is None:
        return DecisionFacts()
    name, forecast, proposed = sized.seen.name, demand.forecast, sized.proposed
    required = proposed.replicas if proposed.decided and proposed.origin is Origin.STRATEGY else None
    if proposal.wanted:
        required = proposal.wanted.get(name, required)
    if forecast is None:
        return DecisionFacts(load=demand.load.arrivals if demand.load is not None else None, required=required)
    planned, rate = forecast.planned if forecast.load is not None else None, forecast.rates[name]
    per_replica, basis = rate.rate if rate.known else None, str(forecast.basis or "")
    return DecisionFacts(load=forecast.load, forecast=planned, basis=basis, per_replica=per_replica, required=required)


def _steps(sized: Sized, demand: ModelDemand | None) -> tuple[Step, ...]:
    proposed = sized.proposed
    if demand is None or proposed.failed:
        return ()
    steps = [demand.config.step, *(change.step for change in proposed.steps)]
    if proposed.decided and proposed.origin is Origin.STRATEGY:
        steps.append(Step("targets", sized.seen.current, proposed.replicas, proposed.reason))
    return (*steps, *(change.step for change in sized.changes if change.why))


def _notices(sized: Sized, demand: ModelDemand | None) -> tuple[Notice, ...]:
    seen = sized.seen
    notices = seen.notices
    if demand is not None:
        notices += demand.group.notices.get(seen.key, ())
        if demand.forecast is not None:
            notices += demand.forecast.notices.get(seen.name, ())
    for change in sized.changes:
        notices += change.notices
    return notices


def _conditions(
    sized: Sized,
    demand: ModelDemand | None,
    target: ConditionValue | None,
    reason: str,
    message: str,
    tick: TickContext,
) -> tuple[Condition, ...]:
    seen, proposed = sized.seen, sized.proposed
    objective = seen.objective
    metrics = proposed.metrics
    if metrics is None and proposed.decided:
        metrics = health.available(seen)
    accelerator: ConditionValue | None = None
    if not seen.accelerator:
        text = (
            f"accelerator unknown: set the label {ACCELERATOR_LABEL} on the VariantAutoscaling, or a GPU product in "
            f"the workload's node selector; published as {UNRESOLVED!r}"
        )
        accelerator = ConditionValue("False", "AcceleratorUnresolved", text)
    elif any(c.type == conditions.ACCELERATOR_RESOLVED for c in seen.variant.conditions):
        accelerator = ConditionValue("True", "AcceleratorResolved", f"accelerator is {seen.accelerator}")
    own: tuple[tuple[str, ConditionValue | None], ...] = ()
    if objective is not None and (objective.spec is not None or objective.profile is not None):
        rate = demand.rates.get(seen.name) if demand is not None else None
        problem = demand.problem_of(seen) if demand is not None else objective.problem
        limits = tick.counts_gpus or bool(tick.quotas)
        own = (
            (conditions.PROFILE_VALID, slo_conditions.profile_valid(objective)),
            (conditions.SLO_FEASIBLE, slo_conditions.slo_feasible(objective, rate, problem)),
            (conditions.PROFILE_DRIFT, slo_conditions.profile_drift(seen, rate)),
            (conditions.CAPACITY_LIMITED, slo_conditions.capacity_limited(sized, limits)),
        )
        if objective.price_problem is not None:
            accelerator = ConditionValue.of("False", objective.price_problem)
    elif not proposed.decided:
        own = ((conditions.CAPACITY_LIMITED, None),)  # nothing new is known of it
    elif limited := _capacity_limited(sized, message):
        own = ((conditions.CAPACITY_LIMITED, limited),)
    return conditions.build(
        seen.variant.conditions,
        (
            (conditions.TARGET_RESOLVED, target),
            (conditions.METRICS_AVAILABLE, metrics),
            (conditions.OPTIMIZATION_READY, proposed.optimization or _optimized(sized, demand, message)),
            (conditions.ACCELERATOR_RESOLVED, accelerator),
            (conditions.SCALE_FROM_ZERO, scale_from_zero(seen, reason, message)),
            *own,
        ),
        seen.variant.generation,
        tick.now,
    )


def _optimized(sized: Sized, demand: ModelDemand | None, message: str) -> ConditionValue:
    seen = sized.seen
    problem = demand.problem_of(seen) if demand is not None and seen.objective is not None else None
    if problem is not None or demand is None or demand.forecast is None:
        if problem is not None and seen.objective is not None and seen.objective.spec is None:
            message += f"; {problem}"
        return ConditionValue("True", "SaturationOnlyMode", message)
    if sized.proposed.override is not None:
        return ConditionValue("True", "SaturationSafetyOverride", message)
    return ConditionValue("True", "OptimizationSucceeded", message)


def _capacity_limited(sized: Sized, message: str) -> ConditionValue | None:
    """``None`` where there never was a shortage."""
    if sized.limited_by is not None:
        return ConditionValue("True", EXHAUSTED, cut(message, MOST))
    if sized.shortage is not None:
        return shortage_value(sized.shortage)
    before = next((c for c in sized.seen.variant.conditions if c.type == conditions.CAPACITY_LIMITED), None)
    if before is None or (before.status != "True" and before.message != SUFFICIENT.message):
        return None
    return SUFFICIENT


def _applied(sized: Sized) -> tuple[bool, str]:
    """True if the workload or its scaler shows the published target."""
    seen, target = sized.seen, sized.replicas
    workload = seen.workload
    if workload is None:
        return False, "the workload is not known"
    if seen.spec == target and workload.status_replicas == target:
        return True, ""
    asked = next((c for c in seen.consumers if c.desired == target), None)
    if asked is not None:
        return True, f"taken over by {asked.kind} {asked.key}"
    has = counted(workload.status_replicas, "replica")
    where = f"{workload.id} asks for {seen.spec} and has {has}, published are {target}"
    if seen.mode is Mode.DIRECT:
        return False, where
    if not seen.consumers and seen.consumers_error is not None:
        return False, f"{where}; HPAs and ScaledObjects could not be listed: {seen.consumers_error}"
    if not seen.consumers:
        return False, f"{where}; no HPA or ScaledObject targets it"
    names = ", ".join(f"{c.kind} {c.key}" for c in seen.consumers)
    return False, f"{where}; waiting for {names}"


def _memory(sized: Sized, demand: ModelDemand | None, changed: bool, reason: str, tick: TickContext) -> VariantMemory:
    seen, proposed, now = sized.seen, sized.proposed, tick.now
    old = seen.memory
    remembers = demand is not None and demand.entry.remembers
    fresh: dict[str, object] = {}
    if proposed.decided and remembers:
        tracked, target = proposed.tracked, sized.replicas
        if target != seen.current and (tracked.transition_since is None or tracked.transition_target != target):
            # Only a target that was published before goes on; what else is remembered belongs to a finished scaling.
            timed_out = proposed.transition is not None and proposed.transition.timed_out_from is not None
            same = seen.desired == target == old.transition_target and not timed_out
            since = old.transition_since if same and old.transition_since is not None else now
            tracked = tracked._replace(transition_since=since, transition_target=target)
        for name, value in zip(Tracked._fields, tracked, strict=True):
            if getattr(old, name) != value:
                fresh[name] = value
    elif old.relax_since is not None:
        # "Without a break" includes ticks in which nothing could be seen.
        fresh["relax_since"] = None
    if seen.workload is not None and old.workload_uid != seen.workload.uid:
        fresh["workload_uid"] = seen.workload.uid
    if seen.objective is not None or old.slo is not None:
        fresh |= _slo_memory(seen, demand)
    if proposed.learnt:
        fresh |= proposed.learnt
    if seen.pods:
        learnt = learn_startup(old.startup_seconds, seen.pods)
        if learnt != old.startup_seconds:
            fresh["startup_seconds"] = learnt
    if changed and reason != Reason.AT_ZERO.code:
        before = seen.current if seen.desired is None else seen.desired
        if remembers:
            fresh |= regret.after(old, before or 0, sized.replicas or 0, tick.settings.scale_down_delay, now)
        direction = "up" if (sized.replicas or 0) > (before or 0) else "down"
        key = f"{direction}/{reason}"
        if key in old.scalings or len(old.scalings) < MOST_SCALINGS:
            fresh["scalings"] = {**old.scalings, key: old.scalings.get(key, 0) + 1}
    return old.model_copy(update=fresh) if fresh else old


def _slo_memory(seen: Observation, demand: ModelDemand | None) -> Mapping[str, object]:
    objective, old = seen.objective, seen.memory.slo
    if objective is None:
        return {"slo": None} if seen.variant.form != "slo" and old is not None else {}
    rate = demand.rates.get(seen.name) if demand is not None else None
    memory = rate.memory if rate is not None else objective.memory
    return {"slo": memory} if memory != (old or SLOMemory()) else {}
