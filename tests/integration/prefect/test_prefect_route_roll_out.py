"""The flow ``roll_out`` with a ModelRoute, under load through a real router, measured by what a real Prometheus has."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from killed_steps import assert_repeating_changes_nothing, run_and_kill
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    DeploymentFilter,
    DeploymentFilterId,
)
from prefect.client.schemas.objects import State
from prefect.settings import PREFECT_API_URL
from prefect_support import until

from deployments.server import PrefectServer
from deployments.work_pool import create_work_pool
from deployments.worker import PrefectWorker
from flows.reconcile import reconcile
from flows.roll_out import roll_out
from modelyard.cluster import Cluster
from modelyard.hosts import HostsFile, ServiceResolver
from modelyard.local.router import ADDRESS, install
from modelyard.local.stack import LocalStack
from modelyard.objects import Key
from modelyard.objects.kinds import DEPLOYMENTS, PODS
from modelyard.reconcile.plans.plan import StepId
from modelyard.routing.objects import ROUTES, SERVERS
from modelyard.routing.rolling import MEMORY, WISH
from modelyard.routing.route_roll_out import CONDITION

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

HOME = "workload-variant-autoscaler-system"
ENGINES = {"old": (), "bad": ("--failure-rate=0.5",), "slow": ("--gamma=3000",), "good": ()}


async def is_ready(cluster: Cluster, space: str, count: int) -> bool:
    pods = await cluster.list(PODS, space)
    ready = [
        one
        for one in pods
        for condition in (one.get("status") or {}).get("conditions") or ()
        if condition["type"] == "Ready" and condition["status"] == "True"
    ]
    return len(ready) >= count


class Load:
    """Streams for the model without end, one after the other from each of some clients; what became of them."""

    def __init__(self, session: aiohttp.ClientSession, model: str) -> None:
        self.session, self.model = session, model
        self.seen: Counter[int] = Counter()

    async def client(self) -> None:
        body = {"model": self.model, "prompt": "x", "max_tokens": 2, "stream": True, "ignore_eos": True}
        while True:
            with suppress(aiohttp.ClientError, OSError):
                async with self.session.post(f"{ADDRESS}/v1/completions", json=body) as answer:
                    await answer.read()
                    self.seen[answer.status] += 1
            await asyncio.sleep(0.05)


@pytest.fixture
async def space(
    local_stack: LocalStack, local_cluster: Cluster, local_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    """A namespace with a route ``chat`` to four engines, all of whose requests go to ``old``; and load for it."""
    monkeypatch.setenv("KUBECONFIG", str(local_stack.kubeconfig))
    monkeypatch.setenv("PROMETHEUS_BASE_URL", local_stack.prometheus_url)
    await install(local_cluster, 1, ["--leave-seconds", "1"])
    for name, arguments in ENGINES.items():
        labels = {"app": name}
        container = {
            "name": "engine",
            "image": "modelyard.dev/simulated-engine:test",
            "args": ["--model=m", *arguments],
            "ports": [{"containerPort": 8000, "name": "http"}],
            "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1},
        }
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        spec: dict[str, Any] = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        await local_cluster.create(DEPLOYMENTS, {"metadata": {"name": name}, "spec": spec}, local_namespace)
        spec = {"model": "m", "inferenceEngine": "vLLM", "workloadSelector": {"matchLabels": labels}}
        await local_cluster.create(SERVERS, {"metadata": {"name": name}, "spec": spec}, local_namespace)
    targets = [{"modelServerName": name, "weight": 100 if name == "old" else 0} for name in ENGINES]
    spec = {"modelName": local_namespace, "rules": [{"targetModels": targets}]}
    await local_cluster.create(ROUTES, {"metadata": {"name": "chat"}, "spec": spec}, local_namespace)
    async with asyncio.timeout(240):
        while not (await is_ready(local_cluster, local_namespace, 4) and await is_ready(local_cluster, HOME, 1)):
            await asyncio.sleep(0.2)
    connector = aiohttp.TCPConnector(limit=0, resolver=ServiceResolver(HostsFile.found(local_stack.kubeconfig)))
    async with aiohttp.ClientSession(connector=connector) as session:
        load = Load(session, local_namespace)
        clients = [asyncio.create_task(load.client()) for _ in range(6)]
        try:
            async with asyncio.timeout(120):
                while load.seen[200] < 10:
                    await asyncio.sleep(0.1)
            load.seen.clear()
            yield local_namespace
        finally:
            for one in clients:
                one.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
            await local_cluster.delete(DEPLOYMENTS, "modelyard-router", HOME)
    assert set(load.seen) <= {200, 500}, load.seen


async def run(space: str, **parameters: Any) -> State[Any]:
    given = {"kind": "ModelRoute", "name": "chat", "namespace": space, "controller_namespace": HOME}
    state: State[Any] = await roll_out(**given, timeout_seconds=240, **parameters, return_state=True)
    return state


def traffic(to: str, *steps: int, ratio: float = 100) -> dict[str, Any]:
    return {"to": to, "steps": steps, "stepMinutes": 0.1, "requests": 25, "ttftRatio": ratio}


async def weights(cluster: Cluster, space: str) -> dict[str, int]:
    route = await cluster.get(ROUTES, "chat", space)
    return {one["modelServerName"]: one["weight"] for one in route["spec"]["rules"][0]["targetModels"]}


async def artifacts(client: PrefectClient, state: State[Any]) -> dict[str | None, str]:
    run_id = state.state_details.flow_run_id
    assert run_id is not None
    about = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
    return {one.key: str(one.data) for one in await client.read_artifacts(artifact_filter=about)}


async def test_requests_go_to_what_serves_as_well_and_come_back_from_what_does_not(
    local_cluster: Cluster, client: PrefectClient, space: str
) -> None:
    before = {"old": 100, "bad": 0, "slow": 0, "good": 0}
    state = await run(space, traffic=traffic("nowhere", 50))
    assert state.name == "Failed"
    assert "no rule of the ModelRoute has the ModelServer nowhere - add" in (state.message or "")
    state = await run(space, traffic=traffic("good", 25, 100), dry_run=True)
    assert state.name == "Completed"
    assert "25 %: rule 0 old 75, bad 0, slow 0, good 25" in (state.message or "")
    assert await weights(local_cluster, space) == before

    state = await run(space, traffic=traffic("bad", 50, 100))
    assert state.name == "Failed", state.message
    assert f"ModelRoute {space}/chat: the weights of before are back, bad serves worse: 50 %: " in (state.message or "")
    assert "5.0% more are allowed" in (state.message or "")
    assert await weights(local_cluster, space) == before
    assert "requests failed" in (await artifacts(client, state))["roll-out-steps"]

    state = await run(space, traffic=traffic("slow", 50, 100, ratio=4))
    assert state.name == "Failed", state.message
    assert "4 times as much is allowed" in (state.message or "")
    assert await weights(local_cluster, space) == before

    # Killed in each step, the run goes on as the same flow run.
    given = {"kind": "ModelRoute", "namespace": space, "controller_namespace": HOME, "timeout_seconds": 240}
    run_of = await run_and_kill(
        client, "roll-out", ["shift", "roll back"], name="chat", traffic=traffic("bad", 50, 100), **given
    )
    assert run_of.state is not None
    assert run_of.state.is_failed()
    assert "the weights of before are back" in (run_of.state.message or "")
    done, key = [StepId("shift", "50 %"), StepId("roll back")], Key(space, "chat")
    await assert_repeating_changes_nothing(local_cluster, "route-roll-out", run_of, key, HOME, done, ROUTES)

    # Killed with the first step set, it goes on from there.
    wish = traffic("good", 25, 100) | {"stepMinutes": 0.25}
    given = {"kind": "ModelRoute", "name": "chat", "namespace": space, "controller_namespace": HOME, "traffic": wish}
    command = ("-m", "deployments.command", "run", "roll_out", "--parameters", json.dumps(given))
    process = await asyncio.create_subprocess_exec(
        *("env", f"PREFECT_API_URL={PREFECT_API_URL.value()}", sys.executable, *command)
    )
    try:
        async with asyncio.timeout(120):
            while (await weights(local_cluster, space))["good"] != 25:
                await asyncio.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    memory = (await local_cluster.get(ROUTES, "chat", space))["metadata"]["annotations"][MEMORY]
    since = json.loads(memory)["since"]
    going = asyncio.create_task(run(space, traffic=wish))
    while not going.done() and (await weights(local_cluster, space))["good"] == 25:
        memory = (await local_cluster.get(ROUTES, "chat", space))["metadata"]["annotations"][MEMORY]
        assert json.loads(memory)["since"] == since or json.loads(memory)["step"] == 1, "it did not begin anew"
        await asyncio.sleep(0.2)
    state = await going
    assert state.name == "Completed", state.message
    assert await weights(local_cluster, space) == {"old": 0, "bad": 0, "slow": 0, "good": 100}
    told = await artifacts(client, state)
    assert "25 %" in told["roll-out-steps"]
    assert "100 %" in told["roll-out-steps"]
    assert (await run(space, traffic=wish)).name == "Completed", "all is done already"


@pytest.fixture
async def worker(
    prefect_server: PrefectServer, local_stack: LocalStack, tmp_path: Path
) -> AsyncIterator[DeploymentFilter]:
    """A worker, and the deployment of the flow."""
    async with get_client() as client:
        await create_work_pool(client, "routes")
        deployment = await client.create_deployment(
            flow_id=await client.create_flow(roll_out),
            name="roll-out",
            entrypoint="flows.roll_out.roll_out",
            work_pool_name="routes",
        )
    extra = {
        "PREFECT_WORKER_QUERY_SECONDS": "0.5",
        "KUBECONFIG": str(local_stack.kubeconfig),
        "PROMETHEUS_BASE_URL": local_stack.prometheus_url,
    }
    async with PrefectWorker(prefect_server.api_url, tmp_path, pool="routes", extra=extra):
        yield DeploymentFilter(id=DeploymentFilterId(any_=[deployment]))


async def test_reconcile_starts_what_a_routes_annotation_asks_for(
    worker: DeploymentFilter, local_cluster: Cluster, client: PrefectClient, space: str
) -> None:
    asked = {"metadata": {"annotations": {WISH: json.dumps(traffic("good", 50, 100))}}}
    await local_cluster.merge_patch(ROUTES, "chat", asked, space)
    running = reconcile(
        namespaces=[space], interval_seconds=0.5, shift_seconds=300, early_end_seconds=0.1, return_state=True
    )
    shift = asyncio.ensure_future(running)

    async def told() -> str:
        """What is said of it once it has ended."""
        route = await local_cluster.get(ROUTES, "chat", space)
        found = (route.get("status") or {}).get("conditions") or ()
        return next((one["message"] for one in found if (one["type"], one["status"]) == (CONDITION, "True")), "")

    try:
        said = await until(told, "all requests go to the good one", timeout=240)
    finally:
        shift.cancel()
        with suppress(asyncio.CancelledError):
            await shift
    assert said.startswith("100 % of the requests go to good: ")
    assert await weights(local_cluster, space) == {"old": 0, "bad": 0, "slow": 0, "good": 100}
    # Other tests may have used the deployment, on the same server.
    runs = [run for run in await client.read_flow_runs(deployment_filter=worker) if space in run.name]
    assert {run.name for run in runs} == {f"roll out ModelRoute {space}/chat"}
    (first, *_) = sorted(runs, key=lambda one: one.created)
    assert (first.idempotency_key or "").startswith(f"ModelRoute/{space}/chat/")
    given = {name: first.parameters[name] for name in ("kind", "objects", "run", "controller_namespace")}
    assert given == {
        "kind": "ModelRoute",
        "objects": [f"{space}/chat"],
        "run": first.idempotency_key,
        "controller_namespace": HOME,
    }
