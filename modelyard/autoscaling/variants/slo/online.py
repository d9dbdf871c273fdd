"""Learning the performance parameters themselves, where ``FleetSettings.estimator`` asks for it.

The state of the filter is the variant's memory; it is written only when a parameter moved noticeably. After a few
observations the learnt parameters replace the profile's in sizing; there is no feedback then, which would count the
same difference twice. Source: WVA SLO reference, "Online".
"""

from __future__ import annotations

from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.sizing.estimator import (
    RESTART,
    UNGATED,
    EstimatorState,
    Observation,
    restart,
    resume,
    update,
)
from modelyard.autoscaling.sizing.iteration import Parameters, equivalent, from_profile
from modelyard.autoscaling.variants.slo.feedback import mean, observed_rate, steady
from modelyard.autoscaling.variants.slo.work import GroupWork, VariantWork
from modelyard.autoscaling.variants.state import Group, State, work_of

NOTICEABLE = 0.02
"""Relative move of a parameter that is worth remembering."""


def estimate(group: Group, settings: FleetSettings, now: float) -> None:
    """Take one observation per variant in steady state, and size with what has been learnt so far."""
    work = group.slo
    if not settings.estimator or work is None or work.sizes is None:
        return
    for state in group.states:
        own = work_of(state)
        if own.problem or own.profile is None:
            continue
        learnt = _learn(state, own, work, settings, now)
        if learnt is None or learnt.updates < UNGATED:
            continue
        own.coefficients = equivalent(learnt.estimate, round(work.sizes.prompt), max(1, round(work.sizes.output)))


def _learn(
    state: State, own: VariantWork, work: GroupWork, settings: FleetSettings, now: float
) -> EstimatorState | None:
    sizes, profile, memory = work.sizes, own.profile, own.memory
    assert sizes is not None
    assert profile is not None
    initial = from_profile(profile.alpha, profile.beta, profile.gamma, profile.delta, sizes.prompt, sizes.output)
    known = resume(memory.estimate, memory.covariance, memory.updates, initial)
    ttft, itl = mean(own.performance, "ttft"), mean(own.performance, "itl")
    if not sizes.measured or ttft is None or itl is None or not steady(state, settings, now):
        return known if memory.estimate else None
    seen = Observation(observed_rate(state, settings), profile.max_batch, sizes.prompt, sizes.output, ttft, itl)
    found = update(known, seen, initial=initial)
    if not found.accepted:
        return _rejected(own, known, seen, initial)
    moved = max(abs(new - old) / old for new, old in zip(found.state.estimate, known.estimate, strict=True))
    if moved > NOTICEABLE or found.state.updates <= UNGATED or memory.rejected:
        _remember(own, found.state)
    return found.state


def _rejected(own: VariantWork, known: EstimatorState, seen: Observation, initial: Parameters) -> EstimatorState | None:
    """One outlier is left out; when everything is one, the engine is another than the one that was learnt."""
    memory = own.memory
    rejected = min(memory.rejected + 1, RESTART)
    if rejected == RESTART and (fresh := restart(seen, initial=initial)) is not None:
        _remember(own, fresh)
        return fresh
    if rejected != memory.rejected and seen.rate > 0:
        own.memory = memory.model_copy(update={"rejected": rejected})
    return known if memory.estimate else None


def _remember(own: VariantWork, learnt: EstimatorState) -> None:
    own.memory = own.memory.model_copy(
        update={
            "estimate": tuple(float(f"{value:.6g}") for value in learnt.estimate),
            "covariance": tuple(float(f"{value:.6g}") for value in learnt.covariance),
            "updates": learnt.updates,
            "rejected": 0,
        }
    )
