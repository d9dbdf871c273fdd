"""Tenants share sources, nodes and reports: none keeps another out, speaks for it, or touches what it has."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from model_world import HOME, NOW, Cluster, condition, delete, edit, model, rfc

from modelyard.models.delivery.running import MODEL, WORK
from modelyard.models.storage.settings import DeliverySettings

Object = dict[str, Any]


def namespaced(name: str, namespace: str, created: float = NOW, **storage: Any) -> Object:
    obj = model(name, namespace, **storage)
    obj["metadata"] |= {"uid": f"uid-{namespace}-{name}", "creationTimestamp": rfc(created)}
    return obj


def busy(cluster: Cluster, namespace: str) -> int:
    """Jobs for models of a namespace that have not ended."""
    return sum(cluster.task(job).get("namespace", "") == namespace for job in cluster.all("Job") if "status" not in job)


def test_jobs_that_somebody_made_elsewhere_take_no_turn() -> None:
    cluster = Cluster("a", settings="nodesPerSource: 1")
    for number in range(9):
        work = json.dumps({"purpose": "fetch", "node": "a", "uid": "u", "source": "hf"})
        metadata = {"name": f"forged-{number}", "namespace": "evil", "uid": f"f{number}", "labels": {MODEL: "x"}}
        cluster.put("Job", {"metadata": {**metadata, "annotations": {WORK: work}}})
    obj = cluster.put("BaseModel", namespaced("mine", "chat"))
    cluster.settle(obj)
    assert busy(cluster, "chat") == 1


def test_no_namespace_has_all_turns_whatever_it_has_and_says() -> None:
    cluster = Cluster("a", "b", settings="nodesPerSource: 4")
    greedy = [cluster.put("BaseModel", namespaced(f"m{number}", "evil", NOW - 100)) for number in range(20)]
    for obj in greedy:
        cluster.settle(obj)
        label = f"models.ome.io/evil.basemodel.{obj['metadata']['name']}"
        pod = {"metadata": {"name": f"p-{obj['metadata']['name']}", "namespace": "evil", "uid": label}}
        cluster.put("Pod", {**pod, "spec": {"nodeSelector": {label: "Ready"}}, "status": {"phase": "Pending"}})
    assert busy(cluster, "evil") == 2
    greedy[-1]["status"]["delivery"]["waiting"] = 2**31 - 1
    mine = cluster.put("BaseModel", namespaced("mine", "chat"))
    cluster.settle(mine)
    assert busy(cluster, "chat") == 2
    admins = cluster.put("ClusterBaseModel", model("admins"))
    cluster.settle(admins)
    assert busy(cluster, "") == 0, "four have their turn"


def test_the_next_turn_is_that_of_the_namespace_with_the_fewest() -> None:
    cluster = Cluster("a", "b", "c", "d", settings="nodesPerSource: 4")
    shared = cluster.put("ClusterBaseModel", model("shared"))
    cluster.settle(shared)
    assert busy(cluster, "") == 4
    old = cluster.put("ClusterBaseModel", model("old"))
    mine = cluster.put("BaseModel", namespaced("mine", "chat", NOW + 50))
    for obj in (old, mine):
        cluster.settle(obj)
    assert (busy(cluster, ""), busy(cluster, "chat")) == (4, 0)
    for turn in (1, 2):
        job = next(job for job in cluster.all("Job") if "status" not in job and not cluster.task(job).get("namespace"))
        cluster.end(job, revision="r")
        for obj in (shared, old, mine):
            cluster.settle(obj)
        assert busy(cluster, "chat") == turn
    assert busy(cluster, "") == 2


def test_what_a_pod_elsewhere_says_is_not_what_the_job_said() -> None:
    cluster = Cluster("a")
    obj = cluster.put("BaseModel", namespaced("mine", "chat"))
    cluster.settle(obj)
    (job,) = cluster.jobs().values()
    forged = {"exitCode": 0, "message": json.dumps({"outcome": "Fetched", "revision": "evil"})}
    metadata = {"name": "forged", "namespace": "evil", "uid": "f", "labels": {MODEL: "x"}}
    metadata["ownerReferences"] = [{"kind": "Job", "uid": job["metadata"]["uid"]}]  # type: ignore[assignment]
    status = {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": forged}}]}
    cluster.put("Pod", {"metadata": metadata, "spec": {"nodeName": "a"}, "status": status})
    cluster.end(job, "Failed", reason="NotFound", message="404")
    cluster.settle(obj)
    assert obj["status"]["nodesFailed"] == ["a"]
    assert condition(obj, "Ready") == ("False", "NotFound")


def test_two_models_that_nodes_could_not_tell_apart() -> None:
    """A namespace of eight hexadecimal digits is what a longer one is shortened to."""
    name, label = "llama-3-3-70b-instruct-x", "models.ome.io/3c5cab78.basemodel.llama-3-3-70b-instruct-x"
    cluster = Cluster("a")
    first = cluster.put("BaseModel", namespaced(name, "ml-platform-team"))
    second = cluster.put("BaseModel", namespaced(name, "3c5cab78", NOW + 1))
    cluster.settle(first)
    cluster.end(cluster.jobs()["a"], revision="r")
    cluster.settle(first)
    cluster.settle(second)
    assert condition(second, "Resolved") == ("False", "NameTaken")
    assert "BaseModel ml-platform-team/llama" in second["status"]["conditions"][0]["message"]
    assert not cluster.jobs()
    second["metadata"]["finalizers"] = ["basemodels.ome.io/finalizer"]
    delete(second)
    cluster.settle(second)
    assert [obj["metadata"]["namespace"] for obj in cluster.all("BaseModel")] == ["ml-platform-team"]
    assert cluster.label("a", label) == "Ready"
    assert cluster.settle(first) is not None
    assert first["status"]["state"] == "Ready"
    third = cluster.put("BaseModel", namespaced(name, "3c5cab78", NOW + 2))
    cluster.settle(third)
    delete(first)
    cluster.settle(first)
    cluster.end(cluster.jobs("remove")["a"], "Removed")
    cluster.settle(first)
    cluster.settle(third)
    assert cluster.jobs("fetch"), "the name is free"


def test_a_namespace_has_so_many_models_and_no_more() -> None:
    cluster = Cluster("a", settings="{modelsPerNamespace: 2, nodesPerSource: 10}")
    models = [cluster.put("BaseModel", namespaced(f"m{number}", "chat", NOW + number)) for number in range(3)]
    for obj in models:
        cluster.settle(obj)
    assert busy(cluster, "chat") == 2
    assert condition(models[2], "Resolved") == ("False", "TooManyModels")
    assert "raise modelsPerNamespace" in models[2]["status"]["conditions"][0]["message"]
    cluster.settle(cluster.put("BaseModel", namespaced("other", "elsewhere")))
    cluster.settle(cluster.put("ClusterBaseModel", model("shared")))
    assert (busy(cluster, "elsewhere"), busy(cluster, "")) == (1, 1)


def test_a_report_that_is_full_takes_no_other_model_and_keeps_those_it_has() -> None:
    cluster = Cluster("a", "b")
    there = cluster.put("ClusterBaseModel", model("there"))
    cluster.settle(there)
    data = cluster.get("ConfigMap", "a", HOME)["data"]
    data["chat.basemodel.large"] = "x" * 800_000
    for job in cluster.jobs().values():
        cluster.end(job, revision="r")
    cluster.settle(there)
    assert json.loads(data["clusterbasemodel.there"])["status"] == "Ready"
    late = cluster.put("ClusterBaseModel", model("late"))
    cluster.settle(late)
    assert {cluster.task(job)["node"] for job in cluster.jobs().values() if "late" in job["metadata"]["name"]} == {"b"}
    assert late["status"]["nodesFailed"] == ["a"]
    assert late["status"]["delivery"]["nodes"][0]["reason"] == "ReportFull"
    assert cluster.label("a", "models.ome.io/clusterbasemodel.late") is None


def test_no_namespace_has_more_than_half_of_a_report() -> None:
    cluster = Cluster("a")
    first = cluster.put("BaseModel", namespaced("first", "evil"))
    cluster.settle(first)
    cluster.get("ConfigMap", "a", HOME)["data"]["evil.basemodel.large"] = "\N{GRINNING FACE}" * 100_000
    cluster.end(cluster.jobs().popitem()[1], revision="r")
    late, mine = (cluster.put("BaseModel", namespaced("late", space)) for space in ("evil", "evil-not"))
    for obj in (first, late, mine):
        cluster.settle(obj)
    assert condition(first, "Ready") == ("True", "Ready"), "what is there is kept"
    assert condition(late, "Ready") == ("False", "ReportFull")
    assert busy(cluster, "evil-not") == 1


def test_an_entry_of_a_report_has_its_limits_in_bytes() -> None:
    cluster = Cluster("a")
    for name, storage, reason in (
        ("uri", {"storageUri": "s3://bucket/" + "\N{GRINNING FACE}" * 600}, "InvalidURI"),
        ("path", {"path": "/mnt/models/evil/" + "\N{GRINNING FACE}" * 300}, "PathNotAllowed"),
    ):
        obj = cluster.put("BaseModel", namespaced(name, "evil", **storage))
        cluster.settle(obj)
        assert condition(obj, "Resolved") == ("False", reason)
    obj = cluster.put("BaseModel", namespaced("odd", "evil", storageUri="s3://bucket/" + "\N{GRINNING FACE}" * 500))
    cluster.settle(obj)
    assert len(cluster.get("ConfigMap", "a", HOME)["data"]["evil.basemodel.odd"].encode()) < 3000


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("", None),
        ("bandwidth: 100", 100),
        ("sourceBandwidth: 1000", 250),
        ("{sourceBandwidth: 100, bandwidth: 90}", 25),
        ("{sourceBandwidth: 1000, bandwidth: 90, nodesPerSource: 2}", 90),
        ("sourceBandwidth: 1", 1),
    ],
)
def test_all_jobs_at_a_source_stay_within_its_rate_together(text: str, rate: int | None) -> None:
    settings, problem = DeliverySettings.read(text)
    assert (problem, settings.rate) == (None, rate)
    cluster = Cluster("a", settings=text)
    cluster.settle(cluster.put("ClusterBaseModel", model()))
    (job,) = cluster.jobs().values()
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert ("--bandwidth" in arguments) == (rate is not None)
    assert rate is None or arguments[arguments.index("--bandwidth") + 1] == str(rate)


@pytest.mark.parametrize("key", ["", "a b", "../token", "a/b", "..x", "x\n", "y" * 254])
def test_a_key_that_no_secret_can_have(key: str) -> None:
    cluster = Cluster("a")
    obj = cluster.put("BaseModel", namespaced("mine", "chat", parameters={"secretKey": key, "token": "t"}))
    cluster.settle(obj)
    assert condition(obj, "Resolved") == ("False", "InvalidSpec")
    assert not cluster.jobs()


@pytest.mark.parametrize(
    ("endpoint", "public"), [("https://exact.example.com", False), ("https://any.example.org", True)]
)
def test_an_endpoint_that_only_a_pattern_allows_is_one_of_the_internet(endpoint: str, public: bool) -> None:
    cluster = Cluster("a", settings='endpoints: [exact.example.com, "*.example.com", "*.example.org"]')
    cluster.settle(cluster.put("BaseModel", namespaced("mine", "chat", parameters={"endpoint": endpoint})))
    (job,) = cluster.jobs().values()
    assert ("--public" in job["spec"]["template"]["spec"]["containers"][0]["args"]) is public


def test_one_host_is_one_source_however_its_address_is_written() -> None:
    cluster = Cluster(*"abcdefgh", settings="endpoints: [minio.example.com]")
    written = (
        "https://minio.example.com",
        "https://minio.example.com/x",
        "http://MINIO.example.com.:80",
        "https://minio.example.com:443/y",
    )
    objs = [
        cluster.put("BaseModel", namespaced(f"m{at}", "chat", storageUri=uri, parameters={"endpoint": one}))
        for at, (one, uri) in enumerate(itertools.product(written, ("s3://bucket/x", "hf://meta/llama")))
    ]
    for obj in objs:
        cluster.settle(obj)
    assert len(cluster.all("Job")) == 2, "half of nodesPerSource"


def test_kubernetes_fills_nothing_into_what_was_checked() -> None:
    """$(HOME) is /tmp in a Job: the host would be another one than the pattern was compared with."""
    cluster = Cluster("a", settings='endpoints: ["*.example.com"]')

    def deliver(endpoint: str) -> None:
        model = namespaced("mine", "chat", storageUri="s3://bucket/$(HOME)$$", parameters={"endpoint": endpoint})
        cluster.settle(cluster.put("BaseModel", model))

    deliver("https://evil.example.net$(HOME).example.com")
    assert not cluster.jobs(), "no host has such a name"
    deliver("https://models.example.com/$(HOME)")
    (job,) = cluster.jobs().values()
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--endpoint=https://models.example.com/$$(HOME)" in arguments
    assert "s3://bucket/$$(HOME)$$$$" in arguments


def fetched(cluster: Cluster, obj: Object) -> None:
    cluster.settle(obj)
    cluster.end(cluster.jobs("fetch")["a"], revision="r")
    cluster.settle(obj)


@pytest.mark.parametrize(
    ("change", "removed_from"),
    [
        ({"path": "/data/x"}, ["/mnt/models"]),
        ({"storageUri": "local:///mnt/models/y"}, ["/mnt/models"]),
        ({"storageUri": "vendor://acme/model/x"}, ["/mnt/models"]),
        ({"path": "/mnt/models/else"}, []),
        ({"storageUri": "local:///mnt/models/_cluster/llama"}, []),
    ],
)
def test_a_model_that_moves_to_another_root_leaves_nothing_in_the_old_one(
    change: dict[str, str], removed_from: list[str]
) -> None:
    cluster = Cluster("a", settings="roots: [/data]")
    obj = cluster.put("ClusterBaseModel", model())
    fetched(cluster, obj)
    edit(obj, **change)
    cluster.settle(obj)
    if "storageUri" not in change or change["storageUri"].startswith("local"):
        assert not cluster.jobs("remove"), "what a service still uses goes when the new files are there"
        fetched(cluster, obj)
    found = []
    while jobs := cluster.jobs("remove"):
        (job,) = jobs.values()
        arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
        found.append(arguments[arguments.index("--root") + 1])
        assert cluster.label("a", "models.ome.io/clusterbasemodel.llama") == "Ready"
        assert obj["status"]["state"] == "Ready"
        cluster.end(job, "Removed")
        cluster.settle(obj)
    assert found == removed_from
    assert not cluster.all("Job")
    assert obj["status"]["state"] == "Ready"


def test_roots_that_were_left_go_with_the_model_and_wait_for_pods() -> None:
    cluster = Cluster("a", settings="roots: [/data, /more]")
    obj = cluster.put("ClusterBaseModel", model())
    fetched(cluster, obj)
    for path in ("/data/x", "/more/x"):
        edit(obj, path=path)
        fetched(cluster, obj)
        if jobs := cluster.jobs("remove"):
            cluster.end(jobs["a"], "Failed", reason="InUse", message="mounted", retryable=True)
        plan = cluster.settle(obj)
        assert plan is not None
        assert plan.due == NOW + 300
        assert not plan.awaits
    entry = cluster.entry("a", "clusterbasemodel.llama")
    assert entry is not None
    assert entry["delivered"]["left"] == ["/mnt/models", "/data"]
    cluster.now += 400
    delete(obj)
    found = []
    for _ in range(12):
        cluster.settle(obj) if cluster.all("ClusterBaseModel") else None
        for job in cluster.jobs("remove").values():
            found.append(cluster.task(job)["root"])
            cluster.end(job, "Removed")
    assert found == ["/mnt/models", "/data", "/more"]
    assert not cluster.all("ClusterBaseModel")
    assert not cluster.all("Job")


def test_what_a_tenant_writes_of_its_claim_makes_nobody_remove_anything() -> None:
    cluster = Cluster("a")
    obj = namespaced("claimed", "chat", uri="pvc://weights/llama")
    forged = {"uid": "uid-chat-claimed", "uri": "hf://a/b", "root": "/", "left": ["/etc", "/mnt/models"]}
    obj["metadata"]["annotations"] = {
        "modelyard.dev/claim-report": json.dumps({"status": "Ready", "delivered": forged})
    }
    claim = {"metadata": {"name": "weights", "namespace": "chat", "uid": "c"}, "status": {"phase": "Bound"}}
    cluster.put("PersistentVolumeClaim", claim)
    cluster.put("BaseModel", obj)
    for _ in range(5):
        cluster.step(obj)
        for job in cluster.jobs().values():
            assert cluster.task(job)["purpose"] == "fetch"
            cluster.end(job)


def test_a_job_of_a_model_that_was_removed_by_force_does_not_keep_the_next_from_its_files() -> None:
    """The tenant took the finalizer off, and the Job in the controller's namespace is nobody's."""
    cluster = Cluster("a")
    first = cluster.put("BaseModel", model("m", "chat"))
    for _ in range(5):
        cluster.step(first)
    (left,) = cluster.jobs("fetch").values()
    later = model("m", "chat")
    later["metadata"]["uid"] = "uid-later"
    cluster.put("BaseModel", later)
    cluster.settle(later)
    (job,) = cluster.jobs("fetch").values()
    assert job["metadata"]["name"] != left["metadata"]["name"]
    assert cluster.task(job)["uid"] == "uid-later"
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--uid") + 1] == "uid-later", "by which the node knows that it is another one"


def test_what_a_cluster_s_administrator_delivers_is_known_by_its_name() -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model("m"))
    cluster.settle(obj)
    (job,) = cluster.jobs("fetch").values()
    assert "--uid" not in job["spec"]["template"]["spec"]["containers"][0]["args"]
