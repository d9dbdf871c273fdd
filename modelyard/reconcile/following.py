"""What somebody needs who starts a lifecycle by hand and follows it: the right to work, and what was seen last."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

from modelyard.cluster import Cluster, Object
from modelyard.objects import Key, ResourceType
from modelyard.reconcile.dispatch import Claim
from modelyard.reconcile.plan import CLAIM

T = TypeVar("T")

_NOTHING = "0" * 12


class Followed(dict[Key, T]):
    """What the last plan of each object was made from, and whether there is a newer one."""

    def __init__(self) -> None:
        super().__init__()
        self._moved = asyncio.Event()

    def __setitem__(self, key: Key, value: T) -> None:
        super().__setitem__(key, value)
        self._moved.set()

    async def moved(self, seconds: float, running: asyncio.Future[Any] | None = None) -> None:
        """Wait until there is a newer one, or what is ``running`` is done, so many seconds at most."""
        newer = asyncio.ensure_future(self._moved.wait())
        others = () if running is None else (running,)
        try:
            await asyncio.wait([newer, *others], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            newer.cancel()
        self._moved.clear()


async def take(cluster: Cluster, current: Object, kind: ResourceType, run: str, also: Mapping[str, str]) -> None:
    """Let a run of this name work on an object from now on; ``also`` are annotations that go with it."""
    metadata: dict[str, Any] = current["metadata"]
    annotations = {CLAIM: str(Claim(run, _NOTHING, 1, cluster.now())), **also}
    patch = {"metadata": {"uid": metadata["uid"], "annotations": annotations}}
    await cluster.merge_patch(kind, metadata["name"], patch, metadata.get("namespace"))
