"""The right to work on an object, for a run that a person or a pipeline has started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modelyard.cluster import Cluster, Object
from modelyard.objects import ResourceType
from modelyard.reconcile.dispatch import Claim
from modelyard.reconcile.plan import CLAIM

_NOTHING = "0" * 12


async def take(cluster: Cluster, current: Object, kind: ResourceType, run: str, also: Mapping[str, str | None]) -> None:
    """Let a run of this name work on an object from now on; ``also`` are annotations that go with it."""
    metadata: dict[str, Any] = current["metadata"]
    annotations = {CLAIM: str(Claim(run, _NOTHING, 1, cluster.now())), **also}
    patch = {"metadata": {"uid": metadata["uid"], "annotations": annotations}}
    await cluster.merge_patch(kind, metadata["name"], patch, metadata.get("namespace"))
