"""From analysis to targets, repaired: the step is sized from demand, transitions are bounded in time, nothing flaps.

Called per model group by ``decide``. The order of the rules:

1. What is under way is worked out per variant: replicas it is heading for, replicas that are coming. A scaling that
   takes longer than its limit is given up and no longer holds the model back.
2. With too few of the ready pods reporting, hold still for a while, then go on with bounds: missing pods count as
   average for growing and forbid shrinking.
3. Short of capacity: size the need from the whole load and give what is missing, after counting what is coming, to the
   cheapest variants. This also works in a transition: a load that outgrows what is coming gets more.
4. In transition: hold. 5. Safe to shrink, with margin, without a break for the delay: most expensive variant first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from modelyard.autoscaling.analysis import DIGITS, Analysis, fits
from modelyard.autoscaling.decision import Mode
from modelyard.autoscaling.saturation_config import Thresholds
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.state import Group, State

_PARTIAL_SLACK = 1e-9


def hpa_step(current: int) -> int:
    """The smallest change an HPA reacts to: it ignores ratios within 10 % (20 replicas: 3, since 22/20 is the edge)."""
    return current // 10 + 1


def grow_limit(replicas: int, settings: FleetSettings) -> int:
    """The most replicas a variant of this size may be asked for in one decision."""
    by_factor = int(round(replicas * (settings.max_step_up_factor - 1), DIGITS))
    return replicas + min(settings.max_step_up, max(1, by_factor))


def transition_limit(state: State, settings: FleetSettings) -> float:
    """Seconds a scaling of this variant may take: the fleet's limit, or twice its learnt start-up if that is longer.

    At most three times the limit: what was learnt may be wrong.
    """
    limit = settings.transition_limit
    return max(limit, min(2 * (state.memory.startup_seconds or 0.0), 3 * limit))


def observe_transition(state: State, settings: FleetSettings, now: float) -> None:
    """Fill in what is under way for one variant: ``base``, ``coming``, ``moving``, ``overdue``."""
    current, desired, memory = state.current, state.desired, state.memory
    assert current is not None
    heading = current
    ours = desired is not None and memory.transition_target == desired
    if state.mode is Mode.DIRECT and not ours and (desired is None or desired < state.spec):
        # Somebody else asked for more (our own moves are remembered before they are made). It is not taken back
        # without the test for shrinking.
        heading = state.spec
    elif desired and desired != current:
        # A variant at zero only moves if we sent it on its way and somebody else has to act on it.
        waking = state.mode is Mode.SIGNAL and memory.transition_target == desired
        if current > 0 or waking:
            heading = desired
    state.base = heading
    state.moving = heading != current or state.pending > 0 or state.surge > 0
    if not state.moving:
        return
    since = memory.transition_since
    # Without a target the clock is of replicas that become ready, and says nothing about ones that are missing.
    waiting = memory.transition_target is None and heading == current == desired
    if since is None or not (waiting or memory.transition_target == heading):
        since = now
    if now - since >= transition_limit(state, settings):
        # A long rolling update alone is no scaling that failed.
        state.overdue = heading != current or state.pending > 0
        if heading != current:
            state.timed_out_from = heading
            state.base = heading = current
            since = now
        state.moving = False
    else:
        state.coming = max(0, heading - current) + state.pending
    state.updates["transition_since"] = since
    state.updates["transition_target"] = heading if heading != current or state.timed_out_from is not None else None


def set_targets(group: Group, analysis: Analysis, settings: FleetSettings, now: float) -> None:
    """Set ``target``, ``reason`` and ``message`` of every state of the group."""
    states = group.states
    for state in states:
        observe_transition(state, settings, now)
        state.target = state.base
    partial = _partial_hold(states, analysis, settings, now)
    ready = sum(state.ready or 0 for state in states)
    numbers = _numbers(analysis)
    if partial is not None and partial >= 0:
        text = f"{analysis.reporting} of {ready} ready replicas report metrics: holding still, {partial:.0f} s to go"
        _say(states, "PartialMetrics", f"{text}; {numbers}")
    elif analysis.scale_up:
        _scale_up(group, analysis, settings, ready, numbers)
    elif blocker := next((state for state in states if state.moving), None):
        _say(states, "InTransition", f"{describe_transition(blocker)}; {numbers}")
    elif partial is not None:
        text = f"{analysis.reporting} of {ready} ready replicas report metrics: not shrinking"
        _say(states, "PartialMetrics", f"{text}; {numbers}")
    elif analysis.scale_down_safe:
        _scale_down(group, analysis, settings, now, numbers)
    else:
        _say(states, "SteadyState", f"neither short of capacity nor safe to shrink; {numbers}")
    for state in states:
        if state.timed_out_from is not None:
            _give_up(state, settings)


def describe_transition(state: State) -> str:
    """Which variant is on its way where, for messages."""
    if state.base != state.current:
        text = f"in transition: {state.name} desired {state.base} ≠ current {state.current}"
    elif not state.pending:
        text = f"in transition: {state.name} has {state.surge} more than its {state.current} replicas (rolling update)"
    else:
        text = f"in transition: {state.name} has {state.ready} of {state.current} replicas ready"
    stuck = next((pod for pod in state.pods if pod.unschedulable), None)
    return f"{text} (pod {stuck.key.name} cannot be scheduled: {stuck.unschedulable})" if stuck else text


def _give_up(state: State, settings: FleetSettings) -> None:
    limit = transition_limit(state, settings)
    text = (
        f"scaling {state.name} from {state.current} to {state.timed_out_from} did not happen within {limit:.0f} s: "
        f"desired is reset to the real {state.current}"
    )
    if state.target == state.current:
        state.reason = "TransitionTimedOut"
    state.message = f"{text}; {state.message}"
    state.optimization = ("False", "SkippedProcessing", text)


def _partial_hold(states: Sequence[State], analysis: Analysis, settings: FleetSettings, now: float) -> float | None:
    """``None`` when enough ready pods report; else the seconds still to hold, negative when that time is over."""
    ready = reporting = 0
    for state in states:
        ready += state.ready or 0
        reporting += len(state.units)
    if reporting < ready:
        # A pod that has just become ready has not been scraped yet; that is no gap.
        after = now - settings.warm_up
        for state in states:
            if len(state.units) < (state.ready or 0):
                seen = {pod.key for _, pod in state.units}
                ready -= sum(
                    1
                    for pod in state.pods
                    if pod.ready_since is not None and pod.ready_since > after and pod.key not in seen
                )
    if reporting >= settings.reporting_share * ready - _PARTIAL_SLACK:
        return None
    known = [state.memory.partial_since for state in states if state.memory.partial_since is not None]
    since = min(known, default=now)
    for state in states:
        state.updates["partial_since"] = since
    left = settings.partial_limit - (now - since)
    return left if left > 0 else -1.0


def need(analysis: Analysis, limits: Thresholds, margin: float, ready: int) -> int:
    """Replicas the model needs so that each carries its target load, by KV cache or by queue, whichever asks more.

    The target load leaves the trigger and a margin free. Replicas that do not report count with the mean load.
    """
    reporting = max(1, analysis.reporting - analysis.stuck)
    scale = max(1.0, (ready - analysis.stuck) / reporting)
    wanted = 0
    for load, limit, trigger in (
        (analysis.load_kv, limits.kv, limits.kv_trigger),
        (analysis.load_queue, limits.queue, limits.queue_trigger),
    ):
        room = round(limit - trigger * (1 + margin), DIGITS)
        if room > 0:
            wanted = max(wanted, ceil(round(load * scale / room, DIGITS)))
    return wanted


def _scale_up(group: Group, analysis: Analysis, settings: FleetSettings, ready: int, numbers: str) -> None:
    states = group.states
    wanted = need(analysis, group.config.thresholds, settings.scale_down_margin, ready)
    provided = sum(s.base - (s.pending if s.overdue else 0) for s in states) - analysis.stuck
    coming = sum(s.coming for s in states) + analysis.warming
    missing = wanted - provided
    if not coming:
        missing = max(1, missing)
    if missing <= 0:
        text = f"need {wanted}, have {provided} with {coming} starting or warming up"
        _say(states, "CapacityOnItsWay", f"short of capacity, and enough is coming: {text}; {numbers}")
        return
    given = _give(missing, [s for s in states if not s.overdue], group, settings)
    if not given:
        # Replicas that never start do not forbid growth where others of the same variant do serve.
        retry = [s for s in states if s.overdue and s.timed_out_from is None and s.ready]
        given = _give(missing, retry, group, settings)
    what = f"need {max(wanted, provided + missing)}, have {provided}"
    if coming:
        what += f" with {coming} starting or warming up"
    if not given:
        text = f"short of capacity ({what}), but no variant can grow: {_why_not(states, group)}"
        _say(states, "AtMaximum", f"{text}; {numbers}")
        return
    steps = ", ".join(f"{s.name} {s.base} → {s.target}" for s in given)
    _say(states, analysis.what_is_short, f"short of capacity ({what}): {steps}; {numbers}")


def _give(missing: int, states: Sequence[State], group: Group, settings: FleetSettings) -> list[State]:
    """Hand out replicas, cheapest variant first; returns the variants that got some."""
    given: list[State] = []
    for state in sorted(states, key=lambda s: (s.variant.cost, s.name)):
        step = _room_up(state, missing, group, settings)
        if step > 0:
            state.target = state.base + step
            given.append(state)
            missing -= step
        if missing <= 0:
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


def _scale_down(group: Group, analysis: Analysis, settings: FleetSettings, now: float, numbers: str) -> None:
    states, limits = group.states, group.config.thresholds
    able = [s for s in states if s.base > _floor(s, group)]
    if not able:
        _say(states, "AtMinimum", f"could shrink, but every variant is at its minimum; {numbers}")
        return
    known = [state.memory.relax_since for state in states]
    since = now if None in known else max(time for time in known if time is not None)
    for state in states:
        state.updates["relax_since"] = since
    waited = now - since
    if waited < settings.scale_down_delay:
        text = f"could shrink; waiting for {settings.scale_down_delay:.0f} s without a break"
        _say(states, "ScaleDownDelayed", f"{text}; {numbers}")
        return

    # What a rolling update has running beyond the replicas goes away by itself.
    passing = sum(max(0, (s.ready or 0) - (s.current or 0)) for s in states if s.surge)

    def safe(removed: int) -> bool:
        return fits(analysis, limits, settings.scale_down_margin, removed + passing)

    budget = settings.max_step_down
    while budget > 0 and not safe(budget):
        budget -= 1
    if budget <= 0:
        _say(states, "SteadyState", f"could shrink only while a rolling update runs {passing} extra; {numbers}")
        return
    total = sum(s.base for s in states)
    taken: list[State] = []
    for state in sorted(able, key=lambda s: (s.variant.cost, s.name), reverse=True):
        room = min(state.base - _floor(state, group), total - 1)
        step = min(budget, room)
        if state.mode is Mode.SIGNAL and 0 < step < hpa_step(state.base):
            least = hpa_step(state.base)
            if room < least:
                continue
            if not safe(least):
                if not taken:
                    text = f"could shrink by {step}, but an HPA ignores less than {least} of {state.base} replicas"
                    _say(states, "BelowHPATolerance", f"{text}; {numbers}")
                    return
                break
            step = least
        if step <= 0:
            break
        state.target = state.base - step
        taken.append(state)
        total -= step
        budget -= step
        if budget <= 0:
            break
    if not taken:
        _say(states, "AtMinimum", f"could shrink, but every variant is at its minimum; {numbers}")
        return
    steps = ", ".join(f"{s.name} {s.base} → {s.target}" for s in taken)
    for state in states:
        state.updates["relax_since"] = None
    _say(states, "CapacitySpare", f"more capacity than needed: {steps}; {numbers}")


def _floor(state: State, group: Group) -> int:
    """The fewest replicas this stage may leave: idleness alone, judged later, takes the last one."""
    return max(state.bounds.lower, 0 if group.zero.enabled and len(group.states) > 1 else 1)


def _numbers(analysis: Analysis) -> str:
    text = (
        f"spare KV {analysis.spare_kv:.3f}, spare queue {analysis.spare_queue:.1f} "
        f"over {analysis.reporting} reporting, {analysis.saturated} saturated"
    )
    if analysis.warming:
        text += f", {analysis.warming} warming up"
    if analysis.stuck:
        text += f", {analysis.stuck} stuck and left out"
    if analysis.incomplete:
        text += f", {analysis.incomplete} with a signal missing"
    return text


def _say(states: Sequence[State], reason: str, message: str) -> None:
    """The story of the model, the same for each of its variants."""
    for state in states:
        state.reason = reason
        state.message = message
