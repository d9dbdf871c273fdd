"""The GPU limiter as documented: arithmetic over the totals of each accelerator, wherever on the nodes they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from modelyard.autoscaling.fleet import Fleet, published_short_name
from modelyard.autoscaling.published.percentages import variant_means
from modelyard.autoscaling.variants import Observation, Thresholds
from modelyard.objects import Key, Matcher

_VENDORS = ("nvidia.com", "amd.com", "intel.com")
"""Vendors whose accelerators the documented limiter counts."""


class ByTotal:
    """Whatever is left of the type's total, first to the model with least room."""

    def __init__(self, fleet: Fleet, variants: Sequence[Observation], matches: Matcher) -> None:
        self._remaining: dict[str, int] = defaultdict(int)
        for node in fleet.nodes:
            for vendor in _VENDORS:
                product = node.labels.get(f"{vendor}/gpu.product")
                if product is not None and matches(node.labels):
                    self._remaining[published_short_name(product)] += node.gpus.get(f"{vendor}/gpu", 0)
        for seen in variants:
            if seen.accelerator:
                self._remaining[seen.accelerator] -= (seen.current or 0) * seen.gpus
        for accelerator, left in self._remaining.items():
            self._remaining[accelerator] = max(0, left)

    def order(self, seen: Observation, limits: Thresholds) -> tuple[float, float, Key]:
        return variant_means(seen.units, limits).spare_kv, seen.variant.cost, seen.key

    def take(self, seen: Observation, replicas: int) -> tuple[int, str]:
        """Take what is left, of which a part that makes no replica is lost."""
        asked = replicas * seen.gpus
        got = min(asked, self._remaining[seen.accelerator]) if seen.accelerator else 0
        if seen.accelerator:
            self._remaining[seen.accelerator] -= got
        granted = got // seen.gpus
        if granted == replicas:
            return granted, f"allocated {got} GPUs for +{granted}"
        return granted, f"asked {asked} GPUs for +{replicas}, got {got}: +{granted}"
