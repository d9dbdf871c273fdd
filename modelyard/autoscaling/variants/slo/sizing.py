"""The queueing model applied to the fleet: what one replica of every variant can take, and what to expect at a load.

A call that fails is made again group by group, so that one group's failure never stops another. Source: WVA SLO
reference, "Sizing: highest rate within targets".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.sizing.answers import Sizing, Targets
from modelyard.autoscaling.sizing.chain import Measures, analyse
from modelyard.autoscaling.sizing.percentile import ttft_percentile
from modelyard.autoscaling.sizing.profiles import FloatArray, Profiles
from modelyard.autoscaling.sizing.sizes import size
from modelyard.autoscaling.variants.slo.work import RequestSizes, VariantWork
from modelyard.autoscaling.variants.state import Group, work_of

SMALLEST = RequestSizes(1, 2, measured=False)
"""Request sizes when none are known: what is infeasible for these is infeasible for all."""


class Row(NamedTuple):
    """One variant at one request size, and for predictions at one rate per replica (requests per second)."""

    work: VariantWork
    sizes: RequestSizes
    rate: float = math.nan


def profiles_of(rows: Sequence[Row]) -> Profiles:
    """The rows as arrays; request sizes rounded to whole tokens."""
    table = []
    for work, sizes, _ in rows:
        profile = work.profile
        assert profile is not None
        table.append((*profile.parameters, profile.max_batch, round(sizes.prompt), max(1, round(sizes.output))))
    return Profiles.of(table)


def size_groups(groups: Sequence[Group], size_rows: Callable[[Sequence[Row]], None]) -> dict[Group, str]:
    """Have the rate per replica of every variant filled in that can be sized; returns errors by group."""
    rows: list[Row] = []
    spans: list[tuple[int, int]] = []
    for group in groups:
        start = len(rows)
        assert group.slo is not None
        sizes = group.slo.sizes or SMALLEST
        for state in group.states:
            work = work_of(state)
            work.assumed_sizes = group.slo.sizes is None
            if not work.problem and sizes.output >= 1:
                rows.append(Row(work, sizes))
        spans.append((start, len(rows)))
    if not rows:
        return {}
    try:
        size_rows(rows)
    except Exception:
        errors: dict[Group, str] = {}
        for group, (start, end) in zip(groups, spans, strict=True):
            if start == end:
                continue
            try:
                size_rows(rows[start:end])
            except Exception as error:  # this group's alone
                errors[group] = f"{type(error).__name__}: {error}"
        return errors
    return {}


def size_rows(rows: Sequence[Row], settings: FleetSettings) -> None:
    """The highest rate of each row within its targets, but never that of an almost idle replica, see ``NEAREST``."""
    found = size(
        profiles_of(rows),
        targets_of(rows),
        utilisation_cap=settings.utilisation_cap,
        percentile=settings.ttft_percentile,
    )
    take_over(rows, found, found.fallback_rate)


def targets_of(rows: Sequence[Row]) -> Targets:
    """What the rows' classes ask for, as the model has to see it to be right after correction."""
    services = [row.work.service for row in rows]
    ttft = [s.ttft / row.work.ttft_factor if s is not None else 0.0 for s, row in zip(services, rows, strict=True)]
    itl = [s.itl / row.work.itl_factor if s is not None else 0.0 for s, row in zip(services, rows, strict=True)]
    return Targets.each(len(rows), ttft=ttft, itl=itl)


def take_over(rows: Sequence[Row], found: Sizing, rates: FloatArray) -> None:
    """Write down what was found for each row; ``rates`` are those to plan with."""
    for i, (work, _, _) in enumerate(rows):
        work.feasible = bool(found.feasible[i])
        work.binding = str(found.binding[i])
        work.best_ttft = float(found.best_ttft[i]) * work.ttft_factor
        work.best_itl = float(found.best_itl[i]) * work.itl_factor
        work.rate = float(rates[i])
        work.eased = work.feasible and work.rate > float(found.rate[i]) * (1 + 1e-9)
        work.sized_utilisation = float(found.utilisation[i])
        if not (math.isfinite(work.rate) and work.rate > 0):
            work.rate = math.nan


class Expected(NamedTuple):
    """Latencies in ms and utilisation 0 to 1; all ``None`` where the model has no value (overload).

    ``ttft`` is the mean, or the percentile asked for; ``itl`` the mean, ``None`` for requests of a single token.
    """

    ttft: float | None
    itl: float | None
    utilisation: float | None


NOTHING = Expected(None, None, None)
IDLE_RATE = 1e-6


def predict(
    rows: Sequence[Row],
    corrected: bool = True,
    percentile: float | None = None,
    model: Callable[[Profiles, ArrayLike], Measures] = analyse,
) -> list[Expected]:
    """What each row's replica does at its rate; ``corrected`` by what was learnt from observation.

    ``percentile`` (percent) of TTFT instead of its mean, so that it speaks of what a percentile target speaks of.
    """
    if not rows:
        return []
    rates = np.array([row.rate for row in rows], dtype=np.float64)
    profiles = profiles_of(rows)
    found = model(profiles, rates)
    ttfts = found.ttft if percentile is None else ttft_percentile(profiles, rates, percentile)
    result: list[Expected] = []
    for i, row in enumerate(rows):
        ttft, itl, load = float(ttfts[i]), float(found.itl[i]), float(found.utilisation[i])
        if not (math.isfinite(load) and math.isfinite(ttft)):
            result.append(NOTHING)
            continue
        up, down = (row.work.ttft_factor, row.work.itl_factor) if corrected else (1.0, 1.0)
        result.append(Expected(ttft * up, itl * down if math.isfinite(itl) else None, load))
    return result
