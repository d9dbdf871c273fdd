"""``modelyard plan`` on a real control plane for the SLO form and policy bindings: now, if, and again from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import modelyard_beside
from fleet_fixture import Gauges, ServedModel, eventually, steadily
from prometheus_server import PrometheusServer

from modelyard.autoscaling.fleet.kinds import BINDINGS, POLICIES, VARIANTS
from modelyard.autoscaling.reading.bindings.objects import SOURCES
from modelyard.cluster import Cluster
from modelyard.objects.kinds import CONFIG_MAPS, DEPLOYMENTS, PODS, REPLICA_SETS, ResourceType

pytestmark = pytest.mark.integration

METRIC = "vllm:num_requests_waiting"
SPEC: dict[str, Any] = {
    "modelID": "llama",
    "variantID": "llama-H100-1",
    "accelerator": "H100",
    "acceleratorCount": 1,
    "sloClassRef": {"name": "my-classes", "key": "premium"},
    "variantProfile": {
        "maxBatchSize": 64,
        "perfParms": {
            "decodeParms": {"alpha": "6.958", "beta": "0.042"},
            "prefillParms": {"gamma": "5.2", "delta": "0.1"},
        },
    },
}
KINDS: tuple[ResourceType, ...] = (VARIANTS, BINDINGS, POLICIES, DEPLOYMENTS, REPLICA_SETS, PODS, CONFIG_MAPS)


async def plan(*arguments: object) -> dict[str, Any]:
    done = await modelyard_beside("plan", "-o", "json", *arguments)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


async def both_forms(served: ServedModel, cluster: Cluster) -> None:
    """A model with an SLO, and a workload whose queue a policy holds."""
    await served.deploy("llama", 1)
    await served.deploy("queue", 2, model="other")
    served.load("queue", waiting=12)
    for name, data in (
        ("my-classes", {"premium": "name: Premium\ndata:\n- {model: llama, slo-tpot: 24, slo-ttft: 500}\n"}),
        ("accelerator-unit-costs", {"H100": '{"cost": "40"}'}),
    ):
        await cluster.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": data}, served.namespace)
    await cluster.create(VARIANTS, {"metadata": {"name": "llama"}, "spec": SPEC}, served.namespace)
    await cluster.create(
        POLICIES,
        {"metadata": {"name": "queue"}, "spec": {"metrics": [{"metricName": METRIC, "targetValue": "5"}]}},
        served.namespace,
    )
    query = f'sum(max_over_time({METRIC}{{namespace="{served.namespace}",model_name="other"}}[10s]))'
    reference = {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "queue"}}
    await cluster.create(
        BINDINGS,
        {
            "metadata": {"name": "queue", "annotations": {SOURCES: json.dumps({METRIC: query})}},
            "spec": {
                "policyRef": {"name": "queue"},
                "scalingConfiguration": {"target": reference, "minReplicas": 1, "maxReplicas": 30},
            },
        },
        served.namespace,
    )
    (pod,) = [pod for namespace, pod in served.source.pods if namespace == served.namespace and "llama" in pod]
    served.source.pods[served.namespace, pod] = Gauges(
        "llama",
        finished=steadily(8),
        more={
            f"vllm:request_{what}_tokens_{part}": steadily(8 * mean)
            for what in ("prompt", "generation")
            for part, mean in (("sum", 128), ("count", 1))
        },
    )


async def stored(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    found = []
    for kind in KINDS:
        for item in await cluster.list(kind, namespace):
            found.append({"apiVersion": kind.api_version, "kind": kind.kind, **item})
    return found


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in ("at", "lastTransition", "resourceVersion")}
    if isinstance(value, list):
        return [timeless(part) for part in value]
    return "a time" if isinstance(value, float) and value > 1e9 else value


async def test_both_forms_now_if_and_from_files(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = control_plane_cluster
    await both_forms(served, cluster)
    policy, snapshot, dump = tmp_path / "policy.yaml", tmp_path / "metrics.yaml", tmp_path / "dump.yaml"
    settings = {"load_window": 6, "controller_namespace": served.namespace, "headroom": False}
    policy.write_text(yaml.safe_dump(settings))
    scope = ("-n", served.namespace, "--settings", policy)
    live = (*scope, "--prometheus", prometheus_server.url)

    async def known() -> tuple[list[dict[str, Any]], dict[str, Any]] | None:
        before = await stored(cluster, served.namespace)
        found = await plan(*live, "--save-snapshot", snapshot)
        told = found["records"][0]["prediction"]
        # Until the load window is full of samples, the load is told too low; scrapes that come late distort it.
        load = told and told["load"] == pytest.approx(8, rel=0.3)
        return (before, found) if load and found["bindings"][0]["records"][0]["decided"] else None

    before, now = await eventually(known, "load and request sizes are known", 120)
    assert [o["metadata"]["resourceVersion"] for o in await stored(cluster, served.namespace)] == [
        o["metadata"]["resourceVersion"] for o in before
    ]
    (record,), (binding,) = now["records"], now["bindings"]
    assert record["form"] == "slo"
    assert [option["chosen"] for option in record["alternatives"]].count(True) == 1
    assert (binding["records"][0]["current"], binding["records"][0]["target"]) == (2, 5)  # 24 in all at 5 each

    dump.write_text(yaml.safe_dump_all(before))
    offline = await plan(*scope, "-f", dump, "--metrics", snapshot)
    assert timeless(offline["records"]) == timeless(now["records"])
    assert timeless(offline["bindings"]) == timeless(now["bindings"])

    then = await plan(*live, "--metrics", snapshot, "--load", "20x", "--slo-itl", "50%", "--capacity", "H100=3")
    assert len(then["assumptions"]) == 3
    assert record["target"] < then["records"][0]["target"] <= 3
    assert then["bindings"][0]["records"][0]["target"] > 5
    assert then["settled"]["records"][0]["target"] <= 3
    assert then["settled"]["bindings"][0]["records"][0]["target"] == 30
    assert await served.replicas("queue") == 2
