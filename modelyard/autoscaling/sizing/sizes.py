"""Sizing of many replicas at once. WVA SLO reference, "Sizing: highest rate within targets" with its repairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial

import numpy as np

from modelyard.autoscaling.sizing.answers import Sizing, Targets, TextArray
from modelyard.autoscaling.sizing.chain import HIGHEST, LOWEST, chain_of, measures
from modelyard.autoscaling.sizing.percentile import check_percent, wait_percentile
from modelyard.autoscaling.sizing.profiles import BoolArray, FloatArray, IntArray, Profiles
from modelyard.autoscaling.sizing.states import blocks
from modelyard.autoscaling.sizing.within import NEAREST, BlockSolution, within_targets

TPS_SHARE = 0.9
"""Share of the highest rate that a replica with a target of tokens per second is sized for."""


def size(
    profiles: Profiles, targets: Targets, *, utilisation_cap: float = 0.9, percentile: float | None = None
) -> Sizing:
    """The highest rate of each row within its targets. Rows are independent of each other and may be in any order.

    ``utilisation_cap`` is the share of the highest rate that is never exceeded where no TTFT target is set.
    ``percentile`` (percent) makes the TTFT target one for that percentile instead of the mean.

    A row that is not valid (NaN, negative target or decode time) is infeasible and NaN, never an error. Raises
    ValueError when shapes differ or an option is out of range.
    """
    if not 0 < utilisation_cap <= 1:
        raise ValueError(f"utilisation_cap is {utilisation_cap}; give a share above 0 and up to 1")
    if percentile is not None:
        check_percent(percentile)
    solve = partial(_block, utilisation_cap=utilisation_cap, percentile=percentile)
    return by_block(profiles.repaired(), targets, solve)


def by_block(used: Profiles, targets: Targets, solve: Callable[[Profiles, Targets], Sizing]) -> Sizing:
    """Solve equal rows once, a block of valid rows at a time. Raises ValueError when shapes differ."""
    if len(used) != len(targets.ttft):
        raise ValueError(f"{len(used)} profiles but {len(targets.ttft)} rows of targets; give one row per profile")
    with np.errstate(invalid="ignore"):
        valid = used.valid & (targets.ttft >= 0) & (targets.itl >= 0) & (targets.tps >= 0)
    known = np.flatnonzero(valid)
    unique, back = _distinct(used.take(known), targets.take(known))
    rows = known[unique]
    result = Sizing.unknown(len(rows))
    for block in blocks(used.max_batch[rows]):
        found = solve(used.take(rows[block]), targets.take(rows[block]))
        for field in fields(Sizing):
            getattr(result, field.name)[block] = getattr(found, field.name)
    if len(rows) == len(used) and (back == np.arange(len(back))).all():
        return result
    everything = Sizing.unknown(len(used))
    for field in fields(Sizing):
        getattr(everything, field.name)[known] = getattr(result, field.name)[back]
    return everything


def _distinct(profiles: Profiles, targets: Targets) -> tuple[IntArray, IntArray]:
    """Ascending by batch limit, and for each row which of them it is."""
    columns = [getattr(profiles, field.name) for field in fields(profiles)] + [targets.ttft, targets.itl, targets.tps]
    columns.append(profiles.max_batch)  # the last key sorts first
    order = np.lexsort(columns)
    new = np.ones(len(order), dtype=bool)
    if len(order):
        differs = np.zeros(len(order) - 1, dtype=bool)
        for column in columns:
            ordered = column[order]
            differs |= ordered[1:] != ordered[:-1]
        new[1:] = differs
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.cumsum(new) - 1
    return order[new], back


def _block(profiles: Profiles, targets: Targets, utilisation_cap: float, percentile: float | None) -> Sizing:
    chain = chain_of(profiles)
    low = LOWEST / (profiles.service_base + profiles.service_slope)
    high = HIGHEST * chain.full_rate
    solved = within_targets(profiles, chain, targets.ttft, targets.itl, low, high, percentile)
    cap = np.where(targets.ttft > 0, high, np.minimum(high, utilisation_cap * high))
    tps = np.where(targets.tps > 0, TPS_SHARE * high, high)
    feasible = solved.ttft_met & solved.itl_met
    limits = [solved.rate_ttft, solved.rate_itl, tps, np.where(feasible, cap, np.minimum(cap, utilisation_cap * high))]
    offered = np.minimum.reduce(limits)
    found = chain.at(offered)
    at = measures(profiles, found)
    ttft = at.ttft
    if percentile is not None:
        ttft = wait_percentile(found, chain.full_rate, chain.queue, percentile) + at.prefill
    binding = binding_of(offered, high, limits, solved)
    answer = assembled(solved, tps, offered, at.throughput, ttft, at.itl, at.utilisation, binding, feasible)
    ttft_close = _close(targets.ttft, solved.best_ttft, solved.ttft_met)
    close = np.flatnonzero(ttft_close | _close(targets.itl, solved.best_itl, solved.itl_met))
    if len(close):
        part, wanted = profiles.take(close), targets.take(close)
        again = chain_of(part)
        ttft_aim = _raised(wanted.ttft, solved.best_ttft[close])
        itl_aim = _raised(wanted.itl, solved.best_itl[close])
        eased = within_targets(part, again, ttft_aim, itl_aim, low[close], high[close], percentile)
        most = np.minimum.reduce([eased.rate_ttft, eased.rate_itl, tps[close], limits[3][close]])
        answer.fallback_rate[close] = measures(part, again.at(most)).throughput
    return answer


def _close(target: FloatArray, best: FloatArray, met: BoolArray) -> BoolArray:
    """Targets that can be met, but only by a replica with next to nothing to do."""
    with np.errstate(invalid="ignore"):
        found: BoolArray = met & (target > 0) & (target < NEAREST * best)
    return found


def _raised(target: FloatArray, best: FloatArray) -> FloatArray:
    return np.where(target > 0, np.fmax(target, NEAREST * best), 0.0)


def binding_of(offered: FloatArray, high: FloatArray, limits: Sequence[FloatArray], solved: BlockSolution) -> TextArray:
    """The first target whose own rate is the offered one, if it holds the replica below its highest rate at all."""
    cases = [~solved.ttft_met, ~solved.itl_met, *((offered >= limit) & (limit < high) for limit in limits[:3])]
    names: TextArray = np.select(cases, ["TTFT", "ITL", "TTFT", "ITL", "TPS"], "stability")
    return names


def assembled(
    solved: BlockSolution,
    tps: FloatArray,
    offered: FloatArray,
    throughput: FloatArray,
    ttft: FloatArray,
    itl: FloatArray,
    utilisation: FloatArray,
    binding: TextArray,
    feasible: BoolArray,
) -> Sizing:
    """The answer for a block of valid rows; NaN where the targets cannot be met."""

    def known(values: FloatArray, where: BoolArray = feasible) -> FloatArray:
        return np.where(where, values, np.nan)

    return Sizing(
        rate_ttft=known(1000.0 * solved.rate_ttft, solved.ttft_met),
        rate_itl=known(1000.0 * solved.rate_itl, solved.itl_met),
        rate_tps=1000.0 * tps,
        offered=known(1000.0 * offered),
        rate=known(throughput),
        ttft=known(ttft),
        itl=known(itl),
        utilisation=known(utilisation),
        binding=binding,
        feasible=feasible,
        best_ttft=solved.best_ttft,
        best_itl=solved.best_itl,
        fallback_rate=throughput,
    )
