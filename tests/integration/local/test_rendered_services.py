"""What services are rendered to, running: each deployment mode that the local cluster can have, a Model's backends.

The objects are applied by hand here; when and in which order that is done for a service is the lifecycle's business.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from cluster_helpers import Namespace, is_ready, process_of
from kthena_models import render_model

from modelyard.autoscaling.offline.manifests import read_manifests
from modelyard.cli.services import BEFORE_1_21, outcome
from modelyard.cluster import Object
from modelyard.hosts import HostsFile, ServiceResolver
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import CONFIG_MAPS, NODES, PERSISTENT_VOLUME_CLAIMS, PODS
from modelyard.workloads.rendering.values import Abilities, Rendered

pytestmark = pytest.mark.integration

RUNTIMES = Path(__file__).resolve().parents[3] / "config" / "runtimes" / "local"
ENGINE = "modelyard.dev/simulated-engine:test"


@pytest.fixture
async def http(local_stack: LocalStack) -> AsyncIterator[aiohttp.ClientSession]:
    resolver = ServiceResolver(HostsFile.found(local_stack.kubeconfig))
    connector = aiohttp.TCPConnector(limit=0, force_close=True, resolver=resolver, use_dns_cache=False)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
        yield session


def service(space: Namespace, runtime: str, uri: str, folder: Path, **spec: Any) -> Rendered:
    """An InferenceService of this namespace, rendered."""
    model = {
        "apiVersion": "ome.io/v1beta1",
        "kind": "BaseModel",
        "metadata": {"name": "llama", "namespace": space.name},
        "spec": {
            "modelFormat": {"name": "safetensors", "version": "1.0.0"},
            "modelFramework": {"name": "transformers", "version": "4.43.0"},
            "modelArchitecture": "LlamaForCausalLM",
            "storage": {"storageUri": uri},
        },
    }
    wanted = {
        "apiVersion": "ome.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": space.name},
        "spec": {"model": {"name": "llama", "kind": "BaseModel"}, "runtime": {"name": runtime}, "engine": {}, **spec},
    }
    path = folder / "service.yaml"
    path.write_text(yaml.safe_dump_all([wanted, model]))
    found = read_manifests([path, *sorted(RUNTIMES.glob("*.yaml"))])
    result = outcome(found[0], found, BEFORE_1_21)
    assert isinstance(result, Rendered), str(result)
    return result


async def apply(space: Namespace, result: Rendered) -> None:
    for child in result.children:
        if child.kind in ("ModelServer", "ModelRoute", "AutoscalingPolicy", "AutoscalingPolicyBinding"):
            continue
        await space.cluster.apply(child.body)


async def all_ready(space: Namespace, count: int) -> dict[str, Object]:
    return await space.until(lambda pods: len(pods) == count and all(map(is_ready, pods.values())), timeout=120)


async def complete(http: aiohttp.ClientSession, url: str, model: str, tokens: int = 5) -> bytes:
    """A streamed completion; empty while nobody answers."""
    body = {"model": model, "prompt": "x", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    try:
        async with http.post(f"{url}/v1/completions", json=body) as answer:
            text = await answer.read()
            assert answer.status in (200, 503), text
            return text if answer.status == 200 else b""
    except (aiohttp.ClientError, OSError):  # also where the engine goes in the middle
        return b""


async def answered(http: aiohttp.ClientSession, url: str, model: str, timeout: float = 120) -> bytes:
    async with asyncio.timeout(timeout):
        while not (text := await complete(http, url, model)):
            await asyncio.sleep(0.2)
    assert text.count(b"tok ") >= 1
    assert text.rstrip().endswith(b"[DONE]")
    return text


async def claim(space: Namespace, local_stack: LocalStack, name: str, *folders: str) -> Path:
    """A claim with folders in it; where it is."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await space.cluster.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": name}, "spec": spec}, space.name)
    root = local_stack.paths.files / "claims" / space.name / name
    for folder in folders:
        (root / folder).mkdir(parents=True)
    return root


async def test_a_service_on_single_nodes(
    space: Namespace, http: aiohttp.ClientSession, local_stack: LocalStack, tmp_path: Path
) -> None:
    """The model in a claim's folder; the URL works as it stands."""
    await claim(space, local_stack, "weights", "llama/8b")
    result = service(space, "simulated", "pvc://weights/llama/8b", tmp_path, engine={"minReplicas": 2})
    await apply(space, result)
    await all_ready(space, 2)
    async with asyncio.timeout(120):
        while not (names := await listed(http, result.url)):
            await asyncio.sleep(0.2)
    await answered(http, result.url, names[0])


