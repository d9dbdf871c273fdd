"""How the components of a service stand: what is ready of what was asked for, and why the rest is not. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from modelyard.workloads import names
from modelyard.workloads.changes import Identity, identity
from modelyard.workloads.diagnosis import Trouble, worst
from modelyard.workloads.values import Body, ChildObject
from modelyard.workloads.world import WORKLOADS, ServicePod, StoredChild

_KNATIVE = "serving.knative.dev"
COMPONENTS = (names.ENGINE, names.DECODER, names.ROUTER)


@dataclass(frozen=True, slots=True)
class ComponentStanding:
    """One component. ``ready``: it answers. ``rolled_out``: and all of it is as it was asked for.

    ``pods`` are those there are, the newest first, of which ``ready_pods`` are ready and ``wanted`` should be there.
    ``revision`` is what its workload calls the newest.
    """

    kind: str
    mode: str = ""
    exists: bool = False
    ready: bool = False
    rolled_out: bool = False
    ready_pods: int = 0
    wanted: int = 0
    revision: str = ""
    pods: tuple[ServicePod, ...] = ()
    trouble: Trouble | None = None

    @property
    def zero(self) -> bool:
        """Whether it is scaled to nothing, and so is ready without a pod."""
        return self.exists and self.wanted == 0

    @property
    def reason(self) -> str:
        """In one word, of the condition."""
        if self.zero:
            return "ScaledToZero"
        if self.ready:
            return "PodsReady"
        if not self.exists:
            return "NotDeployed"
        return self.trouble.reason if self.trouble is not None else "PodsNotReady"

    @property
    def message(self) -> str:
        """In words."""
        if not self.exists:
            return f"{self.kind}: nothing of it is there yet"
        if self.zero:
            return f"{self.kind}: scaled to zero"
        count = f"{self.kind}: {self.ready_pods} of {self.wanted} pods are ready"
        return count if self.trouble is None else f"{count}; {self.trouble.message}"


@dataclass(frozen=True, slots=True)
class _Workload:
    """What a workload says of itself; ``failure``: it cannot even make pods."""

    ready: bool
    current: bool
    pods: int
    revision: str = ""
    failure: Trouble | None = None


def is_workload(child: StoredChild) -> bool:
    """Whether pods come of it."""
    return child.kind.kind in WORKLOADS or child.kind.group == _KNATIVE


def floor(children: Iterable[ChildObject], component: str) -> int:
    """The replicas below which a component counts as not ready: as few as it may have, at least one."""
    found = []
    for child in children:
        spec = child.body.get("spec") or {}
        if child.component == component:
            found += [spec.get("minReplicas"), spec.get("minReplicaCount")]
            found += [spec.get("replicas")] if child.kind in ("Deployment", "LeaderWorkerSet") else []
    return max([one for one in found if isinstance(one, int)] or [1])


def stand(
    kind: str,
    mode: str,
    workloads: Sequence[StoredChild],
    pods: Iterable[ServicePod],
    least: int,
    stale: Collection[Identity] = (),
    expected: int = 1,
) -> ComponentStanding:
    """How a component stands. ``stale`` are objects that do not say yet what they should; ``expected`` is how many
    workloads it should have.
    """
    seen = [_of(one.body, least) for one in workloads if one.kind.kind != "RayCluster"]
    mine = tuple(sorted((one for one in pods if not one.deleting), key=lambda one: (-one.created, one.key)))
    complete = bool(seen) and len(workloads) >= expected
    ready = complete and all(one.ready for one in seen)
    current = not any(identity(one.body) in stale for one in workloads) and all(one.current for one in seen)
    failures = [one.failure for one in seen if one.failure is not None]
    troubles = [*failures, *(one.trouble for one in mine if one.trouble is not None)]
    return ComponentStanding(
        kind,
        mode,
        bool(workloads),
        ready,
        ready and current,
        sum(one.ready for one in mine),
        sum(one.pods for one in seen),
        ", ".join(sorted({one.revision for one in seen if one.revision})),
        mine,
        worst(troubles),
    )


def _of(body: Body, least: int) -> _Workload:
    status, spec = body.get("status") or {}, body.get("spec") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    if str(body["apiVersion"]).startswith(_KNATIVE):
        held = (conditions.get("Ready") or {}).get("status") == "True"
        created, ready = status.get("latestCreatedRevisionName"), status.get("latestReadyRevisionName")
        return _Workload(held, held and created == ready, 1, str(created or ""))
    replicas = _count(spec.get("replicas"), 1)
    observed = _count(status.get("observedGeneration")) >= _count(body["metadata"].get("generation"))
    updated, total = _count(status.get("updatedReplicas")), _count(status.get("replicas"))
    need = max(min(least, replicas), 1)
    if body["kind"] == "Deployment":
        up = _count(status.get("availableReplicas"))
        annotations = body["metadata"].get("annotations") or {}
        revision = str(annotations.get("deployment.kubernetes.io/revision") or "")
        size = 1
    else:
        up = _count(status.get("readyReplicas"))
        revision = str(status.get("updateRevision") or "")
        size = _count((spec.get("leaderWorkerTemplate") or {}).get("size"), 1)
        observed = observed or body["kind"] == "LeaderWorkerSet"  # which does not say what it has observed
    ready = replicas == 0 or up >= need
    current = observed and ready and total == updated >= min(need, replicas)
    failed = conditions.get("ReplicaFailure") or {}
    failure = None
    if failed.get("status") == "True":
        failure = Trouble(str(failed.get("reason") or "FailedCreate"), str(failed.get("message") or ""), final=True)
    return _Workload(ready, current, replicas * size, revision, failure)


def _count(value: Any, default: int = 0) -> int:
    return value if isinstance(value, int) else default
