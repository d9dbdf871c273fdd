"""A namespace of the control plane with policies and served metrics endpoints, and a Prometheus for constants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from metric_endpoints import Endpoints
from policy_world import PolicyWorld
from prometheus_server import PrometheusServer, free_port

from modelyard.autoscaling.live.bindings.state import PolicyState
from modelyard.cluster import Cluster
from modelyard.metrics.scrape import Scraper


@pytest.fixture
async def world(control_plane_cluster: Cluster, namespace: str) -> AsyncIterator[PolicyWorld]:
    async with Endpoints() as endpoints:
        yield PolicyWorld(control_plane_cluster, endpoints, namespace)


@pytest.fixture
async def state() -> AsyncIterator[PolicyState]:
    """What a process keeps; patient with a busy machine."""
    async with PolicyState(Scraper(seconds=10.0, total=60.0)) as kept:
        yield kept


@pytest.fixture(scope="session")
def constants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """A Prometheus that answers constant expressions."""
    server = PrometheusServer(tmp_path_factory.mktemp("prometheus"), free_port(), f"127.0.0.1:{free_port()}")
    server.start()
    yield server
    server.kill()
