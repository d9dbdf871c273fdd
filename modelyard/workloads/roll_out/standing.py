"""How the components of a service stand: what is ready of what was asked for, and why the rest is not. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from modelyard.workloads.rendering import GROUP, Body, ChildObject, StoredChild, names
from modelyard.workloads.roll_out.changes import Identity, identity
from modelyard.workloads.roll_out.diagnosis import Trouble, worst
from modelyard.workloads.roll_out.world import KNATIVE, WORKLOADS, ServicePod

COMPONENTS = (names.ENGINE, names.DECODER, names.ROUTER)


@dataclass(frozen=True, slots=True)
class ComponentStanding:
    """One component. ``ready``: it answers. ``rolled_out``: and all of it is as it was asked for.

    ``pods`` are those there are, the newest first, of which ``ready_pods`` are ready and ``wanted`` should be there.
    ``revision`` is what its Deployment or Knative Service calls the newest; ``size`` is how many pods hold a copy of
    the model together.
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
    size: int = 1

    @property
    def zero(self) -> bool:
        """Whether it is scaled to nothing, and so is ready without a pod."""
        return self.exists and self.wanted == 0

    @property
    def reason(self) -> str:
        if self.zero:
            return "ScaledToZero"
        if self.ready:
            return "PodsReady"
        if not self.exists:
            return "NotDeployed"
        return self.trouble.reason if self.trouble is not None else "PodsNotReady"

    @property
    def hindrance(self) -> str:
        return f"{self.kind}: {self.trouble.message}" if self.trouble is not None else self.message

    @property
    def message(self) -> str:
        if not self.exists:
            return f"{self.kind}: nothing of it is there yet"
        if self.zero:
            return f"{self.kind}: scaled to zero"
        count = f"{self.kind}: {self.ready_pods} of {self.wanted} pods are ready"
        if self.trouble is None:
            return count
        # What is ready beside what is not has served before.
        which = "of the update: " if self.ready and not self.rolled_out else ""
        return f"{count}; {which}{self.trouble.message}"


@dataclass(frozen=True, slots=True)
class _Workload:
    ready: bool
    current: bool
    pods: int
    revision: str = ""
    failure: Trouble | None = None
    size: int = 1


def makes_pods(body: Body) -> bool:
    """Whether pods come of an object."""
    return body["kind"] in WORKLOADS or is_knative(body)


def is_knative(body: Body) -> bool:
    """Return whether an object is a Knative Service."""
    return str(body["apiVersion"]).startswith(f"{KNATIVE}/")


def is_workload(child: StoredChild) -> bool:
    """Whether pods come of it."""
    return makes_pods(child.body)


def in_turn(apply: Sequence[ChildObject], there: Iterable[StoredChild]) -> list[ChildObject]:
    """What may be written now: of groups of StatefulSets, which have no controller that would roll them out, those that
    do not serve, else one, and only while all others do."""
    stale = {identity(one.body) for one in apply}
    serving: dict[tuple[str, int], bool] = {}
    waiting: set[tuple[str, int]] = set()
    for child in there:
        if (group := _group(child.body)) is not None:
            is_stale, state = identity(child.body) in stale, _of(child.body, 1)
            waiting |= {group} if is_stale else set()
            serving[group] = serving.get(group, True) and state.ready and (is_stale or state.current)
    due = {group for group in waiting if not serving[group]}
    if not due and all(serving.values()):
        due = set(sorted(waiting)[:1])
    return [one for one in apply if (group := _group(one.body)) not in waiting or group in due]


def _group(body: Body) -> tuple[str, int] | None:
    labels = body["metadata"].get("labels") or {}
    number = str(labels.get(GROUP) or "")
    if body["kind"] != "StatefulSet" or not number.isdecimal():
        return None
    return str(labels.get(names.COMPONENT) or ""), int(number)


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
    """Return a component's state. ``stale``: objects not yet as asked for; ``expected``: workloads (0: no pods)."""
    seen = _observed([child.body for child in workloads], least)
    mine = tuple(sorted((one for one in pods if one.deleting is None), key=lambda one: (-one.created, one.key)))
    wanted = sum(one.pods for one in seen)
    if sum(one.ready for one in mine) >= wanted:  # those that are over have been made up for
        mine = tuple(one for one in mine if not one.over)
    if workloads and not mine and all(is_knative(one.body) for one in workloads) and all(one.ready for one in seen):
        wanted = 0  # Knative itself has scaled it to zero
    complete = (bool(seen) or not expected) and len(workloads) >= expected
    ready = complete and all(one.ready for one in seen)
    current = not any(identity(one.body) in stale for one in workloads) and all(one.current for one in seen)
    failures = [one.failure for one in seen if one.failure is not None]
    troubles = [*failures, *(one.trouble for one in mine if one.trouble is not None)]
    return ComponentStanding(
        kind,
        mode,
        bool(workloads) or not expected,
        ready,
        ready and current,
        sum(one.ready for one in mine),
        wanted,
        ", ".join(sorted({one.revision for one in seen if one.revision})),
        mine,
        worst(troubles),
        _copy_size([child.body for child in workloads]),
    )


