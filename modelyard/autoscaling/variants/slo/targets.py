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

from modelyard.autoscaling.mixing import Demand, Option, cover
from modelyard.autoscaling.settings import FleetSettings, Mode
from modelyard.autoscaling.variants.pools import pool_of_state
from modelyard.autoscaling.variants.regret import Shrink, shrink_delay
from modelyard.autoscaling.variants.shortage import LAST_REPLICA, note_shortage
from modelyard.autoscaling.variants.slo.load import QUIET
from modelyard.autoscaling.variants.slo.work import GroupWork
from modelyard.autoscaling.variants.state import Group, State, work_of
from modelyard.autoscaling.variants.targets import because, down_limit, hpa_step
from modelyard.autoscaling.variants.transition import describe_transition, first_to_go, lost


class GroupProposal(NamedTuple):
    """Replicas by variant name, the reason code and why in words."""

    replicas: Mapping[str, int]
    reason: str
    why: str


def sized(group: Group) -> list[State]:
    """The states the covering can use: those with a known rate, or with any when there is no load to divide."""
    assert group.slo is not None
    needless = group.slo.sizes is None and group.slo.idle
    return [s for s in group.states if not work_of(s).problem and (needless or work_of(s).known)]


def option_of(state: State, retry: bool = False) -> Option:
    """What the covering may do with the replicas that can be counted on.

    A variant that did not get the pods it was to have does not grow; with ``retry`` one does of which others serve.
    """
    lower, upper = state.bounds.lower, state.bounds.upper
    there = state.base - lost(state)
    unplaced = (state.pending or state.surge) and any(pod.unschedulable for pod in state.pods)
    failed = state.overdue and not (retry and state.ready)
    if unplaced or failed or state.timed_out_from is not None:
        upper = there if upper is None else min(there, upper)
    if upper is not None:
        upper = max(upper, lower)
    rate = work_of(state).rate
    return Option(
        state.name,
        rate if rate > 0 else 1.0,
        work_of(state).cost,
        pool_of_state(state),
        state.gpus,
        lower,
        upper,
        there,
    )


def covering(group: Group, states: Sequence[State], load: float, penalty: float) -> dict[str, int]:
    """The cheapest replicas for a load, those that are lost included.

    A model that runs keeps one replica, idleness is judged elsewhere.
    """
    assert group.slo is not None
    replicas: dict[str, int] = {}
    for retry in (False, True):
        options = tuple(option_of(s, retry) for s in states)
        demand = Demand(group.name, group.slo.service.priority, load, options, group.effort)
        replicas = dict(cover(demand, penalty=penalty).replicas)
        if demand.carried(replicas) >= demand.need or not any(s.overdue for s in states):
            break
    if states and not any(replicas.values()):
        running = [s for s in states if s.base]
        last = running[0] if len(running) == 1 else min(states, key=lambda s: (work_of(s).cost, s.name))
        if running:
            replicas[last.name] = 1
    return {s.name: replicas[s.name] + lost(s) for s in states}


def carried(states: Sequence[State]) -> float:
    """Requests per second that the replicas there are, or are coming, can take."""
    return sum(work_of(s).rate * (s.base - lost(s)) for s in states if s.base)


def propose(group: Group, settings: FleetSettings, now: float, safe: bool | None) -> GroupProposal:
    """What the forecast asks for. ``safe`` is saturation's verdict on shrinking, ``None`` when there is none."""
    work = group.slo
    assert work is not None
    states = sized(group)
    base = {s.name: s.base for s in group.states}
    for state in group.states:
        # Saturation keeps time for a step of its own, which is not the one that is waited for here.
        state.updates.pop("relax_since", None)
    if not states:
        return GroupProposal(base, "MetricsUnavailable", "no variant can be sized")
    penalty = settings.transition_penalty
    supply = carried(states) if work.planned > 0 else 0.0
    if supply < work.planned * (1 - 1e-9):
        work.wanted = covering(group, states, work.planned, penalty)
        return _grow(states, work, base, supply, settings)
    roomy = work.planned if work.attaining else work.planned / (1 - min(settings.scale_down_margin, 0.99))
    work.wanted = covering(group, states, roomy, penalty)
    useless = {s.name: max(s.bounds.lower, s.base - gone) for s in states if (gone := first_to_go(s))}
    if useless and any(s.base > lost(s) for s in states):
        # What never came up carries nothing: it goes first, and by itself.
        work.wanted = base | useless
    return _relax(group, states, work, base, settings, now, safe)


def _grow(
    states: Sequence[State], work: GroupWork, base: dict[str, int], supply: float, settings: FleetSettings
) -> GroupProposal:
    target = dict(base)
    for state in states:
        target[state.name] = up_to(state, work.wanted[state.name], settings)
    what = f"{supply:.4g}/s with the replicas there are or coming"
    if target == base:
        missing = work.planned - supply
        note_shortage(states, missing, lambda s: work_of(s).rate, lambda s: work_of(s).cost, _why_not(states))
        return GroupProposal(target, "AtMaximum", f"{what}; no variant may grow: {_why_not(states)}")
    load = work.load or 0.0
    reason = "LoadRising" if supply >= load * (1 - 1e-9) else "LoadAboveCapacity"
    return GroupProposal(target, reason, f"{what}: {_changes(states, target)}")


