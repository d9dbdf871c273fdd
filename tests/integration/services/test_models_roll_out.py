"""Models (registry.volcano.sh) on the local cluster: made, answering, updated, mended, refused, gone."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from conftest import Services, conditions, is_up
from model_hub import serve

from modelyard.cli.services import list_services, why_service
from modelyard.cluster import Object
from modelyard.models.delivery.names import BASE_MODELS
from modelyard.models.storage.settings import CONFIG_MAP, KEY
from modelyard.objects import ResourceType
from modelyard.objects.kinds import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SERVICES as KUBERNETES_SERVICES,
    STATEFUL_SETS,
)
from modelyard.resources import ModelRoute, ModelServer
from modelyard.workloads.kthena.lifecycle import OF_MODELS
from modelyard.workloads.roll_out.returning import DEADLINE
from modelyard.workloads.roll_out.world import MODELS

pytestmark = pytest.mark.integration
ENGINE = "modelyard.dev/simulated-engine:test"
SERVERS, ROUTES = map(ResourceType.of_resource, (ModelServer, ModelRoute))


def backend(kind: str = "vLLM", *workers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A backend whose model is in a claim."""
    given = workers or ({"type": "server"},)
    fixed = {"name": "main", "type": kind, "modelURI": "pvc://weights/llama", "minReplicas": 1, "maxReplicas": 1}
    return {**fixed, "workers": [{"image": ENGINE, **worker} for worker in given], **more}


def is_active(obj: Object) -> bool:
    """It answers, as it was asked for last."""
    said = {name: one[:2] for name, one in conditions(obj).items()}
    current = (obj.get("status") or {}).get("observedGeneration") == obj["metadata"]["generation"]
    return current and said["Active"] == ("True", "ModelAvailable") and said["Failed"] == ("False", "Reconciled")


class Models(Services):
    kind = MODELS
    label = OF_MODELS.service
    made = (BASE_MODELS, CONFIG_MAPS, DEPLOYMENTS, STATEFUL_SETS, KUBERNETES_SERVICES, PODS, SERVERS, ROUTES)

    async def add(self, name: str, *backends: dict[str, Any], **spec: Any) -> str:
        """A Model; its uid, by which what is made for it is labelled."""
        metadata = {"name": name, "annotations": spec.pop("annotations", {})}
        body = {"metadata": metadata, "spec": {"backends": list(backends) or [backend()], **spec}}
        obj = await self.cluster.create(MODELS, body, self.space)
        return str(obj["metadata"]["uid"])

    async def host_and_port(self, name: str) -> tuple[str, int]:
        """Return host and port of the first pod that is ready of those that a ModelServer selects."""
        server = await self.cluster.get(SERVERS, name, self.space)
        chosen = server["spec"]["workloadSelector"]["matchLabels"]
        selector = ",".join(f"{key}={value}" for key, value in chosen.items())
        pods = [one for one in await self.cluster.list(PODS, self.space, label_selector=selector) if is_up(one)]
        return pods[0]["status"]["podIP"], server["spec"]["workloadPort"]["port"]

    async def answer(self, name: str, model: str) -> str:
        """A streamed completion of the first pod that is ready of those that a ModelServer selects."""
        url = "http://{}:{}".format(*await self.host_and_port(name))
        body = {"model": model, "prompt": "x", "max_tokens": 5, "ignore_eos": True, "stream": True}
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            answer = await client.post(f"{url}/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.text


@pytest.fixture
async def models(services: Services) -> Models:
    """Models of the services' namespace, whose files are in a claim."""
    space = services.space
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await services.cluster.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "weights"}, "spec": spec}, space)
    (services.stack.paths.files / "claims" / space / "weights" / "llama").mkdir(parents=True)
    return Models(services.cluster, services.stack, services.shift, space)


