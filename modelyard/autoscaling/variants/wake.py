"""Scale from zero: a model of which nothing runs, with requests waiting, gets its cheapest variant back.

Works whether or not scale-to-zero is enabled for the model: somebody scaled it to zero. Only demand that was really
seen wakes; what is missing or could not be read never does. Source: WVA saturation reference, 'Scale from zero'.
"""

from __future__ import annotations

from math import isfinite

from modelyard.autoscaling.conditions import SCALE_FROM_ZERO, Story
from modelyard.autoscaling.decision import Step
from modelyard.autoscaling.settings import FleetSettings, Mode
from modelyard.autoscaling.variants.state import Group, State
from modelyard.autoscaling.variants.tokens.knowledge import arguments_of
from modelyard.autoscaling.variants.transition import transition_limit
from modelyard.metrics.values import Signals
from modelyard.objects.documents import counted

REASON = "WokenByDemand"


def wake(group: Group, signals: Signals, backlog: float, settings: FleetSettings, now: float) -> None:
    """Set the targets of variants at zero that have to start now.

    ``backlog`` is the model's queue at the gateway, 0 when that is not known to be this namespace's.
    """
    asleep = at_zero(group)
    if not asleep or any(state.ready or state.units for state in group.states):
        return
    queue = waiting(group, signals, backlog)
    started = [state for state in group.states if state.spec > 0]
    for state in asleep:
        if _is_on_its_way(state, group, now):
            _tell(state, state.desired or 0, f"woken before, waiting for its scaler to start {state.desired}")
    if queue <= 0:
        return
    takes = sum(_takes(state, state.spec) for state in started if not _failed(state, settings, now))
    takes += sum(_takes(state, state.target or 0) for state in asleep if state.target)
    able = [s for s in asleep if not s.target and s.bounds.upper != 0 and not _unschedulable(s)]
    for state in sorted(able, key=lambda s: (s.variant.cost, s.name)):
        if takes and takes >= queue:
            return
        replicas = max(1, state.bounds.lower)
        also = f"; what was started before can take {takes:.0f}" if takes else ""
        start(state, replicas, queue, now, also)
        takes += _takes(state, replicas)
    if not takes:
        count = counted(queue, "request waits", "requests wait")
        text = f"{count} and no variant may be woken (maximum 0, or pods that cannot be scheduled)"
        for state in asleep:
            state.message = f"{text}; {state.message}"


def at_zero(group: Group) -> list[State]:
    """The group's variants whose workload is at zero."""
    return [state for state in group.states if state.spec == 0 and state.workload is not None]


def condition(state: State) -> Story | None:
    """The condition ``ScaleFromZero`` of a variant: while it is being woken, and once it is over; else ``None``."""
    if state.reason == REASON:
        return ("True", REASON, state.message)
    known = next((c for c in state.variant.conditions if c.type == SCALE_FROM_ZERO), None)
    if known is None:
        return None
    if state.ready:
        return ("False", "Serving", f"{counted(state.ready, 'replica is', 'replicas are')} ready")
    if state.spec == 0:
        return ("False", "AtZero", "the workload is at zero replicas and nothing waits for it")
    return (known.status, known.reason, known.message)


def waiting(group: Group, signals: Signals, backlog: float) -> float:
    """Requests waiting for the model: its queue at the gateway, or what the variants' own expressions say.

    Variants behind one gateway see the same queue, so the largest number counts, not the sum.
    """
    seen = [backlog, *(signals.wake.get(state.variant.key, 0.0) for state in group.states)]
    return max((value for value in seen if isfinite(value)), default=0.0)


def _failed(state: State, settings: FleetSettings, now: float) -> bool:
    """Whether what was started will take nothing: it cannot be placed, or should have been ready long ago."""
    since = state.memory.transition_since
    return _unschedulable(state) or (since is not None and now - since >= transition_limit(state, settings))


def _unschedulable(state: State) -> bool:
    return any(pod.unschedulable for pod in state.pods)


def _takes(state: State, replicas: int) -> float:
    """Requests that so many replicas take at once: a full batch and as many waiting as do not count as saturated."""
    return replicas * (arguments_of(state).max_sequences + state.limits.queue)


def _is_on_its_way(state: State, group: Group, now: float) -> bool:
    """Whether the variant was woken and its scaler has not acted yet: the queue may be gone before it does."""
    woken = state.memory.woken_at
    return (
        state.mode is Mode.SIGNAL
        and bool(state.desired)
        and state.memory.transition_target == state.desired
        and woken is not None
        and now - woken < group.zero.retention
    )


def start(state: State, replicas: int, queue: float, now: float, also: str = "") -> None:
    """Wake a variant for a queue."""
    waiting = counted(queue, "request waits", "requests wait")
    _tell(state, replicas, f"{waiting} for the model, and nothing of it serves{also}: woken")
    state.updates["woken_at"] = now


def _tell(state: State, replicas: int, text: str) -> None:
    state.decided = True
    message = f"{text} to {counted(replicas, 'replica')}" if text.endswith("woken") else text
    state.fold(Step("wake", state.target, replicas, text, REASON), message)
