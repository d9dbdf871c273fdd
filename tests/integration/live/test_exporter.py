"""The exporter on the real control plane: series follow the resources, vanish with them, and survive every restart."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_faults import kill, own, wait_for_restart
from fleet_fixture import ServedModel, eventually, quick, run_tick
from prometheus_client.parser import text_string_to_metric_families
from prometheus_server import PrometheusServer, free_port

from modelyard.autoscaling.fleet.kinds import VARIANTS
from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.live.exporter import serve
from modelyard.cluster import Cluster, Lease
from modelyard.cluster.transport import ApiRequest
from modelyard.local.settings import Component
from modelyard.local.stack import LocalStack
from modelyard.metrics.prometheus.client import Prometheus, PrometheusSettings
from modelyard.objects import Key
from modelyard.objects.kinds import CRDS, DEPLOYMENTS, NAMESPACES, SERVICE_ACCOUNTS, ResourceType

pytestmark = pytest.mark.integration

DESIRED = "wva_desired_replicas"
CURRENT = "wva_current_replicas"
RATIO = "wva_desired_ratio"
COUNTER = "wva_replica_scaling_total"
INSTANCE = "wva.llmd.ai/controller-instance"
ACCELERATOR = "inference.optimization/acceleratorName"


@dataclass
class Exporter:
    """What an exporter says about one namespace."""

    port: int
    namespace: str

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    async def series(self, metric: str) -> list[tuple[dict[str, str], float]]:
        """(labels without the namespace, value), in a fixed order."""
        code, text = await asyncio.to_thread(self.get, "/metrics")
        assert code == 200, text
        found = [
            ({k: v for k, v in sample.labels.items() if k != "namespace"}, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == metric and sample.labels["namespace"] == self.namespace
        ]
        return sorted(found, key=repr)

    async def values(self, metric: str = DESIRED) -> dict[str, float]:
        """Value by variant; each has one series at most."""
        found = await self.series(metric)
        values = {labels["variant_name"]: value for labels, value in found}
        assert len(values) == len(found), found
        return values

    async def becomes(self, expected: dict[str, float], metric: str = DESIRED, seconds: float = 120) -> None:
        async def same() -> bool:
            return await self.values(metric) == expected

        try:
            await eventually(same, f"{metric} is {expected}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; last seen {await self.values(metric)}") from error

    async def answers(self, seconds: float = 120) -> None:
        async def ready() -> bool:
            try:
                return (await asyncio.to_thread(self.get, "/readyz"))[0] == 200
            except OSError:
                return False

        await eventually(ready, "the exporter is ready", seconds)


@contextlib.asynccontextmanager
async def exporting(cluster: Cluster, namespace: str, **options: Any) -> AsyncIterator[Exporter]:
    exporter = Exporter(free_port(), namespace)
    task = asyncio.create_task(serve(cluster, "127.0.0.1", exporter.port, **options))
    try:
        await exporter.answers()
        yield exporter
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled(), task.exception()


def process(*arguments: str, **environment: str) -> asyncio.Future[asyncio.subprocess.Process]:
    return asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "modelyard.cli.main",
            "exporter",
            *arguments,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **environment},
        )
    )


async def decided(
    cluster: Cluster, namespace: str, name: str, replicas: int, accelerator: str = "H100", variant: bool = True
) -> None:
    """A VariantAutoscaling with a decision on record, without a loop."""
    if variant:
        await cluster.create(
            VARIANTS,
            {
                "metadata": {"name": name, "namespace": namespace},
                "spec": {
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                    "modelID": "llama",
                },
            },
        )
    allocation = {"lastRunTime": "2026-01-01T00:00:00Z", "accelerator": accelerator, "numReplicas": replicas}
    status = {"status": {"desiredOptimizedAlloc": allocation}}
    await cluster.merge_patch(VARIANTS, name, status, namespace, subresource="status")


async def test_the_series_follow_a_variant_from_birth_to_deletion(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.76)
    await served.reported()
    async with (
        exporting(control_plane_cluster, served.namespace) as exporter,
        Controller(quick(prometheus_server.url, served.namespace)) as loop,
    ):
        assert await exporter.values() == {}, "never decided is not decided zero"
        await run_tick(loop)
        await exporter.becomes({"llama": 3})
        labels = {"variant_name": "llama", "accelerator_type": "H100"}
        assert await exporter.series(DESIRED) == [(labels, 3)]
        await served.settle("llama", 3)
        await exporter.becomes({"llama": 3}, CURRENT)
        assert await exporter.series(RATIO) == [(labels, 1)]
        ((counted, times),) = await exporter.series(COUNTER)
        assert (counted["variant_name"], counted["direction"], times) == ("llama", "up", 1)
        await control_plane_cluster.delete(VARIANTS, "llama", served.namespace)
        for metric in (DESIRED, CURRENT, RATIO, COUNTER):
            await exporter.becomes({}, metric)


async def test_decided_zero_is_a_value(control_plane_cluster: Cluster, namespace: str) -> None:
    async with exporting(control_plane_cluster, namespace) as exporter:
        await decided(control_plane_cluster, namespace, "idle", 0)
        await exporter.becomes({"idle": 0})
        assert await exporter.values(CURRENT) == {}, "there is no such workload: unknown, not zero"
        assert await exporter.values(RATIO) == {}


async def test_an_excluded_namespace_has_no_series(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.5)
    await served.reported()

    async def exclude(value: str | None) -> None:
        body = {"metadata": {"annotations": {"wva.llmd.ai/exclude": value}}}
        await control_plane_cluster.merge_patch(NAMESPACES, served.namespace, body)

    async with (
        exporting(control_plane_cluster, served.namespace) as exporter,
        exporting(control_plane_cluster, served.namespace, watch_namespace=served.namespace) as alone,
        Controller(quick(prometheus_server.url, served.namespace)) as loop,
    ):
        await run_tick(loop)
        await exporter.becomes({"llama": 2})
        await exclude("true")
        await exporter.becomes({})
        await alone.becomes({"llama": 2})  # a namespace that is watched on purpose cannot be excluded
        async with exporting(control_plane_cluster, served.namespace) as fresh:
            assert await fresh.values() == {}, "not even in its first answer"
        await exclude(None)
        await exporter.becomes({"llama": 2})


async def test_without_its_workload_a_variant_has_no_series(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.5)
    await served.reported()
    async with (
        exporting(control_plane_cluster, served.namespace) as exporter,
        Controller(quick(prometheus_server.url, served.namespace)) as loop,
    ):
        await run_tick(loop)
        await exporter.becomes({"llama": 2})
        await control_plane_cluster.delete(DEPLOYMENTS, "llama", served.namespace)
        await exporter.becomes({}, CURRENT)
        await run_tick(loop)
        await exporter.becomes({})

        async def gone() -> bool:
            return not await served.pods("llama")

        await eventually(gone, "pods collected")
        await served.deploy("llama", 1)
        served.load("llama", kv=0.5)
        await served.reported()
        await run_tick(loop)
        await exporter.becomes({"llama": 1})
        await exporter.becomes({"llama": 1}, CURRENT)


async def test_another_accelerator_renames_the_one_series(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama", accelerator="H100")
    served.load("llama", kv=0.5)
    await served.reported()
    async with (
        exporting(control_plane_cluster, served.namespace) as exporter,
        Controller(quick(prometheus_server.url, served.namespace)) as loop,
    ):
        await run_tick(loop)
        await exporter.becomes({"llama": 2})
        body = {"metadata": {"labels": {ACCELERATOR: "A100"}}}
        await control_plane_cluster.merge_patch(VARIANTS, "llama", body, served.namespace)
        await run_tick(loop)

        async def renamed() -> bool:
            found = await exporter.series(DESIRED)
            assert len(found) == 1, found
            return found[0][0]["accelerator_type"] == "A100"

        await eventually(renamed, "the series names the new accelerator")


async def test_of_two_variants_on_one_workload_the_elder_has_series(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await served.deploy("llama", 2)
    await served.vary("first", target="llama")
    await asyncio.sleep(1.1)
    await served.vary("second", target="llama")
    served.load("llama", kv=0.5)
    await served.reported()
    async with (
        exporting(control_plane_cluster, served.namespace) as exporter,
        Controller(quick(prometheus_server.url, served.namespace)) as loop,
    ):
        await run_tick(loop)
        await exporter.becomes({"first": 2})
        second = await served.variant("second")
        assert second["status"]["conditions"], "the tick was seen, and yet no series"
        await control_plane_cluster.delete(VARIANTS, "first", served.namespace)
        await run_tick(loop)
        await exporter.becomes({"second": 2})


async def test_each_installation_shows_its_own_variants(control_plane_cluster: Cluster, namespace: str) -> None:
    await decided(control_plane_cluster, namespace, "plain", 1)
    await decided(control_plane_cluster, namespace, "blue", 2)
    await decided(control_plane_cluster, namespace, "green", 3)
    for name in ("blue", "green"):
        body = {"metadata": {"labels": {INSTANCE: name}}}
        await control_plane_cluster.merge_patch(VARIANTS, name, body, namespace)
    async with (
        exporting(control_plane_cluster, namespace) as unnamed,
        exporting(control_plane_cluster, namespace, instance="blue") as blue,
    ):
        assert await unnamed.series(DESIRED) == [({"variant_name": "plain", "accelerator_type": "H100"}, 1)]
        labels = {"variant_name": "blue", "accelerator_type": "H100", "controller_instance": "blue"}
        assert await blue.series(DESIRED) == [(labels, 2)]
        body = {"metadata": {"labels": {INSTANCE: None}}}
        await control_plane_cluster.merge_patch(VARIANTS, "blue", body, namespace)
        await unnamed.becomes({"plain": 1, "blue": 2})
        await blue.becomes({})


async def test_a_deleted_and_recreated_variant_starts_without_series(
    control_plane_cluster: Cluster, namespace: str
) -> None:
    await decided(control_plane_cluster, namespace, "llama", 4)
    async with exporting(control_plane_cluster, namespace) as exporter:
        assert await exporter.values() == {"llama": 4}
        stored = await control_plane_cluster.get(VARIANTS, "llama", namespace)
        await control_plane_cluster.delete(VARIANTS, "llama", namespace)
        await control_plane_cluster.create(
            VARIANTS, {"metadata": {"name": "llama", "namespace": namespace}, "spec": stored["spec"]}
        )
        await exporter.becomes({})
        await decided(control_plane_cluster, namespace, "llama", 1, variant=False)
        await exporter.becomes({"llama": 1})


# Kinds that come later


def engine_crd(group: str) -> dict[str, Any]:
    """A workload kind that keeps its observed replicas in a place of its own."""
    number = {"type": "object", "properties": {name: {"type": "integer"} for name in ("replicas", "count")}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"engines.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "engines", "singular": "engine", "kind": "Engine", "listKind": "EngineList"},
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.count"},
                    },
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": number, "status": number}}},
                }
            ],
        },
    }


async def test_a_kind_that_is_served_later_gets_its_current_count_then(
    control_plane_cluster: Cluster, namespace: str
) -> None:
    group = f"{namespace}.example.com"
    engines = ResourceType(group, "v1alpha1", "Engine", "engines", True)
    reference = {"apiVersion": f"{group}/v1alpha1", "kind": "Engine", "name": "llama"}
    variant = {
        "metadata": {"name": "llama", "namespace": namespace},
        "spec": {"scaleTargetRef": reference, "modelID": "llama"},
    }
    await control_plane_cluster.create(VARIANTS, variant)
    await decided(control_plane_cluster, namespace, "llama", 5, variant=False)
    await decided(control_plane_cluster, namespace, "other", 1)
    async with exporting(control_plane_cluster, namespace, retry_after=0.2) as exporter:
        assert await exporter.values() == {"llama": 5, "other": 1}
        assert await exporter.values(CURRENT) == {}
        await control_plane_cluster.create(CRDS, engine_crd(group))
        try:

            async def created() -> bool:
                with contextlib.suppress(Exception):
                    await control_plane_cluster.create(
                        engines, {"metadata": {"name": "llama", "namespace": namespace}, "spec": {"replicas": 2}}
                    )
                    return True
                return False

            await eventually(created, "the kind is served")
            body = {"status": {"count": 2, "replicas": 77}}
            await control_plane_cluster.merge_patch(engines, "llama", body, namespace, subresource="status")
            await exporter.becomes({"llama": 2}, CURRENT)
            assert await exporter.values(RATIO) == {"llama": 2.5}
            body = {"status": {"count": 5}}
            await control_plane_cluster.merge_patch(engines, "llama", body, namespace, subresource="status")
            await exporter.becomes({"llama": 5}, CURRENT)
        finally:
            await control_plane_cluster.delete(CRDS, f"engines.{group}")
        await exporter.becomes({}, CURRENT)
        assert await exporter.values() == {"llama": 5, "other": 1}, "what is desired does not depend on it"


# As a process


async def test_a_killed_exporter_comes_back_with_the_same_values(
    served: ServedModel, prometheus_server: PrometheusServer
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.76)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
    await served.settle("llama", 3)
    exporter = Exporter(free_port(), served.namespace)
    told = []
    for ending in (signal.SIGKILL, signal.SIGTERM):
        running = await process("--port", str(exporter.port))
        try:
            await exporter.answers()
            told.append({metric: await exporter.series(metric) for metric in (DESIRED, CURRENT, RATIO, COUNTER)})
        finally:
            running.send_signal(ending)
            _, log = await running.communicate()
    assert told[0] == told[1]
    assert [value for _, value in told[0][COUNTER]] == [1]
    assert running.returncode == 0, log.decode()
    assert "Traceback" not in log.decode()


async def test_a_taken_port_is_one_line_with_the_remedy(control_plane_cluster: Cluster, served: ServedModel) -> None:
    async with exporting(control_plane_cluster, served.namespace) as exporter:
        second = await process("--port", str(exporter.port))
        _, log = await asyncio.wait_for(second.communicate(), 120)
    assert second.returncode == 1
    (line,) = log.decode().splitlines()
    assert line.startswith(f"error: cannot listen on 127.0.0.1:{exporter.port}")
    assert "--port" in line


async def test_an_account_that_may_not_look_is_told_so(
    control_plane: LocalStack, control_plane_cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    await control_plane_cluster.create(SERVICE_ACCOUNTS, {"metadata": {"name": "nobody", "namespace": namespace}})
    body: dict[str, Any] = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = SERVICE_ACCOUNTS.path(namespace, "nobody", "token")
    answer = await control_plane_cluster.transport.json(
        ApiRequest("POST", path, "request token of", "nobody", body=body)
    )
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    refused = await process("--port", "0", KUBECONFIG=str(tmp_path / "kubeconfig"))
    _, log = await asyncio.wait_for(refused.communicate(), 120)
    assert refused.returncode == 1
    last = log.decode().splitlines()[-1]
    assert last.startswith("error: ")
    assert "variantautoscalings" in last
    assert "kubectl auth can-i" in last
    assert "Traceback" not in log.decode()


async def test_nothing_is_served_before_the_resources_are_known(control_plane: LocalStack, tmp_path: Path) -> None:
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_port()}"
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    exporter = Exporter(free_port(), "anywhere")
    running = await process("--port", str(exporter.port), KUBECONFIG=str(tmp_path / "kubeconfig"))
    try:

        async def alive() -> bool:
            try:
                return (await asyncio.to_thread(exporter.get, "/healthz"))[0] == 200
            except OSError:
                return False

        await eventually(alive, "the process listens")
        for path in ("/metrics", "/readyz"):
            assert (await asyncio.to_thread(exporter.get, path))[0] == 503
    finally:
        running.send_signal(signal.SIGINT)
        _, log = await running.communicate()
    assert running.returncode == 0, log.decode()


async def test_an_api_server_that_dies_costs_no_series_and_comes_back(
    control_plane: LocalStack, control_plane_cluster: Cluster, namespace: str
) -> None:
    cluster = control_plane_cluster
    await decided(cluster, namespace, "llama", 4)
    await decided(cluster, namespace, "doomed", 1)
    async with exporting(cluster, namespace, retry_after=0.2) as exporter:
        assert await exporter.values() == {"llama": 4, "doomed": 1}
        before = own(control_plane, Component.APISERVER).restarts
        await asyncio.to_thread(kill, control_plane, Component.APISERVER)
        try:
            assert (await exporter.values())["llama"] == 4, "a consumer sees no gap"
        finally:
            await asyncio.to_thread(wait_for_restart, control_plane, Component.APISERVER, before)
        await eventually(lambda: _written(cluster, namespace, 5), "the server takes writes", 120)
        await exporter.becomes({"llama": 5, "doomed": 1}, seconds=60)
        await cluster.delete(VARIANTS, "doomed", namespace)
        await exporter.becomes({"llama": 5})


async def _written(cluster: Cluster, namespace: str, replicas: int) -> bool:
    try:
        await decided(cluster, namespace, "llama", replicas, variant=False)
    except Exception:
        return False
    return True


async def test_a_real_prometheus_scrapes_it(control_plane_cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    await decided(control_plane_cluster, namespace, "llama", 4, accelerator='odd "one"')
    await decided(control_plane_cluster, namespace, "idle", 0)
    async with exporting(control_plane_cluster, namespace) as exporter:
        server = PrometheusServer(tmp_path, free_port(), f"127.0.0.1:{exporter.port}")
        await asyncio.to_thread(server.start)
        try:
            async with Prometheus(PrometheusSettings(base_url=server.url, timeout=30)) as prometheus:

                async def scraped() -> dict[tuple[str, str], float | None]:
                    found = await prometheus.query(f'{DESIRED}{{namespace="{namespace}"}}', "a test")
                    return {(s.labels["variant_name"], s.labels["accelerator_type"]): s.value for s in found}

                assert await eventually(scraped, "scraped") == {("llama", 'odd "one"'): 4, ("idle", "H100"): 0}

                async def up() -> bool:
                    return [one.value for one in await prometheus.query("up", "a test")] == [1]

                await eventually(up, "it is scraped in time")
                await control_plane_cluster.delete(VARIANTS, "idle", namespace)

                async def vanished() -> bool:
                    return {name for name, _ in await scraped()} == {"llama"}

                await eventually(vanished, "Prometheus drops the series of what is deleted")
        finally:
            server.kill()


async def test_monitoring_gauges_follow_conditions_and_leases(control_plane_cluster: Cluster, namespace: str) -> None:
    cluster = control_plane_cluster
    await decided(cluster, namespace, "llama", 4)
    name, held = "modelyard-autoscale", "modelyard_lease_held"
    async with exporting(cluster, namespace, leases=[Key(namespace, name), Key(namespace, "other")]) as exporter:

        async def shows(metric: str, expected: list[tuple[dict[str, str], float]]) -> None:
            async def same() -> bool:
                return await exporter.series(metric) == expected

            await eventually(same, f"{metric} is {expected}")

        def leases(value: float) -> list[tuple[dict[str, str], float]]:
            return [({"lease_name": name}, value), ({"lease_name": "other"}, 0.0)]

        await shows(held, leases(0))
        lease = Lease(cluster, name, namespace, "a test")
        assert await lease.acquire(120)
        await shows(held, leases(1))
        ((_, renewed),) = await exporter.series("modelyard_lease_renewed_timestamp_seconds")
        assert abs(renewed - time.time()) < 60
        await lease.release()
        await shows(held, leases(0))

        state = {"type": "CapacityLimited", "lastTransitionTime": "2026-01-01T00:00:00Z", "message": "why"}
        named = {"kind": "VariantAutoscaling", "name": "llama", "type": "CapacityLimited"}
        for status, reason in (("True", "AcceleratorsExhausted"), ("False", "CapacitySufficient")):
            body = {"status": {"conditions": [{**state, "status": status, "reason": reason}]}}
            await cluster.merge_patch(VARIANTS, "llama", body, namespace, subresource="status")
            await shows("modelyard_condition", [({**named, "status": status, "reason": reason}, 1.0)])
        ((_, at),) = await exporter.series("modelyard_variant_decided_timestamp_seconds")
        assert at == 1_767_225_600
        await cluster.delete(VARIANTS, "llama", namespace)
        await shows("modelyard_condition", [])
        await shows("modelyard_variant_cost", [])
