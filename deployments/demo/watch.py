"""What happened during the demonstration, sampled from the outside as a user would see it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from deployments.demo.scenario import PORT, Copy, Form, Scenario
from modelyard.autoscaling.kinds import VARIANTS
from modelyard.autoscaling.live import observe
from modelyard.cluster import DEPLOYMENTS, PODS, Cluster, ClusterError, ResourceType
from modelyard.metrics.client import Prometheus, PrometheusError
from modelyard.objects import parse
from modelyard.resources import AutoscalingPolicyBinding
from modelyard.traffic.router import Endpoint

BINDINGS = ResourceType.of_resource(AutoscalingPolicyBinding)

log = logging.getLogger(__name__)


@dataclass
class ReadyPods:
    """The ready engine pods of one copy, kept current by a watch; the replayer asks for them."""

    namespace: str
    ready: dict[str, Endpoint] = field(default_factory=dict)

    async def current(self) -> list[Endpoint]:
        """Every pod that takes traffic."""
        return sorted(self.ready.values())

    async def follow(self, cluster: Cluster) -> None:
        """Watch the pods until cancelled."""
        async for event in cluster.watch(PODS, self.namespace):
            if event.kind == "SYNC":
                continue
            pod = parse.pod(event.object)
            address = (event.object.get("status") or {}).get("podIP")
            if event.kind != "DELETED" and pod.ready and address:
                url = f"http://{address}:{PORT}"
                self.ready[pod.key.name] = Endpoint(pod.key.name, url, pod.labels.get("app", ""))
            else:
                self.ready.pop(pod.key.name, None)


@dataclass(frozen=True)
class Sample:
    """One moment. ``minute`` is trace time. ``ready``, ``desired`` and ``created`` are replicas per variant."""

    minute: float
    load: float
    created: dict[str, int]
    ready: dict[str, int]
    desired: dict[str, int]
    kv: float | None
    waiting: float | None
    why: dict[str, str]


async def sample(
    cluster: Cluster,
    prometheus: Prometheus,
    scenario: Scenario,
    copy: Copy,
    minute: Callable[[], float],
    load: Callable[[], float],
    into: list[Sample],
    every: float = 1.0,
) -> None:
    """Sample until cancelled. A moment that cannot be read is left out."""
    while True:
        try:
            into.append(await _one(cluster, prometheus, scenario, copy, minute(), load()))
        except (ClusterError, PrometheusError, TimeoutError) as error:
            log.debug("sample left out: %s", error)
        await asyncio.sleep(every)


async def _one(
    cluster: Cluster, prometheus: Prometheus, scenario: Scenario, copy: Copy, minute: float, load: float
) -> Sample:
    where = f'{{namespace="{copy.namespace}"}}'
    wanted, pods, kv, waiting = await asyncio.gather(
        _by_binding(cluster, copy) if copy.form is Form.POLICY else _by_variants(cluster, copy),
        cluster.list(PODS, copy.namespace, cached=True),
        prometheus.query(f"avg(vllm:kv_cache_usage_perc{where})", "KV use"),
        prometheus.query(f"sum(vllm:num_requests_waiting{where})", "queue"),
    )
    desired, why = wanted
    names = [variant.name for variant in scenario.variants]
    created, ready = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for item in pods.items:
        pod = parse.pod(item)
        name = pod.labels.get("app", "")
        if name in created and not pod.deleting:
            created[name] += 1
            ready[name] += pod.ready
    return Sample(
        minute=minute,
        load=load,
        created=created,
        ready=ready,
        desired={name: desired.get(name, 0) for name in names},
        kv=kv[0].value if kv else None,
        waiting=waiting[0].value if waiting else None,
        why=why,
    )


async def _by_variants(cluster: Cluster, copy: Copy) -> tuple[dict[str, int], dict[str, str]]:
    """What the VariantAutoscalings publish, and why, from their status."""
    desired, why = {}, {}
    for item in (await cluster.list(VARIANTS, copy.namespace)).items:
        variant = observe.variant(item)
        desired[variant.key.name] = variant.status_replicas or 0
        why[variant.key.name] = next((c.message for c in variant.conditions if c.type == "OptimizationReady"), "")
    return desired, why


async def _by_binding(cluster: Cluster, copy: Copy) -> tuple[dict[str, int], dict[str, str]]:
    """What the binding's workloads are asked to have, and why, from its status."""
    deployments, bindings = await asyncio.gather(
        cluster.list(DEPLOYMENTS, copy.namespace), cluster.list(BINDINGS, copy.namespace)
    )
    why = {
        item["metadata"]["name"]: condition.message
        for item in bindings.items
        for condition in parse.conditions((item.get("status") or {}).get("conditions"))
        if condition.type == "Ready"
    }
    return {item["metadata"]["name"]: item["spec"]["replicas"] for item in deployments.items}, why
