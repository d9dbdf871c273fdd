"""Notice that somebody edited, created or deleted a VariantAutoscaling, so that a tick need not wait for its time.

Only a hint: a change that goes unnoticed (the watch is down) is found by the next tick anyway, so nothing here
retries, decides or remembers anything that matters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Self

from modelyard.autoscaling.kinds import BINDINGS, POLICIES, VARIANTS
from modelyard.autoscaling.live.prediction import ANNOTATION as PREDICTION
from modelyard.autoscaling.memory.bindings import ANNOTATION as POLICY_ANNOTATION
from modelyard.autoscaling.memory.variants import ANNOTATION
from modelyard.cluster import Cluster, ClusterError, ResourceType, UnknownKind

log = logging.getLogger(__name__)

OURS = frozenset({ANNOTATION, POLICY_ANNOTATION, PREDICTION})
"""Annotations that the loop itself writes."""
PAUSE = 10.0
"""Seconds before watching again after a failure."""


def wish_of(obj: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of an object a person controls: its spec, labels and annotations, but not the state we keep with it."""
    metadata = obj["metadata"]
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in OURS}
    labels = metadata.get("labels") or {}
    return metadata.get("generation"), tuple(sorted(annotations.items())), tuple(sorted(labels.items()))


class ChangeWatch:
    """Watches one namespace (``None``: all) with a label selector. ``async with ChangeWatch(...) as changes``."""

    def __init__(self, cluster: Cluster, namespace: str | None = None, label_selector: str = "") -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._selector = label_selector
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        # A policy is named by bindings, so the selector that shards the fleet does not hold for it.
        for kind, selector in ((VARIANTS, self._selector), (BINDINGS, self._selector), (POLICIES, "")):
            self._tasks.append(asyncio.create_task(self._run(kind, selector), name=f"change-watch-{kind.plural}"))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait(self, timeout: float) -> bool:
        """Wait for a change for up to ``timeout`` seconds; whether there was one. The change is then forgotten."""
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    async def _run(self, kind: ResourceType, selector: str) -> None:
        while True:
            try:
                await self._watch(kind, selector)
            except UnknownKind:
                return  # a cluster without this kind; the next shift looks again
            except ClusterError as error:
                log.info("edits are noticed at the next tick only: %s", error)
            await asyncio.sleep(PAUSE)

    async def _watch(self, kind: ResourceType, selector: str) -> None:
        known: dict[str, tuple[Any, ...]] = {}
        synced = False
        async for event in self._cluster.watch(kind, self._namespace, selector):
            if event.kind == "SYNC":
                synced = True
                continue
            uid = event.object["metadata"]["uid"]
            wish = wish_of(event.object)
            if event.kind == "DELETED":
                changed = known.pop(uid, None) is not None
            else:
                changed = known.get(uid) != wish
                known[uid] = wish
            if synced and changed:
                self._changed.set()
