"""What a Model is rendered to: the examples and tables of the reference, with their repairs."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest
from call_counts import count_calls
from kthena_models import (
    DATA,
    LWS,
    PLAIN,
    UID,
    a_backend,
    a_model,
    a_worker,
    children,
    engine_of,
    model_named,
    names,
    of_kind,
    pod_of,
    refused,
    render_model,
    rendered_named,
    written,
)

from modelyard.autoscaling.reading.bindings.objects import binding as read_binding
from modelyard.models.storage.settings import DeliverySettings
from modelyard.resources import Duration, Model, parse
from modelyard.resources.annotations import SCALE_TO_ZERO_GRACE
from modelyard.routing import objects as routing
from modelyard.workloads.kthena.setup import Existing
from modelyard.workloads.kthena.traffic import model_routes
from modelyard.workloads.rendering import engines
from modelyard.workloads.rendering.settings import ServingSettings
from modelyard.workloads.rendering.values import MOST_PROBLEMS, Abilities, Refused, Rendered

DECODE = a_worker("decode")
POLICY = {"metrics": [{"metricName": "vllm:num_requests_waiting", "targetValue": 5}]}
MD5 = "18488ba95d6e1baca4a2755a6748053e"
"""Of hf://Qwen/Qwen2.5-0.5B-Instruct."""


@pytest.mark.parametrize("name", names())
def test_golden(name: str) -> None:
    """Reviewed files; ``python tests/support/kthena_models.py`` writes them anew."""
    assert written(rendered_named(name)) == (DATA / f"{name}.rendered.yaml").read_text("utf-8")


@pytest.mark.parametrize("name", names())
def test_objects_of_kubernetes_are_valid_by_its_current_schemas(name: str) -> None:
    bodies = [child.body for child in rendered_named(name).children]
    core = [body for body in bodies if body["apiVersion"] in ("v1", "apps/v1")]
    for body in core:
        kubernetes_validate.validate(body, "1.37", strict=True)
    for one in (body["spec"]["leaderWorkerTemplate"] for body in bodies if body["kind"] == "LeaderWorkerSet"):
        for template in (one["leaderTemplate"], one["workerTemplate"]):
            kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **template}, "1.37", strict=True)
            core.append(template)
    assert core


@pytest.mark.parametrize("name", names())
def test_custom_kinds_are_as_their_models_have_them(name: str) -> None:
    for child in rendered_named(name).children:
        if child.body["apiVersion"].partition("/")[0] in ("registry.volcano.sh", "networking.volcano.sh", "ome.io"):
            parse(child.body)


def only(model: dict[str, Any], kind: str = "Deployment", abilities: Abilities = PLAIN, **more: Any) -> dict[str, Any]:
    (found,) = of_kind(children(model, abilities, **more), kind)
    return found


def args(model: dict[str, Any]) -> list[str]:
    found: list[str] = engine_of(only(model))["args"]
    return found


def labels_of(template: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = template["metadata"]["labels"]
    return found


def env(container: dict[str, Any]) -> dict[str, Any]:
    assert len({one["name"] for one in container["env"]}) == len(container["env"]), "a variable twice"
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


# Names and labels


def test_children_have_the_published_names_and_labels() -> None:
    found = children(a_model(a_backend(name="a"), a_backend(name="b")))
    assert [(child.kind, child.name, child.component) for child in found.children] == [
        ("Deployment", "chat-a", "a"),
        ("Deployment", "chat-b", "b"),
        ("ModelServer", "chat-a", "a"),
        ("ModelServer", "chat-b", "b"),
        ("ModelRoute", "chat", ""),
    ]
    for child in found.children:
        labels = child.body["metadata"]["labels"]
        assert re.fullmatch("[0-9a-f]{10}", labels.pop("registry.volcano.sh/revision"))
        assert labels == {
            "registry.volcano.sh/model-name": "chat",
            "registry.volcano.sh/backend-name": child.component,
            "registry.volcano.sh/managed-by": "registry.volcano.sh",
            "registry.volcano.sh/model-uid": UID,
        }
    pods = of_kind(found, "Deployment")[0]["spec"]["template"]["metadata"]["labels"]
    assert {key.partition("/")[2] for key in pods if key.startswith("modelinfer.")} == {
        *("name", "group-name", "role", "role-id", "revision", "entry")
    }
    assert pods["modelinfer.volcano.sh/entry"] == "true"
    assert pods["modelinfer.volcano.sh/role"] == "leader"


def test_the_owner_is_an_annotation() -> None:
    metadata = only(a_model(owner="team-chat"))["metadata"]
    assert metadata["annotations"] == {"modelyard.dev/model-owner": "team-chat"}


@pytest.mark.parametrize("name", ["x" * 253, "a.b.c", "7b-chat", "a" * 63])
@pytest.mark.parametrize("abilities", [PLAIN, LWS])
def test_every_name_and_label_is_legal_however_a_model_is_called(name: str, abilities: Abilities) -> None:
    backends = [
        a_backend(name="y" * 60),
        a_backend(name="2", workers=[a_worker(pods=3)], loraAdapters=[{"name": "l", "artifactURL": "hf://a/b"}]),
        a_backend("vLLMDisaggregated", "pd"),
    ]
    found = children(a_model(*backends, name=name), abilities)
    called = [(child.kind, child.name) for child in found.children]
    assert len(set(called)) == len(called)
    for child in found.children:
        most = 52 if child.kind == "StatefulSet" else 63
        assert len(child.name) <= most
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", child.name)
        assert child.kind not in ("Service", "StatefulSet", "LeaderWorkerSet") or child.name[0].isalpha()
        spec = child.body["spec"]
        templates = [spec.get("template"), *(spec.get("leaderWorkerTemplate") or {}).values()]
        for one in (child.body, *(t for t in templates if isinstance(t, dict))):
            for value in one["metadata"]["labels"].values():
                assert len(value) <= 63
                assert re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", value)


# Paths, files, init containers


def test_without_a_cache_the_model_is_below_models() -> None:
    deployment = only(a_model())
    assert args(a_model())[:2] == ["--model", f"/models/{MD5}"]
    assert pod_of(deployment)["volumes"][0] == {"name": "main-weights", "emptyDir": {}}
    (init,) = pod_of(deployment)["initContainers"]
    assert init["name"] == "chat-model-downloader"
    assert init["volumeMounts"] == [{"name": "main-weights", "mountPath": "/models"}]
    assert init["resources"]["requests"]
    given = dict(zip(init["args"][::2], init["args"][1::2], strict=True))
    assert given["--uri"] == "hf://Qwen/Qwen2.5-0.5B-Instruct"
    assert given["--path"] == f"/models/{MD5}"
    assert given["--policy"] == "ReuseIfExists"
    assert engine_of(deployment)["volumeMounts"][0] == {
        "name": "main-weights",
        "mountPath": "/models",
        "readOnly": True,
    }


@pytest.mark.parametrize("cache", ["pvc://claim", "pvc:///claim", "pvc:////claim///"])
def test_a_claim_as_cache_is_mounted_under_its_name(cache: str) -> None:
    pod = pod_of(only(a_model(a_backend(cacheURI=cache))))
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "claim"}
    assert pod["initContainers"][0]["volumeMounts"][0]["mountPath"] == "/claim"


