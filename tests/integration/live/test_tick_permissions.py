"""Ticks, a Lease and the exporter under the service accounts of deployments/kubernetes: enough rights, none idle."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from pathlib import Path

import aiohttp
import pytest
from fleet_fixture import Gauges, ServedModel, eventually, quick, ready_status, run_tick
from install_manifests import (
    AUTOSCALER,
    CONTROLLER_NAMESPACE,
    EXPORTER,
    documents,
    install_roles,
    kubeconfig_of,
    narrow_accounts,
)
from needed_rights import Notes, Right, noted
from prometheus_server import PrometheusServer, free_port

from modelyard.autoscaling.fleet.kinds import BINDINGS, MODELS, POLICIES, SERVICES, VARIANTS
from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.live.fleetwatch import Fleetwatch
from modelyard.cluster import Cluster, ClusterSettings, Forbidden, NotFound
from modelyard.local.stack import LocalStack
from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS, DEPLOYMENTS, HPAS, NAMESPACES, PODS, STATEFUL_SETS

pytestmark = pytest.mark.integration

NOT_SERVED_HERE = {
    "leaderworkerset.x-k8s.io",
    "keda.sh",
    "inference.networking.k8s.io",
    "inference.networking.x-k8s.io",
}
"""Groups of other projects' CRDs, which this cluster does not have; nobody asks for them."""
FOR_INFERENCE_POOLS = {("", "services", "get")}
"""Needed only where there are inference pools."""


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    return noted(monkeypatch)


def granted(role: str) -> set[Right]:
    """What the manifests allow, without the groups that this cluster does not serve."""
    return {
        (group, resource, verb)
        for document in documents("rbac.yaml")
        if document["kind"] in {"ClusterRole", "Role"} and document["metadata"]["name"] == role
        for rule in document["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if group not in NOT_SERVED_HERE
    } - FOR_INFERENCE_POOLS


@pytest.fixture
async def accounts(control_plane: LocalStack, control_plane_cluster: Cluster, tmp_path: Path) -> dict[str, Path]:
    """A kubeconfig for each service account."""
    await install_roles(control_plane_cluster)
    return {
        name: await kubeconfig_of(control_plane_cluster, name, control_plane.kubeconfig, tmp_path / name)
        for name in (AUTOSCALER, EXPORTER)
    }


@pytest.fixture
async def narrow(
    control_plane: LocalStack, control_plane_cluster: Cluster, namespace: str, tmp_path: Path
) -> dict[str, Path]:
    """The same for two accounts that have nothing but the rights of rbac-namespaced.yaml, in this test's namespace."""
    return await narrow_accounts(control_plane_cluster, namespace, control_plane.kubeconfig, tmp_path)


async def ordered_workload(served: ServedModel) -> None:
    """A StatefulSet with one loaded pod, and its variant."""
    labels = {"app": "ordered"}
    body = {
        "metadata": {"name": "ordered", "namespace": served.namespace},
        "spec": {
            "serviceName": "ordered",
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "engine", "image": "example.invalid/engine"}]},
            },
        },
    }
    await served.cluster.create(STATEFUL_SETS, body, served.namespace)
    await served.vary("ordered", kind="StatefulSet", model="other")
    (pod,) = await eventually(lambda: served.pods("ordered"), "a pod of the StatefulSet")
    name = pod["metadata"]["name"]
    await served.cluster.merge_patch(PODS, name, ready_status(1_700_000_000), served.namespace, subresource="status")
    served.source.pods[served.namespace, name] = Gauges("other", kv=0.78)


