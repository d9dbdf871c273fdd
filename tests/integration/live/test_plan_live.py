"""``modelyard plan`` against the real cluster: it says what the next tick does, and touches nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import modelyard_beside
from fleet_fixture import ServedModel, quick, run_tick
from prometheus_server import PrometheusServer, free_port

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.decision import TickDecision
from modelyard.autoscaling.fleet.kinds import VARIANTS
from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.offline.manifests import DUMP
from modelyard.cli.convert import converted
from modelyard.cli.plan_json import as_json
from modelyard.cluster import Cluster
from modelyard.local.binaries.obtain import ensure
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import CONFIG_MAPS, DEPLOYMENTS, EVENTS, HPAS, LEASES, NAMESPACES, PODS, SECRETS

pytestmark = pytest.mark.integration

Run = Callable[..., Any]


async def plan(*arguments: str | Path) -> dict[str, Any]:
    done = await modelyard_beside("plan", "-o", "json", *arguments)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


@pytest.fixture
def policy(served: ServedModel, tmp_path: Path) -> Path:
    """The tests' short windows, as a file."""
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(quick("", served.namespace).fleet.model_dump(mode="json", exclude_defaults=True)))
    return file


async def versions(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Every object of the namespace that a careless plan could have touched."""
    found = {"namespace": (await cluster.get(NAMESPACES, namespace))["metadata"]["resourceVersion"]}
    for kind in (VARIANTS, DEPLOYMENTS, PODS, CONFIG_MAPS, SECRETS, EVENTS, HPAS, LEASES):
        for item in await cluster.list(kind, namespace):
            # Controllers tell of what they did, some time after they did it.
            if kind is not EVENTS or item.get("reportingComponent") == "modelyard":
                found[f"{kind.kind} {item['metadata']['name']}"] = item["metadata"]["resourceVersion"]
    return found


def timeless(value: Any) -> Any:
    """Without the moment it was decided at, and the load measured then, which two runs cannot share."""
    if isinstance(value, dict):
        moment = ("at", "lastTransition", "resourceVersion", "load")
        return {k: timeless(v) for k, v in value.items() if k not in moment}
    if isinstance(value, list):
        return [timeless(part) for part in value]
    return "a time" if isinstance(value, float) and value > 1e9 else value


def told(decision: TickDecision | None, settings: FleetSettings) -> Any:
    assert decision is not None
    return timeless(json.loads(as_json(decision, settings)))


async def fleet_with_everything(served: ServedModel, cluster: Cluster) -> None:
    """A model short of capacity on two accelerators, an idle one under an HPA, and one whose workload is missing."""
    for name, cost in (("cheap", "4"), ("dear", "10")):
        await served.deploy(name, 2)
        await served.vary(name, cost=cost)
        served.load(name, kv=0.78, waiting=1)
    await served.deploy("idle", 2, model="idle")
    await served.vary("idle", model="idle")
    served.load("idle", kv=0.05, waiting=0)
    await served.vary("lost", model="lost")
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "idle"}
    spec = {"scaleTargetRef": reference, "minReplicas": 2, "maxReplicas": 5}
    hpa = {"apiVersion": "autoscaling/v1", "metadata": {"name": "idle", "namespace": served.namespace}, "spec": spec}
    await cluster.create(HPAS, hpa, served.namespace)
    await served.reported()


async def test_the_next_tick_does_what_was_planned_and_the_plan_does_nothing(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster, policy: Path
) -> None:
    await fleet_with_everything(served, control_plane_cluster)
    arguments = ("-n", served.namespace, "--prometheus", prometheus_server.url, "--settings", policy)
    before = await versions(control_plane_cluster, served.namespace)
    planned = await plan(*arguments)
    shown = await modelyard_beside("plan", *arguments)
    after = await versions(control_plane_cluster, served.namespace)
    # The HPA controller looks after its own object.
    foreign = "HorizontalPodAutoscaler "
    assert {k: v for k, v in after.items() if not k.startswith(foreign)} == {
        k: v for k, v in before.items() if not k.startswith(foreign)
    }

    settings = quick(prometheus_server.url, served.namespace)
    async with Controller(settings) as loop:
        tick = await run_tick(loop)
    assert timeless(planned) == told(tick.decision, settings.fleet)

    targets = {record["variant"]["name"]: record for record in planned["records"]}
    assert targets.keys() == {"cheap", "dear", "idle", "lost"}
    assert targets["cheap"]["write"] is not None
    for name in ("cheap", "dear", "idle"):
        written = targets[name]["write"]
        assert await served.replicas(name) == (2 if written is None else written)
        stored = (await served.variant(name))["status"]["desiredOptimizedAlloc"]["numReplicas"]
        assert stored == targets[name]["target"]
    assert shown.code == 0
    for record in planned["records"]:
        assert f"{served.namespace}/{record['variant']['name']}" in shown.out
        assert record["message"] in shown.out


async def test_a_scaler_annotated_for_the_later_autoscaler_is_not_passed_over(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster, policy: Path
) -> None:
    """There is no VariantAutoscaling yet: what it prints makes one, and the next plan decides on it."""
    await served.deploy("later", 2)
    served.load("later", kv=0.9, waiting=9)
    metadata = {"name": "later", "namespace": served.namespace}
    annotations = {"llm-d.ai/managed": "true", "llm-d.ai/model-id": "llama", "llm-d.ai/variant-cost": "40.0"}
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "later"}
    hpa = {
        "apiVersion": "autoscaling/v1",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {**metadata, "annotations": annotations},
        "spec": {"scaleTargetRef": reference, "minReplicas": 1, "maxReplicas": 8},
    }
    await control_plane_cluster.create(HPAS, hpa, served.namespace)
    arguments = ("-n", served.namespace, "--prometheus", prometheus_server.url, "--settings", policy)
    before = await modelyard_beside("plan", *arguments)
    remedy = f"kubectl get horizontalpodautoscaler later -n {served.namespace} -o yaml | modelyard convert -f -"
    assert before.err.count(remedy) == 1
    stored = await control_plane_cluster.get(HPAS, "later", served.namespace)
    made, _ = converted({**hpa, **stored, "apiVersion": hpa["apiVersion"], "kind": hpa["kind"]}).manifests
    await control_plane_cluster.create(VARIANTS, made, served.namespace)
    await served.reported()
    after = await modelyard_beside("plan", *arguments)
    assert remedy not in after.err
    assert f"{served.namespace}/later" in after.out


async def test_a_cluster_that_runs_faster_than_life_is_planned_for_in_its_own_time(
    served: ServedModel, prometheus_server: PrometheusServer, policy: Path
) -> None:
    """Durations a thousand times as long, divided by a thousand, are the loop's."""
    await served.deploy("idle", 3)
    await served.vary("idle")
    served.load("idle", kv=0.05, waiting=0)
    await served.reported()
    settings = quick(prometheus_server.url, served.namespace, scale_down_delay=40)
    policy.write_text(yaml.safe_dump(settings.fleet.compressed(1 / 1000).model_dump(mode="json")))
    arguments = ("-n", served.namespace, "--prometheus", prometheus_server.url, "--settings", policy)
    planned = await plan(*arguments, "--time-compression", 1000)
    assert "waiting for 40 s" in planned["records"][0]["message"]
    async with Controller(settings) as loop:
        assert timeless(planned) == told((await run_tick(loop)).decision, settings.fleet)


async def test_a_saved_snapshot_and_a_dump_lead_to_the_same_decision(
    served: ServedModel,
    prometheus_server: PrometheusServer,
    control_plane_cluster: Cluster,
    control_plane: LocalStack,
    policy: Path,
    tmp_path: Path,
) -> None:
    await fleet_with_everything(served, control_plane_cluster)
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)  # there is a status and a memory to carry over
    snapshot, dump = tmp_path / "metrics.yaml", tmp_path / "dump.yaml"
    scope = ("-n", served.namespace, "--settings", policy)
    live = await plan(*scope, "--prometheus", prometheus_server.url, "--save-snapshot", snapshot)
    program, *arguments = DUMP.split()
    kubectl = await asyncio.create_subprocess_exec(
        str(ensure([program], print)[program]),
        f"--kubeconfig={control_plane.kubeconfig}",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
    )
    text, _ = await kubectl.communicate()
    assert kubectl.returncode == 0
    dump.write_bytes(text)
    offline = await plan(*scope, "-f", dump, "--metrics", snapshot)
    assert timeless(offline["records"]) == timeless(live["records"])
    assert offline["at"] == live["at"]
    assert offline["unattributedSignals"] == live["unattributedSignals"]


