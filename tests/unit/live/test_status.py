"""From a record to a status write: when one happens, and what it contains."""

import dataclasses
from typing import Any

import pytest
from decisions import make_record

from modelyard.autoscaling.decisions.decision import CurrentAllocation, Decision, VariantDecision
from modelyard.autoscaling.fleet.fleet import Variant
from modelyard.autoscaling.fleet.kinds import VARIANTS
from modelyard.autoscaling.memory.variants import VariantMemory
from modelyard.autoscaling.plans.variant_plans import status_of, variant_plan
from modelyard.objects import Condition, Key, Notice, TargetRef
from modelyard.objects.parse import timestamp
from modelyard.reconcile.plans.plan import Subject
from modelyard.reconcile.plans.status import condition_body, patch
from modelyard.resources.llmd import VariantAutoscalingStatus

NOW = 1_763_690_400.0
READY = Condition("OptimizationReady", "True", "SaturationOnlyMode", "steady", 3, NOW - 500)


def variant(
    *,
    status_replicas: int | None = 2,
    status_accelerator: str = "H100",
    last_run: float | None = NOW - 10,
    applied: bool = True,
    status_current: dict[str, object] | None = None,
    conditions: tuple[Condition, ...] = (READY,),
) -> Variant:
    status: dict[str, Any] = {
        "actuation": {"applied": applied},
        "conditions": [condition_body(condition, NOW) for condition in conditions],
    }
    if last_run is not None:
        status["desiredOptimizedAlloc"] = {
            "lastRunTime": timestamp(last_run),
            "accelerator": status_accelerator,
            "numReplicas": status_replicas,
        }
    if status_current is not None:
        status["currentAlloc"] = status_current
        status["desiredOptimizedAlloc"]["variantID"] = status_current.get("variantID")
    return Variant(
        key=Key("chat", "llama"),
        uid="u1",
        generation=3,
        resource_version="7",
        created=NOW - 1000,
        model_id="llama",
        target=TargetRef("apps/v1", "Deployment", "llama"),
        cost=10.0,
        status=status,
        conditions=conditions,
    )


def needs_write(decision: VariantDecision, variant: Variant, now: float, refresh: float) -> bool:
    return variant_plan(decision, variant, {}, now, refresh).status is not None


def status_patch(decision: VariantDecision, existing: list[dict[str, Any]], now: float) -> dict[str, Any]:
    return patch(status_of(decision, now), {"conditions": existing}, now)


def record(*, conditions: tuple[Condition, ...] = (READY,), **fields: object) -> VariantDecision:
    subject = Subject(VARIANTS, Key("chat", "llama"), "u1", 3, "7")
    made = make_record(subject, **{"accelerator": "H100", "applied": True, **fields})
    return Decision(subject, (made,), VariantMemory(), conditions)


@pytest.mark.parametrize(
    ("stored", "decided", "write"),
    [
        ({}, {}, False),
        ({}, {"replicas": 3}, True),
        ({}, {"accelerator": "A100"}, True),
        ({}, {"applied": False}, True),
        ({"last_run": None, "status_replicas": None}, {}, True),
        ({"last_run": NOW - 301}, {}, True),
        ({}, {"conditions": (dataclasses.replace(READY, reason="OptimizationSucceeded"),)}, True),
        ({}, {"conditions": (dataclasses.replace(READY, observed_generation=4),)}, True),
        ({}, {"conditions": (dataclasses.replace(READY, message="other"),)}, False),
        ({"last_run": NOW - 61}, {"conditions": (dataclasses.replace(READY, message="other"),)}, True),
        ({"conditions": ()}, {}, True),
        ({"last_run": None, "status_replicas": None}, {"replicas": None}, False),
    ],
)
def test_a_status_is_written_only_when_it_says_something_new(
    stored: dict[str, object], decided: dict[str, object], write: bool
) -> None:
    assert needs_write(record(**decided), variant(**stored), NOW, refresh=300) is write


def test_decided_zero_is_written_and_differs_from_never_decided() -> None:
    assert needs_write(record(replicas=0), variant(status_replicas=None, last_run=None), NOW, 300)
    assert not needs_write(record(replicas=0), variant(status_replicas=0), NOW, 300)


def test_the_allocation_is_complete_or_absent() -> None:
    written = status_patch(record(accelerator=None), [], NOW)
    assert written["desiredOptimizedAlloc"] == {
        "lastRunTime": timestamp(NOW),
        "variantID": None,
        "accelerator": "unresolved",
        "numReplicas": 2,
    }
    assert "desiredOptimizedAlloc" not in status_patch(record(replicas=None), [], NOW)


def test_conditions_of_others_are_kept_in_place_and_ours_replaced() -> None:
    existing = [
        {
            "type": "Theirs",
            "status": "True",
            "reason": "X",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        },
        {"type": "OptimizationReady", "status": "False", "reason": "Old", "message": ""},
    ]
    conditions = status_patch(record(), existing, NOW)["conditions"]
    assert [c["type"] for c in conditions] == ["Theirs", "OptimizationReady"]
    assert conditions[0] == existing[0]
    assert conditions[1]["reason"] == "SaturationOnlyMode"
    assert conditions[1]["lastTransitionTime"] == timestamp(NOW - 500)


