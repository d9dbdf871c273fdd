"""State of a scaled workload during the demonstration, sampled from outside as a user would see it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from modelyard.autoscaling.fleet import VARIANTS
from modelyard.cluster import Cluster, ClusterError
from modelyard.metrics.prometheus import Prometheus, PrometheusError
from modelyard.objects import DEPLOYMENTS, PODS, parse

FRESH, SLOWEST_LOOK = 3.0, 10.0
"""Wall seconds: older samples of Prometheus are stale; a slower observation is given up."""

log = logging.getLogger(__name__)


class ScaledWorkload(NamedTuple):
    """A Deployment, the label selector of its pods, and its VariantAutoscaling."""

    namespace: str
    deployment: str
    pods: str
    autoscaling: str


class Sample(NamedTuple):
    """One moment: ``minute`` of the trace, requests/s, and replicas with the reason for their number."""

    minute: float
    load: float
    created: int
    ready: int
    desired: int
    kv: float | None
    waiting: float | None
    why: str


async def sample(
    cluster: Cluster,
    prometheus: Prometheus,
    workload: ScaledWorkload,
    minute: Callable[[], float],
    load: Callable[[], float],
    into: list[Sample],
    every: float = 1.0,
) -> None:
    """Sample until cancelled. No sample is taken while Prometheus or the API server fails or answers too late."""
    while True:
        now, sent = minute(), load()
        try:
            async with asyncio.timeout(SLOWEST_LOOK):
                into.append(await _observe(cluster, prometheus, workload, now, sent))
        except (ClusterError, PrometheusError, TimeoutError) as error:
            log.debug("not observed: %s", error)
        await asyncio.sleep(every)


async def _observe(
    cluster: Cluster, prometheus: Prometheus, workload: ScaledWorkload, minute: float, load: float
) -> Sample:
    space = workload.namespace
    listed, deployment, autoscaling, kv, waiting = await asyncio.gather(
        cluster.list(PODS, space, workload.pods, cached=True),
        cluster.get(DEPLOYMENTS, workload.deployment, space),
        cluster.get(VARIANTS, workload.autoscaling, space),
        prometheus.query(f"avg({_fresh('vllm:kv_cache_usage_perc', space)})", "KV use"),
        prometheus.query(f"sum({_fresh('vllm:num_requests_waiting', space)})", "queue"),
    )
    pods = [pod for pod in map(parse.pod, listed.items) if not pod.deleting]
    conditions = parse.conditions((autoscaling.get("status") or {}).get("conditions"))
    why = next((condition.message for condition in conditions if condition.type == "OptimizationReady"), "")
    kv_use, queue = (samples[0].value if samples else None for samples in (kv, waiting))
    ready = sum(pod.ready for pod in pods)
    return Sample(minute, load, len(pods), ready, deployment["spec"]["replicas"], kv_use, queue, why)


def _fresh(metric: str, namespace: str) -> str:
    """Select series scraped just now; Prometheus itself repeats the last sample for five minutes."""
    series = f'{metric}{{namespace="{namespace}"}}'
    return f"{series} and time() - timestamp({series}) < {FRESH:g}"


def changes(samples: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    """Return the samples before and after each change of the desired replicas, in order of time."""
    return [(before, after) for before, after in pairwise(samples) if after.desired != before.desired]


def replica_minutes(samples: Sequence[Sample], longest: float) -> float:
    """Return replica-minutes of existing pods; gaps between samples of more than ``longest`` minutes do not count."""
    spans = ((before.created, after.minute - before.minute) for before, after in pairwise(samples))
    return sum(replicas * length for replicas, length in spans if length <= longest)
