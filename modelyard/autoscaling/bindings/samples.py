"""From what one pod's metrics endpoint shows to one value per metric. Pure.

Gauges are used as they are, over several label sets added up or, for shares, averaged; of times the largest counts.
Counters become a rate per second and histograms the 95th percentile, both over the last minute, which takes a second
look at the pod: until then they are missing, never zero. Source: Kthena autoscaler reference, "Pod state and what it
does to the metrics".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, inf
from typing import NamedTuple

from modelyard.autoscaling.bindings.histogram import EMPTY, Buckets, quantile_of_difference
from modelyard.autoscaling.bindings.names import is_latency, is_ratio
from modelyard.metrics.vocabulary import PageSample

PERCENTILE = 95
FRESH = 60.0
"""Seconds over which rates and percentiles are taken."""
KEPT = 300.0
"""Seconds for which a look at a pod can be compared with."""
MOST = 1e30
"""What is larger is no number of anything, and a few of them added up are beyond what a float holds."""


@dataclass(frozen=True, slots=True)
class Look:
    """The cumulative metrics of a pod at one moment."""

    time: float
    counters: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Buckets] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodHistory:
    """Earlier looks at one pod, oldest first. ``start`` tells its runs apart (the engine container's start time)."""

    start: str = ""
    looks: tuple[Look, ...] = ()


class PodValues(NamedTuple):
    """One value per metric, why the others have none, and the history to hand in next time.

    ``absent``: metrics the pod does not have, not just now. ``times``: percentiles and times, not to be added up.
    """

    values: dict[str, float]
    problems: dict[str, str]
    history: PodHistory
    absent: frozenset[str] = frozenset()
    times: frozenset[str] = frozenset()


def pod_values(
    wanted: Iterable[str],
    samples: Iterable[PageSample],
    previous: PodHistory,
    start: str,
    now: float,
    *,
    from_start: bool = False,
) -> PodValues:
    """The values of the ``wanted`` metrics of one pod.

    ``wanted`` are names as exposed; a counter may be named with or without ``_total``. Another ``start`` than last
    time, or a counter that fell, begins a new history. ``from_start`` takes everything a histogram ever took in as
    long as there is no look that is old enough.
    """
    names = sorted(set(wanted))
    by_name: dict[str, list[PageSample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    values: dict[str, float] = {}
    problems: dict[str, str] = {}
    counters: dict[str, float] = {}
    histograms: dict[str, Buckets] = {}
    absent: set[str] = set()
    times: set[str] = set()
    for name in names:
        try:
            buckets = by_name.get(f"{name}_bucket")
            lines = by_name.get(name) or by_name.get(f"{name}_total")
            if buckets:
                histograms[name] = _joined(buckets, by_name.get(f"{name}_count", ()))
                times.add(name)
            elif not lines:
                absent.add(name)
                problems[name] = "is not among the pod's metrics"
            elif lines[0].type == "counter":
                counters[name] = _total(lines)
            elif lines[0].type in ("gauge", "untyped", "unknown"):
                total = _total(lines)
                if is_latency(name):
                    times.add(name)
                    total = max(line.value for line in lines)
                values[name] = total / len(lines) if is_ratio(name) else total
            else:
                problems[name] = f"is a {lines[0].type}; use a gauge, a counter or a histogram"
        except ValueError as error:
            problems[name] = str(error)
    # What happened since a look of long ago did not happen in the last minute. And a clock set back leaves looks from
    # what is now the future: they would be the newest for as long as that.
    looks = tuple(look for look in previous.looks if now - KEPT <= look.time < now) if previous.start == start else ()
    looks = () if _restarted(looks, counters, histograms) else looks
    past = _past(looks, now, from_start)
    for name, total in counters.items():
        if past is None or name not in past.counters:
            problems[name] = "is a counter and was seen for the first time; its rate is known from the next look on"
        else:
            values[name] = (total - past.counters[name]) / (now - past.time)
    for name, seen in histograms.items():
        before = past.histograms.get(name) if past is not None else None
        if before is None and not from_start:
            problems[name] = (
                "is a histogram and was seen for the first time; its percentile is known from the next look"
            )
            continue
        try:
            values[name] = quantile_of_difference(seen, before or EMPTY, PERCENTILE)
        except ValueError as error:
            problems[name] = str(error)
    if counters or histograms:
        looks = _needed((*looks, Look(now, counters, histograms)), now)
    return PodValues(values, problems, PodHistory(start, looks), frozenset(absent), frozenset(times))


def joined(maps: Sequence[Mapping[str, float]], times: Collection[str] = ()) -> dict[str, float]:
    """Values of an instance's pods: sums, means of shares, maxima of ``times``; none where a pod lacks the metric."""
    shared = set(maps[0]).intersection(*maps[1:]) if maps else set()
    found: dict[str, float] = {}
    for name in sorted(shared):
        values = [one[name] for one in maps]
        total = fsum(values)
        found[name] = max(values) if name in times else total / len(values) if is_ratio(name) else total
    return found


def _total(lines: Sequence[PageSample]) -> float:
    bad = next((line for line in lines if not abs(line.value) <= MOST), None)
    if bad is not None:
        raise ValueError(f"shows {bad.value}")
    below = next((line for line in lines if line.value < 0), None)
    if below is not None:
        # No load is below zero: whoever says so does not know it, and taken for true it would empty the workload.
        raise ValueError(f"shows {below.value:g}, which is no load")
    return fsum(line.value for line in lines)


def _joined(buckets: Sequence[PageSample], counts: Sequence[PageSample]) -> Buckets:
    """Cumulative counts add up bound by bound."""
    sums: dict[float, float] = {}
    sets: dict[float, int] = {}
    for line in buckets:
        bound = _bound(line)
        if not abs(line.value) <= MOST:
            raise ValueError(f"shows {line.value} in a bucket")
        sums[bound] = sums.get(bound, 0.0) + line.value
        sets[bound] = sets.get(bound, 0) + 1
    if len(set(sets.values())) > 1:
        raise ValueError("has label sets with different buckets, which cannot be added up")
    cumulative = tuple(sorted(sums.items()))
    return Buckets(_total(counts) if counts else cumulative[-1][1], cumulative)


def _bound(line: PageSample) -> float:
    try:
        bound = float(line.labels["le"])
    except (KeyError, ValueError):
        raise ValueError("has a bucket without a numeric 'le' label") from None
    if bound != inf and not abs(bound) <= MOST:
        raise ValueError(f"has a bucket with the bound {bound}")
    return bound


def _restarted(looks: Sequence[Look], counters: Mapping[str, float], histograms: Mapping[str, Buckets]) -> bool:
    if not looks:
        return False
    last = looks[-1]
    return any(total < last.counters.get(name, 0.0) for name, total in counters.items()) or any(
        seen.observations < last.histograms[name].observations
        for name, seen in histograms.items()
        if name in last.histograms
    )


def _past(looks: Sequence[Look], now: float, from_start: bool) -> Look | None:
    """The newest look older than a minute; while there is none, the oldest there is."""
    for look in reversed(looks):
        if now - look.time > FRESH:
            return look
    return looks[0] if looks and not from_start else None


def _needed(looks: tuple[Look, ...], now: float) -> tuple[Look, ...]:
    first = 0
    while first + 1 < len(looks) and now - looks[first + 1].time > FRESH:
        first += 1
    return looks[first:]
