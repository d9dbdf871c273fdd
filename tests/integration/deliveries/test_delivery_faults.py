"""What goes wrong during a delivery, and what a tenant may not have: on real nodes of the local cluster."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from cluster_faults import kill, own, wait_for_restart
from conftest import L40S, Models, ready
from fleet_fixture import eventually
from model_hub import Hub

from modelyard.local.settings import Component
from modelyard.models.delivery.names import BASE_MODELS, CLUSTER_BASE_MODELS
from modelyard.models.delivery.world import NUDGE
from modelyard.objects.kinds import JOBS, NAMESPACES, NODES, SECRETS

pytestmark = pytest.mark.integration

A100 = {"kubernetes.io/hostname": "a100-0"}


@pytest.fixture
def slow(hub: Hub) -> Iterator[Hub]:
    """The hub, which gives a file of 2 MB in some seconds."""
    hub.add("big/model", {"config.json": b"{}", "model.safetensors": b"x" * 2_000_000})
    hub.hear = lambda _: time.sleep(0.05)
    yield hub
    hub.hear = lambda _: None


def downloading(status: dict) -> bool:  # type: ignore[type-arg]
    return bool((status.get("delivery") or {}).get("active"))


async def test_a_model_that_is_edited_meanwhile_is_what_was_asked_for_last(models: Models, slow: Hub) -> None:
    slow.add("small/model", {"config.json": b'{"model_type": "qwen2"}'})
    await models.make("edited", "hf://big/model", nodeSelector=A100)
    await models.until(downloading, "edited")
    patch = {"spec": {"storage": {"storageUri": "hf://small/model"}}}
    await models.cluster.merge_patch(CLUSTER_BASE_MODELS, "edited", patch)
    obj = await models.filled("edited")
    assert obj["spec"]["modelType"] == "qwen2"
    assert [one.name for one in (models.disk("a100-0") / "_cluster" / "edited").iterdir()] == ["config.json"]


async def test_a_model_that_is_deleted_meanwhile_leaves_nothing(models: Models, slow: Hub) -> None:
    await models.make("brief", "hf://big/model", nodeSelector=A100)
    await models.until(downloading, "brief")
    await models.cluster.delete(CLUSTER_BASE_MODELS, "brief")
    await models.gone("brief")
    await models.cleared(JOBS)
    assert not (models.disk("a100-0") / "_cluster" / "brief").exists()
    store = models.disk("a100-0") / ".modelyard"
    assert not [one for kind in ("entries", "partial") for one in (store / kind).glob("*")]


async def test_a_job_that_is_deleted_by_hand_and_runs_that_die_hold_nothing_up(models: Models, slow: Hub) -> None:
    await models.make("tough", "hf://big/model", nodeSelector=L40S)
    await models.until(downloading, "tough")
    # It may be said before the run has begun.
    for job in await eventually(lambda: models.cluster.list(JOBS, models.home), "its Jobs"):
        await models.cluster.delete(JOBS, job["metadata"]["name"], models.home, propagation="Background")
    models.shift.kill()
    await models.until(ready, "tough", timeout=120)
    assert len(models.shift.runs) > 1


async def test_an_api_server_that_comes_back_finds_everything_going_on(models: Models, slow: Hub) -> None:
    await models.make("steady", "hf://big/model", nodeSelector=A100)
    await models.until(downloading, "steady")
    before = own(models.stack, Component.APISERVER).restarts
    kill(models.stack, Component.APISERVER)
    # Until it is ready it may know no kind of a CustomResourceDefinition.
    await asyncio.to_thread(wait_for_restart, models.stack, Component.APISERVER, before)
    await models.until(ready, "steady", timeout=120)


async def test_a_node_that_goes_and_one_that_loses_its_label(models: Models, hub: Hub) -> None:
    hub.add("tiny/model", {"config.json": b"{}"})
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Here",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await models.cluster.create(NODES, {"metadata": {"name": "passing", "labels": {"models": "here"}}})
    capacity = {"cpu": "8", "memory": "8Gi", "pods": "10"}
    status = {"conditions": [condition], "capacity": capacity, "allocatable": capacity}
    try:
        await models.cluster.merge_patch(NODES, "passing", {"status": status}, subresource="status")
        await models.cluster.merge_patch(NODES, "a100-0", {"metadata": {"labels": {"models": "here"}}})
        await models.cluster.merge_patch(NODES, "l40s-0", {"metadata": {"labels": {"models": "here"}}})
        await models.make("placed", "hf://tiny/model", nodeSelector={"models": "here"})

        def two(status: dict) -> bool:  # type: ignore[type-arg]
            return status.get("nodesReady") == ["a100-0", "l40s-0"] and status["delivery"]["selected"] == 3

        await models.until(two, "placed")
        await models.cluster.delete(NODES, "passing")
        await models.until(ready, "placed")
        await models.cluster.merge_patch(NODES, "a100-0", {"metadata": {"labels": {"models": None}}})
        await models.until(lambda status: status.get("nodesReady") == ["l40s-0"] and ready(status), "placed")
        await models.cluster.merge_patch(NODES, "l40s-0", {"metadata": {"labels": {"models": None}}})
        await models.until(lambda status: not status.get("nodesReady"), "placed")
        await models.labelled("models.ome.io/clusterbasemodel.placed", {})
        left = [models.disk(node) / "_cluster" / "placed" for node in ("a100-0", "l40s-0")]
        await models.until(lambda _: not any(link.is_symlink() for link in left), "placed")
    finally:
        await models.cluster.delete(NODES, "passing")
        for node in ("a100-0", "l40s-0"):
            await models.cluster.merge_patch(NODES, node, {"metadata": {"labels": {"models": None}}})


async def test_a_hostile_namespace_beside_a_good_one(models: Models, hub: Hub, local_namespace: str) -> None:
    """Each of its objects is told why it has nothing, and the neighbour's model comes as if it was not there."""
    body = {"metadata": {"name": "token", "namespace": models.home}, "stringData": {"token": "another's"}}
    await models.cluster.create(SECRETS, body)
    good = f"{local_namespace}-good"
    await models.cluster.create(NAMESPACES, {"metadata": {"name": good}})
    hub.add("evil/up", {"config.json": b"{}", f"../../{good}/theirs/config.json": b"evil"})
    hub.add("evil/link", {"link": b"/etc", "link/passwd": b"evil"})
    hub.add("evil/many", {f"{number % 100}/{number}": b"x" for number in range(2_000)})
    hub.add("good/model", {"config.json": b"{}", "model.safetensors": b"x" * 50_000})
    one = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["a100-0"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [one]}] * 2000}
    refused: dict[str, tuple[str, str, dict[str, Any]]] = {
        "etc": ("PathNotAllowed", "", {"path": "/etc"}),
        "neighbour": ("PathNotAllowed", "", {"path": f"/mnt/models/{good}/theirs"}),
        "up": ("PathNotAllowed", "", {"path": f"/mnt/models/{local_namespace}/../{good}"}),
        "store": ("PathNotAllowed", "", {"path": "/mnt/models/.modelyard/entries/x"}),
        "root": ("PathNotAllowed", "local:///etc", {}),
        "metadata": ("EndpointNotAllowed", "", {"parameters": {"endpoint": "http://169.254.169.254/latest"}}),
        "service": ("EndpointNotAllowed", "", {"parameters": {"endpoint": "http://minio.chat.svc:9000"}}),
        "claim": ("RefNotPermitted", f"pvc://{good}:weights/llama", {}),
        "nodes": ("InvalidSpec", "", {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}),
        "theirs": ("HostileName", "hf://evil/up", {}),
        "link": ("HostileName", "hf://evil/link", {}),
        "secret": ("SecretNotFound", "", {"key": "token"}),
    }
    disk = models.disk("a100-0")
    before = {one.name for one in disk.iterdir()} if disk.is_dir() else set()
    here = {"nodeSelector": A100}
    await models.make("many", "hf://evil/many", BASE_MODELS, local_namespace, **here)
    for name, (_, uri, storage) in refused.items():
        await models.make(name, uri or "hf://good/model", BASE_MODELS, local_namespace, **{**here, **storage})
    await models.make("theirs", "hf://good/model", BASE_MODELS, good, **here)
    await models.until(ready, "theirs", BASE_MODELS, good)
    assert (models.disk("a100-0") / good / "theirs" / "model.safetensors").read_bytes() == b"x" * 50_000
    for name, (reason, _, _) in refused.items():
        # They take turns at the source, where the many files are under way.
        obj = await models.until(partial(says, reason), name, BASE_MODELS, local_namespace, timeout=240)
        assert not obj["status"].get("nodesReady")
    many = await models.get("many", BASE_MODELS, local_namespace)
    assert len(json.dumps(many)) < 10_000
    assert {one.name for one in disk.iterdir()} - before <= {".modelyard", "_cluster", good, local_namespace}
    assert [one.name for one in (disk / good).iterdir()] == ["theirs"]
    assert {one.name for one in (disk / local_namespace).glob("*")} <= {"many"}
    assert not [job for job in await models.cluster.list(JOBS) if job["metadata"]["namespace"] == local_namespace]


def says(reason: str, status: dict[str, Any]) -> bool:
    """It is told why nothing comes, by a condition or by the only node."""
    told = [*(status.get("conditions") or ()), *(status.get("delivery") or {}).get("nodes", ())]
    return any(one["reason"] == reason for one in told)


async def test_a_wrong_name_fails_with_the_reason_and_is_tried_again_by_hand(models: Models, hub: Hub) -> None:
    await models.make("late", "hf://nobody/nothing", nodeSelector=A100)
    obj = await models.until(lambda status: status.get("state") == "Failed", "late")
    assert obj["status"]["nodesFailed"] == ["a100-0"]
    assert next(c for c in obj["status"]["conditions"] if c["type"] == "Ready")["reason"] == "NotFound"
    await models.labelled("models.ome.io/clusterbasemodel.late", {"a100-0": "Failed"})
    hub.add("nobody/nothing", {"config.json": b"{}"})
    await models.cluster.merge_patch(CLUSTER_BASE_MODELS, "late", {"metadata": {"annotations": {NUDGE: "again"}}})
    await models.until(ready, "late")
