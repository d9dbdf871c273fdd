"""The Kubernetes values that every part of Modelyard speaks of. ``None`` means "not known", never zero.

Times are seconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Key(NamedTuple):
    """Namespace and name of an object; the namespace of a cluster-scoped one is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def label(self) -> str:
        return str(self) if self.namespace else self.name


class TargetRef(NamedTuple):
    """A scale target: ``autoscaling/v1`` CrossVersionObjectReference. An empty ``api_version`` means ``apps/v1``."""

    api_version: str
    kind: str
    name: str

    @property
    def group(self) -> str:
        version = self.api_version or "apps/v1"
        return version.split("/")[0] if "/" in version else ""


class WorkloadId(NamedTuple):
    """Identity of a workload; the version is left out so that ``apps/v1`` and ``apps/v1beta1`` are one workload."""

    namespace: str
    group: str
    kind: str
    name: str

    @property
    def api_version(self) -> str:
        """What to ask discovery for: ``v1`` stands for whichever version of the group is served."""
        return f"{self.group}/v1" if self.group else "v1"

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Condition:
    """A status condition as Kubernetes writes it (``lastTransitionTime`` in epoch seconds)."""

    type: str
    status: str
    reason: str
    message: str
    observed_generation: int | None = None
    last_transition: float | None = None


class OwnerRef(NamedTuple):
    """The controller owner of an object."""

    api_version: str
    kind: str
    name: str
    uid: str


class ReplicaLimits(NamedTuple):
    """Replica bounds that the owner of a workload sets, in the workload's unit, with the fields that state them.

    ``required``: the owner states ``lower`` itself, so that a workload at zero is below its minimum. ``problem`` says
    why bounds may be missing.
    """

    lower: int = 0
    upper: int | None = None
    lower_from: str = ""
    upper_from: str = ""
    required: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """A scale target as observed. Replica numbers are in the target's own unit (a LeaderWorkerSet group is one).

    ``spec_replicas`` ``None`` counts as 1. ``ready`` ``None`` means the kind does not report it: count ready pods.
    ``gpus`` is GPUs per replica (container requests summed; 0 when the template asks for none or is unknown).
    ``pods_per_replica`` is above 1 for groups. ``node_selector`` is what the template asks for, affinity included.
    """

    id: WorkloadId
    uid: str
    spec_replicas: int | None
    status_replicas: int
    ready: int | None
    created: float = 0.0
    deleting: bool = False
    gpus: int = 0
    gpu_resource: str = ""
    pods_per_replica: int = 1
    selector: str = ""
    template_labels: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    engine_args: tuple[str, ...] = ()
    """Command and arguments of the container that runs the engine, after ``NAME=value`` of what it sets for it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: OwnerRef | None = None
    limits: ReplicaLimits | None = None
    """Replica bounds that the owner sets; ``None`` where it sets none, or there is no owner."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, reduced to what attribution, warm-up and the limiter need.

    ``ready_since`` is the Ready condition's last transition while it is true. ``gpus`` is
    max(largest init container, sum of containers), ``gpu_resource`` the resource they are asked for by.
    ``started`` changes when its containers start anew.
    """

    key: Key
    uid: str
    owner: OwnerRef | None
    created: float
    ready_since: float | None = None
    phase: str = "Pending"
    deleting: bool = False
    node: str = ""
    gpus: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    unschedulable: str = ""
    ip: str = ""
    started: str = ""
    gpu_resource: str = ""

    @property
    def ready(self) -> bool:
        return self.ready_since is not None and not self.deleting

    @property
    def has_ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Node:
    """A node with its allocatable accelerators by resource name (``nvidia.com/gpu`` ...)."""

    name: str
    labels: Mapping[str, str]
    gpus: Mapping[str, int]
    ready: bool = True
    schedulable: bool = True


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace's labels and annotations."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to tell the user as a Kubernetes Event. ``kind`` is ``Normal`` or ``Warning``."""

    reason: str
    message: str
    kind: str = "Normal"