async def listed(http: aiohttp.ClientSession, url: str) -> list[str]:
    try:
        async with http.get(f"{url}/v1/models") as answer:
            return [one["id"] for one in (await answer.json())["data"]] if answer.status == 200 else []
    except (aiohttp.ClientConnectionError, OSError):
        return []


async def test_a_service_of_groups_of_two(
    space: Namespace, http: aiohttp.ClientSession, local_stack: LocalStack, tmp_path: Path
) -> None:
    """The model on the node's disk. The ranks find each other by name, and when one dies the group comes back."""
    nodes = [node["metadata"]["name"] for node in await space.cluster.list(NODES)]
    label = f"models.ome.io/{space.name}.basemodel.llama"
    result = service(space, "simulated-two-nodes", "hf://meta-llama/Llama-3.1-8B-Instruct", tmp_path)
    for node in nodes:
        await space.cluster.merge_patch(NODES, node, {"metadata": {"labels": {label: "Ready"}}})
    try:
        for child in result.children:
            for path in host_paths(child.body):
                for node in nodes:
                    (local_stack.paths.files / "nodes" / node / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        await apply(space, result)
        pods = await all_ready(space, 2)
        await answered(http, result.url, "chat")

        worker = next(p for p in pods.values() if p["metadata"]["labels"].get(WORKER) == "1")
        os.kill(process_of(worker).pid, signal.SIGKILL)
        await space.until(
            lambda pods: all(pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods.values())
        )
        await all_ready(space, 2)
        await answered(http, result.url, "chat")

        # A pod that is replaced has another address.
        leader = next(name for name, pod in pods.items() if pod["metadata"]["labels"].get(WORKER) == "0")
        await space.cluster.delete(PODS, leader, space.name)
        await space.until(
            lambda now: leader in now and now[leader]["metadata"]["uid"] != pods[leader]["metadata"]["uid"]
        )
        await all_ready(space, 2)
        await answered(http, result.url, "chat")
    finally:
        for node in nodes:
            await space.cluster.merge_patch(NODES, node, {"metadata": {"labels": {label: None}}})


WORKER = "leaderworkerset.sigs.k8s.io/worker-index"


def host_paths(body: Any) -> list[str]:
    """Paths of the nodes that an object's pods mount."""
    if isinstance(body, dict):
        own = [body["hostPath"]["path"]] if isinstance(body.get("hostPath"), dict) else []
        return own + [path for value in body.values() for path in host_paths(value)]
    return [path for one in body for path in host_paths(one)] if isinstance(body, list) else []


async def test_prefill_and_decode_behind_a_router(
    space: Namespace, http: aiohttp.ClientSession, local_stack: LocalStack, tmp_path: Path
) -> None:
    await claim(space, local_stack, "weights", "llama")
    result = service(space, "simulated-prefill-decode", "pvc://weights/llama", tmp_path, decoder={}, router={})
    await apply(space, result)
    pods = await all_ready(space, 3)
    before = {name: await counted(http, pod) for name, pod in pods.items()}
    text = await answered(http, result.url, "chat")
    assert text.count(b'"text":"') >= 1
    worked: set[str] = set()
    async with asyncio.timeout(120):  # the last byte comes before it is counted
        while worked < {"engine", "decoder"}:
            after = {name: await counted(http, pod) for name, pod in pods.items()}
            worked = {pods[name]["metadata"]["labels"]["component"] for name in pods if after[name] > before[name]}
            await asyncio.sleep(0.1)
    assert worked == {"engine", "decoder"}


async def counted(http: aiohttp.ClientSession, pod: Object) -> float:
    """Requests that a pod's engine has finished; 0 of what is no engine."""
    async with http.get(f"http://{pod['status']['podIP']}:8080/metrics") as answer:
        lines = (await answer.text()).splitlines() if answer.status == 200 else []
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total"))


def model(space: Namespace, *backends: dict[str, Any]) -> Rendered:
    body = {
        "apiVersion": "registry.volcano.sh/v1alpha1",
        "kind": "Model",
        "metadata": {"name": "chat", "namespace": space.name, "uid": "3f1c9c1e-0000-4000-8000-000000000001"},
        "spec": {"backends": list(backends)},
    }
    result = render_model(body, Abilities())
    assert isinstance(result, Rendered), str(result)
    return result


def backend(kind: str, *workers: dict[str, Any], **more: Any) -> dict[str, Any]:
    fixed = {"name": "main", "type": kind, "modelURI": "pvc://weights/llama", "minReplicas": 1, "maxReplicas": 1}
    return {**fixed, "workers": [{"image": ENGINE, **worker} for worker in workers], **more}


VLLM = {"tensor-parallel-size": 2, "gpu-memory-utilization": 0.9, "max-model-len": 8192, "enable-prefix-caching": True}
SGLANG = {"tp-size": 16, "mem-fraction-static": 0.8, "context-length": 8192}


@pytest.mark.parametrize(
    ("given", "entries", "others", "port"),
    [
        (backend("vLLM", {"type": "server", "config": VLLM}), 1, 0, 8000),
        (backend("vLLM", {"type": "server", "pods": 2, "config": {"pipeline-parallel-size": 2}}), 1, 1, 8000),
        (backend("SGLang", {"type": "server", "pods": 2, "config": SGLANG}), 1, 1, 30000),
        (backend("vLLMDisaggregated", {"type": "prefill"}, {"type": "decode", "replicas": 2}), 3, 0, 8000),
    ],
    ids=["vllm", "vllm-several-pods", "sglang-several-pods", "vllm-disaggregated"],
)
async def test_a_models_backends(
    space: Namespace,
    http: aiohttp.ClientSession,
    local_stack: LocalStack,
    given: dict[str, Any],
    entries: int,
    others: int,
    port: int,
) -> None:
    await claim(space, local_stack, "weights", "llama")
    await apply(space, model(space, given))
    pods = await all_ready(space, entries + others)
    taking = [p for p in pods.values() if p["metadata"]["labels"]["modelinfer.volcano.sh/entry"] == "true"]
    assert len(taking) == entries
    for pod in taking:
        await answered(http, f"http://{pod['status']['podIP']}:{port}", "chat")


async def test_adapters_come_and_go_while_a_model_serves(
    space: Namespace, http: aiohttp.ClientSession, local_stack: LocalStack
) -> None:
    """A change of the list reaches the running pod, whose engine loads and unloads by its own API."""
    await claim(space, local_stack, "weights", "llama")
    adapters = await claim(space, local_stack, "models", "tone", "legal")
    for name in ("tone", "legal"):
        (adapters / name / "adapter_config.json").write_text("{}")
        (adapters / name / "adapter_model.safetensors").write_bytes(b"\0" * 16)
    live = [{"name": "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "value": "True"}]
    named = [{"name": "tone", "artifactURL": "hf://a/tone"}]
    given = backend("vLLM", {"type": "server"}, env=live, loraAdapters=named, cacheURI="pvc://models")
    result = model(space, given)
    # No hub here: each adapter is there already.
    listed_now = next(child.body for child in result.children if child.kind == "ConfigMap")
    (entry,) = json.loads(listed_now["data"]["adapters.json"])

    def of(*names: str) -> dict[str, str]:
        root = Path(entry["path"]).parent
        found = [{"name": n, "source": f"local://{root}/{n}", "path": f"{root}/{n}"} for n in names]
        return {"adapters.json": json.dumps(found)}

    listed_now["data"] = of("tone")
    await apply(space, result)
    pods = await all_ready(space, 1)
    (pod,) = pods.values()
    url = f"http://{pod['status']['podIP']}:8000"

    async def until(*names: str) -> None:
        async with asyncio.timeout(120):
            while set(await listed(http, url)) != {"chat", *names}:
                await asyncio.sleep(0.3)

    await until("tone")
    assert b"[DONE]" in await complete(http, url, "tone")
    await space.cluster.merge_patch(
        CONFIG_MAPS, listed_now["metadata"]["name"], {"data": of("tone", "legal")}, space.name
    )
    await until("tone", "legal")
    await space.cluster.merge_patch(CONFIG_MAPS, listed_now["metadata"]["name"], {"data": of("legal")}, space.name)
    await until("legal")
    (now,) = (await space.pods()).values()
    assert all(one["restartCount"] == 0 for one in now["status"]["containerStatuses"])
