"""Objects as the API server would keep them between ticks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_patch(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """RFC 7386: mappings are merged, ``None`` takes away, everything else replaces. Neither argument is changed."""
    merged = dict(target)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            under = merged.get(name)
            merged[name] = merge_patch(under if isinstance(under, Mapping) else {}, value)
        else:
            merged[name] = value
    return merged
