"""The GPU limiter as documented: arithmetic over the totals of each accelerator, wherever on the nodes they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from modelyard.autoscaling.accelerators import published_short_name
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.published.percentages import variant_means
from modelyard.autoscaling.variants.state import State
from modelyard.objects import Key
from modelyard.objects.selectors import Matcher

_VENDORS = ("nvidia.com", "amd.com", "intel.com")
"""Vendors whose accelerators the documented limiter counts."""


class ByTotal:
    """Whatever is left of the type's total, first to the model with least room."""

    def __init__(self, fleet: Fleet, states: Sequence[State], matches: Matcher) -> None:
        self._remaining: dict[str, int] = defaultdict(int)
        for node in fleet.nodes:
            for vendor in _VENDORS:
                product = node.labels.get(f"{vendor}/gpu.product")
                if product is not None and matches(node.labels):
                    self._remaining[published_short_name(product)] += node.gpus.get(f"{vendor}/gpu", 0)
        for state in states:
            if state.accelerator:
                self._remaining[state.accelerator] -= (state.current or 0) * state.gpus
        for accelerator, left in self._remaining.items():
            self._remaining[accelerator] = max(0, left)

    def order(self, state: State) -> tuple[float, float, Key]:
        """By spare, cost and name."""
        return variant_means(state.units, state.limits).spare_kv, state.variant.cost, state.variant.key

    def take(self, state: State, replicas: int) -> tuple[int, str]:
        """What is left, of which a part that makes no replica is lost."""
        asked = replicas * state.gpus
        accelerator = "" if state.accelerator_missing else state.accelerator or ""
        got = min(asked, self._remaining[accelerator]) if accelerator else 0
        self._remaining[accelerator] -= got
        granted = got // state.gpus
        if granted == replicas:
            return granted, f"allocated {got} GPUs for +{granted}"
        return granted, f"asked {asked} GPUs for +{replicas}, got {got}: +{granted}"
