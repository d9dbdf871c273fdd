"""The life of a model, step by step: placed, fetched, marked, told, retried, verified, removed."""

from __future__ import annotations

import json
import math

import pytest
from model_world import HOME, NOW, Cluster, condition, delete, edit, model, rfc

from modelyard.cli.models import columns_of
from modelyard.models.delivery.world import NUDGE, RETENTION, VERIFY
from modelyard.reconcile.plans.dispatch import with_awaited_run

LABEL = "models.ome.io/clusterbasemodel.llama"
ENTRY = "clusterbasemodel.llama"


def delivered(cluster: Cluster, obj: dict) -> None:  # type: ignore[type-arg]
    """Bring it everywhere."""
    while True:
        cluster.settle(obj)
        jobs = cluster.jobs("fetch")
        if not jobs:
            return
        for job in jobs.values():
            cluster.end(
                job, revision="abc", bytes=10, files=2, seconds=1.5, fromStore=False, facts={"modelType": "llama"}
            )


def test_a_model_comes_onto_every_node_and_says_so() -> None:
    cluster = Cluster("a", "b")
    obj = cluster.put("ClusterBaseModel", model())
    plan = cluster.step(obj)
    assert plan is not None
    assert plan.awaits
    assert obj["metadata"]["finalizers"] == ["clusterbasemodels.ome.io/finalizer"]
    assert set(cluster.jobs("fetch")) == {"a", "b"}
    assert cluster.label("a", LABEL) == "Updating"
    cluster.settle(obj)
    assert obj["status"]["state"] == "In_Transit"
    assert condition(obj, "Resolved") == ("True", "Resolved")
    assert condition(obj, "Downloaded")[0] == "False"
    delivered(cluster, obj)
    assert not cluster.all("Job")
    assert cluster.label("b", LABEL) == "Ready"
    entry = cluster.entry("a", ENTRY)
    assert entry is not None
    assert (entry["name"], entry["status"], entry["config"]["modelType"]) == ("llama", "Ready", "llama")
    assert entry["config"]["artifact"]["sha"] == "abc"
    assert entry["delivered"]["revision"] == "abc"
    assert entry["delivered"]["uri"] == "hf://meta/llama"
    status = obj["status"]
    assert (status["state"], status["nodesReady"], "nodesFailed" in status) == ("Ready", ["a", "b"], False)
    assert status["delivery"]["path"] == "/mnt/models/_cluster/llama"
    for kind in ("Resolved", "Downloaded", "MetadataDetected", "Ready", "AllNodesReady"):
        assert condition(obj, kind)[0] == "True", kind
    assert {c["observedGeneration"] for c in status["conditions"]} == {obj["metadata"]["generation"]}
    assert obj["spec"]["modelType"] == "llama"
    report = cluster.get("ConfigMap", "a", HOME)["metadata"]
    assert report["labels"] == {"models.ome/basemodel-status": "true", "node": "a"}
    assert report["annotations"] == {"models.ome.io/node-name": "a", "models.ome.io/managed-by": "model-agent"}
    last = cluster.plan(obj)
    assert last is not None
    assert not last.writes
    assert not last.awaits


def test_the_report_of_a_pod_is_not_shown_before_its_job_ends() -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model())
    cluster.settle(obj)
    (job,) = cluster.jobs("fetch").values()
    cluster.end(job, revision="abc", bytes=10, files=2)
    job["status"] = {}
    cluster.settle(obj)
    assert condition(obj, "Downloaded") == ("False", "Marking")
    (message,) = {c["message"] for c in obj["status"]["conditions"] if c["type"] == "Downloaded"}
    assert message == "a: its pod has ended, and its result is read next"


def test_while_its_flow_run_is_queued_the_status_says_so() -> None:
    cluster = Cluster("a", "b")
    obj = cluster.put("ClusterBaseModel", model())
    plan = cluster.plan(obj)
    assert plan is not None
    assert plan.acts
    waiting = with_awaited_run(plan, "waiting since then for flow run 'x' of deliver/deliver to start", cluster.now)
    assert waiting.status is not None
    messages = {one.type: one.message for one in waiting.status.conditions}
    for name in ("Ready", "Downloaded", "AllNodesReady"):
        assert messages[name].endswith("; waiting since then for flow run 'x' of deliver/deliver to start")
    assert "waiting" not in messages["Resolved"]


