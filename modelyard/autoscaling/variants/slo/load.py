"""The offered load of a group of variants and the size of its requests, from what was measured or remembered.

Nothing missing ever becomes zero: a load that is not known leaves the decision to saturation, request sizes that are
not known hold the forecast still. Source: WVA SLO reference, "Metrics collection" and its repairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.memory.variants import SLOMemory
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.attribution import Performances
from modelyard.autoscaling.variants.headroom import NONE, plan_ahead
from modelyard.autoscaling.variants.slo.work import GroupWork, RequestSizes
from modelyard.autoscaling.variants.state import Group, State, work_of
from modelyard.metrics.values import ModelLoad, Signals

_MOVED = 0.1
"""Relative change of the request sizes that is worth remembering at once."""

BELIEVABLE = 1e12
"""Requests per second, tokens; what is beyond, infinite or NaN is damaged."""

QUIET = 1e-6
"""Requests per second below which nothing arrives."""


def completions(group: Group, performances: Performances, window: float) -> float | None:
    """Requests the group's pods finished in the window; ``None`` when no ready pod says so."""
    total, known, ready = 0.0, False, 0
    for state in group.states:
        ready += state.ready or 0
        rates = {pod.key: signal.completed_rate for signal, pod in state.units}
        for pod in state.pods:
            found = performances.get((*pod.key, group.model_id))
            count = found.completed if found is not None else None
            if count is None and (rate := rates.get(pod.key)) is not None:
                count = rate * window
            if count is not None:
                total += count
                known = True
    return total if known or not ready else None


def measure_load(
    group: Group, together: Sequence[Group], performances: Performances, fleet: Fleet, settings: FleetSettings
) -> None:
    """Fill in load, sizes and idleness of a group with targets; ``together`` are all groups of its model."""
    work, signals, now = group.slo, fleet.signals, fleet.now
    assert work is not None
    window = settings.load_window
    model = signals.loads.get((group.namespace, group.model_id))
    _measure(group, work, model, together, signals, performances, settings)
    quiet = work.load is not None and work.load * window < settings.min_completions
    work.sizes = request_sizes(group.states, settings, now, quiet)
    for state in group.states:
        remember_sizes(state, work.sizes, settings, now)
    if work.load is not None and model is not None:
        ahead = plan_ahead(model, group.states, settings, now) if work.load > QUIET else NONE
        work.planned = work.load * max(1.0, ahead.factor)
        work.trend = ahead.text
        work.history, work.sizes_seen = model.history, model.sizes
    work.buckets = signals.sizes.get((group.namespace, group.model_id), work.buckets)
    work.full_window = _full_window(group, model.history if model is not None else (), window, now)


def _measure(
    group: Group,
    work: GroupWork,
    model: ModelLoad | None,
    together: Sequence[Group],
    signals: Signals,
    performances: Performances,
    settings: FleetSettings,
) -> None:
    """The load now, and whether the group is idle; or why the load is not known."""
    window = settings.load_window
    if signals.error is not None:
        work.load_problem = f"Prometheus could not be read: {signals.error}"
        return
    if model is None or model.arrivals is None or not abs(model.arrivals) < BELIEVABLE:
        work.load_problem = f"the load of {group.name} is not known"
        return
    part = _part(group, together, performances, window)
    if part is None:
        work.load_problem = (
            f"the load of {group.name} cannot be split between its service classes: no completions known"
        )
        return
    work.load = max(0.0, model.arrivals) * part
    work.share = part
    work.idle = work.load <= QUIET and _nothing_in_flight(group) and not completions(group, performances, window)


