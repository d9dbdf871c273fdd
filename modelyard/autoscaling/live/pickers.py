"""The gateway's own word on waiting requests: InferencePools, the endpoint pickers before them, and their queues.

An endpoint picker with its flow-control layer keeps the requests of a pool without endpoints and counts them, seconds
before any Prometheus knows. Source: WVA saturation reference, "Scale from zero".
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from modelyard.cluster import Cluster, ClusterError, NotFound, UnknownKind
from modelyard.metrics.endpoints import Scraper
from modelyard.metrics.prometheus import Pair, Sample, gateway_queue
from modelyard.metrics.vocabulary import QUEUE_SIZES, MetricsEndpoint, Page, Scrape
from modelyard.objects import PODS, SERVICES, Key, parse
from modelyard.reconcile.kernel import Store
from modelyard.reconcile.plans import Want

POOL_VERSIONS = ("inference.networking.k8s.io/v1", "inference.networking.x-k8s.io/v1alpha2")
"""Best first: a pool of one name in both groups is one pool."""
TIMEOUT = 5.0
MOST_POOLS = 50
"""Pools of one namespace that are looked at, the first by name."""
LOOK_AGAIN = 30.0
"""Seconds after which InferencePools, and the addresses of a picker's pods, are looked up again."""
TOKEN = "EPP_METRIC_READER_BEARER_TOKEN"
TOKEN_FOR = "EPP_METRIC_READER_BEARER_TOKEN_FOR"
"""Services that may have the token, as ``namespace/name``, with commas between them."""


class PickerError(Exception):
    """A picker that could not be asked. The message names the pool, what failed and the remedy."""


@dataclass(frozen=True, slots=True)
class Pool:
    """An InferencePool: the labels of the pods it routes to, and the Service of its endpoint picker."""

    key: Key
    selector: Mapping[str, str]
    picker: str


async def list_pools(cluster: Cluster, namespaces: Iterable[str]) -> tuple[Pool, ...]:
    """The pools of these namespaces, of whichever API versions the cluster has. Raises ``ClusterError``."""
    found: dict[Key, Pool] = {}
    for version in POOL_VERSIONS:
        try:
            kind = await cluster.resolve(version, "InferencePool")
        except UnknownKind:
            continue
        readable = Store(Want(kind, pool))
        for namespace in sorted(set(namespaces)):
            for item in (await cluster.list(kind, namespace, cached=True)).items[:MOST_POOLS]:
                readable.put(item)
        found = {one.key: one for one in readable.all()} | found
    return tuple(found[key] for key in sorted(found))


def pool(obj: Mapping[str, Any]) -> Pool | None:
    """A pool of either version; ``None`` for one without selector or without a Service as endpoint picker."""
    spec = obj.get("spec") or {}
    selector = spec.get("selector") or {}
    labels = selector.get("matchLabels")
    if not isinstance(labels, Mapping):  # the older version has the labels themselves here, and one may be called so
        labels = selector
    reference = spec.get("endpointPickerRef") or spec.get("extensionRef") or {}
    if not labels or not reference.get("name") or reference.get("kind", "Service") != "Service":
        return None
    return Pool(parse.key_of(obj), {str(k): str(v) for k, v in labels.items()}, reference["name"])


def pool_of(pools: Iterable[Pool], namespace: str, labels: Mapping[str, str]) -> Pool | None:
    """The first pool of the namespace whose selector matches pods with these labels."""
    return next(
        (one for one in pools if one.key.namespace == namespace and one.selector.items() <= labels.items()), None
    )


class PickerReader:
    """The flow-control queues at the Ready pods of one InferencePool's endpoint picker."""

    def __init__(self, cluster: Cluster, scraper: Scraper, pool: Pool) -> None:
        self._cluster = cluster
        self._scraper = scraper
        self._pool = pool
        self._pages: tuple[Scrape, ...] = ()
        self._looked_at = float("-inf")

    async def read(self) -> dict[Pair, float] | None:
        """Queued requests by model over the picker's answering pods; ``None``: no Ready pod. Raises ``PickerError``."""
        now = asyncio.get_running_loop().time()
        if not self._pages or now - self._looked_at >= LOOK_AGAIN:
            self._pages = await addresses(self._cluster, self._pool)
            self._looked_at = now
        if not self._pages:
            return None
        total: dict[Pair, float] = {}
        failures: list[str] = []
        headers, remedy = credentials(self._pool)
        pages = await self._scraper.scrape(dict.fromkeys(self._pages, QUEUE_SIZES), headers)
        for page in pages.values():
            try:
                for model, queue in queues(page, remedy).items():
                    total["", model] = total.get(("", model), 0.0) + queue
            except PickerError as error:
                failures.append(str(error))
        if len(failures) == len(self._pages):
            self._pages = ()
            raise PickerError("; ".join(failures))
        return total


