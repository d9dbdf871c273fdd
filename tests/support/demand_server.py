"""A real Prometheus in which requests wait when a test says so: demand comes after something, not at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from fleet_fixture import Gauges, MetricSource
from prometheus_server import PrometheusServer, free_port

DEMAND = "sum(max_over_time(demand[1h])) or vector(0)"
"""An expression of a namespace: the requests that have arrived there."""


class DemandServer:
    """``with DemandServer(folder) as demand``: its ``server`` has no requests in any namespace yet."""

    def __init__(self, folder: Path) -> None:
        self._source = MetricSource()
        self.server = PrometheusServer(folder, free_port(), self._source.address)

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.kill()
        self._source.close()

    def arrive(self, namespace: str, requests: int = 2) -> None:
        """So many requests wait in this namespace from now on."""
        series = f'demand{{namespace="{namespace}"}} {requests}'
        self._source.pods[namespace, "gateway"] = Gauges("any", None, None, None, None, raw=[series])
