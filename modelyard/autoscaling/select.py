"""First stage of a tick: which VariantAutoscalings are this controller's, and which of them can be decided on.

Every variant that is ours gets a ``State``. Those that cannot be decided are settled here, each with the condition
that says why; the others are returned as active, in key order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import inf
from operator import attrgetter
from typing import NamedTuple

from modelyard.autoscaling.bounds import variant_bounds
from modelyard.autoscaling.budget import BEYOND, Ask, waiting_since, within_share
from modelyard.autoscaling.conditions import OPTIMIZATION_READY
from modelyard.autoscaling.fleet import Consumer, Fleet, Variant
from modelyard.autoscaling.handling import Handling, fleet_handling, handling_of
from modelyard.autoscaling.memory.variants import VariantMemory
from modelyard.autoscaling.settings import FleetSettings, Mode
from modelyard.autoscaling.sizing.learning import MOST_BATCH
from modelyard.autoscaling.variants.state import State
from modelyard.objects import Notice, Workload, WorkloadId
from modelyard.objects.documents import shown

INSTANCE_LABEL = "wva.llmd.ai/controller-instance"
EXCLUDE_ANNOTATION = "wva.llmd.ai/exclude"
MOST_TOGETHER = 100
"""Variants of one model in a namespace beyond which none of them is decided on."""
UNITS_OF_A_VARIANT = 1_000
UNITS_OF_A_SPEED = 7_000
"""Of a variant whose engines' speed was learnt, beside that."""
PASSES = 6
"""How often the states of a replica's queueing chain are looked at, one with the other."""


class Selected(NamedTuple):
    """``states`` are all variants of this controller in key order; ``active`` those to decide on."""

    states: list[State]
    active: list[State]


def select(fleet: Fleet, settings: FleetSettings) -> Selected:
    """Select, and settle what cannot be decided."""
    default = fleet_handling(settings)
    consumers: dict[WorkloadId, list[Consumer]] = defaultdict(list)
    for consumer in sorted(fleet.consumers, key=lambda c: (c.key, c.kind)):
        consumers[consumer.target].append(consumer)
    excluded = excluded_namespaces(fleet, settings)
    states: list[State] = []
    claims: dict[WorkloadId, list[State]] = {}
    for variant in sorted(fleet.variants, key=attrgetter("key")):
        if not _is_ours(variant, settings):
            continue
        try:
            state, claimed = _take(variant, default, fleet, consumers, excluded)
        except Exception as error:  # one object's failure must never stop another
            state, claimed = State(variant, default), None
            state.keep(
                "InvalidConfiguration", f"the object cannot be used: {type(error).__name__}: {shown(str(error))}"
            )
        states.append(state)
        if claimed is not None:
            claims.setdefault(claimed, []).append(state)
    active: list[State] = []
    for id_, claimants in claims.items():
        if len(claimants) > 1:
            claimants.sort(key=lambda s: (s.variant.created, s.name))
            for younger in claimants[1:]:
                _reject_younger(younger, claimants[0])
        if _target_usable(claimants[0], fleet.workload_errors.get(id_)):
            active.append(claimants[0])
    if len(active) > 1:
        active.sort(key=attrgetter("variant.key"))
    return Selected(states, _within_share(active))


def _within_share(active: list[State]) -> list[State]:
    """Those that are decided on: a model's variants in a namespace, which share its load, all of them or none."""
    models: dict[tuple[str, str], list[State]] = {}
    for state in active:
        models.setdefault((state.variant.key.namespace, state.variant.model_id), []).append(state)
    asks = [Ask(namespace, _units(states), min(map(_since, states))) for (namespace, _), states in models.items()]
    left_out: set[int] = set()
    for ask, states, granted in zip(asks, models.values(), within_share(asks), strict=True):
        if not granted:
            for state in states:
                state.keep(BEYOND, f"{ask.refusal}; replicas are kept")
            left_out |= set(map(id, states))
    return [state for state in active if id(state) not in left_out] if left_out else active


def _units(states: list[State]) -> float:
    """The work of deciding on the variants of a model."""
    if len(states) > MOST_TOGETHER:
        return inf
    chains = sum(min(state.variant.slo.max_batch, MOST_BATCH) for state in states if state.variant.slo is not None)
    learnt = sum(state.memory.slo is not None and state.memory.slo.speed is not None for state in states)
    return UNITS_OF_A_VARIANT * len(states) + UNITS_OF_A_SPEED * learnt + PASSES * chains


def _since(state: State) -> float:
    return waiting_since(state.variant.conditions, OPTIMIZATION_READY)


