"""The rules of a delivery: names, placement, reach, Jobs; and that nothing a tenant writes breaks them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from model_world import HOME, Cluster, condition, model

from modelyard.models.delivery import names, world
from modelyard.models.delivery.names import (
    BASE_MODELS,
    CLUSTER_BASE_MODELS,
    FINE_TUNED_WEIGHTS,
    entry_key,
    label_key,
    shortened,
)
from modelyard.models.delivery.placement import excess, exclusion_by_affinity
from modelyard.models.storage.settings import DeliverySettings
from modelyard.objects import Key

LONG = "llama-4-maverick-17b-128e-instruct"


@pytest.mark.parametrize(
    ("key", "label"),
    [
        (Key("", LONG), "models.ome.io/clusterbasemodel.cecd0844-erick-17b-128e-instruct"),
        (Key("", f"{LONG}-fp8"), "models.ome.io/clusterbasemodel.321a5921-k-17b-128e-instruct-fp8"),
        (
            Key("ml-platform-team", "llama-3-3-70b-instruct"),
            "models.ome.io/ml-platform-team.basemodel.llama-3-3-70b-instruct",
        ),
        (
            Key("ml-platform-team", "llama-3-3-70b-instruct-x"),
            "models.ome.io/3c5cab78.basemodel.llama-3-3-70b-instruct-x",
        ),
    ],
)
def test_labels_are_the_published_ones(key: Key, label: str) -> None:
    assert label_key(BASE_MODELS if key.namespace else CLUSTER_BASE_MODELS, key) == label


@given(
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True),
    st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", fullmatch=True),
)
def test_every_name_gives_a_label_and_an_entry_that_kubernetes_takes(namespace: str, name: str) -> None:
    for kind, key in (
        (BASE_MODELS, Key(namespace, name)),
        (CLUSTER_BASE_MODELS, Key("", name)),
        (FINE_TUNED_WEIGHTS, Key("", name)),
    ):
        assert len(label_key(kind, key).removeprefix(names.PREFIX)) <= 63
        assert len(entry_key(kind, key)) <= 253
    assert shortened(name, len(name)) == name
    assert len(shortened(name, 9)) <= 9


def term(*expressions: dict[str, Any], fields: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"matchExpressions": list(expressions), **({"matchFields": fields} if fields else {})}


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}


def e(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("terms", "chosen"),
    [
        ([term(e("gpu", "In", "h100", "l40s"))], True),
        ([term(e("gpu", "In", "a100"))], False),
        ([term(e("gpu", "NotIn", "a100"))], True),
        ([term(e("missing", "NotIn", "x"))], True),  # as in the scheduler
        ([term(e("missing", "In", "x"))], False),
        ([term(e("gpu", "Exists"))], True),
        ([term(e("missing", "Exists"))], False),
        ([term(e("missing", "DoesNotExist"))], True),
        ([term(e("disk", "Gt", "400"))], True),
        ([term(e("disk", "Gt", "500"))], False),
        ([term(e("disk", "Lt", "501"))], True),
        ([term(e("size", "Gt", "1"))], False),  # 500Gi is no whole number
        ([term(e("missing", "Lt", "1"))], False),
        ([term(e("gpu", "In", "h100"), e("disk", "Lt", "1"))], False),
        ([term(e("gpu", "In", "a100")), term(e("disk", "Exists"))], True),
        ([{}], False),  # an empty term matches nothing, as in the scheduler
        ([], False),
        ([term(fields=[e("metadata.name", "In", "n")])], True),
        ([term(fields=[e("metadata.name", "In", "m")])], False),
        ([term(fields=[e("metadata.uid", "In", "n")])], False),
        ([term(e("gpu", "Like", "h"))], False),
    ],
)
def test_nodes_are_chosen_by_the_schedulers_rules(terms: list[dict[str, Any]], chosen: bool) -> None:
    labels = {"gpu": "h100", "disk": "500", "size": "500Gi"}
    assert (exclusion_by_affinity(affinity(*terms), "nodeAffinity", "n", labels) is None) is chosen


@pytest.mark.parametrize(
    ("terms", "wrong"),
    [
        ([], ""),
        ([term(*[e("gpu", "Exists")] * 100)], ""),
        ([term(*[e("gpu", "Exists")] * 101)], "101 expressions"),
        ([term(e("gpu", "Exists"), e("gpu", "Exists"))] * 51, "102 expressions"),
        ([term()] * 101, "101 expressions"),
        ([term(e("gpu", "In", *map(str, range(1000))))], ""),
        ([term(e("gpu", "In", *map(str, range(600))))] * 2, "1200 values"),
    ],
)
def test_what_would_be_looked_at_for_every_node_is_bounded(terms: list[Any], wrong: str) -> None:
    assert (wrong in excess(affinity(*terms))) if wrong else excess(affinity(*terms)) == ""
    told = world.model(CLUSTER_BASE_MODELS, model("m", nodeAffinity=affinity(*terms))).problem
    assert told is None if not wrong else told is not None and told[0] == "InvalidSpec" and wrong in told[1]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "nodeSelectorTerms",
                    "matchExpressions",
                    "matchFields",
                    "key",
                    "operator",
                    "values",
                    "requiredDuringSchedulingIgnoredDuringExecution",
                    "x",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(anything)
def test_no_affinity_raises(what: Any) -> None:
    exclusion_by_affinity(what, "nodeAffinity", "n", {"a": "b"})
    exclusion_by_affinity(what, "f", "n", {"a": "b"})


class Unshown(dict[str, Any]):
    """An object that is too large to be put into words for every node."""

    def __repr__(self) -> str:
        raise AssertionError


def test_an_exclusion_shows_few_values_and_nothing_of_what_is_no_value() -> None:
    odd = affinity(term({"key": Unshown(), "operator": Unshown(), "values": [Unshown()]}))
    assert str(exclusion_by_affinity(odd, "f", "n", {})) == (
        "excluded by term 1 of f: (Unshown) has the operator (Unshown), which does not exist"
    )
    long = affinity(term(e("gpu", "In", "x" * 1000, "b", "c", *[Unshown()] * 997)))  # type: ignore[list-item]
    text = str(exclusion_by_affinity(long, "f", "n", {}))
    assert text == f"excluded by term 1 of f: gpu In [{'x' * 79}…, b, c, and 997 more]"


@given(
    st.text(max_size=60) | st.from_regex(r"(/(\.\.|\.|chat|mnt|models|\.modelyard|[a-z]{1,5})){1,7}/?", fullmatch=True)
)
def test_a_tenants_path_never_leads_out_of_its_folder(path: str) -> None:
    settings = DeliverySettings(namespaceRoots={"chat": ["/data/chat"]})
    if (place := settings.place("chat", path)) is not None:
        parts = path.rstrip("/").split("/")
        assert ".." not in parts
        assert "." not in parts
        assert path.startswith(f"{place[1]}/")
        assert place[1] in ("/mnt/models/chat", "/data/chat")


@pytest.mark.parametrize(
    ("endpoint", "allowed"),
    [
        ("https://s3.eu-west-1.amazonaws.com", True),
        ("http://10.0.0.7:9000", True),
        ("http://10.0.0.7:9001", False),
        ("http://169.254.169.254/latest/meta-data", False),
        ("http://minio.chat.svc:9000", False),
        ("http://localhost:80", False),
        ("file:///etc/passwd", False),
        ("https://user:password@s3.eu-west-1.amazonaws.com", False),
        ("https://s3.eu-west-1.amazonaws.com.example.com", False),
        ("https://[::1]", False),
        ("not a url", False),
    ],
)
def test_endpoints_are_those_that_an_administrator_lists(endpoint: str, allowed: bool) -> None:
    settings = DeliverySettings(endpoints=["*.amazonaws.com", "10.0.0.7:9000"])
    assert (settings.hosts.refusal(endpoint, "fetched from") is None) is allowed
    if endpoint.startswith("http://169"):
        assert DeliverySettings(endpoints=["*"]).hosts.refusal(endpoint, ""), "a star is no internal address"


def test_a_job_has_the_least_rights_and_no_secret_in_its_arguments() -> None:
    cluster = Cluster("a")
    obj = cluster.put("BaseModel", model("m", "chat", "hf://meta/llama", parameters={"token": "hf_very_secret"}))
    plan = cluster.step(obj)
    assert plan is not None
    (job,) = plan.apply
    assert job["metadata"]["namespace"] == HOME
    spec = job["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert "hf_very_secret" not in str(job)
    assert "hf_very_secret" not in str(obj.get("status"))
    (handed,) = plan.hand_over
    assert handed.secret is None
    assert handed.extra == {"token": "hf_very_secret"}
    (container,) = spec["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    arguments = container["args"]
    assert arguments[arguments.index("--below") + 1] == "/mnt/models/chat"
    assert {"name": "AWS_EC2_METADATA_DISABLED", "value": "true"} in container["env"]
    for name in ("AZURE_FEDERATED_TOKEN_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        assert {"name": name, "value": ""} in container["env"]


def test_parameters_of_a_bucket_reach_the_job() -> None:
    parameters = {"region": "eu-west-1", "addressingStyle": "path"}
    cluster = Cluster("a")
    cluster.settle(cluster.put("BaseModel", model("m", "chat", "s3://bucket/m", parameters=parameters)))
    (job,) = cluster.jobs().values()
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--region=eu-west-1", "--addressing-style=path"} <= set(arguments)


@pytest.mark.parametrize(
    ("uri", "parameters", "wrong"),
    [
        (
            "oci://n/ns/b/bkt/o/m",
            {},
            "names no region, without which there is no address; write oci://n/ns@REGION/b/bkt/o/m",
        ),
        ("obs://bkt/m", {}, "names no region, without which there is no address; write obs://bkt@REGION/m"),
        ("s3://bkt/m", {"region": "EU West"}, "'EU West' is no region; write one such as eu-west-1"),
        ("s3://bkt/m", {"addressingStyle": "dns"}, "addressingStyle 'dns' is none; write virtual or path"),
        ("oci://n/ns/b/bkt/o/m", {"region": "eu-frankfurt-1"}, None),
        ("obs://bkt@cn-north-4/m", {}, None),
        ("s3://bkt/m", {}, None),
        ("gs://bkt/m", {"region": "EU West"}, None),
    ],
)
def test_a_bucket_that_has_no_address_is_refused_before_a_job_is_made(
    uri: str, parameters: dict[str, str], wrong: str | None
) -> None:
    cluster = Cluster("a")
    obj = cluster.put("BaseModel", model("m", "chat", uri, parameters=parameters))
    cluster.settle(obj)
    assert (wrong is None) is bool(cluster.jobs())
    if wrong is not None:
        assert condition(obj, "Resolved") == ("False", "InvalidSpec")
        assert wrong in str(obj["status"])


def test_a_job_believes_the_authorities_that_the_administrator_names() -> None:
    for text, name in (("", None), ("caBundle: company-ca", "company-ca")):
        cluster = Cluster("a", settings=text)
        cluster.put("ConfigMap", {"metadata": {"name": "company-ca", "namespace": HOME}, "data": {"ca.crt": "PEM"}})
        cluster.settle(cluster.put("ClusterBaseModel", model()))
        (job,) = cluster.jobs().values()
        spec = job["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        found = {one["name"]: one["value"] for one in container["env"]}.get("SSL_CERT_FILE")
        volumes = {one["name"]: one.get("configMap", {}).get("name") for one in spec["volumes"]}
        mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        assert volumes.get("authorities") == name
        assert found == (f"{mounts['authorities']}/ca.crt" if name else None)


def test_authorities_that_are_not_there_are_told_before_a_job_waits_for_them() -> None:
    cluster = Cluster("a", settings="caBundle: company-ca")
    obj = cluster.put("ClusterBaseModel", model())
    for there in ({}, {"other.crt": "PEM"}):
        cluster.settle(obj)
        assert condition(obj, "Ready") == ("False", "CABundleNotFound")
        assert "company-ca" in obj["status"]["conditions"][-1]["message"]
        assert not cluster.jobs()
        bundle = cluster.put("ConfigMap", {"metadata": {"name": "company-ca", "namespace": HOME}, "data": there})
    bundle["data"] = {"ca.crt": "PEM"}
    cluster.settle(obj)
    (job,) = cluster.jobs().values()
    pod = cluster.get("Pod", job["metadata"]["name"], HOME)
    waiting = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    pod["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
    cluster.settle(obj)
    assert condition(obj, "Ready") == ("False", "Starting")
    bundle["data"] = {}
    cluster.settle(obj)
    assert condition(obj, "Ready") == ("False", "CABundleNotFound")
    bundle["data"] = {"ca.crt": "PEM"}
    cluster.end(job, revision="r")
    cluster.settle(obj)
    bundle["data"] = {}
    cluster.settle(obj)
    assert condition(obj, "Ready") == ("True", "Ready"), "what is there stays there"


@pytest.mark.parametrize(
    ("labels", "short"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, "H100"),
        ({"nvidia.com/gpu.product": "Tesla-T4", "node.kubernetes.io/instance-type": "p5.48xlarge"}, "T4"),
        ({"node.kubernetes.io/instance-type": "BM.GPU.H100.8"}, "H100"),
        ({}, None),
    ],
)
@pytest.mark.parametrize("kind", ["Serving", None, "Training"])
def test_a_node_takes_the_tensorrt_engines_of_its_own_accelerator(
    labels: dict[str, str], short: str | None, kind: str | None
) -> None:
    cluster = Cluster()
    cluster.node("a", **labels)
    obj = model()
    obj["spec"] |= {"modelFormat": {"name": "TensorRTLLM"}}
    if kind is not None:
        obj["spec"]["additionalMetadata"] = {"type": kind}
    cluster.settle(cluster.put("ClusterBaseModel", obj))
    (job,) = cluster.jobs().values()
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    told = arguments[arguments.index("--accelerator") + 1] if "--accelerator" in arguments else None
    assert told == (None if kind == "Training" else short)


values = st.none() | st.booleans() | st.integers(-3, 2**40) | st.text(max_size=30)
documents = st.recursive(
    values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@given(
    storage=st.dictionaries(
        st.sampled_from(
            ["storageUri", "path", "key", "parameters", "nodeSelector", "nodeAffinity", "downloadPolicy", "x"]
        ),
        documents,
        max_size=5,
    ),
    status=documents,
    annotations=st.dictionaries(
        st.sampled_from(
            [
                "modelyard.dev/deliver",
                "modelyard.dev/verify",
                "modelyard.dev/filled",
                "modelyard.dev/claim-report",
                "modelyard.dev/run",
            ]
        ),
        st.text(max_size=40),
        max_size=4,
    ),
    entry=st.text(max_size=60)
    | st.sampled_from(
        ['{"delivered": {"next": 1e400}}', '{"delivered": 3}', '{"status": "Ready", "delivered": {"uid": "uid-llama"}}']
    ),
)
def test_no_object_raises_or_is_deleted_that_is_not_its_own(
    storage: dict[str, Any], status: Any, annotations: dict[str, str], entry: str
) -> None:
    cluster = Cluster("a", "b")
    obj = model()
    obj["spec"]["storage"] = {"storageUri": "hf://meta/llama", **storage}
    obj["status"] = status if isinstance(status, dict) else {}
    obj["metadata"]["annotations"] = annotations
    cluster.put("ClusterBaseModel", obj)
    report = {
        "metadata": {"name": "a", "namespace": HOME, "uid": "r", "labels": {names.REPORT_LABEL: "true"}},
        "data": {"clusterbasemodel.llama": entry, "clusterbasemodel.other": "{}"},
    }
    cluster.put("ConfigMap", report)
    other = cluster.put(
        "Job",
        {
            "metadata": {
                "name": "other",
                "namespace": HOME,
                "uid": "j",
                "labels": {"modelyard.dev/model": "else"},
                "annotations": {},
            }
        },
    )
    plan = cluster.step(obj)
    assert plan is not None
    assert all(child.uid != "j" for child in plan.delete)
    assert other in cluster.all("Job")
    assert cluster.get("ConfigMap", "a", HOME)["data"]["clusterbasemodel.other"] == "{}"
    assert len(str(plan.status)) < 50_000


def test_the_status_of_many_nodes_stays_below_64_kilobytes() -> None:
    cluster = Cluster(*(f"node-{number:04}" for number in range(300)), settings="nodesPerSource: 300")
    obj = cluster.put("ClusterBaseModel", model())
    for _ in range(22):
        cluster.step(obj)
    assert len(cluster.jobs()) == 300
    for job in cluster.jobs().values():
        cluster.end(job, "Failed", reason="NotFound", message="x" * 1000)
    for _ in range(22):
        cluster.step(obj)
    assert obj["status"]["delivery"]["failed"] == 300
    assert len(str(obj["status"])) < 64_000


@pytest.mark.parametrize(
    ("storage", "nodes", "message"),
    [
        ({}, {}, "the cluster has no nodes"),
        (
            {"nodeSelector": {"gpu": "h100"}},
            {"a": {"gpu": "a100"}, "b": {"gpu": "a100"}, "c": {}},
            "none of 3 nodes is chosen: 3 without the label gpu=h100 of spec.storage.nodeSelector (2 with gpu=a100)",
        ),
        (
            {"nodeSelector": {"disk": "fast", "gpu": "h100"}},
            {"a": {"disk": "fast"}, "b": {}, "c": {}},
            "none of 3 nodes is chosen: 2 without the label disk=fast of spec.storage.nodeSelector;"
            " 1 without the label gpu=h100 of spec.storage.nodeSelector",
        ),
        (
            {"nodeAffinity": affinity(term({"key": "gpu", "operator": "In", "values": ["h100", "h200"]}))},
            {"a": {"gpu": "l4"}},
            "the node is not chosen: 1 excluded by term 1 of spec.storage.nodeAffinity: gpu In [h100, h200]"
            " (1 with gpu=l4)",
        ),
        (
            {
                "nodeAffinity": affinity(
                    term({"key": "x", "operator": "Exists"}, {"key": "y", "operator": "Exists"}),
                    term({"key": "zone", "operator": "In", "values": ["b"]}, {"key": "gpu", "operator": "Exists"}),
                )
            },
            {"a": {"zone": "b"}, "b": {"zone": "b"}},
            "none of 2 nodes is chosen: 2 excluded by term 2 of spec.storage.nodeAffinity: gpu Exists",
        ),
        (
            {"nodeAffinity": affinity({})},
            {"a": {}},
            "the node is not chosen: 1 excluded by term 1 of spec.storage.nodeAffinity: it is empty, and an empty term"
            " matches no node",
        ),
        (
            {"nodeAffinity": affinity(term({"key": "gpu", "operator": "in", "values": ["x"]}))},
            {"a": {"gpu": "x"}},
            "the node is not chosen: 1 excluded by term 1 of spec.storage.nodeAffinity: gpu has the operator in, which"
            " does not exist (1 with gpu=x)",
        ),
        (
            {"nodeAffinity": affinity(term(fields=[{"key": "metadata.name", "operator": "In", "values": ["b"]}]))},
            {"a": {}},
            "the node is not chosen: 1 excluded by term 1 of spec.storage.nodeAffinity: metadata.name In [b]",
        ),
    ],
)
def test_no_matching_nodes_names_the_cause(
    storage: dict[str, Any], nodes: dict[str, dict[str, str]], message: str
) -> None:
    cluster = Cluster()
    for name, labels in nodes.items():
        cluster.node(name, **labels)
    obj = cluster.put("ClusterBaseModel", model(**storage))
    cluster.settle(obj)
    assert condition(obj, "Ready") == ("False", "NoMatchingNodes")
    assert {c["message"] for c in obj["status"]["conditions"] if c["reason"] == "NoMatchingNodes"} == {message}


def test_control_plane_and_the_administrators_selector_are_causes_too() -> None:
    cluster = Cluster(settings="nodeSelector: {pool: models}")
    cluster.node("master")["spec"] = {"taints": [{"key": "node-role.kubernetes.io/control-plane"}]}
    cluster.node("worker", pool="web")
    obj = cluster.put("ClusterBaseModel", model())
    cluster.settle(obj)
    message = next(c["message"] for c in obj["status"]["conditions"] if c["type"] == "Ready")
    assert message == (
        "none of 2 nodes is chosen: 1 of the control plane; 1 without the label pool=models of nodeSelector"
        " in ConfigMap modelyard-models (1 with pool=web)"
    )


@pytest.mark.parametrize("ready", [True, False])
def test_a_node_that_is_chosen_names_what_keeps_its_job(ready: bool) -> None:
    """A taint or missing resource is in the scheduler's own words, a node that is not ready is no missing match."""
    cluster = Cluster()
    cluster.node("a", ready=ready)
    obj = cluster.put("ClusterBaseModel", model())
    cluster.settle(obj)
    if not ready:
        assert condition(obj, "Ready") == ("False", "NodeNotReady")
        return
    words = "0/1 nodes are available: 1 node(s) had untolerated taint {dedicated: train}."
    pod = cluster.all("Pod")[0]
    del pod["spec"]["nodeName"]
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    pod["status"] = {"phase": "Pending", "conditions": [unschedulable]}
    cluster.settle(obj)
    assert condition(obj, "Ready") == ("False", "Unschedulable")
    assert words in next(c["message"] for c in obj["status"]["conditions"] if c["type"] == "Ready")
