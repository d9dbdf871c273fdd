"""Which behaviour a policy has when parts of it are left out."""

from __future__ import annotations

from typing import Any

import pytest

from modelyard.autoscaling.bindings.defaults import (
    describe,
    effective,
    manifest,
    policy_view,
)
from modelyard.autoscaling.fleet.binding_view import Behaviour, DirectionLimits, Panic
from modelyard.resources.policies import AutoscalingPolicyBehavior
from modelyard.resources.registry import AutoscalingPolicy

UP = DirectionLimits(4, 100, 60, "Or", 0)
DOWN = DirectionLimits(0, 100, 60, "Or", 300)
OFF = Panic(0, 0, 200, 0)
SCHEMA_UP = DirectionLimits(1, 100, 15, "Or", 0)
SCHEMA_DOWN = DirectionLimits(1, 100, 15, "Or", 300)


def written(behaviour: dict[str, Any] | None) -> AutoscalingPolicy:
    spec: dict[str, Any] = {"metrics": [{"metricName": "waiting", "targetValue": "500m"}]}
    if behaviour is not None:
        spec["behavior"] = behaviour
    return AutoscalingPolicy.parse({"metadata": {"name": "p", "namespace": "ns", "generation": 4}, "spec": spec})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, Behaviour(UP, DOWN, OFF)),
        ({}, Behaviour(UP, DOWN, OFF)),
        ({"scaleUp": {"stablePolicy": {"instances": 2}}}, Behaviour(DirectionLimits(2, 100, 15, "Or", 0), DOWN, OFF)),
        ({"scaleDown": {}}, Behaviour(UP, SCHEMA_DOWN, OFF)),
        (
            {"scaleDown": {"percent": 10, "selectPolicy": "And", "stabilizationWindow": "0s"}},
            Behaviour(UP, DirectionLimits(1, 10, 15, "And", 0), OFF),
        ),
        ({"scaleUp": {}}, Behaviour(UP, DOWN, OFF)),
        ({"scaleUp": {"stablePolicy": {}}}, Behaviour(SCHEMA_UP, DOWN, OFF)),
        ({"scaleUp": {"panicPolicy": {"period": "0s"}}}, Behaviour(UP, DOWN, Panic(1000, 0, 200, 60))),
    ],
    ids=["absent", "empty", "up given", "down empty", "down given", "up empty", "stable empty", "panic given"],
)
def test_written_policies(given: dict[str, Any] | None, expected: Behaviour) -> None:
    assert effective(written(given).spec) == expected


def test_a_policy_of_empty_parts() -> None:
    given = {"scaleUp": {"stablePolicy": {}, "panicPolicy": {"period": "0s"}}, "scaleDown": {}}
    expected = Behaviour(SCHEMA_UP, SCHEMA_DOWN, Panic(1000, 0, 200, 60))
    assert effective(written(given).spec) == expected


def test_what_is_shown_is_a_valid_behaviour_and_means_the_same() -> None:
    for behaviour in (None, {"scaleUp": {"panicPolicy": {"period": "15s", "panicModeHold": "90s"}}}):
        policy = written(behaviour)
        shown = AutoscalingPolicyBehavior.model_validate(manifest(effective(policy.spec)))
        again = policy.spec.model_copy(update={"behavior": shown})
        assert effective(again) == effective(policy.spec)


def test_the_behaviour_in_words() -> None:
    assert describe(effective(written(None).spec)) == (
        "up by the larger of 4 or 100 % per 60 s, no delay; down by the larger of 0 or 100 % per 60 s, after 300 s; "
        "panic off"
    )
    careful = effective(written({"scaleDown": {"selectPolicy": "And"}}).spec)
    assert "down by the smaller of 1 or 100 % per 15 s" in describe(careful)
    shown = manifest(careful)
    assert shown["scaleDown"] == {
        "instances": 1,
        "percent": 100,
        "period": "15s",
        "selectPolicy": "And",
        "stabilizationWindow": "5m0s",
    }


def test_view_of_a_policy() -> None:
    view = policy_view(written(None))
    assert (str(view.key), view.generation, view.tolerance_percent) == ("ns/p", 4, 10)
    assert view.targets == {"waiting": 0.5}
