"""Which pods are whose, and which of them are instances that can be measured. Pure.

An instance is the target's own unit: a pod, or a whole group of a LeaderWorkerSet. Only ready instances are measured;
an old restart does not make a pod count less, and one that is not ready never stops the others from counting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from modelyard.autoscaling.fleet import learn_startup
from modelyard.metrics.vocabulary import MetricsEndpoint
from modelyard.objects import Pod, Workload, parse_selector
from modelyard.reconcile.plans import Store

ENTRY_LABELS = ("modelinfer.volcano.sh/entry", "modelserving.volcano.sh/entry")
"""On pods of several to an instance: which of them takes requests and shows the metrics."""
LWS = "leaderworkerset.sigs.k8s.io"
TEMPLATE_HASH = "pod-template-hash"
OWNER = "owner"
"""The index of pods by ``owners_of``."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One ready instance and the pods of it that carry its metrics (none: no pod has the labels asked for)."""

    name: str
    endpoints: tuple[MetricsEndpoint, ...]


@dataclass(frozen=True, slots=True)
class TargetPods:
    """The instances of a target. ``unready`` counts those that exist, are wanted and are not ready."""

    instances: tuple[Instance, ...] = ()
    unready: int = 0
    startup_seconds: float | None = None
    problem: str | None = None


def target_pods(
    pods: Store[Pod], workload: Workload, match_labels: Mapping[str, str], known_startup: float | None
) -> TargetPods:
    """The pods of a target, by ownership; kinds that are not known, by the selector of their scale."""
    id_ = workload.id
    if (id_.group, id_.kind) in _KNOWN:
        owned = [pod for pod in pods.by(OWNER, (id_.namespace, id_.kind, id_.name)) if _same(pod, workload)]
    elif not workload.selector:
        text = f"the scale subresource of {id_} names no pod selector, so that its pods are not known"
        return TargetPods(problem=f"{text}; set status.selector through its controller")
    else:
        try:
            matches = parse_selector(workload.selector)
        except ValueError as error:
            return TargetPods(problem=f"the scale subresource of {id_} gives the selector {error}")
        owned = [pod for pod in pods.by("namespace", id_.namespace) if matches(pod.labels)]
    return _count(workload, owned, match_labels, known_startup)


_KNOWN = {("apps", "Deployment"), ("apps", "StatefulSet"), ("leaderworkerset.x-k8s.io", "LeaderWorkerSet")}


def owners_of(pod: Pod) -> Iterable[tuple[str, str, str]]:
    """The workloads that a pod says it belongs to, as (namespace, kind, name)."""
    owner = pod.owner
    if owner is None or not owner.api_version.startswith("apps/"):
        return
    if owner.kind == "ReplicaSet":
        # The Deployment's name, without listing ReplicaSets: it names them by itself and the hash on the pods.
        suffix = f"-{pod.labels.get(TEMPLATE_HASH)}"
        if owner.name.endswith(suffix):
            yield pod.key.namespace, "Deployment", owner.name.removesuffix(suffix)
    elif owner.kind == "StatefulSet":
        yield pod.key.namespace, "StatefulSet", owner.name
        if group := pod.labels.get(f"{LWS}/name"):
            yield pod.key.namespace, "LeaderWorkerSet", group


def _same(pod: Pod, workload: Workload) -> bool:
    """Excludes pods of a StatefulSet that was deleted and made again under its name."""
    if workload.id.kind != "StatefulSet" or pod.owner is None:
        return True
    return not workload.uid or not pod.owner.uid or workload.uid == pod.owner.uid


def _count(
    workload: Workload, pods: Sequence[Pod], match_labels: Mapping[str, str], known_startup: float | None
) -> TargetPods:
    pods = [pod for pod in pods if pod.phase != "Succeeded"]
    size = workload.pods_per_replica
    groups: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        name = pod.key.name
        groups[pod.labels.get(f"{LWS}/group-index", name) if size > 1 else name].append(pod)
    instances = []
    not_ready = 0
    for name, members in sorted(groups.items()):
        serving = [member for member in members if member.ready and member.phase == "Running"]
        if len(serving) >= size:
            entries = [pod for pod in _entries(serving) if match_labels.items() <= pod.labels.items()]
            pages = tuple(
                MetricsEndpoint(pod.uid, pod.started, pod.key.name, pod.ip, pod.key.namespace) for pod in entries
            )
            instances.append(Instance(name, pages))
        else:
            not_ready += 1
    spec = 1 if workload.spec_replicas is None else workload.spec_replicas
    # Pods on their way out and the surplus of a rolling update are no replicas that will come to help.
    unready = min(not_ready, max(0, spec - len(instances)))
    startup = learn_startup(known_startup, [pod for pod in pods if pod.ready])
    problem = None
    if match_labels and instances and not any(instance.endpoints for instance in instances):
        wanted = ",".join(f"{key}={value}" for key, value in sorted(match_labels.items()))
        problem = f"no ready pod of {workload.id} carries additionalMatchLabels {wanted}"
    return TargetPods(tuple(instances), unready, startup, problem)


def _entries(members: Sequence[Pod]) -> Sequence[Pod]:
    for label in ENTRY_LABELS:
        if any(label in member.labels for member in members):
            return [member for member in members if member.labels.get(label) == "true"]
    if len(members) > 1 and (leaders := [m for m in members if m.labels.get(f"{LWS}/worker-index") == "0"]):
        return leaders
    return members
