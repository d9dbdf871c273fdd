"""Which VariantAutoscalings are this controller's, and which of them can be decided on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from operator import attrgetter
from typing import NamedTuple

from modelyard.autoscaling.configuration import FleetSettings, Handling, Mode, ObjectNotice, fleet_handling, handling_of
from modelyard.autoscaling.decisions import (
    OPTIMIZATION_READY,
    SHARE,
    UNBOUNDED,
    ConditionValue,
    Explanation,
    Reason,
    refusal,
    variant_bounds,
    waiting_since,
)
from modelyard.autoscaling.fleet import Consumer, Fleet, Variant
from modelyard.autoscaling.memory import VariantMemory
from modelyard.autoscaling.sizing import MOST_BATCH
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.proposal import Proposed, keep
from modelyard.fairness import WorkRequest, by_owner, grant_work
from modelyard.objects import Key, Notice, Workload, WorkloadId, shown

INSTANCE_LABEL = "wva.llmd.ai/controller-instance"
EXCLUDE_ANNOTATION = "wva.llmd.ai/exclude"
MOST_TOGETHER = 100
"""Variants of one model in a namespace beyond which none of them is decided on."""
UNITS_OF_A_VARIANT = 1_000
UNITS_OF_A_SPEED = 7_000
"""Of a variant whose engines' speed was learnt, beside that."""
PASSES = 6
"""How often the states of a replica's queueing chain are looked at, one with the other."""


class Observed(NamedTuple):
    """``variants`` are all variants of this controller in key order; ``kept`` those that cannot be decided on.

    ``notices`` are about ConfigMaps, ``unattributed`` counts signals of pods that belong to no variant.
    """

    variants: Sequence[Observation]
    kept: Mapping[Key, Proposed]
    notices: tuple[ObjectNotice, ...] = ()
    unattributed: int = 0

    @property
    def active(self) -> list[Observation]:
        return [seen for seen in self.variants if seen.key not in self.kept]


def select(fleet: Fleet, settings: FleetSettings) -> Observed:
    """Select this controller's variants, and settle those that cannot be decided on."""
    default = fleet_handling(settings)
    consumers: dict[WorkloadId, list[Consumer]] = defaultdict(list)
    for consumer in sorted(fleet.consumers, key=lambda c: (c.key, c.kind)):
        consumers[consumer.target].append(consumer)
    excluded = excluded_namespaces(fleet, settings)
    variants: list[Observation] = []
    kept: dict[Key, Proposed] = {}
    claims: dict[WorkloadId, list[Observation]] = {}
    for variant in sorted(fleet.variants, key=attrgetter("key")):
        if not _is_ours(variant, settings):
            continue
        try:
            seen = _observed(variant, default, fleet, consumers)
            refusal = _refusal(seen, excluded)
        except Exception as error:  # one object's failure must never stop another
            seen = Observation(variant.key, variant, default, default.mode, variant.memory)
            text = f"{type(error).__name__}: {shown(str(error))}"
            refusal = keep(seen, Explanation(Reason.UNUSABLE, error=text))
        variants.append(seen)
        if refusal is not None:
            kept[variant.key] = refusal
        elif seen.workload_id is not None:
            claims.setdefault(seen.workload_id, []).append(seen)
    for id_, claimants in claims.items():
        if len(claimants) > 1:
            claimants.sort(key=lambda seen: (seen.variant.created, seen.name))
            kept |= {younger.key: _rejected(younger, claimants[0]) for younger in claimants[1:]}
        if (unusable := _target_unusable(claimants[0], fleet.workload_errors.get(id_))) is not None:
            kept[claimants[0].key] = unusable
    active = Observed(variants, kept).active
    return Observed(variants, kept | _beyond_share(active))


def _beyond_share(active: Sequence[Observation]) -> dict[Key, Proposed]:
    """All variants of a model in a namespace share its load: all or none is decided on."""
    models = by_owner(active, lambda seen: (seen.key.namespace, seen.variant.model_id))
    units = [_units(variants) for variants in models.values()]
    requests = [
        WorkRequest(
            namespace, work, min(waiting_since(seen.variant.conditions, OPTIMIZATION_READY) for seen in variants)
        )
        for ((namespace, _), variants), work in zip(models.items(), units, strict=True)
    ]
    return {
        seen.key: keep(seen, Explanation(Reason.BEYOND_SHARE, refusal=refusal(request)))._replace(
            target=target_found(seen)
        )
        for request, variants, granted in zip(requests, models.values(), grant_work(requests, SHARE), strict=True)
        if not granted
        for seen in variants
    }


def _units(variants: Sequence[Observation]) -> float:
    if len(variants) > MOST_TOGETHER:
        return inf
    specs = (seen.variant.slo for seen in variants)
    chains = sum(min(spec.max_batch, MOST_BATCH) for spec in specs if spec is not None)
    learnt = sum(seen.memory.slo is not None and seen.memory.slo.speed is not None for seen in variants)
    return UNITS_OF_A_VARIANT * len(variants) + UNITS_OF_A_SPEED * learnt + PASSES * chains


