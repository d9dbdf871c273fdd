"""What is under way for a variant, for how long it may be, and whether enough replicas report to decide at all."""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.settings import FleetSettings, Mode
from modelyard.autoscaling.variants.attribution import GROUP_INDEX_LABEL
from modelyard.autoscaling.variants.replicas import unseen
from modelyard.autoscaling.variants.state import State
from modelyard.objects.documents import counted

_PARTIAL_SLACK = 1e-9


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


def lost(state: State) -> int:
    """Replicas that should have been ready long ago: they are there, and nobody may count on them."""
    return min(state.pending, state.base) if state.overdue else 0


def first_to_go(state: State) -> int:
    """Lost replicas that a scale-down takes before any that serves.

    A ReplicaSet deletes first what is not ready; in a rolling update there are two, and both shrink. Whatever numbers
    its replicas deletes the highest number first.
    """
    late = lost(state)
    if not late or state.surge or state.workload_id is None:
        return 0
    if state.workload_id.kind == "Deployment":
        return late if len({pod.owner for pod in state.pods}) <= 1 else 0
    ready = [pod.labels.get(GROUP_INDEX_LABEL, pod.key.name.rpartition("-")[2]) for pod in state.pods if pod.ready]
    if not all(number.isdecimal() for number in ready):
        return 0
    return min(late, max(0, (state.current or 0) - 1 - max(map(int, ready), default=-1)))


def describe_transition(state: State) -> str:
    """Which variant is on its way where, for messages."""
    if state.base != state.current:
        text = f"in transition: {state.name} desired {state.base} ≠ current {state.current}"
    elif not state.pending:
        has = counted(state.current, "replica")
        text = f"in transition: {state.name} has {state.surge} more than its {has} (rolling update)"
    else:
        text = f"in transition: {state.name} has {state.ready} of {state.current} replicas ready"
    stuck = next((pod for pod in state.pods if pod.unschedulable), None)
    return f"{text} (pod {stuck.key.name} cannot be scheduled: {stuck.unschedulable})" if stuck else text


def give_up(state: State, settings: FleetSettings) -> None:
    """Tell that a scaling was given up."""
    limit = transition_limit(state, settings)
    text = (
        f"scaling {state.name} from {state.current} to {state.timed_out_from} did not happen within {limit:.0f} s: "
        f"desired is reset to the real {state.current}"
    )
    if state.target == state.current:
        state.reason = "TransitionTimedOut"
    state.message = f"{text}; {state.message}"
    state.optimization = ("False", "SkippedProcessing", text)


def partial_hold(states: Sequence[State], settings: FleetSettings, now: float) -> float | None:
    """``None`` when enough ready pods report; else the seconds still to hold, negative when that time is over."""
    ready = reporting = 0
    for state in states:
        ready += state.ready or 0
        reporting += state.reporting
    if reporting < ready:
        after = now - settings.warm_up
        ready -= sum(unseen(state, after) for state in states)
    if reporting >= settings.reporting_share * ready - _PARTIAL_SLACK:
        return None
    known = [state.memory.partial_since for state in states if state.memory.partial_since is not None]
    since = min(known, default=now)
    for state in states:
        state.updates["partial_since"] = since
    left = settings.partial_limit - (now - since)
    return left if left > 0 else -1.0
