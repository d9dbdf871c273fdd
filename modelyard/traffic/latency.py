"""What the clients saw, summed up: counts, percentiles, and the share of requests within a latency target.

Pure. Durations are virtual seconds.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from modelyard.traffic.replay import Outcome, RequestResult

ALL: Final = ""
"""As a variant: all variants together."""


class Phase(NamedTuple):
    """A named part of a replay: requests due at ``start`` <= time < ``end``."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean, percentiles (linear interpolation between order statistics) and maximum of ``count`` values."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    maximum: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The requests of one phase and variant (``ALL``: every variant, and those that reached none).

    ``outcomes`` counts by outcome; ``retried`` took more than one attempt; ``endpoint_queued`` found no endpoint ready.
    Latencies and tokens are those of the requests that were answered; ``None`` when there are none.
    """

    phase: str
    variant: str
    requests: int
    outcomes: Mapping[Outcome, int]
    retried: int
    endpoint_queued: int
    prompt_tokens: int
    output_tokens: int
    ttft: Distribution | None
    itl: Distribution | None
    e2e: Distribution | None

    @property
    def answered(self) -> int:
        """Requests answered completely."""
        return self.outcomes.get(Outcome.OK, 0)

    @property
    def failed(self) -> int:
        """Requests not answered completely."""
        return self.requests - self.answered


def distribution(values: Iterable[float | None]) -> Distribution | None:
    """The distribution of the values that are not ``None``; ``None`` without any."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    cuts = statistics.quantiles(known, n=100, method="inclusive") if len(known) > 1 else known * 99
    return Distribution(len(known), statistics.fmean(known), cuts[49], cuts[89], cuts[94], cuts[98], known[-1])


def summarize(results: Sequence[RequestResult], phases: Sequence[Phase] = ()) -> list[Summary]:
    """One summary per phase for all variants, followed by one per variant when there are several.

    Without phases everything is one phase called ``all``. A result outside every phase is left out.
    """
    summaries: list[Summary] = []
    for phase in phases or (Phase("all", -math.inf, math.inf),):
        within = [result for result in results if phase.start <= result.at < phase.end]
        summaries.append(_summary(phase.name, ALL, within))
        variants = sorted({result.variant for result in within if result.variant})
        if len(variants) > 1:
            for variant in variants:
                of_variant = [result for result in within if result.variant == variant]
                summaries.append(_summary(phase.name, variant, of_variant))
    return summaries


def attainment(
    results: Iterable[RequestResult], *, ttft: float | None = None, itl: float | None = None
) -> float | None:
    """Share of requests answered within the given targets (seconds); a failed request misses, ``None`` without any.

    A request of one token has no ITL and misses no ITL target.
    """
    total = within = 0
    for result in results:
        total += 1
        within += (
            result.outcome is Outcome.OK
            and (ttft is None or (result.ttft is not None and result.ttft <= ttft))
            and (itl is None or result.itl is None or result.itl <= itl)
        )
    return within / total if total else None


def _summary(phase: str, variant: str, results: Sequence[RequestResult]) -> Summary:
    answered = [result for result in results if result.outcome is Outcome.OK]
    return Summary(
        phase=phase,
        variant=variant,
        requests=len(results),
        outcomes=dict(Counter(result.outcome for result in results)),
        retried=sum(result.attempts > 1 for result in results),
        endpoint_queued=sum(result.endpoint_queued for result in results),
        prompt_tokens=sum(result.prompt_tokens for result in answered),
        output_tokens=sum(result.output_tokens for result in answered),
        ttft=distribution(result.ttft for result in answered),
        itl=distribution(result.itl for result in answered),
        e2e=distribution(result.e2e for result in answered),
    )
