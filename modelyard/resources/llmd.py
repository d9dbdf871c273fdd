"""``llmd.ai/v1alpha1``: VariantAutoscaling, one model on one kind of accelerator, to be kept at the right size.

Two published references describe this kind with different required fields. One schema serves both: with
``variantProfile`` an object is in *SLO form* (sized from a performance profile against an SLO), without it in
*saturation form* (scaled by the load its replicas report). ``scaleTargetRef`` beside a profile is allowed and names
the workload; without it the SLO form scales the Deployment of its own name.

Source: the published llmd.ai/v1alpha1 references of both forms.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from modelyard.resources.base import AGE, Column, Part, Resource, StatusPart
from modelyard.resources.fields import Bool, Int32, StringMap, Time, optional
from modelyard.resources.references import CONDITIONS, Condition, CrossVersionObjectReference
from modelyard.resources.rules import Rule, unless

SLO_FIELDS = ("variantProfile", "variantID", "accelerator", "acceleratorCount", "sloClassRef")


def _ascii(text: str) -> str:
    if not text.isascii():
        raise ValueError("has digits other than 0 to 9; write it in ASCII")
    return text


Cost = Annotated[str, Field(pattern=r"^\d+(\.\d+)?$"), AfterValidator(_ascii)]


class ConfigMapKeyRef(Part):
    """One entry of a ConfigMap."""

    name: str = Field(min_length=1, description="Name of the ConfigMap.")
    key: str = Field(min_length=1, description="Key of the entry.")


class PerfParms(Part):
    """Parameters of the two straight lines that describe an engine's speed."""

    decode_parms: StringMap = Field(
        min_length=1,
        description="Decode line: inter-token latency = alpha + beta x batch size."
        " Keys alpha (ms) and beta (ms per request), numbers as text.",
    )
    prefill_parms: StringMap = Field(
        min_length=1,
        description="Prefill line: time to first token = gamma + delta x prompt tokens x batch size."
        " Keys gamma (ms) and delta (ms per token and request), numbers as text.",
    )


class VariantProfile(Part):
    """How fast one replica is."""

    perf_parms: PerfParms = Field(description="Measured parameters of prefill and decode.")
    max_batch_size: Int32 = Field(
        ge=1, description="Maximum concurrent requests of one replica (vLLM: --max-num-seqs)."
    )


class VariantAutoscalingSpec(Part):
    """What to scale, for which model, at which cost."""

    newer: ClassVar = {
        "minReplicas": "the annotation modelyard.dev/min-replicas",
        "maxReplicas": "the annotation modelyard.dev/max-replicas",
    }
    schema_extras: ClassVar = unless(
        {
            "anyOf": [
                {"required": list(SLO_FIELDS)},
                {"required": ["scaleTargetRef"], "not": {"required": ["variantProfile"]}},
            ]
        }
    )
    invariants: ClassVar = (
        Rule(
            "neither form is complete",
            "give scaleTargetRef (saturation form), or all of " + ", ".join(SLO_FIELDS) + " (SLO form)",
            lambda s: s.scale_target_ref is not None or s.variant_profile is not None,
            "has(self.scaleTargetRef) || has(self.variantProfile)",
        ),
        Rule(
            "with variantProfile the object is in SLO form, which is not complete",
            "add what is missing of variantID, accelerator, acceleratorCount, sloClassRef, or remove variantProfile",
            lambda s: (
                s.variant_profile is None
                or None not in (s.variant_id, s.accelerator, s.accelerator_count, s.slo_class_ref)
            ),
            "!has(self.variantProfile) || (has(self.variantID) && has(self.accelerator)"
            " && has(self.acceleratorCount) && has(self.sloClassRef))",
        ),
    )

    scale_target_ref: CrossVersionObjectReference | None = optional(
        "The workload to scale, in this namespace; anything with a scale subresource."
        " Required in saturation form. Default in SLO form: the Deployment of this object's name."
    )
    model_id: str = Field(
        alias="modelID", min_length=1, description="Name of the model, as in the engine's metrics (label model_name)."
    )
    variant_cost: Cost = Field(
        "10.0",
        description="Cost of one replica in any unit; only compared between variants of one model. Default: 10.0.",
    )
    variant_id: str | None = optional(
        "Business name as model-accelerator-count, such as meta/llama-3.1-8b-A100-4. SLO form only.",
        alias="variantID",
        min_length=1,
        pattern=r"^.+-[A-Za-z0-9]+-[1-9][0-9]*$",
    )
    accelerator: str | None = optional(
        "Accelerator of a replica, such as A100; the key to its price. SLO form only.", min_length=1
    )
    accelerator_count: Int32 | None = optional("Accelerators one replica uses. SLO form only.", ge=1)
    slo_class_ref: ConfigMapKeyRef | None = optional(
        "The ConfigMap entry that holds the SLO of the model. SLO form only."
    )
    variant_profile: VariantProfile | None = optional("Speed of one replica. Its presence puts the object in SLO form.")