def test_a_job_fetches_as_the_settings_say() -> None:
    cluster = Cluster("a", settings="{parallel: 3, partSize: 1048576}")
    cluster.settle(cluster.put("ClusterBaseModel", model()))
    arguments = cluster.jobs("fetch")["a"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--parallel") + 1] == "3"
    assert arguments[arguments.index("--part-size") + 1] == "1048576"


def test_a_principal_of_oracle_is_refused_unless_there_is_a_key() -> None:
    cluster = Cluster("a")
    uri = "oci://n/ns@eu-frankfurt-1/b/bkt/o/llama"
    obj = cluster.put("ClusterBaseModel", model(uri=uri, parameters={"auth": "InstancePrincipal"}))
    cluster.settle(obj)
    assert condition(obj, "Resolved") == ("False", "InvalidSpec")
    edit(obj, key="oracle")
    cluster.settle(obj)
    assert condition(obj, "Resolved") == ("True", "Resolved")


def test_our_own_status_delivers_nothing_again_an_edit_does() -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model())
    delivered(cluster, obj)
    obj["metadata"]["resourceVersion"] = "99"
    obj["metadata"]["generation"] += 1  # somebody edited what is not content
    obj["spec"]["vendor"] = "meta"
    cluster.settle(obj)
    assert not cluster.jobs()
    cluster.secret("secret")
    for change in ({"storageUri": "hf://meta/other"}, {"path": "/mnt/models/x"}, {"key": "secret"}):
        edit(obj, **change)
        cluster.settle(obj)
        assert set(cluster.jobs("fetch")) == {"a"}, change
        assert cluster.label("a", LABEL) == "Updating", "it is not Ready with what is wanted now"
        delivered(cluster, obj)
        assert cluster.label("a", LABEL) == "Ready"


def test_an_edit_during_the_download_stops_it_first() -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model())
    cluster.settle(obj)
    (before,) = cluster.jobs().values()
    edit(obj, storageUri="hf://meta/other")
    cluster.step(obj)
    assert before["metadata"]["name"] not in {job["metadata"]["name"] for job in cluster.all("Job")}
    cluster.settle(obj)
    (after,) = cluster.jobs().values()
    assert "hf://meta/other" in after["spec"]["template"]["spec"]["containers"][0]["args"]


def test_nodes_are_chosen_again_when_labels_or_the_selector_change() -> None:
    cluster = Cluster("a", "b", disk="fast")
    obj = cluster.put("ClusterBaseModel", model(nodeSelector={"disk": "fast"}))
    delivered(cluster, obj)
    del cluster.get("Node", "b")["metadata"]["labels"]["disk"]
    cluster.node("c", disk="fast")
    cluster.settle(obj)
    assert set(cluster.jobs("remove")) == {"b"}
    assert set(cluster.jobs("fetch")) == {"c"}
    assert cluster.label("b", LABEL) is None, "no pod is sent there from now on"
    cluster.end(cluster.jobs("remove")["b"], "Removed")
    delivered(cluster, obj)
    assert cluster.entry("b", ENTRY) is None
    assert obj["status"]["nodesReady"] == ["a", "c"]
    edit(obj, nodeSelector={"disk": "none"})
    cluster.settle(obj)
    assert obj["status"]["state"] == "In_Transit"
    assert condition(obj, "Ready") == ("False", "NoMatchingNodes")


@pytest.mark.parametrize("goes", ["a node", "the model"])
def test_a_node_that_is_gone_holds_up_nothing(goes: str) -> None:
    cluster = Cluster("a", "b")
    obj = cluster.put("ClusterBaseModel", model())
    cluster.settle(obj)
    if goes == "the model":
        delete(obj)
    for kind, key in list(cluster.objects):
        if (kind, key.name) in (("Node", "b"), ("ConfigMap", "b")):
            del cluster.objects[kind, key]
    for _ in range(10):
        cluster.step(obj)
        for job in cluster.jobs().values():
            cluster.end(job, "Removed" if goes == "the model" else "Fetched")
    if goes == "the model":
        assert not cluster.all("ClusterBaseModel")
    else:
        assert obj["status"]["nodesReady"] == ["a"]
        assert condition(obj, "AllNodesReady")[0] == "True"
    assert not cluster.all("Job")