CURRENT = CurrentAllocation("org/llama-H100-2", "H100", 2, 64, 400.0)
STORED = {
    "variantID": "org/llama-H100-2",
    "accelerator": "H100",
    "numReplicas": 2,
    "maxBatch": 64,
    "variantCost": "400.00",
}
SLO = {"form": "slo", "variant_id": "org/llama-H100-2", "allocation": CURRENT}


def test_the_slo_form_says_what_there_is_and_for_which_variant() -> None:
    written = status_patch(record(**SLO), [], NOW)
    assert written["currentAlloc"] == STORED
    assert written["desiredOptimizedAlloc"]["variantID"] == "org/llama-H100-2"
    VariantAutoscalingStatus.model_validate(written)


@pytest.mark.parametrize(
    ("cost", "text"), [(0.0, "0.00"), (1e15, "1000000000000000.00"), (0.125, "0.12"), (40, "40.00")]
)
def test_costs_are_written_without_sign_or_exponent(cost: float, text: str) -> None:
    current = dataclasses.replace(CURRENT, cost=cost)
    written = status_patch(record(**{**SLO, "allocation": current}), [], NOW)
    assert written["currentAlloc"]["variantCost"] == text
    VariantAutoscalingStatus.model_validate(written)


def test_a_cost_that_is_no_number_leaves_the_present_out() -> None:
    current = dataclasses.replace(CURRENT, cost=float("inf"))
    assert status_patch(record(**{**SLO, "allocation": current}), [], NOW)["currentAlloc"] is None


@pytest.mark.parametrize(
    ("stored", "decided", "write"),
    [
        ({"status_current": STORED}, SLO, False),
        ({}, SLO, True),
        ({"status_current": {**STORED, "numReplicas": 3}}, SLO, True),
        ({"status_current": {**STORED, "variantCost": "200.00"}}, SLO, True),
        ({"status_current": STORED}, {**SLO, "allocation": None}, False),
        ({"status_current": STORED}, {}, True),
        ({}, {}, False),
        ({"status_current": {"numReplicas": 2}}, {}, False),
        ({"status_current": {"numReplicas": 3}}, {}, True),
    ],
)
def test_a_changed_present_is_written_and_one_that_is_not_known_stays(
    stored: dict[str, object], decided: dict[str, object], write: bool
) -> None:
    assert needs_write(record(**decided), variant(**stored), NOW, refresh=300) is write


def test_an_unknown_present_is_not_touched_and_a_former_slo_object_loses_it() -> None:
    assert "currentAlloc" not in status_patch(record(**{**SLO, "allocation": None}), [], NOW)
    written = status_patch(record(), [], NOW)
    assert written["currentAlloc"] == {**dict.fromkeys(STORED), "numReplicas": 2}
    assert written["desiredOptimizedAlloc"]["variantID"] is None


def test_the_saturation_form_tells_the_replicas_there_are_and_nothing_it_does_not_know() -> None:
    written = status_patch(record(), [], NOW)["currentAlloc"]
    assert {name: value for name, value in written.items() if value is not None} == {"numReplicas": 2}
    assert status_patch(record(current=None), [], NOW)["currentAlloc"] is None, "the workload is not there"


@pytest.mark.parametrize("form", [{}, SLO])
@pytest.mark.parametrize(
    ("resolved", "removed"), [("False", True), ("Unknown", False)], ids=["the workload is gone", "it could not be read"]
)
def test_the_present_of_a_workload_that_is_gone_is_removed(
    form: dict[str, object], resolved: str, removed: bool
) -> None:
    target = Condition("TargetResolved", resolved, "TargetNotFound", "Deployment chat/llama", 3, NOW)
    lost = record(conditions=(READY, target), **{**form, "current": None, "allocation": None})
    written = status_patch(lost, [], NOW)
    assert ("currentAlloc" in written) is removed
    assert written.get("currentAlloc") is None
    before = variant(status_current=STORED if form else {"numReplicas": 2}, conditions=(READY, target))
    assert needs_write(lost, before, NOW, refresh=300) is removed


@pytest.mark.parametrize("kind", ["SLOFeasible", "ProfileValid", "CapacityLimited", "ScaleFromZero"])
def test_conditions_of_the_slo_form_go_when_there_is_nothing_to_say(kind: str) -> None:
    stored = dataclasses.replace(READY, type=kind)
    assert needs_write(record(), variant(conditions=(READY, stored)), NOW, 300)
    existing = [{"type": kind, "status": "False", "reason": "X", "message": ""}]
    assert [c["type"] for c in status_patch(record(), existing, NOW)["conditions"]] == ["OptimizationReady"]


def test_fields_without_effect_are_told_on_the_object() -> None:
    ignored = "without effect: spec.priority: unknown field"
    decision = record()
    decision = decision._replace(subject=decision.subject._replace(ignored=ignored))
    plan = variant_plan(decision, variant(), {}, NOW, 300)
    assert plan.notices == (Notice("FieldsIgnored", ignored, "Warning"),)
    assert plan.status is not None
    assert plan.status.conditions[-1].type == "SpecWarning"
    assert variant_plan(record(), variant(), {}, NOW, 300).notices == ()
