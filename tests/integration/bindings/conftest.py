"""A namespace of the control plane with policies and served metrics endpoints, and a Prometheus for expressions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from demand_server import DemandServer
from metric_endpoints import Endpoints
from policy_world import PolicyWorld
from prometheus_server import PrometheusServer

from modelyard.autoscaling.live.policy_state import PolicyState
from modelyard.cluster import Cluster
from modelyard.metrics.endpoints.scrape import Scraper


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
def demand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemandServer]:
    """A Prometheus in which requests wait when a test says so."""
    with DemandServer(tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.fixture(scope="session")
def constants(demand: DemandServer) -> PrometheusServer:
    """A Prometheus that answers constant expressions."""
    return demand.server