def test_what_may_pass_by_itself_is_not_told_as_failed_at_first() -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model())
    pauses, states = [], []
    for _ in range(14):
        cluster.settle(obj)
        (job,) = cluster.jobs().values()
        cluster.end(job, "Failed", reason="SourceUnavailable", message="no answer", retryable=True)
        plan = cluster.settle(obj)
        assert plan is not None
        assert plan.due is not None
        assert not cluster.jobs()
        pauses.append(plan.due - cluster.now)
        states.append(obj["status"]["state"])
        assert cluster.label("a", LABEL) == ("Failed" if states[-1] == "Failed" else "Updating")
        cluster.now = math.ceil(plan.due)
    first = states.index("Failed")
    assert sum(pauses[:first]) >= 300
    assert set(states[:first]) == {"In_Transit"}
    for pause, nominal in zip(pauses, [10, 20, 40, *[60] * 11], strict=True):
        if pause < 66:
            assert 0.9 * nominal <= pause <= 1.1 * nominal
    minutes = [round(pause / 60) for pause in pauses[first:]]
    assert minutes[0] == 1
    assert minutes == sorted(minutes)
    assert condition(obj, "Downloaded") == ("False", "SourceUnavailable")
    edit(obj, storageUri="hf://meta/right")
    cluster.settle(obj)
    assert cluster.jobs(), "an edit is tried at once"


def test_what_needs_a_change_fails_at_once_and_is_tried_again_by_hand() -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model())
    pauses = []
    for _ in range(9):
        cluster.settle(obj)
        (job,) = cluster.jobs().values()
        cluster.end(job, "Failed", reason="Unauthorized", message="401: give a token", retryable=False)
        plan = cluster.settle(obj)
        assert plan is not None
        assert plan.due is not None
        pauses.append((plan.due - cluster.now) / 60)
        cluster.now = math.ceil(plan.due)
        assert obj["status"]["state"] == "Failed"
        assert obj["status"]["nodesFailed"] == ["a"]
    for pause, nominal in zip(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=True):
        assert 0.9 * nominal <= pause <= 1.1 * nominal
    cluster.now -= 60
    cluster.settle(obj)
    assert not cluster.jobs()
    obj["metadata"]["annotations"] = {NUDGE: "now"}
    cluster.settle(obj)
    assert cluster.jobs()
    delivered(cluster, obj)
    assert obj["status"]["state"] == "Ready"


@pytest.mark.parametrize(
    ("ends", "state", "ready", "everywhere"),
    [
        (("", "", ""), "In_Transit", "Downloading", "Downloading"),
        (("Fetched", "Fetched", "Fetched"), "Ready", "Ready", "AllNodesReady"),
        (("Fetched", "", "NotFound"), "Ready", "Ready", "Downloading"),
        (("Fetched", "DiskPressure", "NotFound"), "Ready", "Ready", "DiskPressure"),
        (("NotFound", "", "DiskPressure"), "In_Transit", "Downloading", "DiskPressure"),
        (("NotFound", "DiskPressure", "NotFound"), "Failed", "NotFound", "NotFound"),
        (("NotFound", "DiskPressure", "Forbidden"), "Failed", "DiskPressure", "DiskPressure"),
    ],
)
def test_the_table_of_states(ends: tuple[str, ...], state: str, ready: str, everywhere: str) -> None:
    cluster = Cluster("a", "b", "c")
    obj = cluster.put("ClusterBaseModel", model())
    cluster.settle(obj)
    for end, job in zip(ends, cluster.jobs().values(), strict=True):
        if end == "Fetched":
            cluster.end(job, bytes=1)
        elif end:
            cluster.end(job, "Failed", reason=end, message=end)
    cluster.settle(obj)
    assert obj["status"]["state"] == state
    assert (condition(obj, "Ready")[1], condition(obj, "AllNodesReady")[1]) == (ready, everywhere)
    assert len(obj["status"].get("nodesFailed", ())) == sum(end not in ("", "Fetched") for end in ends)
    obj["spec"]["disabled"] = True
    cluster.settle(obj)
    assert (obj["status"]["state"], condition(obj, "Disabled")) == (state, ("True", "Disabled"))


def test_a_model_for_which_no_node_is_chosen_or_begun() -> None:
    cluster = Cluster("a", settings="nodesPerSource: 1")
    cluster.settle(cluster.put("ClusterBaseModel", model("first")))
    waits = cluster.put("ClusterBaseModel", model("second"))
    nowhere = cluster.put("ClusterBaseModel", model("third", nodeSelector={"gpu": "h100"}))
    for obj, state, reason in ((waits, "Creating", "Queued"), (nowhere, "In_Transit", "NoMatchingNodes")):
        cluster.settle(obj)
        assert (obj["status"]["state"], condition(obj, "Ready")[1]) == (state, reason)


