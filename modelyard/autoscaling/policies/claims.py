"""Bindings that may only report: somebody else scales their target as well, or their namespace is excluded.

Pure; called by ``autoscaling.decide`` before ``policies.decide``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from modelyard.autoscaling.fleet import Fleet, Key, WorkloadId
from modelyard.autoscaling.policies.view import BindingView
from modelyard.autoscaling.select import EXCLUDE_ANNOTATION, excluded_namespaces
from modelyard.autoscaling.settings import FleetSettings

REASON = "ConflictingScaler"
EXCLUDED = "SkippedProcessing"


def settled(views: Iterable[BindingView], fleet: Fleet, settings: FleetSettings) -> tuple[BindingView, ...]:
    """The views, with ``problem`` set for those in an excluded namespace and for those that somebody else scales."""
    views = tuple(views)
    excluded = excluded_namespaces(fleet, settings)
    if excluded:
        views = tuple(_unless_excluded(view, excluded) for view in views)
    return without_rivals(views, fleet)


def _unless_excluded(view: BindingView, excluded: frozenset[str]) -> BindingView:
    spaces = sorted({view.key.namespace, *(target.workload.namespace for target in view.targets)} & excluded)
    if not spaces:
        return view
    text = f"namespace {', '.join(spaces)} is excluded by annotation {EXCLUDE_ANNOTATION}"
    return replace(view, problem=text, problem_reason=EXCLUDED)


def without_rivals(views: Iterable[BindingView], fleet: Fleet) -> tuple[BindingView, ...]:
    """The views, with ``problem`` set for those that are claimed; a problem of their own comes first."""
    views = tuple(views)
    found = claimed(views, fleet)
    return tuple(
        replace(view, problem=found[view.key], problem_reason=REASON)
        if view.key in found and view.problem is None
        else view
        for view in views
    )


def claimed(views: Iterable[BindingView], fleet: Fleet) -> dict[Key, str]:
    """Bindings that may only report, and why: a VariantAutoscaling, an HPA or a ScaledObject scales a target of theirs.

    One claimed target is enough: the shares of an optimizer make no sense when one of them is in other hands. When
    HPAs and ScaledObjects could not be listed, every binding may have one.
    """
    rivals: dict[WorkloadId, list[str]] = defaultdict(list)
    for variant in sorted(fleet.variants, key=lambda variant: variant.key):
        target = variant.target
        if target is not None and target.name and not variant.deleting:
            workload = WorkloadId(variant.key.namespace, target.group, target.kind, target.name)
            rivals[workload].append(f"VariantAutoscaling {variant.key}")
    for consumer in sorted(fleet.consumers, key=lambda consumer: (consumer.key, consumer.kind)):
        rivals[consumer.target].append(f"{consumer.kind} {consumer.key}")
    found: dict[Key, str] = {}
    for view in views:
        taken = [
            f"{target.workload} is scaled by {', '.join(rivals[target.workload])}"
            for target in view.targets
            if target.workload in rivals
        ]
        if taken:
            found[view.key] = f"{'; '.join(taken)}: not scaling, only reporting; remove one of the two"
        elif fleet.consumers_error is not None:
            found[view.key] = (
                f"whether an HPA or ScaledObject scales the target is not known ({fleet.consumers_error}): "
                "not scaling, only reporting; grant list on horizontalpodautoscalers (autoscaling) and "
                "scaledobjects (keda.sh)"
            )
    return found
