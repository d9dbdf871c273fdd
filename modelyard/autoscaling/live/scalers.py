"""HPAs and ScaledObjects of a cluster that are annotated as variants and have no VariantAutoscaling."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from modelyard.autoscaling.fleet import Consumer
from modelyard.autoscaling.live import wants
from modelyard.cluster import Cluster, ClusterError, UnknownKind
from modelyard.objects import WorkloadId

API_VERSIONS = (("autoscaling/v1", "HorizontalPodAutoscaler"), ("keda.sh/v1alpha1", "ScaledObject"))


def unread_scalers(consumers: Iterable[Consumer], scaled: Collection[WorkloadId | None]) -> Iterator[str]:
    """Yield the remedy for every annotated scaler whose workload is not ``scaled`` by a VariantAutoscaling."""
    for consumer in sorted(consumers, key=lambda consumer: (consumer.key, consumer.kind)):
        if consumer.managed and consumer.target not in scaled:
            resource, (namespace, name) = consumer.kind.lower(), consumer.key
            yield (
                f"{consumer.kind} {consumer.key} is annotated for the llm-d autoscaler and has no VariantAutoscaling, "
                f"without which it is not decided on; write one with: kubectl get {resource} {name} -n {namespace} "
                "-o yaml | modelyard convert -f - | kubectl apply -f -"
            )


async def list_scalers(cluster: Cluster, namespaces: Collection[str]) -> list[Consumer]:
    """Return the HPAs and ScaledObjects of these namespaces (none: all), as far as they may be listed."""
    scalers: list[Consumer | None] = []
    for api_version, kind in API_VERSIONS:
        try:
            resource = await cluster.resolve(api_version, kind)
            places: Iterable[str | None] = sorted(namespaces) or (None,)
            for namespace in places:
                scalers += map(
                    wants.consumers(resource).parse, (await cluster.list(resource, namespace, cached=True)).items
                )
        except (UnknownKind, ClusterError):
            continue
    return [scaler for scaler in scalers if scaler is not None]