def test_the_chosen_weights_are_in_status_condition_and_one_event() -> None:
    cluster = Cluster("a", "b")
    obj = cluster.put("ClusterBaseModel", model(parameters={"weights": "Q8_0"}))
    chosen = "weights: gguf Q8_0, m-Q8_0.gguf (1 file, 8.0 GiB); left out as copies: m-F16.gguf (16.0 GiB)"
    cluster.settle(obj)
    for job in cluster.jobs("fetch").values():
        assert "--weights=Q8_0" in job["spec"]["template"]["spec"]["containers"][0]["args"]
        cluster.end(job, bytes=10, weights=chosen)
    cluster.settle(obj)
    assert obj["status"]["delivery"]["weights"] == chosen
    downloaded = next(c for c in obj["status"]["conditions"] if c["type"] == "Downloaded")
    assert downloaded["message"] == f"2 of 2 nodes; {chosen}"
    events = [notice for plan in cluster.plans for notice in plan.notices if notice.reason == "WeightsChosen"]
    assert [notice.message for notice in events] == [chosen]
    edit(obj, parameters={})
    delivered(cluster, obj)
    assert obj["status"]["delivery"].get("weights") is None


def test_weights_as_a_report_names_them_move_no_terminal() -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model())
    cluster.settle(obj)
    for job in cluster.jobs("fetch").values():
        cluster.end(job, bytes=10, weights="\x1b]0;title\x07 \u202e")
    cluster.settle(obj)
    assert obj["status"]["delivery"]["weights"] == r"\x1b]0;title\x07 \u202e"
    assert "\x1b" not in "".join(map(str, columns_of({"delivery": {"weights": "\x1b[2J"}})))


@pytest.mark.parametrize("status", [{}, {"state": "Creating"}, {"conditions": []}])
def test_list_names_the_worker_for_a_model_without_conditions(status: dict[str, object]) -> None:
    *_, remark = columns_of(status)
    assert "`modelyard worker`" in str(remark)


def test_list_names_no_worker_once_a_model_has_conditions() -> None:
    *_, remark = columns_of({"conditions": [{"type": "Ready", "status": "False", "reason": "Queued", "message": "m"}]})
    assert remark == "Queued: m"


def test_deletion_removes_the_files_and_then_lets_go() -> None:
    cluster = Cluster("a", "b")
    obj = cluster.put("ClusterBaseModel", model())
    delivered(cluster, obj)
    delete(obj)
    user = {
        "metadata": {"name": "engine", "namespace": "chat", "uid": "u"},
        "spec": {"nodeName": "a", "volumes": [{"name": "m", "hostPath": {"path": "/mnt/models/_cluster/llama"}}]},
        "status": {"phase": "Running", "startTime": rfc(NOW)},
    }
    cluster.put("Pod", user)
    cluster.settle(obj)
    assert set(cluster.jobs("remove")) == {"b"}, "nothing is removed while a running pod has it mounted"
    assert (cluster.label("a", LABEL), cluster.label("b", LABEL)) == (None, None)
    assert condition(obj, "Ready") == ("False", "Removing")
    assert "chat/engine" in next(c["message"] for c in obj["status"]["conditions"] if c["type"] == "Ready")
    cluster.end(cluster.jobs("remove")["b"], "Removed")
    cluster.settle(obj)
    assert cluster.all("ClusterBaseModel")
    user["status"]["phase"] = "Succeeded"  # type: ignore[index]
    cluster.settle(obj)
    cluster.end(cluster.jobs("remove")["a"], "Removed")
    cluster.settle(obj)
    assert not cluster.all("ClusterBaseModel")
    assert not cluster.all("Job")
    assert all(json.dumps(one.get("data", {})) == "{}" for one in cluster.all("ConfigMap"))


def test_the_pause_after_a_failed_fetch_holds_up_no_deletion_and_failed_removals_have_pauses_of_their_own() -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model())
    for _ in range(6):
        cluster.settle(obj)
        (job,) = cluster.jobs().values()
        cluster.end(job, "Failed", reason="Unauthorized", message="401: give a token", retryable=False)
        plan = cluster.settle(obj)
        assert plan is not None
        assert plan.due is not None
        cluster.now = math.ceil(plan.due)
    cluster.settle(obj)
    (job,) = cluster.jobs().values()
    cluster.end(job, "Failed", reason="Unauthorized", message="401: give a token", retryable=False)
    cluster.settle(obj)
    delete(obj)
    cluster.settle(obj)
    pauses = []
    for _ in range(3):
        cluster.end(cluster.jobs("remove")["a"], "Failed", reason="Unreadable", message="no access", retryable=False)
        plan = cluster.settle(obj)
        assert plan is not None
        assert plan.due is not None
        assert not cluster.jobs("remove")
        pauses.append((plan.due - cluster.now) / 60)
        cluster.now = math.ceil(plan.due)
        cluster.settle(obj)
    for pause, nominal in zip(pauses, [1, 2, 4], strict=True):
        assert 0.9 * nominal <= pause <= 1.1 * nominal
    cluster.end(cluster.jobs("remove")["a"], "Removed")
    cluster.settle(obj)
    assert not cluster.all("ClusterBaseModel")