async def bound_workload(served: ServedModel) -> None:
    """A Deployment scaled by a policy whose metric is a total from Prometheus, far above its target."""
    await served.deploy("bound", 1, model="third")
    registry = "registry.volcano.sh/v1alpha1"
    policy = {
        "apiVersion": registry,
        "kind": "AutoscalingPolicy",
        "metadata": {"name": "steady", "namespace": served.namespace},
        "spec": {"metrics": [{"metricName": "demand", "targetValue": "10"}]},
    }
    binding = {
        "apiVersion": registry,
        "kind": "AutoscalingPolicyBinding",
        "metadata": {
            "name": "bound",
            "namespace": served.namespace,
            "annotations": {"modelyard.dev/metric-sources": "demand: vector(30)"},
        },
        "spec": {
            "policyRef": {"name": "steady"},
            "scalingConfiguration": {
                "target": {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "bound"}},
                "minReplicas": 1,
                "maxReplicas": 4,
            },
        },
    }
    await served.cluster.create(POLICIES, policy, served.namespace)
    await served.cluster.create(BINDINGS, binding, served.namespace)


async def test_ticks_need_exactly_the_rights_of_the_manifests(
    served: ServedModel,
    prometheus_server: PrometheusServer,
    accounts: dict[str, Path],
    notes: Notes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    await ordered_workload(served)
    await bound_workload(served)
    engine = {"engine": {"maxReplicas": 9}, "runtime": {"name": "any"}}
    await served.own("llama", SERVICES, engine, component="engine")
    backend = {
        "name": "main",
        "type": "vLLM",
        "modelURI": "hf://org/model",
        "minReplicas": 1,
        "maxReplicas": 9,
        "workers": [{"type": "server"}],
        "autoscalingPolicy": {"metrics": [{"metricName": "demand", "targetValue": "10"}]},
    }
    await served.own("bound", MODELS, {"backends": [backend]})
    served.load("llama", kv=0.78)
    thresholds = {
        "metadata": {"name": "wva-saturation-scaling-config", "namespace": served.namespace},
        "data": {"default": "kvCacheThreshold: 0.8\nenableLimiter: false\n"},
    }
    await served.cluster.create(CONFIG_MAPS, thresholds, served.namespace)
    await served.cluster.create(
        HPAS,
        {
            "metadata": {"name": "someone-elses", "namespace": served.namespace},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "unrelated"},
                "maxReplicas": 3,
            },
        },
        served.namespace,
    )
    await served.reported()

    # From here on as the autoscaler, first reading the whole cluster as an ordinary installation does. Other tests'
    # variants are in it, so the ticks that write keep to this namespace.
    monkeypatch.setenv("KUBECONFIG", str(accounts[AUTOSCALER]))
    notes.account = str(accounts[AUTOSCALER])
    settings = quick(prometheus_server.url, served.namespace, controller_namespace=CONTROLLER_NAMESPACE)
    look = settings.fleet.model_copy(update={"dry_run": True})
    async with Controller(settings.model_copy(update={"namespaces": [], "fleet": look})) as loop:
        await run_tick(loop)
    async with Controller(settings) as loop:
        lease = loop.lease("modelyard-autoscale")
        assert await lease.acquire(120)
        standby = lease.standby()
        assert await standby.acquire(120)
        await standby.release()
        tick = await run_tick(loop)
        moved = {(ref.kind, ref.key.name): counts for (ref, _), counts in tick.outcome.scaled.items()}
        assert set(moved) == {(VARIANTS.kind, "llama"), (VARIANTS.kind, "ordered"), (BINDINGS.kind, "bound")}
        assert moved[BINDINGS.kind, "bound"] == (1, 3)
        assert not tick.outcome.errors
        # A status write with nothing new to remember reads the object first: edits until a tick has such a one.
        for cost in range(11, 17):
            edit = {"spec": {"variantCost": str(cost)}}
            await served.cluster.merge_patch(VARIANTS, "llama", edit, served.namespace)
            tick = await run_tick(loop)
            assert VARIANTS.kind in {ref.kind for ref in tick.outcome.written}
            assert not tick.outcome.errors
            if ("llmd.ai", "variantautoscalings", "get") in notes.needed:
                break
        for most in (5, 6, 7):
            bounds = {"spec": {"scalingConfiguration": {"maxReplicas": most}}}
            await served.cluster.merge_patch(BINDINGS, "bound", bounds, served.namespace)
            tick = await run_tick(loop)
            assert BINDINGS.kind in {ref.kind for ref in tick.outcome.written}
            assert not tick.outcome.errors
        assert await lease.renew()
        await lease.release()
        noticed = asyncio.create_task(loop.wait_for_change(120))
        while not noticed.done():
            label = {"metadata": {"labels": {"edited": uuid.uuid4().hex}}}
            await served.cluster.merge_patch(VARIANTS, "llama", label, served.namespace)
            await asyncio.wait([noticed], timeout=0.5)
        assert noticed.result()
    # An Event that another process has told already is counted up.
    about = {"kind": "ConfigMap", "apiVersion": "v1", "namespace": served.namespace, "name": "settings"}
    for _ in range(2):
        async with Cluster.connect(ClusterSettings(event_window=1e9)) as cluster:
            await cluster.record_event(about, "Repeated", "the same, told by another process")

    # Other tests' variants name ConfigMaps of their own, which no manifest has to allow.
    theirs = ("", "configmaps", "get")
    assert [text for right, text in notes.forbidden if right != theirs or served.namespace in text] == []
    assert notes.needed == granted(AUTOSCALER)


