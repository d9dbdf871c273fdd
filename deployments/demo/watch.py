"""What happened during the demonstration, sampled from the outside as a user would see it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from deployments.demo.scenario import Copy, Form, Scenario
from modelyard.autoscaling.kinds import VARIANTS
from modelyard.autoscaling.live import observe
from modelyard.cluster import DEPLOYMENTS, PODS, Cluster, ClusterError, ResourceType
from modelyard.metrics.client import Prometheus, PrometheusError
from modelyard.objects import parse
from modelyard.resources import AutoscalingPolicyBinding

FRESH = 3.0
"""Wall seconds: an older sample of Prometheus is not what is now, and a look that takes longer is given up."""
BINDINGS = ResourceType.of_resource(AutoscalingPolicyBinding)

log = logging.getLogger(__name__)


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


@dataclass(frozen=True)
class Gap:
    """A moment at which nothing could be read: a scrape or an answer of the API server failed, or came too late."""

    minute: float
    load: float


Moment = Sample | Gap


async def sample(
    cluster: Cluster,
    prometheus: Prometheus,
    scenario: Scenario,
    copy: Copy,
    minute: Callable[[], float],
    load: Callable[[], float],
    into: list[Moment],
    every: float = 1.0,
) -> None:
    """Sample until cancelled. A moment that cannot be read is a gap."""
    while True:
        now, sent = minute(), load()
        try:
            async with asyncio.timeout(FRESH):
                into.append(await _one(cluster, prometheus, scenario, copy, now, sent))
        except (ClusterError, PrometheusError, TimeoutError) as error:
            log.debug("a gap: %s", error)
            into.append(Gap(now, sent))
        await asyncio.sleep(every)


async def _one(
    cluster: Cluster, prometheus: Prometheus, scenario: Scenario, copy: Copy, minute: float, load: float
) -> Sample:
    wanted, pods, kv, waiting = await asyncio.gather(
        _by_binding(cluster, copy) if copy.form is Form.POLICY else _by_variants(cluster, copy),
        cluster.list(PODS, copy.namespace, cached=True),
        prometheus.query(f"avg({_fresh('vllm:kv_cache_usage_perc', copy)})", "KV use"),
        prometheus.query(f"sum({_fresh('vllm:num_requests_waiting', copy)})", "queue"),
    )
    desired, why = wanted
    names = [variant.name for variant in scenario.variants]
    created, ready = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for item in pods.items:
        pod = parse.pod(item)
        name = copy.variant(pod.labels.get("app", ""))
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


def _fresh(metric: str, copy: Copy) -> str:
    """The series scraped just now. Prometheus itself goes on showing the last sample for five minutes."""
    series = f'{metric}{{namespace="{copy.namespace}"}}'
    return f"{series} and time() - timestamp({series}) < {FRESH:g}"


async def _by_variants(cluster: Cluster, copy: Copy) -> tuple[dict[str, int], dict[str, str]]:
    """What the VariantAutoscalings publish, and why, from their status."""
    desired, why = {}, {}
    for item in (await cluster.list(VARIANTS, copy.namespace)).items:
        variant = observe.variant(item)
        name = copy.variant(variant.key.name)
        desired[name] = variant.status_replicas or 0
        why[name] = next((c.message for c in variant.conditions if c.type == "OptimizationReady"), "")
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
