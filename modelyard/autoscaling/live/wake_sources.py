"""Where waiting requests for a model at zero show up: one reader per thing to ask.

A reader is asked for all the variants that depend on it at once, given as their models by key, and answers with the
pending demand of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import aiohttp

from modelyard.autoscaling.live.pickers import PickerError, Pool, addresses, scrape
from modelyard.cluster import Cluster
from modelyard.metrics.client import Prometheus, PrometheusError
from modelyard.metrics.queries import GATEWAY_QUEUE, FleetQueries
from modelyard.metrics.signals import gateway_queue
from modelyard.metrics.wake import read_expressions
from modelyard.objects import Key

LOOK_AGAIN = 30.0
"""Seconds after which the addresses of a picker's pods are looked up again."""

Reading = Mapping[Key, float]
"""Pending demand by variant."""


class ReadFailed(Exception):
    """A source that could not be read; the message says why."""


class NothingKnown(Exception):
    """A source that knows nothing of any of the models."""


class Reader(Protocol):
    """One thing to ask."""

    async def read(self, models: Mapping[Key, str]) -> Reading:
        """Pending demand of these variants. Raises ``ReadFailed`` or ``NothingKnown``."""
        ...


class PickerReader:
    """The flow-control queues at the Ready pods of one InferencePool's endpoint picker."""

    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession, pool: Pool, token: str) -> None:
        self._cluster = cluster
        self._session = session
        self._pool = pool
        self._token = token
        self._urls: tuple[str, ...] = ()
        self._looked_at = float("-inf")

    async def read(self, models: Mapping[Key, str]) -> Reading:
        """The queue of each variant's model, summed over the picker's pods that answer."""
        now = asyncio.get_running_loop().time()
        if not self._urls or now - self._looked_at >= LOOK_AGAIN:
            try:
                self._urls = await addresses(self._cluster, self._pool)
            except PickerError as error:
                raise ReadFailed(str(error)) from error
            self._looked_at = now
        if not self._urls:
            raise NothingKnown
        pages = await asyncio.gather(
            *(scrape(self._session, url, self._token) for url in self._urls), return_exceptions=True
        )
        total: dict[str, float] = {}
        failures: list[str] = []
        for page in pages:
            if isinstance(page, PickerError):
                failures.append(str(page))
            elif isinstance(page, BaseException):
                raise page
            else:
                for model, queue in page.items():
                    total[model] = total.get(model, 0.0) + queue
        if len(failures) == len(pages):
            self._urls = ()
            raise ReadFailed("; ".join(failures))
        return {key: total.get(model, 0.0) for key, model in models.items()}


class GatewayReader:
    """The gateway queue as Prometheus knows it. It tells no namespaces apart; ``queue`` is by model."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self._text = FleetQueries.build(60).gateway_queue
        self.queue: dict[str, float] = {}

    async def read(self, models: Mapping[Key, str]) -> Reading:
        """The queue of each variant's model."""
        self.queue = {}
        try:
            samples = await self._prometheus.query(self._text, GATEWAY_QUEUE)
        except PrometheusError as error:
            raise ReadFailed(str(error)) from error
        if not samples:
            raise NothingKnown
        self.queue = gateway_queue(samples)
        return {key: self.queue.get(model, 0.0) for key, model in models.items()}


class ExpressionReader:
    """One wake expression, which any number of variants may share."""

    def __init__(self, prometheus: Prometheus, text: str) -> None:
        self._prometheus = prometheus
        self._text = text

    async def read(self, models: Mapping[Key, str]) -> Reading:
        """The expression's value for each of its variants; nothing while it has none."""
        found, problems = await read_expressions(self._prometheus, dict.fromkeys(models, self._text))
        if problems:
            raise ReadFailed(problems[0])
        return found
