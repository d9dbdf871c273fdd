"""InferenceServices on the local cluster: made, ready, updated, mended, refused, kept apart, gone."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from conftest import HPA, NAME, Services, conditions, is_ready

from modelyard.cli.services import NoSuchService, list_services, why_service
from modelyard.cluster import NotFound, Object
from modelyard.local.binaries.obtain import ensure
from modelyard.objects.kinds import CONFIG_MAPS, DEPLOYMENTS, PODS, SERVICES as KUBERNETES_SERVICES
from modelyard.workloads.roll_out.returning import DEADLINE
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES

pytestmark = pytest.mark.integration


async def test_a_service_becomes_pods_that_are_ready_and_leaves_nothing(
    services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    await services.make("chat")
    obj = await services.until(is_ready, "chat")
    space, status = services.space, obj["status"]
    assert status["url"] == f"http://chat.{space}.svc.cluster.local:8080"
    assert status["address"]["url"] == status["url"]
    assert status["annotations"]["modelyard.dev/runtime"] == "ClusterServingRuntime/simulated@1"
    engine = status["components"]["engine"]
    url = f"http://chat-engine.{space}.svc.cluster.local:8080"
    assert (engine["url"], engine["restURL"], engine["address"]) == (url, url, {"url": url})
    assert engine["latestReadyRevision"] == engine["latestCreatedRevision"] == "1"
    assert status["modelStatus"] == {
        "transitionStatus": "UpToDate",
        "modelRevisionStates": {"activeModelState": "Loaded", "targetModelState": "Loaded"},
        "modelCopies": {"totalCopies": 1, "failedCopies": 0},
    }
    said = conditions(obj)
    assert {name: one[0] for name, one in said.items()} == dict.fromkeys(
        ("EngineReady", "EngineRouteReady", "IngressReady", "RoutesReady", "LatestDeploymentReady", "Ready"), "True"
    )
    there = await services.children("chat")
    assert [one for one in there if not one.startswith("Pod ")] == [
        "ConfigMap modelconfig-chat",
        "Deployment chat-engine",
        "HorizontalPodAutoscaler chat-engine",
        "PodDisruptionBudget chat-engine",
        "Service chat",
        "Service chat-engine",
    ]
    await list_services(space, services.shift.home)
    line = capsys.readouterr().out.splitlines()[1].split()
    assert line[:7] == [space, "InferenceService", "chat", NAME, "simulated", "1/1", "True"]
    await why_service("chat", space, services.shift.home)
    said = capsys.readouterr().out
    assert f"model: ClusterBaseModel {NAME}: Ready" in said
    assert "runtime: ClusterServingRuntime simulated" in said
    assert re.search(r"engine +RawDeployment +chat-engine-\S+ +a100-0 +True +0", said), said
    await services.cluster.delete(INFERENCE_SERVICES, "chat", space)

    async def nothing() -> bool:
        return not await services.children("chat")

    await services.settled(nothing)


async def test_an_update_is_rolled_out_and_what_is_ready_is_left_alone(services: Services) -> None:
    await services.make("chat")
    before = await services.until(is_ready, "chat")
    deployment = await services.cluster.get(DEPLOYMENTS, "chat-engine", services.space)
    patch = {"spec": {"engine": {"runner": {"name": "ome-container", "env": [{"name": "SEED", "value": "7"}]}}}}
    await services.patch("chat", patch)
    obj = await services.until(is_ready, "chat")
    engine = obj["status"]["components"]["engine"]
    assert engine["latestReadyRevision"] == engine["latestRolledoutRevision"] == "2"
    assert engine["previousRolledoutRevision"] == "1"
    changed = await services.cluster.get(DEPLOYMENTS, "chat-engine", services.space)
    assert changed["metadata"]["uid"] == deployment["metadata"]["uid"]
    (container,) = changed["spec"]["template"]["spec"]["containers"]
    assert {"name": "SEED", "value": "7"} in container["env"]
    started = {one["type"]: one["lastTransitionTime"] for one in before["status"]["conditions"]}
    ended = {one["type"]: one["lastTransitionTime"] for one in obj["status"]["conditions"]}
    assert ended["Ready"] == started["Ready"], "the old pods have served until the new ones did"
    # A label that reaches no pod changes the children, and restarts none.
    await services.cluster.merge_patch(
        INFERENCE_SERVICES,
        "chat",
        {"metadata": {"annotations": {"ome.io/targetUtilizationPercentage": "50"}}},
        services.space,
    )

    async def scaled_at_50() -> bool:
        body = await services.cluster.get(HPA, "chat-engine", services.space)
        return bool(body["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] == 50)

    await services.settled(scaled_at_50)
    again = await services.cluster.get(DEPLOYMENTS, "chat-engine", services.space)
    assert again["spec"] == changed["spec"]


async def test_what_somebody_edits_or_deletes_by_hand_is_mended(services: Services) -> None:
    await services.make("chat")
    await services.until(is_ready, "chat")
    space = services.space
    patch = {"spec": {"selector": {"somebody": "else"}}}
    await services.cluster.merge_patch(KUBERNETES_SERVICES, "chat-engine", patch, space)
    await services.cluster.delete(CONFIG_MAPS, "modelconfig-chat", space)

    async def mended() -> bool:
        found = await services.cluster.get(KUBERNETES_SERVICES, "chat-engine", space)
        try:
            await services.cluster.get(CONFIG_MAPS, "modelconfig-chat", space)
        except NotFound:
            return False
        return "somebody" not in found["spec"]["selector"]

    await services.settled(mended)
    await services.until(is_ready, "chat")


async def test_a_router_that_is_not_asked_for_any_more_goes_with_all_it_had(services: Services) -> None:
    shell = {"name": "router", "image": "modelyard.dev/simulated-engine", "args": ["--model=router", "--port=9000"]}
    router = {"runner": {**shell, "ports": [{"name": "http", "containerPort": 9000}]}}
    await services.make("routed", router=router)
    obj = await services.until(is_ready, "routed")
    assert obj["status"]["url"].endswith(":9000")
    assert conditions(obj)["RouterReady"][0] == "True"
    mine = await services.cluster.create(
        CONFIG_MAPS,
        {"metadata": {"name": "mine", "labels": {"ome.io/inferenceservice": "routed", "component": "router"}}},
        services.space,
    )
    await services.patch("routed", {"spec": {"router": None}})

    async def gone() -> bool:
        return not [one for one in await services.children("routed") if "router" in one]

    await services.settled(gone)
    obj = await services.until(is_ready, "routed")
    assert "router" not in obj["status"]["components"]
    assert "RouterReady" not in conditions(obj)
    assert obj["status"]["url"].endswith(":8080")
    assert await services.cluster.get(CONFIG_MAPS, mine["metadata"]["name"], services.space), "it is not the service's"


async def test_refused_ones_say_what_to_do_and_stop_nobody(
    services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    await services.make("unknown", model={"name": "nobodys"})
    await services.make("elsewhere", runtime={"name": "missing"})
    await services.make("secretive", engine={"hostNetwork": True})
    await services.make("reaching", engine={"volumes": [{"hostPath": {"path": "/"}, "name": "root"}]})
    await services.make("fine")
    await services.until(is_ready, "fine")
    said = await services.until_reason("unknown", "Ready", "BaseModelNotFound")
    assert said == "spec.model.name: model nobodys does not exist - make it, or name another one"
    await services.until_reason("elsewhere", "Ready", "RuntimeNotFound")
    assert "modelyard.dev/allow-in-pods: host-namespaces" in await services.until_reason(
        "secretive", "Ready", "NotPermitted"
    )
    await services.until(lambda obj: conditions(obj).get("Ready", ("",))[0] == "False", "reaching")
    failed = (await services.get("unknown"))["status"]["modelStatus"]
    assert failed["transitionStatus"] == "InvalidSpec"
    assert failed["lastFailureInfo"]["reason"] == "BaseModelNotFound"
    for name in ("unknown", "elsewhere", "secretive", "reaching"):
        assert await services.children(name) == []
    await list_services(services.space, services.shift.home)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = {line[2]: line for line in lines if line[:2] == [services.space, "InferenceService"]}
    assert {"0/0", "False"} <= {*shown["unknown"]}
    assert shown["fine"][4:7] == ["simulated", "1/1", "True"]
    await why_service("secretive", services.space, services.shift.home)
    assert "refused: NotPermitted: spec.engine.hostNetwork" in capsys.readouterr().out
    with pytest.raises(NoSuchService, match=f"there is no service missing in namespace {services.space}"):
        await why_service("missing", services.space, services.shift.home)
    await services.patch("unknown", {"spec": {"model": {"name": NAME}}})
    obj = await services.until(is_ready, "unknown")
    assert "lastFailureInfo" not in obj["status"]["modelStatus"]


async def test_two_services_that_want_one_name_do_not_fight(services: Services) -> None:
    await services.make("a")
    await services.until(is_ready, "a")
    await services.make("a-engine")  # whose Service would be that of the other's engine
    said = await services.until_reason("a-engine", "Ready", "ChildConflict")
    assert said == "Service a-engine belongs to InferenceService a - rename one of the two"
    assert not [one for one in await services.children("a-engine") if one.startswith("Deployment")]
    body = {"metadata": {"name": "b-engine"}, "spec": {"ports": [{"port": 1}]}}
    await services.cluster.create(KUBERNETES_SERVICES, body, services.space)
    await services.make("b")
    said = await services.until_reason("b", "LatestDeploymentReady", "ApplyFailed")
    assert "Service" in said
    assert "does not belong to it" in said
    await services.until(is_ready, "a")
    await services.cluster.delete(KUBERNETES_SERVICES, "b-engine", services.space)
    obj = await services.until(is_ready, "b", timeout=200)
    assert "modelyard.dev/failed" not in obj["metadata"]["annotations"]


async def test_why_pods_are_not_ready_is_told_in_words(services: Services) -> None:
    def engine(**runner: Any) -> dict[str, Any]:
        return {"runner": {"name": "ome-container", **runner}}

    await services.make("image", engine=engine(image="nowhere.example/engine:1"))
    await services.make("greedy", engine=engine(resources={"limits": {"nvidia.com/gpu": "9"}}))
    await services.make("dying", engine=engine(command=["python3", "-c", "raise SystemExit(3)"], args=["x"]))
    await services.make("silent", engine=engine(command=["sleep"], args=["1000"]))
    said = await services.until_reason("image", "EngineReady", "ImageNotRunnable")
    assert "nowhere.example/engine:1" in said
    said = await services.until_reason("greedy", "EngineReady", "Unschedulable")
    assert "Insufficient nvidia.com/gpu" in said
    assert "nvidia.com/gpu 9" in said
    said = await services.until_reason("dying", "EngineReady", "ContainerExited")
    assert "exited with code 3" in said

    def failed_to_load(obj: Object) -> bool:
        status = obj["status"]["modelStatus"]
        failure = status.get("lastFailureInfo") or {}
        return (status["transitionStatus"], failure.get("exitCode")) == ("BlockedByFailedLoad", 3)

    await services.until(failed_to_load, "dying")
    said = await services.until_reason("silent", "EngineReady", "ProbeFailing")
    assert "readinessProbe, GET :8080/health, has not succeeded" in said
    for name in ("image", "greedy", "dying", "silent"):
        assert conditions(await services.get(name))["Ready"][0] == "False"


BAD = "nowhere.example/e:1"


async def waited(services: Services, field: str, value: str, seconds: int = 60) -> bool:
    """Return whether ``kubectl wait`` sees this value in the status of the service chat within these seconds."""
    kubectl, space = str(ensure(["kubectl"], print)["kubectl"]), services.space
    options = (f"--kubeconfig={services.stack.kubeconfig}", "-n", space, f"--timeout={seconds}s")
    arguments = ("wait", f"--for=jsonpath={{.status.{field}}}={value}", "isvc/chat", *options)
    process = await asyncio.create_subprocess_exec(kubectl, *arguments)
    return await asyncio.wait_for(process.wait(), 120) == 0


async def test_an_update_ends_at_its_first_bad_pod_goes_back_and_is_not_tried_again(services: Services) -> None:
    await services.make("chat", {"minReplicas": 2}, annotations={DEADLINE: "10"})
    await services.until(is_ready, "chat")
    before = {one["metadata"]["uid"] for one in await services.cluster.list(PODS, services.space)}
    await services.patch("chat", {"spec": {"engine": {"runner": {"name": "ome-container", "image": BAD}}}})
    images: list[list[str]] = []
    transitions: list[str] = []
    """Transition statuses of the update, as a pipeline reads them."""

    async def returned() -> bool:
        found = await services.cluster.list(PODS, services.space)
        images.append([one["spec"]["containers"][0]["image"] for one in found])
        obj = await services.get("chat")
        if obj["status"]["observedGeneration"] == 2:
            transitions.append(obj["status"]["modelStatus"]["transitionStatus"])
        return conditions(obj)["LatestDeploymentReady"][1] == "RolledBack"

    await services.settled(returned)
    assert max(seen.count(BAD) for seen in images) == 1, "its strategy makes one more at a time"
    assert min(len(seen) - seen.count(BAD) for seen in images) == 2, "and takes none away for it"
    said = conditions(await services.get("chat"))["LatestDeploymentReady"][2]
    assert "generation 2 did not become ready" in said
    assert BAD in said
    assert transitions[-1] == "BlockedByFailedLoad"
    assert "UpToDate" not in transitions

    async def back() -> bool:
        body = await services.cluster.get(DEPLOYMENTS, "chat-engine", services.space)
        (container,) = body["spec"]["template"]["spec"]["containers"]
        pods = {one["metadata"]["uid"] for one in await services.cluster.list(PODS, services.space)}
        return container["image"].startswith("modelyard.dev/simulated-engine") and pods == before

    await services.settled(back)
    obj = await services.get("chat")
    assert conditions(obj)["Ready"][0] == "True"
    model = obj["status"]["modelStatus"]
    assert model["transitionStatus"] == "BlockedByFailedLoad"
    assert model["modelRevisionStates"] == {"activeModelState": "Loaded", "targetModelState": "FailedToLoad"}
    assert await waited(services, "observedGeneration", "2")
    assert await waited(services, "modelStatus.transitionStatus", "BlockedByFailedLoad")
    assert not await waited(services, "modelStatus.transitionStatus", "UpToDate", 2), "it is no success to a pipeline"
    failure, good = model["lastFailureInfo"], obj["status"]["annotations"]["modelyard.dev/good"]
    assert (failure["reason"], failure["message"]) == ("RuntimeUnhealthy", said)
    assert failure["location"].startswith("chat-engine-")
    assert failure["modelRevisionName"] not in ("", good)
    assert obj["status"]["components"]["engine"].get("previousRolledoutRevision") is None, "none was replaced"
    # The bad pod was to end soon; a good one may take its time.
    mended = {"metadata": {"annotations": {DEADLINE: "120"}}, "spec": {"engine": {"runner": {"image": None}}}}
    await services.patch("chat", mended)
    obj = await services.until(is_ready, "chat")
    assert obj["status"]["modelStatus"]["transitionStatus"] == "UpToDate"
    assert "lastFailureInfo" not in obj["status"]["modelStatus"]


async def test_groups_are_updated_one_after_another_and_go_back(services: Services) -> None:
    image = "modelyard.dev/simulated-engine:latest"
    shell = {"name": "engine", "args": ["--model=llama", "--port=8080"], "ports": [{"containerPort": 8080}]}
    shell["readinessProbe"] = {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 2}
    leader = {"leader": {"runner": {**shell, "image": image}}}
    await services.make("large", {"minReplicas": 2, **leader}, annotations={DEADLINE: "30"})
    await services.until(is_ready, "large")

    async def pods() -> dict[str, str]:
        found = await services.cluster.list(PODS, services.space, label_selector="component=engine")
        return {one["metadata"]["name"]: one["spec"]["containers"][0]["image"] for one in found}

    assert await pods() == dict.fromkeys(("large-engine-0-0-0", "large-engine-1-0-0"), image)
    await services.patch("large", {"spec": {"engine": {"leader": {"runner": {"image": BAD}}}}})
    await services.until_reason("large", "EngineReady", "ImageNotRunnable")
    assert await pods() == {"large-engine-0-0-0": BAD, "large-engine-1-0-0": image}
    await services.until_reason("large", "LatestDeploymentReady", "RolledBack")

    async def back() -> bool:
        return conditions(await services.get("large"))["Ready"][0] == "True" and BAD not in (await pods()).values()

    await services.settled(back)
