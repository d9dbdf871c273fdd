"""Benchmark probe: the service that a BenchmarkJob creates where the one it measures no longer exists. Pure.

An onboarding measures candidates on services of one replica and deletes these at its end. A later measurement, for a
profile that live latencies have left or on a user's request, needs such a service again. The probe is a copy of the
serving InferenceService with one replica; nothing scales it and no client uses it. It belongs to the BenchmarkJob,
which deletes it when all runs have ended, successful or not.
"""

from __future__ import annotations

from typing import Final

from modelyard.benchmarks.jobs.world import StoredBenchmark
from modelyard.objects import Key
from modelyard.reconcile.plans import CLAIM, FAILED, World
from modelyard.resources import InferenceService
from modelyard.workloads.rendering import Body
from modelyard.workloads.roll_out import INFERENCE_SERVICES, StoredService

MADE: Final = "modelyard.dev/benchmark-probe"
"""Annotation of a probe: the uid of its BenchmarkJob and the time of its creation (epoch seconds)."""
READY_WITHIN: Final = 1800.0
"""Seconds within which a probe must be ready."""
_NOT_COPIED: Final = frozenset(
    (CLAIM, FAILED, "kubectl.kubernetes.io/last-applied-configuration", "ome.io/enable-prometheus-scraping")
)
"""Annotations that only concern the service itself, and scraping: a model's load must not include the benchmark's."""


def measured_service(job: StoredBenchmark) -> Key | None:
    """Return the key of the measured service if the BenchmarkJob may create it: in its own namespace only."""
    endpoint = job.spec.endpoint.inference_service if job.spec is not None else None
    if endpoint is None or not job.probe_of or endpoint.namespace != job.key.namespace:
        return None
    return Key(endpoint.namespace, endpoint.name)


def made_since(service: StoredService, job: StoredBenchmark) -> float | None:
    """Return the time at which this BenchmarkJob created the service; ``None`` for any other service."""
    owner, _, since = service.annotations.get(MADE, "").partition(" ")
    return float(since) if owner == job.subject.uid and since.isdecimal() and len(since) < 13 else None


def made_service(job: StoredBenchmark, world: World) -> StoredService | None:
    """Return the service that this BenchmarkJob created, unless it is being deleted."""
    key = measured_service(job)
    service: StoredService | None = world[INFERENCE_SERVICES].get(key) if key is not None else None
    ours = service is not None and not service.subject.deleting and made_since(service, job) is not None
    return service if ours else None


def render(job: StoredBenchmark, key: Key, world: World, now: float) -> Body | None:
    """Return the service to create; ``None`` where the one to copy is missing or cannot be read."""
    like: StoredService | None = world[INFERENCE_SERVICES].get(Key(key.namespace, job.probe_of))
    if like is None or like.subject.deleting or not isinstance(like.resource, InferenceService):
        return None
    spec = like.resource.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    for component in ("engine", "decoder", "router"):
        if component in spec:
            spec[component] |= {"minReplicas": 1, "maxReplicas": 1}
    annotations = {name: value for name, value in like.annotations.items() if name not in _NOT_COPIED}
    annotations |= {"ome.io/autoscalerClass": "external", MADE: f"{job.subject.uid} {now:.0f}"}
    metadata = {"name": key.name, "namespace": key.namespace, "annotations": annotations}
    return {"apiVersion": "ome.io/v1beta1", "kind": "InferenceService", "metadata": metadata, "spec": spec}
