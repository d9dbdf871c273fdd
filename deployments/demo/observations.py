"""State of a fleet during the demonstration, sampled from outside as a user would see it."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from deployments.demo.scenario import Copy, Form, Scenario
from modelyard.autoscaling.kinds import BINDINGS, VARIANTS
from modelyard.cluster import DEPLOYMENTS, PODS, Cluster, ClusterError, ResourceType
from modelyard.metrics.client import Prometheus, PrometheusError
from modelyard.objects import parse

FRESH, SLOWEST_LOOK = 3.0, 10.0
"""Wall seconds: older samples of Prometheus are stale; a slower observation is given up."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sample:
    """One moment: ``minute`` of the trace, requests/s, and replicas per variant with the reason for their number."""

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
    """A moment that could not be observed: Prometheus or the API server failed or answered too late."""

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
    """Sample until cancelled."""
    while True:
        now, sent = minute(), load()
        try:
            async with asyncio.timeout(SLOWEST_LOOK):
                into.append(await _observe(cluster, prometheus, scenario, copy, now, sent))
        except (ClusterError, PrometheusError, TimeoutError) as error:
            log.debug("not observed: %s", error)
            into.append(Gap(now, sent))
        await asyncio.sleep(every)


async def _observe(
    cluster: Cluster, prometheus: Prometheus, scenario: Scenario, copy: Copy, minute: float, load: float
) -> Sample:
    pods, deployments, scalers, kv, waiting = await asyncio.gather(
        cluster.list(PODS, copy.namespace, cached=True),
        cluster.list(DEPLOYMENTS, copy.namespace),
        cluster.list(scaler_kind(copy), copy.namespace),
        prometheus.query(f"avg({_fresh('vllm:kv_cache_usage_perc', copy)})", "KV use"),
        prometheus.query(f"sum({_fresh('vllm:num_requests_waiting', copy)})", "queue"),
    )
    names = [variant.name for variant in scenario.variants]
    created, ready, desired = (dict.fromkeys(names, 0) for _ in range(3))
    for pod in map(parse.pod, pods.items):
        name = copy.variant(pod.labels.get("app", ""))
        if name in created and not pod.deleting:
            created[name] += 1
            ready[name] += pod.ready
    desired |= {copy.variant(item["metadata"]["name"]): item["spec"]["replicas"] for item in deployments.items}
    why = {
        copy.variant(item["metadata"]["name"]): condition.message
        for item in scalers.items
        for condition in parse.conditions((item.get("status") or {}).get("conditions"))
        if condition.type == ("Ready" if copy.form is Form.POLICY else "OptimizationReady")
    }
    kv_use, queue = (samples[0].value if samples else None for samples in (kv, waiting))
    return Sample(minute, load, created, ready, desired, kv_use, queue, why)


def scaler_kind(copy: Copy) -> ResourceType:
    """Return the kind of the objects that scale a fleet."""
    return BINDINGS if copy.form is Form.POLICY else VARIANTS


def _fresh(metric: str, copy: Copy) -> str:
    """Select series scraped just now; Prometheus itself repeats the last sample for five minutes."""
    series = f'{metric}{{namespace="{copy.namespace}"}}'
    return f"{series} and time() - timestamp({series}) < {FRESH:g}"


@dataclass(frozen=True)
class Scaling:
    """A change of a variant's desired replicas, with the reason that its object gave."""

    minute: float
    variant: str
    before: int
    after: int
    why: str


def changes(moments: Iterable[Moment]) -> list[Scaling]:
    """Return the changes of desired replicas in order of time."""
    samples = [moment for moment in moments if isinstance(moment, Sample)]
    return [
        Scaling(
            after.minute,
            name,
            before.desired[name],
            replicas,
            after.why.get(name) or next(iter(after.why.values()), ""),
        )
        for before, after in pairwise(samples)
        for name, replicas in after.desired.items()
        if replicas != before.desired[name]
    ]


def replica_minutes(moments: Sequence[Moment], longest: float) -> dict[str, float]:
    """Return replica-minutes per variant from existing pods; periods without a sample of up to ``longest`` minutes are
    not counted."""
    minutes: defaultdict[str, float] = defaultdict(float)
    for before, after in pairwise(moments):
        length = after.minute - before.minute
        if isinstance(before, Sample) and isinstance(after, Sample) and length <= longest:
            for name, replicas in before.created.items():
                minutes[name] += replicas * length
    return minutes