def _observed(
    variant: Variant, default: Handling, fleet: Fleet, consumers: Mapping[WorkloadId, list[Consumer]]
) -> Observation:
    handling = handling_of(variant.annotations, default) if variant.annotations else default
    memory = variant.memory.not_after(fleet.now)
    desired = variant.status_replicas if variant.last_run is not None else None
    target, workload, id_, error = variant.target, None, None, None
    if target is not None and target.name and target.kind:
        id_ = WorkloadId(variant.key.namespace, target.group, target.kind, target.name)
        workload, error = fleet.workloads.get(id_), fleet.consumers_error
    seen = Observation(variant.key, variant, handling, handling.mode, memory, desired, id_, consumers_error=error)
    if workload is None:
        return seen._replace(notices=handling.notices)
    if memory.workload_uid and workload.uid and memory.workload_uid != workload.uid:
        # Deleted and created again: what was desired of the old one says nothing about this one.
        desired = None
        memory = VariantMemory(scalings=memory.scalings, startup_seconds=memory.startup_seconds)
    scalers = consumers.get(workload.id, ())
    mode, notices = _mode(workload, handling, scalers, error)
    bounds = UNBOUNDED
    if scalers or workload.limits is not None or handling.lower is not None or handling.upper is not None:
        bounds, problems = variant_bounds(handling, scalers, workload.limits)
        notices = (*problems, *notices)
    # Current falls back to spec: replicas just asked for count as pending.
    spec = 1 if workload.spec_replicas is None else workload.spec_replicas
    seen = seen._replace(
        mode=mode,
        memory=memory,
        desired=desired,
        workload=workload,
        consumers=scalers,
        bounds=bounds,
        spec=spec,
        current=(workload.status_replicas or spec) if spec > 0 else 0,
        ready=workload.ready,
        notices=(*handling.notices, *notices),
    )
    return seen if handling.reading.counts_surge else seen.without_surge()


def _mode(
    workload: Workload, handling: Handling, consumers: Sequence[Consumer], consumers_error: str | None
) -> tuple[Mode, tuple[Notice, ...]]:
    """Direct only where nothing else moves the workload, or may."""
    if handling.mode is not Mode.DIRECT:
        return handling.mode, ()
    if consumers:
        names = ", ".join(f"{c.kind} {c.key}" for c in consumers)
        text = f"{names} scales {workload.id}: not scaling it directly, only publishing the desired replicas"
        return Mode.SIGNAL, (Notice("ConflictingScaler", text, "Warning"),)
    if consumers_error is not None:
        text = (
            f"whether an HPA or ScaledObject scales {workload.id} is not known ({consumers_error}): not scaling "
            "it directly, only publishing the desired replicas; grant list on horizontalpodautoscalers (autoscaling) "
            "and scaledobjects (keda.sh)"
        )
        return Mode.SIGNAL, (Notice("ScalersUnknown", text, "Warning"),)
    return Mode.DIRECT, ()


def _is_ours(variant: Variant, settings: FleetSettings) -> bool:
    if variant.deleting or (settings.watch_namespace and variant.key.namespace != settings.watch_namespace):
        return False
    return variant.labels.get(INSTANCE_LABEL) == (settings.controller_instance or None)


def excluded_namespaces(fleet: Fleet, settings: FleetSettings) -> frozenset[str]:
    """Namespaces whose annotation keeps this controller out."""
    return frozenset(
        name
        for name, namespace in fleet.namespaces.items()
        if namespace.annotations.get(EXCLUDE_ANNOTATION) == "true" and name != settings.watch_namespace
    )


def _refusal(seen: Observation, excluded: frozenset[str]) -> Proposed | None:
    variant = seen.variant
    if variant.key.namespace in excluded:
        excluding = Explanation(Reason.EXCLUDED, namespace=variant.key.namespace, annotation=EXCLUDE_ANNOTATION)
        return keep(seen, excluding)._replace(publish=False)
    if variant.problem is not None:
        return keep(seen, Explanation(Reason.INVALID, problem=variant.problem))
    if variant.form != "saturation" and variant.slo is None:
        return keep(seen, Explanation(Reason.UNREADABLE_FORM))._replace(publish=seen.desired is not None)
    if seen.workload_id is None:
        field = "spec.scaleTargetRef" if variant.target is None else "spec.scaleTargetRef.name and .kind"
        missing = Explanation(Reason.NO_TARGET, field=field)
        return keep(seen, missing)._replace(target=ConditionValue("False", "TargetNotFound", missing), publish=False)
    return None


def _rejected(seen: Observation, elder: Observation) -> Proposed:
    why = Explanation(Reason.ALREADY_SCALED, workload=seen.workload_id, elder=elder.key)
    target = ConditionValue("True", "TargetFound", f"{seen.workload_id} exists")
    return keep(seen, why)._replace(target=target, publish=False)


def _target_unusable(seen: Observation, read_error: str | None) -> Proposed | None:
    workload, id_ = seen.workload, seen.workload_id
    if workload is not None and not workload.deleting:
        return None
    if workload is None and read_error is not None:
        why = Explanation(Reason.TARGET_UNREADABLE, workload=id_, error=read_error)
        return keep(seen, why, optimization="OptimizationFailed")._replace(target=ConditionValue.of("Unknown", why))
    why = Explanation(Reason.TARGET_MISSING if workload is None else Reason.TARGET_DELETED, workload=id_)
    return keep(seen, why, optimization="MetricsUnavailable")._replace(
        target=ConditionValue.of("False", why),
        publish=False,
        metrics=ConditionValue.of("False", Explanation(Reason.TARGET_NOT_MEASURED, problem=why)),
    )


def target_found(seen: Observation) -> ConditionValue:
    """Return the condition of a variant whose workload can be scaled."""
    return ConditionValue("True", "TargetFound", f"{seen.workload_id} found")