def _copy_size(bodies: Sequence[Body]) -> int:
    sets = Counter(group for body in bodies if (group := _group(body)) is not None)
    sizes = [_ray_cluster(body).size for body in bodies if body["kind"] == "RayCluster"]
    sizes += [_of(body, 1).size for body in bodies if body["kind"] == "LeaderWorkerSet"]
    return max([1, *sizes, *sets.values()])


def _observed(bodies: Sequence[Body], least: int) -> list[_Workload]:
    """Return what workloads report. A Ray cluster's prober decides for it, and its pod serves nothing itself."""
    clusters = [body for body in bodies if body["kind"] == "RayCluster"]
    seen = [_of(body, least) for body in bodies if body["kind"] != "RayCluster"]
    if clusters and seen:
        seen = [replace(prober, pods=0) for prober in seen]
        return [*seen, *(replace(_ray_cluster(body), ready=True) for body in clusters)]
    return [*seen, *map(_ray_cluster, clusters)]


def _ray_cluster(body: Body) -> _Workload:
    """Return what KubeRay reports of a cluster: by conditions, in releases before 1.2 by ``status.state``."""
    status, spec = body.get("status") or {}, body.get("spec") or {}
    conditions = {entry.get("type"): entry for entry in status.get("conditions") or ()}
    groups = spec.get("workerGroupSpecs") or ()
    workers = sum(_count(group.get("replicas"), 1) * _count(group.get("numOfHosts"), 1) for group in groups)
    size = 1 + workers
    pods = 0 if spec.get("suspend") is True else size
    head = conditions.get("HeadPodReady")
    is_up = head.get("status") == "True" if head is not None else status.get("state") == "ready"
    serving = _count(status.get("readyWorkerReplicas"), _count(status.get("availableWorkerReplicas")))
    observed = _count(status.get("observedGeneration")) >= _count(body["metadata"].get("generation"))
    failed, failure = conditions.get("RayClusterReplicaFailure") or {}, None
    if failed.get("status") == "True" or status.get("state") == "failed":
        reason = str(failed.get("reason") or "RayClusterFailed")
        failure = Trouble(reason, str(failed.get("message") or status.get("reason") or ""), final=True)
    ready = pods == 0 or (is_up and serving >= workers)
    return _Workload(ready, ready and observed, pods, failure=failure, size=size)


def _of(body: Body, least: int) -> _Workload:
    status, spec = body.get("status") or {}, body.get("spec") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    observed = _count(status.get("observedGeneration")) >= _count(body["metadata"].get("generation"))
    if is_knative(body):
        held = (conditions.get("Ready") or {}).get("status") == "True"
        created, ready = status.get("latestCreatedRevisionName"), status.get("latestReadyRevisionName")
        bad, failure = conditions.get("ConfigurationsReady") or {}, None
        if bad.get("status") == "False":
            reason, message = str(bad.get("reason") or "RevisionFailed"), str(bad.get("message") or "")
            failure = Trouble(reason, message, "FailedToLoad", final=True)
        return _Workload(held, held and observed and created == ready, 1, str(created or ""), failure)
    replicas = _count(spec.get("replicas"), 1)
    updated, total = _count(status.get("updatedReplicas")), _count(status.get("replicas"))
    need = max(min(least, replicas), 1)
    if body["kind"] == "Deployment":
        up = _count(status.get("availableReplicas"))
        annotations = body["metadata"].get("annotations") or {}
        revision = str(annotations.get("deployment.kubernetes.io/revision") or "")
        size = 1
    else:
        up, revision = _count(status.get("readyReplicas")), ""
        size = _count((spec.get("leaderWorkerTemplate") or {}).get("size"), 1)
        observed = observed or body["kind"] == "LeaderWorkerSet"  # which does not say what it has observed
    ready = replicas == 0 or up >= need
    current = observed and ready and total == updated >= min(need, replicas)
    failed = conditions.get("ReplicaFailure") or {}
    failure = None
    if failed.get("status") == "True":
        failure = Trouble(str(failed.get("reason") or "FailedCreate"), str(failed.get("message") or ""), final=True)
    return _Workload(ready, current, replicas * size, revision, failure, size)


def _count(value: Any, default: int = 0) -> int:
    return value if isinstance(value, int) else default
