"""From analysis to targets, repaired: the step is sized from demand, transitions are bounded in time, nothing flaps.

Called per model group by ``decide``. The order of the rules:

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

from collections.abc import Mapping, Sequence
from math import ceil

from modelyard.autoscaling.settings import FleetSettings, Mode
from modelyard.autoscaling.variants.analysis import DIGITS
from modelyard.autoscaling.variants.assessment import Assessment
from modelyard.autoscaling.variants.headroom import NONE, Headroom, plan_ahead
from modelyard.autoscaling.variants.offered import replicas_offered
from modelyard.autoscaling.variants.regret import Shrink, shrink_delay
from modelyard.autoscaling.variants.shortage import LAST_REPLICA, note_shortage
from modelyard.autoscaling.variants.state import Group, State
from modelyard.autoscaling.variants.transition import (
    describe_transition,
    first_to_go,
    give_up,
    lost,
    observe_transition,
    partial_hold,
)
from modelyard.metrics.values import ModelLoad
from modelyard.objects.documents import counted


def hpa_step(current: int) -> int:
    """The smallest change an HPA reacts to: it ignores ratios within 10 % (20 replicas: 3, since 22/20 is the edge)."""
    return current // 10 + 1


def grow_limit(replicas: int, settings: FleetSettings) -> int:
    """The most replicas a variant of this size may be asked for in one decision."""
    by_factor = int(round(replicas * (settings.max_step_up_factor - 1), DIGITS))
    return replicas + min(settings.max_step_up, max(1, by_factor))


def down_limit(replicas: int, settings: FleetSettings) -> int:
    """The most replicas that are taken from a model of this size in one decision."""
    return max(settings.max_step_down, replicas // 10)


def because(delay: float, settings: FleetSettings) -> str:
    """Why a scale-down waits for longer than the fleet's delay; nothing where it does not."""
    usual = delay <= settings.scale_down_delay
    return "" if usual else " (longer than usual: what was given up lately was soon wanted back)"


def set_targets(
    group: Group, analysis: Assessment, settings: FleetSettings, now: float, load: ModelLoad | None = None
) -> None:
    """Set ``target``, ``reason`` and ``message`` of every state of the group; ``load`` is what the model is offered."""
    states = group.states
    for state in states:
        observe_transition(state, settings, now)
        state.propose(state.base)
    partial = partial_hold(states, settings, now)
    ahead = NONE
    if load is not None and group.slo is None:  # the SLO form plans ahead by itself
        able = [s for s in states if not s.overdue and _room_up(s, 1, group, settings)]
        ahead = plan_ahead(load, able, settings, now)
    numbers = analysis.numbers()
    if not analysis.scale_up and any(map(first_to_go, states)):
        analysis.scale_down_safe = analysis.scale_down_safe or analysis.fits({})
    if partial is not None and partial >= 0:
        text = f"{_reporting(states)}: holding still, {partial:.0f} s to go"
        _say(states, "PartialMetrics", f"{text}; {numbers}")
    elif analysis.scale_up:
        offered = replicas_offered(states, load, analysis.waiting, ahead.factor, settings, now)
        _scale_up(group, analysis, settings, ahead, numbers, offered)
    elif ahead.text and _scale_ahead(group, analysis, settings, ahead, numbers):
        pass
    elif blocker := next((state for state in states if state.moving), None):
        _say(states, "InTransition", f"{describe_transition(blocker)}; {numbers}")
    elif partial is not None:
        _say(states, "PartialMetrics", f"{_reporting(states)}: not shrinking; {numbers}")
    elif analysis.scale_down_safe:
        _scale_down(group, analysis, settings, now, ahead, numbers)
    elif kept := _kept_idle(states, group, analysis):
        _say(states, "SteadyState", f"{kept}; {numbers}")
    else:
        _say(states, "SteadyState", f"neither short of capacity nor safe to shrink; {numbers}")
    for state in states:
        if state.timed_out_from is not None:
            give_up(state, settings)


def _reporting(states: Sequence[State]) -> str:
    return f"{sum(s.reporting for s in states)} of {sum(s.ready or 0 for s in states)} ready replicas report metrics"


def _provided(states: Sequence[State], analysis: Assessment) -> float:
    """What there will be once everything under way is complete; replicas that never came up do not count."""
    return sum((s.base - lost(s)) * analysis.worth(s) for s in states) - analysis.lost


