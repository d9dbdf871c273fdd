"""Waiting requests for a model at zero are noticed between ticks: real pools, metrics pages and Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from fleet_fixture import Gauges, ServedModel, eventually, quick, ready_status
from prometheus_server import PrometheusServer, free_port

from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.live.collect import Selection, collect
from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.live.pickers import TOKEN, TOKEN_FOR
from modelyard.autoscaling.live.wake import WakeWatch, first_of
from modelyard.cluster import AlreadyExists, Cluster
from modelyard.metrics.prometheus.client import Prometheus, PrometheusError, PrometheusSettings
from modelyard.metrics.prometheus.expressions import Expressions
from modelyard.metrics.prometheus.signals import LastSeen
from modelyard.objects import Key
from modelyard.objects.kinds import CRDS, DEPLOYMENTS, PODS, SERVICES

pytestmark = pytest.mark.integration

QUICK = 0.1
NO_PROMETHEUS = PrometheusError("none in this test")
GROUPS = {"inference.networking.k8s.io": "v1", "inference.networking.x-k8s.io": "v1alpha2"}


class Picker:
    """The metrics page of an endpoint picker."""

    def __init__(self) -> None:
        self.queue: dict[str, float] = {}
        self.status = 200
        self.pause = 0.0
        self.authorization: str | None = None
        self.asked = 0
        picker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                picker.asked += 1
                picker.authorization = self.headers.get("Authorization")
                time.sleep(picker.pause)
                lines = [
                    f"inference_extension_flow_control_queue_size{{target_model_name={json.dumps(model)}}} {value}\n"
                    for model, value in picker.queue.items()
                ]
                self.send_response(picker.status)
                self.end_headers()
                self.wfile.write("".join(["# TYPE up gauge\nup 1\n", *lines]).encode())

            def log_message(self, *_: Any) -> None:
                return

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Who asks goes away while the answer is late: nobody is told."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def picker() -> Iterator[Picker]:
    server = Picker()
    yield server
    server.close()


@pytest.fixture(scope="module")
async def pools(control_plane_cluster: Cluster) -> AsyncIterator[Cluster]:
    """Both API versions of InferencePool, with schemas that take anything."""
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    for group, version in GROUPS.items():
        name = f"inferencepools.{group}"
        crd = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": name,
                "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
            },
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"plural": "inferencepools", "singular": "inferencepool", "kind": "InferencePool"},
                "versions": [{"name": version, "served": True, "storage": True, "schema": anything}],
            },
        }
        with contextlib.suppress(AlreadyExists):
            await control_plane_cluster.create(CRDS, crd)

        async def established(name: str = name) -> bool:
            status = (await control_plane_cluster.get(CRDS, name)).get("status") or {}
            return any(c["type"] == "Established" and c["status"] == "True" for c in status.get("conditions") or ())

        await eventually(established, f"{name} is served")
    yield control_plane_cluster
    for group in GROUPS:
        await control_plane_cluster.delete(CRDS, f"inferencepools.{group}")


async def write_pool(cluster: Cluster, namespace: str, group: str, spec: dict[str, Any], name: str = "pool") -> None:
    kind = await cluster.resolve(f"{group}/{GROUPS[group]}", "InferencePool")
    body = {"apiVersion": f"{group}/{GROUPS[group]}", "kind": "InferencePool", "metadata": {"name": name}, "spec": spec}
    await cluster.create(kind, body, namespace)


async def make_pool(
    cluster: Cluster, namespace: str, port: int, group: str, app: str = "llama", named: bool = False
) -> None:
    """A pool for ``app``, the Service of its picker, and one Ready picker pod on this machine."""
    if group.endswith("x-k8s.io"):
        spec: dict[str, Any] = {"selector": {"app": app}, "extensionRef": {"name": "epp"}, "targetPortNumber": 8000}
    else:
        spec = {
            "selector": {"matchLabels": {"app": app}},
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
        }
    await write_pool(cluster, namespace, group, spec)
    ports = [
        {"name": "grpc", "port": 9002, "targetPort": 9002},
        {"name": "http-metrics", "port": 9090, "targetPort": "metrics" if named else port},
    ]
    await cluster.create(
        SERVICES,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "epp", "namespace": namespace},
            "spec": {"selector": {"app": "epp"}, "ports": ports},
        },
        namespace,
    )
    container = {
        "name": "epp",
        "image": "example.invalid/epp",
        "ports": [{"name": "metrics", "containerPort": port}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "epp", "namespace": namespace, "labels": {"app": "epp"}},
        "spec": {"containers": [container]},
    }
    await cluster.create(PODS, pod, namespace)
    await cluster.merge_patch(PODS, "epp", ready_status(time.time()), namespace, subresource="status")


async def asleep(served: ServedModel, name: str = "llama", **annotations: str) -> None:
    """A model scaled to zero."""
    await served.deploy(name, 0)
    await served.vary(name, annotations=annotations)


async def fleet_of(served: ServedModel, prometheus_url: str = "") -> Fleet:
    """What a tick sees before anybody is asked who waits: a whole tick of the loop asks that itself."""
    url = prometheus_url or f"http://127.0.0.1:{free_port()}"
    settings = quick(url, served.namespace).model_copy(update={"prometheus_timeout": 30 if prometheus_url else 0.2})
    async with Controller(settings) as loop, Expressions(loop.prometheus) as expressions:
        selection = Selection((served.namespace,))
        return await collect(loop.mirror, loop.prometheus, expressions, loop.fleet_settings, selection, LastSeen())


@pytest.mark.parametrize("group", sorted(GROUPS))
async def test_a_picker_with_waiting_requests_ends_the_wait_and_tells_the_tick(
    served: ServedModel, pools: Cluster, picker: Picker, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "Bearer secret")
    monkeypatch.setenv(TOKEN_FOR, f"gateways/epp, {served.namespace}/epp")
    await asleep(served)
    await make_pool(pools, served.namespace, picker.port, group, named=group == "inference.networking.k8s.io")
    key = Key(served.namespace, "llama")
    fleet = await fleet_of(served)
    async with WakeWatch(pools, NO_PROMETHEUS, Expressions(NO_PROMETHEUS), interval=QUICK) as wakes:
        assert not await wakes.wait(0.3), "nothing is known yet"
        assert picker.asked == 0
        assert (await wakes.complete(fleet)).signals.wake == {key: 0}
        assert picker.authorization == "Bearer secret"

        async def asked_again() -> bool:
            assert not await wakes.wait(0.5), "nobody waits"
            return picker.asked > 1

        await eventually(asked_again, "the picker is asked between ticks")

        waiting = asyncio.create_task(wakes.wait(120))
        await asyncio.sleep(0.2)
        picker.queue = {"other": 4, "llama": 3}
        assert await asyncio.wait_for(waiting, 120)
        assert (await wakes.complete(fleet)).signals.wake == {key: 3}

        assert not await wakes.wait(0.5), "the tick knows of this demand"
        picker.queue = {}
        asked, waits = picker.asked, itertools.count(1)

        async def seen_empty() -> bool:
            assert not await wakes.wait(0.5)
            return picker.asked - asked > next(waits)  # the end of each wait may have broken one question off

        await eventually(seen_empty, "the picker has said that nobody waits")
        picker.queue = {"llama": 1}
        assert await wakes.wait(120), "new demand"

        await pools.write_scale(DEPLOYMENTS, "llama", served.namespace, 1)
        awake = await fleet_of(served)
        assert (await wakes.complete(awake)).signals == awake.signals
        asked = picker.asked
        assert not await wakes.wait(0.5)
        assert picker.asked == asked, "nothing is at zero, nobody is asked"


async def test_a_picker_is_asked_once_for_all_the_variants_of_its_pool(
    served: ServedModel, pools: Cluster, picker: Picker
) -> None:
    await asleep(served)
    await make_pool(pools, served.namespace, picker.port, "inference.networking.k8s.io")
    await served.vary("second", target="llama")
    picker.queue = {"llama": 2}
    async with WakeWatch(pools, NO_PROMETHEUS, Expressions(NO_PROMETHEUS), interval=60) as wakes:
        fleet = await wakes.complete(await fleet_of(served))
    assert fleet.signals.wake == {Key(served.namespace, name): 2 for name in ("llama", "second")}
    assert picker.asked == 1


async def test_pools_of_other_namespaces_and_other_pods_do_not_count(
    served: ServedModel, pools: Cluster, picker: Picker
) -> None:
    await asleep(served)
    await make_pool(pools, served.namespace, picker.port, "inference.networking.k8s.io", app="mistral")
    picker.queue = {"llama": 2}
    async with WakeWatch(pools, NO_PROMETHEUS, Expressions(NO_PROMETHEUS), interval=QUICK) as wakes:
        fleet = await wakes.complete(await fleet_of(served))
        assert fleet.signals.wake == {}
        assert not await wakes.wait(0.3)
    assert picker.asked == 0


async def test_pools_in_a_form_that_nobody_expects_stop_no_other(
    served: ServedModel, pools: Cluster, picker: Picker
) -> None:
    await asleep(served)
    await make_pool(pools, served.namespace, picker.port, "inference.networking.k8s.io")
    hostile: list[dict[str, Any]] = [
        {"selector": {"matchLabels": "foo"}},
        {"selector": "text"},
        {"selector": {"a": [{}]}},
    ]
    for number, spec in enumerate(hostile):
        named = {**spec, "extensionRef": {"name": "epp"}}
        await write_pool(pools, served.namespace, "inference.networking.x-k8s.io", named, f"a-{number}")
    picker.queue = {"llama": 2}
    async with WakeWatch(pools, NO_PROMETHEUS, Expressions(NO_PROMETHEUS), interval=60) as wakes:
        fleet = await wakes.complete(await fleet_of(served))
    assert fleet.signals.wake == {Key(served.namespace, "llama"): 2}
    assert not fleet.signals.errors_in


async def test_a_picker_that_a_tenant_chose_does_not_get_the_token(
    served: ServedModel, pools: Cluster, picker: Picker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "secret")
    monkeypatch.setenv(TOKEN_FOR, f"gateways/epp, {served.namespace}/another")
    picker.status = 401
    await asleep(served)
    await make_pool(pools, served.namespace, picker.port, "inference.networking.k8s.io")
    async with WakeWatch(pools, NO_PROMETHEUS, Expressions(NO_PROMETHEUS), interval=QUICK) as wakes:
        fleet = await wakes.complete(await fleet_of(served))
    assert (picker.asked, picker.authorization) == (1, None)
    (problem,) = fleet.signals.errors_in[served.namespace]
    assert f"no token was sent: if this picker may have it, set {served.namespace}/epp in {TOKEN_FOR}" in problem


@pytest.mark.timing_sensitive("counts what is asked within two seconds")
async def test_a_failing_picker_is_named_and_asked_less_and_less(
    served: ServedModel, pools: Cluster, picker: Picker
) -> None:
    await asleep(served)
    await make_pool(pools, served.namespace, picker.port, "inference.networking.k8s.io")
    picker.status = 401
    fleet = await fleet_of(served)
    async with WakeWatch(pools, NO_PROMETHEUS, Expressions(NO_PROMETHEUS), interval=QUICK) as wakes:
        first = await wakes.complete(fleet)
        (problem,) = first.signals.errors_in[served.namespace]
        assert f"{served.namespace}/pool" in problem
        assert "HTTP status 401" in problem
        assert "EPP_METRIC_READER_BEARER_TOKEN" in problem
        assert first.signals.wake == {}, "not known is not zero"
        assert not await wakes.wait(2)
        assert picker.asked <= 6, "0.1, 0.2, 0.4 ... seconds apart"
        picker.status, picker.queue = 200, {"llama": 1}
        assert await wakes.wait(120)


async def test_a_picker_that_hangs_delays_nobody_else(
    served: ServedModel, pools: Cluster, picker: Picker, prometheus_server: PrometheusServer
) -> None:
    await asleep(served, **{"modelyard.dev/wake-query": "2"})
    await make_pool(pools, served.namespace, picker.port, "inference.networking.k8s.io")
    fleet = await fleet_of(served)
    async with (
        Prometheus(PrometheusSettings(base_url=prometheus_server.url, timeout=30)) as prometheus,
        Expressions(prometheus) as expressions,
        WakeWatch(pools, prometheus, expressions, interval=QUICK) as wakes,
    ):
        await wakes.complete(fleet)
        picker.pause = 600
        await asyncio.sleep(2 * QUICK)
        assert await wakes.wait(120)
        assert (await wakes.complete(fleet)).signals.wake[Key(served.namespace, "llama")] == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [("service", "does not exist"), ("port", 'no port whose name contains "metric"')],
)
async def test_a_picker_that_is_not_set_up_is_explained(
    served: ServedModel, pools: Cluster, picker: Picker, change: str, said: str
) -> None:
    await asleep(served)
    await make_pool(pools, served.namespace, picker.port, "inference.networking.k8s.io")
    if change == "service":
        await pools.delete(SERVICES, "epp", served.namespace)
    else:
        ports = {"spec": {"ports": [{"name": "grpc", "port": 9002}]}}
        await pools.merge_patch(SERVICES, "epp", ports, served.namespace)
    async with WakeWatch(pools, NO_PROMETHEUS, Expressions(NO_PROMETHEUS), interval=QUICK) as wakes:
        fleet = await wakes.complete(await fleet_of(served))
    (problem,) = fleet.signals.errors_in[served.namespace]
    assert f"{served.namespace}/epp" in problem
    assert said in problem


async def test_a_cluster_without_pools_is_no_error(served: ServedModel, control_plane_cluster: Cluster) -> None:
    await asleep(served)
    before = await fleet_of(served)
    async with WakeWatch(control_plane_cluster, NO_PROMETHEUS, Expressions(NO_PROMETHEUS), interval=QUICK) as wakes:
        assert await wakes.complete(before) is before


async def test_expressions_and_the_gateway_queue_are_watched_in_prometheus(
    served: ServedModel, control_plane_cluster: Cluster, prometheus_server: PrometheusServer
) -> None:
    model = f"org/{served.namespace}"
    await served.deploy("llama", 0)
    await served.vary("llama", model=model)
    pending = f"pending_{served.namespace.replace('-', '_')}"
    await asleep(served, "by-query", **{"modelyard.dev/wake-query": f"max_over_time({pending}[10s])"})
    await asleep(served, "broken", **{"modelyard.dev/wake-query": "sum("})
    page = Gauges(model, None, None, None, None)
    served.source.pods[served.namespace, "epp"] = page

    fleet = await fleet_of(served, prometheus_server.url)
    assert fleet.signals.wake == {}
    (problem,) = fleet.signals.errors_in[served.namespace]
    assert f"VariantAutoscaling {served.namespace}/broken" in problem

    async with (
        Prometheus(PrometheusSettings(base_url=prometheus_server.url, timeout=30)) as prometheus,
        Expressions(prometheus) as expressions,
        WakeWatch(control_plane_cluster, prometheus, expressions, interval=QUICK) as wakes,
    ):
        await wakes.complete(fleet)
        queue = f'inference_extension_flow_control_queue_size{{target_model_name="{model}"'
        page.raw = [f'{queue},namespace="hostile"}} 9', f'{queue},exported_namespace="{served.namespace}"}} 9']
        await eventually(lambda: prometheus.query(f"count({queue}}}) == 2", "a test"), "the forged queues are there")
        asked = prometheus.queries

        async def asked_again() -> bool:
            assert not await wakes.wait(2), "nobody in this namespace says that anybody waits"
            return prometheus.queries > asked + 1

        await eventually(asked_again, "Prometheus is asked between ticks")

        page.raw += [f'{pending}{{namespace="{served.namespace}"}} 3', f'{pending}{{namespace="hostile"}} 9']
        assert await wakes.wait(120)
        told = await wakes.complete(fleet)
        assert told.signals.wake == {Key(served.namespace, "by-query"): 3}

        page.raw += [f'{queue},namespace="{served.namespace}"}} 5']
        assert await wakes.wait(120)
        assert (await wakes.complete(fleet)).signals.queued(served.namespace, model) == 5

    fleet = await fleet_of(served, prometheus_server.url)
    assert fleet.signals.wake == {Key(served.namespace, "by-query"): 3}
    assert fleet.signals.queued(served.namespace, model) == 5
    async with (
        Prometheus(PrometheusSettings(base_url=prometheus_server.url, timeout=30)) as prometheus,
        Expressions(prometheus) as expressions,
        WakeWatch(control_plane_cluster, prometheus, expressions, interval=QUICK) as wakes,
    ):
        assert await wakes.complete(fleet) is fleet
        assert not await wakes.wait(1), "this tick had it from its own queries"


async def test_the_first_of_several_waits_ends_them_all() -> None:
    ended: list[str] = []

    async def wait(name: str, seconds: float, result: bool) -> bool:
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append(name)
        return result

    assert await first_of(wait("late", 60, True), wait("early", 0.01, False), wait("middle", 0.05, True))
    assert sorted(ended) == ["early", "late", "middle"]
    assert not await first_of(wait("a", 0, False), wait("b", 0, False))