def credentials(of: Pool) -> tuple[dict[str, str], str]:
    """The headers for a pool's picker, and a remedy. Only Services an administrator named get the token.

    Whoever may write an InferencePool chooses the Service, and with it the pods that are asked.
    """
    service = f"{of.key.namespace}/{of.picker}"
    token = os.environ.get(TOKEN, "").removeprefix("Bearer ").removeprefix("bearer ").strip()
    if not token:
        return {}, f"set {TOKEN}, and {service} in {TOKEN_FOR}"
    if service not in (name.strip() for name in os.environ.get(TOKEN_FOR, "").split(",")):
        return {}, f"no token was sent: if this picker may have it, set {service} in {TOKEN_FOR}"
    return {"Authorization": f"Bearer {token}"}, f"{TOKEN} is not the token it wants"


def queues(page: Page | str, remedy: str = f"set {TOKEN}") -> dict[str, float]:
    """Queued requests by model on a page, by its newest name. Raises ``PickerError`` (``remedy``: of a refusal)."""
    if isinstance(page, str):
        refused = any(f"HTTP status {status}" in page for status in (401, 403))
        raise PickerError(f"{page}; {remedy}" if refused else page)
    shown = {sample.name for sample in page.samples}
    name = next((name for name in QUEUE_SIZES if name in shown or name in page.problems), "")
    if problem := page.problems.get(name):
        raise PickerError(f"{name} {problem}")
    nowhere = {"namespace": "", "model_server": ""}  # the page is the pool's, whatever it says
    told = gateway_queue(
        (
            Sample({**sample.labels, **nowhere}, sample.value if math.isfinite(sample.value) else None)
            for sample in page.samples
            if sample.name == name
        ),
        gateways=("",),
    )
    return {model: queue for (_, model), queue in told.items()}


async def addresses(cluster: Cluster, of: Pool) -> tuple[Scrape, ...]:
    """The metrics pages of the Ready pods, if any, behind a pool's picker. Raises ``PickerError``."""
    where = f"endpoint picker Service {of.key.namespace}/{of.picker} of InferencePool {of.key}"
    try:
        service = await cluster.get(SERVICES, of.picker, of.key.namespace)
        spec = service.get("spec") or {}
        port = next((p for p in spec.get("ports") or () if "metric" in str(p.get("name", "")).lower()), None)
        if port is None:
            raise PickerError(f'{where} has no port whose name contains "metric"; name its metrics port so')
        selector = parse.label_selector(spec.get("selector") or {})
        pods = (await cluster.list(PODS, of.key.namespace, selector, cached=True)).items if selector else []
    except NotFound as error:
        raise PickerError(f"{where} does not exist") from error
    except ClusterError as error:
        raise PickerError(f"{where}: {error}") from error
    pages = []
    for body in pods:
        pod, ip = parse.pod(body), (body.get("status") or {}).get("podIP")
        number = _port_number(port, body)
        if ip and number and pod.ready:
            pages.append(Scrape(MetricsEndpoint(pod.uid, "", pod.key.name, ip, pod.key.namespace), number, "/metrics"))
    return tuple(sorted(pages))


def _port_number(port: Mapping[str, Any], pod: Mapping[str, Any]) -> int | None:
    """Given by number, by name, or the same as the Service's own."""
    target = port.get("targetPort") or port.get("port")
    if isinstance(target, int):
        return target
    containers = (pod.get("spec") or {}).get("containers") or ()
    ports = (one for container in containers for one in container.get("ports") or ())
    return next((int(one["containerPort"]) for one in ports if one.get("name") == target), None)