async def test_the_rights_are_enforced_here(served: ServedModel, accounts: dict[str, Path], notes: Notes) -> None:
    await served.vary("llama")
    async with Cluster.connect(ClusterSettings(kubeconfig=accounts[EXPORTER])) as cluster:
        with pytest.raises(Forbidden):
            await cluster.merge_patch(VARIANTS, "llama", {"metadata": {"labels": {"a": "b"}}}, served.namespace)
    async with Cluster.connect(ClusterSettings(kubeconfig=accounts[AUTOSCALER])) as cluster:
        with pytest.raises(Forbidden):
            await cluster.list(CONFIG_MAPS, served.namespace)
    assert len(notes.forbidden) == 2


async def test_rights_in_one_namespace_are_enough_to_scale_it_and_reach_no_other(
    served: ServedModel,
    prometheus_server: PrometheusServer,
    accounts: dict[str, Path],
    narrow: dict[str, Path],
    other_namespace: str,
    notes: Notes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    await bound_workload(served)
    served.load("llama", kv=0.78)
    # That the other namespace lets this one in cannot be known without the right to list namespaces.
    consent = {"metadata": {"annotations": {"modelyard.dev/allow-from": served.namespace}}}
    await served.cluster.merge_patch(NAMESPACES, other_namespace, consent)
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "namespace": other_namespace}
    scaling = {"target": {"targetRef": reference}, "minReplicas": 1, "maxReplicas": 4}
    abroad = {
        "metadata": {"name": "abroad", "namespace": served.namespace},
        "spec": {"policyRef": {"name": "steady"}, "scalingConfiguration": scaling},
    }
    await served.cluster.create(BINDINGS, abroad, served.namespace)
    await served.reported()

    monkeypatch.setenv("KUBECONFIG", str(narrow[AUTOSCALER]))
    notes.account = str(narrow[AUTOSCALER])
    settings = quick(prometheus_server.url, served.namespace, controller_namespace=CONTROLLER_NAMESPACE)
    async with Controller(settings) as loop:
        lease = loop.lease("modelyard-autoscale")
        assert await lease.acquire(120)
        tick = await run_tick(loop)
        await lease.release()
    moved = {(ref.kind, ref.key.name) for ref, _ in tick.outcome.scaled}
    assert moved == {(VARIANTS.kind, "llama"), (BINDINGS.kind, "bound")}
    assert not tick.outcome.errors
    (refused,) = [one for one in tick.decision.bindings if one.key.name == "abroad"]
    assert "namespaces may not be listed" in refused.message
    cluster_wide = {("", "nodes", "list"), ("", "namespaces", "list")}
    assert {right for right, _ in notes.forbidden} == cluster_wide
    assert notes.needed - cluster_wide <= granted(AUTOSCALER)

    # What the rights everywhere would allow, these do not.
    async with Cluster.connect(ClusterSettings(kubeconfig=accounts[AUTOSCALER])) as cluster:
        with pytest.raises(NotFound):
            await cluster.write_scale(DEPLOYMENTS, "coredns", "kube-system", 0)
    async with Cluster.connect(ClusterSettings(kubeconfig=narrow[AUTOSCALER])) as cluster:
        # What a standby asks about the pod of a silent writer.
        assert not (await cluster.list(PODS, CONTROLLER_NAMESPACE, field_selector="metadata.name=gone")).items
        for place in ("kube-system", other_namespace):
            with pytest.raises(Forbidden):
                await cluster.write_scale(DEPLOYMENTS, "coredns", place, 0)

    async with Cluster.connect(ClusterSettings(kubeconfig=narrow[EXPORTER])) as cluster:
        watch = Fleetwatch(cluster, watch_namespace=served.namespace)
        running = asyncio.create_task(watch.run())
        try:

            def shown() -> bool:
                assert not running.done(), running.exception()
                return [variant.key.name for variant, _ in watch.published()] == ["llama"]

            await eventually(shown, "the exporter shows the variant")
        finally:
            running.cancel()
            await asyncio.wait([running])


