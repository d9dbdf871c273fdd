"""A policy binding's decision in words, and when its replicas may change next. Pure. Source: as ``behaviour``."""

from __future__ import annotations

from dataclasses import dataclass

from modelyard.autoscaling.bindings import windows
from modelyard.autoscaling.bindings.behaviour import clock
from modelyard.autoscaling.configuration import FleetSettings, Mode
from modelyard.autoscaling.decisions import BindingDecision, remarks
from modelyard.autoscaling.fleet import BindingView
from modelyard.autoscaling.memory import History
from modelyard.objects import counted


@dataclass(frozen=True, slots=True)
class Restraint:
    """What holds replicas back: ``code`` as in the records' reasons, ``direction`` ``up`` or ``down``.

    ``until`` is epoch seconds, that moment included; ``None`` when no time frees it.
    """

    code: str
    direction: str
    until: float | None
    text: str


def blocks(decision: BindingDecision, view: BindingView, settings: FleetSettings, now: float) -> tuple[Restraint, ...]:
    """The obstacles to other replicas after the decision of ``now``; empty when the next change waits for metrics."""
    policy, memory = view.policy, decision.memory
    if policy is None or not any(record.target.decided for record in decision.records):
        return ()
    rules, tick = policy.behaviour, settings.tick
    recommended, corrected = memory.recommended.newest, memory.corrected.newest
    if recommended is None or corrected is None:
        return ()
    wanted, have = recommended[1], corrected[1]
    found: list[Restraint] = []
    if memory.panic_until is not None and now <= memory.panic_until and wanted < have:
        found.append(Restraint("Panicking", "down", memory.panic_until, "panic: no scale-down"))
    if wanted < have:
        until = windows.held_until(memory.recommended, rules.down.window, now, tick, above=have - 1)
        if until is not None:
            text = f"stabilization: recommendations of {have} or more in the last {rules.down.window:g} s"
            found.append(Restraint("Stabilizing", "down", until, text))
        if (freed := _freed(memory.corrected, rules.down.period, now, highest=True)) is not None:
            text = f"rate limit: {_limits(rules.down.instances, rules.down.percent, rules.down.period)}"
            found.append(Restraint("RateLimited", "down", freed, text))
    if wanted > have:
        until = _held_below(memory.recommended, rules.up.window, now, have)
        if until is not None:
            text = f"stabilization: recommendations of {have} or fewer in the last {rules.up.window:g} s"
            found.append(Restraint("Stabilizing", "up", until, text))
        panic = memory.panic_until is not None and now <= memory.panic_until
        period = rules.panic.period if panic else rules.up.period
        if (freed := _freed(memory.corrected, period, now, highest=False)) is not None:
            limits = _limits(rules.up.instances, rules.up.percent, period)
            text = f"panic: at most {rules.panic.percent} % per {period:g} s" if panic else f"rate limit: {limits}"
            found.append(Restraint("RateLimited", "up", freed, text))
    reasons = {record.why.reason for record in decision.records}
    for code, direction, sources in (
        ("AtMaximum", "up", [record.bounds.upper_from for record in decision.records]),
        ("AtMinimum", "down", [record.bounds.lower_from for record in decision.records]),
    ):
        if code in reasons:
            found.append(Restraint(code, direction, None, ", ".join(dict.fromkeys(sources))))
    for target in view.targets:
        since = memory.idle_since.get(str(target.workload))
        grace = view.grace_of(target)
        if since is not None and since + grace > now and target.current:
            text = f"the last instance of {target.name} waits for {grace:g} s without demand"
            found.append(Restraint("WaitingForIdle", "down", since + grace, text))
    return tuple(found)


def _limits(instances: int, percent: int, period: float) -> str:
    return f"{counted(instances, 'instance')} or {percent} % per {period:g} s"


def _held_below(history: History, length: float, now: float, have: int) -> float | None:
    """Until when a window holds a recommendation of no more than ``have``."""
    times = [until + length for until, value in history.past if value <= have and until + length >= now]
    return max(times, default=None) if length > 0 else None


def _freed(history: History, period: float, now: float, highest: bool) -> float | None:
    """When the rate limit's starting point leaves its window; ``None`` when that is what there is now."""
    if history.newest is None or period <= 0:
        return None
    now_value = history.newest[1]
    past = [(until + period, value) for until, value in history.past if until + period >= now]
    beyond = [time for time, value in past if (value > now_value if highest else value < now_value)]
    return max(beyond, default=None)


def binding_lines(decision: BindingDecision, view: BindingView, settings: FleetSettings, now: float) -> list[str]:
    """What concerns the binding as a whole: mode, message, what blocks the next change and until when, conditions."""
    mode = "Panic" if decision.panic else "Stable"
    told = [f"mode {mode}; policy {view.key.namespace}/{view.policy_name}: {decision.message}"]
    if any(record.writes.mode is Mode.SIGNAL for record in decision.records):
        told.append("actuation signal: another scaler acts on the published replicas")
    held = blocks(decision, view, settings, now)
    for block in held:
        until = (
            f"until {clock(block.until)}" if block.until is not None else "for as long as the binding stays as it is"
        )
        told.append(f"next scale-{block.direction} is held back {until} ({block.code}): {block.text}")
    if not held and any(record.target.decided for record in decision.records):
        told.append("next change: in any tick, as soon as the metrics ask for it")
    return [*told, *remarks(decision)]
