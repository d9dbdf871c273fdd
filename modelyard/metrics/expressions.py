"""What owners of objects ask Prometheus themselves: pending demand at zero, and metrics of bindings.

An expression may be any PromQL. Equal ones are asked once, and a broken one hurts only what it stands for. An empty
answer is no knowledge, not zero.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping

from modelyard.metrics.client import Prometheus, PrometheusError
from modelyard.objects import Key

ANNOTATION = "modelyard.dev/wake-query"
LIMIT = 100
"""Distinct wake expressions asked at a time; what is beyond is named, not asked."""
CONCURRENCY = 8
SECONDS = 3.0
"""Limit of a binding's expression."""

Answers = Mapping[str, float | str]
"""A number by expression, or why there is none."""


async def number(prometheus: Prometheus, query: str) -> float:
    """A binding's expression, which must give one number: a scalar or one element. Raises ``PrometheusError``."""
    try:
        async with asyncio.timeout(SECONDS):
            samples = await prometheus.query(query, "a metric source")
    except TimeoutError:
        raise PrometheusError(f"Prometheus gave no answer within {SECONDS:g} s") from None
    if len(samples) != 1:
        found = "nothing" if not samples else f"{len(samples)} series"
        raise PrometheusError(
            f"the query gives {found}; it must give one number (aggregate it, for example with sum())"
        )
    if (value := samples[0].value) is None:
        raise PrometheusError("the query gives no finite number")
    return value


async def read_numbers(prometheus: Prometheus | PrometheusError, queries: Iterable[str]) -> Answers:
    """All of these, some at a time."""
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(query: str) -> float | str:
        if isinstance(prometheus, PrometheusError):
            return str(prometheus)
        try:
            async with gate:
                return await number(prometheus, query)
        except PrometheusError as error:
            return str(error)

    asked = sorted(set(queries))
    return dict(zip(asked, await asyncio.gather(*map(one, asked)), strict=True))


async def read_expressions(
    prometheus: Prometheus, expressions: Mapping[Key, str], limit: int = LIMIT
) -> tuple[dict[Key, float], list[str]]:
    """The sum of what each gives, by variant, and one text per variant whose expression is broken or was not asked."""
    owners: dict[str, list[Key]] = defaultdict(list)
    for key, text in sorted(expressions.items()):
        owners[text.strip()].append(key)
    found: dict[Key, float] = {}
    problems: dict[Key, str] = {}
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(text: str, keys: list[Key]) -> None:
        try:
            if not text:
                raise PrometheusError("it is empty")
            async with gate:
                samples = await prometheus.query(text, f"pending demand of {keys[0]}")
        except PrometheusError as error:
            problems.update(
                {key: f"{_wake(key)}: {error}; correct the expression or remove the annotation" for key in keys}
            )
            return
        values = [sample.value for sample in samples if sample.value is not None]
        if values:
            found.update(dict.fromkeys(keys, sum(values)))

    asked = list(owners.items())
    for _, keys in asked[limit:]:
        problems.update({key: f"{_wake(key)}: more than {limit} different expressions; not asked" for key in keys})
    await asyncio.gather(*(one(text, keys) for text, keys in asked[:limit]))
    return found, [problems[key] for key in sorted(problems)]


def _wake(key: Key) -> str:
    return f"VariantAutoscaling {key}: annotation {ANNOTATION}"
