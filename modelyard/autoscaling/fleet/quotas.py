"""Quotas of GPUs: the most that the variants of the fleet may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

ANY_NAMESPACE = "default"


class Quota(NamedTuple):
    """GPUs that variants may hold, together or by namespace (``None``: no limit); 0 for names that a quota lacks."""

    name: str
    together: Mapping[str, int] | None
    by_namespace: Mapping[str, Mapping[str, int]] | None
    exclude: frozenset[str]

    def cap(self, namespace: str, accelerator: str) -> int | None:
        """Return the GPUs allowed in a namespace (``""``: in all together), ``None`` for no limit."""
        if namespace:
            spaces = None if namespace in self.exclude else self.by_namespace
            caps = None if spaces is None else spaces.get(namespace, spaces.get(ANY_NAMESPACE, {}))
        else:
            caps = self.together
        allowed = -1 if caps is None else caps.get(accelerator, 0)
        return None if allowed < 0 else allowed