@pytest.mark.parametrize("cache", ["hostpath://mnt/models", "hostpath:///mnt/models/"])
def test_a_model_on_the_nodes_is_delivered_and_mounted_read_only(cache: str) -> None:
    model = a_model(a_backend(cacheURI=cache))
    (base,) = of_kind(children(model), "BaseModel")
    pod = pod_of(only(model))
    assert base["spec"]["storage"]["path"] == f"/mnt/models/shop/{MD5}"
    assert pod["nodeSelector"] == {f"models.ome.io/shop.basemodel.{base['metadata']['name']}": "Ready"}
    assert pod["volumes"][0]["hostPath"] == {"path": f"/mnt/models/shop/{MD5}", "type": "Directory"}
    assert engine_of(only(model))["volumeMounts"][0]["readOnly"] is True
    assert engine_of(only(model))["args"][1] == f"/mnt/models/{MD5}"
    assert "initContainers" not in pod


def test_a_folder_that_the_namespace_may_not_have_is_refused() -> None:
    model = a_model(a_backend(cacheURI="hostpath:///etc"))
    found = refused(model)
    assert (found.reason, found.field) == ("PathNotAllowed", "spec.backends[0].cacheURI")
    assert "hostpath:///mnt/models/shop" in found.remedy
    assert refused(a_model(a_backend(cacheURI="hostpath:///mnt/models/other"))).reason == "PathNotAllowed"
    allowed = Abilities(settings=ServingSettings(models=DeliverySettings(namespace_roots={"shop": ["/etc"]})))
    (base,) = of_kind(children(model, allowed), "BaseModel")
    assert base["spec"]["storage"]["path"] == f"/etc/{MD5}"


def test_a_delivered_model_has_the_backends_credentials_and_nodes() -> None:
    terms = [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    backend = a_backend(
        cacheURI="hostpath:///mnt/models",
        env=[
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
            {"name": "HF_ENDPOINT", "value": "https://mirror.example"},
            {"name": "HF_REVISION", "value": "v1"},
        ],
        workers=[a_worker(affinity={"nodeAffinity": required})],
    )
    storage = of_kind(children(a_model(backend)), "BaseModel")[0]["spec"]["storage"]
    assert storage["storageUri"] == "hf://Qwen/Qwen2.5-0.5B-Instruct@v1"
    assert storage["key"] == "hub"
    assert storage["parameters"] == {"endpoint": "https://mirror.example", "secretKey": "token"}
    assert storage["nodeAffinity"] == required
    backend["env"][0] = {"name": "HF_AUTH_TOKEN", "value": "hf_x"}
    assert of_kind(children(a_model(backend)), "BaseModel")[0]["spec"]["storage"]["parameters"]["token"] == "hf_x"


def test_a_model_in_a_claim_is_used_where_it_is() -> None:
    backend = a_backend(
        modelURI="pvc://weights/llama/8b", loraAdapters=[{"name": "l", "artifactURL": "pvc://weights/l"}]
    )
    pod, engine = pod_of(only(a_model(backend))), engine_of(only(a_model(backend)))
    assert "initContainers" not in pod
    assert engine["args"][1] == "/weights/llama/8b"
    assert "l=/weights/l" in engine["args"]
    assert [one for one in engine["volumeMounts"] if one["mountPath"] == "/weights"] == [
        {"name": "main-source", "mountPath": "/weights", "readOnly": True}
    ]
    assert pod_of(only(a_model(backend | {"cacheURI": "pvc://weights"})))["volumes"] == pod["volumes"]


def test_a_model_in_a_claim_is_copied_where_another_is_to_hold_it() -> None:
    pod = pod_of(only(a_model(a_backend(modelURI="pvc://archive/m", cacheURI="pvc://fast"))))
    (init,) = pod["initContainers"]
    assert init["args"][0] == "/archive/m"
    assert init["args"][1].startswith("/fast/")
    assert init["volumeMounts"][1]["readOnly"] is True


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"modelURI": "pvc://claim/../x"}, "modelURI"),
        ({"modelURI": "pvc://../claim"}, "modelURI"),
        ({"modelURI": "pvc://other:claim/x"}, "modelURI"),
        ({"modelURI": "hf://a/b/c"}, "modelURI"),
        ({"modelURI": "s3://b/../x"}, "modelURI"),
        ({"modelURI": "pvc://a/b", "cacheURI": "hostpath:///mnt/models"}, "cacheURI"),
        ({"cacheURI": "pvc:///"}, "cacheURI"),
        ({"cacheURI": "pvc://a/b"}, "cacheURI"),
        ({"cacheURI": "hostpath:///mnt/../etc"}, "cacheURI"),
        ({"loraAdapters": [{"name": "l", "artifactURL": "hf://a/b/c"}]}, "loraAdapters[0].artifactURL"),
    ],
)
def test_what_names_no_files_is_refused(more: dict[str, Any], field: str) -> None:
    assert refused(a_model(a_backend(**more))).field == f"spec.backends[0].{field}"


SOURCES = [{"configMapRef": {"name": "tuning"}, "prefix": "T_"}, {"secretRef": {"name": "s", "optional": True}}]


@pytest.mark.parametrize("type", ["vLLM", "SGLang", "vLLMDisaggregated", "MindIE"])
def test_every_source_of_variables_reaches_every_engine(type: str) -> None:
    for deployment in of_kind(children(a_model(a_backend(type, envFrom=SOURCES))), "Deployment"):
        assert engine_of(deployment)["envFrom"] == SOURCES
        assert all(init["envFrom"] == SOURCES for init in pod_of(deployment).get("initContainers", ()))


