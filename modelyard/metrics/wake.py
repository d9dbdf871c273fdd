"""Pending demand for variants at zero, from expressions of their owners (annotation ``modelyard.dev/wake-query``).

An expression may be any PromQL: a scalar, or a vector whose elements are summed. An empty answer is no knowledge, not
zero demand.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping

from modelyard.metrics.client import Prometheus, PrometheusError
from modelyard.objects import Key

ANNOTATION = "modelyard.dev/wake-query"
LIMIT = 100
"""Distinct expressions asked at a time; what is beyond is named, not asked."""
CONCURRENCY = 4


async def read_expressions(
    prometheus: Prometheus, expressions: Mapping[Key, str], limit: int = LIMIT
) -> tuple[dict[Key, float], list[str]]:
    """Value by variant, and one text per variant whose expression is broken or was not asked.

    Equal expressions are asked once. A broken one hurts nobody else.
    """
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
                {key: f"{_name(key)}: {error}; correct the expression or remove the annotation" for key in keys}
            )
            return
        values = [sample.value for sample in samples if sample.value is not None]
        if values:
            found.update(dict.fromkeys(keys, sum(values)))

    asked = list(owners.items())
    for _, keys in asked[limit:]:
        problems.update({key: f"{_name(key)}: more than {limit} different expressions; not asked" for key in keys})
    await asyncio.gather(*(one(text, keys) for text, keys in asked[:limit]))
    return found, [problems[key] for key in sorted(problems)]


def _name(key: Key) -> str:
    return f"VariantAutoscaling {key}: annotation {ANNOTATION}"
