"""HPAs and ScaledObjects annotated for the later llm-d autoscaler, read as the variants that they describe. Pure.

From v0.8 on, that autoscaler takes its variants from annotations of the scaler instead of from VariantAutoscalings.
Source: the peers' page "llm-d autoscaling after VariantAutoscaling".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from modelyard.autoscaling.configuration import ACTUATION
from modelyard.autoscaling.fleet import ACCELERATOR_LABEL
from modelyard.objects import Object, WorkloadId, annotations_of, controller_of, mapping, mappings, shown, target_id
from modelyard.resources import VariantAutoscaling

MANAGED: Final = "llm-d.ai/managed"
MODEL_ID: Final = "llm-d.ai/model-id"
COST: Final = "llm-d.ai/variant-cost"
KINDS: Final = {"ScaledObject": "keda.sh", "HorizontalPodAutoscaler": "autoscaling"}
"""Kinds of annotated scalers with their groups. Of two that scale one workload the first one's kind wins."""
SUPPORTED: Final = {"Deployment": "apps", "LeaderWorkerSet": "leaderworkerset.x-k8s.io"}
"""Kinds of workloads that such a scaler may have."""
_NUMBER = re.compile(r"\d+(\.\d+)?", re.ASCII)
_VARIANT = re.compile(r"variant_name\s*=\s*[\"']([^\"']*)[\"']")


class AnnotationInvalid(ValueError):
    """An annotated scaler that describes no variant. The message names the annotation, its value and what to write."""


def is_managed(obj: Object) -> bool:
    """Return whether a scaler is annotated as a variant. KEDA copies annotations to the HPA of a ScaledObject."""
    kind, group = obj.get("kind"), str(obj.get("apiVersion", "")).partition("/")[0]
    if kind not in KINDS or KINDS[kind] != group or annotations_of(obj).get(MANAGED) != "true":
        return False
    owner = controller_of(obj)
    return owner is None or owner.kind != "ScaledObject"


def variant_manifest(scaler: Object) -> dict[str, Any]:
    """Return the VariantAutoscaling of an annotated scaler, which itself scales. Raises ``AnnotationInvalid``."""
    metadata, annotations = mapping(scaler.get("metadata")), annotations_of(scaler)
    model, cost = annotations.get(MODEL_ID), annotations.get(COST, "10.0")
    if not isinstance(model, str) or not model:
        raise AnnotationInvalid(
            f"annotation {MODEL_ID}: is missing; write the model's name as in model_name of its engine's metrics"
        )
    if not isinstance(cost, str) or not _NUMBER.fullmatch(cost):
        raise AnnotationInvalid(f'annotation {COST}: {shown(cost)} is no cost; write a number such as "40.0"')
    reference = _target_reference(scaler)
    kind, group = str(reference["kind"]), str(reference["apiVersion"]).partition("/")[0]
    if SUPPORTED.get(kind) != group or not isinstance(reference.get("name"), str):
        target = f"{reference['apiVersion']} {kind} {reference.get('name') or '(no name)'}"
        raise AnnotationInvalid(
            f"spec.scaleTargetRef: {target} cannot be a managed target; name a Deployment or a LeaderWorkerSet, or "
            "write a VariantAutoscaling for it"
        )
    labels = mapping(metadata.get("labels"))
    kept = {ACCELERATOR_LABEL: labels[ACCELERATOR_LABEL]} if ACCELERATOR_LABEL in labels else {}
    named = {key: metadata[key] for key in ("name", "namespace") if key in metadata}
    return {
        "apiVersion": VariantAutoscaling.api_version,
        "kind": VariantAutoscaling.kind,
        "metadata": {**named, **({"labels": kept} if kept else {}), "annotations": {ACTUATION: "signal"}},
        "spec": {
            "scaleTargetRef": {key: str(reference[key]) for key in ("apiVersion", "kind", "name")},
            "modelID": model,
            "variantCost": cost,
        },
    }


def target_of(namespace: str, manifest: Object) -> WorkloadId | None:
    """Return the workload that a VariantAutoscaling or a scaler in this namespace names."""
    reference = _target_reference(manifest)
    return target_id(namespace, reference) if reference.get("name") else None


def _target_reference(manifest: Object) -> dict[str, Any]:
    reference = mapping(mapping(manifest.get("spec")).get("scaleTargetRef"))
    stated = {key: value for key, value in reference.items() if value}
    return {"apiVersion": "apps/v1", "kind": "Deployment", **stated}


def gauge_remarks(scaler: Object) -> list[str]:
    """Report variants whose gauge a scaler reads under another name than its own: such a scaler gets no value."""
    spec = mapping(scaler.get("spec"))
    name = mapping(scaler.get("metadata")).get("name")
    variants = dict.fromkeys((*_of_metrics(spec.get("metrics")), *_of_triggers(spec.get("triggers"))))
    return [
        f"reads the desired replicas of {variant}, and its own are published as {name}; write variant_name {name}"
        for variant in variants
        if variant != name
    ]


def _of_metrics(metrics: Any) -> Iterator[str]:
    for metric in mappings(metrics):
        selector = mapping(mapping(mapping(metric.get("external")).get("metric")).get("selector"))
        variant = mapping(selector.get("matchLabels")).get("variant_name")
        if isinstance(variant, str):
            yield variant


def _of_triggers(triggers: Any) -> Iterator[str]:
    for trigger in mappings(triggers):
        query = mapping(trigger.get("metadata")).get("query")
        if isinstance(query, str) and "wva_desired_replicas" in query:
            yield from _VARIANT.findall(query)
