"""Models on real nodes of the local cluster: placed, fetched, marked, told, kept whole, removed."""

from __future__ import annotations

import json
import shutil
import uuid
from typing import Any

import pytest
from conftest import L40S, Models, ready
from model_hub import Hub

from modelyard.models.delivery.names import BASE_MODELS, CLUSTER_BASE_MODELS, FINE_TUNED_WEIGHTS
from modelyard.models.delivery.world import VERIFY
from modelyard.models.execution.requests import request_model
from modelyard.objects import Key
from modelyard.objects.kinds import JOBS, PERSISTENT_VOLUME_CLAIMS, SECRETS
from modelyard.objects.parse import timestamp

pytestmark = pytest.mark.integration

CONFIG = json.dumps(
    {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}
).encode()
FILES = {"config.json": CONFIG, "model.safetensors": b"x" * 5000}


async def test_a_model_of_a_hub_comes_onto_two_of_five_nodes_and_goes_again(models: Models, hub: Hub) -> None:
    revision = hub.add("meta/llama", FILES)
    await models.make("llama", "hf://meta/llama", nodeSelector=L40S)
    await models.make("vendors", "vendor://acme/model/x", nodeSelector=L40S)
    obj = await models.filled("llama")
    spec, status = obj["spec"], obj["status"]
    assert (status["state"], status["nodesReady"]) == ("Ready", ["l40s-0", "l40s-1"])
    assert (spec["modelType"], spec["modelArchitecture"], spec["maxTokens"]) == ("llama", "LlamaForCausalLM", 4096)
    assert status["delivery"]["revision"] == revision
    assert status["detected"]["contextLength"] == 4096
    for node in status["nodesReady"]:
        assert (models.disk(node) / "_cluster" / "llama" / "config.json").read_bytes() == CONFIG
        assert (await models.reported(node, "clusterbasemodel.llama"))["delivered"]["files"] == 2
    both = {"l40s-0": "Ready", "l40s-1": "Ready"}
    await models.labelled("models.ome.io/clusterbasemodel.llama", both)
    await models.until(ready, "vendors")
    await models.labelled("models.ome.io/clusterbasemodel.vendors", both)
    await models.cleared(JOBS)

    await models.cluster.delete(CLUSTER_BASE_MODELS, "llama")
    await models.gone("llama")
    await models.labelled("models.ome.io/clusterbasemodel.llama", {})
    assert not list((models.disk("l40s-0") / "_cluster").glob("*"))
    assert not list((models.disk("l40s-0") / ".modelyard" / "entries").glob("*"))


async def test_a_tenants_model_comes_from_a_bucket_with_the_tenants_secret(
    models: Models, s3: Any, local_namespace: str
) -> None:
    bucket = f"b-{uuid.uuid4().hex[:8]}"
    s3.create_bucket(Bucket=bucket)
    for name, content in FILES.items():
        s3.put_object(Bucket=bucket, Key=f"m/{name}", Body=content)
    uri = f"s3://{bucket}/m"
    parameters = {"endpoint": s3.meta.endpoint_url, "region": "us-east-1"}
    key = Key(local_namespace, "theirs")
    models.made.append((BASE_MODELS, key.name, key.namespace))
    labels = {"kubernetes.io/hostname": "a100-0"}
    await request_model(models.cluster, BASE_MODELS, key, uri, labels, parameters, secret="mine")

    def lacks_it(status: dict) -> bool:  # type: ignore[type-arg]
        return any(one["reason"] == "SecretNotFound" for one in status.get("delivery", {}).get("nodes", ()))

    await models.until(lacks_it, "theirs", BASE_MODELS, local_namespace)
    secret = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret"}
    body = {"metadata": {"name": "mine", "namespace": local_namespace}, "stringData": secret}
    await models.cluster.create(SECRETS, body)
    await models.until(ready, "theirs", BASE_MODELS, local_namespace)
    there = models.disk("a100-0") / local_namespace / "theirs"
    assert (there / "config.json").read_bytes() == CONFIG
    label = f"models.ome.io/{local_namespace}.basemodel.theirs"
    await models.labelled(label, {"a100-0": "Ready"})
    await models.cleared(SECRETS, "fetch-")  # the copy goes with its Job


