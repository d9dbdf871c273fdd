"""Groups of pods that serve together: a LeaderWorkerSet, or without that what every cluster has. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from modelyard.workloads.rendering import metadata, names
from modelyard.workloads.rendering.pods import PodDraft, in_group, template
from modelyard.workloads.rendering.values import Body

LEADER_WORKER_SET: Final = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
_SCRAPE = tuple(f"prometheus.io/{name}" for name in ("path", "port", "scrape"))


def without_scraping(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations of workers: only the leader has metrics."""
    return {name: value for name, value in annotations.items() if name not in _SCRAPE}


@dataclass(frozen=True, slots=True)
class PodGroup:
    """What a group is made of: a leader and ``workers`` pods beside it, with the metadata of its objects and pods."""

    component: str
    namespace: str
    leader: PodDraft
    worker: PodDraft | None
    workers: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    pod_annotations: Mapping[str, str]
    selector: Mapping[str, str]
    """Labels that only pods of this component have."""
    worker_labels: Mapping[str, str]
    worker_annotations: Mapping[str, str]

    @property
    def size(self) -> int:
        return self.workers + 1 if self.worker is not None else 1

    def metadata(self, name: str, labels: Mapping[str, str] | None = None) -> Body:
        return metadata.of(name, self.namespace, {**self.labels, **(labels or {})}, self.annotations)


def leader_worker_set(group: PodGroup, replicas: int | None) -> Body:
    """One object for all groups; without ``replicas`` an autoscaler has them."""
    leader = template(group.leader, group.labels, group.pod_annotations)
    pods: Body = {"size": group.size, "restartPolicy": "RecreateGroupOnPodRestart"}
    if group.worker is None or group.size == 1:
        pods["workerTemplate"] = leader
    else:
        pods["leaderTemplate"] = leader
        pods["workerTemplate"] = template(group.worker, group.worker_labels, group.worker_annotations)
    spec: Body = {
        "leaderWorkerTemplate": pods,
        "networkConfig": {"subdomainPolicy": "Shared"},
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 1},
        },
        "startupPolicy": "LeaderCreated",
    }
    if replicas is not None:
        spec["replicas"] = replicas
    version, kind = LEADER_WORKER_SET
    metadata = group.metadata(names.group_set(group.component))
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


MOST_OBJECTS: Final = 64
"""Workloads of a component, or of a backend, whose groups are objects of their own."""
GROUP: Final = "modelyard.dev/group"
"""Label: the number of the group that a pod belongs to, where there is no LeaderWorkerSet."""


def stateful_sets(group: PodGroup, replicas: int) -> list[Body]:
    """The same without LeaderWorkerSet: for each group a headless Service, by which its pods find each other before
    they are ready, and a StatefulSet for each pod, since each knows its index and the leader has its own template."""
    return [body for number in range(replicas) for body in _one_group(group, number)]


def _one_group(group: PodGroup, number: int) -> list[Body]:
    home = names.group_member(group.component, number)
    own = {**group.selector, GROUP: str(number)}
    leader = names.group_member(group.component, number, 0)
    address = f"{leader}-0.{home}.{group.namespace}"
    result = [headless_service(group.metadata(home, {GROUP: str(number)}), own)]
    for index in range(group.size):
        base = group.leader if index == 0 or group.worker is None else group.worker
        numbers = {GROUP: str(number), names.WORKER_INDEX: str(index)}
        pod: Mapping[str, Any] = template(
            in_group(base, address, group.size, index),
            {**(group.labels if index == 0 else group.worker_labels), **numbers},
            group.pod_annotations if index == 0 else group.worker_annotations,
        )
        metadata = group.metadata(names.group_member(group.component, number, index), {GROUP: str(number)})
        result.append(member_set(metadata, home, {**own, names.WORKER_INDEX: str(index)}, pod))
    return result


def headless_service(metadata: Body, selector: Mapping[str, str]) -> Body:
    """The Service by which the pods of a group find each other before they are ready."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def member_set(metadata: Body, home: str, selector: Mapping[str, str], pod: Mapping[str, Any]) -> Body:
    """The StatefulSet of one pod of a group, whose headless Service is ``home``."""
    # In order, a pod that does not become ready would be waited for, and never replaced by a mended one.
    spec: Body = {"replicas": 1, "podManagementPolicy": "Parallel", "serviceName": home}
    spec |= {"selector": {"matchLabels": selector}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}