@pytest.mark.parametrize("how", ["annotation", "label"])
def test_files_can_be_kept(how: str) -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model())
    if how == "annotation":
        obj["metadata"]["annotations"] = {RETENTION: "Retain"}
    else:
        obj["metadata"]["labels"] = {"models.ome/reserve-model-artifact": "True"}
    delivered(cluster, obj)
    delete(obj)
    cluster.settle(obj)
    assert not cluster.all("Job")
    assert not cluster.all("ClusterBaseModel")
    assert cluster.label("a", LABEL) is None


def test_verification_finds_what_has_changed_and_delivers_it_again() -> None:
    cluster = Cluster("a", "b")
    obj = cluster.put("ClusterBaseModel", model())
    delivered(cluster, obj)
    cluster.now += 100
    obj["metadata"].setdefault("annotations", {})[VERIFY] = rfc(cluster.now)
    cluster.settle(obj)
    checks = cluster.jobs("check")
    assert set(checks) == {"a", "b"}
    assert cluster.label("a", LABEL) == "Ready", "it is used all the while"
    cluster.now += 10
    cluster.end(checks["a"], "Verified")
    cluster.end(checks["b"], "Failed", reason="Damaged", message="config.json is gone", retryable=True)
    cluster.settle(obj)
    assert (cluster.label("a", LABEL), cluster.label("b", LABEL)) == ("Ready", "Updating")
    assert set(cluster.jobs()) == {"b"}
    delivered(cluster, obj)
    cluster.settle(obj)
    assert not cluster.jobs()
    assert obj["status"]["nodesReady"] == ["a", "b"]


def test_verification_asked_for_in_the_second_in_which_the_files_came_is_made_once() -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model())
    delivered(cluster, obj)
    obj["metadata"].setdefault("annotations", {})[VERIFY] = rfc(cluster.now)
    cluster.settle(obj)
    cluster.end(cluster.jobs("check")["a"], "Verified")
    cluster.settle(obj)
    assert not cluster.jobs()


def test_at_most_so_many_nodes_fetch_from_a_source_and_whom_pods_wait_for_comes_first() -> None:
    cluster = Cluster("a", "b", "c", settings="nodesPerSource: 2")
    late, early = model("late"), model("early")
    late["metadata"]["creationTimestamp"] = rfc(NOW + 1)
    for obj in (late, early):
        cluster.put("ClusterBaseModel", obj)
    cluster.settle(early)
    assert len(cluster.jobs()) == 2
    assert early["status"]["delivery"]["waiting"] == 1
    cluster.settle(late)
    assert late["status"]["state"] == "Creating"
    assert condition(late, "Ready") == ("False", "Queued")
    other = cluster.put("ClusterBaseModel", model("other", uri="s3://bucket/x"))
    cluster.settle(other)
    assert len(cluster.all("Job")) == 4, "another source has turns of its own"
    waiting = {
        "metadata": {"name": "engine", "namespace": "chat", "uid": "u"},
        "spec": {"nodeSelector": {"models.ome.io/clusterbasemodel.late": "Ready"}},
        "status": {"phase": "Pending"},
    }
    cluster.put("Pod", waiting)
    cluster.end(next(job for job in cluster.all("Job") if "early" in job["metadata"]["name"] and not job.get("status")))
    cluster.step(early)
    plan = cluster.plan(late)
    assert plan is not None
    assert plan.urgency == 1
    assert plan.apply, "its turn comes before that of whom nobody waits for"


def test_a_lost_job_is_made_again() -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model())
    cluster.settle(obj)
    (job,) = cluster.jobs().values()
    del cluster.objects["Job", (HOME, job["metadata"]["name"])]  # type: ignore[index]
    cluster.settle(obj)
    assert cluster.jobs()


def test_settings_that_cannot_be_read_take_nothing_away() -> None:
    cluster = Cluster("a", "b")
    obj = cluster.put("ClusterBaseModel", model())
    delivered(cluster, obj)
    cluster.settings = "nodesPerSource: many"
    obj["metadata"]["deletionTimestamp"] = rfc(NOW)
    plan = cluster.step(obj)
    assert plan is not None
    assert not plan.acts
    assert condition(obj, "Resolved") == ("False", "SettingsInvalid")
    assert condition(obj, "Ready") == ("True", "Ready")
    assert (obj["status"]["state"], obj["status"]["nodesReady"]) == ("Ready", ["a", "b"])
    assert cluster.label("a", LABEL) == "Ready"
    assert obj["metadata"]["finalizers"] == ["clusterbasemodels.ome.io/finalizer"]