def _scale_up(
    group: Group,
    analysis: Assessment,
    settings: FleetSettings,
    ahead: Headroom,
    numbers: str,
    offered: int | None,
) -> None:
    """``offered`` is the replicas that the offered load needs at most, where that is known."""
    states, unit = group.states, analysis.unit
    wanted = analysis.wanted(ahead.factor)
    if offered is not None:
        wanted = min(wanted, offered * _mean_worth(states, analysis))
    provided = _provided(states, analysis)
    coming = sum(min(s.coming + s.young, s.base - lost(s)) for s in states)
    missing = wanted - provided
    if not coming and missing <= 0:
        missing = min(filter(None, map(analysis.worth, states)), default=1.0)
    if ahead.text:
        numbers = f"{ahead.text}; {numbers}"
    if missing <= 0:
        text = f"need {wanted:.0f}{unit}, have {provided:.0f} with {coming} starting or warming up"
        _say(states, "CapacityOnItsWay", f"short of capacity, and enough is coming: {text}; {numbers}")
        return
    given = _give(missing, [s for s in states if not s.overdue], group, analysis, settings)
    if not given:
        # Replicas that never start do not forbid growth where others of the same variant do serve.
        retry = [s for s in states if s.overdue and s.timed_out_from is None and s.ready]
        given = _give(missing, retry, group, analysis, settings)
    what = f"need {max(wanted, provided + missing):.0f}{unit}, have {provided:.0f}"
    if coming:
        what += f" with {coming} starting or warming up"
    if not given:
        stalled = [s for s in states if s.current and (s.overdue or not _can_grow(s, group))]
        waiting = f"; {counted(round(analysis.waiting), 'request')} waiting" if analysis.waiting >= 1 else ""
        why = _why_not(states, group)
        note_shortage(states, missing, analysis.worth, lambda s: s.variant.cost, why, stalled=stalled, waiting=waiting)
        text = f"short of capacity ({what}), but no variant can grow: {_why_not(states, group)}"
        _say(states, "AtMaximum", f"{text}; {numbers}")
        return
    _say(states, analysis.what_is_short, f"short of capacity ({what}): {_steps(given)}; {numbers}")


def _mean_worth(states: Sequence[State], analysis: Assessment) -> float:
    ready = sum(s.ready or 0 for s in states)
    if not ready:
        return max(map(analysis.worth, states), default=1.0)
    return sum((s.ready or 0) * analysis.worth(s) for s in states) / ready


def _scale_ahead(group: Group, analysis: Assessment, settings: FleetSettings, ahead: Headroom, numbers: str) -> bool:
    """Grow for a load that is only expected; what is coming counts. Whether anything came of it."""
    states = group.states
    provided = _provided(states, analysis)
    wanted = analysis.wanted(ahead.factor)
    if wanted <= provided or not analysis.short_of(provided, ahead.factor):
        return False
    given = _give(wanted - provided, [s for s in states if not s.overdue], group, analysis, settings)
    if not given:
        return False
    text = f"{ahead.text}; need then {wanted:.0f}{analysis.unit}, have {provided:.0f}"
    _say(states, "LoadRising", f"{text}: {_steps(given)}; {numbers}")
    return True


def _steps(states: Sequence[State]) -> str:
    return ", ".join(f"{s.name} {s.base} → {s.target}" for s in states)


def _give(
    missing: float, states: Sequence[State], group: Group, analysis: Assessment, settings: FleetSettings
) -> list[State]:
    """Hand out replicas, first to the variant that is cheapest for what it carries; returns those that got some."""
    given: list[State] = []
    candidates = [(state, worth) for state in states if (worth := analysis.worth(state)) > 0]
    for state, worth in sorted(candidates, key=lambda c: (c[0].variant.cost / c[1], c[0].name)):
        step = _room_up(state, ceil(round(missing / worth, DIGITS)), group, settings)
        if step > 0:
            state.propose(state.base + step)
            given.append(state)
            missing -= step * worth
        if round(missing, DIGITS) <= 0:
            break
    return given


def _room_up(state: State, wanted: int, group: Group, settings: FleetSettings) -> int:
    """Replicas this variant takes: bounded per decision, and to two decisions ahead of what is ready.

    Without the latter a queue that piles up while pods start would be ordered anew in every tick.
    """
    current = state.current or 0
    if not _can_grow(state, group):
        return 0
    ahead = grow_limit(grow_limit(max(state.ready or 0, current - state.pending), settings), settings)
    step = min(wanted, grow_limit(state.base, settings) - state.base, max(0, ahead - state.base))
    if step > 0 and state.mode is Mode.SIGNAL and state.base + step > current:
        step = max(step, current + hpa_step(current) - state.base)
    if state.bounds.upper is not None:
        step = min(step, state.bounds.upper - state.base)
    return max(0, step)


def _can_grow(state: State, group: Group) -> bool:
    if state.current == 0 and state.base == 0 and not group.zero.enabled:
        return False
    return not any(pod.unschedulable for pod in state.pods if state.pending or state.surge)


def _why_not(states: Sequence[State], group: Group) -> str:
    parts = []
    for state in states:
        if state.bounds.upper is not None and state.base >= state.bounds.upper:
            parts.append(f"{state.name} is at its {state.bounds.upper_from} ({state.bounds.upper})")
        elif state.current == 0 and not group.zero.enabled:
            parts.append(f"{state.name} is at zero and may not be woken")
        elif state.overdue or not _can_grow(state, group):
            parts.append(f"{state.name} did not get the replicas asked for before")
        else:
            parts.append(f"{state.name} is already far ahead of its {state.ready} ready replicas")
    return ", ".join(parts)


