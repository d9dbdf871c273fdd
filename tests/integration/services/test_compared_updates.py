"""Updates of a service under load, compared by what a real Prometheus has of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import pytest
from conftest import Services, conditions, is_ready
from plan_details import remember_details

from modelyard.metrics.prometheus.client import Prometheus, PrometheusSettings
from modelyard.metrics.prometheus.served import read_served
from modelyard.objects.kinds import SERVICES
from modelyard.workloads.roll_out.gates import GATE, GateReading
from modelyard.workloads.roll_out.lifecycle import ServiceRollOut
from tasks.observe import read_gate

pytestmark = pytest.mark.integration


async def load(services: Services, name: str) -> None:
    """Requests without end."""
    service = await services.cluster.get(SERVICES, name, services.space)
    url, body = f"http://{service['spec']['clusterIP']}:8080/v1", {"prompt": "x", "max_tokens": 2, "ignore_eos": True}
    async with aiohttp.ClientSession() as http:
        while True:
            with suppress(aiohttp.ClientError, OSError):
                if "model" not in body:
                    async with http.get(f"{url}/models", raise_for_status=True) as answer:
                        body["model"] = (await answer.json())["data"][0]["id"]
                async with http.post(f"{url}/completions", json=body) as answer:
                    await answer.read()
            await asyncio.sleep(0.1)


async def counted(services: Services, requests: int) -> None:
    """Wait until Prometheus has seen so many requests in the time that is compared."""
    async with Prometheus(PrometheusSettings(base_url=services.stack.prometheus_url, timeout=30)) as prometheus:

        async def seen() -> bool:
            found = await read_served(prometheus, services.space, 20, time.time())
            return sum(one.requests for one in found.values()) > requests

        await services.settled(seen)


@pytest.fixture
async def measured(services: Services, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Services]:
    """With somebody who measures, as a run does."""
    monkeypatch.setenv("PROMETHEUS_BASE_URL", services.stack.prometheus_url)
    found = (one.lifecycle for one in services.shift.registered if isinstance(one.lifecycle, ServiceRollOut))
    lifecycle = next(found)
    readings, details = dict[object, GateReading](), remember_details(lifecycle)
    lifecycle.prometheus, lifecycle.readings = services.stack.prometheus_url, readings  # type: ignore[assignment]

    async def follow() -> None:
        while True:
            for key, watch in [(key, here.watch) for key, here in details.items() if here is not None]:
                if watch is not None:
                    readings[key] = await read_gate(watch, services.cluster.now())
            await asyncio.sleep(0.5)

    task = asyncio.create_task(follow())
    yield services
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_an_update_under_load_is_taken_where_it_serves_as_well_and_goes_back_where_not(
    measured: Services,
) -> None:
    services = measured
    gate = "{windowSeconds: 20, requests: 5, ttftRatio: 50}"
    await services.make("chat", annotations={GATE: gate, "ome.io/enable-prometheus-scraping": "true"})
    await services.until(is_ready, "chat")
    requests = asyncio.create_task(load(services, "chat"))
    try:
        await counted(services, 20)
        runner = {"name": "ome-container", "env": [{"name": "SEED", "value": "7"}]}
        await services.patch("chat", {"spec": {"engine": {"runner": runner}}})
        said = await services.until_reason("chat", "LatestDeploymentReady", "Comparing")
        assert "compared with what served before until" in said
        obj = await services.until(is_ready, "chat")
        said = conditions(obj)["LatestDeploymentReady"][2]
        assert "0.0% of" in said, said
        assert "TTFT" in said, said
        arguments = ["--model=$(MODEL_PATH)", "--served-model-name=chat", "--port=8080", "--failure-rate=0.5"]
        await services.patch("chat", {"spec": {"engine": {"runner": {"args": arguments}}}})
        said = await services.until_reason("chat", "LatestDeploymentReady", "RolledBack")
        assert said.startswith("generation 3 served worse ("), said
    finally:
        requests.cancel()
