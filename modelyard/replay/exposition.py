"""What a simulated pod's metrics endpoint would show of what a policy asks for.

Names, types, labels and buckets are those of vLLM, as the engine that runs as a process exposes them; only what is
asked for is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from modelyard.engine.core import EngineCore
from modelyard.engine.metrics import samples
from modelyard.metrics.pages import Page, PageSample
from modelyard.metrics.vocabulary import VLLM

_FAMILIES: Final = {name: family for family in VLLM.families for name in (family.base, family.name)}
KNOWN: Final = tuple(family.base for family in VLLM.families)
"""The families a replay has; a policy on any other finds it missing, as on an engine without it."""


def is_known(name: str) -> bool:
    """Whether a policy's metric is among them; a counter may be named with or without ``_total``."""
    return name in _FAMILIES


def page(core: EngineCore, names: Iterable[str], at: float) -> Page:
    """The families ``names`` of an engine as a page read ``at`` (epoch seconds); one it does not have is left out."""
    families = {family.name: family for name in sorted(set(names)) if (family := _FAMILIES.get(name))}
    return Page(
        samples=[
            PageSample(name, labels, float(value), family.kind)
            for family in families.values()
            for name, labels, value in samples(core, family, {})
        ],
        at=at,
    )
