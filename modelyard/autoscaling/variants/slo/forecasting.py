"""Loads and rates of groups with latency targets, before any is decided; a failure concerns its group only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from modelyard.autoscaling.configuration import Compatibility, FleetSettings, SizingAim
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.variants.attribution import Performances
from modelyard.autoscaling.variants.demand import Group, LoadForecast
from modelyard.autoscaling.variants.slo import feedback
from modelyard.autoscaling.variants.slo.aim import attain
from modelyard.autoscaling.variants.slo.load import MeasuredLoad, measure_load
from modelyard.autoscaling.variants.slo.outlook import Outlook, look_ahead
from modelyard.autoscaling.variants.slo.sizing import size_all, size_rows

Measure = Callable[[Group, Sequence[Group], Performances, Fleet, FleetSettings], MeasuredLoad]
Size = Callable[[Sequence[MeasuredLoad], FleetSettings, float], Sequence[LoadForecast | str]]


class Forecasting(NamedTuple):
    """Measures and explains the load of groups with targets: a forecast each, or what failed."""

    measure: Measure
    size: Size
    look_ahead: Callable[..., Outlook]


def forecast_loads(
    groups: Sequence[Group],
    forecastings: Mapping[Compatibility, Forecasting],
    performances: Performances,
    fleet: Fleet,
    settings: FleetSettings,
) -> list[LoadForecast | str | None]:
    """Return the forecast of each group, what failed, or ``None`` for a group without targets."""
    result: list[LoadForecast | str | None] = [None] * len(groups)
    serving: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        serving.setdefault((group.namespace, group.model_id), []).append(group)
    for compatibility, forecasting in forecastings.items():
        places: list[int] = []
        measured: list[MeasuredLoad] = []
        for place, group in enumerate(groups):
            if group.service is None or group.compatibility is not compatibility:
                continue
            try:
                together = serving[group.namespace, group.model_id]
                measured.append(forecasting.measure(group, together, performances, fleet, settings))
                places.append(place)
            except Exception as error:  # this group's alone
                result[place] = f"{type(error).__name__}: {error}"
        for place, forecast in zip(places, forecasting.size(measured, settings, fleet.now), strict=True):
            result[place] = forecast
    return result


def measure(
    group: Group, together: Sequence[Group], performances: Performances, fleet: Fleet, settings: FleetSettings
) -> MeasuredLoad:
    """Return the load of a group, with the corrections that its variants remember."""
    measured = measure_load(group, together, performances, fleet, settings)
    rates = {name: feedback.with_corrections(rate, settings) for name, rate in measured.forecast.rates.items()}
    return measured._replace(forecast=measured.forecast._replace(rates=rates))


def size(measured: Sequence[MeasuredLoad], settings: FleetSettings, now: float) -> list[LoadForecast | str]:
    """Return the forecast of each group, or what failed."""
    forecasts = _with_feedback(measured, settings, now) if settings.feedback else [m.forecast for m in measured]
    sized = size_all(forecasts, lambda rows: size_rows(rows, settings))
    if settings.aim is not SizingAim.ATTAINMENT:
        return sized
    result: list[LoadForecast | str] = []
    for one, forecast in zip(measured, sized, strict=True):
        try:
            attained = forecast if isinstance(forecast, str) else attain(one._replace(forecast=forecast), settings, now)
            result.append(attained)
        except Exception as error:  # this group's alone
            result.append(f"{type(error).__name__}: {error}")
    return result


def _with_feedback(measured: Sequence[MeasuredLoad], settings: FleetSettings, now: float) -> list[LoadForecast]:
    pairs = [(one.group, one.forecast) for one in measured]
    try:
        return feedback.learn(pairs, settings, now)
    except Exception:  # then group by group: a correction that is not learnt this time is learnt the next
        result: list[LoadForecast] = []
        for pair in pairs:
            try:
                result += feedback.learn([pair], settings, now)
            except Exception:
                result.append(pair[1])
        return result


FORECASTING = Forecasting(measure, size, look_ahead)