async def test_the_exporter_needs_exactly_its_rights(
    served: ServedModel, prometheus_server: PrometheusServer, accounts: dict[str, Path], notes: Notes
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    await ordered_workload(served)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
    notes.account = str(accounts[EXPORTER])
    async with Cluster.connect(ClusterSettings(kubeconfig=accounts[EXPORTER])) as cluster:
        names = ("modelyard-autoscale", "modelyard-reconcile")
        watch = Fleetwatch(cluster, leases=[Key(CONTROLLER_NAMESPACE, name) for name in names])
        running = asyncio.create_task(watch.run())
        try:

            def complete() -> bool:
                assert not running.done(), running.exception()
                mine = [r for variant, r in watch.published() if variant.key.namespace == served.namespace]
                known = [lease.key.name for lease in watch.leases()] == [*names]
                return len(mine) == 2 and None not in mine and known and notes.needed == granted(EXPORTER)

            await eventually(complete, f"both variants with their replicas, using {granted(EXPORTER)}")
        finally:
            running.cancel()
            await asyncio.wait([running])
    assert notes.forbidden == []


async def test_the_exporters_command_and_probe_work_as_its_account(
    served: ServedModel, prometheus_server: PrometheusServer, accounts: dict[str, Path]
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
    (container,) = documents("exporter.yaml")[0]["spec"]["template"]["spec"]["containers"]
    port = free_port()
    here = {"0.0.0.0": "127.0.0.1", "8080": str(port)}
    command = [here.get(word, word) for word in (*container["command"], *container["args"])]
    assert command[0] == "modelyard"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "modelyard.cli.main", *command[1:]),
        env={**os.environ, "KUBECONFIG": str(accounts[EXPORTER])},
    )
    base = f"http://127.0.0.1:{port}"
    health, alive = (base + container[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe"))
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:

            async def ready() -> bool:
                try:
                    async with session.get(health) as answer:
                        return answer.status == 200
                except aiohttp.ClientConnectionError:
                    return False

            await eventually(ready, "the exporter is ready")
            async with session.get(alive) as answer:
                assert answer.status == 200
            async with session.get(f"{base}/metrics") as answer:
                text = await answer.text()
    finally:
        process.terminate()
        async with asyncio.timeout(120):
            code = await process.wait()
    assert code == 0
    assert (
        f'wva_desired_replicas{{accelerator_type="H100",namespace="{served.namespace}",variant_name="llama"}}' in text
    )
