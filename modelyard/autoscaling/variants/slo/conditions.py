"""Status of variants with a profile. Source: WVA SLO reference, "Status and conditions", "Current allocation"."""

from __future__ import annotations

from modelyard.autoscaling.decisions import (
    CAPACITY_LIMITED,
    PROFILE_DRIFT,
    ConditionValue,
    CurrentAllocation,
    Explanation,
    Parts,
    Reason,
)
from modelyard.autoscaling.sizing import NEAREST
from modelyard.autoscaling.variants.demand import Rate
from modelyard.autoscaling.variants.objective import Objective
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.proposal import Sized, shortage_value
from modelyard.autoscaling.variants.shortage import AT_MAXIMUM, EXHAUSTED, NOT_STARTING, SUFFICIENT

DRIFTED, STILL_DRIFTED = 1.3, 1.2
"""How many times the predicted latency, or which part of it, is too far from the profile; and below what it no more is.
A profile that holds is off by less: the queueing model itself is, by about a tenth."""


def profile_valid(objective: Objective) -> ConditionValue:
    """Return whether the four parameters and the batch limit can be sized with."""
    if objective.profile_problem is not None:
        return ConditionValue.of("False", objective.profile_problem)
    return ConditionValue.of("True", objective.learnt or Explanation(Reason.PROFILE_VALID))


def slo_feasible(objective: Objective, rate: Rate | None, problem: Explanation | Parts | None) -> ConditionValue:
    """Return whether this profile can meet the targets at all, load or no load; with the nearest value it can."""
    service = objective.service
    if objective.profile_problem is not None:
        return ConditionValue.of("Unknown", Explanation(Reason.FEASIBILITY_WITHOUT_PROFILE))
    if service is None:
        return ConditionValue("Unknown", Reason.CLASS_NOT_FOUND.code, problem)
    if rate is None or rate.feasible is None or not rate.binding:
        return ConditionValue("Unknown", Reason.UNSIZED.code, problem or Explanation(Reason.UNSIZED))
    if not rate.feasible:
        is_ttft = rate.binding == "TTFT"
        outcome = Reason.TTFT_UNREACHABLE if is_ttft else Reason.ITL_UNREACHABLE
        target, best = (service.ttft, rate.best_ttft) if is_ttft else (service.itl, rate.best_itl)
        return ConditionValue.of("False", Explanation(outcome, target=target, best=best, where=service.where))
    if rate.assumed_sizes:
        return ConditionValue.of("Unknown", Explanation(Reason.FEASIBILITY_WITHOUT_SIZES))
    if rate.eased:
        is_ttft = service.ttft > 0 and service.ttft < NEAREST * rate.best_ttft
        outcome = Reason.TTFT_ONLY_IDLE if is_ttft else Reason.ITL_ONLY_IDLE
        target, best = (service.ttft, rate.best_ttft) if is_ttft else (service.itl, rate.best_itl)
        facts = {"target": target, "best": best, "sized": NEAREST * best, "where": service.where}
        return ConditionValue.of("False", Explanation(outcome, **facts))
    ttft, itl = (f"{value:g} ms" if value else "without target" for value in (service.ttft, service.itl))
    return ConditionValue.of("True", Explanation(Reason.TARGETS_REACHABLE, ttft=ttft, itl=itl))


def profile_drift(seen: Observation, rate: Rate | None) -> ConditionValue | None:
    """Return whether the engine should be measured again, so far is it from its profile; ``None`` if it never was."""
    ttft, itl = (rate.ttft_factor, rate.itl_factor) if rate is not None else (1.0, 1.0)
    before = next((c.status for c in seen.variant.conditions if c.type == PROFILE_DRIFT), None)
    furthest = max(max(factor, 1 / factor) for factor in (ttft, itl))
    if furthest > (STILL_DRIFTED if before == "True" else DRIFTED):
        return ConditionValue.of("True", Explanation(Reason.PROFILE_DRIFTED, ttft=ttft, itl=itl))
    return None if before is None else ConditionValue.of("False", Explanation(Reason.PROFILE_HOLDS, ttft=ttft, itl=itl))


def capacity_limited(sized: Sized, limits: bool) -> ConditionValue | None:
    """Return whether the lack of accelerators changed the decision; ``None`` when nothing ``limits`` nor ever did."""
    scarcity = next((c.scarcity for c in sized.changes if c.scarcity is not None), None)
    if scarcity is not None or sized.limited_by is not None:
        return ConditionValue("True", EXHAUSTED, scarcity or sized.message)
    if sized.shortage is not None:
        return shortage_value(sized.shortage)
    if limits:
        return ConditionValue.of("False", Explanation(Reason.ENOUGH_ACCELERATORS))
    before = next((c for c in sized.seen.variant.conditions if c.type == CAPACITY_LIMITED), None)
    if before is None:
        return None
    if before.reason in (AT_MAXIMUM, NOT_STARTING) or before.message == SUFFICIENT.message:
        return SUFFICIENT
    return ConditionValue.of("False", Explanation(Reason.LIMITER_DISABLED))


def current_allocation(seen: Observation) -> CurrentAllocation | None:
    """Return what the variant has now; ``None`` when its workload is not known."""
    objective = seen.objective
    if objective is None or objective.spec is None or seen.current is None:
        return None
    spec, batch, cost = objective.spec, objective.spec.max_batch, objective.cost
    if (shown := seen.handling.reading.status_batch) is not None:
        batch, cost = shown, objective.unit_cost or 0.0
    return CurrentAllocation(spec.variant_id, spec.accelerator, seen.current, batch, seen.current * cost)
