"""What to expect of the decided sizes, and what the alternatives would have given.

The load is shared in proportion to what the replicas of each variant can take. Source: WVA SLO reference, "Splitting
load among variants" and "Suggested shape" (explain).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.decisions import Alternative, Explanation, Parts, Prediction, Reason
from modelyard.autoscaling.variants.attainment import MOST
from modelyard.autoscaling.variants.classes import ServiceClass
from modelyard.autoscaling.variants.demand import LoadForecast, ModelDemand
from modelyard.autoscaling.variants.proposal import Sized
from modelyard.autoscaling.variants.slo.sizing import IDLE_RATE, NOTHING, Expected, Row, predict
from modelyard.objects import Key

MOST_ALONE = 10
"""Variants, the cheapest, of which it is shown what each of them alone would give."""


class Outlook(NamedTuple):
    """Predictions and the alternatives that were considered, by variant."""

    predictions: Mapping[Key, Prediction] = {}
    alternatives: Mapping[Key, tuple[Alternative, ...]] = {}


class Mix(NamedTuple):
    """One way to size a group; ``rows`` are (variant, its replicas, index into the predictions)."""

    replicas: Mapping[str, int]
    note: Explanation | None
    chosen: bool
    rows: Sequence[tuple[str, int, int]]


Model = tuple[ModelDemand, Mapping[Key, Sized]]


def look_ahead(models: Sequence[Model], settings: FleetSettings) -> Outlook:
    """Return what to expect, in the percentile of TTFT that targets speak of."""
    rows: list[Row] = []
    plans: list[tuple[Model, LoadForecast, ServiceClass, list[Mix]]] = []
    for demand, variants in models:
        forecast, service = demand.forecast, demand.group.service
        if forecast is None or service is None or not is_foreseeable(forecast):
            continue
        known = [seen for seen in demand.variants if forecast.rates[seen.name].known]
        chosen = {seen.name: variants[seen.key].replicas or 0 for seen in known}
        mixes = [mix_of(forecast, *mix, rows) for mix in _mixes(chosen, forecast)]
        plans.append(((demand, variants), forecast, service, mixes))
    expected = predict(rows, percentile=settings.ttft_percentile)
    predictions: dict[Key, Prediction] = {}
    alternatives: dict[Key, tuple[Alternative, ...]] = {}
    for (demand, _), forecast, service, mixes in plans:
        considered = tuple(_alternative(mix, expected, forecast, service) for mix in mixes)
        alternatives |= dict.fromkeys((seen.key for seen in demand.variants), considered)
        for mix in mixes[:1]:
            predictions |= predicted(mix, expected, demand, forecast, service)
    return Outlook(predictions, alternatives)


def is_foreseeable(forecast: LoadForecast) -> bool:
    """Return whether the load and the size of its requests are known."""
    return forecast.load is not None and forecast.sizes is not None and forecast.sizes.output >= 1


def _mixes(chosen: dict[str, int], forecast: LoadForecast) -> Iterator[tuple[dict[str, int], Explanation | None, bool]]:
    if not chosen:
        return
    yield chosen, None, True
    by_cost = sorted(chosen, key=lambda name: (forecast.rates[name].cost, name))
    yield {**chosen, by_cost[0]: chosen[by_cost[0]] + 1}, Explanation(Reason.ONE_MORE), False
    if sum(chosen.values()) > 1:
        dearest = next(name for name in reversed(by_cost) if chosen[name])
        yield {**chosen, dearest: chosen[dearest] - 1}, None, False
    if len(chosen) > 1:
        cheapest = by_cost[:MOST_ALONE]
        for name in (name for name in chosen if name in cheapest):
            alone = max(1, ceil(forecast.planned * (1 - 1e-9) / forecast.rates[name].rate))
            mix = {**dict.fromkeys(chosen, 0), name: alone}
            if mix != chosen:
                yield mix, Explanation(Reason.ALONE, name=name), False


def mix_of(
    forecast: LoadForecast, replicas: Mapping[str, int], note: Explanation | None, chosen: bool, rows: list[Row]
) -> Mix:
    """Return one way to size a group; what is to be predicted for it is added to ``rows``."""
    assert forecast.sizes is not None
    assert forecast.load is not None
    supply = _supply(forecast, replicas)
    placed: list[tuple[str, int, int]] = []
    for name, count in replicas.items():
        if count:
            rate = forecast.rates[name]
            placed.append((name, count, len(rows)))
            rows.append(Row(rate, forecast.sizes, max(IDLE_RATE, forecast.load * rate.rate / supply)))
    return Mix(dict(replicas), note, chosen, placed)


def _supply(forecast: LoadForecast, replicas: Mapping[str, int]) -> float:
    return sum(forecast.rates[name].rate * count for name, count in replicas.items())


def predicted(
    mix: Mix, expected: Sequence[Expected], demand: ModelDemand, forecast: LoadForecast, service: ServiceClass
) -> dict[Key, Prediction]:
    """Return what is expected of each variant of a mix."""
    supply, keys = _supply(forecast, mix.replicas), {seen.name: seen.key for seen in demand.variants}
    targets = service.ttft or None, service.itl or None
    result: dict[Key, Prediction] = {}
    for name, count, index in mix.rows:
        rate, seen = forecast.rates[name].rate, expected[index]
        share = (forecast.load or 0.0) * rate * count / supply
        attained = _attained(forecast, name, count, share)
        result[keys[name]] = Prediction(share, rate, seen.ttft, seen.itl, seen.utilisation, *targets, attained)
    return result


def _attained(forecast: LoadForecast, name: str, replicas: int, load: float) -> float | None:
    """``None`` unless that share is aimed at."""
    if (attains := forecast.rates[name].attains) is None:
        return None
    engines, count = np.array(load * attains.busy), np.array(min(replicas, MOST))
    return 1.0 - float(attains.holding.missing(engines, count))


def _alternative(
    mix: Mix, predictions: Sequence[Expected], forecast: LoadForecast, service: ServiceClass
) -> Alternative:
    """Latencies are means over requests, utilisation is the highest; ``None`` where a replica would be overloaded."""
    supply = _supply(forecast, mix.replicas)
    expected = [predictions[index] for _, _, index in mix.rows]
    load, worst, attained = forecast.load or 0.0, NOTHING, None
    shares = [forecast.rates[name].rate * count / supply for name, count, _ in mix.rows]
    if expected and all(e.utilisation is not None for e in expected):
        ttft = sum(share * (e.ttft or 0.0) for share, e in zip(shares, expected, strict=True))
        itl = sum(share * (e.itl or 0.0) for share, e in zip(shares, expected, strict=True))
        has_itl = all(e.itl is not None for e in expected)
        worst = Expected(ttft, itl if has_itl else None, max(e.utilisation or 0.0 for e in expected))
    rows = zip(mix.rows, shares, strict=True)
    within = [_attained(forecast, name, count, load * share) for (name, count, _), share in rows]
    if within and None not in within:
        attained = sum(share * (value or 0.0) for share, value in zip(shares, within, strict=True))
    notes = () if mix.chosen else (mix.note or "", _why_not(worst, supply, forecast, service) or "")
    cost = sum(forecast.rates[name].cost * count for name, count, _ in mix.rows)
    return Alternative(
        dict(mix.replicas), cost, worst.ttft, worst.itl, worst.utilisation, attained, mix.chosen, str(Parts(notes))
    )


def _why_not(expected: Expected, supply: float, forecast: LoadForecast, service: ServiceClass) -> Explanation | None:
    if expected.utilisation is None:
        return Explanation(Reason.OVERLOADED) if forecast.load else None
    for name, value, target in (("TTFT", expected.ttft, service.ttft), ("ITL", expected.itl, service.itl)):
        if target and (value or 0.0) > target * 1.001:
            return Explanation(Reason.ABOVE_TARGET, latency=name, expected=value, target=target)
    if supply < forecast.planned * (1 - 1e-9):
        return Explanation(Reason.WOULD_CARRY_LESS, supply=supply, planned=forecast.planned)
    return Explanation(Reason.WOULD_CARRY, supply=supply) if forecast.planned else None
