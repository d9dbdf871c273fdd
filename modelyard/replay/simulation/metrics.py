"""What Prometheus would have: samples of every pod at its own phase, and the queries policies ask of them.

``take`` is given to the simulated fleet as its sampler; ``signals`` and the horizontal autoscalers read. Windows,
rates and deltas are extrapolated to the edges of their window exactly as Prometheus does it; an instant value is the
newest sample of the last five minutes, and none once the series was marked stale, some two scrapes after the pod
ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from modelyard.engine import readers
from modelyard.metrics.vocabulary import SIZES, VLLM, Measure, Over, PodPerformance, PodSignal, Signal
from modelyard.replay.simulation.pods import SimulatedPod

LOOKBACK: Final = 300.0
"""Prometheus' default look-back of instant queries, seconds."""
STALE_AFTER: Final = 2.2
"""Scrape intervals after a target's end at which its series are marked stale."""


ENGINE: Final = VLLM
"""Whose metrics the simulated engines have."""


def metrics_of(measure: Measure) -> tuple[str, ...]:
    """The metrics that give a measure, two for a mean; none: the engines have nothing of it."""
    if measure.over in (Over.MEAN, Over.STEADY):
        return next(((ratio.top, ratio.bottom) for ratio in ENGINE.ratios(measure.signal)), ())
    return (ENGINE.of[measure.signal].name,) if measure.signal in ENGINE.of else ()


MEASURES: Final = (*PodSignal.measures().values(), *PodPerformance.measures().values())
SCRAPED: Final = tuple(
    dict.fromkeys(
        [*(name for one in MEASURES for name in metrics_of(one)), *(f"{ENGINE.of[one].name}_bucket" for one in SIZES)]
    )
)
"""The metrics that are sampled: those that some measure needs."""
_READERS: Final = tuple(readers(ENGINE)[name] for name in SCRAPED)


class PodSample(NamedTuple):
    """One scrape of one pod: the values of ``SCRAPED``."""

    at: float
    values: tuple[Any, ...]


Field = Callable[[PodSample], float]


def field(metric: str) -> Field:
    """What takes the value of a metric from a sample."""
    place = SCRAPED.index(metric)
    return lambda sample: sample.values[place]


def field_of(signal: Signal) -> Field:
    """The same for the metric of a gauge or a counter."""
    return field(ENGINE.of[signal].name)


class PodSeries:
    """The samples of one pod, oldest first, as far back as anybody asks."""

    __slots__ = ("pod", "samples")

    def __init__(self, pod: SimulatedPod) -> None:
        self.pod = pod
        self.samples: deque[PodSample] = deque()

    def window(self, now: float, seconds: float) -> list[PodSample]:
        """The samples of (now - seconds, now], oldest first."""
        begin = now - seconds
        found: list[PodSample] = []
        for sample in reversed(self.samples):
            if sample.at <= begin:
                break
            if sample.at <= now:
                found.append(sample)
        found.reverse()
        return found


class Metrics:
    """All series. ``keep`` is how many seconds of samples are needed at most."""

    def __init__(self, scrape_interval: float, keep: float = 3600.0) -> None:
        self.scrape_interval = scrape_interval
        self.keep = max(keep, LOOKBACK)
        self._series: dict[int, PodSeries] = {}

    def take(self, pod: SimulatedPod, now: float) -> None:
        """Sample a pod whose engine stands at ``now``."""
        series = self._series.get(pod.serial)
        if series is None:
            series = self._series[pod.serial] = PodSeries(pod)
        samples = series.samples
        samples.append(PodSample(now, tuple(read(pod.core) for read in _READERS)))
        old = now - self.keep - LOOKBACK
        while samples[0].at < old:
            samples.popleft()

    def series(self, now: float) -> Iterator[PodSeries]:
        """Every series that may still have samples somebody asks for, by pod number."""
        old = now - self.keep - LOOKBACK
        gone = [number for number, series in self._series.items() if series.samples[-1].at < old]
        for number in gone:
            del self._series[number]
        return iter(self._series.values())

    def instant(self, series: PodSeries, now: float) -> PodSample | None:
        """What an instant query sees: the newest sample, unless it is too old or the series was marked stale."""
        sample = series.samples[-1]
        if now - sample.at >= LOOKBACK:
            return None
        ended = series.pod.ended
        if ended + STALE_AFTER * self.scrape_interval <= now:  # NaN while it has not ended
            return None
        return sample


def _extrapolated(samples: Sequence[PodSample], field: Field, now: float, seconds: float, *, counter: bool) -> float:
    """The difference between the first and the last sample, carried on to both edges of the window.

    Not further than half an average interval where the series seems to begin or end within the window, and a counter
    not below zero. Counters never restart here: a pod's engine lives as long as its pod.
    """
    if len(samples) < 2:
        return float("nan")
    first, last = samples[0], samples[-1]
    difference = field(last) - field(first)
    sampled = last.at - first.at
    average = sampled / (len(samples) - 1)
    before, after = first.at - (now - seconds), now - last.at
    limit = average * 1.1
    if before >= limit:
        before = average / 2
    if counter and difference > 0 and (start := field(first)) >= 0:
        before = min(before, sampled * start / difference)
    if after >= limit:
        after = average / 2
    return difference * (sampled + before + after) / sampled


increase: Final = partial(_extrapolated, counter=True)
"""``increase`` of a counter over the last so many seconds; NaN when there are fewer than two samples."""
delta: Final = partial(_extrapolated, counter=False)
"""``delta`` of a gauge, likewise."""
