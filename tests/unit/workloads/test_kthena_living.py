"""A Model's children as they live: what is written, which adapters are loaded."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from typing import Any

import pytest
from kthena_models import UID, a_backend, a_model, children, names, rendered_named

from modelyard.workloads.kthena import adapters
from modelyard.workloads.kthena.files import AdapterFiles
from modelyard.workloads.kthena.setup import Existing
from modelyard.workloads.roll_out.changes import changes, says

# Create or update


def stored(body: dict[str, Any], uid: str = UID) -> dict[str, Any]:
    """As the API sends it: with what the server adds."""
    found = copy.deepcopy(body)
    owner = {"apiVersion": "v1", "kind": "Model", "name": "chat", "uid": uid, "controller": True}
    found["metadata"] |= {"ownerReferences": [owner], "uid": "u", "generation": 1}
    found["metadata"]["labels"]["added"] = "by somebody"
    found.setdefault("spec", {})["added"] = {"by": "the server"}
    return found


@pytest.mark.parametrize("name", names())
def test_what_is_as_it_should_be_is_left_alone(name: str) -> None:
    found = rendered_named(name)
    there = [stored(child.body) for child in found.children]
    assert changes(UID, found.children, there) == changes(UID, (), ())
    assert changes(UID, found.children, ()).apply == found.children


def test_drift_is_written_over_and_an_autoscalers_replicas_are_not() -> None:
    found = children(a_model())
    there = [stored(child.body) for child in found.children]
    there[0]["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    assert [child.name for child in changes(UID, found.children, there).apply] == ["chat-main"]
    policy = {"metrics": [{"metricName": "x", "targetValue": 1}]}
    scaled = a_model(a_backend(minReplicas=1, maxReplicas=3, autoscalingPolicy=policy))
    first = children(scaled)
    there = [stored(child.body) for child in first.children]
    there[0]["spec"]["replicas"] = 3
    later = children(scaled, existing=Existing({"chat-main": 3}))
    assert changes(UID, later.children, there).apply == ()


def test_what_is_rendered_no_more_goes_and_only_what_is_owned() -> None:
    both, one = children(a_model(a_backend(name="a"), a_backend(name="b"))), children(a_model(a_backend(name="a")))
    there = [stored(child.body) for child in both.children]
    found = changes(UID, one.children, there)
    assert {(body["kind"], body["metadata"]["name"]) for body in found.delete} == {
        ("Deployment", "chat-b"),
        ("ModelServer", "chat-b"),
    }
    strangers = [stored(child.body, uid="other") for child in both.children]
    assert changes(UID, (), strangers).delete == ()


def test_two_models_that_want_one_name_are_told() -> None:
    """Model a with backend b-c, and Model a-b with backend c."""
    first = children(a_model(a_backend(name="b-c"), name="a"))
    second = children(a_model(a_backend(name="c"), name="a-b"))
    there = [stored(child.body, uid="of a") for child in first.children]
    found = changes("of a-b", second.children, there)
    assert [child.name for child in found.apply] == ["a-b"]
    assert found.conflicts[0].startswith("Deployment a-b-c belongs to Model chat")


def test_an_orphan_is_not_taken_over() -> None:
    found = children(a_model())
    orphans = [stored(child.body) for child in found.children]
    for one in orphans:
        del one["metadata"]["ownerReferences"]
    assert len(changes(UID, found.children, orphans).conflicts) == 3


def test_what_is_on_its_way_out_is_waited_for() -> None:
    found = children(a_model())
    there = [stored(child.body) for child in found.children]
    there[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert changes(UID, found.children, there).leaving == ("Deployment chat-main",)


@pytest.mark.parametrize(
    ("there", "wanted", "same"),
    [
        ("1", 1, True),
        ("1000m", "1", True),
        ("1024Mi", "1Gi", True),
        ("1", 2, False),
        ("a", "b", False),
        (None, "", True),
        (None, {}, True),
        (None, [], True),
        (None, False, True),
        (None, True, False),
        (True, 1, False),
        ([1, 2], [1], False),
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ([{"name": "a", "value": "1"}, {"name": "b"}], [{"name": "b"}, {"name": "a", "value": "1"}], True),
        ([{"name": "a", "value": "1"}, {"name": "b"}], [{"name": "b"}, {"name": "a", "value": "2"}], False),
        ([{"name": "a"}, {"name": "a"}], [{"name": "a"}, {"name": "b"}], False),
        (
            [{"name": "v", "mountPath": "/b"}, {"name": "v", "mountPath": "/a"}],
            [{"mountPath": "/a"}, {"mountPath": "/b"}],
            True,
        ),
        ([{"name": []}, 7], [{"name": "a"}, {"name": "b"}], False),
    ],
)
def test_notations(there: Any, wanted: Any, same: bool) -> None:
    bodies = [{"metadata": {}, "spec": {"x": value}} for value in (there, wanted)]
    assert says(bodies[0], bodies[1]) is same


# Adapters


ONE, TWO = AdapterFiles("a", "hf://x/a", "/models/1"), AdapterFiles("b", "hf://x/b", "/models/2")


@pytest.mark.parametrize(
    ("there", "asked"),
    [
        ({}, ["load a", "load b"]),
        ({"a": "/models/1", "b": "/models/2"}, []),
        ({"a": "/models/1", "c": "/models/3"}, ["unload c", "load b"]),
        ({"a": "/models/old", "b": "/models/2"}, ["unload a", "load a"]),
        ({"a": "", "b": ""}, []),
    ],
)
def test_calls(there: dict[str, str], asked: list[str]) -> None:
    found = adapters.calls([ONE, TWO], there)
    verbs = {adapters.LOAD: "load", adapters.UNLOAD: "unload"}
    assert [f"{verbs[call.path]} {call.body['lora_name']}" for call in found] == asked
    assert all(call.fetch is not None and call.body["lora_path"] == call.fetch.path for call in found if call.fetch)


def test_an_engines_list_tells_adapters_from_models() -> None:
    page = {"data": [{"id": "m", "parent": None}, {"id": "a", "parent": "m", "root": "/models/1"}, 7, {"parent": "m"}]}
    assert adapters.loaded(page) == {"a": "/models/1"}
    assert adapters.loaded(None) == adapters.loaded({"data": "x"}) == {}


def test_a_list_of_adapters_stays_in_its_folder() -> None:
    entries = [asdict(one) for one in (ONE, TWO)]
    elsewhere = [{"name": "x", "source": "y", "path": path} for path in ("/etc", "/models/../etc", "/models")]
    hostile = [7, {}, *elsewhere]
    assert adapters.wanted(json.dumps([*hostile, *entries]), "/models") == (ONE, TWO)
    with pytest.raises(ValueError, match="no list"):
        adapters.wanted("{}", "/models")
