"""The GPU limiter as documented: arithmetic over the totals of each accelerator, wherever on the nodes they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from modelyard.autoscaling.accelerators import published_short_name
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.limiter import settle
from modelyard.autoscaling.published.percentages import variant_means
from modelyard.autoscaling.variants.pools import VENDORS
from modelyard.autoscaling.variants.state import State
from modelyard.objects import Key
from modelyard.objects.selectors import Matcher


def grant_by_total(fleet: Fleet, states: Sequence[State], candidates: Sequence[State], matches: Matcher) -> None:
    """Whatever is left of the type's total, first to the model with least room."""
    remaining: dict[str, int] = defaultdict(int)
    for node in fleet.nodes:
        for vendor in VENDORS:
            product = node.labels.get(f"{vendor}/gpu.product")
            if product is not None and matches(node.labels):
                remaining[published_short_name(product)] += node.gpus.get(f"{vendor}/gpu", 0)
    for state in states:
        if state.accelerator:
            remaining[state.accelerator] -= (state.current or 0) * state.gpus
    for accelerator in remaining:
        remaining[accelerator] = max(0, remaining[accelerator])

    def order(state: State) -> tuple[float, float, Key]:
        return variant_means(state.units, state.limits).spare_kv, state.variant.cost, state.variant.key

    for state in sorted(candidates, key=order):
        asked = (state.target or 0) - (state.current or 0)
        accelerator = "" if state.accelerator_missing else state.accelerator or ""
        got = min(asked * state.gpus, remaining[accelerator]) if accelerator else 0
        remaining[accelerator] -= got
        granted = got // state.gpus
        if granted == asked:
            detail = f"allocated {got} GPUs for +{granted}"
        else:
            detail = f"asked {asked * state.gpus} GPUs for +{asked}, got {got}: +{granted}"
        settle(state, asked, granted, detail)
