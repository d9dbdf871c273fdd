"""How a replay went, in numbers: what it cost, what users noticed, how much it scaled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modelyard.replay.backtest.simulate import Run, Steps
from modelyard.traffic.traces import SLO, Ending, Latency, Percentiles, percentile, percentiles

MINUTE = 60.0
OUTPUTS = (10, 50, 200)
"""Bounds of the classes of answers, tokens."""


@dataclass(frozen=True, slots=True)
class OutputClass:
    """Requests by the length of their answer: up to ``tokens`` (``None``: all longer ones), how many, and the share of
    them within both targets. A mean over few tokens is a strict target, over many a lenient one."""

    tokens: int | None
    requests: int
    attainment: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy's row. Replica time is counted from a replica's creation to its end, within the trace's duration and
    after its warm-up.

    ``cost`` is replica-hours times each variant's cost. ``attainment`` is the share of all requests within both
    targets. ``itl_max`` are percentiles of each request's longest gap between tokens. ``minutes_below`` are the minutes
    (of those with arrivals, ``minutes``) in which the attainment of that minute's arrivals was below the SLO's.
    ``rejected`` found no replica in time or were refused by the engine; ``waited`` found none ready on arrival.
    ``bound`` is the least cost at which any policy could have held the SLO, where it was computed and this one held it;
    ``rate``: at so many times the recorded requests.
    """

    policy: str
    requests: int
    replica_hours: float
    cost: float
    attainment: float
    ttft_attainment: float
    itl_attainment: float
    ttft: Percentiles
    itl: Percentiles
    itl_max: Percentiles
    scale_ups: int
    scale_downs: int
    peak_replicas: int
    minutes: int
    minutes_below: int
    rejected: int
    killed: int
    unfinished: int
    waited: int
    hours_by_variant: Mapping[str, float]
    problems: tuple[str, ...] = ()
    by_output: tuple[OutputClass, ...] = ()
    bound: float | None = None
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """A replay minute by minute: ``arrivals``, ``attainment`` and 95th percentile of TTFT of that minute's arrivals
    (NaN without any), mean ``replicas`` in existence and mean ``ready`` ones."""

    minute: NDArray[np.int64]
    arrivals: NDArray[np.int64]
    attainment: NDArray[np.float64]
    ttft_p95: NDArray[np.float64]
    replicas: NDArray[np.float64]
    ready: NDArray[np.float64]


def summarize(run: Run, slo: SLO) -> Summary:
    """The row of one replay."""
    results = run.results.since(run.begin)
    latency = Latency.of(results, slo)
    within = np.logical_and(*results.within(slo))
    endings = np.bincount(results.ending, minlength=len(Ending))
    minute = _minutes(run)[run.results.at >= run.begin]
    arrivals = np.bincount(minute)
    met = np.bincount(minute, weights=within.astype(np.float64))
    busy = arrivals > 0
    below = int(np.count_nonzero(met[busy] < slo.attainment * arrivals[busy] - 1e-9))
    actions = [action for action in run.actions if run.begin <= action.at <= run.duration]
    hours = {str(spec.key): run.replica_seconds(spec.key) / 3600 for spec in run.variants}
    return Summary(
        policy=run.policy,
        requests=latency.requests,
        replica_hours=sum(hours.values()),
        cost=sum(hours[str(spec.key)] * spec.cost for spec in run.variants),
        attainment=latency.attainment,
        ttft_attainment=latency.ttft_attainment,
        itl_attainment=latency.itl_attainment,
        ttft=latency.ttft,
        itl=latency.itl,
        itl_max=percentiles(results.itl_max[results.answered]),
        scale_ups=sum(action.after > action.before for action in actions),
        scale_downs=sum(action.after < action.before for action in actions),
        peak_replicas=_peak(run.replicas(), run.begin),
        minutes=int(np.count_nonzero(busy)),
        minutes_below=below,
        rejected=int(endings[Ending.NO_ENDPOINT] + endings[Ending.REJECTED]),
        killed=int(endings[Ending.BROKEN]),
        unfinished=int(endings[Ending.UNFINISHED]),
        waited=int(results.waited.sum()),
        hours_by_variant=hours,
        problems=run.problems,
        by_output=_by_output(results.output, within),
    )


def _peak(steps: Steps, begin: float) -> int:
    times, counts = steps
    return max(count for until, count in zip([*times[1:], math.inf], counts, strict=True) if until > begin)


def _by_output(tokens: NDArray[np.int64], within: NDArray[np.bool_]) -> tuple[OutputClass, ...]:
    places = np.searchsorted(OUTPUTS, tokens)
    found = []
    for place, limit in enumerate((*OUTPUTS, None)):
        mine = within[places == place]
        found.append(OutputClass(limit, len(mine), float(mine.mean()) if len(mine) else math.nan))
    return tuple(found)


def timeline(run: Run, slo: SLO) -> Timeline:
    """The replay minute by minute, its warm-up included."""
    results = run.results
    minute = _minutes(run)
    length = max(1, math.ceil(run.duration / MINUTE))
    arrivals = np.bincount(minute, minlength=length)
    met = np.bincount(minute, weights=np.logical_and(*results.within(slo)).astype(np.float64), minlength=length)
    p95 = np.full(length, np.nan)
    edges = np.searchsorted(minute, np.arange(length + 1))
    for number in range(length):
        part = slice(edges[number], edges[number + 1])
        p95[number] = percentile(results.ttft[part][results.answered[part]], 95)
    with np.errstate(divide="ignore", invalid="ignore"):
        attainment = np.where(arrivals > 0, met / arrivals, np.nan)
    return Timeline(
        np.arange(length),
        arrivals,
        attainment,
        p95,
        _mean_by_minute(run.replicas(), length, run.duration),
        _mean_by_minute(run.replicas(ready=True), length, run.duration),
    )


def _minutes(run: Run) -> NDArray[np.int64]:
    # The request at the very end belongs to the last minute.
    last = max(1, math.ceil(run.duration / MINUTE)) - 1
    return np.minimum(run.results.at // MINUTE, last).astype(np.int64)


def _mean_by_minute(steps: Steps, length: int, duration: float) -> NDArray[np.float64]:
    """Time means of a step function over each minute; the last one only as far as the trace goes."""
    times, counts = np.array(steps[0]), np.array(steps[1], dtype=np.float64)
    area = np.concatenate([[0.0], np.cumsum(counts[:-1] * np.diff(times))])

    def until(at: NDArray[np.float64]) -> NDArray[np.float64]:
        place = np.maximum(np.searchsorted(times, at, side="right") - 1, 0)
        return np.asarray(area[place] + counts[place] * (at - times[place]), dtype=np.float64)

    edges = np.minimum(np.arange(length + 1) * MINUTE, duration)
    spans = np.diff(edges)
    return np.asarray(np.where(spans > 0, np.diff(until(edges)) / np.where(spans > 0, spans, 1), counts[-1]))
