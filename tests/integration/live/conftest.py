"""A real Prometheus that scrapes a settable metric source, and a served model in a namespace of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from fleet_fixture import MetricSource, ServedModel
from prometheus_server import PrometheusServer, free_port

from modelyard.cluster import Cluster
from modelyard.local.stack import LocalStack


@pytest.fixture(scope="session")
def metric_source() -> Iterator[MetricSource]:
    source = MetricSource()
    yield source
    source.close()


@pytest.fixture(scope="session")
def prometheus_server(
    tmp_path_factory: pytest.TempPathFactory, metric_source: MetricSource
) -> Iterator[PrometheusServer]:
    server = PrometheusServer(tmp_path_factory.mktemp("prometheus"), free_port(), metric_source.address)
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def served(
    control_plane: LocalStack,
    control_plane_cluster: Cluster,
    metric_source: MetricSource,
    prometheus_server: PrometheusServer,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[ServedModel]:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    yield ServedModel(control_plane_cluster, metric_source, namespace, prometheus_server.url)
    for key in [k for k in metric_source.pods if k[0] == namespace]:
        del metric_source.pods[key]
