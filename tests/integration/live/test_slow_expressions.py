"""PromQL of one tenant that Prometheus takes its time for, while the loop serves others: a real Prometheus, delayed."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from fleet_fixture import ServedModel, quick, run_tick
from prometheus_server import PrometheusServer

from modelyard.autoscaling.fleet.kinds import BINDINGS, POLICIES
from modelyard.autoscaling.live.controller import Controller
from modelyard.cluster import Cluster
from modelyard.metrics.prometheus import expressions
from modelyard.objects import Key
from modelyard.objects.kinds import NAMESPACES

pytestmark = pytest.mark.integration

WAKE = "modelyard.dev/wake-query"


class Delaying:
    """Before a Prometheus: whatever has ``slow`` in its query is answered when the test is over."""

    def __init__(self, prometheus: str) -> None:
        self.slow = 0
        self.over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if "slow" in self.path:
                    outer.slow += 1
                    outer.over.wait(60)
                with urllib.request.urlopen(prometheus + self.path) as answer:
                    body = answer.read()
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def delaying(prometheus_server: PrometheusServer) -> Iterator[Delaying]:
    server = Delaying(prometheus_server.url)
    yield server
    server.over.set()
    server.server.shutdown()
    server.server.server_close()


async def hostile_tenant(cluster: Cluster, served: ServedModel) -> ServedModel:
    """Forty variants at zero with wake expressions, and a binding with six sources, all of them slow."""
    hostile = ServedModel(cluster, served.source, f"{served.namespace}-hostile", served.prometheus_url)
    await cluster.create(NAMESPACES, {"metadata": {"name": hostile.namespace}})
    await hostile.deploy("asleep", 0)
    await hostile.deploy("bound", 0)
    for number in range(40):
        await hostile.vary(f"v{number:02}", "asleep", annotations={WAKE: f"slow_{number}"})
    sources = {f"metric{number}": f"slow_source_{number}" for number in range(6)}
    metrics = [{"metricName": name, "targetValue": "1"} for name in sources]
    metadata = {"name": "bound", "namespace": hostile.namespace}
    await cluster.create(POLICIES, {"metadata": metadata, "spec": {"metrics": metrics}}, hostile.namespace)
    metadata = {**metadata, "annotations": {"modelyard.dev/metric-sources": json.dumps(sources), WAKE: "slow_wake"}}
    target = {"targetRef": {"name": "bound", "kind": "Deployment", "apiVersion": "apps/v1"}}
    scaling = {"target": target, "minReplicas": 0, "maxReplicas": 5}
    spec = {"policyRef": {"name": "bound"}, "scalingConfiguration": scaling}
    await cluster.create(BINDINGS, {"metadata": metadata, "spec": spec}, hostile.namespace)
    return hostile


async def test_expressions_that_never_end_hold_up_no_tick_of_another_tenant(
    served: ServedModel, control_plane_cluster: Cluster, delaying: Delaying
) -> None:
    await served.deploy("busy", 1)
    await served.vary("busy")
    served.load("busy", kv=0.95, waiting=50)
    await served.deploy("waiting", 0, model="other")
    await served.vary("waiting", model="other", annotations={WAKE: "vector(2)"})
    hostile = await hostile_tenant(control_plane_cluster, served)
    await served.reported()
    settings = quick(delaying.url, served.namespace, dry_run=True)
    settings = settings.model_copy(update={"namespaces": [served.namespace, hostile.namespace]})
    wanted = {("busy", 2), ("waiting", 1)}
    try:
        async with Controller(settings) as loop:
            for _ in range(2):
                before = delaying.slow
                tick = await run_tick(loop)
                signals = tick.fleet.signals
                assert signals.error is None
                assert signals.wake == {Key(served.namespace, "waiting"): 2}
                mine = {
                    d.key.name: d.records[0] for d in tick.decision.decisions if d.key.namespace == served.namespace
                }
                assert {(name, record.target.replicas) for name, record in mine.items()} == wanted
                assert len(signals.errors_in[hostile.namespace]) == 40
                assert (signals.partial_errors, len(signals.errors_in)) == ((), 1)
                (binding,) = tick.fleet.bindings
                assert len(binding.targets[0].scrape_errors) >= 6
                assert 0 < delaying.slow - before <= 3 * expressions.AT_ONCE, "its share, of which others have the rest"
    finally:
        await control_plane_cluster.delete(NAMESPACES, hostile.namespace)
