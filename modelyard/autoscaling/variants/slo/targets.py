"""From load and rates to the replicas the forecast asks for: exact covering, damped on the way down.

In this order:

1. Replicas that exist or are coming do not carry the planned load: the cheapest mix that does is asked for, at once
   and as large as the load demands; nothing is taken away while something is added.
2. They carry it: the mix for the load with a margin is compared. A smaller or cheaper one is only gone for when it
   has been so for the scale-down delay without a break, nothing is under way, and a whole load window has been seen.
   Additions of a cheaper mix come first; what it replaces goes when they are ready.

Source: WVA SLO reference, "Splitting load among variants" and "Edge cases checklist" (oscillation, warm-up hold).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from modelyard.autoscaling.configuration import FleetSettings, Mode
from modelyard.autoscaling.decisions import Explanation, JoinedTexts, Reason
from modelyard.autoscaling.mixing import Demand, Option, cover
from modelyard.autoscaling.variants.demand import LoadForecast, ModelDemand, Rate
from modelyard.autoscaling.variants.proposal import VariantTransition
from modelyard.autoscaling.variants.regret import Shrink, shrink_delay
from modelyard.autoscaling.variants.shortage import at_bound, shortage_of
from modelyard.autoscaling.variants.slo.load import QUIET
from modelyard.autoscaling.variants.targets import down_limit, hpa_step, moves_of, relaxed_since
from modelyard.autoscaling.variants.transition import describe_transition, first_to_go


class GroupProposal(NamedTuple):
    """Replicas by variant name, and why; ``wanted`` by the covering, before damping (``None``: not asked).

    By variant name, ``shortages`` are replicas that cannot be added, ``overridden`` what saturation overruled.
    """

    replicas: Mapping[str, int]
    why: Explanation
    wanted: Mapping[str, int] | None = None
    relax_since: float | None = None
    shortages: Mapping[str, Explanation] = {}
    overridden: Mapping[str, Explanation] = {}


def option_of(variant: VariantTransition, rate: Rate, retry: bool = False) -> Option:
    """Return the covering's option. One short of the pods ordered does not grow; with ``retry`` a serving one does."""
    seen = variant.seen
    lower, upper = seen.bounds.lower, seen.bounds.upper
    existing = variant.base - variant.lost
    unplaced = (seen.pending or seen.surge) and any(pod.unschedulable for pod in seen.pods)
    failed = variant.overdue and not (retry and seen.ready)
    if unplaced or failed or variant.timed_out_from is not None:
        upper = existing if upper is None else min(existing, upper)
    if upper is not None:
        upper = max(upper, lower)
    per_replica = rate.rate if rate.rate > 0 else 1.0
    return Option(variant.name, per_replica, rate.cost, seen.pool, seen.gpus, lower, upper, existing)


def covering(demand: ModelDemand, variants: Sequence[VariantTransition], load: float, penalty: float) -> dict[str, int]:
    """Return the cheapest replicas for a load, lost ones included; a model that runs keeps one replica."""
    rates, group = demand.model_forecast.rates, demand.group
    priority = group.service.priority if group.service is not None else 1
    replicas: dict[str, int] = {}
    for retry in (False, True):
        options = tuple(option_of(v, rates[v.name], retry) for v in variants)
        question = Demand(demand.name, priority, load, options, group.effort)
        replicas = dict(cover(question, penalty=penalty).replicas)
        if question.carried(replicas) >= question.need or not any(v.overdue for v in variants):
            break
    if variants and not any(replicas.values()):
        running = [v for v in variants if v.base]
        if running:
            last = running[0] if len(running) == 1 else min(variants, key=lambda v: (rates[v.name].cost, v.name))
            replicas[last.name] = 1
    return {v.name: replicas[v.name] + v.lost for v in variants}


def propose(
    demand: ModelDemand,
    transitions: Sequence[VariantTransition],
    settings: FleetSettings,
    now: float,
    safe: bool | None,
) -> GroupProposal:
    """Return what the forecast asks for; ``safe`` is saturation's verdict on shrinking, ``None`` without one."""
    forecast = demand.model_forecast
    rates, planned = forecast.rates, forecast.planned
    base = {v.name: v.base for v in transitions}
    # Without load there is nothing to divide: then rates need not be known.
    needless = forecast.sizes is None and forecast.idle
    variants = [v for v in transitions if rates[v.name].objective.problem is None and (needless or rates[v.name].known)]
    if not variants:
        return GroupProposal(base, Explanation(Reason.NOT_SIZED), {})
    supply = sum(rates[v.name].rate * (v.base - v.lost) for v in variants if v.base) if planned > 0 else 0.0
    penalty = settings.transition_penalty
    if supply < planned * (1 - 1e-9):
        return _grow(forecast, variants, base, covering(demand, variants, planned, penalty), supply, settings)
    roomy = planned if forecast.attaining else planned / (1 - min(settings.scale_down_margin, 0.99))
    wanted = covering(demand, variants, roomy, penalty)
    useless = {v.name: max(v.seen.bounds.lower, v.base - gone) for v in variants if (gone := first_to_go(v))}
    if useless and any(v.base > v.lost for v in variants):
        # What never came up carries nothing: it goes first, and by itself.
        wanted = base | useless
    return _relax(demand, transitions, variants, base, wanted, settings, now, safe)._replace(wanted=wanted)


