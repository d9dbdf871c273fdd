"""What goes wrong with services on the local cluster: with what they name, their engines, their nodes, their owners."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import MODEL, Services, conditions, forget, is_ready, is_up

from modelyard.cli.services import why_service
from modelyard.cluster import Object
from modelyard.cluster.transport import ApiRequest
from modelyard.models.delivery.names import BASE_MODELS
from modelyard.objects import ResourceType
from modelyard.objects.kinds import EVENTS, NAMESPACES, NODES, PODS
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES, RUNTIMES

pytestmark = pytest.mark.integration

QUOTAS = ResourceType("", "v1", "ResourceQuota", "resourcequotas", True)
LONG = "a-service-whose-name-is-as-long-as-any-label-of-a-pod-may-be-63"
LATEST = "LatestDeploymentReady"
SERVING = """
import http.server, os, sys, threading
{before}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
"""
"""A program that answers like an engine; what it does ``before`` is each test's own."""


def program(before: str, **more: Any) -> dict[str, Any]:
    """An engine that is this program."""
    command = {"command": ["python3", "-c", SERVING.format(before=before)], "args": ["as-an-engine"]}
    return {"runner": {"name": "ome-container", **command, **more}}


async def pods(services: Services, name: str) -> list[Object]:
    """The pods of a service that are not on their way out."""
    selector = f"ome.io/inferenceservice={name}"
    found = await services.cluster.list(PODS, services.space, label_selector=selector)
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


async def until_latest(services: Services, name: str, reason: str) -> Object:
    """Wait until this is said of what was asked for last; the service."""
    return await services.until(lambda obj: conditions(obj).get(LATEST, ("", ""))[1] == reason, name)


async def model(services: Services, name: str, **spec: Any) -> None:
    """A model of the tenant's own."""
    await services.cluster.create(BASE_MODELS, {"metadata": {"name": name}, "spec": {**MODEL, **spec}}, services.space)


async def runtime(services: Services, name: str, **spec: Any) -> None:
    """A runtime of the tenant's own, which fits what the cluster's fits."""
    found = (await services.cluster.get(RUNTIMES[1], "simulated"))["spec"]
    formats = [one for one in found["supportedModelFormats"] if one["modelArchitecture"] == MODEL["modelArchitecture"]]
    body = {**found, "supportedModelFormats": formats, **spec}
    await services.cluster.create(RUNTIMES[0], {"metadata": {"name": name}, "spec": body}, services.space)


def own(name: str) -> dict[str, str]:
    """A reference to a model of the tenant's own."""
    return {"name": name, "kind": "BaseModel"}


async def test_what_cannot_be_served_says_why_and_is_when_it_can(services: Services) -> None:
    cluster, space = services.cluster, services.space
    await model(services, "strange", modelArchitecture="NobodysForCausalLM")
    await model(services, "disabled", disabled=True)
    await model(services, "llama.v3.1-8b")
    await services.make("unfit", model=own("strange"))
    await services.make("off", model=own("disabled"))
    await services.make("early", model=own("later"))
    await services.make(LONG, model=own("llama.v3.1-8b"))
    await services.make("merging", {"runner": {"name": "ome-container", "env": [{"value": "x"}]}})
    await services.make("both", {"minAvailable": 1, "maxUnavailable": 1})
    said = await services.until_reason("unfit", "Ready", "NoSupportingRuntime")
    assert "Excluded runtimes: simulated" in said
    assert "NobodysForCausalLM" in said
    assert "is disabled" in await services.until_reason("off", "Ready", "ModelDisabled")
    await services.until_reason("early", "Ready", "BaseModelNotFound")
    said = await services.until_reason("merging", "Ready", "InvalidSpec")
    assert said == "spec.engine.runner.env[0]: has no name - write it as in a pod"
    said = await services.until_reason("both", "Ready", "InvalidSpec")
    assert said == "spec.engine.maxUnavailable: is given beside minAvailable - write one of the two"
    for name in ("unfit", "off", "early", "merging", "both"):
        assert await services.children(name) == []
    await model(services, "later")
    await cluster.merge_patch(BASE_MODELS, "disabled", {"spec": {"disabled": False}}, space)
    # Two that fit equally are no riddle: one of them is taken, always the same.
    await runtime(services, "alike-b")
    await runtime(services, "alike-a")
    for name in ("early", "off"):
        obj = await services.until(is_ready, name)
        assert obj["status"]["annotations"]["modelyard.dev/runtime"] == "ServingRuntime/alike-a@1"
    obj = await services.until(is_ready, LONG)
    assert f"//{LONG}.{space}.svc" in obj["status"]["url"]
    (pod,) = await pods(services, LONG)
    assert pod["metadata"]["labels"]["ome.io/inferenceservice"] == LONG
    for name in ("merging", "both", "unfit"):
        assert conditions(await services.get(name))["Ready"][0] == "False"