async def test_a_model_becomes_pods_that_answer_and_leaves_nothing(
    models: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    await models.cluster.create(CONFIG_MAPS, {"metadata": {"name": "tuning"}, "data": {"SIM": "1"}}, models.space)
    variables = [{"name": "RUNTIME_PORT", "value": "9200"}, {"name": "RUNTIME_METRICS_PATH", "value": "metrics"}]
    uid = await models.add("chat", backend(env=variables, envFrom=[{"configMapRef": {"name": "tuning"}}]))
    obj = await models.until(is_active, "chat")
    assert obj["status"]["backendStatuses"] == [{"name": "main", "replicas": 1, "totalReplicas": 1}]
    assert [one for one in await models.children(uid) if not one.startswith("Pod ")] == [
        "Deployment chat-main",
        "ModelRoute chat",
        "ModelServer chat-main",
    ]
    await list_services(models.space, models.shift.home)
    line = capsys.readouterr().out.splitlines()[1].split()
    assert line == [models.space, "Model", "chat", "chat", "vLLM", "1/1", "True"]
    await why_service("chat", models.space, models.shift.home)
    said = capsys.readouterr().out
    assert f"Model {models.space}/chat\n  Initialized True" in said
    assert re.search(r"main +Deployment +chat-main-\S+ +\S+ +True +0", said), said
    text = await models.answer("chat-main", "chat")
    assert text.count("data: ") >= 5
    assert text.rstrip().endswith("[DONE]")
    host, port = await models.host_and_port("chat-main")
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        shown = (await client.get(f"http://{host}:9200/metrics")).raise_for_status().text
        own = (await client.get(f"http://{host}:{port}/metrics")).raise_for_status().text
        assert (await client.get(f"http://{host}:9200/v1/models")).status_code == 404
    named = {line.partition("{")[0] for line in shown.splitlines()}
    assert {line.partition("{")[0] for line in own.splitlines() if not line.startswith("#")} <= named
    assert {"kthena:num_requests_waiting", "kthena:time_to_first_token_seconds_count"} <= named
    await models.cluster.delete(MODELS, "chat", models.space)

    async def nothing() -> bool:
        return not await models.children(uid)

    await models.settled(nothing)


async def test_several_backends_of_other_kinds_serve_under_one_name(models: Models) -> None:
    split = backend("vLLMDisaggregated", {"type": "prefill"}, {"type": "decode"}, name="split", routeWeight=20)
    uid = await models.add("chat", backend("SGLang", name="sg"), split)
    obj = await models.until(is_active, "chat")
    assert obj["status"]["backendStatuses"] == [
        {"name": "sg", "replicas": 1, "totalReplicas": 1},
        {"name": "split", "replicas": 1, "totalReplicas": 1},
    ]
    there = [one for one in await models.children(uid) if not one.startswith("Pod ")]
    assert there == [
        "Deployment chat-sg",
        "Deployment chat-split-0-decode",
        "Deployment chat-split-0-prefill",
        "ModelRoute chat",
        "ModelServer chat-sg",
        "ModelServer chat-split",
    ]
    for name in ("chat-sg", "chat-split"):
        assert (await models.answer(name, "chat")).rstrip().endswith("[DONE]")
    route = await models.cluster.get(ROUTES, "chat", models.space)
    weights = {one["modelServerName"]: one["weight"] for one in route["spec"]["rules"][0]["targetModels"]}
    assert weights == {"chat-sg": 100, "chat-split": 20}

    await models.patch("chat", {"spec": {"backends": [backend("SGLang", name="sg")]}})

    async def less() -> bool:
        return not [one for one in await models.children(uid) if "split" in one]

    await models.settled(less, timeout=120)
    obj = await models.until(is_active, "chat")
    assert [one["name"] for one in obj["status"]["backendStatuses"]] == ["sg"]


async def test_changes_by_its_author_and_by_others_and_one_that_is_refused(models: Models) -> None:
    space, cluster = models.space, models.cluster
    await models.add("chat")
    await models.until(is_active, "chat")
    deployment = await cluster.get(DEPLOYMENTS, "chat-main", space)

    await models.patch("chat", {"spec": {"backends": [backend(routeWeight=50)]}})
    await models.until(is_active, "chat")
    same = await cluster.get(DEPLOYMENTS, "chat-main", space)
    assert same["metadata"]["generation"] == deployment["metadata"]["generation"], "what reaches no pod restarts none"

    await cluster.merge_patch(SERVERS, "chat-main", {"spec": {"workloadPort": {"port": 1}}}, space)
    await cluster.delete(ROUTES, "chat", space)

    async def mended() -> bool:
        server = await cluster.get(SERVERS, "chat-main", space)
        routes = [one["metadata"]["name"] for one in await cluster.list(ROUTES, space)]
        return bool(server["spec"]["workloadPort"]["port"] == 8000 and routes == ["chat"])

    await models.settled(mended)

    await models.patch("chat", {"spec": {"backends": [backend(env=[{"name": "SEED", "value": "7"}])]}})
    await models.until(is_active, "chat")
    changed = await cluster.get(DEPLOYMENTS, "chat-main", space)
    assert changed["metadata"]["uid"] == deployment["metadata"]["uid"]
    (engine,) = changed["spec"]["template"]["spec"]["containers"]
    assert {"name": "SEED", "value": "7"} in engine["env"]

    refused = backend(modelURI="hf://meta/llama", cacheURI="hostpath:///etc")
    await models.patch("chat", {"spec": {"backends": [refused]}})
    said = await models.until_reason("chat", "Failed", "ModelAbnormal")
    assert "PathNotAllowed: spec.backends[0].cacheURI (backend main): is no folder" in said
    assert conditions(await models.get("chat"))["Active"][0] == "True", "what runs goes on"
    kept = await cluster.get(DEPLOYMENTS, "chat-main", space)
    assert kept["metadata"]["generation"] == changed["metadata"]["generation"]
    await models.patch("chat", {"spec": {"backends": [backend(env=[{"name": "SEED", "value": "7"}])]}})
    await models.until(is_active, "chat")


async def test_why_a_backend_is_not_ready_is_told_in_words(models: Models) -> None:
    greedy = {"type": "server", "resources": {"limits": {"nvidia.com/gpu": "99"}}}
    nowhere = {"type": "server", "image": "nowhere.example/engine:1"}
    await models.add("chat", backend("vLLM", greedy, name="greedy"), backend("vLLM", nowhere, name="nowhere"))

    def told(obj: Object) -> bool:
        said = conditions(obj)
        return said.get("Failed", ("",))[0] == "True" and "Insufficient" in said["Active"][2]

    said = conditions(await models.until(told, "chat"))
    assert said["Failed"][2].startswith("ImageNotRunnable: nowhere: 0 of 1 pods are ready")
    assert "backend greedy: 0 of 1 pods are ready" in said["Active"][2]


async def test_an_update_of_a_model_ends_at_its_first_bad_pod_and_goes_back(models: Models) -> None:
    bad = "nowhere.example/e:1"

    def wanted(image: str) -> dict[str, Any]:
        return backend("vLLM", {"type": "server", "image": image}, minReplicas=2, maxReplicas=2)

    uid = await models.add("chat", wanted(ENGINE), annotations={DEADLINE: "10"})
    await models.until(is_active, "chat")

    async def pods() -> dict[str, str]:
        found = await models.cluster.list(PODS, models.space, label_selector=f"{OF_MODELS.service}={uid}")
        left = (one for one in found if "deletionTimestamp" not in one["metadata"])
        return {one["metadata"]["uid"]: one["spec"]["containers"][0]["image"] for one in left}

    before = await pods()
    await models.patch("chat", {"spec": {"backends": [wanted(bad)]}})
    seen: list[dict[str, str]] = []

    async def returned() -> bool:
        seen.append(await pods())
        return "RolledBack" in conditions(await models.get("chat"))["Failed"][2]

    await models.settled(returned)
    assert max([*one.values()].count(bad) for one in seen) == 1, "the place of one is needed for the new one"
    said = conditions(await models.get("chat"))["Failed"]
    assert said[:2] == ("True", "ModelAbnormal")
    assert said[2].startswith("RolledBack: generation 2 did not become ready (main: ")
    assert bad in said[2]

    async def back() -> bool:
        active = conditions(await models.get("chat"))["Active"][:2] == ("True", "ModelAvailable")
        return active and [*(await pods()).values()] == [ENGINE, ENGINE]

    await models.settled(back)
    after = await pods()
    assert len(before.keys() & after.keys()) == 1, "one has served all the time"
    assert (await models.answer("chat-main", "chat")).rstrip().endswith("[DONE]")
    await models.patch("chat", {"spec": {"backends": [wanted(ENGINE)]}})
    await models.until(is_active, "chat")
    assert await pods() == after


async def test_adapters_of_a_model_come_and_go_without_a_restart(models: Models) -> None:
    with serve() as hub:
        for name in ("tone", "legal"):
            hub.add(f"a/{name}", {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x" * 5000})
        variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true", "HF_ENDPOINT": hub.address}
        env = [{"name": name, "value": value} for name, value in variables.items()]

        def wanted(*names: str) -> dict[str, Any]:
            return backend(env=env, loraAdapters=[{"name": one, "artifactURL": f"hf://a/{one}"} for one in names])

        uid = await models.add("chat", wanted("tone"))
        await models.until(is_active, "chat")
        (before,) = await models.cluster.list(PODS, models.space, label_selector=f"{OF_MODELS.service}={uid}")
        url = f"http://{before['status']['podIP']}:8000/v1/models"

        async def serves(*names: str) -> None:
            async def listed() -> bool:
                async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
                    return {one["id"] for one in (await client.get(url)).json()["data"]} == {"chat", *names}

            await models.settled(listed, timeout=120)

        await serves("tone")
        assert (await models.answer("chat-main", "tone")).rstrip().endswith("[DONE]")
        await models.patch("chat", {"spec": {"backends": [wanted("legal")]}})
        await serves("legal")
        assert (await models.answer("chat-main", "legal")).rstrip().endswith("[DONE]")
        await models.until(is_active, "chat")
        (after,) = await models.cluster.list(PODS, models.space, label_selector=f"{OF_MODELS.service}={uid}")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [one["restartCount"] for one in after["status"]["containerStatuses"]] == [0, 0]
    route = await models.cluster.get(ROUTES, "chat", models.space)
    assert route["spec"]["loraAdapters"] == ["legal"]


async def test_the_pods_of_a_group_are_replaced_together(models: Models) -> None:
    uid = await models.add("chat", backend("vLLM", {"type": "server", "pods": 2}, minReplicas=2, maxReplicas=2))
    obj = await models.until(is_active, "chat")
    assert obj["status"]["backendStatuses"] == [{"name": "main", "replicas": 2, "totalReplicas": 2}]
    selector = f"{OF_MODELS.service}={uid}"

    async def pods() -> dict[str, str]:
        found = await models.cluster.list(PODS, models.space, label_selector=selector)
        return {one["metadata"]["name"]: one["metadata"]["uid"] for one in found}

    before = await pods()
    assert len(before) == 4
    entry, other = "chat-main-1-0-0", "chat-main-1-1-0"
    # It is on its way out for as long as it takes to be noticed, as one that serves its last requests is.
    held = {"metadata": {"finalizers": ["example.com/held"]}}
    await models.cluster.merge_patch(PODS, entry, held, models.space)
    await models.cluster.delete(PODS, entry, models.space)

    async def replaced() -> bool:
        return (await pods()).get(other, before[other]) != before[other]

    await models.settled(replaced, timeout=120)
    await models.cluster.merge_patch(PODS, entry, {"metadata": {"finalizers": None}}, models.space)

    async def back() -> bool:
        return (await pods()).get(entry, before[entry]) != before[entry]

    await models.settled(back)
    await models.until(is_active, "chat")
    now = await pods()
    assert {name for name in now if now[name] == before[name]} == {"chat-main-0-0-0", "chat-main-0-1-0"}


async def test_a_model_on_the_nodes_disks_is_delivered_first(models: Models) -> None:
    only = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a100-0"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [only]}}
    worker = {"type": "server", "affinity": {"nodeAffinity": required}}
    with serve() as hub:
        hub.add("meta/llama", {"config.json": b"{}", "model.safetensors": b"x" * 5000})
        text = json.dumps({"hubEndpoint": hub.address, "cpu": "100m", "memory": "128Mi"})
        settings = {"metadata": {"name": CONFIG_MAP}, "data": {KEY: text}}
        await models.cluster.create(CONFIG_MAPS, settings, models.shift.home)
        placed = backend("vLLM", worker, modelURI="hf://meta/llama", cacheURI="hostpath://mnt/models")
        uid = await models.add("chat", placed)
        await models.until(is_active, "chat", timeout=180)
        made = await models.children(uid)
        (delivered,) = (one for one in made if one.startswith("BaseModel "))
        disk = models.stack.paths.files / "nodes" / "a100-0" / "mnt" / "models" / models.space
        (folder,) = disk.iterdir()
        assert (folder / "model.safetensors").exists()
        assert (await models.answer("chat-main", "chat")).rstrip().endswith("[DONE]")
        await why_service("chat", models.space, models.shift.home)
        await models.cluster.delete(MODELS, "chat", models.space)

        async def nothing() -> bool:
            return not await models.children(uid) and not list(disk.iterdir())

        await models.settled(nothing, timeout=120)
    assert delivered.startswith("BaseModel chat-")
