"""Bindings that may only report: somebody else scales their target as well, or their namespace is excluded. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from modelyard.autoscaling.configuration import ACTUATION, FleetSettings, Mode, fleet_handling, handling_of
from modelyard.autoscaling.fleet import BindingView, Fleet
from modelyard.autoscaling.variants import EXCLUDE_ANNOTATION, excluded_namespaces
from modelyard.objects import Key, WorkloadId

REASON = "ConflictingScaler"
EXCLUDED = "SkippedProcessing"


def settled(views: Iterable[BindingView], fleet: Fleet, settings: FleetSettings) -> tuple[BindingView, ...]:
    """The views, with ``problem`` set for those in an excluded namespace and for those that somebody else scales."""
    views = tuple(views)
    if not views:
        return ()
    excluded = excluded_namespaces(fleet, settings)
    if excluded:
        views = tuple(_unless_excluded(view, excluded) for view in views)
    return without_rivals(views, fleet, settings)


class Rival(NamedTuple):
    """Another loop's claim on ``workloads``. A VariantAutoscaling (not ``binding``) wins, then the older binding."""

    who: str
    workloads: frozenset[WorkloadId]
    key: Key
    created: float
    binding: bool = True


def outside(view: BindingView, rivals: Iterable[Rival]) -> dict[WorkloadId, tuple[str, ...]]:
    """Targets of a binding with the rivals that come first there. Every loop finds the same order."""
    found: dict[WorkloadId, tuple[str, ...]] = {}
    own = {target.workload for target in view.targets}
    for rival in rivals:
        if rival.binding and (rival.created, rival.key) >= (view.created, view.key):
            continue
        for workload in own & rival.workloads:
            found[workload] = (*found.get(workload, ()), rival.who)
    return found


def _unless_excluded(view: BindingView, excluded: frozenset[str]) -> BindingView:
    spaces = sorted({view.key.namespace, *(target.workload.namespace for target in view.targets)} & excluded)
    if not spaces:
        return view
    text = f"namespace {', '.join(spaces)} is excluded by annotation {EXCLUDE_ANNOTATION}"
    return replace(view, problem=text, problem_reason=EXCLUDED)


def without_rivals(
    views: Iterable[BindingView], fleet: Fleet, settings: FleetSettings | None = None
) -> tuple[BindingView, ...]:
    """The views, with ``problem`` set for those that are claimed; a problem of their own comes first."""
    views = tuple(views)
    found = claimed(views, fleet, settings)
    return tuple(
        replace(view, problem=found[view.key], problem_reason=REASON)
        if view.key in found and view.problem is None
        else view
        for view in views
    )


def claimed(views: Iterable[BindingView], fleet: Fleet, settings: FleetSettings | None = None) -> dict[Key, str]:
    """Bindings that may only report, and why: a VariantAutoscaling, an HPA or a ScaledObject scales a target of theirs.

    One claimed target is enough: the shares of an optimizer make no sense when one of them is in other hands. When
    HPAs and ScaledObjects could not be listed, every binding may have one. A binding in signal mode moves nothing: an
    HPA or a ScaledObject at its target is who carries its decisions out.
    """
    default = fleet_handling(settings or FleetSettings())
    rivals: dict[WorkloadId, list[str]] = defaultdict(list)
    for variant in sorted(fleet.variants, key=lambda variant: variant.key):
        target = variant.target
        if target is not None and target.name and not variant.deleting:
            workload = WorkloadId(variant.key.namespace, target.group, target.kind, target.name)
            rivals[workload].append(f"VariantAutoscaling {variant.key}")
    scalers: dict[WorkloadId, list[str]] = defaultdict(list)
    for consumer in sorted(fleet.consumers, key=lambda consumer: (consumer.key, consumer.kind)):
        scalers[consumer.target].append(f"{consumer.kind} {consumer.key}")
    found: dict[Key, str] = {}
    for view in views:
        chosen = {ACTUATION: view.annotations[ACTUATION]} if ACTUATION in view.annotations else {}
        direct = handling_of(chosen, default).mode is Mode.DIRECT
        taken: list[str] = []
        remedy = "remove one of the two"
        for id_ in (target.workload for target in view.targets):
            others = list(dict.fromkeys((*rivals.get(id_, ()), *view.rivals.get(id_, ()))))
            if direct and id_ in scalers:
                others += scalers[id_]
                remedy = f"remove one of the two, or let it follow the binding (annotation {ACTUATION}: signal)"
            if others:
                taken.append(f"{id_} is scaled by {', '.join(others)}")
        if taken:
            found[view.key] = f"{'; '.join(taken)}: not scaling, only reporting; {remedy}"
        elif direct and fleet.consumers_error is not None:
            found[view.key] = (
                f"whether an HPA or ScaledObject scales the target is not known ({fleet.consumers_error}): "
                "not scaling, only reporting; grant list on horizontalpodautoscalers (autoscaling) and "
                "scaledobjects (keda.sh)"
            )
    return found
