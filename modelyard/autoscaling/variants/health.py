"""Why there is nothing to decide on: no metrics, stale metrics, or no Prometheus."""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.decisions import ConditionValue, Count, Explanation, Reason
from modelyard.autoscaling.variants.demand import ModelDemand
from modelyard.autoscaling.variants.observation import Observation
from modelyard.metrics.vocabulary import Signals
from modelyard.objects import cut, few

AVAILABLE = ConditionValue.of("True", Explanation(Reason.METRICS_AVAILABLE))
AT_ZERO = ConditionValue.of("False", Explanation(Reason.NOTHING_TO_MEASURE))
MOST_NAMES = 300
"""Characters of other models' names in a message."""


def other_name(variants: Sequence[Observation]) -> Explanation | None:
    """Return that a variant's engines name another model than it does; ``None`` where none does."""
    seen = next((seen for seen in variants if seen.other_models and not seen.units), None)
    if seen is None:
        return None
    names = sorted(seen.other_models)
    if names == [""]:
        return Explanation(Reason.NO_MODEL_NAME, model=seen.variant.model_id)
    shown = cut(", ".join(few([name for name in names if name], 3)), MOST_NAMES)
    return Explanation(Reason.OTHER_MODEL_NAME, names=shown, model=seen.variant.model_id)


def available(seen: Observation) -> ConditionValue:
    """Return whether a decided variant has metrics: its model may have them from other variants alone."""
    other = other_name([seen]) if seen.other_models else None
    return AVAILABLE if other is None else ConditionValue.of("False", other)


def metrics_problem(
    demand: ModelDemand, variants: Sequence[Observation], signals: Signals, now: float, stale_after: float
) -> ConditionValue | None:
    """Return ``None`` when at least one replica of ``variants`` reports, else why none does."""
    if signals.error is not None:
        return ConditionValue.of("False", Explanation(Reason.PROMETHEUS_UNREADABLE, error=signals.error))
    if any(seen.units for seen in variants):
        return None
    return ConditionValue.of("False", _silence(demand, variants, signals, now, stale_after))


def _silence(
    demand: ModelDemand, variants: Sequence[Observation], signals: Signals, now: float, stale_after: float
) -> Explanation:
    if (other := other_name(variants)) is not None:
        return other
    ready = sum(seen.ready or 0 for seen in variants)
    newest = signals.last_seen.get(demand.place)
    if newest is not None and now - newest > stale_after:
        return Explanation(Reason.METRICS_STALE, model=demand.name, age=now - newest, limit=stale_after)
    if problems := signals.problems(demand.group.namespace):
        return Explanation(Reason.QUERIES_FAILED, model=demand.name, problems="; ".join(problems))
    if not ready:
        return Explanation(Reason.NOT_READY, model=demand.name, wanted=sum(seen.current or 0 for seen in variants))
    if newest is not None:
        return Explanation(Reason.OTHER_PODS, model=demand.name)
    return Explanation(Reason.NO_METRICS, model=demand.name, ready=Count(ready, "replica"))


def load_problem(demand: ModelDemand, signals: Signals, now: float, stale_after: float) -> ConditionValue | None:
    """Return why the load of a model with latency targets is not known; ``None`` where nothing is missing."""
    newest, forecast = signals.last_seen.get(demand.place), demand.forecast
    why = None
    if signals.error is not None:
        why = Explanation(Reason.PROMETHEUS_UNREADABLE, error=signals.error)
    elif not any(seen.units for seen in demand.variants) and (other := other_name(demand.variants)) is not None:
        why = other
    elif newest is not None and now - newest > stale_after:
        why = Explanation(Reason.METRICS_STALE, model=demand.name, age=now - newest, limit=stale_after)
    elif problems := signals.problems(demand.group.namespace):
        why = Explanation(Reason.LOAD_QUERIES_FAILED, model=demand.name, problems="; ".join(problems))
    elif forecast is not None and forecast.load is None:
        why = Explanation(Reason.NO_LOAD, problem=forecast.problem)
    return None if why is None else ConditionValue.of("False", why)