def up_to(state: State, wanted: int, settings: FleetSettings) -> int:
    """As many as the load demands, bounded per decision: by the number of steps or the factor, whichever allows more.

    And bounded to two decisions ahead of what is ready: a measurement that went wrong stays so for a whole window,
    and must not order hundreds of replicas.
    """
    base = state.base
    if wanted <= base:
        return base

    def step(replicas: int) -> int:
        return max(replicas + settings.max_step_up, int(replicas * settings.max_step_up_factor))

    ready = max(state.ready or 0, (state.current or 0) - state.pending)
    target = min(wanted, step(base), max(base, step(step(ready))))
    if state.mode is Mode.SIGNAL and state.current:
        # An HPA does not react to less.
        target = max(target, state.current + hpa_step(state.current))
    if state.bounds.upper is not None:
        target = min(target, max(base, state.bounds.upper))
    return target


def _relax(
    group: Group,
    states: Sequence[State],
    work: GroupWork,
    base: dict[str, int],
    settings: FleetSettings,
    now: float,
    safe: bool | None,
) -> GroupProposal:
    up = [s for s in states if work.wanted[s.name] > s.base]
    down = [s for s in states if work.wanted[s.name] < s.base]
    saved = sum(work_of(s).cost * (s.base - work.wanted[s.name]) for s in states)
    if up and saved <= 0:
        # The replicas there are carry the load, only not with the margin: no reason to grow or to change the mix.
        up = down = []
    if not up and not down:
        moving = next((s for s in group.states if s.moving), None)
        if moving is not None:
            return GroupProposal(base, "InTransition", describe_transition(moving))
        if work.idle and sum(base.values()) == 1 and not group.zero.enabled:
            return GroupProposal(base, "SteadyState", LAST_REPLICA)
        return GroupProposal(base, "SteadyState", "as many as needed")
    if not work.full_window:
        text = f"fewer would do, but the load has not been seen for a whole window of {settings.load_window:.0f} s"
        return GroupProposal(base, "WarmUpHold", text)
    if (work.load or 0.0) <= QUIET and not work.idle:
        return GroupProposal(base, "RequestsInFlight", "nothing arrives, but requests are in flight or may be")
    if down and safe is False:
        for state in down:
            work_of(state).override = "the forecast would shrink; saturation says it is not safe"
        return GroupProposal(base, "ScaleDownBlocked", "fewer would do, but saturation says shrinking is not safe")
    # Relaxed since the latest time any of them was not: a variant without a time has just become so.
    known = [s.memory.relax_since for s in group.states]
    since = now if None in known else max(time for time in known if time is not None)
    for state in group.states:
        state.updates["relax_since"] = since
    moving = next((s for s in group.states if s.moving), None)
    if moving is not None:
        return GroupProposal(base, "InTransition", describe_transition(moving))
    wish = _changes(states, work.wanted)
    budget = down_limit(sum(s.base for s in group.states), settings)
    steps = (Shrink(s.memory, s.base, max(s.base - budget, work.wanted[s.name])) for s in down)
    # A load that is gone is at no edge between two sizes, whatever was regretted before.
    delay = settings.scale_down_delay if work.idle else shrink_delay(steps, settings.scale_down_delay, now)
    if work.attaining and not work.idle:
        # The rule that is followed remembers as long as the load's own history asks for.
        delay = 0.0
    left = delay - (now - since)
    if left > 0:
        text = f"{wish} would do; waiting for {delay:.0f} s without a break, {left:.0f} s to go"
        return GroupProposal(base, "ScaleDownDelayed", text + because(delay, settings))
    target = dict(base)
    if up:
        for state in up:
            target[state.name] = up_to(state, work.wanted[state.name], settings)
        return GroupProposal(target, "CheaperMix", f"{wish} is cheaper; what it replaces goes when it is ready")
    ignored = ""
    for state in sorted(down, key=lambda s: (work_of(s).cost, s.name), reverse=True):
        room = state.base - work.wanted[state.name]
        step = min(max(budget, first_to_go(state)), room)
        if state.mode is Mode.SIGNAL and 0 < step < hpa_step(state.base):
            step = hpa_step(state.base)
            if step > room:
                ignored = f"an HPA ignores less than {step} of {state.base} replicas"
                continue
        if step <= 0:
            break
        target[state.name] = state.base - step
        budget -= step
    if target == base:
        return GroupProposal(base, "BelowHPATolerance", f"{wish} would do, but {ignored}")
    needed = ", ".join(f"{name} {count}" for name, count in work.wanted.items())
    return GroupProposal(target, "CapacitySpare", f"{_changes(states, target)} (needed {needed})")


def _changes(states: Sequence[State], target: Mapping[str, int]) -> str:
    return ", ".join(f"{s.name} {s.base} → {target[s.name]}" for s in states if target[s.name] != s.base)


def _why_not(states: Sequence[State]) -> str:
    parts = []
    for state in states:
        if state.bounds.upper is not None and state.base >= state.bounds.upper:
            parts.append(f"{state.name} is at its {state.bounds.upper_from} ({state.bounds.upper})")
        else:
            parts.append(f"{state.name} did not get the replicas asked for before, or is far ahead of those ready")
    return ", ".join(parts)
