"""Replica bounds of an InferenceService's component: the service's own over its runtime's. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class ComponentReplicas(NamedTuple):
    """Fewest and most replicas of a component; ``most`` is ``None`` where neither service nor runtime states one."""

    least: int
    most: int | None


def component_replicas(merged: Mapping[str, Any], own: Mapping[str, Any]) -> ComponentReplicas:
    """Return the bounds of a component whose ``merged`` spec is its ``own`` one on top of its runtime's.

    A runtime's minimum above the service's own maximum is lowered to that. A maximum below the minimum is lifted to it:
    OME's webhook writes its default of 3 next to any ``minReplicas``, so that 5 and 3 means 5 and 5.
    """
    least, own_most = int(merged.get("minReplicas", 1)), own.get("maxReplicas") or 0
    if own_most and "minReplicas" not in own:
        least = min(least, own_most)
    most = merged.get("maxReplicas") or 0
    return ComponentReplicas(least, max(most, least, 1) if most else None)
