"""Why a binding cannot be decided. Source: Kthena autoscaler reference, "AutoscalingPolicyBinding validation"."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import NamedTuple

from modelyard.autoscaling.fleet import BindingView
from modelyard.objects import Key, WorkloadId


class Problem(NamedTuple):
    """A CamelCase code and a sentence with the remedy."""

    reason: str
    text: str


INVALID = "InvalidConfiguration"


def problem_of(view: BindingView) -> Problem | None:
    """The first thing that keeps this binding from being decided, ``None`` when nothing does."""
    if view.problem is not None:
        return Problem(view.problem_reason, view.problem)
    if view.policy is None:
        where = f"AutoscalingPolicy {view.key.namespace}/{view.policy_name}"
        return Problem("PolicyNotFound", f"spec.policyRef: {where} does not exist - create it, or name another one")
    found = [*_target_problems(view), *_policy_problems(view)]
    return Problem(INVALID, "; ".join(found)) if found else None


def _target_problems(view: BindingView) -> list[str]:
    field = "spec.optimizerConfiguration.params" if view.optimizer else "spec.scalingConfiguration"
    if not view.targets:
        return ["spec: neither scalingConfiguration nor optimizerConfiguration names a target - give one of them"]
    if not view.optimizer and len(view.targets) > 1:
        return ["spec: scalingConfiguration takes one target - use optimizerConfiguration for several"]
    found: list[str] = []
    seen: set[WorkloadId] = set()
    for index, target in enumerate(view.targets):
        where = f"{field}[{index}]" if view.optimizer else field
        if not target.workload.name:
            found.append(f"{where}.target.targetRef.name: is empty - name the workload")
        if target.minimum > target.maximum:
            found.append(
                f"{where}.minReplicas: {target.minimum} is above maxReplicas {target.maximum} - lower it or raise that"
            )
        if target.workload in seen:
            found.append(f"{where}.target.targetRef: {target.workload} is given twice - keep it once")
        seen.add(target.workload)
    return found


def _policy_problems(view: BindingView) -> list[str]:
    policy = view.policy
    assert policy is not None
    if not policy.targets:
        return [f"AutoscalingPolicy {policy.key}: spec.metrics is empty - name a metric and its target"]
    return [
        f"AutoscalingPolicy {policy.key}: targetValue of {name} is {value:g} - write a number above 0"
        for name, value in policy.targets.items()
        if not (isfinite(value) and value > 0)
    ]


def conflicts(views: Iterable[BindingView]) -> dict[Key, str]:
    """Bindings that lose a target to an older one (same age: first by name), and a message. A loser claims nothing."""
    owners: dict[WorkloadId, Key] = {}
    lost: dict[Key, str] = {}
    for view in sorted(views, key=lambda view: (view.created, view.key)):
        if view.deleting:
            continue
        taken = next((target for target in view.targets if owners.get(target.workload, view.key) != view.key), None)
        if taken is not None:
            lost[view.key] = (
                f"{taken.workload} is already scaled by the older AutoscalingPolicyBinding {owners[taken.workload]} - "
                "remove the target from one of them"
            )
            continue
        for target in view.targets:
            owners[target.workload] = view.key
    return lost
