"""Faults injected for real: outages, half the data, kills at every line, rivals. No wrong scaling, no loss."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import signal
import threading
from collections.abc import Iterator
from typing import Any

import forked
import pytest
from cluster_faults import kill, own, wait_for_restart
from fleet_fixture import ServedModel, eventually, quick, run_tick
from one_tick import tick_and_die
from prometheus_server import PrometheusServer

from modelyard.autoscaling.fleet.kinds import VARIANTS
from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.live.settings import ControllerSettings
from modelyard.cluster import Cluster, ClusterError, ClusterSettings
from modelyard.local.settings import Component
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import DEPLOYMENTS
from modelyard.reconcile.kernel.fence import NotTheWriter

pytestmark = pytest.mark.integration


async def one_tick(settings: ControllerSettings, point: str) -> int | None:
    """A tick in a process of its own that kills itself at ``point``; its exit status."""
    process = forked.start(tick_and_die, settings, point)
    await asyncio.to_thread(process.join)
    return process.exitcode


@contextlib.contextmanager
def answering(reply: str | None, delay: float = 0.0) -> Iterator[str]:
    """An HTTP server that answers every query with ``reply`` after ``delay`` seconds; ``None``: never."""
    stop = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            stop.wait(30 if reply is None else delay)
            if reply is not None:
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(reply.encode())

        def log_message(self, *_: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        stop.set()
        server.shutdown()
        server.server_close()


EMPTY = '{"status":"success","data":{"resultType":"vector","result":[]}}'


async def test_prometheus_down_keeps_everything_and_heals(
    served: ServedModel, prometheus_server: PrometheusServer
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.5)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        await run_tick(loop)
        prometheus_server.kill()
        try:
            await run_tick(loop)
            condition = await served.condition("llama", "MetricsAvailable")
            assert (condition["status"], condition["reason"]) == ("False", "PrometheusError")
            assert await served.replicas("llama") == 2
            assert (await served.variant("llama"))["status"]["desiredOptimizedAlloc"]["numReplicas"] == 2
        finally:
            prometheus_server.start()
        served.load("llama", kv=0.76)
        await served.reported()
        await run_tick(loop)
        assert await served.replicas("llama") == 3
        assert (await served.condition("llama", "MetricsAvailable"))["status"] == "True"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (None, "PrometheusError"),
        ("not json", "PrometheusError"),
        (EMPTY, "MetricsUnavailable"),
    ],
    ids=["never answers", "talks nonsense", "knows nothing"],
)
async def test_a_useless_prometheus_scales_nothing(served: ServedModel, reply: str | None, reason: str) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    with answering(reply) as url:
        settings = quick(url, served.namespace)
        if reply is None:
            settings = settings.model_copy(update={"prometheus_timeout": 3})
        async with Controller(settings) as loop:
            await run_tick(loop)
    condition = await served.condition("llama", "MetricsAvailable")
    assert (condition["status"], condition["reason"]) == ("False", reason)
    assert await served.replicas("llama") == 2


async def test_no_prometheus_address_is_a_condition_not_a_crash(
    served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROMETHEUS_BASE_URL", raising=False)
    await served.deploy("llama", 2)
    await served.vary("llama")
    settings = quick("http://unused", served.namespace).model_copy(update={"prometheus_url": None})
    async with Controller(settings) as loop:
        await run_tick(loop)
    condition = await served.condition("llama", "MetricsAvailable")
    assert condition["reason"] == "PrometheusError"
    assert "PROMETHEUS_BASE_URL" in condition["message"]


async def test_nan_is_missing_not_idle(served: ServedModel, prometheus_server: PrometheusServer) -> None:
    await served.deploy("llama", 3)
    await served.vary("llama")
    served.load("llama", kv=0.0, waiting=0)
    await served.reported()
    served.load("llama", kv=float("nan"), waiting=float("nan"))
    await served.reported()
    # The window still holds the idle samples from before.
    async with Controller(quick(prometheus_server.url, served.namespace, peak_window=60)) as loop:
        await run_tick(loop)
    assert await served.replicas("llama") == 3


async def test_half_the_pods_reporting_never_shrinks_a_model(
    served: ServedModel, prometheus_server: PrometheusServer
) -> None:
    await served.deploy("llama", 4)
    await served.vary("llama")
    served.load("llama", kv=0.05, waiting=0)
    silent = sorted(key for key in served.source.pods if key[0] == served.namespace)[:2]
    for key in silent:
        del served.source.pods[key]
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        for _ in range(3):
            await run_tick(loop)
            await asyncio.sleep(0.3)
    assert await served.replicas("llama") == 4


async def test_half_the_pods_reporting_overload_still_grows_in_the_end(
    served: ServedModel, prometheus_server: PrometheusServer
) -> None:
    await served.deploy("llama", 4)
    await served.vary("llama")
    served.load("llama", kv=0.9, waiting=8)
    for key in sorted(key for key in served.source.pods if key[0] == served.namespace)[:2]:
        del served.source.pods[key]
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:

        async def bigger() -> bool:
            await run_tick(loop)
            return await served.replicas("llama") > 4

        await eventually(bigger, "grows on the bounds it has")


@pytest.mark.parametrize("point", ["decided", "memory", "status", "scale"])
async def test_killed_at_any_line_the_next_run_finishes_the_move_once(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane: LocalStack, point: str
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.76)
    await served.reported()
    settings = quick(prometheus_server.url, served.namespace)

    assert await one_tick(settings, point) == -signal.SIGKILL
    assert await served.replicas("llama") == (3 if point == "scale" else 2)
    for _ in range(2):
        assert await one_tick(settings, "never") == 0
    assert await served.replicas("llama") == 3
    status = (await served.variant("llama"))["status"]
    assert status["desiredOptimizedAlloc"]["numReplicas"] == 3


@pytest.mark.parametrize("point", ["memory", "status"])
async def test_killed_while_adopting_a_new_workload_the_old_desired_count_is_not_carried_out(
    served: ServedModel,
    prometheus_server: PrometheusServer,
    control_plane: LocalStack,
    control_plane_cluster: Cluster,
    point: str,
) -> None:
    await served.deploy("llama", 1)
    await served.vary("llama")
    served.load("llama", kv=0.62)
    await served.reported()
    settings = quick(prometheus_server.url, served.namespace)
    async with Controller(settings) as loop:
        await run_tick(loop)
    await control_plane_cluster.delete(DEPLOYMENTS, "llama", served.namespace)

    async def gone() -> bool:
        return not await served.pods("llama")

    await eventually(gone, "the old pods are collected")
    await served.deploy("llama", 4)
    served.load("llama", kv=0.62)
    await served.reported()

    assert await one_tick(settings, point) == -signal.SIGKILL
    assert await one_tick(settings, "never") == 0
    assert await served.replicas("llama") == 4


async def test_a_conflict_on_every_status_write_delays_nothing(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane: LocalStack
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.76)
    await served.reported()
    stop = asyncio.Event()

    async def rewrite(cluster: Cluster) -> None:
        count = 0
        while not stop.is_set():
            count += 1
            body = {"metadata": {"annotations": {"example.com/rewritten": str(count)}}}
            with contextlib.suppress(ClusterError):
                await cluster.merge_patch(VARIANTS, "llama", body, served.namespace)

    async with Cluster.connect(ClusterSettings(kubeconfig=control_plane.kubeconfig)) as rival:
        writers = [asyncio.create_task(rewrite(rival)) for _ in range(4)]
        try:
            async with Controller(quick(prometheus_server.url, served.namespace)) as loop:

                async def grown() -> bool:
                    await run_tick(loop)
                    return await served.replicas("llama") == 3

                await eventually(grown, "the decision is carried out all the same")
        finally:
            stop.set()
            await asyncio.gather(*writers)
    status = (await served.variant("llama"))["status"]
    assert status["desiredOptimizedAlloc"]["numReplicas"] == 3
    assert (await served.variant("llama"))["metadata"]["annotations"]["example.com/rewritten"]


async def test_a_workload_changed_by_somebody_else_meanwhile_is_not_overwritten(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.76)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        fleet = await loop.collect()
        decision = loop.decide(fleet)
        await control_plane_cluster.write_scale(DEPLOYMENTS, "llama", served.namespace, 6)
        done = await loop.actuate(fleet, decision)
        assert await served.replicas("llama") == 6
        assert any("meanwhile" in why for why in done.outcome.skipped.values())


async def test_a_variant_edited_between_decide_and_actuate_is_decided_anew(
    served: ServedModel, prometheus_server: PrometheusServer, control_plane_cluster: Cluster
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.76)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        fleet = await loop.collect()
        decision = loop.decide(fleet)
        await control_plane_cluster.merge_patch(VARIANTS, "llama", {"spec": {"variantCost": "3"}}, served.namespace)
        done = await loop.actuate(fleet, decision)
        assert await served.replicas("llama") == 2
        assert any("edited" in why for why in done.outcome.skipped.values())


async def test_the_lease_lost_in_mid_tick_stops_every_write(
    served: ServedModel, prometheus_server: PrometheusServer
) -> None:
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.76)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        lease = loop.lease("autoscale", served.namespace)
        assert await lease.acquire(timeout=120)
        fleet = await loop.collect()
        decision = loop.decide(fleet)
        await lease.release()
        with pytest.raises(NotTheWriter):
            await loop.actuate(fleet, decision)
    assert await served.replicas("llama") == 2
    assert "status" not in await served.variant("llama")


async def test_of_two_loops_at_once_one_writes(served: ServedModel, prometheus_server: PrometheusServer) -> None:
    settings = quick(prometheus_server.url, served.namespace)
    async with Controller(settings) as one, Controller(settings) as other:
        first, second = one.lease("autoscale", served.namespace), other.lease("autoscale", served.namespace)
        assert await first.acquire(timeout=120)
        assert not await second.acquire(timeout=1)
        assert first.held
        assert not second.held
        await first.release()
        assert await second.acquire(timeout=120)
        assert second.held
        await second.release()


async def test_the_api_server_restarted_in_mid_tick(
    served: ServedModel, control_plane: LocalStack, prometheus_server: PrometheusServer
) -> None:
    """Killed between decide and actuate: that tick fails or finishes late, the next one completes the move."""
    await served.deploy("llama", 2)
    await served.vary("llama")
    served.load("llama", kv=0.76)
    await served.reported()
    async with Controller(quick(prometheus_server.url, served.namespace)) as loop:
        fleet = await loop.collect()
        decision = loop.decide(fleet)
        before = own(control_plane, Component.APISERVER).restarts
        kill(control_plane, Component.APISERVER)
        try:
            with contextlib.suppress(ClusterError):
                await loop.actuate(fleet, decision)

            async def finished() -> bool:
                try:
                    await run_tick(loop)
                    return await served.replicas("llama") == 3
                except (ClusterError, ExceptionGroup):
                    return False

            await eventually(finished, "the next tick completes the move", seconds=120)
            status = (await served.variant("llama"))["status"]
            assert status["desiredOptimizedAlloc"]["numReplicas"] == 3
        finally:
            await asyncio.to_thread(wait_for_restart, control_plane, Component.APISERVER, before)


async def test_settings_survive_the_trip_to_another_process() -> None:
    settings = quick("http://127.0.0.1:1", "somewhere", scale_down_delay=5)
    assert ControllerSettings.model_validate_json(settings.model_dump_json()) == settings
