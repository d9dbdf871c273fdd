"""The pods of a group go together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kthena_models import a_backend, a_model, a_worker
from service_world import NOW
from test_model_roll_out import ModelFleet

from modelyard.objects import Key
from modelyard.objects.kinds import STATEFUL_SETS
from modelyard.workloads.roll_out.recovery import recover
from modelyard.workloads.roll_out.world import ServicePod


def a_pod(name: str, **more: Any) -> ServicePod:
    fixed = {"service": "s", "component": "main", "created": 0.0, "node": "n", "ready": True, "deleting": None}
    fixed |= {"restarts": 0, "selector": {}, "trouble": None, "since": 5.0, "entry": name == "entry"}
    return ServicePod(Key("shop", name), **(fixed | more))


@pytest.mark.parametrize(
    ("pods", "now", "replaced", "due"),
    [
        ([a_pod("entry"), a_pod("w")], 999, [], None),
        ([a_pod("entry", ready=False, restarts=1, since=100), a_pod("w")], 159, [], 160),
        ([a_pod("entry", ready=False, restarts=1, since=100), a_pod("w")], 160, ["entry", "w"], None),
        ([a_pod("entry"), a_pod("w", phase="Failed", ready=False, since=100)], 200, ["entry", "w"], None),
        ([a_pod("entry", restarts=3), a_pod("w")], 999, [], None),
        ([a_pod("entry", ready=False, phase="Pending"), a_pod("w", ready=False, phase="Pending")], 999, [], None),
        ([a_pod("entry", deleting=10), a_pod("w")], 11, ["w"], None),
        ([a_pod("entry"), a_pod("w", deleting=10)], 11, [], None),
        ([a_pod("entry", deleting=10), a_pod("w", deleting=10)], 11, [], None),
        ([a_pod("entry", deleting=10), a_pod("w", created=12, ready=False, phase="Pending")], 13, [], None),
        ([a_pod("entry", since=50), a_pod("w", created=60, since=61)], 62, ["entry", "w"], None),
        ([a_pod("entry", ready=False, since=50), a_pod("w", created=60, since=61)], 62, [], None),
        ([a_pod("entry", ready=False, restarts=1, since=0)], 999, [], None),
    ],
)
def test_which_pods_go(pods: list[ServicePod], now: float, replaced: list[str], due: float | None) -> None:
    found = recover({"g": pods}, now)
    assert [pod.key.name for one in found.replace for pod in one.pods] == replaced
    assert found.due == due
    assert all(one.reason for one in found.replace)


def test_a_group_that_was_replaced_is_not_replaced_again() -> None:
    """Made together at 100: the workers run at once, the entry pod is ready long after."""
    fresh = [a_pod("entry", created=100.0, since=400.0), a_pod("w", created=102.0, since=103.0)]
    waits = a_pod("entry", created=100.0, since=100.0, ready=False, phase="Pending")
    for now in (101.0, 103.0, 400.0, 9999.0):
        assert recover({"g": [waits, fresh[1]] if now < 400 else fresh}, now).replace == ()


@pytest.mark.parametrize("gone", [0, 1], ids=["entry", "worker"])
@pytest.mark.parametrize("slow", [1, 7], ids=["quick", "slow"])
def test_whoever_deletes_one_pod_has_each_of_the_others_replaced_and_that_is_all(gone: int, slow: int) -> None:
    """A second a step: pods that go are gone after ``slow`` seconds, their successors run at once."""
    pods = {name: a_pod(name, created=-100.0, since=-50.0) for name in ("entry", "w1", "w2")}
    first = list(pods)[gone]
    pods[first] = replace(pods[first], deleting=0.0)
    made = dict.fromkeys(pods, 0)
    for now in range(1, 120):
        for one in recover({"g": list(pods.values())}, now).replace:
            for pod in one.pods:
                pods[pod.key.name] = replace(pods[pod.key.name], deleting=float(now))
        for name, pod in pods.items():
            if pod.deleting is not None and now >= pod.deleting + slow:
                made[name] += 1
                pods[name] = a_pod(name, created=float(now), since=float(now), ready=name != "entry")
        entry = pods["entry"]
        if not entry.ready and all(now >= one.created + 3 and one.deleting is None for one in pods.values()):
            pods["entry"] = replace(entry, ready=True, since=float(now))
    assert all(made.values()), made
    assert max(made.values()) <= 2, made
    assert pods["entry"].ready


def test_other_groups_are_left_alone() -> None:
    failed = a_pod("entry", phase="Failed", ready=False)
    groups = {"g": [failed, a_pod("w")], "h": [a_pod("x"), a_pod("y")]}
    assert [one.group for one in recover(groups, 100).replace] == ["g"]


def test_pods_are_deleted_through_what_the_model_owns() -> None:
    fleet = ModelFleet(a_model(a_backend(minReplicas=2, maxReplicas=2, workers=[a_worker(pods=2)])))
    fleet.settle()
    fleet.run()
    fleet.settle()
    uid = fleet.objects["Model", "shop", "chat"]["metadata"]["uid"]
    for (kind, space, name), body in list(fleet.objects.items()):
        if kind == "StatefulSet":
            labels = {**body["spec"]["template"]["metadata"]["labels"], "registry.volcano.sh/model-uid": uid}
            owner = {"kind": kind, "name": name, "uid": body["metadata"]["uid"], "controller": True}
            well = name != "chat-main-1-1"
            status = {
                "phase": "Running" if well else "Failed",
                "conditions": [
                    {"type": "Ready", "status": str(well), "lastTransitionTime": "2026-01-01T00:00:10Z"},
                ],
            }
            about = {"labels": labels, "ownerReferences": [{**owner, "apiVersion": "apps/v1"}]}
            fleet.put("Pod", f"{name}-0", space, spec={}, status=status, metadata=about)
    fleet.put("Pod", "stray", "shop", metadata={"labels": {"registry.volcano.sh/model-uid": uid}})
    plan = fleet.look(now=NOW)
    assert plan is not None
    gone = [(one.key.name, one.through) for one in plan.delete]
    assert gone == [(f"{name}-0", (STATEFUL_SETS, Key("shop", name))) for name in ("chat-main-1-0", "chat-main-1-1")]
    assert [one.reason for one in plan.notices if one.reason == "GroupRestarted"] == ["GroupRestarted"]
