"""What became of requests, and what their clients saw: percentiles and the share within the targets.

Pure. Times and durations are seconds of the trace.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class SLO:
    """Targets for each request, in seconds: time to first token and mean inter-token latency.

    ``attainment`` is the share of requests (0 to 1) that should be within both; a request that fails misses both, one
    of a single token has no inter-token latency and misses none.
    """

    ttft: float = 2.0
    itl: float = 0.06
    attainment: float = 0.99

    def __post_init__(self) -> None:
        for name in ("ttft", "itl"):
            if not (math.isfinite(value := getattr(self, name)) and value > 0):
                raise ValueError(f"SLO {name} must be a duration > 0, not {value!r}")
        if not 0 < self.attainment <= 1:
            raise ValueError(f"SLO attainment must be a share above 0 and at most 1, not {self.attainment!r}")


class Ending(IntEnum):
    """How a request ended."""

    UNFINISHED = 0
    """Still waiting or being served when everything stopped."""
    OK = 1
    NO_ENDPOINT = 2
    """None became ready in time."""
    REJECTED = 3
    """The engine does not take it: too long for its context, its queue is full, or another error status."""
    BROKEN = 4
    """Its engine was ended before it was done, or the answer was cut short."""
    UNAVAILABLE = 5
    """Not begun: no connection, or the engine is loading or shutting down."""
    TIMEOUT = 6
    """No complete answer in time."""


@dataclass(frozen=True, eq=False)
class Results:
    """Requests as columns: when each came, its output tokens, when its first and last token came (NaN: never)."""

    at: NDArray[np.float64]
    output: NDArray[np.int64]
    first: NDArray[np.float64]
    end: NDArray[np.float64]
    ending: NDArray[np.int8]

    @cached_property
    def ttft(self) -> NDArray[np.float64]:
        """Time to first token, from the moment the request was due."""
        return self.first - self.at

    @cached_property
    def itl(self) -> NDArray[np.float64]:
        """(last token - first token) / (tokens - 1); NaN for one token."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.output > 1, (self.end - self.first) / (self.output - 1), np.nan)

    @cached_property
    def answered(self) -> NDArray[np.bool_]:
        """Which requests were answered completely."""
        return np.equal(self.ending, Ending.OK)

    def within(self, slo: SLO) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which requests were within the TTFT target, and which within the ITL target; failed ones are in neither."""
        with np.errstate(invalid="ignore"):
            ttft = self.answered & (self.ttft <= slo.ttft + SLACK)
            itl = self.answered & ((self.output <= 1) | (self.itl <= slo.itl + SLACK))
        return ttft, itl

    def since(self, begin: float) -> Self:
        """Those that came from then on."""
        counted = self.at >= begin
        return dataclasses.replace(
            self, **{field.name: getattr(self, field.name)[counted] for field in dataclasses.fields(self)}
        )


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Linear interpolation between order statistics; NaN when there are no values."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Latency:
    """What the clients saw. Percentiles are over the requests that were answered; attainment is over all of them, so
    that a request that failed counts as a miss, and NaN when there are none."""

    requests: int
    answered: int
    ttft: Percentiles
    itl: Percentiles
    attainment: float
    ttft_attainment: float
    itl_attainment: float

    @classmethod
    def of(cls, results: Results, slo: SLO) -> Latency:
        """Summed up."""
        in_ttft, in_itl = results.within(slo)
        answered = results.answered
        return cls(
            len(results.at),
            int(answered.sum()),
            percentiles(results.ttft[answered]),
            percentiles(results.itl[answered]),
            *(float(which.mean()) if len(which) else math.nan for which in (in_ttft & in_itl, in_ttft, in_itl)),
        )


def percentiles(values: NDArray[np.float64]) -> Percentiles:
    """Of the values that are not NaN."""
    return Percentiles(*(percentile(values, share) for share in (50, 95, 99)))


def percentile(values: NDArray[np.float64], share: float) -> float:
    """Of the values that are not NaN; NaN when there are none."""
    known = values[~np.isnan(values)]
    return float(np.percentile(known, share)) if len(known) else math.nan
