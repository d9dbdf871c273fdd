"""The offered load of a group of variants and the size of its requests, from what was measured or remembered.

Nothing missing ever becomes zero: a load that is not known leaves the decision to saturation, request sizes that are
not known hold the forecast still. Source: WVA SLO reference, "Metrics collection" and its repairs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import fsum
from typing import NamedTuple

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.decisions import Explanation, Reason
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.memory import SLOMemory
from modelyard.autoscaling.variants.attribution import Performances
from modelyard.autoscaling.variants.demand import Group, LoadForecast, Rate, RequestSizes
from modelyard.autoscaling.variants.headroom import NONE, plan_ahead
from modelyard.metrics.vocabulary import SizeBuckets

_MOVED = 0.1
"""Relative change of the request sizes that is worth remembering at once."""
BELIEVABLE = 1e12
"""Requests per second, tokens; what is beyond, infinite or NaN is damaged."""
QUIET = 1e-6
"""Requests per second below which nothing arrives."""


class MeasuredLoad(NamedTuple):
    """The load of a group as measured; ``share`` is its part of the model's load.

    ``history`` has (time, requests/s) of the model, ``sizes_seen`` (time, mean prompt, output tokens), oldest first.
    """

    group: Group
    forecast: LoadForecast
    history: Sequence[tuple[float, float]] = ()
    sizes_seen: Sequence[tuple[float, float, float]] = ()
    buckets: SizeBuckets = SizeBuckets()
    share: float = 1.0


def unsized(group: Group) -> dict[str, Rate]:
    """Return the rates of a group before anything is known of them, by variant name."""
    known = ((seen.name, seen.objective) for seen in group.variants if seen.objective is not None)
    return {name: Rate(objective, objective.memory) for name, objective in known}


def _completions(group: Group, performances: Performances, window: float) -> float | None:
    """``None`` when no ready pod reports them."""
    total, known, ready = 0.0, False, 0
    for seen in group.variants:
        ready += seen.ready or 0
        rates = {pod.key: signal.completed_rate for signal, pod in seen.units}
        for pod in seen.pods:
            reported = performances.get((*pod.key, group.model_id))
            count = reported.completed if reported is not None else None
            if count is None and (rate := rates.get(pod.key)) is not None:
                count = rate * window
            if count is not None:
                total, known = total + count, True
    return total if known or not ready else None


def measure_load(
    group: Group, together: Sequence[Group], performances: Performances, fleet: Fleet, settings: FleetSettings
) -> MeasuredLoad:
    """Return load, sizes and idleness of a group with targets; ``together`` are all groups of its model."""
    signals, now, window = fleet.signals, fleet.now, settings.load_window
    place = group.namespace, group.model_id
    model = signals.loads.get(place)
    share, problem = None, None
    if signals.error is not None:
        problem = Explanation(Reason.LOAD_UNREADABLE, error=signals.error)
    elif model is None or model.arrivals is None or not abs(model.arrivals) < BELIEVABLE:
        problem = Explanation(Reason.LOAD_UNKNOWN, model=group.name)
    elif (share := _part(group, together, performances, window)) is None:
        problem = Explanation(Reason.LOAD_NOT_DIVISIBLE, model=group.name)
    load = max(0.0, model.arrivals or 0.0) * share if model is not None and share is not None else None
    idle = load is not None and load <= QUIET
    idle = idle and _nothing_in_flight(group) and not _completions(group, performances, window)
    rates = unsized(group)
    sizes = request_sizes(rates.values(), settings, now, load is not None and load * window < settings.min_completions)
    rates = {name: _with_sizes(rate, sizes, settings, now) for name, rate in rates.items()}
    ahead = plan_ahead(model, group.variants, settings, now) if load is not None and load > QUIET else NONE
    forecast = LoadForecast(
        load,
        problem,
        planned=(load or 0.0) * max(1.0, ahead.factor),
        basis=ahead.why,
        sizes=sizes,
        idle=idle,
        full_window=_full_window(group, model.history if model is not None else (), window, now),
        rates=rates,
    )
    buckets = signals.sizes.get(place, SizeBuckets())
    if load is None or model is None or share is None:
        return MeasuredLoad(group, forecast, buckets=buckets, share=1.0 if share is None else share)
    return MeasuredLoad(group, forecast, model.history, model.sizes, buckets, share)


def _part(group: Group, together: Sequence[Group], performances: Performances, window: float) -> float | None:
    """By completions of each group's pods."""
    if len(together) == 1:
        return 1.0
    finished = [_completions(other, performances, window) for other in together]
    if any(count is not None for count in finished):
        # Where counts are to be had, an engine that reports and has none has not finished its first request.
        finished = [
            0.0 if count is None and all(s.reporting >= (s.ready or 0) for s in other.variants) else count
            for count, other in zip(finished, together, strict=True)
        ]
    place = next(place for place, other in enumerate(together) if other is group)
    mine = finished[place]
    if mine is None or None in finished:
        return None
    total = fsum(count for count in finished if count is not None)
    if total > 0:
        return mine / total
    # Nothing finished yet anywhere: every replica is as likely to get a request as any other.
    ready = [sum(seen.ready or 0 for seen in other.variants) for other in together]
    return ready[place] / sum(ready) if sum(ready) else None


