"""The SLO form exactly as documented: every variant sized for the model's whole load, nothing damped.

``decide`` uses it for groups in published mode. Known defects are kept: completions count as arrivals, loads and
request sizes go through two printed decimals, an idle variant is not compared with its targets, and the current
allocation is priced without its accelerator count. Source: WVA SLO reference, "Allocated allocations".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, fsum, isfinite
from typing import NamedTuple

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.decisions import Count, Explanation, Prediction, Reason, TickContext
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.published import sizing
from modelyard.autoscaling.variants import (
    Group,
    LoadForecast,
    ModelDemand,
    Origin,
    Performances,
    Proposal,
    Proposed,
    Rate,
    ReplicaChange,
    RequestSizes,
    keep,
    load_problem,
)
from modelyard.autoscaling.variants.slo import (
    FOUND,
    Forecasting,
    MeasuredLoad,
    Mix,
    Model,
    Outlook,
    Row,
    is_foreseeable,
    mix_of,
    predict,
    predicted,
    profiles_of,
    size_all,
    targets_of,
    unsized,
    with_sizing,
)
from modelyard.objects import Key


class Allocated(NamedTuple):
    """One variant's allocation: ``per_replica`` is requests per second, ``cost`` of all replicas per hour."""

    replicas: int
    cost: float
    per_replica: float


def candidate(load: float, rate: float, cost: float, minimum: int) -> Allocated:
    """Replicas for a load (requests per second) that is not zero, at ``rate`` per replica and its ``cost``."""
    replicas = max(ceil(load / rate), minimum)
    return Allocated(replicas, cost * replicas, load / replicas)


class PublishedForecast:
    """The documented optimizer over one group; saturation has no say."""

    def propose(self, demand: ModelDemand, tick: TickContext) -> Proposal:
        """Return a target for every variant that has a candidate; the others keep what they have."""
        forecast, load = demand.model_forecast, demand.model_forecast.load
        problem = load_problem(demand, tick.signals, tick.now, tick.settings.stale_after)
        if load is None or problem is not None:
            return Proposal(problem=problem)
        minimum = 0 if tick.settings.scale_to_zero else 1
        proposed: dict[str, Proposed] = {}
        for seen in demand.variants:
            rate = forecast.rates[seen.name]
            allocated = _candidate(rate, forecast, minimum)
            if allocated is None:
                why = rate.objective.problem or Explanation(Reason.TARGETS_UNREACHABLE)
                kept = keep(seen, Explanation(Reason.NO_FEASIBLE_ALLOCATION, why=why))
                proposed[seen.name] = kept._replace(metrics=FOUND)
                continue
            optimized = Explanation(
                Reason.OPTIMIZED,
                replicas=Count(allocated.replicas, "replica"),
                load=load * 60,
                cost=allocated.cost,
                each=allocated.per_replica,
            )
            steps = (ReplicaChange("optimizer", seen.current, allocated.replicas, optimized),)
            proposed[seen.name] = Proposed.of(allocated.replicas, optimized)._replace(metrics=FOUND, steps=steps)
        return Proposal(proposed, settled=True)


def _candidate(rate: Rate, forecast: LoadForecast, minimum: int) -> Allocated | None:
    if rate.objective.problem is not None or rate.objective.profile is None:
        return None
    if _is_idle(forecast):
        return Allocated(minimum, rate.cost * minimum, 0.0)
    if not rate.feasible or not isfinite(rate.rate):
        return None
    return candidate(forecast.load or 0.0, rate.rate, rate.cost, minimum)


def _is_idle(forecast: LoadForecast) -> bool:
    return not forecast.load or forecast.sizes is None or forecast.sizes.output < 1


def _idle_prediction(rate: Rate) -> Prediction:
    """ITL α + β, TTFT γ + δ, and a highest rate that the reference itself calls meaningless."""
    profile = rate.objective.profile
    assert profile is not None
    ttft, itl = profile.gamma + profile.delta, profile.alpha + profile.beta
    most = 1000 * profile.max_batch / (ttft + profile.alpha + profile.beta * profile.max_batch)
    return Prediction(0.0, most, ttft, itl, 0.0)


def _measure(
    group: Group, together: Sequence[Group], performances: Performances, fleet: Fleet, settings: FleetSettings
) -> MeasuredLoad:
    """Return the load as documented: completions of the whole model in the window, printed with two decimals.

    A missing series counts as zero there, but only once the model has metrics at all. What is in flight, waits or is
    expected does not count.
    """
    forecast, error = LoadForecast(None, rates=unsized(group)), fleet.signals.error
    if error is not None:
        problem = Explanation(Reason.LOAD_UNREADABLE, error=error)
        return MeasuredLoad(group, forecast._replace(problem=problem))
    pods = [pod.key for other in together for seen in other.variants for pod in seen.pods]
    reports = [performances.get((*key, group.model_id)) for key in pods]
    counts = [report.completed for report in reports if report is not None and report.completed is not None]
    if not counts:
        problem = Explanation(Reason.LOAD_UNKNOWN, model=group.name)
        return MeasuredLoad(group, forecast._replace(problem=problem))
    load = _two_decimals(fsum(counts) / settings.load_window * 60) / 60
    count = prompt = output = 0.0
    for report in reports:
        if report is not None and report.completed:
            count += report.completed
            prompt += report.completed * (report.prompt_tokens or 0.0)
            output += report.completed * (report.output_tokens or 0.0)
    sizes = RequestSizes(
        float(int(_two_decimals(prompt / count))) if count else 0.0,
        float(int(_two_decimals(output / count))) if count else 0.0,
    )
    return MeasuredLoad(group, forecast._replace(load=load, planned=load, sizes=sizes))


def _two_decimals(value: float) -> float:
    return float(f"{value:.2f}")


def _size(measured: Sequence[MeasuredLoad], settings: FleetSettings, now: float) -> Sequence[LoadForecast | str]:
    return size_all([one.forecast for one in measured], _size_rows)


def _size_rows(rows: Sequence[Row]) -> list[Rate]:
    sized = sizing.size(profiles_of(rows), targets_of(rows))
    return with_sizing(rows, sized, sized.rate)


def _look_ahead(models: Sequence[Model], settings: FleetSettings) -> Outlook:
    """Every variant is taken to serve the whole load there; alternatives are not shown."""
    rows: list[Row] = []
    plans: list[tuple[ModelDemand, Mix]] = []
    predictions: dict[Key, Prediction] = {}
    for demand, variants in models:
        forecast = demand.forecast
        if forecast is None or forecast.load is None:
            continue
        for seen in demand.variants:
            sized, rate = variants[seen.key], forecast.rates[seen.name]
            if _is_idle(forecast) and sized.decided and sized.proposed.origin is not Origin.ASLEEP:
                predictions[seen.key] = _idle_prediction(rate)
            elif is_foreseeable(forecast) and forecast.load and rate.known and sized.replicas:
                plans.append((demand, mix_of(forecast, {seen.name: sized.replicas}, None, True, rows)))
    expected = predict(rows, model=sizing.analyse)
    for demand, mix in plans:
        service = demand.group.service
        assert service is not None
        predictions |= predicted(mix, expected, demand, demand.model_forecast, service)
    return Outlook(predictions)


FORECASTING = Forecasting(_measure, _size, _look_ahead)
