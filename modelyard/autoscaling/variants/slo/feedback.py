"""Learning from what is observed: how far a variant's real TTFT and ITL are from the predicted ones.

The correction is the ratio observed over predicted, learnt slowly and only in steady state, bounded, and applied by
tightening or loosening the targets. It is written to the variant's memory only when it moves noticeably, so that a
quiet fleet costs no writes. Source: WVA SLO reference, "What users ask for" (feedback from observed latency).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum

from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.slo.sizing import Row, predict
from modelyard.autoscaling.variants.state import Group, State, work_of
from modelyard.metrics.values import PodPerformance

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


def recall(states: Iterable[State], settings: FleetSettings) -> None:
    """Take the corrections from memory; without feedback, or where the parameters are learnt, there are none."""
    for state in states:
        work = work_of(state)
        if (
            work.memory.corrected
            and work.profile
            and not work.learnt
            and work.memory.corrected != work.profile.parameters
        ):
            work.memory = work.memory.model_copy(
                update={"ttft_factor": 1.0, "itl_factor": 1.0, "capacity": 1.0, "corrected": ()}
            )
        if settings.feedback and not work.learnt:
            work.ttft_factor = _bounded(work.memory.ttft_factor)
            work.itl_factor = _bounded(work.memory.itl_factor)
        else:
            work.ttft_factor = work.itl_factor = 1.0


def steady(state: State, settings: FleetSettings, now: float) -> bool:
    """Whether what was measured over the window comes from the replicas there are, and from enough requests."""
    if (
        state.pending
        or state.surge
        or not state.current
        or (state.desired is not None and state.desired != state.current)
    ):
        return False
    if any(pod.ready_since is None or now - pod.ready_since < settings.load_window for pod in state.pods):
        return False
    return fsum(pod.completed or 0.0 for pod in work_of(state).performance) >= settings.min_completions


def calm(state: State, settings: FleetSettings, now: float) -> bool:
    """Whether nothing has changed about the variant's replicas for ``CALM`` load windows."""
    since = now - CALM * settings.load_window
    shrunk = state.memory.shrunk_at
    if not steady(state, settings, now) or (shrunk is not None and shrunk > since):
        return False
    return all(pod.ready_since is not None and pod.ready_since <= since for pod in state.pods)


def observed_rate(state: State, settings: FleetSettings) -> float:
    """Requests per second one replica of the variant finished."""
    counts = [pod.completed for pod in work_of(state).performance if pod.completed is not None]
    return fsum(counts) / (len(counts) * settings.load_window) if counts else 0.0


def mean(pods: Sequence[PodPerformance], field: str) -> float | None:
    """Mean of an observed time over requests, ``None`` when nobody reports it."""
    found = [(pod.completed, getattr(pod, field)) for pod in pods if pod.completed]
    known = [(count, value) for count, value in found if value is not None]
    total = fsum(count for count, _ in known)
    return fsum(count * value for count, value in known) / total if total else None


def learn(groups: Sequence[Group], settings: FleetSettings, now: float) -> None:
    """Move the corrections of variants in steady state; one vectorized prediction for all of them."""
    if not settings.feedback:
        return
    states: list[State] = []
    rows: list[Row] = []
    for group in groups:
        assert group.slo is not None
        sizes = group.slo.sizes
        if sizes is None or not sizes.measured:
            continue
        for state in group.states:
            work = work_of(state)
            if work.problem or work.learnt or not steady(state, settings, now):
                continue
            states.append(state)
            rows.append(Row(work, sizes, observed_rate(state, settings)))
    for state, expected in zip(states, predict(rows, corrected=False), strict=True):
        if expected.utilisation is None or expected.utilisation > MOST_UTILISATION:
            continue
        work = work_of(state)
        ttft = _moved(work.ttft_factor, mean(work.performance, "ttft"), expected.ttft)
        itl = _moved(work.itl_factor, mean(work.performance, "itl"), expected.itl)
        if (ttft, itl) != (work.ttft_factor, work.itl_factor):
            work.ttft_factor, work.itl_factor = ttft, itl
            about = work.profile.parameters if work.profile else ()
            work.memory = work.memory.model_copy(update={"ttft_factor": ttft, "itl_factor": itl, "corrected": about})


def _moved(factor: float, observed: float | None, predicted: float | None) -> float:
    if observed is None or not predicted or observed <= 0:
        return factor
    ratio = _bounded(observed / predicted)
    if abs(ratio - factor) <= NOTICEABLE * factor:
        return factor
    return round(_bounded(factor + WEIGHT * (ratio - factor)), 3)


def _bounded(factor: float) -> float:
    return min(max(factor, LOWEST), HIGHEST)
