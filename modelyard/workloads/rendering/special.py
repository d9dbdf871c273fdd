"""Components that other controllers run, Knative Services and Ray clusters, and fast networking between nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modelyard.workloads.rendering import metadata, names
from modelyard.workloads.rendering.components import KNATIVE, RAY_CLUSTER, ServiceComponent
from modelyard.workloads.rendering.groups import PodGroup
from modelyard.workloads.rendering.pods import PORT, PodDraft, isolated, template, with_env
from modelyard.workloads.rendering.settings import ProberSettings, RdmaProfile
from modelyard.workloads.rendering.values import Body, Refusal

RDMA_PREFIX = "rdma.ome.io/"
"""Prefix of annotations that have fast networking injected into pods."""
RDMA, _PROFILE, _CONTAINER = (f"{RDMA_PREFIX}{name}" for name in ("auto-inject", "profile", "container-name"))
_AUTOSCALING = "autoscaling.knative.dev/"
_TAGS = "ome.io/enable-tag-routing"


def knative(
    one: ServiceComponent,
    pod: PodDraft,
    about: Body,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    status: Body,
) -> Body:
    """The Knative Service of a component; ``status`` names the revision with all requests, which a canary shares."""
    scaling = {
        "class": "kpa.autoscaling.knative.dev",
        "min-scale": one.least,
        "max-scale": one.most if one.spec.get("maxReplicas") else None,
        "target": one.spec.get("scaleTarget"),
        "metric": one.spec.get("scaleMetric"),
    }
    given = {_AUTOSCALING + name: str(value) for name, value in scaling.items() if value is not None}
    spec = dict(pod.spec)
    if (seconds := one.spec.get("timeoutSeconds")) is not None:
        spec |= {"timeoutSeconds": seconds, "responseStartTimeoutSeconds": seconds}
    if (most := one.spec.get("containerConcurrency")) is not None:
        spec["containerConcurrency"] = most
    latest: Body = {"latestRevision": True, "percent": 100}
    traffic = [latest]
    percent, before = one.spec.get("canaryTrafficPercent"), status.get("latestRolledoutRevision")
    if percent is not None and before:
        latest["percent"] = percent
        if percent < 100:
            old = {"revisionName": before, "latestRevision": False, "percent": 100 - percent, "tag": "prev"}
            traffic.append(old)
    if one.metadata.get(_TAGS) == "true":
        latest["tag"] = "latest"
    return {
        "apiVersion": KNATIVE[0],
        "kind": KNATIVE[1],
        "metadata": about,
        "spec": {"template": template(PodDraft(spec, pod.main), labels, {**given, **annotations}), "traffic": traffic},
    }


def ray_clusters(group: PodGroup, replicas: int, prober: ProberSettings) -> list[Body]:
    """A RayCluster per replica, its head the leader; with an image each has a prober, ready when the engine is."""
    head = _stopping(group.leader)
    result: list[Body] = []
    for number in range(replicas):
        name = names.group_member(group.component, number)
        made = template(head, group.labels, group.pod_annotations)
        spec: Body = {"headGroupSpec": {"rayStartParams": {}, "template": made}}
        if group.worker is not None:
            workers = dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), group.workers)
            made = template(_stopping(group.worker), group.worker_labels, group.worker_annotations)
            spec["workerGroupSpecs"] = [{"groupName": "wg", **workers, "rayStartParams": {}, "template": made}]
        about = group.metadata(name)
        result.append({"apiVersion": RAY_CLUSTER[0], "kind": RAY_CLUSTER[1], "metadata": about, "spec": spec})
        if prober.image:
            result.append(_prober(name, group.namespace, group.labels, prober))
    return result


def _stopping(pod: PodDraft) -> PodDraft:
    def change(container: Body) -> Body:
        hook = {"exec": {"command": ["/bin/sh", "-c", "ray stop"]}}
        return {**container, "lifecycle": {"preStop": hook, **(container.get("lifecycle") or {})}}

    return pod.with_container(change)


def _prober(cluster: str, namespace: str, labels: Mapping[str, str], settings: ProberSettings) -> Body:
    name = names.fitting(f"{cluster}-mnp")
    head = f"http://{cluster}-head-svc.{namespace}.svc.cluster.local:{PORT}"

    def probe(path: str, **more: int) -> Body:
        return {"httpGet": {"path": path, "port": PORT}, **more}

    container = {
        "name": "prober",
        "image": settings.image,
        "args": ["--vllm-endpoint", head, "--addr", f"0.0.0.0:{PORT}"],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": probe("/healthz"),
        "livenessProbe": probe("/readyz"),
        "startupProbe": probe(
            "/startupz",
            failureThreshold=settings.startup_failure_threshold,
            periodSeconds=settings.startup_period_seconds,
            timeoutSeconds=settings.startup_timeout_seconds,
            initialDelaySeconds=settings.startup_initial_delay_seconds,
        ),
        "resources": {
            "requests": {"cpu": settings.cpu_request, "memory": settings.memory_request},
            "limits": {"cpu": settings.cpu_limit, "memory": settings.memory_limit},
        },
    }
    mine = {names.APP: name}
    pod = PodDraft(isolated({"containers": [container], "automountServiceAccountToken": False}), "prober")
    # Only the component's own pods are found by both of its labels.
    others = {key: value for key, value in labels.items() if key != names.COMPONENT}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata.of(name, namespace, labels, {}),
        "spec": {"replicas": 1, "selector": {"matchLabels": mine}, "template": template(pod, {**others, **mine}, {})},
    }


def with_rdma(
    pod: PodDraft, annotations: Mapping[str, str], profiles: Mapping[str, RdmaProfile], path: str
) -> PodDraft:
    """The pod with what fast networking between nodes needs, where annotations ask for it. What it has stays.

    A pod without the container that they name stays as it is, as the published mutator leaves it.
    """
    if annotations.get(RDMA) != "true":
        return pod
    wanted = annotations.get(_PROFILE) or "oci-roce"
    if wanted not in profiles:
        problem, remedy = f"{wanted} is no profile", f"write one of {', '.join(sorted(profiles))}"
        raise Refusal("InvalidSpec", f"{path}.annotations[{_PROFILE}]", problem, remedy)
    profile = profiles[wanted]
    name = annotations.get(_CONTAINER) or pod.main
    if name not in [one["name"] for one in pod.spec["containers"]]:
        return pod
    volumes = {"dshm": {"emptyDir": {"medium": "Memory"}}, "devinf": {"hostPath": {"path": profile.host_path}}}
    mounts = {"dshm": "/dev/shm", "devinf": profile.host_path}

    def change(container: Body) -> Body:
        context: dict[str, Any] = dict(container.get("securityContext") or {})
        added = list((context.get("capabilities") or {}).get("add") or ())
        added += [one for one in profile.capabilities if one not in added]
        context["capabilities"] = {**(context.get("capabilities") or {}), "add": added}
        context.setdefault("privileged", profile.privileged)
        known = list(container.get("volumeMounts") or ())
        taken = [value for one in known for value in (one.get("name"), one.get("mountPath"))]
        known += [{"name": n, "mountPath": at} for n, at in mounts.items() if n not in taken and at not in taken]
        missing = {name: profile.env[name] for name in sorted(profile.env)}
        return with_env({**container, "securityContext": context, "volumeMounts": known}, missing)

    there = list(pod.spec.get("volumes") or ())
    names_ = {one["name"] for one in there}
    there += [{"name": n, **source} for n, source in volumes.items() if n not in names_]
    changed = PodDraft({**pod.spec, "volumes": there}, name).with_container(change)
    return PodDraft(changed.spec, pod.main)
