"""The gateway's own word on waiting requests: InferencePools, the endpoint pickers before them, and their queues.

An endpoint picker with its flow-control layer keeps the requests of a pool without endpoints and counts them, seconds
before any Prometheus knows. Source: WVA saturation reference, "Scale from zero".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from modelyard.cluster import PODS, SERVICES, Cluster, ClusterError, NotFound, UnknownKind
from modelyard.metrics.client import Sample
from modelyard.metrics.queries import GATEWAY_QUEUE
from modelyard.metrics.signals import gateway_queue
from modelyard.objects import Key, parse

POOL_VERSIONS = ("inference.networking.k8s.io/v1", "inference.networking.x-k8s.io/v1alpha2")
"""Best first: a pool of one name in both groups is one pool."""
TIMEOUT = 5.0
LARGEST = 8 * 1024 * 1024
"""Bytes of a metrics page beyond which it is not read on."""


class PickerError(Exception):
    """A picker that could not be asked. The message names the pool, what failed and the remedy."""


@dataclass(frozen=True, slots=True)
class Pool:
    """An InferencePool: the labels of the pods it routes to, and the Service of its endpoint picker."""

    key: Key
    selector: Mapping[str, str]
    picker: str


async def list_pools(cluster: Cluster, namespaces: Iterable[str]) -> tuple[Pool, ...]:
    """All pools of these namespaces, of whichever API versions the cluster has; none where it has none of them.

    Raises ``ClusterError`` when they may not be listed.
    """
    found: dict[Key, Pool] = {}
    for version in POOL_VERSIONS:
        try:
            kind = await cluster.resolve(version, "InferencePool")
        except UnknownKind:
            continue
        for namespace in sorted(set(namespaces)):
            for item in (await cluster.list(kind, namespace, cached=True)).items:
                if (one := pool(item)) is not None:
                    found.setdefault(one.key, one)
    return tuple(found[key] for key in sorted(found))


def pool(obj: Mapping[str, Any]) -> Pool | None:
    """A pool of either version; ``None`` for one without selector or without a Service as endpoint picker."""
    spec = obj.get("spec") or {}
    selector = spec.get("selector") or {}
    labels = selector.get("matchLabels", selector)
    reference = spec.get("endpointPickerRef") or spec.get("extensionRef") or {}
    if not labels or not reference.get("name") or reference.get("kind", "Service") != "Service":
        return None
    return Pool(parse.key_of(obj), {str(k): str(v) for k, v in labels.items()}, reference["name"])


def pool_of(pools: Iterable[Pool], namespace: str, labels: Mapping[str, str]) -> Pool | None:
    """The first pool of the namespace whose selector matches pods with these labels."""
    return next(
        (one for one in pools if one.key.namespace == namespace and one.selector.items() <= labels.items()), None
    )


async def addresses(cluster: Cluster, of: Pool) -> tuple[str, ...]:
    """Metrics URLs of the Ready pods behind a pool's picker; none when the Service selects none.

    Raises ``PickerError``.
    """
    where = f"endpoint picker Service {of.key.namespace}/{of.picker} of InferencePool {of.key}"
    try:
        service = await cluster.get(SERVICES, of.picker, of.key.namespace)
        spec = service.get("spec") or {}
        port = next((p for p in spec.get("ports") or () if "metric" in str(p.get("name", "")).lower()), None)
        if port is None:
            raise PickerError(f'{where} has no port whose name contains "metric"; name its metrics port so')
        selector = ",".join(f"{key}={value}" for key, value in sorted((spec.get("selector") or {}).items()))
        pods = (await cluster.list(PODS, of.key.namespace, selector, cached=True)).items if selector else []
    except NotFound as error:
        raise PickerError(f"{where} does not exist") from error
    except ClusterError as error:
        raise PickerError(f"{where}: {error}") from error
    urls = []
    for body in pods:
        ip = (body.get("status") or {}).get("podIP")
        number = _port_number(port, body)
        if ip and number and parse.pod(body).ready:
            urls.append(f"http://{f'[{ip}]' if ':' in ip else ip}:{number}/metrics")
    return tuple(sorted(urls))


def _port_number(port: Mapping[str, Any], pod: Mapping[str, Any]) -> int | None:
    """The pod's port behind a Service's: given by number, by name, or the same as the Service's own."""
    target = port.get("targetPort") or port.get("port")
    if isinstance(target, int):
        return target
    for container in (pod.get("spec") or {}).get("containers") or ():
        for one in container.get("ports") or ():
            if one.get("name") == target:
                return int(one["containerPort"])
    return None


async def scrape(session: aiohttp.ClientSession, url: str, token: str = "") -> dict[str, float]:
    """Queued requests by model at one picker pod. Raises ``PickerError``."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with (
            asyncio.timeout(TIMEOUT),
            session.get(url, headers=headers, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                hint = "; set EPP_METRIC_READER_BEARER_TOKEN" if answer.status in (401, 403) else ""
                raise PickerError(f"{url}: HTTP status {answer.status}{hint}")
            body = bytearray()
            async for chunk in answer.content.iter_chunked(65536):
                body += chunk
                if len(body) > LARGEST:
                    raise PickerError(f"{url}: more than {LARGEST} bytes of metrics")
    except TimeoutError as error:
        raise PickerError(f"{url}: no answer within {TIMEOUT:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise PickerError(f"{url}: {error or type(error).__name__}") from error
    return queues(body.decode(errors="replace"), url)


def queues(page: str, url: str = "") -> dict[str, float]:
    """Queued requests by model on a metrics page; only the lines of the one family are parsed."""
    wanted = (f"{GATEWAY_QUEUE}{{", f"{GATEWAY_QUEUE} ")
    lines = "".join(f"{line}\n" for line in page.splitlines() if line.startswith(wanted))
    try:
        samples = [
            Sample(sample.labels, sample.value if abs(sample.value) < float("inf") else None)
            for family in text_string_to_metric_families(lines)
            for sample in family.samples
        ]
    except (ValueError, IndexError, KeyError) as error:
        raise PickerError(f"{url}: {GATEWAY_QUEUE} cannot be read: {error}") from error
    return gateway_queue(samples)
