"""What a decision is made from: one picture of the fleet at one instant.

Plain values only; ``None`` always means "not known", never zero. Times are seconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from modelyard.autoscaling.configuration import ConfigMaps
from modelyard.autoscaling.fleet.binding_view import BindingView
from modelyard.autoscaling.memory import VariantMemory
from modelyard.metrics.vocabulary import Signals
from modelyard.objects import Condition, Key, Namespace, Node, OwnerRef, Pod, TargetRef, Workload, WorkloadId

Workloads = Mapping[WorkloadId, Workload]


@dataclass(frozen=True, slots=True)
class SLOSpec:
    """The SLO form's part of a variant as written, neither parsed nor checked.

    ``class_name`` and ``class_key`` are ``sloClassRef``; ``decode``, ``prefill`` map text to text. ``max_batch`` limits
    concurrent requests; ``accelerator_count`` is per replica; ``engine`` is its α, β, γ and δ, where the object has it.
    """

    variant_id: str
    accelerator: str
    accelerator_count: int
    class_name: str
    class_key: str
    decode: Mapping[str, str]
    prefill: Mapping[str, str]
    max_batch: int
    engine: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """One VariantAutoscaling: one model on one workload with one accelerator and cost.

    ``status_replicas`` is ``None`` when the object was never decided (``lastRunTime`` null), which is not the same as
    decided zero. ``cost`` is already parsed (10.0 when absent or unparsable).
    ``problem`` carries what is wrong with the object itself (it does not parse, for example), ``ignored`` its fields
    that have no effect; ``memory_problem`` that its remembered state was unreadable and starts afresh.
    """

    key: Key
    uid: str
    generation: int
    resource_version: str
    created: float
    model_id: str
    target: TargetRef | None
    cost: float
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    form: str = "saturation"
    status_replicas: int | None = None
    status_accelerator: str | None = None
    last_run: float | None = None
    conditions: tuple[Condition, ...] = ()
    memory: VariantMemory = field(default_factory=VariantMemory)
    problem: str | None = None
    ignored: str = ""
    memory_problem: str | None = None
    slo: SLOSpec | None = None
    status: Mapping[str, Any] = field(default_factory=dict)


def shared_models(variants: Iterable[Variant]) -> frozenset[str]:
    """Return the models that variants of several namespaces serve."""
    namespaces: dict[str, set[str]] = {}
    for variant in variants:
        if not variant.deleting:
            namespaces.setdefault(variant.model_id, set()).add(variant.key.namespace)
    return frozenset(model for model, spaces in namespaces.items() if len(spaces) > 1)


@dataclass(frozen=True, slots=True)
class Consumer:
    """An HPA or ScaledObject on a variant's gauge, its last ``desired``; ``managed``: for the later autoscaler."""

    key: Key
    kind: str
    target: WorkloadId
    minimum: int | None
    maximum: int | None
    desired: int | None = None
    managed: bool = False


@dataclass(frozen=True, slots=True)
class Fleet:
    """One instant of everything a tick decides on.

    ``workloads`` holds every target that exists and could be read; ``workload_errors`` says why one could not be read
    (a target in neither is missing). ``owners`` maps (namespace, kind, name) of intermediate owners (ReplicaSet) to
    their controller. ``consumers_error`` says why HPAs or ScaledObjects could not be listed. ``config_maps`` maps
    (namespace, name) to data.
    """

    now: float
    variants: tuple[Variant, ...] = ()
    workloads: Workloads = field(default_factory=dict)
    workload_errors: Mapping[WorkloadId, str] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    owners: Mapping[tuple[str, str, str], OwnerRef] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()
    nodes_error: str | None = None
    consumers: tuple[Consumer, ...] = ()
    consumers_error: str | None = None
    namespaces: Mapping[str, Namespace] = field(default_factory=dict)
    config_maps: ConfigMaps = field(default_factory=dict)
    signals: Signals = field(default_factory=Signals)
    bindings: tuple[BindingView, ...] = ()
