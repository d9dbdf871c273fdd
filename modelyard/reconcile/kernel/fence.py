"""The right to write: what gives it to a run, asked before every write, and the bound on how long one may take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from modelyard.cluster import Cluster, NotFound, Object
from modelyard.objects import ResourceType
from modelyard.reconcile.plans import CLAIM, Claim, Subject


class NotTheWriter(Exception):
    """The right to write was lost in the middle of the work: stop writing at once."""


class Fence:
    """How long this process may go on writing.

    ``remaining`` gives the seconds for which that is certain (infinite without a Lease). A request that outlived the
    Lease could otherwise put an old decision over the next writer's.
    """

    def __init__(self, remaining: Callable[[], float] = lambda: math.inf) -> None:
        self._remaining = remaining

    def check(self) -> float | None:
        """Seconds the next write may take (``None``: the usual). Raises ``NotTheWriter``."""
        left = self._remaining()
        if left <= 0:
            raise NotTheWriter
        return None if math.isinf(left) else left

    async def confirm(self) -> None:
        """Make sure at the last moment before a write. Raises ``NotTheWriter``."""

    def covers(self, current: Object) -> bool:
        """Whether this object, as it was just read, may be written."""
        return True


class RunFence(Fence):
    """For a run: it may write for an object while the object's claim names it.

    The object is read before every write. A process that is halted between that and the write is held off only by the
    time a new run takes to start.
    """

    def __init__(self, cluster: Cluster, subject: Subject, run: str) -> None:
        super().__init__()
        self._cluster = cluster
        self._subject = subject
        self._run = run

    async def confirm(self) -> None:
        """See ``Fence``."""
        kind, key = self._subject.kind, self._subject.key
        try:
            current = await self._cluster.get(kind, key.name, key.namespace or None)
        except NotFound:
            raise NotTheWriter from None
        if not self.covers(current):
            raise NotTheWriter

    def covers(self, current: Object) -> bool:
        """See ``Fence``."""
        now = Subject.of(self._subject.kind, current)
        claim = Claim.read(now.claim)
        return now.uid == self._subject.uid and claim is not None and claim.run == self._run


async def take(cluster: Cluster, current: Object, kind: ResourceType, run: str, also: Mapping[str, str | None]) -> None:
    """Let a run that a person or a pipeline has started work on an object from now on; ``also`` are annotations."""
    metadata: dict[str, Any] = current["metadata"]
    annotations = {CLAIM: str(Claim(run, "0" * 12, 1, cluster.now())), **also}
    patch = {"metadata": {"uid": metadata["uid"], "annotations": annotations}}
    await cluster.merge_patch(kind, metadata["name"], patch, metadata.get("namespace"))
