"""What one tick knows of a variant before anything is decided. ``observe`` makes one ``Observation`` of each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from modelyard.autoscaling.configuration import Handling, Mode
from modelyard.autoscaling.decisions import UNBOUNDED, Bounds
from modelyard.autoscaling.fleet import UNRESOLVED, Consumer, Variant, pool_name
from modelyard.autoscaling.memory import VariantMemory
from modelyard.autoscaling.variants.objective import Objective
from modelyard.metrics.vocabulary import PodSignal
from modelyard.objects import Key, Notice, Pod, Workload, WorkloadId

Unit = tuple[PodSignal, Pod]
"""A reporting replica: its signals and the pod they come from (the leader of a group)."""


class Observation(NamedTuple):
    """One variant in this tick. Replica numbers are in the target's own unit; ``None`` is not known.

    ``current`` is the replicas there are, without ``surge``: the pods beyond ``spec`` that a rolling update runs.
    ``ready`` counts ready replicas, surge included, ``reporting`` those of them that report: a pod may also report
    before it is ready. ``desired`` was published last (``None``: never decided). ``other_models`` are models that its
    pods report and that are not the variant's. ``consumers_error`` says why there may be more ``consumers``.
    """

    key: Key
    variant: Variant
    handling: Handling
    mode: Mode
    memory: VariantMemory
    desired: int | None = None
    workload_id: WorkloadId | None = None
    workload: Workload | None = None
    consumers: Sequence[Consumer] = ()
    consumers_error: str | None = None
    bounds: Bounds = UNBOUNDED
    spec: int = 0
    current: int | None = None
    surge: int = 0
    ready: int | None = None
    pending: int = 0
    reporting: int = 0
    pods: Sequence[Pod] = ()
    units: Sequence[Unit] = ()
    other_models: Collection[str] = ()
    accelerator: str | None = None
    objective: Objective | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def gpus(self) -> int:
        """GPUs per replica; a template that asks for none counts as what the SLO form says, else as one."""
        if self.workload is not None and self.workload.gpus:
            return self.workload.gpus
        return self.variant.slo.accelerator_count if self.variant.slo is not None else 1

    @property
    def accelerator_name(self) -> str:
        return self.accelerator or UNRESOLVED

    @property
    def pool(self) -> str:
        """The pool of GPUs that the variant draws from; ``""`` when its accelerator is not known."""
        resource = self.workload.gpu_resource if self.workload is not None else ""
        return pool_name(self.accelerator, resource) if self.accelerator else ""

    @property
    def pods_per_replica(self) -> int:
        return self.workload.pods_per_replica if self.workload is not None else 1

    def without_surge(self) -> Observation:
        """Return the observation without the pods beyond ``spec.replicas``: of a rolling update, or about to go."""
        # If they counted, desired would follow them up, and the next surge would be a share of that.
        if self.current is None or self.current <= self.spec:
            return self
        return self._replace(surge=self.current - self.spec, current=self.spec)
