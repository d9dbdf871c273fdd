"""Kubernetes objects as the API sends them, turned into the fleet's plain values.

Pure functions over dictionaries: no client, no clock. Thousands of pods pass here every tick, so nothing is validated
that the API server has validated already.
"""

from __future__ import annotations

from modelyard.autoscaling.configuration import ACTUATION, COMPATIBILITY, MAX_REPLICAS, MIN_REPLICAS
from modelyard.autoscaling.fleet import Consumer, SLOSpec, Variant, engine_of, provenance
from modelyard.autoscaling.memory import AUTOSCALING_STATE, VariantMemory
from modelyard.autoscaling.reading.managed import MANAGED
from modelyard.autoscaling.reading.prediction import ANNOTATION as PREDICTION
from modelyard.autoscaling.variants import HIGHEST
from modelyard.objects import (
    LONGEST_MODEL_NAME,
    Object,
    TargetRef,
    annotations_of,
    conditions,
    controller_of,
    cut,
    epoch,
    key_of,
    stored_status,
    target_id,
)
from modelyard.reconcile.plans import parse_memory
from modelyard.resources import WAKE_QUERY, ResourceInvalid, VariantAutoscaling
from modelyard.resources.field_effects import warning

READ = (MIN_REPLICAS, MAX_REPLICAS, ACTUATION, COMPATIBILITY, WAKE_QUERY, PREDICTION)
"""The annotations that are kept of a variant, besides its memory."""
MAX_ANNOTATION = 4096
"""Characters that are kept of each; what is longer is refused by whoever reads it."""
DEFAULT_COST = 10.0


def hpa(obj: Object) -> Consumer | None:
    """A HorizontalPodAutoscaler; one that KEDA made for a ScaledObject is left to that ScaledObject."""
    owner = controller_of(obj)
    if owner and owner.kind == "ScaledObject":
        return None
    spec, key = obj.get("spec") or {}, key_of(obj)
    minimum = spec.get("minReplicas")
    return Consumer(
        key=key,
        kind="HorizontalPodAutoscaler",
        target=target_id(key.namespace, spec.get("scaleTargetRef") or {}),
        minimum=1 if minimum is None else int(minimum),
        maximum=spec.get("maxReplicas"),
        desired=(obj.get("status") or {}).get("desiredReplicas"),
        managed=annotations_of(obj).get(MANAGED) == "true",
    )


def scaled_object(obj: Object) -> Consumer:
    """A KEDA ScaledObject, with KEDA's defaults (Deployment, 0 to 100)."""
    spec, key = obj.get("spec") or {}, key_of(obj)
    return Consumer(
        key=key,
        kind="ScaledObject",
        target=target_id(key.namespace, {"kind": "Deployment", **(spec.get("scaleTargetRef") or {})}),
        minimum=int(spec.get("minReplicaCount") or 0),
        maximum=int(spec.get("maxReplicaCount", 100)),
        managed=annotations_of(obj).get(MANAGED) == "true",
    )


def cost_of(text: str | None) -> float:
    """``variantCost`` as a number; 10.0 when absent, unreadable or absurd, like both paths of the reference should."""
    try:
        value = float(text) if text else DEFAULT_COST
    except ValueError:
        return DEFAULT_COST
    return value if 0 <= value <= HIGHEST else DEFAULT_COST


def slo_spec(obj: Object) -> SLOSpec | None:
    """What the SLO form adds, as written; ``None`` when so much of it is missing that nothing can be made of it."""
    spec = obj.get("spec") or {}
    profile = spec.get("variantProfile") or {}
    reference = spec.get("sloClassRef") or {}
    try:
        parameters = profile.get("perfParms") or {}
        decode = _numbers(parameters.get("decodeParms") or {}, "alpha", "beta")
        prefill = _numbers(parameters.get("prefillParms") or {}, "gamma", "delta")
        return SLOSpec(
            variant_id=cut(str(spec["variantID"]), LONGEST_MODEL_NAME),
            accelerator=cut(str(spec["accelerator"]), LONGEST_MODEL_NAME),
            accelerator_count=int(spec["acceleratorCount"]),
            class_name=str(reference.get("name") or ""),
            class_key=str(reference.get("key") or ""),
            decode=decode,
            prefill=prefill,
            max_batch=int(profile["maxBatchSize"]),
            engine=engine_of(provenance(obj), decode | prefill),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # the object's ``problem`` says what is wrong with it


def _numbers(given: Object, *names: str) -> dict[str, str]:
    return {name: cut(str(given[name]), LONGEST_MODEL_NAME) for name in names if name in given}


def variant(obj: Object, *, strict: bool = False) -> Variant:
    """A VariantAutoscaling, invalid ones with ``problem``; unknown fields are ignored, ``strict`` (files): wrong."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, stored_status(obj)
    problem = None
    try:
        VariantAutoscaling.parse(obj, unknown="forbid" if strict else "accept")
    except ResourceInvalid as error:
        problem = str(error)
    for field in ("modelID", "accelerator", "variantID"):
        if len(spec.get(field) or "") > LONGEST_MODEL_NAME:
            problem = f"spec.{field} has more than {LONGEST_MODEL_NAME} characters"
    annotations = metadata.get("annotations") or {}
    memory, damage = parse_memory(VariantMemory, AUTOSCALING_STATE, annotations.get(AUTOSCALING_STATE))
    reference = spec.get("scaleTargetRef") or {}
    target = None
    form = "slo" if spec.get("variantProfile") else "saturation"
    if reference.get("name") and reference.get("kind"):
        target = TargetRef(reference.get("apiVersion") or "", reference["kind"], reference["name"])
    elif form == "slo" and not reference:
        target = TargetRef("apps/v1", "Deployment", metadata["name"])
    allocation = status.get("desiredOptimizedAlloc") or {}
    decided = allocation.get("lastRunTime")
    return Variant(
        key=key_of(obj),
        uid=metadata.get("uid", ""),
        generation=int(metadata.get("generation") or 0),
        resource_version=metadata.get("resourceVersion", ""),
        created=epoch(metadata.get("creationTimestamp")),
        model_id=cut(spec.get("modelID") or "", LONGEST_MODEL_NAME),
        target=target,
        cost=cost_of(spec.get("variantCost")),
        labels=metadata.get("labels") or {},
        annotations={name: cut(annotations[name], MAX_ANNOTATION) for name in READ if name in annotations},
        deleting=bool(metadata.get("deletionTimestamp")),
        form=form,
        status_replicas=int(allocation.get("numReplicas") or 0) if decided else None,
        status_accelerator=cut(allocation.get("accelerator") or "", LONGEST_MODEL_NAME) or None,
        last_run=epoch(decided) if decided else None,
        conditions=conditions(status.get("conditions")),
        memory=memory,
        problem=problem,
        ignored=warning(VariantAutoscaling, obj),
        memory_problem=damage,
        slo=slo_spec(obj) if form == "slo" else None,
        status=status,
    )
