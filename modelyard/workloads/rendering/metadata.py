"""Labels and annotations of what is made for a service. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from modelyard.objects import MODE, texts
from modelyard.resources import InferenceService
from modelyard.workloads.rendering import names
from modelyard.workloads.rendering.components import ServiceComponent
from modelyard.workloads.rendering.files import ServedModel
from modelyard.workloads.rendering.values import Body

_NEVER: Final = (
    "kubectl.kubernetes.io/",
    "internal.ome.io/",
    "modelyard.dev/",
    "argocd.argoproj.io/",
    "meta.helm.sh/",
    "autoscaling.knative.dev/min-scale",
    "autoscaling.knative.dev/max-scale",
    "ome.io/deprecation-warning",
)
"""Annotations that are about the service itself, not about what is made for it."""
_STEERING: Final = (
    MODE,
    "ome.io/autoscalerClass",
    "ome.io/metrics",
    "ome.io/targetUtilizationPercentage",
    "ome.io/ingress-",
    "ome.io/service-type",
    "ome.io/load-balancer-ip",
    "ome.io/enable-",
    "autoscaling.keda.sh/",
    "service.beta.kubernetes.io/",
    "service.kubernetes.io/",
    "cloud.google.com/",
)
"""Annotations that say how children are made: on pods they would only start a roll-out when they change."""
_FOR_PODS: Final = (
    "k8s.grafana.com/",
    "loki.grafana.com/",
    "prometheus.io/",
    "networking.gke.io/",
    "rdma.ome.io/",
    "ome.io/inject-",
)
"""Annotations that on a Service would have its pods' metrics counted twice."""


@dataclass(frozen=True, slots=True)
class Marked:
    """Labels and annotations of a component's objects, its pods and its Service."""

    labels: dict[str, str]
    annotations: dict[str, str]
    pod_annotations: dict[str, str]
    service_annotations: dict[str, str]


def kept(annotations: Mapping[str, str], *without: str) -> dict[str, str]:
    """The annotations that begin with none of these, nor with those that stay on the service."""
    return {name: value for name, value in annotations.items() if not name.startswith((*_NEVER, *without))}


def selector(service: str, kind: str) -> dict[str, str]:
    """The labels that the pods of one component have and no others."""
    return {names.SERVICE: names.label_value(service), names.COMPONENT: kind}


def marked(
    service: InferenceService,
    one: ServiceComponent,
    model: ServedModel | None,
    weight: ServedModel | None,
    runtime: str,
    part: str = "",
) -> Marked:
    """Merge labels and annotations of service, component and its ``part`` (worker), later ones winning; add ours."""
    metadata, own = service.metadata.model_dump(), (one.spec.get(part) or {}) if part else {}
    labels = {**texts(metadata.get("labels")), **texts(one.spec.get("labels")), **texts(own.get("labels"))}
    labels |= selector(service.name, one.kind)
    given = {**texts(metadata.get("annotations")), **texts(one.spec.get("annotations"))}
    given |= texts(own.get("annotations"))
    annotations = kept(given)
    labels["fine-tuned-serving"] = str(weight is not None).lower()
    if runtime:
        labels["serving-runtime"] = names.label_value(runtime)
        annotations["ome.io/serving-runtime"] = runtime
    if model is not None:
        labels["base-model-name"] = names.label_value(model.name)
        labels["base-model-size"] = names.label_value(model.category)
        labels["base-model-type"] = "Serving"
        if model.vendor:
            labels["base-model-vendor"] = names.label_value(model.vendor)
        kind, version = model.format
        about = {"name": model.name, "vendor": model.vendor, "format": kind, "format-version": version}
        annotations |= {f"ome.io/base-model-{name}": value for name, value in about.items() if value}
        annotations |= model.decryption
    if weight is not None:
        labels["fine-tuned-weight-ft-strategy"] = names.label_value(weight.strategy)
        labels["fine-tuned-serving-with-merged-weights"] = str(weight.merged).lower()
        annotations["ome.io/fine-tuned-weight-ft-strategy"] = weight.strategy
    labels |= _queue(annotations)
    return Marked(labels, annotations, kept(annotations, *_STEERING), kept(annotations, *_FOR_PODS))


def _queue(annotations: Mapping[str, str]) -> dict[str, str]:
    labels = {}
    cluster = annotations.get("ome.io/dedicated-ai-cluster", "")
    if queue := annotations.get("ome.io/volcano-queue", ""):
        labels["volcano.sh/queue-name"] = names.label_value(queue)
    elif cluster and "kueue-enabled" in annotations:
        labels["kueue.x-k8s.io/queue-name"] = names.label_value(cluster)
        labels["kueue.x-k8s.io/priority-class"] = "kueue-scheduling-high-priority"
    elif cluster:
        labels["volcano.sh/queue-name"] = names.label_value(cluster)
        labels["ray.io/priority-class-name"] = "volcano-scheduling-high-priority"
    if "volcano" in annotations:
        labels["ray.io/scheduler-name"] = "volcano"
    return labels


def of(name: str, namespace: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Body:
    """The ``metadata`` of a child."""
    found: Body = {"name": name, "namespace": namespace, "labels": dict(labels)}
    return {**found, "annotations": dict(annotations)} if annotations else found
