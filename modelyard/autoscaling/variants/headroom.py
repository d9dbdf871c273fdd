"""Head-room while replicas start. Source: WVA SLO reference, 'What the project demonstrated'."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.decisions import Explanation, Reason
from modelyard.autoscaling.variants.forecast import expected
from modelyard.autoscaling.variants.observation import Observation
from modelyard.metrics.vocabulary import ModelLoad


class Headroom(NamedTuple):
    """Plan for ``factor`` times the load; ``why`` is ``None`` when the load is not rising."""

    factor: float = 1.0
    why: Explanation | None = None


NONE = Headroom()


def plan_ahead(load: ModelLoad | None, growing: Iterable[Observation], settings: FleetSettings, now: float) -> Headroom:
    """Head-room for a model whose variants ``growing`` could get new replicas; the slowest of them sets the lead."""
    if not settings.headroom or load is None or load.arrivals is None:
        return NONE
    history = load.history[bisect_left(load.history, (now - settings.trend_window - settings.tick,)) :]
    newest = max((time for time, _ in history), default=None)
    if newest is None or not now - newest <= settings.load_window:
        return NONE
    # Rates are means over the load window: a step looks like a rise for as long, and a rise has to be seen for longer.
    if newest - min(time for time, _ in history) < min(2 * settings.load_window, settings.trend_window / 2):
        return NONE
    lead = settings.tick + max((startup(seen, settings) for seen in growing), default=settings.startup_default)
    forecast = expected(history, load.arrivals, lead, settings.headroom_limit)
    if not forecast.rising:
        return NONE
    why = Explanation(
        Reason.RISING, load=load.arrivals, expected=forecast.rate, lead=lead, factor=forecast.factor, why=forecast.why
    )
    return Headroom(forecast.factor, why)


def startup(seen: Observation, settings: FleetSettings) -> float:
    """Seconds a new replica of the variant takes to be ready: learnt, else the fleet's default."""
    learnt = seen.memory.startup_seconds
    return settings.startup_default if learnt is None else learnt
