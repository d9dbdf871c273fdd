"""What routers have sent by one route to some of its servers over a time, from their own metrics in Prometheus.

Counts are differences of what each router told at the two ends, not PromQL's ``increase``: a series is there only from
its first request on, and the first failures of a new server are what matters.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from modelyard.metrics.prometheus.client import Prometheus
from modelyard.metrics.vocabulary import RoutedRequests, quoted
from modelyard.objects import Key

REQUESTS, FIRST_TOKEN = "kthena_router_requests_total", "kthena_router_time_to_first_token_seconds_bucket"
WELL = "successful_request"
NOT_ITS_DOING = ("client_gone", "authentication", "router_limit", "queue", "input_rate_limit", "output_rate_limit")
"""Of ``error_type``: ends of requests that say nothing of the server they were meant for."""
SHARE = 0.95
FEWEST = 20
"""Streams below which there is no such thing as a time that 95 % of them are within."""

Counts = Mapping[frozenset[tuple[str, str]], float]


async def read_routed(
    prometheus: Prometheus, routers: str, route: Key, servers: Iterable[Key], begin: float, end: float
) -> RoutedRequests:
    """What went to ``servers`` by ``route`` from ``begin`` to ``end`` (epoch seconds).

    ``routers`` is the namespace of the routers: what others show under the same names is not read. Raises
    ``PrometheusError``.
    """
    names = "|".join(sorted(re.escape(str(one)) for one in servers))
    where = f"{{namespace={quoted(routers)}, model_route={quoted(str(route))}, backend_name=~{quoted(names)}}}"

    async def ask(metric: str, at: float) -> Counts:
        series = await prometheus.query_range(f"{metric}{where}", f"what {route} sent", at, at, 1)
        return {frozenset(one.labels.items()): one.points[-1][1] for one in series if one.points}

    asked = ((metric, at) for metric in (REQUESTS, FIRST_TOKEN) for at in (begin, end))
    before, after, early, late = await asyncio.gather(*(ask(*one) for one in asked))
    done, failed = 0.0, 0.0
    for labels, count in _grown(before, after).items():
        how = dict(labels).get("error_type", WELL)
        if how not in NOT_ITS_DOING:
            done += count
            failed += count if how != WELL else 0.0
    buckets: defaultdict[float, float] = defaultdict(float)
    for labels, count in _grown(early, late).items():
        buckets[float(dict(labels).get("le", "inf"))] += count
    return RoutedRequests(done, failed, quantile(buckets))


def _grown(before: Counts, after: Counts) -> dict[frozenset[tuple[str, str]], float]:
    """By how much each counter has grown; one that is smaller began anew."""
    return {one: value - then if (then := before.get(one, 0.0)) <= value else value for one, value in after.items()}


def quantile(buckets: Mapping[float, float]) -> float | None:
    """The value that ``SHARE`` of the observations are within, by what is at or below each bound; linear between two.

    ``None`` for too few; the highest bound for what is beyond.
    """
    total = buckets.get(math.inf, 0.0)
    if total < FEWEST:
        return None
    wanted, low, below = SHARE * total, 0.0, 0.0
    for bound in sorted(buckets):
        if buckets[bound] >= wanted:
            return low if math.isinf(bound) else low + (bound - low) * (wanted - below) / (buckets[bound] - below)
        low, below = bound, buckets[bound]
    return low
