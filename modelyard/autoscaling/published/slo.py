"""The SLO form exactly as documented: every variant sized for the model's whole load, nothing damped.

``decide`` uses it for groups in published mode. Known defects are kept: completions count as arrivals, loads and
request sizes go through two printed decimals, an idle variant is not compared with its targets, and the current
allocation is priced without its accelerator count. Source: WVA SLO reference, "Allocated allocations".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite
from typing import NamedTuple

from modelyard.autoscaling.decision import Prediction, Step
from modelyard.autoscaling.variants.slo.strategy import FOUND, missing_load
from modelyard.autoscaling.variants.slo.work import GroupWork, VariantWork
from modelyard.autoscaling.variants.state import Group, State, work_of
from modelyard.autoscaling.variants.strategy import Moment, Verdict


class Allocated(NamedTuple):
    """One variant's allocation: ``per_replica`` is requests per second, ``cost`` of all replicas per hour."""

    replicas: int
    cost: float
    per_replica: float


def candidate(load: float, rate: float, cost: float, minimum: int) -> Allocated:
    """Replicas for a load (requests per second) that is not zero, at ``rate`` per replica and its ``cost``."""
    replicas = max(ceil(load / rate), minimum)
    return Allocated(replicas, cost * replicas, load / replicas)


def idle_candidate(cost: float, minimum: int) -> Allocated:
    """What stands without load; latency targets are not consulted."""
    return Allocated(minimum, cost * minimum, 0.0)


class PublishedForecast:
    """The documented optimizer over one group; saturation has no say."""

    def propose(self, group: Group, running: Sequence[State], tick: Moment) -> Verdict:
        """Set the target of every variant that has a candidate; the others keep what they have."""
        work = group.slo
        assert work is not None
        problem = missing_load(group, tick.fleet.signals, tick.fleet.now, tick.settings)
        if work.load is None or problem is not None:
            return Verdict(problem=problem or ("False", "MetricsMissing", work.load_problem))
        minimum = 0 if tick.settings.scale_to_zero else 1
        decided: list[State] = []
        for state in group.states:
            own = work_of(state)
            found = _candidate(own, work, minimum)
            if found is None:
                text = f"no feasible allocation found: {_why(own)}; replicas are kept"
                state.keep("OptimizationFailed", text)
                state.metrics = FOUND
                continue
            text = (
                f"{found.replicas} replicas for {work.load * 60:.2f} requests/min, the whole load of the model: "
                f"cost {found.cost:g}, {found.per_replica:.4g}/s per replica"
            )
            state.propose(found.replicas, "Optimized", text)
            state.steps = (*state.steps, Step("optimizer", state.current, found.replicas, state.message))
            state.metrics = FOUND
            if not found.per_replica:
                own.prediction = _idle_prediction(own)
            decided.append(state)
        return Verdict(decided)


def _candidate(own: VariantWork, work: GroupWork, minimum: int) -> Allocated | None:
    if own.problem or own.profile is None:
        return None
    if not work.load or work.sizes is None or work.sizes.output < 1:
        return idle_candidate(own.cost, minimum)
    if not own.feasible or not isfinite(own.rate):
        return None
    return candidate(work.load, own.rate, own.cost, minimum)


def _idle_prediction(own: VariantWork) -> Prediction:
    """ITL α + β, TTFT γ + δ, and a highest rate that the reference itself calls meaningless."""
    p = own.profile
    assert p is not None
    ttft, itl = p.gamma + p.delta, p.alpha + p.beta
    most = 1000 * p.max_batch / (ttft + p.alpha + p.beta * p.max_batch)
    return Prediction(0.0, most, ttft, itl, 0.0)


def _why(own: VariantWork) -> str:
    if own.problem:
        return own.problem
    return "the latency targets cannot be met on this profile"