def _take(
    variant: Variant,
    default: Handling,
    fleet: Fleet,
    consumers: Mapping[WorkloadId, list[Consumer]],
    excluded: frozenset[str],
) -> tuple[State, WorkloadId | None]:
    """What the variant and its workload say, and the workload it claims if it can be decided."""
    state = State(variant, handling_of(variant.annotations, default) if variant.annotations else default)
    state.notices = state.handling.notices
    state.memory = variant.memory.not_after(fleet.now)
    if variant.last_run is not None:
        state.desired = variant.status_replicas
    target = variant.target
    if target is not None and target.name and target.kind:
        id_ = WorkloadId(variant.key.namespace, target.group, target.kind, target.name)
        state.workload_id = id_
        state.consumers_error = fleet.consumers_error
        _observe(state, fleet.workloads.get(id_), consumers.get(id_, ()))
    return state, None if _is_settled(state, excluded) else state.workload_id


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


def _observe(state: State, workload: Workload | None, consumers: list[Consumer] | tuple[()]) -> None:
    """Take over what the workload says. Current falls back to spec: replicas just asked for count as pending."""
    if workload is None:
        return
    state.workload = workload
    known = state.memory.workload_uid
    if known and workload.uid and known != workload.uid:
        # Deleted and made anew: what was desired of the old one says nothing about this one.
        state.desired = None
        state.memory = VariantMemory(scalings=state.memory.scalings, startup_seconds=state.memory.startup_seconds)
    state.spec = 1 if workload.spec_replicas is None else workload.spec_replicas
    state.current = (workload.status_replicas or state.spec) if state.spec > 0 else 0
    if not state.rules.counts_surge:
        leave_out_surge(state)
    state.ready = workload.ready
    limits = workload.limits
    if consumers or limits is not None or state.handling.lower is not None or state.handling.upper is not None:
        state.bounds, notices = variant_bounds(state.handling, consumers, limits)
        state.notices += notices
    if consumers:
        state.consumers = consumers
        if state.mode is Mode.DIRECT:
            state.mode = Mode.SIGNAL
            names = ", ".join(f"{c.kind} {c.key}" for c in consumers)
            text = f"{names} scales {workload.id}: not scaling it directly, only publishing the desired replicas"
            state.notices = (*state.notices, Notice("ConflictingScaler", text, "Warning"))
    if state.consumers_error is not None and state.mode is Mode.DIRECT:
        state.mode = Mode.SIGNAL
        text = (
            f"whether an HPA or ScaledObject scales {workload.id} is not known ({state.consumers_error}): not scaling "
            "it directly, only publishing the desired replicas; grant list on horizontalpodautoscalers (autoscaling) "
            "and scaledobjects (keda.sh)"
        )
        state.notices = (*state.notices, Notice("ScalersUnknown", text, "Warning"))


def leave_out_surge(state: State) -> None:
    """Pods beyond ``spec.replicas`` belong to a rolling update or are about to go: they are no replicas to plan with.

    Were they counted, desired would follow them up, and the next surge would be a share of that.
    """
    if state.current is not None and state.current > state.spec:
        state.surge = state.current - state.spec
        state.current = state.spec


def _is_settled(state: State, excluded: frozenset[str]) -> bool:
    variant = state.variant
    if variant.key.namespace in excluded:
        message = f"namespace {variant.key.namespace} is excluded by annotation {EXCLUDE_ANNOTATION}"
        state.keep("SkippedProcessing", message)
        state.publish = False
    elif variant.problem is not None:
        state.keep("InvalidConfiguration", variant.problem)
    elif variant.form != "saturation" and variant.slo is None:
        state.keep("InvalidConfiguration", "the object has a variantProfile, and its SLO form could not be read")
        state.publish = state.desired is not None
    elif state.workload_id is None:
        field = "spec.scaleTargetRef" if variant.target is None else "spec.scaleTargetRef.name and .kind"
        message = f"{field} must name the workload to scale"
        state.keep("InvalidConfiguration", message)
        state.target_resolved = ("False", "TargetNotFound", message)
        state.publish = False
    else:
        return False
    return True


def _reject_younger(state: State, elder: State) -> None:
    message = (
        f"{state.workload_id} is already scaled by VariantAutoscaling {elder.variant.key}, which is older; "
        "give each variant a workload of its own"
    )
    state.keep("InvalidConfiguration", message)
    state.target_resolved = ("True", "TargetFound", f"{state.workload_id} exists")
    state.publish = False


def _target_usable(state: State, read_error: str | None) -> bool:
    workload, id_ = state.workload, state.workload_id
    if workload is not None and not workload.deleting:
        state.target_resolved = ("True", "TargetFound", f"{id_} found")
        return True
    if workload is None and read_error is not None:
        message = f"{id_} could not be read: {read_error}; replicas are kept"
        state.target_resolved = ("Unknown", "TargetReadFailed", message)
        state.keep("TargetReadFailed", message, "OptimizationFailed")
        return False
    message = f"{id_} {'does not exist' if workload is None else 'is being deleted'}"
    state.target_resolved = ("False", "TargetNotFound", message)
    state.keep("TargetNotFound", message, "MetricsUnavailable")
    state.publish = False
    state.metrics = ("False", "MetricsUnavailable", f"{message}: there is nothing to measure")
    return False