def _grow(
    forecast: LoadForecast,
    variants: Sequence[VariantTransition],
    base: dict[str, int],
    wanted: dict[str, int],
    supply: float,
    settings: FleetSettings,
) -> GroupProposal:
    rates = forecast.rates
    targets = {v.name: up_to(v, wanted[v.name], settings) for v in variants}
    replicas = base | targets
    if replicas == base:
        bounds = ((at_bound(v), v.name) for v in variants)
        why = JoinedTexts(full or Explanation(Reason.NOT_STARTED_OR_FAR_AHEAD, name=name) for full, name in bounds)
        missing = forecast.planned - supply
        shortage = shortage_of(variants, missing, lambda s: rates[s.name].rate, lambda s: rates[s.name].cost, why)
        at_maximum = Explanation(Reason.FORECAST_AT_MAXIMUM, supply=supply, why=why)
        shortages = {v.name: shortage for v in variants} if shortage is not None else {}
        return GroupProposal(replicas, at_maximum, wanted, shortages=shortages)
    rising = supply >= (forecast.load or 0.0) * (1 - 1e-9)
    outcome = Reason.FORECAST_RISING if rising else Reason.FORECAST_ABOVE_CAPACITY
    return GroupProposal(replicas, Explanation(outcome, supply=supply, moves=moves_of(variants, targets)), wanted)


def up_to(variant: VariantTransition, wanted: int, settings: FleetSettings) -> int:
    """Return what the load demands, bounded per decision by the larger of steps and factor.

    Also by two decisions beyond what is ready: a window of wrong measurements must not order hundreds of replicas.
    """
    seen, base = variant.seen, variant.base
    if wanted <= base:
        return base

    def step(replicas: int) -> int:
        return max(replicas + settings.max_step_up, int(replicas * settings.max_step_up_factor))

    ready = max(seen.ready or 0, (seen.current or 0) - seen.pending)
    target = min(wanted, step(base), max(base, step(step(ready))))
    if seen.mode is Mode.SIGNAL and seen.current:
        # An HPA does not react to less.
        target = max(target, seen.current + hpa_step(seen.current))
    if seen.bounds.upper is not None:
        target = min(target, max(base, seen.bounds.upper))
    return target


def _relax(
    demand: ModelDemand,
    transitions: Sequence[VariantTransition],
    variants: Sequence[VariantTransition],
    base: dict[str, int],
    wanted: Mapping[str, int],
    settings: FleetSettings,
    now: float,
    safe: bool | None,
) -> GroupProposal:
    forecast = demand.model_forecast
    rates = forecast.rates
    up = [v for v in variants if wanted[v.name] > v.base]
    down = [v for v in variants if wanted[v.name] < v.base]
    saved = sum(rates[v.name].cost * (v.base - wanted[v.name]) for v in variants)
    moving = next((v for v in transitions if v.moving), None)
    # The replicas there are carry the load, if not with the margin: no reason for a mix that is no cheaper.
    if (up and saved <= 0) or not (up or down):
        if moving is not None:
            return GroupProposal(base, describe_transition(moving))
        last = forecast.idle and sum(base.values()) == 1 and not demand.zero.enabled
        return GroupProposal(base, Explanation(Reason.LAST_REPLICA if last else Reason.FORECAST_STEADY))
    if not forecast.full_window:
        return GroupProposal(base, Explanation(Reason.WARM_UP, window=settings.load_window))
    if (forecast.load or 0.0) <= QUIET and not forecast.idle:
        return GroupProposal(base, Explanation(Reason.IN_FLIGHT))
    if down and safe is False:
        overridden = {v.name: Explanation(Reason.OVERRIDDEN) for v in down}
        return GroupProposal(base, Explanation(Reason.SHRINK_BLOCKED), overridden=overridden)
    since = relaxed_since(demand.variants, now)
    if moving is not None:
        return GroupProposal(base, describe_transition(moving), relax_since=since)
    moves = moves_of(variants, {v.name: wanted[v.name] for v in variants})
    budget = down_limit(sum(base.values()), settings)
    shrinks = (Shrink(v.seen.memory, v.base, max(v.base - budget, wanted[v.name])) for v in down)
    # A load that is gone is at no edge between two sizes, whatever was regretted before.
    delay = settings.scale_down_delay if forecast.idle else shrink_delay(shrinks, settings.scale_down_delay, now)
    if forecast.attaining and not forecast.idle:
        # The rule that is followed remembers as long as the load's own history asks for.
        delay = 0.0
    left = delay - (now - since)
    if left > 0:
        longer = delay > settings.scale_down_delay
        outcome = Reason.FORECAST_DELAYED_LONGER if longer else Reason.FORECAST_DELAYED
        return GroupProposal(base, Explanation(outcome, moves=moves, delay=delay, left=left), relax_since=since)
    if up:
        replicas = base | {v.name: up_to(v, wanted[v.name], settings) for v in up}
        return GroupProposal(replicas, Explanation(Reason.CHEAPER_MIX, moves=moves), relax_since=since)
    targets: dict[str, int] = {}
    ignored: Explanation | None = None
    for v in sorted(down, key=lambda v: (rates[v.name].cost, v.name), reverse=True):
        room = v.base - wanted[v.name]
        step = min(max(budget, first_to_go(v)), room)
        least = hpa_step(v.base)
        if v.seen.mode is Mode.SIGNAL and 0 < step < least:
            step = least
            if step > room:
                ignored = Explanation(Reason.FORECAST_BELOW_HPA_TOLERANCE, moves=moves, least=least, replicas=v.base)
                continue
        if step <= 0:
            break
        targets[v.name] = v.base - step
        budget -= step
    if not targets and ignored is not None:
        return GroupProposal(base, ignored, relax_since=since)
    ordered = {v.name: targets[v.name] for v in variants if v.name in targets}
    needed = JoinedTexts(f"{name} {count}" for name, count in wanted.items())
    shrinking = Explanation(Reason.FORECAST_SHRINKING, moves=moves_of(variants, ordered), needed=needed)
    return GroupProposal(base | targets, shrinking, relax_since=since)
