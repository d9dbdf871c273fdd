"""Which pods are a target's instances: ownership, entry pods, groups, and what counts as unready."""

from __future__ import annotations

from typing import Any

import pytest

from modelyard.autoscaling.live.wants import LIVE_PODS
from modelyard.autoscaling.reading.bindings.pods import TargetPods, target_pods
from modelyard.objects import Workload, WorkloadId
from modelyard.reconcile.kernel.mirror import Store

NOON = "2026-11-21T12:00:00Z"
LWS = "leaderworkerset.sigs.k8s.io"


def pod(
    name: str,
    owner: tuple[str, str, str] | None = ("ReplicaSet", "web-abc", "rs"),
    labels: dict[str, str] | None = None,
    ready: bool = True,
    **status: Any,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "n",
        "uid": f"uid-{name}",
        "creationTimestamp": "2026-11-21T11:00:00Z",
        "labels": {"pod-template-hash": "abc", **(labels or {})},
    }
    if owner:
        kind, owner_name, uid = owner
        reference = {"apiVersion": "apps/v1", "kind": kind, "name": owner_name, "uid": uid, "controller": True}
        metadata["ownerReferences"] = [reference]
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": "2026-11-21T11:02:00Z"}
    return {
        "metadata": metadata,
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [condition], **status},
    }


def going(body: dict[str, Any]) -> dict[str, Any]:
    body["metadata"]["deletionTimestamp"] = NOON
    return body


def workload(kind: str = "Deployment", name: str = "web", replicas: int | None = 2, **more: Any) -> Workload:
    group = {"LeaderWorkerSet": "leaderworkerset.x-k8s.io", "Custom": "example.com"}.get(kind, "apps")
    return Workload(WorkloadId("n", group, kind, name), "w", replicas, 0, 0, **more)


def of(pods: list[dict[str, Any]], target: Workload, **labels: str) -> TargetPods:
    store = Store(LIVE_PODS)
    for one in pods:
        store.put(one)
    return target_pods(store, target, labels, None)


def names(found: TargetPods) -> list[tuple[str, list[str]]]:
    return [(instance.name, [endpoint.name for endpoint in instance.endpoints]) for instance in found.instances]


def test_pods_of_a_deployment_are_known_by_their_owner_and_not_by_labels_anybody_can_have() -> None:
    mine, label = pod("web-1"), {"app": "web"}
    others = [
        pod("web-bare", None, label),
        pod("web-2", ("ReplicaSet", "web-other-abc", "x"), label),
        pod("web-3", ("ReplicaSet", "web-def", "x"), {**label, "pod-template-hash": "xyz"}),
        pod("web-0", ("StatefulSet", "web", "x"), label),
    ]
    assert names(of([mine, *others], workload())) == [("web-1", ["web-1"])]


def test_a_stateful_set_made_anew_does_not_own_the_old_ones_pods() -> None:
    pods = [pod("db-0", ("StatefulSet", "db", "w")), pod("db-1", ("StatefulSet", "db", "older"))]
    assert names(of(pods, workload("StatefulSet", "db"))) == [("db-0", ["db-0"])]


@pytest.mark.parametrize(
    ("bodies", "replicas", "ready", "unready"),
    [
        ([pod("a"), pod("b")], 2, 2, 0),
        ([pod("a"), pod("b", ready=False)], 2, 1, 1),
        ([pod("a"), pod("b", phase="Failed", ready=False)], 2, 1, 1),
        ([pod("a"), pod("b", containerStatuses=[{"restartCount": 12, "state": {"running": {}}}])], 2, 2, 0),
        ([pod("a"), going(pod("b"))], 2, 1, 1),
        ([pod("a"), going(pod("b")), going(pod("c"))], 1, 1, 0),
        ([pod("a"), going(pod("b")), pod("c", ready=False)], 2, 1, 1),
        ([pod("a"), pod("b"), pod("surge", ready=False)], 2, 2, 0),
        ([pod("a"), pod("b"), pod("surge")], 2, 3, 0),
        ([pod("a", ready=False)], None, 0, 1),
        ([], 3, 0, 0),
        ([pod("done", phase="Succeeded", ready=False)], 3, 0, 0),
    ],
)
def test_ready_and_unready(bodies: list[dict[str, Any]], replicas: int | None, ready: int, unready: int) -> None:
    found = of(bodies, workload(replicas=replicas))
    assert (len(found.instances), found.unready) == (ready, unready)


def lws_pod(group: str, index: str, ready: bool = True, **labels: str) -> dict[str, Any]:
    owner = ("StatefulSet", "big" if index == "0" else f"big-{group}", "x")
    more = {f"{LWS}/name": "big", f"{LWS}/group-index": group, f"{LWS}/worker-index": index, **labels}
    return pod(f"big-{group}-{index}", owner, more, ready)


def test_a_group_is_one_instance_measured_at_its_leader() -> None:
    target = workload("LeaderWorkerSet", "big", 3, pods_per_replica=2)
    pods = [
        *(lws_pod("0", "0"), lws_pod("0", "1")),
        *(lws_pod("1", "0"), lws_pod("1", "1", ready=False)),
        lws_pod("2", "0"),
    ]
    found = of(pods, target)
    assert names(found) == [("0", ["big-0-0"])]
    assert found.unready == 2


def test_entry_labels_tell_which_pods_of_a_group_take_requests() -> None:
    target = workload("LeaderWorkerSet", "big", 1, pods_per_replica=3)
    entry = {"modelinfer.volcano.sh/entry": "true"}
    pods = [lws_pod("0", "0"), lws_pod("0", "1", **entry), lws_pod("0", "2", **entry)]
    assert names(of(pods, target)) == [("0", ["big-0-1", "big-0-2"])]


def test_additional_match_labels_narrow_what_is_measured_and_not_what_is_there() -> None:
    pods = [pod("a", labels={"tier": "hot"}), pod("b")]
    found = of(pods, workload(), tier="hot")
    assert names(found) == [("a", ["a"]), ("b", [])]
    assert found.problem is None
    nobody = of(pods, workload(), tier="cold")
    assert names(nobody) == [("a", []), ("b", [])]
    assert nobody.problem == "no ready pod of Deployment n/web carries additionalMatchLabels tier=cold"


def test_other_kinds_are_known_by_the_selector_of_their_scale() -> None:
    pods = [pod("a", None, {"app": "x"}), pod("b", None, {"app": "y"}), pod("c", None, {"app": "x"}, ready=False)]
    found = of(pods, workload("Custom", selector="app in (x, z)"))
    assert names(found) == [("a", ["a"])]
    assert found.unready == 1
    assert "names no pod selector" in str(of(pods, workload("Custom")).problem)
    assert "not a label selector" in str(of(pods, workload("Custom", selector="(((")).problem)


def test_start_up_is_learnt_and_container_starts_tell_the_runs_of_a_pod_apart() -> None:
    def run(started: str, count: int) -> dict[str, Any]:
        running = {"restartCount": count, "state": {"running": {"startedAt": started}}}
        return pod("a", startTime="2026-11-21T11:00:01Z", containerStatuses=[running, {"state": {"waiting": {}}}])

    first, second = of([run("2026-11-21T11:01:00Z", 0)], workload()), of([run(NOON, 1)], workload())
    assert first.startup_seconds == 120.0
    starts = [found.instances[0].endpoints[0].start for found in (first, second)]
    assert starts == ["2026-11-21T11:01:00Z", NOON]
    assert first.instances[0].endpoints[0].uid == second.instances[0].endpoints[0].uid
