"""Metrics and wake-up demand that a binding takes from Prometheus.

A query must give one finite number: a scalar or a vector of one element. Anything else is "not available", with the
reason, and hurts only the metric it stands for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from modelyard.metrics.client import Prometheus, PrometheusError

QUERY_SECONDS = 3.0
CONCURRENCY = 8


class Answers:
    """One number per expression, each asked once in a tick."""

    def __init__(self, prometheus: Prometheus | PrometheusError) -> None:
        self._prometheus = prometheus
        self._found: dict[str, float | str] = {}

    async def ask(self, queries: Iterable[str]) -> None:
        """Ask for all of these, some at a time."""
        gate = asyncio.Semaphore(CONCURRENCY)

        async def one(query: str) -> None:
            async with gate:
                self._found[query] = await self._ask(query)

        await asyncio.gather(*(one(query) for query in sorted(set(queries))))

    def of(self, query: str) -> float | str:
        """The number, or why there is none."""
        return self._found.get(query, "it was not asked for")

    async def _ask(self, query: str) -> float | str:
        if isinstance(self._prometheus, PrometheusError):
            return str(self._prometheus)
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                return await _number(self._prometheus, query)
        except TimeoutError:
            return f"Prometheus gave no answer within {QUERY_SECONDS:g} s"
        except PrometheusError as error:
            return str(error)


async def _number(prometheus: Prometheus, query: str) -> float | str:
    samples = await prometheus.query(query, "a metric source")
    if len(samples) != 1:
        found = "nothing" if not samples else f"{len(samples)} series"
        return f"the query gives {found}; it must give one number (aggregate it, for example with sum())"
    value = samples[0].value
    return "the query gives no finite number" if value is None else value