def _idle(states: Sequence[State]) -> bool:
    """Whether every reporting replica says that it neither works on anything nor has anything waiting."""
    return all(
        signal.running == 0 and not signal.waiting and not signal.kv for state in states for signal, _ in state.units
    )


def _kept_idle(states: Sequence[State], group: Group, analysis: Assessment) -> str:
    """Return why the only replica of an idle model is kept; nothing for other models."""
    serving = [state for state in states if state.base]
    if sum(state.base for state in serving) != 1 or not analysis.reporting or not _idle(states) or analysis.waiting:
        return ""
    (last,) = serving
    if not group.zero.enabled:
        return LAST_REPLICA
    if last.bounds.lower:
        return f"Idle; keeping the last replica: {last.bounds.lower_from} is {last.bounds.lower}"
    return ""


def _scale_down(
    group: Group, analysis: Assessment, settings: FleetSettings, now: float, ahead: Headroom, numbers: str
) -> None:
    states = group.states
    able = [s for s in states if s.base > _floor(s, group)]
    if not able:
        _say(states, "AtMinimum", f"could shrink, but every variant is at its minimum; {numbers}")
        return
    # What never came up carries nothing: it goes first, and by itself.
    useless = {s.name: gone for s in able if (gone := first_to_go(s))}
    able = [s for s in able if s.name in useless] or able
    total = sum(s.base for s in states)
    serving = total - sum(map(lost, states))

    def fits(removed: Mapping[str, int]) -> bool:
        missed = {name: n for name, count in removed.items() if (n := count - useless.get(name, 0)) > 0}
        # A fuller replica is slower, so that what it holds rises faster than its load.
        left = serving - sum(missed.values())
        return left > 0 and analysis.fits(
            missed, ahead.factor * (serving / left) ** (settings.scale_down_elasticity - 1)
        )

    if not any(fits({s.name: 1}) for s in able):
        if ahead.text:
            _say(states, "LoadRising", f"could shrink, but {ahead.text}; {numbers}")
        else:
            _say(states, "SteadyState", f"as many as needed: fewer would each carry too much; {numbers}")
        return
    known = [state.memory.relax_since for state in states]
    since = now if None in known else max(time for time in known if time is not None)
    for state in states:
        state.updates["relax_since"] = since
    waited = now - since
    budget = sum(useless.values()) or down_limit(total, settings)
    delay = settings.scale_down_delay
    if not _idle(states):  # a load that is gone is at no edge between two sizes, whatever was regretted before
        delay = shrink_delay((Shrink(s.memory, s.base, s.base - budget) for s in able), delay, now)
    if waited < delay:
        text = f"could shrink; waiting for {delay:.0f} s without a break{because(delay, settings)}"
        _say(states, "ScaleDownDelayed", f"{text}; {numbers}")
        return

    # What a rolling update has running beyond the replicas goes away by itself.
    removed = {s.name: extra for s in states if s.surge and (extra := (s.ready or 0) - (s.current or 0)) > 0}
    passing = sum(removed.values())

    def safe(state: State, step: int) -> bool:
        return fits({**removed, state.name: removed.get(state.name, 0) + step})

    taken: list[State] = []
    for state in sorted(able, key=lambda s: (s.variant.cost, s.name), reverse=True):
        room = min(state.base - _floor(state, group), total - 1)
        step = min(useless.get(state.name, budget), room)
        while step > 0 and not safe(state, step):
            step -= 1
        if state.mode is Mode.SIGNAL and 0 < step < hpa_step(state.base):
            least = hpa_step(state.base)
            if room < least:
                continue
            if not safe(state, least):
                if not taken:
                    text = f"could shrink by {step}, but an HPA ignores less than {least} of {state.base} replicas"
                    _say(states, "BelowHPATolerance", f"{text}; {numbers}")
                    return
                break
            step = least
        if step <= 0:
            continue
        state.propose(state.base - step)
        removed[state.name] = removed.get(state.name, 0) + step
        taken.append(state)
        total -= step
        budget -= step
        if budget <= 0:
            break
    if not taken and passing and not any(safe(state, 1) for state in able):
        _say(states, "SteadyState", f"could shrink only while a rolling update runs {passing} extra; {numbers}")
    elif not taken:
        _say(states, "AtMinimum", f"could shrink, but every variant is at its minimum; {numbers}")
    else:
        for state in states:
            state.updates["relax_since"] = None
        _say(states, "CapacitySpare", f"more capacity than needed: {_steps(taken)}; {numbers}")


def _floor(state: State, group: Group) -> int:
    """The fewest replicas this stage may leave: idleness alone, judged later, takes the last one."""
    return max(state.bounds.lower, 0 if group.zero.enabled and len(group.states) > 1 else 1)


def _say(states: Sequence[State], reason: str, message: str) -> None:
    """The story of the model, the same for each of its variants."""
    for state in states:
        state.reason = reason
        state.message = message
