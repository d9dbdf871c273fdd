"""Learning from what is observed: how far a variant's real TTFT and ITL are from the predicted ones.

The correction is the ratio observed over predicted, learnt slowly and only in steady state, bounded, and applied by
tightening or loosening the targets. It is written to the variant's memory only when it moves noticeably, so that a
quiet fleet costs no writes. Source: WVA SLO reference, "What users ask for" (feedback from observed latency).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.variants.demand import Group, LoadForecast, Rate
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.slo.sizing import Row, predict
from modelyard.metrics.vocabulary import PodPerformance

LOWEST, HIGHEST = 0.5, 2.0
"""Bounds of a correction: what is further off is a wrong profile, not an inaccurate one."""
WEIGHT = 0.25
"""Share of a new observation in the correction."""
NOTICEABLE = 0.05
"""Relative difference between observation and correction below which nothing is learnt."""
CALM = 5.0
"""Load windows without a change of replicas before latencies say something of the engine."""
MOST_UTILISATION = 0.85
"""Above it the waiting time depends on the load so steeply that its ratio says nothing about the profile."""


def with_corrections(rate: Rate, settings: FleetSettings) -> Rate:
    """Return the rate with the corrections from memory; without feedback, or with a learnt profile, there are none."""
    objective, memory = rate.objective, rate.memory
    own = objective.profile if objective.learnt is None else None
    if memory.corrected and own is not None and memory.corrected != own.parameters:
        memory = memory.model_copy(update={"ttft_factor": 1.0, "itl_factor": 1.0, "capacity": 1.0, "corrected": ()})
        rate = rate._replace(memory=memory)
    factors = _bounded(memory.ttft_factor), _bounded(memory.itl_factor)
    if not settings.feedback or objective.learnt is not None or factors == (1.0, 1.0):
        return rate
    return rate._replace(ttft_factor=factors[0], itl_factor=factors[1])


def steady(seen: Observation, performance: Sequence[PodPerformance], settings: FleetSettings, now: float) -> bool:
    """Return whether what was measured over the window comes from the present replicas, and from enough requests."""
    if seen.pending or seen.surge or not seen.current or (seen.desired is not None and seen.desired != seen.current):
        return False
    if any(pod.ready_since is None or now - pod.ready_since < settings.load_window for pod in seen.pods):
        return False
    return fsum(pod.completed or 0.0 for pod in performance) >= settings.min_completions


def calm(seen: Observation, performance: Sequence[PodPerformance], settings: FleetSettings, now: float) -> bool:
    """Return whether nothing has changed about the variant's replicas for ``CALM`` load windows."""
    since = now - CALM * settings.load_window
    shrunk = seen.memory.shrunk_at
    if not steady(seen, performance, settings, now) or (shrunk is not None and shrunk > since):
        return False
    return all(pod.ready_since is not None and pod.ready_since <= since for pod in seen.pods)


def observed_rate(performance: Sequence[PodPerformance], settings: FleetSettings) -> float:
    """Return the requests per second that one replica of a variant finished."""
    counts = [pod.completed for pod in performance if pod.completed is not None]
    return fsum(counts) / (len(counts) * settings.load_window) if counts else 0.0


def mean(pods: Sequence[PodPerformance], field: str) -> float | None:
    """Return the mean of an observed time over requests, ``None`` when no pod reports it."""
    pairs = [(pod.completed, getattr(pod, field)) for pod in pods if pod.completed]
    known = [(count, value) for count, value in pairs if value is not None]
    total = fsum(count for count, _ in known)
    return fsum(count * value for count, value in known) / total if total else None


def learn(forecasts: Sequence[tuple[Group, LoadForecast]], settings: FleetSettings, now: float) -> list[LoadForecast]:
    """Return the forecasts with corrections moved for variants in steady state; one vectorized prediction for all."""
    places: list[tuple[int, str]] = []
    rows: list[Row] = []
    for index, (group, forecast) in enumerate(forecasts):
        sizes = forecast.sizes
        if sizes is None or not sizes.measured:
            continue
        for seen in group.variants:
            rate = forecast.rates[seen.name]
            objective = rate.objective
            if objective.problem is not None or objective.learnt is not None:
                continue
            if steady(seen, objective.performance, settings, now):
                places.append((index, seen.name))
                rows.append(Row(rate, sizes, observed_rate(objective.performance, settings)))
    changed: dict[int, dict[str, Rate]] = {}
    for (index, name), row, expected in zip(places, rows, predict(rows, corrected=False), strict=True):
        if expected.utilisation is None or expected.utilisation > MOST_UTILISATION:
            continue
        rate, objective = row.rate, row.rate.objective
        ttft = _moved(rate.ttft_factor, mean(objective.performance, "ttft"), expected.ttft)
        itl = _moved(rate.itl_factor, mean(objective.performance, "itl"), expected.itl)
        if (ttft, itl) != (rate.ttft_factor, rate.itl_factor):
            about = objective.profile.parameters if objective.profile else ()
            memory = rate.memory.model_copy(update={"ttft_factor": ttft, "itl_factor": itl, "corrected": about})
            changed.setdefault(index, {})[name] = rate._replace(ttft_factor=ttft, itl_factor=itl, memory=memory)
    return [
        forecast._replace(rates={**forecast.rates, **changed[index]}) if index in changed else forecast
        for index, (_, forecast) in enumerate(forecasts)
    ]


def _moved(factor: float, observed: float | None, predicted: float | None) -> float:
    if observed is None or not predicted or observed <= 0:
        return factor
    ratio = _bounded(observed / predicted)
    if abs(ratio - factor) <= NOTICEABLE * factor:
        return factor
    return round(_bounded(factor + WEIGHT * (ratio - factor)), 3)


def _bounded(factor: float) -> float:
    return min(max(factor, LOWEST), HIGHEST)
