"""Two pairs of Deployments of simulated engines that the deployed, scheduled flow scales, for tests and benchmarks.

One pair is scaled by VariantAutoscalings in saturation form, the other by an AutoscalingPolicyBinding.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from deployments.child import ChildProcess
from deployments.demo.console import wait_until
from deployments.demo.scenario import CONTROLLER_NAMESPACE, PORT, VARIANTS, DemoVariant, Scenario
from deployments.profile import free_port
from deployments.stack import PrefectStack, beside_a_cluster, schedule, write_prefect_file
from modelyard.autoscaling.fleet.kinds import BINDINGS, VARIANTS as VARIANT_AUTOSCALINGS
from modelyard.cluster import Cluster
from modelyard.local.settings import StackSettings, default_nodes
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import DEPLOYMENTS

NAMESPACE, POLICY_NAMESPACE = NAMESPACES = ("demo", "demo-policy")
MODEL = "meta-llama/Llama-3.3-70B-Instruct"
POLICY = "llama"
UNSCHEDULED = 3600.0
"""Seconds until the first run of the autoscaler, unless ``schedule`` starts it before, as soon as there is a fleet."""


@contextlib.asynccontextmanager
async def running(
    scenario: Scenario, out: Path, **cluster_settings: Any
) -> AsyncIterator[tuple[LocalStack, PrefectStack, Cluster]]:
    """Run cluster, engines, exporter and Prefect until the block ends; on entry the scheduled flow has decided once."""
    exporter_port = free_port()
    products = {variant.product for variant in VARIANTS}
    settings = StackSettings(
        scrape_interval="1s",
        backoff_scale=0.1,
        scrape_targets=[f"127.0.0.1:{exporter_port}"],
        nodes=[
            group.model_copy(update={"count": group.count * len(NAMESPACES)})
            for group in default_nodes()
            if group.product in products
        ],
        **cluster_settings,
    )
    async with contextlib.AsyncExitStack() as cleanup:
        namespaces = (*NAMESPACES, CONTROLLER_NAMESPACE)
        stack, prefect, cluster = await cleanup.enter_async_context(beside_a_cluster(out, settings, namespaces, print))
        every = scenario.shift_seconds / 2
        given = scenario.flow_parameters(stack.prometheus_url, *NAMESPACES)
        write_prefect_file(out / "prefect.yaml", "autoscale", given, every, UNSCHEDULED)
        start = asyncio.create_task(prefect.start())
        arguments = ["-m", "modelyard.cli.main", "exporter", "--port", str(exporter_port)]
        cleanup.enter_context(ChildProcess("the exporter", arguments, env=os.environ, log=out / "exporter.log"))
        for manifest in manifests(scenario):
            await cluster.apply(manifest)
        await start
        await wait_until("every engine is ready", partial(_unready, cluster), lambda names: not names)
        await schedule(prefect.server.api_url, "autoscale/autoscale", every)
        await wait_until("the flow autoscale has decided", partial(_undecided, cluster), lambda names: not names)
        yield stack, prefect, cluster


async def _unready(cluster: Cluster) -> list[str]:
    return [
        f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        for namespace in NAMESPACES
        for item in await cluster.list(DEPLOYMENTS, namespace)
        if (item.get("status") or {}).get("readyReplicas") != item["spec"]["replicas"]
    ]


async def _undecided(cluster: Cluster) -> list[str]:
    waiting = []
    decided = ((VARIANT_AUTOSCALINGS, NAMESPACE, "desiredOptimizedAlloc"), (BINDINGS, POLICY_NAMESPACE, "conditions"))
    for kind, namespace, field in decided:
        scalers = list(await cluster.list(kind, namespace))
        if not scalers or not all((item.get("status") or {}).get(field) for item in scalers):
            waiting.append(namespace)
    return waiting


def manifests(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Yield the Deployments of both namespaces and the objects that scale them."""
    for namespace in NAMESPACES:
        yield from (deployment(variant, namespace, scenario) for variant in VARIANTS)
    yield from map(variant_autoscaling, VARIANTS)
    yield policy(scenario)
    yield binding()


def manifest(
    api_version: str, kind: str, namespace: str, name: str, spec: dict[str, Any], **metadata: Any
) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, **metadata}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def target(variant: DemoVariant) -> dict[str, str]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": variant.name}


def deployment(variant: DemoVariant, namespace: str, scenario: Scenario) -> dict[str, Any]:
    """Return a Deployment of simulated engines on nodes with the variant's accelerator."""
    labels = {"app": variant.name}
    scrape = {"scrape": "true", "port": str(PORT), "path": "/metrics"}
    template = {
        "metadata": {
            "labels": {**labels, "modelyard.dev/model": "llama-3.3-70b"},
            "annotations": {f"prometheus.io/{key}": value for key, value in scrape.items()},
        },
        "spec": {
            "nodeSelector": {"nvidia.com/gpu.product": variant.product},
            "terminationGracePeriodSeconds": 30,
            "containers": [scenario.engine(variant, f"--model={MODEL}")],
        },
    }
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return manifest("apps/v1", "Deployment", namespace, variant.name, spec, labels=labels)


def variant_autoscaling(variant: DemoVariant) -> dict[str, Any]:
    """Return a VariantAutoscaling in saturation form."""
    spec = {"scaleTargetRef": target(variant), "modelID": MODEL, "variantCost": variant.cost}
    more = {
        "labels": {"inference.optimization/acceleratorName": variant.accelerator},
        "annotations": {"modelyard.dev/max-replicas": str(variant.max_replicas)},
    }
    return manifest("llmd.ai/v1alpha1", "VariantAutoscaling", NAMESPACE, variant.name, spec, **more)


def policy(scenario: Scenario) -> dict[str, Any]:
    """Return a policy that keeps running requests and KV use at target values; scales up at once and down slowly."""
    minute, window = (f"{round(seconds / scenario.compression * 1000)}ms" for seconds in (60, 180))
    panic = {"period": minute, "percent": 200, "panicThresholdPercent": 200, "panicModeHold": minute}
    spec = {
        "tolerancePercent": 10,
        "metrics": [
            {"metricName": "vllm:num_requests_running", "targetValue": str(VARIANTS[0].batch // 2)},
            {"metricName": "vllm:kv_cache_usage_perc", "targetValue": "700m"},
        ],
        "behavior": {
            "scaleUp": {"stablePolicy": {"instances": 1, "percent": 100, "period": minute}, "panicPolicy": panic},
            "scaleDown": {"instances": 1, "percent": 50, "period": minute, "stabilizationWindow": window},
        },
    }
    return manifest("registry.volcano.sh/v1alpha1", "AutoscalingPolicy", POLICY_NAMESPACE, POLICY, spec)


def binding() -> dict[str, Any]:
    """Return a binding that shares one total among both Deployments, cheapest first."""
    params = [
        {
            "target": {"targetRef": target(variant), "metricEndpoint": {"uri": "/metrics", "port": PORT}},
            "minReplicas": 1,
            "maxReplicas": variant.max_replicas,
            "cost": int(float(variant.cost)),
        }
        for variant in VARIANTS
    ]
    optimizer = {"costExpansionRatePercent": 200, "params": params}
    spec = {"policyRef": {"name": POLICY}, "optimizerConfiguration": optimizer}
    return manifest("registry.volcano.sh/v1alpha1", "AutoscalingPolicyBinding", POLICY_NAMESPACE, POLICY, spec)