@pytest.mark.parametrize("abilities", [PLAIN, LWS])
def test_every_source_of_variables_reaches_every_pod_of_a_group(abilities: Abilities) -> None:
    rendering = children(a_model(a_backend(workers=[a_worker(pods=2)], envFrom=SOURCES)), abilities)
    specs = [body["spec"]["leaderWorkerTemplate"] for body in of_kind(rendering, "LeaderWorkerSet")]
    pods = [spec[part]["spec"] for spec in specs for part in ("leaderTemplate", "workerTemplate")]
    pods += [pod_of(body) for body in of_kind(rendering, "StatefulSet")]
    assert len(pods) == 2
    assert all(pod["containers"][0]["envFrom"] == SOURCES for pod in pods)


def test_every_variable_reaches_the_download() -> None:
    own = [{"name": "HF_AUTH_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    backend = a_backend(env=[*own, {"name": "HF_REVISION", "value": "v1"}], envFrom=[{"secretRef": {"name": "s"}}])
    (init,) = pod_of(only(a_model(backend)))["initContainers"]
    assert init["env"][0] == own[0]
    assert init["envFrom"] == [{"secretRef": {"name": "s"}}]
    assert init["args"][1] == "hf://Qwen/Qwen2.5-0.5B-Instruct@$(HF_REVISION)"
    assert engine_of(only(a_model(backend)))["envFrom"] == [{"secretRef": {"name": "s"}}]


def test_the_download_uses_the_hub_that_an_administrator_names_unless_the_backend_has_its_own() -> None:
    settings = DeliverySettings(hub_endpoint="https://hub.example.com")
    private, other = (
        Abilities(settings=ServingSettings(models=settings)),
        {"name": "HF_ENDPOINT", "value": "http://own:1"},
    )
    for own, hub in (([], "https://hub.example.com"), ([other], "http://own:1")):
        (init,) = pod_of(only(a_model(a_backend(env=own)), abilities=private))["initContainers"]
        assert [entry["value"] for entry in init["env"] if entry["name"] == "HF_ENDPOINT"] == [hub]


def test_the_download_uses_the_proxy_that_an_administrator_names_unless_the_backend_has_its_own() -> None:
    settings = DeliverySettings(https_proxy="http://proxy:3128", no_proxy=["minio.example.com"])
    proxied = Abilities(settings=ServingSettings(models=settings))
    for own, proxy in (([], "http://proxy:3128"), ([{"name": "HTTPS_PROXY", "value": "http://own:1"}], "http://own:1")):
        deployment = only(a_model(a_backend(env=own)), abilities=proxied)
        (init,) = pod_of(deployment)["initContainers"]
        env = {entry["name"]: entry["value"] for entry in init["env"]}
        assert env["HTTPS_PROXY"] == proxy
        assert env.get("https_proxy") == (None if own else proxy)
        assert env.get("NO_PROXY", "minio.example.com,").startswith("minio.example.com,")
        assert "https_proxy" not in {entry["name"] for entry in engine_of(deployment).get("env", ())}


# Arguments, environment


def test_what_the_user_sets_wins() -> None:
    given = {"port": "9000", "served_model_name": ["big", "b"], "model": "/elsewhere"}
    model = a_model(a_backend(workers=[a_worker(config=given)]))
    assert args(model) == ["--model", "/elsewhere", "--port", "9000", "--served-model-name", "big", "b"]
    deployment = only(model)
    assert engine_of(deployment)["readinessProbe"]["httpGet"]["port"] == 9000
    server = only(model, "ModelServer")["spec"]
    assert (server["workloadPort"]["port"], server["model"]) == (9000, "big")


def test_the_engine_is_always_told_port_and_name_and_never_forced() -> None:
    assert args(a_model()) == ["--model", f"/models/{MD5}", "--port", "8000", "--served-model-name", "chat"]


def test_environment() -> None:
    own = [{"name": "VLLM_USE_V1", "value": "0"}, {"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    found = env(engine_of(only(a_model(a_backend(env=own)))))
    assert found["VLLM_USE_V1"] == "0"
    assert found["A"] == "2"
    assert found["POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert found["NAMESPACE"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}


def test_the_environment_of_roles() -> None:
    prefill, decode = of_kind(children(a_model(a_backend("vLLMDisaggregated"))), "Deployment")
    assert env(engine_of(prefill))["HCCL_IF_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert env(engine_of(prefill))["HF_HUB_OFFLINE"] == env(engine_of(decode))["HF_HUB_OFFLINE"] == "1"
    assert {env(engine_of(decode))[f"{name}_SOCKET_IFNAME"] for name in ("GLOO", "TP", "HCCL")} == {"eth0"}


def test_a_pod_starts_at_its_own_pace_and_ends_when_it_is_idle() -> None:
    deployment = only(a_model())
    engine = engine_of(deployment)
    assert engine["startupProbe"]["failureThreshold"] * engine["startupProbe"]["periodSeconds"] == 3600
    assert "initialDelaySeconds" not in engine["livenessProbe"]
    program = engine["lifecycle"]["preStop"]["exec"]["command"][2]
    compile(program, "drain", "exec")
    assert engines.DRAIN_SECONDS < pod_of(deployment)["terminationGracePeriodSeconds"] == 300
    (spread,) = pod_of(deployment)["topologySpreadConstraints"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert pod_of(deployment)["volumes"][-1] == {"name": "shm", "emptyDir": {"medium": "Memory"}}


def test_images_by_type_and_affinity() -> None:
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    model = a_model(a_backend("SGLang", workers=[{"type": "server", "affinity": affinity}]))
    deployment = only(model)
    assert engine_of(deployment)["image"].startswith("lmsysorg/sglang:")
    assert pod_of(deployment)["affinity"] == affinity


def test_sglang() -> None:
    lora = [{"name": "tone", "artifactURL": "s3://bucket/tone"}]
    deployment = only(a_model(a_backend("SGLang", loraAdapters=lora)))
    engine = engine_of(deployment)
    assert engine["command"] == ["python3", "-m", "sglang.launch_server"]
    given = engine["args"]
    assert given[given.index("--host") + 1] == "0.0.0.0"
    assert given[given.index("--port") + 1] == "30000"
    assert "--enable-metrics" in given
    assert given[given.index("--lora-paths") + 1].startswith("tone=/models/")
    server = only(a_model(a_backend("SGLang")), "ModelServer")["spec"]
    assert (server["inferenceEngine"], server["workloadPort"]["port"]) == ("SGLang", 30000)


def test_a_simulated_engine_runs_by_its_own_entrypoint() -> None:
    worker = a_worker(image="modelyard.dev/simulated-engine:latest")
    engine = engine_of(only(a_model(a_backend(workers=[worker]))))
    assert "command" not in engine
    assert "lifecycle" not in engine
    assert engine["args"][0] == "--model"


# Workloads


def test_one_pod_a_replica_is_a_deployment() -> None:
    backend = a_backend(minReplicas=3, maxReplicas=3, workers=[a_worker(replicas=2)])
    spec = only(a_model(backend))["spec"]
    assert spec["replicas"] == 6
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


@pytest.mark.parametrize("pods", [0, 1, None])
def test_few_pods_are_one(pods: int | None) -> None:
    more = {} if pods is None else {"pods": pods}
    assert children(a_model(a_backend(workers=[a_worker(**more)]))).modes == {"main": "Deployment"}


def test_several_pods_a_replica_are_a_leader_worker_set() -> None:
    limits = {"limits": {"nvidia.com/gpu": "8", "cpu": 4}}
    lora = [{"name": "l", "artifactURL": "hf://a/b"}]
    worker = a_worker(pods=3, resources=limits, config={"chat-template": "it's {{ $x }}"})
    model = a_model(a_backend(minReplicas=2, maxReplicas=2, workers=[worker], loraAdapters=lora))
    spec = only(model, "LeaderWorkerSet", LWS)["spec"]
    template = spec["leaderWorkerTemplate"]
    assert (spec["replicas"], template["size"]) == (2, 3)
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"
    leader = engine_of({"spec": {"template": template["leaderTemplate"]}})
    other = engine_of({"spec": {"template": template["workerTemplate"]}})
    (script,) = leader["args"]
    assert "leader --ray_cluster_size=3 --num-gpus=8 && exec python3 -m vllm" in script
    assert "--distributed-executor-backend ray" in script
    assert "--enable-lora --lora-modules l=/models/" in script
    assert """'it'"'"'s {{ $x }}'""" in script
    assert other["args"] == [f"exec bash {engines.RAY_SCRIPT} worker --ray_address=$(ENTRY_ADDRESS)"]
    assert env(other)["ENTRY_ADDRESS"] == "$(LWS_LEADER_ADDRESS)"
    assert "readinessProbe" not in other
    entries = [
        template[one]["metadata"]["labels"]["modelinfer.volcano.sh/entry"]
        for one in ("leaderTemplate", "workerTemplate")
    ]
    assert entries == ["true", "false"]


def test_several_pods_a_replica_without_leader_worker_set() -> None:
    worker = a_worker(pods=2, replicas=2)
    found = children(a_model(a_backend(minReplicas=2, maxReplicas=2, workers=[worker])))
    services, sets = of_kind(found, "Service"), of_kind(found, "StatefulSet")
    assert len(services) == 4
    assert len(sets) == 8
    for service in services:
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
        match = service["spec"]["selector"].items()
        assert sum(match <= one["spec"]["template"]["metadata"]["labels"].items() for one in sets) == 2
    first = env(engine_of(sets[0]))
    assert first["LWS_LEADER_ADDRESS"] == "chat-main-0-0-0.chat-main-0.shop"
    assert [env(engine_of(one))["LWS_WORKER_INDEX"] for one in sets[:2]] == ["0", "1"]


@pytest.mark.parametrize(
    ("resources", "devices"),
    [
        ({"limits": {"nvidia.com/gpu": 4}, "requests": {"nvidia.com/gpu": 2}}, 4),
        ({"requests": {"huawei.com/ascend-1980": "2"}}, 2),
        ({"limits": {"cpu": 8}}, None),
        (None, None),
    ],
)
def test_devices_are_limits_else_requests(resources: Any, devices: int | None) -> None:
    worker = a_worker(pods=2, **({"resources": resources} if resources else {}))
    sets = of_kind(children(a_model(a_backend(workers=[worker]))), "StatefulSet")
    (script,) = engine_of(sets[0])["args"]
    assert (f"--num-gpus={devices}" in script) if devices else ("--num-gpus" not in script)


def test_roles_apart_are_a_deployment_each_in_every_group() -> None:
    workers = [a_worker("decode", replicas=3), a_worker("prefill")]
    found = children(a_model(a_backend("vLLMDisaggregated", minReplicas=2, maxReplicas=2, workers=workers)))
    made = {one["metadata"]["name"]: one["spec"]["replicas"] for one in of_kind(found, "Deployment")}
    assert made == {
        "chat-main-0-decode": 3,
        "chat-main-0-prefill": 1,
        "chat-main-1-decode": 3,
        "chat-main-1-prefill": 1,
    }
    groups = [
        one["spec"]["template"]["metadata"]["labels"]["modelinfer.volcano.sh/group-name"]
        for one in of_kind(found, "Deployment")
    ]
    assert groups == ["chat-main-0", "chat-main-0", "chat-main-1", "chat-main-1"]
    pairing = of_kind(found, "ModelServer")[0]["spec"]["workloadSelector"]["pdGroup"]
    assert pairing["groupKey"] == "modelinfer.volcano.sh/group-name"


# What rolls, and whose replicas they are


def template_of(**more: Any) -> Any:
    return only(a_model(a_backend(**more)))["spec"]["template"]


def test_only_what_reaches_the_pods_changes_them() -> None:
    first = template_of()
    policy = {"metrics": [{"metricName": "vllm:num_requests_waiting", "targetValue": 5}]}
    for more in (
        {"routeWeight": 7},
        {"minReplicas": 2, "maxReplicas": 2},
        {"maxReplicas": 9, "autoscalingPolicy": policy},
    ):
        assert template_of(**more) == first
    assert template_of(env=[{"name": "A", "value": "1"}]) != first
    other = Abilities(settings=ServingSettings(models=DeliverySettings(image="example.com/modelyard:2")))
    assert only(a_model(), abilities=other)["spec"]["template"] != first


def test_adapters_that_come_and_go_live_do_not_change_the_pods() -> None:
    env = [{"name": "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "value": "TRUE"}]
    one = [{"name": "l", "artifactURL": "hf://a/b"}]
    assert template_of(env=env, loraAdapters=one) == template_of(env=env)
    assert template_of(loraAdapters=one) != template_of()
    listed = only(a_model(a_backend(env=env, loraAdapters=one)), "ConfigMap")["data"]["adapters.json"]
    assert '"source": "hf://a/b"' in listed


@pytest.mark.parametrize(("there", "replicas"), [(None, 1), (1, None), (3, None), (4, None), (0, 1), (9, 4)])
def test_an_autoscalers_replicas_stay_within_their_bounds(there: int | None, replicas: int | None) -> None:
    backend = a_backend(minReplicas=1, maxReplicas=4, autoscalingPolicy=POLICY)
    existing = Existing({} if there is None else {"chat-main": there})
    assert only(a_model(backend), existing=existing)["spec"].get("replicas") == replicas


def test_replicas_are_the_specs_without_an_autoscaler() -> None:
    assert only(a_model(), existing=Existing({"chat-main": 3}))["spec"]["replicas"] == 1


@pytest.mark.parametrize("there", [0, 1, 7])
@pytest.mark.parametrize("scaled", ["chat-main", "chat-main-0-decode"])
def test_what_others_scale_is_left_to_them(there: int, scaled: str) -> None:
    if scaled == "chat-main":
        found = only(a_model(), existing=Existing({scaled: there}, frozenset({scaled})))
        assert "replicas" not in found["spec"]
        return
    apart = a_model(a_backend("vLLMDisaggregated"))
    made = of_kind(children(apart, existing=Existing({scaled: there}, frozenset({scaled}))), "Deployment")
    assert {one["metadata"]["name"]: one["spec"].get("replicas") for one in made} == {
        "chat-main-0-prefill": 1,
        scaled: None,
    }


# Route


def route(model: dict[str, Any]) -> Any:
    return only(model, "ModelRoute")["spec"]


def test_a_route_to_one_backend_takes_what_the_model_says() -> None:
    match = {"headers": {"x": {"exact": "y"}}}
    found = route(a_model(name="chat", modelMatch=match))
    assert found == {
        "modelName": "chat",
        "rules": [
            {"name": "default", "modelMatch": match, "targetModels": [{"modelServerName": "chat-main", "weight": 100}]}
        ],
    }
    assert "modelMatch" not in route(a_model())["rules"][0]


def test_a_route_to_several_backends_tells_models_and_adapters_apart() -> None:
    one, two = [{"name": n, "artifactURL": "hf://a/b"} for n in ("z", "a")], [{"name": "z", "artifactURL": "hf://a/b"}]
    backends = [a_backend(name="x", loraAdapters=one, routeWeight=70), a_backend(name="y", loraAdapters=two)]
    match = {"uri": {"prefix": "/v1"}, "body": {"model": "ignored"}}
    found = route(a_model(*backends, modelMatch=match))
    assert found["loraAdapters"] == ["a", "z"]
    told = [
        (r["name"], r["modelMatch"]["body"]["model"], [(t["modelServerName"], t["weight"]) for t in r["targetModels"]])
        for r in found["rules"]
    ]
    assert told == [
        ("default", "chat", [("chat-x", 70), ("chat-y", 100)]),
        ("a", "a", [("chat-x", 70)]),
        ("z", "z", [("chat-x", 70), ("chat-y", 100)]),
    ]
    assert all(rule["modelMatch"]["uri"] == {"prefix": "/v1"} for rule in found["rules"])


def adapters(count: int) -> list[dict[str, str]]:
    """Adapters that are not in the order of their names."""
    return [{"name": f"l{count - index}", "artifactURL": "hf://a/b"} for index in range(count)]


def names_by_route(model: dict[str, Any]) -> dict[str, list[str]]:
    """The adapters of each route of a Model."""
    routes = of_kind(children(model), "ModelRoute")
    for route in routes:
        parse(route)
        assert routing.route(route).problem is None
    return {route["metadata"]["name"]: route["spec"].get("loraAdapters", []) for route in routes}


@pytest.mark.parametrize(("count", "routes"), [(0, 1), (10, 1), (11, 2), (20, 2), (21, 3), (64, 7), (1000, 100)])
def test_any_number_of_adapters_is_routed_ten_to_a_route(count: int, routes: int) -> None:
    by_route = names_by_route(a_model(a_backend(loraAdapters=adapters(count))))
    assert len(by_route) == routes
    assert all(len(names) <= 10 for names in by_route.values())
    assert sorted(name for names in by_route.values() for name in names) == sorted(
        adapter["name"] for adapter in adapters(count)
    )
    assert list(by_route)[:2] == ["chat", "chat-adapters-2"][:routes]


def test_the_adapters_of_further_routes_go_to_the_backends_that_have_them() -> None:
    many = adapters(12)
    backends = a_backend(name="a", loraAdapters=many), a_backend(name="b", routeWeight=30, loraAdapters=many[11:])
    first, second = of_kind(children(a_model(*backends)), "ModelRoute")
    assert "modelName" not in second["spec"]
    assert [rule["name"] for rule in first["spec"]["rules"]] == ["default", *first["spec"]["loraAdapters"]]
    assert second["spec"]["loraAdapters"] == ["l1", "l2"]
    targets = {
        rule["modelMatch"]["body"]["model"]: [target["modelServerName"] for target in rule["targetModels"]]
        for rule in second["spec"]["rules"]
    }
    assert targets == {"l2": ["chat-a"], "l1": ["chat-a", "chat-b"]}


def test_an_adapter_that_is_appended_moves_no_other() -> None:
    backend = a_backend(loraAdapters=adapters(15))
    before = names_by_route(a_model(backend))
    after = names_by_route(
        a_model({**backend, "loraAdapters": [*adapters(15), {"name": "aa", "artifactURL": "hf://a/b"}]})
    )
    assert after == {**before, "chat-adapters-2": ["aa", *before["chat-adapters-2"]]}


def test_another_name_for_clients_is_another_route() -> None:
    found = only(a_model(client_name="large"), "ModelRoute")
    assert found["metadata"]["name"] == "chat-large"
    assert found["spec"]["modelName"] == "large"


def test_each_server_selects_its_own_backends_entry_pods() -> None:
    found = children(a_model(a_backend(name="a"), a_backend(name="b", workers=[a_worker(pods=2)])))
    for server in of_kind(found, "ModelServer"):
        match = server["spec"]["workloadSelector"]["matchLabels"].items()
        pods = [
            one["spec"]["template"]["metadata"]["labels"]
            for kind in ("Deployment", "StatefulSet")
            for one in of_kind(found, kind)
        ]
        (chosen,) = [labels for labels in pods if match <= labels.items()]
        assert (
            chosen["registry.volcano.sh/backend-name"]
            == server["metadata"]["labels"]["registry.volcano.sh/backend-name"]
        )


# Scaling


def test_a_models_policy_has_its_behaviour_written_out() -> None:
    model = a_model(a_backend(minReplicas=1, maxReplicas=4, autoscalingPolicy=POLICY))
    behavior = only(model, "AutoscalingPolicy")["spec"]["behavior"]
    stable = {"instances": 1, "percent": 100, "period": "15s", "selectPolicy": "Or"}
    assert behavior == {
        "scaleUp": {
            "stablePolicy": {**stable, "stabilizationWindow": "0s"},
            "panicPolicy": {"percent": 1000, "period": "0s", "panicThresholdPercent": 200, "panicModeHold": "1m0s"},
        },
        "scaleDown": {**stable, "stabilizationWindow": "5m0s"},
    }


def test_what_a_policy_says_of_its_behaviour_stays() -> None:
    given = {"scaleUp": {"panicPolicy": {"period": "30s"}}, "scaleDown": {"instances": 3, "stabilizationWindow": "1m"}}
    model = a_model(a_backend(minReplicas=1, maxReplicas=4, autoscalingPolicy=POLICY | {"behavior": given}))
    behavior = only(model, "AutoscalingPolicy")["spec"]["behavior"]
    assert behavior["scaleUp"]["panicPolicy"]["period"] == "30s"
    assert (behavior["scaleDown"]["instances"], behavior["scaleDown"]["stabilizationWindow"]) == (3, "1m0s")


def test_a_binding_names_the_real_workload_port_and_path() -> None:
    worker = a_worker(config={"port": 9000}, pods=2)
    own = [{"name": "RUNTIME_METRICS_PATH", "value": "prom"}]
    backend = a_backend(minReplicas=1, maxReplicas=4, autoscalingPolicy=POLICY, workers=[worker], env=own)
    target = only(a_model(backend), "AutoscalingPolicyBinding", LWS)["spec"]["scalingConfiguration"]["target"]
    assert target["metricEndpoint"] == {"port": 9000, "uri": "/prom"}
    assert target["targetRef"] == {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "name": "chat-main",
    }
    assert target["additionalMatchLabels"] == {"modelinfer.volcano.sh/entry": "true"}


@pytest.mark.parametrize(
    ("graces", "mark"),
    [
        (("5m", "30s"), "chat-a=5m0s,chat-b=30s"),
        (("5m", None), "chat-a=5m0s"),
        (("0s", "30s"), "chat-a=0s,chat-b=30s"),
        (("1m", "60s"), "1m0s"),
        ((None, None), None),
    ],
)
def test_each_backend_of_a_shared_policy_has_its_grace_period(
    graces: tuple[str | None, str | None], mark: str | None
) -> None:
    backends = [
        a_backend(
            name=name,
            minReplicas=least,
            maxReplicas=4,
            scalingCost=1,
            **({"scaleToZeroGracePeriod": grace} if grace else {}),
        )
        for name, least, grace in zip("ab", (1, 0), graces, strict=True)
    ]
    binding = only(a_model(*backends, autoscalingPolicy=POLICY), "AutoscalingPolicyBinding")
    assert binding["metadata"].get("annotations", {}).get(SCALE_TO_ZERO_GRACE) == mark
    spec = read_binding({**binding, "metadata": {**binding["metadata"], "namespace": "shop"}})
    assert spec.view.problem is None
    waits = [spec.view.grace if target.grace is None else target.grace for target in spec.targets]
    assert waits == [30.0 if grace is None else Duration(grace).seconds for grace in graces]


def test_a_binding_carries_what_can_wake_it() -> None:
    zero = a_backend(minReplicas=0, maxReplicas=4, scaleToZeroGracePeriod="1m", autoscalingPolicy=POLICY)
    model = a_model(zero)
    model["metadata"]["annotations"] = {"modelyard.dev/wake-query": "sum(waiting)"}
    marks = only(model, "AutoscalingPolicyBinding")["metadata"]["annotations"]
    assert marks["modelyard.dev/wake-query"] == "sum(waiting)"


@pytest.mark.parametrize(
    ("type", "name", "own"),
    [
        ("vLLM", "num_requests_waiting", "vllm:num_requests_waiting"),
        ("SGLang", "num_requests_waiting", "sglang:num_queue_reqs"),
        ("SGLang", "time_per_output_token_seconds", "sglang:inter_token_latency_seconds"),
        ("vLLM", "generation_tokens_total", "vllm:generation_tokens_total"),
    ],
)
def test_unified_metrics_are_read_by_the_engines_own_names(type: str, name: str, own: str) -> None:
    policy = {"metrics": [{"metricName": f"kthena:{name}", "targetValue": 5}]}
    backend = a_backend(type, minReplicas=1, maxReplicas=4, autoscalingPolicy=policy)
    assert only(a_model(backend), "AutoscalingPolicy")["spec"]["metrics"][0]["metricName"] == own


# Refusals


@pytest.mark.parametrize(
    ("model", "field", "said"),
    [
        (a_model(a_backend("MindIE", workers=[{"type": "server"}])), "spec.backends[0].workers[0].image", "entrypoint"),
        (a_model(a_backend("MindIEDisaggregated")), "spec.backends[0].workers", "no coordinator"),
        (a_model(a_backend("MindIE", workers=[a_worker(pods=2)])), "spec.backends[0].workers[0].pods", "is 2"),
        (
            a_model(a_backend("MindIE", loraAdapters=[{"name": "l", "artifactURL": "hf://a/b"}])),
            "spec.backends[0].loraAdapters",
            "no adapters",
        ),
        (
            a_model(a_backend(workers=[a_worker(replicas=0)])),
            "spec.backends[0].workers[0].replicas",
            "never have a pod",
        ),
        (
            a_model(a_backend(workers=[a_worker(config={"port": 0})])),
            "spec.backends[0].workers[0].config.port",
            "no port",
        ),
        (
            a_model(
                a_backend("vLLMDisaggregated", workers=[a_worker("prefill", config={"port": 1}), a_worker("decode")])
            ),
            "spec.backends[0].workers",
            "ports differ",
        ),
        (
            a_model(a_backend(minReplicas=1, maxReplicas=2, autoscalingPolicy=POLICY, workers=[a_worker(pods=2)])),
            "spec.backends[0].workers[0].pods",
            "cannot be scaled here",
        ),
        (
            a_model(a_backend("vLLMDisaggregated", minReplicas=1_000_000, maxReplicas=1_000_000)),
            "spec.backends[0].minReplicas",
            "objects of their own",
        ),
        (
            a_model(a_backend(workers=[a_worker(replicas=1_000_000, pods=2)])),
            "spec.backends[0].minReplicas",
            "objects of their own",
        ),
        (
            a_model(a_backend(minReplicas=3, maxReplicas=3, workers=[a_worker(pods=1_000_000)])),
            "spec.backends[0].minReplicas",
            "objects of their own",
        ),
        (
            a_model(a_backend("vLLMDisaggregated", scalingCost=1), autoscalingPolicy=POLICY),
            "spec.backends[0].type",
            "one policy of the model",
        ),
        (a_model(a_backend(routeWeight=0)), "spec.backends[0].routeWeight", "weight 0"),
        (
            a_model(a_backend(loraAdapters=[{"name": "big", "artifactURL": "hf://a/b"}]), client_name="big"),
            "spec.backends",
            "the name that clients ask for",
        ),
        (a_model(*(a_backend(name=f"b{i}") for i in range(17))), "spec.backends", "at most 16"),
        (a_model(a_backend(env=[{"value": "x"}])), "spec.backends[0].env[0]", "no name"),
        (
            a_model(a_backend(workers=[a_worker(resources={"limits": {"cpu": "lots"}})])),
            "spec.backends[0].workers[0].resources.limits[cpu]",
            "",
        ),
        (
            a_model(
                a_backend(name="a", scalingCost=1),
                a_backend("SGLang", "b", scalingCost=1),
                autoscalingPolicy={"metrics": [{"metricName": "kthena:num_requests_waiting", "targetValue": 5}]},
            ),
            "spec.autoscalingPolicy.metrics[0].metricName",
            "differently",
        ),
        (a_model(a_backend(minReplicas=2)), "spec.backends[0].minReplicas", "above maxReplicas"),
    ],
)
def test_refusals_name_field_and_remedy(model: dict[str, Any], field: str, said: str) -> None:
    found = refused(model)
    assert found.field == field
    assert said in found.problem
    assert found.remedy


def test_mindie_runs_by_its_image() -> None:
    found = rendered_named("mindie-disaggregated")
    server = of_kind(found, "ModelServer")[0]["spec"]
    assert server["workloadSelector"]["matchLabels"]["modelinfer.volcano.sh/role"] == "coordinator"
    assert "pdGroup" not in server["workloadSelector"]
    assert all("command" not in engine_of(one) for one in of_kind(found, "Deployment"))
    assert any("entrypoint" in note.message for note in found.notes)


@pytest.mark.parametrize("name", ["mindie", "mindie-disaggregated"])
def test_the_server_of_a_mindie_backend_is_named_as_such(name: str) -> None:
    (server,) = of_kind(rendered_named(name), "ModelServer")
    assert server["metadata"]["annotations"]["modelyard.dev/inference-engine"] == "MindIE"
    assert routing.server(server).engine == "MindIE"
    (other,) = of_kind(rendered_named("vllm"), "ModelServer")
    assert "modelyard.dev/inference-engine" not in other["metadata"]["annotations"]


def test_a_unified_metric_is_refused_for_mindie() -> None:
    policy = {"metrics": [{"metricName": "kthena:num_requests_waiting", "targetValue": 5}]}
    problem = refused(a_model(a_backend("MindIE", minReplicas=1, maxReplicas=4, autoscalingPolicy=policy)))
    assert problem.field == "spec.backends[0].autoscalingPolicy.metrics[0].metricName"
    assert "MindIE" in problem.problem


def variables(**values: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


@pytest.mark.parametrize(
    ("own", "port", "engine", "path"),
    [
        ({"RUNTIME_PORT": "9100"}, 9100, "http://localhost:8000", "/metrics"),
        ({"RUNTIME_URL": "http://localhost:8000"}, 8100, "http://localhost:8000", "/metrics"),
        ({"RUNTIME_URL": "http://127.0.0.1:7000/"}, 8100, "http://127.0.0.1:7000", "/metrics"),
        (
            {"RUNTIME_PORT": "1", "RUNTIME_URL": "https://engine.shop.svc", "RUNTIME_METRICS_PATH": "prom"},
            *(1, "https://engine.shop.svc", "/prom"),
        ),
    ],
)
@pytest.mark.parametrize("type", ["vLLM", "SGLang"])
def test_metrics_are_shown_where_the_backends_variables_say(
    type: str, own: dict[str, str], port: int, engine: str, path: str
) -> None:
    backend = a_backend(type, env=variables(**own), minReplicas=1, maxReplicas=4, autoscalingPolicy=POLICY)
    (deployment,) = of_kind(children(a_model(backend)), "Deployment")
    (runtime,) = [one for one in pod_of(deployment)["containers"] if one["name"] == "runtime"]
    if type == "SGLang":
        engine = engine.replace("localhost:8000", "localhost:30000" if "RUNTIME_URL" not in own else "localhost:8000")
    assert runtime["args"] == ["--engine", engine, "--port", str(port), "--path", path, "--names", type]
    assert runtime["ports"] == [{"name": "runtime", "containerPort": port, "protocol": "TCP"}]
    assert not {"env", "envFrom", "volumeMounts"} & runtime.keys()
    target = only(a_model(backend), "AutoscalingPolicyBinding")["spec"]["scalingConfiguration"]["target"]
    assert target["metricEndpoint"] == {"port": port, "uri": "/metrics"}


def test_routers_read_metrics_where_the_engine_has_them() -> None:
    (server,) = of_kind(children(a_model(a_backend(env=variables(RUNTIME_METRICS_PATH="prom")))), "ModelServer")
    assert routing.server(server).metrics_path == "/prom"
    (server,) = of_kind(children(a_model()), "ModelServer")
    assert "annotations" not in server["metadata"]


def test_metrics_are_shown_by_the_entry_pods_of_every_role_and_no_other() -> None:
    roles = of_kind(children(a_model(a_backend("vLLMDisaggregated", env=variables(RUNTIME_PORT="9100")))), "Deployment")
    assert [[one["name"] for one in pod_of(role)["containers"]] for role in roles] == [["engine", "runtime"]] * 2
    group = only(
        a_model(a_backend(workers=[a_worker(pods=2)], env=variables(RUNTIME_PORT="9"))), "LeaderWorkerSet", LWS
    )
    spec = group["spec"]["leaderWorkerTemplate"]
    found = {
        part: [one["name"] for one in spec[part]["spec"]["containers"]] for part in ("leaderTemplate", "workerTemplate")
    }
    assert found == {"leaderTemplate": ["engine", "runtime"], "workerTemplate": ["engine"]}


def test_without_these_variables_metrics_are_the_engines_own() -> None:
    assert [one["name"] for one in pod_of(only(a_model()))["containers"]] == ["engine"]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"RUNTIME_PORT": "8000"}, "the engine itself listens"),
        ({"RUNTIME_PORT": "0"}, "'0' is no port"),
        ({"RUNTIME_PORT": "70000"}, "'70000' is no port"),
        ({"RUNTIME_PORT": "x" * 9000}, "is no port"),
        ({"RUNTIME_URL": "localhost:8000"}, "add http://"),
        ({"RUNTIME_URL": "file:///etc/passwd"}, "write http:// or https://"),
    ],
)
def test_a_place_where_no_metrics_can_be_is_refused(own: dict[str, str], said: str) -> None:
    found = refused(a_model(a_backend(env=variables(**own), minReplicas=1, maxReplicas=4, autoscalingPolicy=POLICY)))
    assert found.field == "spec.backends[0].env"
    assert said in found.problem
    assert found.remedy
    assert len(str(found)) < 500


def test_everything_that_is_wrong_with_a_model_is_listed_with_the_backends_name() -> None:
    model = a_model(
        a_backend(
            name="small",
            routeWeight=0,
            env=[{"value": "x"}],
            workers=[a_worker(replicas=0, config={"port": 0, "x y": 1, "a b": 2})],
        ),
        a_backend(
            "MindIE",
            "large",
            routeWeight=0,
            modelURI="pvc://..",
            workers=[{"type": "server", "pods": 2}],
            loraAdapters=[{"name": "l", "artifactURL": "hf://a/b"}],
        ),
        a_backend(
            name="third",
            routeWeight=0,
            modelURI="pvc://..",
            cacheURI="pvc://a/b",
            loraAdapters=[{"name": "k", "artifactURL": "hf://a/b"}, {"name": "j", "artifactURL": "pvc://../x"}],
        ),
    )
    problem = refused(model)
    assert [(each.field.removeprefix("spec.backends"), each.backend) for each in problem.each()] == [
        ("[0].workers[0].replicas", "small"),
        ("[0].workers[0].config.a b", "small"),
        ("[0].workers[0].config.x y", "small"),
        ("[0].workers[0].config.port", "small"),
        ("[0].env[0]", "small"),
        ("[1].workers[0].image", "large"),
        ("[1].workers[0].pods", "large"),
        ("[1].loraAdapters", "large"),
        ("[1].modelURI", "large"),
        ("[2].cacheURI", "third"),
        ("[2].modelURI", "third"),
        ("[2].loraAdapters[1].artifactURL", "third"),
        *[("", "")] * 4,  # no rule has a backend with a weight: that for the model, and one for each adapter
    ]
    assert "spec.backends[1].workers[0].pods (backend large): is 2 - leave it out" in str(problem)
    assert str(problem).count(" - ") == 16


def test_everything_that_cannot_be_read_of_a_model_is_listed_with_the_backends_name() -> None:
    model = a_model(
        a_backend(name="small", minReplicas=5),
        a_backend("TGI", "large", maxReplicas="2"),
        {"minReplicas": 1},
        owner=5,
    )
    text = str(refused(model))
    for part in (
        "spec.owner: ",
        "spec.backends[0].minReplicas (backend small): ",
        "spec.backends[1].type (backend large): 'TGI' is not one of the allowed values - write",
        "spec.backends[1].maxReplicas (backend large): ",
        "spec.backends[2].name: ",
    ):
        assert part in text


@pytest.mark.parametrize("backends", [1, 3])
def test_of_any_number_of_problems_so_many_are_kept(backends: int) -> None:
    """Whoever may write a Model may write one with a hundred thousand, which a status cannot hold."""
    config = {f"!{number}": 0 for number in range(300)}
    model = a_model(*(a_backend(name=f"b{place}", workers=[a_worker(config=config)]) for place in range(backends)))
    problem = refused(model)
    assert len(problem.each()) == MOST_PROBLEMS + 1
    assert str(problem).count(" - ") == MOST_PROBLEMS
    assert str(problem).endswith("; and more")
    unread = refused(a_model(*(a_backend("TGI", minReplicas="x", maxReplicas="y") for _ in range(30))))
    assert len(unread.each()) == MOST_PROBLEMS + 1


def test_a_rendering_is_of_the_object_alone() -> None:
    model = model_named("vllm")
    backwards = {key: model[key] for key in reversed(model)}
    first, second = render_model(model, PLAIN), render_model(backwards, PLAIN)
    assert isinstance(first, Rendered)
    assert isinstance(second, Rendered)
    assert written(first) == written(second)


def test_many_adapters_in_many_backends_take_no_time_of_others() -> None:
    """The search for the backends of each adapter once took over a minute of the shared controller for one Model."""

    def work(count: int) -> int:
        each = [[{"name": f"a-{b}-{i}", "artifactURL": f"hf://x/{i}"} for i in range(count)] for b in range(4)]
        model = Model.parse(a_model(*(a_backend(name=f"b{b}", loraAdapters=own) for b, own in enumerate(each))))
        return count_calls(lambda: model_routes(model))

    assert work(100) < 3 * work(50)


@pytest.mark.parametrize(("backends", "adapters"), [(16, 63), (16, 1000), (2, 501)])
def test_adapters_of_all_backends_together_are_bounded(backends: int, adapters: int) -> None:
    """Finding: sixteen backends of a thousand adapters take six seconds to plan and are 1,600 routes."""
    given = [{"name": f"a{number}", "artifactURL": "hf://a/b"} for number in range(adapters)]
    problem = refused(a_model(*(a_backend(name=f"b{number}", loraAdapters=given) for number in range(backends))))
    assert (problem.reason, problem.field) == ("TooManyAdapters", "spec.backends")
    assert f"are {backends * adapters}, of 1000 at most" in problem.problem
    assert not problem.also


@pytest.mark.parametrize(
    ("most", "each", "well"), [(1_000_000, 1, True), (1000, 1001, False), (1_000_000, 4000, False)]
)
def test_replicas_of_a_worker_and_its_backend_fit_a_binding_together(most: int, each: int, well: bool) -> None:
    worker = a_worker(replicas=each)
    result = render_model(a_model(a_backend(workers=[worker], minReplicas=most, maxReplicas=most)), PLAIN)
    assert isinstance(result, Rendered) is well
    if isinstance(result, Refused):
        assert result.field == "spec.backends[0].workers[0].replicas"
        assert str(most * each) in result.problem
