"""What the pods of a namespace have served over a time: requests, how many of them failed, time to first token."""

from __future__ import annotations

import asyncio

from modelyard.metrics.prometheus.client import Prometheus, Sample
from modelyard.metrics.prometheus.signals import by_pod
from modelyard.metrics.vocabulary import (
    BY_POD,
    METRIC,
    ServedRequests,
    Signal,
    duration,
    each,
    namespace_matcher,
    ratios,
)

FAILED = "abort|error"
"""Reasons for which engines say that a request ended without its answer."""


def served_queries(namespace: str, window: float) -> dict[str, str]:
    """PromQL by purpose, for the pods of a namespace over ``window`` seconds."""
    where, span = namespace_matcher([namespace]), duration(window)
    failing = f'{where[:-1]}, finished_reason=~"{FAILED}"}}'

    def grown(signal: Signal, matcher: str) -> str:
        return each(signal, "sum", BY_POD, f"increase({METRIC}{matcher}[{span}])")

    return {
        "finished requests": grown(Signal.FINISHED, where),
        "failed requests": grown(Signal.FINISHED, failing),
        "aborted requests": grown(Signal.ABORTED, where),
        "time to first token": ratios(Signal.TTFT, BY_POD, f"increase({METRIC}{where}[{span}])", some=True),
    }


async def read_served(prometheus: Prometheus, namespace: str, window: float, at: float) -> dict[str, ServedRequests]:
    """By pod, what was served in the ``window`` seconds before ``at`` (epoch seconds). Raises ``PrometheusError``."""

    async def ask(text: str, purpose: str) -> dict[str, float]:
        series = await prometheus.query_range(text, f"{purpose} in {namespace}", at, at, 1)
        found = by_pod(Sample(one.labels, one.points[-1][1]) for one in series if one.points)
        values: dict[str, float] = {}
        for (_, pod, _), value in found.items():
            values[pod] = values.get(pod, 0.0) + (value or 0.0)
        return values

    asked = served_queries(namespace, window)
    done, failed, aborted, ttft = await asyncio.gather(*(ask(text, purpose) for purpose, text in asked.items()))
    return {
        pod: ServedRequests(count, max(failed.get(pod, 0.0), aborted.get(pod, 0.0)), ttft.get(pod))
        for pod, count in done.items()
    }