async def test_what_a_live_service_stands_on_may_change_and_go(services: Services) -> None:
    cluster, space = services.cluster, services.space
    await model(services, "own")
    await runtime(services, "mine")
    await services.make("chat", model=own("own"))
    obj = await services.until(is_ready, "chat")
    assert obj["status"]["annotations"]["modelyard.dev/runtime"] == "ServingRuntime/mine@1"
    (before,) = await pods(services, "chat")
    await cluster.merge_patch(RUNTIMES[0], "mine", {"spec": {"disabled": True}}, space)
    said = conditions(await until_latest(services, "chat", "ChangesHeld"))[LATEST][2]
    assert "ServingRuntime/mine@1 was rolled out, and now it would be ClusterServingRuntime/simulated@" in said
    await cluster.delete(RUNTIMES[0], "mine", space)
    await cluster.merge_patch(BASE_MODELS, "own", {"spec": {"disabled": True}}, space)
    await until_latest(services, "chat", "ModelDisabled")
    await forget(cluster, BASE_MODELS, "own", space)
    obj = await until_latest(services, "chat", "BaseModelNotFound")
    assert conditions(obj)["Ready"][0] == "True", "what runs goes on answering"
    assert obj["status"]["modelStatus"]["modelRevisionStates"]["activeModelState"] == "Loaded"
    await model(services, "own")
    await runtime(services, "mine")
    await services.until(is_ready, "chat")
    (after,) = await pods(services, "chat")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_a_quota_is_told_and_waited_for(services: Services) -> None:
    space = f"{services.space}-quota"
    await services.cluster.create(NAMESPACES, {"metadata": {"name": space}})
    try:
        quota = {"metadata": {"name": "none"}, "spec": {"hard": {"count/services": "0", "pods": "0"}}}
        await services.cluster.create(QUOTAS, quota, space)

        async def counted() -> bool:
            return bool((await services.cluster.get(QUOTAS, "none", space)).get("status", {}).get("used"))

        await services.settled(counted)
        await services.make("chat", space=space)

        def refused(obj: Object) -> bool:
            said = conditions(obj).get(LATEST, ("", "", ""))
            return said[1] in ("ApplyFailed", "FailedCreate") and "exceeded quota: none" in said[2]

        await services.until(refused, "chat", space)
        await services.cluster.merge_patch(QUOTAS, "none", {"spec": {"hard": {"count/services": None}}}, space)
        said = await services.until_reason("chat", "EngineReady", "FailedCreate", space)
        assert "exceeded quota: none, requested: pods=1" in said
        await services.cluster.delete(QUOTAS, "none", space)
        await services.until(is_ready, "chat", space, timeout=200)
    finally:
        await services.cluster.delete(NAMESPACES, space)


