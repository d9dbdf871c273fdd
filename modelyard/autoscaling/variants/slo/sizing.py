"""The queueing model applied to variants. Source: WVA SLO reference, "Sizing: highest rate within targets"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.sizing import FloatArray, Measures, Profiles, Sizing, Targets, analyse, size, ttft_percentile
from modelyard.autoscaling.variants.demand import LoadForecast, Rate, RequestSizes

SMALLEST = RequestSizes(1, 2, measured=False)
"""Request sizes when none are known: what is infeasible for these is infeasible for all."""


class Row(NamedTuple):
    """One variant at one request size, and for predictions at one load per replica (requests per second)."""

    rate: Rate
    sizes: RequestSizes
    load: float = math.nan


SizeRows = Callable[[Sequence[Row]], list[Rate]]


def profiles_of(rows: Sequence[Row]) -> Profiles:
    """Return the rows as arrays; request sizes rounded to whole tokens."""
    table = []
    for rate, sizes, _ in rows:
        profile = rate.objective.profile
        assert profile is not None
        table.append((*profile.parameters, profile.max_batch, round(sizes.prompt), max(1, round(sizes.output))))
    return Profiles.of(table)


def size_all(forecasts: Sequence[LoadForecast], size_rows: SizeRows) -> list[LoadForecast | str]:
    """Return the forecasts with rates, or errors. All are sized in one call; if it fails, each is sized alone."""
    prepared: list[tuple[LoadForecast, list[tuple[str, Row]]]] = []
    for forecast in forecasts:
        sizes, rates = forecast.sizes or SMALLEST, forecast.rates
        if forecast.sizes is None:
            rates = {name: rate._replace(assumed_sizes=True) for name, rate in rates.items()}
        sizable = [(name, r) for name, r in rates.items() if r.objective.problem is None and sizes.output >= 1]
        prepared.append((forecast._replace(rates=rates), [(name, Row(rate, sizes)) for name, rate in sizable]))
    rows = [row for _, named in prepared for _, row in named]
    if not rows:
        return [forecast for forecast, _ in prepared]
    try:
        sized = iter(size_rows(rows))
        return [_with_rates(forecast, {name: next(sized) for name, _ in named}) for forecast, named in prepared]
    except Exception:
        result: list[LoadForecast | str] = []
        for forecast, named in prepared:
            try:
                alone = size_rows([row for _, row in named]) if named else []
                result.append(_with_rates(forecast, dict(zip([name for name, _ in named], alone, strict=True))))
            except Exception as error:  # this model's alone
                result.append(f"{type(error).__name__}: {error}")
        return result


def _with_rates(forecast: LoadForecast, rates: dict[str, Rate]) -> LoadForecast:
    return forecast._replace(rates={**forecast.rates, **rates}) if rates else forecast


def size_rows(rows: Sequence[Row], settings: FleetSettings) -> list[Rate]:
    """Return the highest rate of each row within its targets, or within the ``NEAREST`` ones worth sizing for."""
    cap, percentile = settings.utilisation_cap, settings.ttft_percentile
    sizing = size(profiles_of(rows), targets_of(rows), utilisation_cap=cap, percentile=percentile)
    return with_sizing(rows, sizing, sizing.fallback_rate)


def targets_of(rows: Sequence[Row]) -> Targets:
    """Return what the rows' classes ask for, as the model has to see it to be right after correction."""
    services = [row.rate.objective.service for row in rows]
    ttft = [s.ttft / row.rate.ttft_factor if s is not None else 0.0 for s, row in zip(services, rows, strict=True)]
    itl = [s.itl / row.rate.itl_factor if s is not None else 0.0 for s, row in zip(services, rows, strict=True)]
    return Targets.each(len(rows), ttft=ttft, itl=itl)


def with_sizing(rows: Sequence[Row], sizing: Sizing, rates: FloatArray) -> list[Rate]:
    """Return each row's rate with what its sizing says; ``rates`` are those to plan with."""
    result: list[Rate] = []
    for i, row in enumerate(rows):
        rate, feasible = float(rates[i]), bool(sizing.feasible[i])
        result.append(
            row.rate._replace(
                feasible=feasible,
                binding=str(sizing.binding[i]),
                best_ttft=float(sizing.best_ttft[i]) * row.rate.ttft_factor,
                best_itl=float(sizing.best_itl[i]) * row.rate.itl_factor,
                eased=feasible and rate > float(sizing.rate[i]) * (1 + 1e-9),
                utilisation=float(sizing.utilisation[i]),
                rate=rate if math.isfinite(rate) and rate > 0 else math.nan,
            )
        )
    return result


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
    """Predict each row at its load; ``corrected``: by learnt factors. ``percentile`` is of TTFT (``None``: mean)."""
    if not rows:
        return []
    loads = np.array([row.load for row in rows], dtype=np.float64)
    profiles = profiles_of(rows)
    measures = model(profiles, loads)
    ttfts = measures.ttft if percentile is None else ttft_percentile(profiles, loads, percentile)
    result: list[Expected] = []
    for i, row in enumerate(rows):
        ttft, itl, load = float(ttfts[i]), float(measures.itl[i]), float(measures.utilisation[i])
        if not (math.isfinite(load) and math.isfinite(ttft)):
            result.append(NOTHING)
            continue
        up, down = (row.rate.ttft_factor, row.rate.itl_factor) if corrected else (1.0, 1.0)
        result.append(Expected(ttft * up, itl * down if math.isfinite(itl) else None, load))
    return result
