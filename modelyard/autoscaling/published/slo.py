"""The SLO form exactly as documented: every variant sized for the model's whole load, nothing damped.

``decide`` uses it for groups in published mode. Known defects are kept: completions count as arrivals, loads and
request sizes go through two printed decimals, an idle variant is not compared with its targets, and the current
allocation is priced without its accelerator count. Source: WVA SLO reference, "Allocated allocations".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, fsum, isfinite
from typing import NamedTuple

from modelyard.autoscaling.decision import Prediction, Step
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.published import sizing
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.attribution import Performances
from modelyard.autoscaling.variants.slo.outlook import Mix, foreseeable, mix_of, told
from modelyard.autoscaling.variants.slo.prepare import Forecasting
from modelyard.autoscaling.variants.slo.sizing import Row, predict, profiles_of, size_groups, take_over, targets_of
from modelyard.autoscaling.variants.slo.strategy import FOUND, missing_load
from modelyard.autoscaling.variants.slo.work import GroupWork, RequestSizes, VariantWork
from modelyard.autoscaling.variants.state import Group, State, work_of
from modelyard.autoscaling.variants.strategy import Moment, Verdict
from modelyard.objects.documents import counted


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
                why = own.problem or "the latency targets cannot be met on this profile"
                text = f"no feasible allocation found: {why}; replicas are kept"
                state.keep("OptimizationFailed", text)
                state.metrics = FOUND
                continue
            text = (
                f"{counted(found.replicas, 'replica')} for {work.load * 60:.2f} requests/min, "
                f"the whole load of the model: cost {found.cost:g}, {found.per_replica:.4g}/s per replica"
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


def _measure(
    group: Group, together: Sequence[Group], performances: Performances, fleet: Fleet, settings: FleetSettings
) -> None:
    """The load as documented: completions of the whole model in the window, printed with two decimals and read again.

    A missing series counts as zero there, but only once the model has metrics at all. What is in flight, waits or is
    expected does not count.
    """
    work, error = group.slo, fleet.signals.error
    assert work is not None
    if error is not None:
        work.load_problem = f"Prometheus could not be read: {error}"
        return
    pods = [pod.key for other in together for state in other.states for pod in state.pods]
    found = [performances.get((*key, group.model_id)) for key in pods]
    counts = [one.completed for one in found if one is not None and one.completed is not None]
    if not counts:
        work.load_problem = f"the load of {group.name} is not known"
        return
    rate = fsum(counts) / settings.load_window
    work.load = work.planned = _two_decimals(rate * 60) / 60
    count = prompt = output = 0.0
    for one in found:
        if one is not None and one.completed:
            count += one.completed
            prompt += one.completed * (one.prompt_tokens or 0.0)
            output += one.completed * (one.output_tokens or 0.0)
    work.sizes = RequestSizes(
        float(int(_two_decimals(prompt / count))) if count else 0.0,
        float(int(_two_decimals(output / count))) if count else 0.0,
    )


def _two_decimals(value: float) -> float:
    return float(f"{value:.2f}")


def _size(groups: Sequence[Group], settings: FleetSettings, now: float) -> Mapping[Group, str]:
    """What cannot be met has no candidate."""
    return size_groups(groups, _size_rows)


def _size_rows(rows: Sequence[Row]) -> None:
    found = sizing.size(profiles_of(rows), targets_of(rows))
    take_over(rows, found, found.rate)


def _look_ahead(groups: Sequence[Group], settings: FleetSettings) -> None:
    """Every variant is taken to serve the whole load there; alternatives are not told."""
    rows: list[Row] = []
    plans: list[tuple[GroupWork, Mix]] = []
    for group in groups:
        if (work := foreseeable(group)) is not None and work.load:
            for state in group.states:
                if work_of(state).known and state.target:
                    plans.append((work, mix_of([state], work, {state.name: state.target}, "", True, rows)))
    found = predict(rows, model=sizing.analyse)
    for work, mix in plans:
        told(mix, found, work)


FORECASTING = Forecasting(_measure, _size, _look_ahead)