async def test_engines_that_die_late_or_on_one_node_only(
    services: Services, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "dies"
    late = f"""
def watch():
    while not os.path.exists({str(mark)!r}): threading.Event().wait(0.1)
    os._exit(7)
if os.path.exists({str(mark)!r}): sys.exit(7)
threading.Thread(target=watch, daemon=True).start()
"""
    await services.make("late", program(late))
    node = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    apart = {
        "labelSelector": {"matchLabels": {"ome.io/inferenceservice": "half"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    await model(services, "everywhere", storage={"storageUri": "vendor://acme/model/llama"})
    await services.make(
        "half",
        {
            **program("if os.environ['NODE'] == 'l40s-1': sys.exit(9)", env=[node]),
            "minReplicas": 2,
            "nodeSelector": {"modelyard.dev/node-group": "l40s"},
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        },
        model=own("everywhere"),
    )
    await services.until(is_ready, "late")
    mark.touch()
    half_of_it = "engine: 1 of 2 pods are ready; container ome-container exited with code 9"
    await services.until(lambda obj: half_of_it in conditions(obj).get("EngineReady", ("", "", ""))[2], "half")
    assert conditions(await services.get("half"))["Ready"][0] == "False"
    capsys.readouterr()
    await why_service("half", services.space, services.shift.home)
    told = capsys.readouterr().out
    assert [line.split()[3:5] for line in told.splitlines() if "half-engine-" in line and "l40s-1" in line] == [
        ["l40s-1", "False"]
    ], told

    def exited(obj: Object) -> bool:  # it is started again and again meanwhile
        said = conditions(obj)
        return said["EngineReady"][1] == said[LATEST][1] == "ContainerExited" and said["Ready"][0] == "False"

    obj = await services.until(exited, "late")
    assert "exited with code 7" in conditions(obj)["EngineReady"][2]
    mark.unlink()
    await services.until(is_ready, "late")


async def test_a_node_that_is_lost_and_pods_that_are_evicted_are_made_up_for(services: Services) -> None:
    cluster = services.cluster
    await model(services, "everywhere", storage={"storageUri": "vendor://acme/model/llama"})
    lost = {"metadata": {"name": "passing", "labels": {"pool": "here"}}}
    await cluster.create(NODES, lost)
    beating = asyncio.create_task(_heartbeats(services))
    try:
        gone = [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
            for key in ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
        ]
        engine = {"nodeSelector": {"pool": "here"}, "tolerations": gone}
        await services.make("chat", engine, model=own("everywhere"))
        # The kubelet of the first pod's node evicts it: the pod stays, as one that has failed, beside its successor.
        (first,) = await _placed(services, "chat", ["passing"])
        evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
        await _pod_status(services, first, evicted)
        assert "low on resource" in await services.until_reason("chat", "EngineReady", "Evicted")
        found = await _placed(services, "chat", ["passing", "passing"])
        (second,) = [one for one in found if one["metadata"]["uid"] != first["metadata"]["uid"]]
        (container,) = second["spec"]["containers"]
        state = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        up = {"type": "Ready", "status": "True"}
        running = {"phase": "Running", "conditions": [up], "containerStatuses": [{**state, "ready": True}]}
        await _pod_status(services, second, running)
        obj = await services.until(is_ready, "chat")
        assert obj["status"]["modelStatus"]["modelCopies"] == {"totalCopies": 1, "failedCopies": 0}
        # Its kubelet is not heard of any more, as controllers say after 40 s; then there is another node.
        await _pod_status(services, second, {**running, "conditions": [{"type": "Ready", "status": "False"}]})
        said = await services.until_reason("chat", "EngineReady", "NodeNotReady")
        assert "when node passing was last heard of" in said
        beating.cancel()
        await cluster.merge_patch(NODES, "passing", {"status": _node("Unknown")}, subresource="status")
        await services.until_reason("chat", "EngineReady", "Unschedulable")  # its successor, which finds no other node

        async def told() -> bool:  # an Event follows what is said in the status
            events = await cluster.list(EVENTS, services.space, field_selector="involvedObject.name=chat")
            said = [one["message"] for one in events if one["reason"] == "InferenceServiceNotReady"]
            return any("when node passing was last heard of" in one for one in said)

        await services.settled(told)
        await cluster.merge_patch(NODES, "l40s-0", {"metadata": {"labels": {"pool": "here"}}})
        (third,) = await _placed(services, "chat", ["l40s-0"])
        await services.until(is_ready, "chat")
        # A drain takes the pod that is there by the API: another comes.
        name = third["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name}}
        path = f"/api/v1/namespaces/{services.space}/pods/{name}/eviction"
        await cluster.transport.json(ApiRequest("POST", path, "evict", name, body=eviction))

        async def another() -> bool:
            (pod,) = await _placed(services, "chat", ["l40s-0"])
            return pod["metadata"]["uid"] != third["metadata"]["uid"] and is_up(pod)

        await services.settled(another)
        await services.until(is_ready, "chat")
    finally:
        beating.cancel()
        await cluster.delete(NODES, "passing")
        await cluster.merge_patch(NODES, "l40s-0", {"metadata": {"labels": {"pool": None}}})
        for one in await cluster.list(PODS, services.space, field_selector="spec.nodeName=passing"):
            await cluster.delete(PODS, one["metadata"]["name"], services.space, grace_seconds=0)


async def _heartbeats(services: Services) -> None:
    """Of a node that nobody runs: else it is given up 40 s after the last."""
    while True:
        await services.cluster.merge_patch(NODES, "passing", {"status": _node("True")}, subresource="status")
        await asyncio.sleep(5)


def _node(ready: str) -> dict[str, Any]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    condition = {"type": "Ready", "status": ready, "reason": "Told", "message": "", "lastTransitionTime": now}
    capacity = {"cpu": "8", "memory": "8Gi", "pods": "10", "nvidia.com/gpu": "8"}
    return {"conditions": [{**condition, "lastHeartbeatTime": now}], "capacity": capacity, "allocatable": capacity}


async def _pod_status(services: Services, pod: Object, status: dict[str, Any]) -> None:
    """What the kubelet of a node that has none says of a pod."""
    await services.cluster.merge_patch(
        PODS, pod["metadata"]["name"], {"status": status}, services.space, subresource="status"
    )


async def _placed(services: Services, name: str, nodes: list[str]) -> list[Object]:
    """Wait until a service's pods are on these nodes; the pods."""
    found: list[Object] = []

    async def placed() -> bool:
        found[:] = await pods(services, name)
        return sorted(one["spec"].get("nodeName", "") for one in found) == nodes

    await services.settled(placed, timeout=90)
    return found


async def test_an_owner_that_goes_in_the_middle_leaves_nothing_and_may_come_again(services: Services) -> None:
    names = [f"brief-{number}" for number in range(4)]
    for number, name in enumerate(names):
        await services.make(name)

        async def begun(name: str = name, most: int = number + 1) -> bool:
            return len(await services.children(name)) >= most

        await services.settled(begun)
        await services.cluster.delete(INFERENCE_SERVICES, name, services.space)
    await services.make(names[0])
    await services.until(is_ready, names[0])

    async def nothing() -> bool:
        return not any([await services.children(name) for name in names[1:]])

    await services.settled(nothing)
    sets = ResourceType("apps", "v1", "ReplicaSet", "replicasets", True)

    async def nothing_of_the_first() -> bool:
        return len((await services.cluster.list(sets, services.space)).items) == 1

    await services.settled(nothing_of_the_first)