def _nothing_in_flight(group: Group) -> bool:
    idle = (signal.running == 0 and signal.waiting == 0 for seen in group.variants for signal, _ in seen.units)
    return all(seen.reporting >= (seen.ready or 0) for seen in group.variants) and all(idle)


def _full_window(group: Group, history: Sequence[tuple[float, float]], window: float, now: float) -> bool:
    """Too little load may be the beginning of much."""
    if history:
        return now - history[0][0] >= window
    starts = [pod.ready_since for seen in group.variants for pod in seen.pods if pod.ready_since is not None]
    if not starts:
        return True
    return now - max(min(starts), min(seen.variant.created for seen in group.variants)) >= window


def request_sizes(
    rates: Collection[Rate], settings: FleetSettings, now: float, quiet: bool = False
) -> RequestSizes | None:
    """Return mean prompt and output tokens of the group: measured on enough requests, else remembered, else not known.

    A ratio of few completions explodes when traffic stops, so it is not believed. A model that is ``quiet`` never has
    enough: there the few count, failing those what is remembered, however old. So little load needs no precision,
    and not to know it would keep replicas for ever.
    """
    count = prompt = output = 0.0
    for rate in rates:
        for pod in rate.objective.performance:
            if pod.completed and pod.prompt_tokens is not None and pod.output_tokens is not None:
                count += pod.completed
                prompt += pod.completed * pod.prompt_tokens
                output += pod.completed * pod.output_tokens
    if not (prompt < BELIEVABLE * count and output < BELIEVABLE * count):
        count = 0.0
    if count >= settings.min_completions and output / count >= 1 and prompt >= 0:
        return RequestSizes(prompt / count, output / count)
    best: SLOMemory | None = None
    for known in (rate.memory for rate in rates):
        if known.tokens_at is None or known.prompt_tokens is None or (known.output_tokens or 0) < 1:
            continue
        is_newer = best is None or known.tokens_at > (best.tokens_at or 0)
        if is_newer and (quiet or now - known.tokens_at <= settings.token_memory):
            best = known
    old = best is None or best.tokens_at is None or now - best.tokens_at > settings.token_memory
    if quiet and old and count >= 1 and output / count >= 1 and prompt >= 0:
        return RequestSizes(prompt / count, output / count, measured=False)
    if best is None:
        return None
    return RequestSizes(best.prompt_tokens or 0.0, best.output_tokens or 1.0, measured=False)


def _with_sizes(rate: Rate, sizes: RequestSizes | None, settings: FleetSettings, now: float) -> Rate:
    """Remember sizes measured now, when they moved or half of the time they are remembered for is over."""
    known = rate.memory
    if sizes is None or not sizes.measured:
        return rate
    is_fresh = known.tokens_at is not None and abs(now - known.tokens_at) < settings.token_memory / 2
    if is_fresh and _near(known.prompt_tokens, sizes.prompt) and _near(known.output_tokens, sizes.output):
        return rate
    fresh = {"prompt_tokens": round(sizes.prompt, 1), "output_tokens": round(sizes.output, 1), "tokens_at": round(now)}
    return rate._replace(memory=known.model_copy(update=fresh))


def _near(known: float | None, value: float) -> bool:
    return known is not None and abs(value - known) <= _MOVED * max(known, 1.0)
