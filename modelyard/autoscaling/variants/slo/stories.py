"""What the status says of a variant with a profile, its own or learnt: further conditions, and ``currentAlloc``.

Source: WVA SLO reference, "Status and conditions" and "Current allocation".
"""

from __future__ import annotations

from modelyard.autoscaling.conditions import CAPACITY_LIMITED, PROFILE_DRIFT, Story
from modelyard.autoscaling.decision import CurrentAllocation
from modelyard.autoscaling.sizing.within import NEAREST
from modelyard.autoscaling.variants.shortage import AT_MAXIMUM, NOT_STARTING, SUFFICIENT
from modelyard.autoscaling.variants.slo.work import VariantWork
from modelyard.autoscaling.variants.state import State

DRIFTED, STILL_DRIFTED = 1.3, 1.2
"""How many times the predicted latency, or which part of it, is too far from the profile; and below what it no more is.
A profile that holds is off by less: the queueing model itself is, by about a tenth."""


def profile_valid(work: VariantWork) -> Story:
    """Whether the four parameters and the batch limit can be sized with."""
    if work.profile_problem:
        return ("False", "ProfileInvalid", work.profile_problem)
    if work.learnt:
        return ("True", "ProfileLearnt", work.learnt)
    return ("True", "ProfileValid", "the performance profile is complete")


def slo_feasible(work: VariantWork) -> Story:
    """Whether this profile can meet the targets at all, load or no load; with the nearest value it can."""
    service = work.service
    if work.profile_problem:
        return ("Unknown", "ProfileInvalid", "without a valid profile it is not known whether the targets can be met")
    if service is None:
        return ("Unknown", "SLOClassNotFound", work.problem)
    if work.feasible is None or not work.binding:
        return ("Unknown", "MetricsMissing", work.problem or "the variant has not been sized")
    if work.feasible:
        if work.assumed_sizes:
            return ("Unknown", "RequestSizesUnknown", "request sizes are not known yet; an empty request would do")
        if work.eased:
            ttft = service.ttft > 0 and service.ttft < NEAREST * work.best_ttft
            name, target, best = ("TTFT", service.ttft, work.best_ttft) if ttft else ("ITL", service.itl, work.best_itl)
            text = (
                f"{name} target {target:g} ms; lowest possible on this profile {best:.4g} ms, by replicas with next to "
                f"nothing to do: sized for {NEAREST * best:.4g} ms; raise {'slo-ttft' if ttft else 'slo-tpot'} in "
                f"{service.where}, or use a faster accelerator"
            )
            return ("False", f"TargetBelowMinimum{name}", text)
        return ("True", "TargetsReachable", f"TTFT {_target(service.ttft)} and ITL {_target(service.itl)} can be met")
    if work.binding == "TTFT":
        text = _below("TTFT", service.ttft, work.best_ttft, "slo-ttft", service.where)
        return ("False", "TargetBelowMinimumTTFT", text)
    text = _below("ITL", service.itl, work.best_itl, "slo-tpot", service.where)
    return ("False", "TargetBelowMinimumITL", text)


def _below(name: str, target: float, best: float, field: str, where: str) -> str:
    return (
        f"{name} target {target:g} ms; lowest possible on this profile {best:.4g} ms: sized for the nearest feasible"
        f" target; raise {field} in {where}, or use a faster accelerator"
    )


def _target(value: float) -> str:
    return f"{value:g} ms" if value else "without target"


def profile_drift(state: State) -> Story | None:
    """Whether what is observed is so far from the profile that the engine should be measured again; ``None`` while it
    is not and never was."""
    work = state.slo
    assert work is not None
    before = next((c.status for c in state.variant.conditions if c.type == PROFILE_DRIFT), None)
    observed = f"observed TTFT is {work.ttft_factor:.2f} times, ITL {work.itl_factor:.2f} times what the profile says"
    furthest = max(max(one, 1 / one) for one in (work.ttft_factor, work.itl_factor))
    if furthest > (STILL_DRIFTED if before == "True" else DRIFTED):
        text = f"{observed}, in steady state; sized for that, but measure the engine again and fit a new profile"
        return ("True", "LatenciesDiffer", text)
    return None if before is None else ("False", "ProfileHolds", observed)


def capacity_limited(state: State, limiter: bool) -> Story | None:
    """Whether the lack of accelerators changed the decision; ``None`` when the limiter is off and never was on."""
    work = state.slo
    assert work is not None
    if work.limited or state.limited_by is not None:
        return ("True", "AcceleratorsExhausted", work.limited or state.message)
    if state.shortage is not None:
        return ("True", *state.shortage)
    if limiter:
        return ("False", "CapacitySufficient", "there are accelerators for all replicas asked for")
    before = next((c for c in state.variant.conditions if c.type == CAPACITY_LIMITED), None)
    if before is None:
        return None
    if before.reason in (AT_MAXIMUM, NOT_STARTING) or before.message == SUFFICIENT[2]:
        return SUFFICIENT
    return ("False", "LimiterDisabled", "the GPU limiter is not enabled")


def current_allocation(state: State) -> CurrentAllocation | None:
    """What the variant has now; ``None`` when its workload is not known."""
    work = state.slo
    if work is None or work.spec is None or state.current is None:
        return None
    spec, batch, cost = work.spec, work.spec.max_batch, work.cost
    if state.rules.told_batch is not None:
        batch, cost = state.rules.told_batch, work.unit_cost or 0.0
    return CurrentAllocation(spec.variant_id, spec.accelerator, state.current, batch, state.current * cost)
