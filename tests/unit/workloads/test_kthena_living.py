"""A Model's children as they live: what is written, which adapters are loaded, which pods go, what is told."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from typing import Any

import pytest
from kthena_models import LWS, UID, a_backend, a_model, a_worker, children, model_named, names, refused, rendered_named

from modelyard.workloads.changes import changes, says
from modelyard.workloads.kthena import adapters, recovery, status
from modelyard.workloads.kthena.files import Adapter
from modelyard.workloads.kthena.recovery import GroupPod
from modelyard.workloads.kthena.setup import Existing
from modelyard.workloads.values import Refused, Rendered

MINE = {"registry.volcano.sh/model-uid": UID}


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
    assert changes(UID, found.children, there, MINE) == changes(UID, (), (), MINE)
    assert changes(UID, found.children, (), MINE).apply == found.children


def test_drift_is_written_over_and_an_autoscalers_replicas_are_not() -> None:
    found = children(a_model())
    there = [stored(child.body) for child in found.children]
    there[0]["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    assert [child.name for child in changes(UID, found.children, there, MINE).apply] == ["chat-main"]
    policy = {"metrics": [{"metricName": "x", "targetValue": 1}]}
    scaled = a_model(a_backend(minReplicas=1, maxReplicas=3, autoscalingPolicy=policy))
    first = children(scaled)
    there = [stored(child.body) for child in first.children]
    there[0]["spec"]["replicas"] = 3
    later = children(scaled, existing=Existing({"chat-main": 3}))
    assert changes(UID, later.children, there, MINE).apply == ()


def test_what_is_rendered_no_more_goes_and_only_what_is_owned() -> None:
    both, one = children(a_model(a_backend(name="a"), a_backend(name="b"))), children(a_model(a_backend(name="a")))
    there = [stored(child.body) for child in both.children]
    found = changes(UID, one.children, there, MINE)
    assert {(body["kind"], body["metadata"]["name"]) for body in found.delete} == {
        ("Deployment", "chat-b"),
        ("ModelServer", "chat-b"),
    }
    strangers = [stored(child.body, uid="other") for child in both.children]
    assert changes(UID, (), strangers, MINE).delete == ()


def test_two_models_that_want_one_name_are_told() -> None:
    """Model a with backend b-c, and Model a-b with backend c."""
    first = children(a_model(a_backend(name="b-c"), name="a"))
    second = children(a_model(a_backend(name="c"), name="a-b"))
    there = [stored(child.body, uid="of a") for child in first.children]
    found = changes("of a-b", second.children, there, {})
    assert [child.name for child in found.apply] == ["a-b"]
    assert found.conflicts[0].startswith("Deployment a-b-c belongs to Model chat")


def test_an_orphan_with_our_labels_is_taken_over_and_another_is_not() -> None:
    found = children(a_model())
    orphans = [stored(child.body) for child in found.children]
    for one in orphans:
        del one["metadata"]["ownerReferences"]
    assert changes(UID, found.children, orphans, MINE).apply == found.children
    assert len(changes(UID, found.children, orphans, {"registry.volcano.sh/model-uid": "x"}).conflicts) == 3


def test_what_is_on_its_way_out_is_waited_for() -> None:
    found = children(a_model())
    there = [stored(child.body) for child in found.children]
    there[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert changes(UID, found.children, there, MINE).leaving == ("Deployment chat-main",)


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
    ],
)
def test_notations(there: Any, wanted: Any, same: bool) -> None:
    bodies = [{"metadata": {}, "spec": {"x": value}} for value in (there, wanted)]
    assert says(bodies[0], bodies[1]) is same


# Adapters


ONE, TWO = Adapter("a", "hf://x/a", "/models/1"), Adapter("b", "hf://x/b", "/models/2")


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


# Recovery


def a_pod(name: str, **more: Any) -> GroupPod:
    fixed: dict[str, Any] = {"uid": name, "group": "g", "created": 0.0, "since": 5.0, "entry": name == "entry"}
    return GroupPod(name, **(fixed | more))


@pytest.mark.parametrize(
    ("pods", "now", "replaced", "due"),
    [
        ([a_pod("entry"), a_pod("w")], 999, False, None),
        ([a_pod("entry", ready=False, restarts=1, since=100), a_pod("w")], 159, False, 160),
        ([a_pod("entry", ready=False, restarts=1, since=100), a_pod("w")], 160, True, None),
        ([a_pod("entry"), a_pod("w", phase="Failed", ready=False, since=100)], 200, True, None),
        ([a_pod("entry", restarts=3), a_pod("w")], 999, False, None),
        ([a_pod("entry", ready=False, phase="Pending"), a_pod("w", ready=False, phase="Pending")], 999, False, None),
        ([a_pod("entry"), a_pod("w", deleting=True)], 1, True, None),
        ([a_pod("entry", deleting=True), a_pod("w", deleting=True)], 1, False, None),
        ([a_pod("entry", since=50), a_pod("w", created=60, since=61)], 62, True, None),
        ([a_pod("entry", ready=False, since=50), a_pod("w", created=60, since=61)], 62, False, None),
        ([a_pod("entry", ready=False, restarts=1, since=0)], 999, False, None),
    ],
)
def test_recovery(pods: list[GroupPod], now: float, replaced: bool, due: float | None) -> None:
    found = recovery.recover(pods, now)
    assert [one.group for one in found.replace] == (["g"] if replaced else [])
    assert found.due == due
    for one in found.replace:
        assert {pod.name for pod in one.pods} == {pod.name for pod in pods if not pod.deleting}
        assert one.reason


def test_a_group_that_was_replaced_is_not_replaced_again() -> None:
    """Made together at 100: the workers run at once, the entry pod is ready long after."""
    fresh = [a_pod("entry", created=100.0, since=400.0), a_pod("w", created=102.0, since=103.0)]
    for now in (101.0, 103.0, 400.0, 9999.0):
        seen = (
            [a_pod("entry", created=100.0, since=100.0, ready=False, phase="Pending"), fresh[1]] if now < 400 else fresh
        )
        assert recovery.recover(seen, now).replace == ()


def test_other_groups_are_left_alone() -> None:
    pods = [a_pod("entry", phase="Failed", ready=False), a_pod("w"), a_pod("x", group="h"), a_pod("y", group="h")]
    assert [one.group for one in recovery.recover(pods, 100).replace] == ["g"]


# Status


def told(
    model: dict[str, Any], rendered: Rendered | Refused, there: list[dict[str, Any]], *failures: str
) -> dict[str, str]:
    found = status.state(model, rendered, there, failures)
    assert found.fields["observedGeneration"] == 1
    assert all(one.message for one in found.conditions)
    return {one.type: f"{one.status} {one.reason}" for one in found.conditions}


def running(rendered: Rendered, ready: int | None = None) -> list[dict[str, Any]]:
    there = []
    for child in rendered.children:
        if child.kind in status.WORKLOADS:
            one = stored(child.body)
            wished = one["spec"]["replicas"]
            count = wished if ready is None else ready
            one["status"] = {"readyReplicas": count, "replicas": wished, "observedGeneration": 1}
            there.append(one)
    return there


@pytest.mark.parametrize("name", names())
def test_a_model_is_active_when_all_of_it_is_ready(name: str) -> None:
    model, rendered = model_named(name), rendered_named(name)
    assert told(model, rendered, running(rendered)) == {
        "Initialized": "True ModelCreating",
        "Active": "True ModelAvailable",
        "Failed": "False Reconciled",
    }
    least = [backend["minReplicas"] for backend in model["spec"]["backends"]]
    expected = "False ModelProcessing" if any(least) else "True ModelAvailable"
    assert told(model, rendered, running(rendered, ready=0))["Active"] == expected


def test_what_is_missing_is_told() -> None:
    model = a_model(a_backend(minReplicas=2, maxReplicas=2, workers=[a_worker(replicas=2)]))
    rendered = children(model)
    active = status.state(model, rendered, running(rendered, ready=3)).conditions[1]
    assert (active.status, active.message) == ("False", "backend main: 1 of 2 replicas are ready")
    missing = status.state(model, rendered, []).conditions[1]
    assert missing.message == "backend main: not there yet: Deployment chat-main"


def test_replicas_are_ready_groups_by_the_backends_name() -> None:
    model = a_model(a_backend("vLLMDisaggregated", minReplicas=2, maxReplicas=2))
    rendered = children(model)
    there = running(rendered)
    there[0]["status"]["readyReplicas"] = 0
    found = status.state(model, rendered, there).fields["backendStatuses"]
    assert found == [{"name": "main", "replicas": 1, "totalReplicas": 2}]
    large = a_model(a_backend(minReplicas=2, maxReplicas=2, workers=[a_worker(pods=2)]))
    rendered = children(large, LWS)
    assert status.state(large, rendered, running(rendered, ready=1)).fields["backendStatuses"] == [
        {"name": "main", "replicas": 1, "totalReplicas": 2}
    ]


def test_a_workload_whose_newest_form_was_not_seen_is_not_ready() -> None:
    model = a_model()
    rendered = children(model)
    there = running(rendered)
    there[0]["metadata"]["generation"] = 2
    assert told(model, rendered, there)["Active"] == "False ModelProcessing"


def test_growing_does_not_make_a_model_inactive() -> None:
    policy = {"metrics": [{"metricName": "x", "targetValue": 1}]}
    model = a_model(a_backend(minReplicas=1, maxReplicas=3, autoscalingPolicy=policy))
    rendered = children(model)
    there = running(rendered)
    there[0]["spec"]["replicas"] = 3
    assert told(model, rendered, there)["Active"] == "True ModelAvailable"


def test_failures_are_told_and_taken_back_and_what_runs_still_counts() -> None:
    model = a_model()
    rendered = children(model)
    there = running(rendered)
    assert told(model, rendered, there, "quota exceeded")["Failed"] == "True ModelAbnormal"
    broken = copy.deepcopy(model)
    broken["spec"]["backends"][0]["cacheURI"] = "hostpath:///etc"
    found = told(broken, refused(broken), there)
    assert (found["Failed"], found["Active"]) == ("True ModelAbnormal", "True ModelAvailable")
    assert told(broken, refused(broken), [])["Active"] == "False ModelProcessing"
