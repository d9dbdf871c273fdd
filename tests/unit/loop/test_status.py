"""From a record to a status write: when one happens, and what it contains."""

import dataclasses

import pytest

from modelyard.autoscaling.decision import Action, DecisionRecord
from modelyard.autoscaling.fleet import Condition, Key, TargetRef, Variant
from modelyard.loop.status import needs_write, status_patch, timestamp

NOW = 1_763_690_400.0
READY = Condition("OptimizationReady", "True", "SaturationOnlyMode", "steady", 3, NOW - 500)


def variant(**changes: object) -> Variant:
    base = Variant(
        key=Key("chat", "llama"),
        uid="u1",
        generation=3,
        resource_version="7",
        created=NOW - 1000,
        model_id="llama",
        target=TargetRef("apps/v1", "Deployment", "llama"),
        cost=10.0,
        status_replicas=2,
        status_accelerator="H100",
        last_run=NOW - 10,
        applied=True,
        conditions=(READY,),
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def record(**changes: object) -> DecisionRecord:
    base = DecisionRecord(
        variant=Key("chat", "llama"),
        uid="u1",
        generation=3,
        resource_version="7",
        model_id="llama",
        workload=None,
        current=2,
        ready=2,
        reporting=2,
        desired_before=2,
        target=2,
        action=Action.NONE,
        decided=True,
        reason="Steady",
        message="steady",
        accelerator="H100",
        applied=True,
        conditions=(READY,),
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stored", "decided", "write"),
    [
        ({}, {}, False),
        ({}, {"target": 3}, True),
        ({}, {"accelerator": "A100"}, True),
        ({}, {"applied": False}, True),
        ({"last_run": None, "status_replicas": None}, {}, True),
        ({"last_run": NOW - 301}, {}, True),
        ({}, {"conditions": (dataclasses.replace(READY, reason="OptimizationSucceeded"),)}, True),
        ({}, {"conditions": (dataclasses.replace(READY, observed_generation=4),)}, True),
        ({}, {"conditions": (dataclasses.replace(READY, message="other"),)}, False),
        ({"last_run": NOW - 61}, {"conditions": (dataclasses.replace(READY, message="other"),)}, True),
        ({"conditions": ()}, {}, True),
        ({"last_run": None, "status_replicas": None}, {"target": None}, False),
    ],
)
def test_a_status_is_written_only_when_it_says_something_new(
    stored: dict[str, object], decided: dict[str, object], write: bool
) -> None:
    assert needs_write(record(**decided), variant(**stored), NOW, refresh=300) is write


def test_decided_zero_is_written_and_differs_from_never_decided() -> None:
    assert needs_write(record(target=0), variant(status_replicas=None, last_run=None), NOW, 300)
    assert not needs_write(record(target=0), variant(status_replicas=0), NOW, 300)


def test_the_allocation_is_complete_or_absent() -> None:
    patch = status_patch(record(accelerator=None), [], NOW)
    assert patch["desiredOptimizedAlloc"] == {
        "lastRunTime": timestamp(NOW),
        "variantID": None,
        "accelerator": "unresolved",
        "numReplicas": 2,
    }
    assert "desiredOptimizedAlloc" not in status_patch(record(target=None), [], NOW)


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
