"""Where a VariantAutoscaling's profile comes from, and the engine behind it: an annotation that is written with it.

Written by ``benchmarks.profile_patch``; decisions have the engine through ``live.observe``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from modelyard.objects import MAX_TEXT

PROVENANCE: Final = "modelyard.dev/profile-provenance"
"""The annotation that tells, as JSON, where a profile comes from and how far it is to be believed."""
NAMES: Final = ("alpha", "beta", "gamma", "delta")
_HIGHEST: Final = 1e7


def provenance(obj: Mapping[str, Any]) -> dict[str, Any]:
    """What an object says of where its profile comes from; nothing where it says nothing that can be read."""
    text = ((obj.get("metadata") or {}).get("annotations") or {}).get(PROVENANCE)
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        return {}
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def engine_of(told: Mapping[str, Any], profile: Mapping[str, str]) -> tuple[float, float, float, float] | None:
    """The engine's α, β, γ, δ in ms; ``None``: not told, impossible, or the profile was changed since."""
    engine = told.get("engine")
    if not isinstance(engine, dict) or told.get("profile") != profile:
        return None
    values: list[float] = []
    for value in map(engine.get, NAMES):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _HIGHEST:
            return None
        values.append(float(value))
    alpha, beta, gamma, delta = values
    return (alpha, beta, gamma, delta) if alpha > 0 else None
