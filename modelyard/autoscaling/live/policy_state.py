"""Per-process state about bindings. Losing it costs one tick without rates and percentiles: replicas are kept."""

from __future__ import annotations

from typing import Self

from modelyard.autoscaling.reading.bindings import Histories, PolicySpec
from modelyard.metrics.endpoints import Scraper
from modelyard.objects import WorkloadId


class PolicyState:
    """The scraper's connections, snapshots of counters and histograms, learnt start-up times, policies last read."""

    def __init__(self, scraper: Scraper | None = None) -> None:
        self.scraper = scraper or Scraper()
        self.histories = Histories()
        self.startup: dict[WorkloadId, float] = {}
        self.listed_policies: tuple[PolicySpec, ...] = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.scraper.close()
