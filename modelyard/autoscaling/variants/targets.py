"""From analysis to targets, repaired: the step is sized from demand, transitions are bounded in time, nothing flaps.

The order of the rules:

1. What is under way is worked out per variant: replicas it is heading for, replicas that are coming. A scaling that
   takes longer than its limit is given up and no longer holds the model back.
2. With too few of the ready pods reporting, hold still for a while, then go on with bounds: missing pods count as
   average for growing and forbid shrinking.
3. Short of capacity: size the need from the whole load and give what is missing, after counting what is coming, to the
   cheapest variants. This also works in a transition: a load that outgrows what is coming gets more.
4. Not short yet, but the load is rising and would be too much by the time a new replica is ready: the same, ahead.
5. In transition: hold. 6. Safe to shrink, with margin, also for the load expected, without a break for the delay: what
   never became ready first, then the most expensive variant.

What load and capacity are measured in is the analysis' affair (``assessment``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import NamedTuple

from modelyard.autoscaling.configuration import FleetSettings, Mode
from modelyard.autoscaling.decisions import ConditionValue, Count, Explanation, JoinedTexts, Parts, Reason, VariantMove
from modelyard.autoscaling.variants.analysis import DIGITS
from modelyard.autoscaling.variants.assessment import Assessment
from modelyard.autoscaling.variants.demand import ModelDemand
from modelyard.autoscaling.variants.headroom import NONE, Headroom, plan_ahead
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.offered import replicas_offered
from modelyard.autoscaling.variants.proposal import NOTHING_TRACKED, Proposal, Proposed, Tracked, VariantTransition
from modelyard.autoscaling.variants.regret import Shrink, shrink_delay
from modelyard.autoscaling.variants.shortage import at_bound, shortage_of
from modelyard.autoscaling.variants.transition import (
    describe_transition,
    first_to_go,
    given_up,
    observe_transition,
    partial_metrics,
)

Targets = Mapping[str, int]
"""Replicas of the variants that change, by name."""
NO_TARGETS: Targets = MappingProxyType({})


class TargetAnswer(NamedTuple):
    """Replicas of the variants that change, why, and since when shrinking has been safe where it is waited for."""

    why: Explanation
    targets: Targets = NO_TARGETS
    relax_since: float | None = None
    shortage: Explanation | None = None


class Situation(NamedTuple):
    """The input of the rules: the variants with what is under way, the analysis, and the load expected."""

    demand: ModelDemand
    variants: Sequence[VariantTransition]
    analysis: Assessment
    settings: FleetSettings
    now: float
    ahead: Headroom = NONE

    @property
    def provided(self) -> float:
        """The replicas once everything under way is complete; those that never came up do not count."""
        analysis = self.analysis
        return sum((v.base - v.lost) * analysis.worth(v.seen) for v in self.variants) - analysis.lost

    @property
    def may_sleep(self) -> bool:
        return self.demand.zero.enabled


def hpa_step(current: int) -> int:
    """Return the smallest change an HPA reacts to: it ignores ratios within 10 % (3 of 20: 22/20 is the edge)."""
    return current // 10 + 1


def grow_limit(replicas: int, settings: FleetSettings) -> int:
    """Return the most replicas a variant of this size may be asked for in one decision."""
    by_factor = int(round(replicas * (settings.max_step_up_factor - 1), DIGITS))
    return replicas + min(settings.max_step_up, max(1, by_factor))


def down_limit(replicas: int, settings: FleetSettings) -> int:
    """Return the most replicas that are taken from a model of this size in one decision."""
    return max(settings.max_step_down, replicas // 10)


def relaxed_since(variants: Iterable[Observation], now: float) -> float:
    """Return since when all variants of a model could shrink: one without a time has just become so."""
    known = [seen.memory.relax_since for seen in variants]
    return now if None in known else max(time for time in known if time is not None)


def propose_targets(demand: ModelDemand, analysis: Assessment, settings: FleetSettings, now: float) -> Proposal:
    """Return replicas for every variant of the model."""
    variants = [observe_transition(seen, settings, now) for seen in demand.variants]
    situation = Situation(demand, variants, analysis, settings, now)
    if demand.load is not None and demand.forecast is None:  # latency targets plan ahead by themselves
        able = [v.seen for v in variants if not v.overdue and _room_up(v, 1, situation)]
        situation = situation._replace(ahead=plan_ahead(demand.load, able, settings, now))
    safe = analysis.scale_down_safe
    if not safe and not analysis.scale_up and any(map(first_to_go, variants)):
        safe = analysis.fits({})
    partial = partial_metrics(demand.variants, settings, now)
    if partial is not None and partial.left >= 0:
        answer = TargetAnswer(_partial(Reason.PARTIAL_HOLD, situation, left=partial.left))
    else:
        answer = _answer(situation, safe, partial is not None)
    partial_since, why = partial.since if partial is not None else None, Parts((answer.why,))
    proposed = {v.name: _proposed(v, answer, why, situation, partial_since) for v in variants}
    return Proposal(proposed, scale_down_safe=safe, evidence=analysis.evidence(safe))


def _answer(situation: Situation, safe: bool, partial: bool) -> TargetAnswer:
    analysis, variants = situation.analysis, situation.variants
    if analysis.scale_up:
        return _scale_up(situation)
    if situation.ahead.why is not None and (ahead := _scale_ahead(situation)) is not None:
        return ahead
    if blocker := next((v for v in variants if v.moving), None):
        moving = describe_transition(blocker)
        return TargetAnswer(Explanation(Reason.IN_TRANSITION, transition=moving, analysis=analysis))
    if partial:
        return TargetAnswer(_partial(Reason.PARTIAL, situation))
    if safe:
        return _scale_down(situation)
    if last := _last_replica(situation):
        return TargetAnswer(Explanation(Reason.LAST_REPLICA_KEPT, last=last, analysis=analysis))
    return TargetAnswer(Explanation(Reason.AS_NEEDED, analysis=analysis))


def _proposed(
    variant: VariantTransition, answer: TargetAnswer, why: Parts, situation: Situation, partial_since: float | None
) -> Proposed:
    analysis, name = situation.analysis, variant.seen.key.name
    limits = analysis.compute_limits.get(name) if analysis.compute_limits else None
    since, waiting = analysis.stuck_pods.get(name, ({}, {}))
    tracked = NOTHING_TRACKED
    if since or variant.since is not None or answer.relax_since is not None or partial_since is not None:
        tracked = Tracked(variant.since, variant.heading, answer.relax_since, partial_since, since, waiting)
    proposed = Proposed(
        answer.targets.get(name, variant.base),
        answer.why.code,
        why,
        transition=variant,
        tracked=tracked,
        learnt={} if limits is None else {"compute_limits": limits},
        shortage=answer.shortage,
    )
    return with_given_up(proposed, variant, situation.settings)


def with_given_up(proposed: Proposed, variant: VariantTransition, settings: FleetSettings) -> Proposed:
    """Return the proposal with a scaling that was given up, if one was."""
    if variant.timed_out_from is None:
        return proposed
    why = given_up(variant, settings)
    return proposed._replace(
        reason=why.code if proposed.replicas == variant.seen.current else proposed.reason,
        why=Parts((why, *proposed.why)),
        optimization=ConditionValue("False", "SkippedProcessing", why),
    )


def _partial(outcome: Reason, situation: Situation, **facts: float) -> Explanation:
    variants = situation.demand.variants
    reporting, ready = sum(seen.reporting for seen in variants), sum(seen.ready or 0 for seen in variants)
    return Explanation(outcome, reporting=reporting, ready=ready, analysis=situation.analysis, **facts)


class Need(NamedTuple):
    """The capacity that a model needs and has, with what is coming."""

    wanted: float
    provided: float
    unit: str
    coming: int

    def __str__(self) -> str:
        text = f"need {self.wanted:.0f}{self.unit}, have {self.provided:.0f}"
        return f"{text} with {self.coming} starting or warming up" if self.coming else text


def _scale_up(situation: Situation) -> TargetAnswer:
    demand, variants, analysis, settings, now, ahead = situation
    wanted, provided = analysis.wanted(ahead.factor), situation.provided
    offered = replicas_offered(demand.variants, demand.load, analysis.waiting, ahead.factor, settings, now)
    if offered is not None:
        wanted = min(wanted, offered * _mean_worth(situation))
    coming = sum(min(v.coming + analysis.young.get(v.name, 0), v.base - v.lost) for v in variants)
    missing = wanted - provided
    if not coming and missing <= 0:
        missing = min(filter(None, (analysis.worth(v.seen) for v in variants)), default=1.0)
    numbers = Parts((ahead.why or "", analysis))
    if missing <= 0:
        facts = {"wanted": wanted, "unit": analysis.unit, "provided": provided, "coming": coming}
        return TargetAnswer(Explanation(Reason.ENOUGH_COMING, analysis=numbers, **facts))
    targets = _give(missing, [v for v in variants if not v.overdue], situation)
    if not targets:
        # Replicas that never start do not forbid growth where others of the same variant do serve.
        retry = [v for v in variants if v.overdue and v.timed_out_from is None and v.seen.ready]
        targets = _give(missing, retry, situation)
    need = Need(max(wanted, provided + missing), provided, analysis.unit, coming)
    if targets:
        moves = moves_of(variants, targets)
        return TargetAnswer(Explanation(analysis.what_is_short, need=need, moves=moves, analysis=numbers), targets)
    why = _why_not(situation)
    waiting = round(analysis.waiting)
    shortage = shortage_of(
        variants,
        missing,
        analysis.worth,
        lambda seen: seen.variant.cost,
        why,
        stalled=[v for v in variants if v.seen.current and (v.overdue or not _can_grow(v, situation))],
        waiting=Explanation(Reason.REQUESTS_WAIT, waiting=Count(waiting, "request")) if analysis.waiting >= 1 else "",
    )
    return TargetAnswer(Explanation(Reason.CANNOT_GROW, need=need, why=why, analysis=numbers), shortage=shortage)


def _mean_worth(situation: Situation) -> float:
    variants, worth = situation.demand.variants, situation.analysis.worth
    ready = sum(seen.ready or 0 for seen in variants)
    serving = sum((seen.ready or 0) * worth(seen) for seen in variants)
    return serving / ready if ready else max(map(worth, variants), default=1.0)


def _scale_ahead(situation: Situation) -> TargetAnswer | None:
    _, variants, analysis, _, _, ahead = situation
    provided = situation.provided
    wanted = analysis.wanted(ahead.factor)
    if wanted <= provided or not analysis.short_of(provided, ahead.factor):
        return None
    targets = _give(wanted - provided, [v for v in variants if not v.overdue], situation)
    if not targets:
        return None
    facts = {"wanted": wanted, "unit": analysis.unit, "provided": provided, "moves": moves_of(variants, targets)}
    return TargetAnswer(Explanation(Reason.GROWING_AHEAD, ahead=ahead.why, analysis=analysis, **facts), targets)


def moves_of(variants: Sequence[VariantTransition], targets: Targets) -> JoinedTexts:
    """Return the variants whose replicas change, in the order of ``targets``."""
    bases = {v.name: v.base for v in variants}
    return JoinedTexts(VariantMove(name, bases[name], after) for name, after in targets.items() if after != bases[name])


def _give(missing: float, variants: Sequence[VariantTransition], situation: Situation) -> dict[str, int]:
    """First to the variant that is cheapest for what it carries."""
    targets: dict[str, int] = {}
    candidates = [(v, worth) for v in variants if (worth := situation.analysis.worth(v.seen)) > 0]
    for v, worth in sorted(candidates, key=lambda c: (c[0].seen.variant.cost / c[1], c[0].name)):
        step = _room_up(v, ceil(round(missing / worth, DIGITS)), situation)
        if step > 0:
            targets[v.name] = v.base + step
            missing -= step * worth
        if round(missing, DIGITS) <= 0:
            break
    return targets


def _room_up(variant: VariantTransition, wanted: int, situation: Situation) -> int:
    # Bounded per decision, and to two decisions ahead of what is ready: a queue that piles up while pods start would
    # else be ordered again in every tick.
    seen, base, settings = variant.seen, variant.base, situation.settings
    current = seen.current or 0
    if not _can_grow(variant, situation):
        return 0
    ahead = grow_limit(grow_limit(max(seen.ready or 0, current - seen.pending), settings), settings)
    step = min(wanted, grow_limit(base, settings) - base, max(0, ahead - base))
    if step > 0 and seen.mode is Mode.SIGNAL and base + step > current:
        step = max(step, current + hpa_step(current) - base)
    if seen.bounds.upper is not None:
        step = min(step, seen.bounds.upper - base)
    return max(0, step)


def _can_grow(variant: VariantTransition, situation: Situation) -> bool:
    seen = variant.seen
    if seen.current == 0 and variant.base == 0 and not situation.may_sleep:
        return False
    return not any(pod.unschedulable for pod in seen.pods if seen.pending or seen.surge)


def _why_not(situation: Situation) -> JoinedTexts:
    reasons = []
    for v in situation.variants:
        reason = at_bound(v)
        if reason is None and v.seen.current == 0 and not situation.may_sleep:
            reason = Explanation(Reason.MAY_NOT_WAKE, name=v.name)
        elif reason is None and (v.overdue or not _can_grow(v, situation)):
            reason = Explanation(Reason.DID_NOT_START, name=v.name)
        reasons.append(reason or Explanation(Reason.FAR_AHEAD, name=v.name, ready=v.seen.ready))
    return JoinedTexts(reasons)


def _is_idle(variants: Sequence[Observation]) -> bool:
    signals = (signal for seen in variants for signal, _ in seen.units)
    return all(signal.running == 0 and not signal.waiting and not signal.kv for signal in signals)


def _last_replica(situation: Situation) -> Explanation | None:
    """``None`` for models that are not idle."""
    serving = [v for v in situation.variants if v.base]
    analysis = situation.analysis
    if sum(v.base for v in serving) != 1 or not analysis.reporting or analysis.waiting:
        return None
    bounds = serving[0].seen.bounds
    if (situation.may_sleep and not bounds.lower) or not _is_idle(situation.demand.variants):
        return None
    if not situation.may_sleep:
        return Explanation(Reason.LAST_REPLICA)
    return Explanation(Reason.LAST_REPLICA_MINIMUM, source=bounds.lower_from, minimum=bounds.lower)


def _scale_down(situation: Situation) -> TargetAnswer:
    demand, variants, analysis, settings, now, ahead = situation

    def unchanged(outcome: Reason, relax_since: float | None = None, **facts: object) -> TargetAnswer:
        return TargetAnswer(Explanation(outcome, analysis=analysis, **facts), relax_since=relax_since)

    able = [v for v in variants if v.base > _floor(v, situation)]
    if not able:
        return unchanged(Reason.ALL_AT_MINIMUM)
    # What never came up carries nothing: it goes first, and by itself.
    useless = {v.name: gone for v in able if (gone := first_to_go(v))}
    able = [v for v in able if v.name in useless] or able
    total = sum(v.base for v in variants)
    serving = total - sum(v.lost for v in variants)

    def fits(removed: Mapping[str, int]) -> bool:
        missed = {name: n for name, count in removed.items() if (n := count - useless.get(name, 0)) > 0}
        # A fuller replica is slower, so that what it holds rises faster than its load.
        left = serving - sum(missed.values())
        fuller = ahead.factor * (serving / left) ** (settings.scale_down_elasticity - 1) if left > 0 else 0.0
        return left > 0 and analysis.fits(missed, fuller)

    if not any(fits({v.name: 1}) for v in able):
        rising = ahead.why is not None
        return unchanged(Reason.KEPT_FOR_RISE, ahead=ahead.why) if rising else unchanged(Reason.FEWER_TOO_FULL)
    since = relaxed_since(demand.variants, now)
    budget = sum(useless.values()) or down_limit(total, settings)
    delay = settings.scale_down_delay
    # A load that is gone is at no edge between two sizes, whatever was regretted before.
    if not _is_idle(demand.variants):
        delay = shrink_delay((Shrink(v.seen.memory, v.base, v.base - budget) for v in able), delay, now)
    if now - since < delay:
        longer = delay > settings.scale_down_delay
        return unchanged(Reason.SHRINK_DELAYED_LONGER if longer else Reason.SHRINK_DELAYED, since, delay=delay)

    # What a rolling update has running beyond the replicas goes away by itself.
    extra = {v.name: (v.seen.ready or 0) - (v.seen.current or 0) for v in variants if v.seen.surge}
    removed = {name: count for name, count in extra.items() if count > 0}
    passing = sum(removed.values())

    def safe(v: VariantTransition, step: int) -> bool:
        return fits({**removed, v.name: removed.get(v.name, 0) + step})

    targets: dict[str, int] = {}
    for v in sorted(able, key=lambda v: (v.seen.variant.cost, v.name), reverse=True):
        room = min(v.base - _floor(v, situation), total - 1)
        most = min(useless.get(v.name, budget), room)
        step = next((step for step in range(most, 0, -1) if safe(v, step)), 0)
        least = hpa_step(v.base)
        if v.seen.mode is Mode.SIGNAL and 0 < step < least:
            if room < least:
                continue
            if not safe(v, least):
                if targets:
                    break
                return unchanged(Reason.BELOW_HPA_TOLERANCE, since, step=step, least=least, replicas=v.base)
            step = least
        if step <= 0:
            continue
        targets[v.name] = v.base - step
        removed[v.name] = removed.get(v.name, 0) + step
        total -= step
        budget -= step
        if budget <= 0:
            break
    if targets:
        shrinking = Explanation(Reason.SHRINKING, moves=moves_of(variants, targets), analysis=analysis)
        return TargetAnswer(shrinking, targets)
    if passing and not any(safe(v, 1) for v in able):
        return unchanged(Reason.ONLY_DURING_UPDATE, since, passing=passing)
    return unchanged(Reason.ALL_AT_MINIMUM, since)


def _floor(variant: VariantTransition, situation: Situation) -> int:
    """Only idleness, judged later, takes the last replica."""
    alone = len(situation.variants) == 1
    return max(variant.seen.bounds.lower, 0 if situation.may_sleep and not alone else 1)
