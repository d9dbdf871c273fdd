"""From an AutoscalingPolicy to the behaviour in effect, every default filled in, and back to something to show.

There is one set of defaults for all policies: the one for policies written by hand. What is absent as a whole comes
from here; what is absent inside an object that is present was already filled by the schema (1 instance, 100 percent,
15 seconds, Or), since its defaults apply wherever an object is present, be it empty.

Source: Kthena autoscaler reference, "AutoscalingPolicy defaulting" and "The defaults in effect".
"""

from __future__ import annotations

from modelyard.autoscaling.fleet import Behaviour, DirectionLimits, Panic, PolicyView
from modelyard.objects import Key
from modelyard.resources import (
    AutoscalingPolicy,
    AutoscalingPolicyBehavior,
    AutoscalingPolicyPanicPolicy,
    AutoscalingPolicySpec,
    AutoscalingPolicyStablePolicy,
    Duration,
)

DOWN_WINDOW = 300.0
UP_WINDOW = 0.0
THRESHOLD = 200

DEFAULT_URI = "/metrics"
DEFAULT_PORT = 8100


_UP = DirectionLimits(instances=4, percent=100, period=60.0, select="Or", window=UP_WINDOW)
_DOWN = DirectionLimits(instances=0, percent=100, period=60.0, select="Or", window=DOWN_WINDOW)
_NO_PANIC = Panic(percent=0, period=0.0, threshold=THRESHOLD, hold=0.0)


def effective(policy: AutoscalingPolicySpec) -> Behaviour:
    """The behaviour a policy has, all times in seconds."""
    behaviour = policy.behavior or AutoscalingPolicyBehavior()
    up = behaviour.scale_up
    stable = up.stable_policy if up is not None else None
    panic = up.panic_policy if up is not None else None
    down = behaviour.scale_down
    return Behaviour(
        up=_UP if stable is None else _limits(stable, UP_WINDOW),
        down=_DOWN if down is None else _limits(down, DOWN_WINDOW),
        panic=_NO_PANIC if panic is None else _panic(panic),
    )


def _limits(policy: AutoscalingPolicyStablePolicy, window: float) -> DirectionLimits:
    given = policy.stabilization_window
    return DirectionLimits(
        policy.instances,
        policy.percent,
        policy.period.seconds,
        policy.select_policy,
        window if given is None else given.seconds,
    )


def _panic(policy: AutoscalingPolicyPanicPolicy) -> Panic:
    return Panic(policy.percent, policy.period.seconds, policy.panic_threshold_percent, policy.panic_mode_hold.seconds)


def policy_view(policy: AutoscalingPolicy) -> PolicyView:
    """What a decision needs of a policy."""
    return PolicyView(
        Key(policy.namespace, policy.name),
        policy.metadata.generation,
        policy.spec.tolerance_percent,
        {metric.metric_name: float(metric.target_value) for metric in policy.spec.metrics},
        effective(policy.spec),
    )


def manifest(behaviour: Behaviour) -> dict[str, object]:
    """The behaviour in the notation of ``spec.behavior``, nothing left out; for ``status.effectiveBehavior``."""
    panic = behaviour.panic
    return {
        "scaleUp": {
            "stablePolicy": _stable_manifest(behaviour.up),
            "panicPolicy": {
                "percent": panic.percent,
                "period": _duration(panic.period),
                "panicThresholdPercent": panic.threshold if panic.threshold is not None else THRESHOLD,
                "panicModeHold": _duration(panic.hold),
            },
        },
        "scaleDown": _stable_manifest(behaviour.down),
    }


def _stable_manifest(limits: DirectionLimits) -> dict[str, object]:
    return {
        "instances": limits.instances,
        "percent": limits.percent,
        "period": _duration(limits.period),
        "selectPolicy": limits.select,
        "stabilizationWindow": _duration(limits.window),
    }


def _duration(seconds: float) -> str:
    return str(Duration.of(seconds=seconds))


def describe(behaviour: Behaviour) -> str:
    """The behaviour in one line for people."""
    panic = behaviour.panic
    if panic.hold <= 0 or panic.threshold is None:
        panicking = "panic off"
    else:
        pace = f"up to {panic.percent} % more per {panic.period:g} s" if panic.period > 0 else "without limit"
        panicking = (
            f"panic from {panic.threshold} % of the current replicas: {pace}, no scale-down for {panic.hold:g} s"
        )
    return f"up {_describe(behaviour.up)}; down {_describe(behaviour.down)}; {panicking}"


def _describe(limits: DirectionLimits) -> str:
    if limits.period > 0:
        which = "larger" if limits.select == "Or" else "smaller"
        pace = f"by the {which} of {limits.instances} or {limits.percent} % per {limits.period:g} s"
    else:
        pace = "without limit"
    return f"{pace}, {f'after {limits.window:g} s' if limits.window > 0 else 'no delay'}"