async def test_other_metrics_can_be_tried_on_the_live_fleet(
    served: ServedModel, prometheus_server: PrometheusServer, policy: Path, tmp_path: Path
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.5)
    await served.reported()
    scope = ("-n", served.namespace, "--settings", policy, "--prometheus", prometheus_server.url)
    snapshot = tmp_path / "metrics.yaml"
    (now,) = (await plan(*scope, "--save-snapshot", snapshot))["records"]
    assert now["target"] == 2
    imagined = yaml.safe_load(snapshot.read_text())
    imagined["at"] = "2026-01-01T00:00:00Z"  # however old the file is, it is tried as if said now
    for pod in imagined["pods"]:
        pod.update(kv=0.78)
        del pod["sampledAt"]
    del imagined["lastSeen"]
    snapshot.write_text(yaml.safe_dump(imagined))
    (then,) = (await plan(*scope, "--metrics", snapshot))["records"]
    assert (then["current"], then["target"]) == (2, 3)
    assert await served.replicas("llama") == 2


async def test_a_dead_prometheus_is_told_in_the_plan(served: ServedModel) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    address = f"http://127.0.0.1:{free_port()}"
    scope = ("plan", "-n", served.namespace, "--prometheus", address)
    done = await modelyard_beside(*scope)
    assert (done.code, done.err) == (0, "")
    assert done.out.count(address) == 1
    certain = await modelyard_beside(*scope, "--exit-code", "-v")
    assert certain.code == 1
    assert f"error: {served.namespace}/llama: PrometheusError: " in certain.err
    assert "PrometheusError" in certain.out


async def test_a_dead_api_server_is_one_line(control_plane: LocalStack, tmp_path: Path, monkeypatch: Any) -> None:
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    server = f"https://127.0.0.1:{free_port()}"
    config["clusters"][0]["cluster"]["server"] = server
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    done = await modelyard_beside("plan", "--prometheus", "http://127.0.0.1:1")
    assert (done.code, done.out) == (1, "")
    last = done.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert server.removeprefix("https://") in last
    assert "Traceback" not in done.err
