"""What keeps a backend's pods: objects that every cluster has, and a LeaderWorkerSet where it is served. Pure.

One pod to an instance: a Deployment. Several: a LeaderWorkerSet, else for each group a headless Service and a
StatefulSet for each pod. Roles that run apart: a Deployment for each role of each group; where a policy scales the
roles there is one group.

Source: Kthena Model controller reference, "Mapping onto what every cluster has".
"""

from __future__ import annotations

from typing import Final

from modelyard.resources import ModelWorker
from modelyard.workloads.kthena.files import BackendFiles
from modelyard.workloads.kthena.setup import LWS, OF_GROUP, Setup, role_of
from modelyard.workloads.kthena.templates import selecting, template
from modelyard.workloads.rendering import (
    WORKER_INDEX,
    Body,
    PodDraft,
    fitting,
    group_member,
    headless_service,
    in_group,
    label_value,
    member_set,
)

DEPLOYMENT, GROUPS, LEADER_WORKER_SET, ROLES = "Deployment", "Groups", "LeaderWorkerSet", "Roles"
"""How a backend is kept: ``Groups`` are StatefulSets, ``Roles`` Deployments, of each group."""
_PROGRESS: Final = 3900
"""Seconds in which a new pod may become ready: its start-up probe's patience, and some for its files."""


def mode(setup: Setup) -> str:
    """How the pods of a backend are kept."""
    if setup.disaggregated:
        return ROLES
    if setup.pods == 1:
        return DEPLOYMENT
    return LEADER_WORKER_SET if setup.lws else GROUPS


def workloads(setup: Setup, files: BackendFiles) -> list[Body]:
    """The workloads of a backend, and the Services by which the pods of a group find each other."""
    how = mode(setup)
    worker = setup.backend.workers[0]
    if how == DEPLOYMENT:
        return [_deployment(setup, files, worker, setup.name, label_value(setup.name))]
    if how == LEADER_WORKER_SET:
        return [_leader_worker_set(setup, files, worker)]
    groups = 1 if setup.governed else setup.backend.min_replicas
    if how == GROUPS:
        instances = groups * (worker.replicas or 1)
        return [body for number in range(instances) for body in _group(setup, files, worker, number)]
    return [
        _deployment(setup, files, one, role_name(setup, number, role_of(one)), fitting(f"{setup.name}-{number}"))
        for number in range(groups)
        for one in setup.backend.workers
    ]


def role_name(setup: Setup, group: int, role: str) -> str:
    """The Deployment of a role of a group."""
    return fitting(f"{setup.name}-{group}-{role}")


def bounds(setup: Setup, worker: ModelWorker) -> tuple[int, int]:
    """Fewest and most replicas of the workload of a worker."""
    each = worker.replicas or 1
    return setup.backend.min_replicas * each, setup.backend.max_replicas * each


def _replicas(setup: Setup, worker: ModelWorker, name: str) -> int | None:
    """``None`` leaves ``spec.replicas`` to whoever scales the workload, by the backend's policy within its bounds."""
    there = setup.existing.replicas.get(name)
    if worker.type not in ("server", "prefill", "decode"):
        return worker.replicas or 1
    if there is not None and not setup.existing.scaled.isdisjoint((name, setup.name)):
        return None
    if setup.disaggregated and not setup.governed:
        return worker.replicas or 1
    least, most = bounds(setup, worker)
    if not setup.governed or there is None:
        return least
    return None if least <= there <= most else min(max(there, least), most)


def _deployment(setup: Setup, files: BackendFiles, worker: ModelWorker, name: str, group: str) -> Body:
    pods = template(setup, files, worker, group)
    spec: Body = {
        "progressDeadlineSeconds": _PROGRESS,
        "selector": {"matchLabels": selecting(pods["metadata"]["labels"])},
        # Accelerators are scarce: the place of an old pod is needed for the new one.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
        "template": pods,
    }
    return _scaled(setup, "apps/v1", "Deployment", worker, name, spec)


def _leader_worker_set(setup: Setup, files: BackendFiles, worker: ModelWorker) -> Body:
    group = label_value(setup.name)
    spec: Body = {
        "leaderWorkerTemplate": {
            "size": setup.pods,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": template(setup, files, worker, group),
            "workerTemplate": template(setup, files, worker, group, entry=False),
        },
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0},
        },
        "startupPolicy": "LeaderCreated",
    }
    return _scaled(setup, LWS, "LeaderWorkerSet", worker, setup.name, spec)


def _scaled(setup: Setup, version: str, kind: str, worker: ModelWorker, name: str, spec: Body) -> Body:
    found = {"apiVersion": version, "kind": kind, "metadata": setup.metadata(name), "spec": spec}
    replicas = _replicas(setup, worker, name)
    return found if replicas is None else {**found, "spec": {"replicas": replicas, **spec}}


def _group(setup: Setup, files: BackendFiles, worker: ModelWorker, number: int) -> list[Body]:
    home, first = group_member(setup.name, number), group_member(setup.name, number, 0)
    address = f"{first}-0.{home}.{setup.model.namespace}"
    of_group = {f"{OF_GROUP}/name": label_value(setup.name), f"{OF_GROUP}/group-name": home}
    found = [headless_service(setup.metadata(home), of_group)]
    for index in range(setup.pods):
        pods = template(setup, files, worker, home, entry=index == 0)
        labels = {**pods["metadata"]["labels"], WORKER_INDEX: str(index)}
        one = in_group(PodDraft(pods["spec"], "engine"), address, setup.pods, index)
        metadata, selector = setup.metadata(group_member(setup.name, number, index)), selecting(labels)
        pod = {"metadata": {"labels": labels}, "spec": one.spec}
        found.append(member_set(metadata, home, {**selector, WORKER_INDEX: str(index)}, pod))
    return found