def _part(group: Group, together: Sequence[Group], performances: Performances, window: float) -> float | None:
    """The group's share of the model's load, by what each group's pods finish."""
    if len(together) == 1:
        return 1.0
    finished = [completions(other, performances, window) for other in together]
    if any(count is not None for count in finished):
        # Where counts are to be had, an engine that reports and has none has not finished its first request.
        finished = [
            0.0 if count is None and all(s.reporting >= (s.ready or 0) for s in other.states) else count
            for count, other in zip(finished, together, strict=True)
        ]
    mine = finished[together.index(group)]
    if mine is None or None in finished:
        return None
    total = fsum(count for count in finished if count is not None)
    if total > 0:
        return mine / total
    # Nothing finished yet anywhere: every replica is as likely to get a request as any other.
    ready = [sum(state.ready or 0 for state in other.states) for other in together]
    return ready[together.index(group)] / sum(ready) if sum(ready) else None


def _nothing_in_flight(group: Group) -> bool:
    for state in group.states:
        if state.reporting < (state.ready or 0):
            return False
        if any(signal.running != 0 or signal.waiting != 0 for signal, _ in state.units):
            return False
    return True


def _full_window(group: Group, history: Sequence[tuple[float, float]], window: float, now: float) -> bool:
    """Whether the measured load covers a whole window, so that little of it is not just the beginning of much."""
    if history:
        return now - history[0][0] >= window
    starts = [pod.ready_since for state in group.states for pod in state.pods if pod.ready_since is not None]
    if not starts:
        return True
    return now - max(min(starts), min(state.variant.created for state in group.states)) >= window


def request_sizes(
    states: Sequence[State], settings: FleetSettings, now: float, quiet: bool = False
) -> RequestSizes | None:
    """Mean prompt and output tokens of the group: measured on enough requests, else remembered, else not known.

    A ratio of few completions explodes when traffic stops, so it is not believed. A model that is ``quiet`` never has
    enough: there the few count, failing those what is remembered, however old. So little load needs no precision,
    and not to know it would keep replicas for ever.
    """
    count = prompt = output = 0.0
    for state in states:
        for pod in work_of(state).performance:
            if pod.completed and pod.prompt_tokens is not None and pod.output_tokens is not None:
                count += pod.completed
                prompt += pod.completed * pod.prompt_tokens
                output += pod.completed * pod.output_tokens
    if not (prompt < BELIEVABLE * count and output < BELIEVABLE * count):
        count = 0.0
    if count >= settings.min_completions and output / count >= 1 and prompt >= 0:
        return RequestSizes(prompt / count, output / count)
    best: SLOMemory | None = None
    for state in states:
        known = work_of(state).memory
        if known.tokens_at is None or known.prompt_tokens is None or (known.output_tokens or 0) < 1:
            continue
        if (quiet or now - known.tokens_at <= settings.token_memory) and (
            best is None or known.tokens_at > (best.tokens_at or 0)
        ):
            best = known
    old = best is None or best.tokens_at is None or now - best.tokens_at > settings.token_memory
    if quiet and old and count >= 1 and output / count >= 1 and prompt >= 0:
        return RequestSizes(prompt / count, output / count, measured=False)
    if best is None:
        return None
    return RequestSizes(best.prompt_tokens or 0.0, best.output_tokens or 1.0, measured=False)


def remember_sizes(state: State, sizes: RequestSizes | None, settings: FleetSettings, now: float) -> None:
    """Note sizes measured now, when they moved or half of the time they are remembered for is over."""
    if sizes is None or not sizes.measured:
        return
    work = work_of(state)
    known = work.memory
    if (
        known.tokens_at is not None
        and abs(now - known.tokens_at) < settings.token_memory / 2
        and _near(known.prompt_tokens, sizes.prompt)
        and _near(known.output_tokens, sizes.output)
    ):
        return
    fresh = {"prompt_tokens": round(sizes.prompt, 1), "output_tokens": round(sizes.output, 1), "tokens_at": round(now)}
    work.memory = known.model_copy(update=fresh)


def _near(known: float | None, value: float) -> bool:
    return known is not None and abs(value - known) <= _MOVED * max(known, 1.0)
