"""After the targets: idle models go to zero where that is enabled, and no model goes to zero where it is not.

A count of completed requests says little: proof is wanted that nothing is in flight, and a model that has just been
woken is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.decision import Step
from modelyard.autoscaling.variants.state import Group, State
from modelyard.autoscaling.variants.strategy import Idle
from modelyard.metrics.values import Signals
from modelyard.objects.documents import counted


def enforce(group: Group, states: Sequence[State], signals: Signals, now: float, idle: Idle) -> None:
    """Change the targets of ``states``, the decided variants of the group; ``idle`` says which may go to zero."""
    if not states:
        return
    if group.zero.enabled:
        if not any(state.target for state in states):
            return
        known, refusal = "", why_served(group, signals)
        if refusal is None:
            refusal, known = idle(group, states, signals, now)
        if refusal is None:
            _move(states, 0, "ScaledToZero", f"{known}: scaled to zero")
        elif refusal:
            step = Step("enforcement", None, None, f"not scaled to zero: {refusal}")
            for state in states:
                state.fold(step)
    elif not any(state.target or state.bounds.lower for state in states):
        cheapest = min(states, key=lambda s: (s.variant.cost, s.name))
        text = "scale-to-zero is not enabled for the model: the cheapest variant keeps one replica"
        _move([cheapest], 1, "MinimumOne", text)


def why_served(group: Group, signals: Signals) -> str | None:
    """``None`` when the model completed no request for its window, else why not (empty when it simply serves)."""
    count = signals.request_counts.get((group.namespace, group.model_id, group.zero.window))
    if count is None:
        return f"the number of requests over {group.zero.window} s is not known"
    return "" if count > 0 else None


def proven_idle(group: Group, states: Sequence[State], signals: Signals, now: float) -> tuple[str | None, str]:
    """Nothing may be in flight, and the model must have had time to be asked for."""
    refusal = _in_flight(group, states, signals) or _grace(states, group.zero.retention, now)
    return refusal, f"no request for {group.zero.window} s and none in flight"


def _in_flight(group: Group, states: Sequence[State], signals: Signals) -> str | None:
    queued = signals.queued(group.namespace, group.model_id)
    if queued:
        return f"{counted(queued, 'request is', 'requests are')} queued at the gateway"
    if queued is None and signals.gateway_unknown:
        return "the gateway's queue could not be read"
    for state in states:
        if state.reporting < (state.ready or 0):
            return f"{state.reporting} of {state.ready} ready replicas of {state.name} report"
        for signal, _ in state.units:
            if signal.running is None or signal.waiting is None:
                return f"pod {signal.pod} does not say how many requests it holds"
            if signal.running or signal.waiting:
                return f"pod {signal.pod} holds {signal.running:g} running and {signal.waiting:g} waiting requests"
    return None


def _grace(states: Sequence[State], retention: float, now: float) -> str | None:
    for state in states:
        assert state.workload is not None
        woken = state.updates.get("woken_at", state.memory.woken_at)
        if state.pending:
            return f"{state.name} has {state.ready} of {state.current} replicas ready, the others are still starting"
        starts = [state.variant.created, state.workload.created]
        # A start-up may take longer than the retention: idleness begins when there is something to ask.
        starts += [pod.ready_since for pod in state.pods if pod.ready_since is not None]
        if isinstance(woken, int | float):
            starts.append(woken)
        left = max(starts) + retention - now
        if left > 0:
            return (
                f"{state.name} is not yet idle for {retention:.0f} s since it was created, woken or ready "
                f"({left:.0f} s to go)"
            )
    return None


def _move(states: Sequence[State], target: int, reason: str, text: str) -> None:
    for state in states:
        if state.target != target:
            state.fold(Step("enforcement", state.target, target, text, reason))


def wake_times(state: State, now: float) -> None:
    """Remember when a variant that had been sent to zero came back; on its way down does not count."""
    memory, variant = state.memory, state.variant
    # Noted once per waking: a status that is not rewritten would otherwise renew the grace period for ever.
    noted = memory.woken_at is not None and memory.woken_at > (variant.last_run or 0.0)
    if state.desired == 0 and state.current and memory.transition_target != 0 and not noted:
        state.updates["woken_at"] = now
