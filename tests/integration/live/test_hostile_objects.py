"""One tenant, with every right in its own namespace and none elsewhere, writes what might stop the loop for everybody.

Everything here is taken by the API server. After it a tick goes on, a neighbour's variant is scaled as without it, and
every bad object says so in its own condition or Event.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fleet_fixture import ServedModel, quick, run_tick
from install_manifests import tenant
from prometheus_server import PrometheusServer

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.fleet.kinds import BINDINGS, POLICIES, VARIANTS
from modelyard.autoscaling.live.collect import MOST_READ_ALONE, read_workloads
from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.memory.variants import AUTOSCALING_STATE
from modelyard.autoscaling.variants.classes import MOST_CLASS_MAPS
from modelyard.cluster import Cluster, ClusterSettings
from modelyard.local.stack import LocalStack
from modelyard.objects import ResourceType, WorkloadId
from modelyard.objects.kinds import CONFIG_MAPS, EVENTS, REPLICA_SETS
from modelyard.reconcile.kernel.mirror import Mirror

pytestmark = pytest.mark.integration

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)
TEXTS = {
    "no-such-date": "retention_period: 2024-13-45",
    "no-bool": "enable_scale_to_zero: !!bool x",
    "no-number": "kvCacheThreshold: 0x_",
    "digits": f"kvCacheThreshold: {'9' * 5000}",
    "brackets": "[" * 3000,
    "hours": f"retention_period: {'9' * 400}h",
    "aliases": BOMB,
    "surrogate": 'kvCacheThreshold: "\\ud800"',
    "lines": 'kvCacheThreshold: "\\e[2Jx\\n2026-01-01 ERROR all is lost"',
    "long": f"kvCacheThreshold: {'x' * 200_000}",
    "mistakes": "".join(f"f{number}: 1\n" for number in range(2400)),
}
SLO = {
    "variantID": "theirs-H100-1",
    "accelerator": "H100",
    "acceleratorCount": 1,
    "variantProfile": {
        "maxBatchSize": 64,
        "perfParms": {"decodeParms": {"alpha": "20", "beta": "0.4"}, "prefillParms": {"gamma": "5", "delta": "0.1"}},
    },
}
CLASSES = ("service-classes-config,foo=bar", *(f"classes-{number}" for number in range(2 * MOST_CLASS_MAPS)))


@dataclass(frozen=True)
class Mallory:
    """The tenant: their own connection to the cluster, and their namespace."""

    cluster: Cluster
    namespace: str

    async def write(
        self, resource: ResourceType, name: str, annotations: dict[str, str] | None = None, **body: Any
    ) -> None:
        metadata = {"name": name, "namespace": self.namespace, "annotations": annotations or {}}
        await self.cluster.create(resource, {"metadata": metadata, **body}, self.namespace)

    async def vary(self, name: str, annotations: dict[str, str] | None = None, **spec: Any) -> None:
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
        spec = {"scaleTargetRef": target, "modelID": "theirs", **spec}
        await self.write(
            VARIANTS, name, annotations, apiVersion="llmd.ai/v1alpha1", kind="VariantAutoscaling", spec=spec
        )

    async def bind(self, name: str, annotations: dict[str, str]) -> None:
        target = {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}}
        spec = {
            "policyRef": {"name": "steady"},
            "scalingConfiguration": {"target": target, "minReplicas": 1, "maxReplicas": 4},
        }
        await self.write(BINDINGS, name, annotations, spec=spec)


@pytest.fixture
async def mallory(
    control_plane: LocalStack, control_plane_cluster: Cluster, other_namespace: str, tmp_path: Path
) -> AsyncIterator[Mallory]:
    kubeconfig = await tenant(control_plane_cluster, other_namespace, control_plane.kubeconfig, tmp_path / "mallory")
    async with Cluster.connect(ClusterSettings(kubeconfig=kubeconfig)) as cluster:
        yield Mallory(cluster, other_namespace)


async def test_one_tenants_objects_never_stop_another(
    served: ServedModel, mallory: Mallory, prometheus_server: PrometheusServer, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("wva-saturation-scaling-config", FleetSettings().scale_to_zero_config_map):
        await mallory.write(CONFIG_MAPS, name, data=TEXTS)
    deep = "[" * 500
    hostile = {
        "digits": {"modelyard.dev/min-replicas": "9" * 5000},
        "no-digit": {"modelyard.dev/min-replicas": "²", "modelyard.dev/max-replicas": "٣"},
        "memory": {AUTOSCALING_STATE: deep},
        "huge-memory": {AUTOSCALING_STATE: json.dumps({"relax_since": 10**300})},
        "wake": {"modelyard.dev/wake-query": "(" * 2000},
        "mode": {"modelyard.dev/actuation": "direct\n2026-01-01 ERROR all is lost"},
    }
    for name, asked in hostile.items():
        await mallory.vary(name, asked)
    await mallory.vary("cost", variantCost="9" * 400)
    await mallory.vary("year-zero")
    for number, name in enumerate(CLASSES):
        await mallory.vary(f"class-{number}", **SLO, sloClassRef={"name": name, "key": "a"})
    decided = {"lastRunTime": "0000-01-01T00:00:00Z", "numReplicas": 1, "accelerator": "H100"}
    status = {"status": {"desiredOptimizedAlloc": decided}}
    await mallory.cluster.merge_patch(VARIANTS, "year-zero", status, mallory.namespace, subresource="status")
    registry = "registry.volcano.sh/v1alpha1"
    steady = {"metrics": [{"metricName": "demand", "targetValue": "10"}]}
    await mallory.write(POLICIES, "steady", apiVersion=registry, kind="AutoscalingPolicy", spec=steady)
    sources = {"deep": deep, "bomb": BOMB, "tag": "demand: !!python/name:os.system", "digits": f"demand: {'9' * 5000}"}
    for name, text in sources.items():
        await mallory.bind(f"{name}-sources", {"modelyard.dev/metric-sources": text})
    await mallory.bind("grace", {"modelyard.dev/scale-to-zero-grace": "9" * 200 + "h"})

    theirs = ServedModel(served.cluster, served.source, mallory.namespace, prometheus_server.url)
    await theirs.deploy("theirs", 1, model="theirs")
    await theirs.vary("theirs", model="theirs")
    await theirs.deploy("gateway", 0, model="asleep")
    await theirs.vary("gateway", model="asleep", annotations={"modelyard.dev/wake-query": "sum("})
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.76, waiting=1)
    await served.reported()
    settings = quick(prometheus_server.url, served.namespace)
    async with Controller(settings.model_copy(update={"namespaces": [served.namespace, mallory.namespace]})) as loop:
        tick = await run_tick(loop)

    assert await served.replicas("llama") == 3
    assert not tick.decision.errors
    found = {
        variant["metadata"]["name"]: {c["type"]: c for c in (variant.get("status") or {}).get("conditions") or ()}
        for variant in (await mallory.cluster.list(VARIANTS, mallory.namespace)).items
    }
    classes = {f"class-{number}": name for number, name in enumerate(CLASSES)}
    assert found.keys() == {*hostile, *classes, "cost", "year-zero", "theirs", "gateway"}
    resolved = {name for name, said in found.items() if said["TargetResolved"]["status"] == "True"}
    assert resolved == {"theirs", "gateway"}
    unread = {name for name in classes if "it was not looked up" in found[name]["SLOFeasible"]["message"]}
    assert "class-0" in unread
    assert len(unread) == len(classes) - MOST_CLASS_MAPS
    signals = tick.fleet.signals
    assert (signals.partial_errors, signals.gateway_unknown, list(signals.errors_in)) == (
        (),
        False,
        [mallory.namespace],
    )
    assert "gateway" in signals.errors_in[mallory.namespace][0]
    for binding in (await mallory.cluster.list(BINDINGS, mallory.namespace)).items:
        says = {c["type"]: c for c in binding["status"]["conditions"]}
        name, ready = binding["metadata"]["name"], says["Ready"]
        assert ready["status"] == "False"
        assert "annotation modelyard.dev/" in ready["message"], name
        assert len(ready["message"]) < 1000
    events = (await mallory.cluster.list(EVENTS, mallory.namespace)).items
    told = " ".join(event["message"] for event in events)
    assert len(events) < 100, "2,400 mistakes in each of two ConfigMaps are a few messages"
    for name in TEXTS:
        assert f"key '{name}'" in told, name
    assert all("\n" not in event["message"] and len(event["message"]) <= 1024 for event in events)
    assert not [record for record in caplog.records if "\n" in record.getMessage()]


async def test_workloads_of_odd_kinds_are_read_within_a_share(
    control_plane_cluster: Cluster, namespace: str, other_namespace: str
) -> None:
    pods = {WorkloadId(other_namespace, "", "Pod", f"x{number:03}") for number in range(MOST_READ_ALONE + 2)}
    labels = {"app": "mine"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "example.invalid/x"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    await control_plane_cluster.create(REPLICA_SETS, {"metadata": {"name": "mine"}, "spec": spec}, namespace)
    mine = WorkloadId(namespace, "apps", "ReplicaSet", "mine")
    async with Mirror(control_plane_cluster) as mirror:
        found, errors = await read_workloads(mirror, {*pods, mine}, [namespace, other_namespace])
    assert {id_: workload.spec_replicas for id_, workload in found.items()} == {mine: 2}
    beyond = {id_.name for id_, why in errors.items() if "beyond" in why}
    assert beyond == {f"x{number:03}" for number in (MOST_READ_ALONE, MOST_READ_ALONE + 1)}
