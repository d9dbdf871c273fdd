"""How a definition in the cluster differs from one to install, and what would be lost."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from modelyard.cluster.crd_install import differences
from modelyard.resources import KINDS
from modelyard.resources.crd import crd

OURS = crd(KINDS["networking.volcano.sh", "ModelServer"])
ALL = [crd(kind) for kind in KINDS.values()]


def told(installed: dict[str, Any], ours: dict[str, Any] = OURS) -> list[str]:
    return [str(one) for one in differences(installed, ours)]


def changed(path: str, value: Any = None) -> dict[str, Any]:
    """Ours with something set at a path (``None``: taken away), counted from the first version."""
    found = copy.deepcopy(OURS)
    inside: Any = found["spec"]["versions"][0]
    *steps, last = path.split("/")
    for step in steps:
        inside = inside[step]
    if value is None:
        del inside[last]
    else:
        inside[last] = value
    return found


SPEC = "schema/openAPIV3Schema/properties/spec"


def test_a_definition_does_not_differ_from_itself() -> None:
    assert [told(one, one) for one in ALL] == [[]] * len(ALL)


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        (changed(f"{SPEC}/properties/later", {"type": "string"}), "- v1alpha1.spec.later"),
        (
            changed(f"{SPEC}/properties/workloadSelector/properties/later", {"type": "string"}),
            "- v1alpha1.spec.workloadSelector.later",
        ),
        (changed(f"{SPEC}/x-kubernetes-preserve-unknown-fields", True), "- v1alpha1.spec: whatever is not declared"),
        (changed("schema", {}), "- v1alpha1: whatever is not declared"),
        (changed("subresources/scale", {"specReplicasPath": ".spec.replicas"}), "- v1alpha1 subresource scale"),
        (changed(f"{SPEC}/properties/kvConnector"), "+ v1alpha1.spec.kvConnector"),
        (
            changed(f"{SPEC}/properties/model/maxLength", 64),
            "~ v1alpha1.spec.model: maxLength 64 → 256",
        ),
    ],
)
def test_each_difference_is_told_once_with_its_place(installed: dict[str, Any], expected: str) -> None:
    found = told(installed)
    assert expected in found
    assert [one for one in found if one[0] == "-"] == [expected] * expected.startswith("-")


def test_versions_and_a_conversion_are_told() -> None:
    installed = copy.deepcopy(OURS)
    installed["spec"]["versions"].append({**installed["spec"]["versions"][0], "name": "v1beta1", "storage": False})
    installed["spec"]["conversion"] = {"strategy": "Webhook"}
    assert told(installed) == ["- conversion by Webhook", "- version v1beta1"]
    installed["spec"]["conversion"] = {"strategy": "None"}
    assert told(OURS, installed) == ["+ version v1beta1"]


def test_what_ours_keeps_whatever_it_is_loses_nothing() -> None:
    """Pods inside are free for us and spelt out in the definitions of peers."""
    ours = crd(KINDS["ome.io", "InferenceService"])
    theirs = copy.deepcopy(ours)
    engine = theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["engine"]
    engine["properties"]["runner"]["properties"]["securityContext"] = {"type": "object", "properties": {}}
    assert told(theirs, ours) == []


def test_what_a_server_drops_of_old_age_is_no_difference() -> None:
    def without_rules(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: without_rules(v) for k, v in value.items() if k != "x-kubernetes-validations"}
        return [without_rules(item) for item in value] if isinstance(value, list) else value

    assert [told(without_rules(one), one) for one in ALL] == [[]] * len(ALL)