class Allocation(StatusPart):
    """What the variant has now. In saturation form, as under newer definitions of this kind: the replicas alone."""

    variant_id: str | None = optional("The variant this is about. SLO form only.", alias="variantID", min_length=1)
    accelerator: str | None = optional("Accelerator in use. SLO form only.", min_length=1)
    num_replicas: Int32 = Field(ge=0, description="Existing replicas.")
    max_batch: Int32 | None = optional("Maximum concurrent requests of one replica. SLO form only.", ge=0)
    variant_cost: Cost | None = optional("Cost of the whole allocation per hour. SLO form only.")


class OptimizedAlloc(StatusPart):
    """What the variant should have."""

    last_run_time: Time | None = optional(
        "When this was last written. Absent or null: never decided, whatever numReplicas says."
    )
    variant_id: str | None = optional("The variant. SLO form only.", alias="variantID", min_length=1)
    accelerator: str = Field(min_length=2, description="Accelerator to run on.")
    num_replicas: Int32 = Field(ge=0, description="Replicas the variant should have; 0 when scaled to zero.")


class ActuationStatus(StatusPart):
    """What became of the decision."""

    applied: Bool = Field(description="Whether the workload has the decided number of replicas.")


class VariantAutoscalingStatus(StatusPart):
    """What was found and decided."""

    current_alloc: Allocation | None = optional("What the variant has now.")
    desired_optimized_alloc: OptimizedAlloc | None = optional("What the variant should have.")
    actuation: ActuationStatus | None = optional("What became of the decision.")
    conditions: list[Condition] | None = optional(
        "MetricsAvailable, OptimizationReady and others: whether scaling works, and if not, why.",
        json_schema_extra=CONDITIONS,
    )


class VariantAutoscaling(Resource):
    """Keeps one model on one kind of accelerator at the right size. Source: llmd.ai/v1alpha1, both forms."""

    api_version: ClassVar = "llmd.ai/v1alpha1"
    plural: ClassVar = "variantautoscalings"
    short_names: ClassVar = ("va",)
    columns: ClassVar = (
        Column("Target", ".spec.scaleTargetRef.name"),
        Column("Model", ".spec.modelID"),
        Column("VariantID", ".spec.variantID"),
        # The first of them that there is, status before spec: a path has no other way to say "or".
        Column("Accelerator", "..['status','spec']..accelerator"),
        Column("CurrentReplicas", ".status.currentAlloc.numReplicas", "integer"),
        Column("Optimized", ".status.desiredOptimizedAlloc.numReplicas", "integer"),
        Column("MetricsReady", '.status.conditions[?(@.type=="MetricsAvailable")].status'),
        Column("Why", '.status.conditions[?(@.type=="OptimizationReady")].message', priority=1),
        AGE,
    )

    spec: VariantAutoscalingSpec = Field(description="What to scale.")
    status: VariantAutoscalingStatus | None = optional("What was decided. Written by the autoscaler.")