async def test_verification_brings_back_what_has_vanished(models: Models, hub: Hub) -> None:
    hub.add("meta/whole", FILES)
    await models.make("whole", "hf://meta/whole", nodeSelector={"kubernetes.io/hostname": "a100-0"})
    await models.until(ready, "whole")
    (entry,) = (models.disk("a100-0") / ".modelyard" / "entries").glob("*")
    files = entry / "files"
    (files / "model.safetensors").unlink()
    body = {"metadata": {"annotations": {VERIFY: timestamp(models.cluster.now())}}}
    await models.cluster.merge_patch(CLUSTER_BASE_MODELS, "whole", body)

    def repaired(status: dict) -> bool:  # type: ignore[type-arg]
        file = models.disk("a100-0") / "_cluster" / "whole" / "model.safetensors"
        return ready(status) and file.exists() and file.read_bytes() == b"x" * 5000

    await models.until(repaired, "whole")


async def test_files_that_are_on_the_node_already_are_only_looked_at(models: Models) -> None:
    folder = models.disk("a100-0") / "by-hand"
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(CONFIG)
    await models.make("local", "local:///mnt/models/by-hand", nodeSelector={"kubernetes.io/hostname": "a100-0"})
    obj = await models.filled("local")
    assert obj["spec"]["modelType"] == "llama"
    await models.cluster.delete(CLUSTER_BASE_MODELS, "local")
    await models.gone("local")
    assert (folder / "config.json").exists(), "they were not brought by us"
    shutil.rmtree(folder)


async def test_files_in_a_claim_are_read_where_they_are(models: Models, local_namespace: str) -> None:
    await models.make("claimed", "pvc://weights/llama", BASE_MODELS, local_namespace)

    def asks_for_it(status: dict) -> bool:  # type: ignore[type-arg]
        return any(c["reason"] == "ClaimNotFound" for c in status.get("conditions", ()))

    await models.until(asks_for_it, "claimed", BASE_MODELS, local_namespace)
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    folder = models.stack.paths.files / "claims" / local_namespace / "weights" / "llama"
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(CONFIG)
    body = {"metadata": {"name": "weights", "namespace": local_namespace}, "spec": claim}
    await models.cluster.create(PERSISTENT_VOLUME_CLAIMS, body)
    obj = await models.filled("claimed", BASE_MODELS, local_namespace)
    assert obj["spec"]["modelType"] == "llama"
    await models.labelled(f"models.ome.io/{local_namespace}.basemodel.claimed", {})


async def test_fine_tuned_weights_come_like_a_model_once_there_is_one(models: Models, hub: Hub) -> None:
    hub.add("me/lora", {"adapter_config.json": b"{}", "adapter_model.safetensors": b"y" * 100})
    storage = {"storageUri": "hf://me/lora", "nodeSelector": {"kubernetes.io/hostname": "a100-0"}}
    spec = {"baseModelRef": {"name": "base"}, "modelType": "LoRA", "hyperParameters": {"r": 8}, "storage": storage}
    models.made.append((FINE_TUNED_WEIGHTS, "lora", ""))
    await models.cluster.create(FINE_TUNED_WEIGHTS, {"metadata": {"name": "lora"}, "spec": spec})
    await models.until(lambda status: status.get("state") == "Failed", "lora", FINE_TUNED_WEIGHTS)
    await models.make("base", "vendor://acme/model/base", nodeSelector=L40S)
    await models.until(ready, "lora", FINE_TUNED_WEIGHTS)
    await models.labelled("models.ome.io/finetunedweight.lora", {"a100-0": "Ready"})
