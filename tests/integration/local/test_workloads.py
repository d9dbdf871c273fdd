"""Deployments of simulated engines on the local cluster: placement, readiness, scaling, deletion, crashes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from datetime import datetime

import aiohttp
import pytest
from cluster_helpers import Namespace, condition, engine, is_ready, process_of, shell

from modelyard.cluster import Cluster, Object
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SECRETS,
)

pytestmark = pytest.mark.integration

L40S = {"nvidia.com/gpu.product": "NVIDIA-L40S-48GB"}
A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}


async def test_nodes_have_gpus_of_several_types(local_cluster: Cluster) -> None:
    nodes = await local_cluster.list(NODES)
    products = Counter(node["metadata"]["labels"]["nvidia.com/gpu.product"] for node in nodes)
    assert products == {"NVIDIA-H100-SXM5-80GB": 2, "NVIDIA-L40S-48GB": 2, "NVIDIA-A100-SXM4-80GB": 1}
    for node in nodes:
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
        assert condition(node, "Ready") == "True"


async def test_a_deployment_goes_from_none_to_three_to_one(space: Namespace) -> None:
    await space.deploy("web", engine("--startup-delay", "0"), 0, nodeSelector=L40S)
    await space.cluster.write_scale(DEPLOYMENTS, "web", space.name, 3)
    pods = await space.until(lambda pods: len(pods) == 3 and all(map(is_ready, pods.values())))

    addresses = {pod["status"]["podIP"] for pod in pods.values()}
    assert len(addresses) == 3
    assert all(address.startswith("127.") for address in addresses)
    assert {pod["spec"]["nodeName"] for pod in pods.values()} <= {"l40s-0", "l40s-1"}
    async with aiohttp.ClientSession() as session:
        for address in addresses:
            async with session.get(f"http://{address}:8000/v1/models") as answer:
                assert (await answer.json())["data"][0]["id"] == "test/model"

    processes = {name: process_of(pod) for name, pod in pods.items()}
    await space.cluster.write_scale(DEPLOYMENTS, "web", space.name, 1)
    left = await space.until(lambda pods: len(pods) == 1)
    for name, process in processes.items():
        assert process.alive() == (name in left)


async def test_pods_wait_for_gpus_and_get_those_that_are_freed(space: Namespace) -> None:
    for name in ("first", "second"):
        await space.run(
            name, [shell("exec sleep 1000", resources={"limits": {"nvidia.com/gpu": "5"}})], nodeSelector=A100
        )
    pods = await space.until(
        lambda pods: (
            sum(map(is_ready, pods.values())) == 1
            and any(condition(pod, "PodScheduled") == "False" for pod in pods.values())
        )
    )
    placed = next(name for name, pod in pods.items() if is_ready(pod))
    waiting = next(pod for name, pod in pods.items() if name != placed)
    assert waiting["status"]["phase"] == "Pending"
    assert "Insufficient nvidia.com/gpu" in next(
        c["message"] for c in waiting["status"]["conditions"] if c["type"] == "PodScheduled"
    )

    await space.cluster.delete(PODS, placed, space.name)
    await space.until(lambda pods: placed not in pods and all(map(is_ready, pods.values())))


async def test_readiness_follows_the_start_up_delay(space: Namespace) -> None:
    await space.deploy("slow", engine("--startup-delay", "12"), 1)
    running = await space.until(
        lambda pods: any(
            "running" in s["state"] for p in pods.values() for s in p["status"].get("containerStatuses", [])
        )
    )
    assert not any(map(is_ready, running.values()))
    pods = await space.until(lambda pods: pods and all(map(is_ready, pods.values())))
    (pod,) = pods.values()
    begun = datetime.fromisoformat(pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])
    ready = next(
        datetime.fromisoformat(c["lastTransitionTime"]) for c in pod["status"]["conditions"] if c["type"] == "Ready"
    )
    # Both are cut to whole seconds.
    assert (ready - begun).total_seconds() >= 11


async def test_a_killed_engine_is_counted_and_comes_back(space: Namespace) -> None:
    await space.deploy("crash", engine("--startup-delay", "0"), 1)
    pods = await space.until(lambda pods: pods and all(map(is_ready, pods.values())))
    (name,), (before,) = pods.keys(), pods.values()
    killed = process_of(before)
    os.kill(killed.pid, signal.SIGKILL)
    pods = await space.until(
        lambda pods: is_ready(pods[name]) and pods[name]["status"]["containerStatuses"][0]["restartCount"] == 1
    )
    status = pods[name]["status"]["containerStatuses"][0]
    assert status["lastState"]["terminated"]["exitCode"] == 137
    assert process_of(pods[name]).alive()
    assert process_of(pods[name]) != killed
    assert pods[name]["status"]["podIP"] == before["status"]["podIP"]


async def test_deletion_is_graceful(space: Namespace) -> None:
    """Not ready at once, SIGTERM obeyed in its own time, and only then gone."""
    script = "trap 'sleep 6; exit 0' TERM; while true; do sleep 0.1; done"
    await space.run("polite", [shell(script, ports=[{"containerPort": 9000}])], terminationGracePeriodSeconds=20)
    pods = await space.until(lambda pods: is_ready(pods["polite"]))
    process = process_of(pods["polite"])

    seen: list[Object] = []
    async for pod in space.deleted("polite"):
        seen.append(pod)
        if not is_ready(pod) and "running" in pod["status"]["containerStatuses"][0]["state"]:
            assert process.alive()
    assert any(not is_ready(pod) and "running" in pod["status"]["containerStatuses"][0]["state"] for pod in seen)
    assert seen[-1]["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert not process.alive()


async def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_period(space: Namespace) -> None:
    script = "trap '' TERM; while true; do sleep 0.1; done"
    await space.run("stubborn", [shell(script)], terminationGracePeriodSeconds=2)
    pods = await space.until(lambda pods: is_ready(pods["stubborn"]))
    process = process_of(pods["stubborn"])
    last = [pod async for pod in space.deleted("stubborn")][-1]
    assert last["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    assert not process.alive()


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (3, "Failed")])
async def test_a_finished_pod_has_its_phase(space: Namespace, code: int, phase: str) -> None:
    await space.run("once", [shell(f"exit {code}")], restartPolicy="Never")
    pods = await space.until(lambda pods: pods["once"]["status"]["phase"] == phase)
    state = pods["once"]["status"]["containerStatuses"][0]["state"]["terminated"]
    assert state["exitCode"] == code
    assert state["reason"] == ("Completed" if code == 0 else "Error")


async def test_crashing_again_and_again_is_backed_off(space: Namespace) -> None:
    await space.run("loop", [shell("exit 1")])
    pods = await space.until(
        lambda pods: any(
            s["restartCount"] >= 2 and s["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"
            for s in pods["loop"]["status"].get("containerStatuses", [])
        )
    )
    status = pods["loop"]["status"]
    assert status["phase"] == "Running"
    assert status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert condition(pods["loop"], "Ready") == "False"


async def test_an_unhealthy_container_is_restarted(space: Namespace) -> None:
    probe = {"tcpSocket": {"port": 9}, "periodSeconds": 1, "failureThreshold": 2}
    await space.run("sick", [shell("exec sleep 1000", livenessProbe=probe)])
    await space.until(
        lambda pods: any(s["restartCount"] >= 1 for s in pods["sick"]["status"].get("containerStatuses", []))
    )
    async with asyncio.timeout(120):
        while True:  # an Event comes when it comes
            events = {event["reason"]: event["message"] for event in await space.cluster.list(EVENTS, space.name)}
            if {"Unhealthy", "Killing"} <= events.keys():
                break
            await asyncio.sleep(0.1)
    assert "Liveness probe failed" in events["Unhealthy"]
    assert "liveness" in events["Killing"]


async def test_a_startup_probe_holds_the_others_back(space: Namespace) -> None:
    script = "sleep 8; touch /tmp/$POD_UID.started; exec sleep 1000"
    container = shell(
        script,
        env=[{"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        startupProbe={
            "exec": {"command": ["sh", "-c", "test -e /tmp/$POD_UID.started"]},
            "periodSeconds": 1,
            "failureThreshold": 30,
        },
        readinessProbe={"exec": {"command": ["sh", "-c", "rm -f /tmp/$POD_UID.started"]}, "periodSeconds": 1},
    )
    await space.run("late", [container])
    pods = await space.until(
        lambda pods: any("running" in s["state"] for s in pods["late"]["status"].get("containerStatuses", []))
    )
    assert pods["late"]["status"]["containerStatuses"][0]["started"] is False
    pods = await space.until(lambda pods: is_ready(pods["late"]))
    assert pods["late"]["status"]["containerStatuses"][0]["started"] is True


async def test_init_containers_run_first_and_in_order(
    space: Namespace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    notes = tmp_path_factory.mktemp("init") / "notes"
    init = [shell(f"sleep 0.5; echo one >> {notes}", "one"), shell(f"echo two >> {notes}", "two")]
    await space.run("staged", [shell(f"echo main >> {notes}; exec sleep 1000")], initContainers=init)
    pods = await space.until(lambda pods: is_ready(pods["staged"]))
    for _ in range(600):
        if notes.read_text().count("\n") == 3:
            break
        await asyncio.sleep(0.1)
    assert notes.read_text().split() == ["one", "two", "main"]
    statuses = pods["staged"]["status"]["initContainerStatuses"]
    assert [status["state"]["terminated"]["exitCode"] for status in statuses] == [0, 0]


async def test_a_foreign_image_is_refused_with_a_reason(space: Namespace) -> None:
    await space.run(
        "foreign", [{"name": "vllm", "image": "vllm/vllm-openai:latest", "command": ["touch", "/tmp/never"]}]
    )
    pods = await space.until(lambda pods: "runs no" in str(pods["foreign"]["status"].get("containerStatuses")))
    waiting = pods["foreign"]["status"]["containerStatuses"][0]["state"]["waiting"]
    assert waiting["reason"] == "ImageNotRunnable"
    assert "vllm/vllm-openai:latest" in waiting["message"]
    assert "modelyard.dev/simulated-engine" in waiting["message"]
    assert pods["foreign"]["status"]["phase"] == "Pending"


async def test_variables_come_from_the_pod_config_maps_and_secrets(
    space: Namespace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.mktemp("env") / "env"
    await space.cluster.create(
        CONFIG_MAPS, {"metadata": {"name": "conf", "namespace": space.name}, "data": {"KEY": "from-map"}}
    )
    await space.cluster.create(
        SECRETS, {"metadata": {"name": "token", "namespace": space.name}, "stringData": {"hf": "s3cret"}}
    )
    env = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "hf"}}},
        {"name": "JOINED", "value": "$(NAME)-$(KEY)-$$(NAME)"},
    ]
    script = f'echo "$JOINED $TOKEN $IP $1" > {out}.new && mv {out}.new {out}'
    container = shell(script, env=env, envFrom=[{"configMapRef": {"name": "conf"}}])
    container["command"] += ["sh"]
    container["args"] = ["$(IP)"]
    await space.run("vars", [container], restartPolicy="Never")
    pods = await space.until(lambda pods: pods["vars"]["status"]["phase"] == "Succeeded")
    address = pods["vars"]["status"]["podIP"]
    assert out.read_text().split() == ["vars-from-map-$(NAME)", "s3cret", address, address]


async def test_a_missing_config_map_is_waited_for(space: Namespace) -> None:
    env = [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "x"}}}]
    await space.run("early", [shell("exec sleep 1000", env=env)])
    pods = await space.until(
        lambda pods: any(
            "waiting" in s["state"] and s["state"]["waiting"].get("message")
            for s in pods["early"]["status"].get("containerStatuses", [])
        )
    )
    waiting = pods["early"]["status"]["containerStatuses"][0]["state"]["waiting"]
    assert waiting["reason"] == "CreateContainerConfigError"
    assert "later does not exist" in waiting["message"]
    await space.cluster.create(
        CONFIG_MAPS, {"metadata": {"name": "later", "namespace": space.name}, "data": {"x": "1"}}
    )
    await space.until(lambda pods: is_ready(pods["early"]))


async def test_prometheus_scrapes_by_annotation_and_by_label(space: Namespace, local_stack: LocalStack) -> None:
    container = engine("--startup-delay", "0")
    annotations = {"prometheus.io/scrape": "true", "prometheus.io/port": "8000"}
    for name, metadata in (
        ("annotated", {"annotations": annotations}),
        ("labelled", {"labels": {"modelyard.dev/scrape": "true"}}),
        ("neither", {}),
    ):
        body = {"metadata": {"name": name, "namespace": space.name, **metadata}, "spec": {"containers": [container]}}
        await space.cluster.create(PODS, body)
    await space.until(lambda pods: len(pods) == 3 and all(map(is_ready, pods.values())))
    query = {"query": f'up{{namespace="{space.name}"}} == 1'}
    async with asyncio.timeout(120), aiohttp.ClientSession() as session:
        found: list[dict[str, str]] = []
        while {metric["pod"] for metric in found} != {"annotated", "labelled"}:
            await asyncio.sleep(0.3)
            async with session.get(f"{local_stack.prometheus_url}/api/v1/query", params=query) as answer:
                found = [series["metric"] for series in (await answer.json())["data"]["result"]]
        async with session.get(f"{local_stack.prometheus_url}/api/v1/targets") as answer:
            targets = (await answer.json())["data"]["activeTargets"]
    assert all(metric["node"] and metric["instance"].endswith(":8000") for metric in found)
    assert not [target for target in targets if target["labels"].get("pod") == "neither"]


async def test_a_job_runs_to_its_end_with_files_of_every_kind(space: Namespace, local_stack: LocalStack) -> None:
    """Two Jobs on one Node: what the first leaves on the Node's disk and in the claim is there for the second."""
    meta = {"namespace": space.name}
    await space.cluster.create(CONFIG_MAPS, {"metadata": {"name": "conf", **meta}, "data": {"a": "map", "b": "x"}})
    await space.cluster.create(SECRETS, {"metadata": {"name": "key", **meta}, "stringData": {"token": "secret"}})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    odd = {**claim, "resources": {"requests": {"storage": "1Gi", "example.com/odd": "1"}}}  # no volume can be so
    for name, spec in (("awkward", odd), ("claim", claim)):
        await space.cluster.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": name, **meta}, "spec": spec})
    volumes = {
        "disk": {"hostPath": {"path": "/srv/models", "type": "DirectoryOrCreate"}},
        "claim": {"persistentVolumeClaim": {"claimName": "claim"}},
        "scratch": {"emptyDir": {}},
        "conf": {"configMap": {"name": "conf", "items": [{"key": "a", "path": "deep/a"}]}},
        "key": {"secret": {"secretName": "key"}},
        "pod": {"downwardAPI": {"items": [{"path": "app", "fieldRef": {"fieldPath": "metadata.labels['app']"}}]}},
    }
    mounts = [{"name": name, "mountPath": f"/mnt/{name}"} for name in volumes]
    env = [{"name": "WHERE", "value": "/mnt/disk/note"}]
    first = shell("echo early >> /mnt/scratch/x", "first", volumeMounts=mounts)
    main = shell(
        "cat /mnt/scratch/x /mnt/conf/deep/a /mnt/key/token /mnt/pod/app > $WHERE; cp $WHERE /mnt/claim/note;"
        " echo talk; cat $WHERE > /dev/termination-log",
        volumeMounts=mounts,
        env=env,
    )
    again = shell("cat /mnt/disk/note /mnt/claim/note > /dev/termination-log; exit 3", volumeMounts=mounts[:2])
    for name, containers in (
        ("write", {"initContainers": [first], "containers": [main]}),
        ("read", {"containers": [again]}),
    ):
        pod = {
            **containers,
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": "a100-0"},
            "volumes": [{"name": name, **source} for name, source in volumes.items()],
        }
        template = {"metadata": {"labels": {"app": name}}, "spec": pod}
        spec = {"backoffLimit": 0, "template": template}
        await space.cluster.create(JOBS, {"metadata": {"name": name, **meta}, "spec": spec})
        pods = await space.until(lambda pods, name=name: _ended(pods, name))
        (pod,) = (pod for pod in pods.values() if pod["metadata"]["labels"]["app"] == name)
        (ended,) = (one["state"]["terminated"] for one in pod["status"]["containerStatuses"])
        if name == "write":
            assert (ended["exitCode"], ended["message"]) == (0, "early\nmapsecretwrite")
            assert await _log(space, pod["metadata"]["name"]) == "talk\n"
        else:
            assert (ended["exitCode"], ended["message"]) == (3, 2 * "early\nmapsecretwrite")
    async with asyncio.timeout(120):  # its controller counts when it comes to it
        while (await space.cluster.get(JOBS, "write", space.name)).get("status", {}).get("succeeded") != 1:
            await asyncio.sleep(0.1)
    folder = local_stack.paths.files / "pods" / pod["metadata"]["uid"]
    assert folder.is_dir()
    await space.cluster.delete(JOBS, "read", space.name, propagation="Background")
    await space.until(lambda pods: not any(pod["metadata"]["labels"]["app"] == "read" for pod in pods.values()))
    async with asyncio.timeout(120):
        while folder.exists():
            await asyncio.sleep(0.1)


def _ended(pods: dict[str, Object], app: str) -> bool:
    return any(
        pod["metadata"]["labels"]["app"] == app and pod["status"]["phase"] in ("Succeeded", "Failed")
        for pod in pods.values()
    )


async def _log(space: Namespace, pod: str) -> str:
    return await space.cluster.log(pod, space.name, lines=100)


async def test_our_command_runs_and_the_end_of_its_output_is_its_last_word(space: Namespace) -> None:
    ours = {"name": "main", "image": "modelyard.dev/modelyard:test", "command": ["modelyard", "--nonsense"]}
    ours["terminationMessagePolicy"] = "FallbackToLogsOnError"
    await space.run("ours", [ours], restartPolicy="OnFailure")
    pods = await space.until(
        lambda pods: any(s["restartCount"] >= 1 for s in pods["ours"]["status"].get("containerStatuses", []))
    )
    ended = pods["ours"]["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert ended["exitCode"] == 2
    assert "--nonsense" in ended["message"]
