"""The reconcile shift on a real Prefect server and a real API server: it tells, and runs of deployments act."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from copies import copies
from copying import DONE, Copies
from prefect import flow
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Crashed
from prefect_support import until

from deployments import queues
from deployments.pool_issues import UNRESPONSIVE
from deployments.server import PrefectServer
from deployments.work_pool import create_work_pool
from deployments.worker import PrefectWorker
from flows.parameters import ReconcileParameters
from flows.reconcile import Reconciling, reconcile
from flows.shift import run_shift
from modelyard.cluster import Cluster
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.reconcile.kernel.reconciler import Registered
from modelyard.reconcile.plans.claims import Claim
from modelyard.reconcile.plans.dispatch import Acting
from modelyard.reconcile.plans.plan import CLAIM
from modelyard.reconcile.plans.run_limits import RUNS
from modelyard.routing.objects import SERVERS
from tasks.reconcile import RunsUnknown

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

POOL = "copies"
SUPPORT = Path(__file__).parents[2] / "support"


@pytest.fixture(scope="module")
def record_of_copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("copies") / "record.jsonl"


@pytest.fixture(scope="module")
async def deployment() -> UUID:
    """The deployment whose runs act."""
    async with get_client() as client:
        await create_work_pool(client, POOL)
        return await client.create_deployment(
            flow_id=await client.create_flow(copies),
            name="copies",
            entrypoint="copies.copies",
            work_pool_name=POOL,
        )


@pytest.fixture(scope="module")
async def copying(
    prefect_server: PrefectServer,
    deployment: UUID,
    control_plane: LocalStack,
    record_of_copies: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[PrefectWorker]:
    """A worker that starts those runs."""
    home = tmp_path_factory.mktemp("copying")
    extra = {
        "PREFECT_WORKER_QUERY_SECONDS": "0.5",
        "KUBECONFIG": str(control_plane.kubeconfig),
        "COPIES_RECORD": str(record_of_copies),
        "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(SUPPORT)]),
    }
    async with PrefectWorker(prefect_server.api_url, home, pool=POOL, extra=extra) as worker:
        yield worker


class Parents:
    """Parents of copies in a namespace of the test's own, the writes and the runs for them."""

    def __init__(self, cluster: Cluster, namespace: str, client: PrefectClient, deployment: UUID, record: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.client = client
        self.deployment = deployment
        self.record = record

    async def ask(self, name: str, number: int, trouble: str = "") -> None:
        annotations = {"copies": str(number), **({"trouble": trouble} if trouble else {})}
        metadata = {"name": name, "labels": {"copies": "parent"}, "annotations": annotations}
        await self.cluster.create(CONFIG_MAPS, {"metadata": metadata}, self.namespace)

    async def copied(self, name: str, number: int) -> bool:
        """Whether the parent says that it is done."""
        parent = await self.cluster.get(CONFIG_MAPS, name, self.namespace)
        return (parent["metadata"]["annotations"] or {}).get(DONE) == str(number)

    async def children(self) -> dict[str, dict[str, str]]:
        listed = await self.cluster.list(CONFIG_MAPS, self.namespace, "copies=child")
        return {one["metadata"]["name"]: one["data"] for one in listed.items}

    async def claim(self, name: str) -> Claim:
        parent = await self.cluster.get(CONFIG_MAPS, name, self.namespace)
        claim = Claim.read(parent["metadata"]["annotations"][CLAIM])
        assert claim is not None
        return claim

    def writes(self, *names: str) -> list[dict[str, Any]]:
        """What runs noted about these parents and their children, in order."""
        lines = self.record.read_text().split("\n")[:-1] if self.record.exists() else []
        noted = [json.loads(line) for line in lines]
        return [
            one for one in noted if any(one["name"] == name or one["name"].startswith(f"{name}-") for name in names)
        ]

    async def runs(self) -> list[FlowRun]:
        """The runs for objects of this namespace, in the order of their creation."""
        chosen = DeploymentFilter(id=DeploymentFilterId(any_=[self.deployment]))
        found = await self.client.read_flow_runs(deployment_filter=chosen)
        ours = [run for run in found if all(one.startswith(f"{self.namespace}/") for one in run.parameters["objects"])]
        return sorted(ours, key=lambda run: run.created)


@pytest.fixture
async def parents(
    control_plane: LocalStack,
    control_plane_cluster: Cluster,
    namespace: str,
    client: PrefectClient,
    deployment: UUID,
    record_of_copies: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Parents:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    return Parents(control_plane_cluster, namespace, client, deployment, record_of_copies)


@flow(name="reconcile", persist_result=False)
async def shift(namespace: str, batch: int, seconds: float, by: str = "copies/copies", other: str = "") -> State[Any]:
    """The reconcile shift with the copies as its only lifecycle."""
    settings = ReconcileParameters(
        interval_seconds=0.5, shift_seconds=seconds, early_end_seconds=0.1, lease_namespace=namespace
    )
    registered = (Registered(Copies(), Acting(by, batch)),)
    spaces = [namespace, *([other] if other else [])]
    return await run_shift(settings, lambda: Reconciling(registered, spaces), table="reconcile-copies")


class Shift:
    """The shift in the background, ended as soon as the test has seen what it wanted."""

    def __init__(self, namespace: str, batch: int = 1, other: str = "") -> None:
        self._running = shift(namespace, batch, 300, other=other, return_state=True)
        self._task: asyncio.Task[Any]

    async def __aenter__(self) -> None:
        self._task = asyncio.ensure_future(self._running)

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


def turns(noted: Sequence[dict[str, Any]]) -> list[str]:
    """The runs that wrote, each as often as it had a turn."""
    runs = [one["run"] for one in noted]
    return [run for index, run in enumerate(runs) if index == 0 or runs[index - 1] != run]


async def halted(parents: Parents, name: str) -> dict[str, Any]:
    """Wait until the first run for this parent is halted with a plan in its hands."""

    async def noted() -> dict[str, Any] | None:
        return next((one for one in parents.writes(name) if one["write"] == "halt"), None)

    return await until(noted, "the first run is halted", timeout=120)


async def test_a_run_that_is_killed_at_every_write_is_replaced_until_all_is_done(
    parents: Parents, copying: PrefectWorker
) -> None:
    await parents.ask("mortal", 3, "die")
    async with Shift(parents.namespace):
        await until(lambda: parents.copied("mortal", 3), "the copies are made", timeout=240)
    assert await parents.children() == {f"mortal-{number}": {"copy": f"mortal-{number}"} for number in range(3)}
    noted = parents.writes("mortal")
    assert [one["name"] for one in noted if one["write"] == "apply"] == ["mortal-0", "mortal-1", "mortal-2"]
    assert turns(noted) == [one["run"] for one in noted], "each wrote once, and none after another had begun"
    runs = await parents.runs()
    assert {run.idempotency_key for run in runs} >= set(turns(noted))
    assert len({run.idempotency_key for run in runs}) == len(runs)

    async def dead() -> bool:
        return all(
            run.state and run.state.is_crashed() for run in await parents.runs() if run.idempotency_key in turns(noted)
        )

    await until(dead, "every run that wrote has died")


async def test_a_run_that_was_replaced_writes_nothing_when_it_wakes(parents: Parents, copying: PrefectWorker) -> None:
    await parents.ask("sleeper", 2, "halt")
    async with Shift(parents.namespace):
        asleep = await halted(parents, "sleeper")
        (first,) = await parents.runs()
        assert first.idempotency_key == asleep["run"] == (await parents.claim("sleeper")).run
        await parents.client.set_flow_run_state(first.id, Crashed(message="no heartbeat"), force=True)
        await until(lambda: parents.copied("sleeper", 2), "another run does the work", timeout=120)
        assert (await parents.claim("sleeper")).run != asleep["run"]
        writes = [one for one in parents.writes("sleeper") if one["write"] != "halt"]
        assert asleep["pid"] not in {one["pid"] for one in writes}
        os.kill(asleep["pid"], signal.SIGCONT)

        async def gone() -> bool:
            return not Path(f"/proc/{asleep['pid']}").exists()

        await until(gone, "the first run has ended")
    assert [one for one in parents.writes("sleeper") if one["write"] != "halt"] == writes


async def test_many_objects_share_a_run(parents: Parents, copying: PrefectWorker) -> None:
    for number in range(3):
        await parents.ask(f"small{number}", 1)
    async with Shift(parents.namespace, batch=50):
        for number in range(3):
            await until(lambda name=f"small{number}": parents.copied(name, 1), "the copies are made", timeout=120)
    (run,) = await parents.runs()
    assert run.parameters["objects"] == [f"{parents.namespace}/small{number}" for number in range(3)]
    assert (run.idempotency_key or "").startswith("ConfigMap/batch-of-3/")
    assert {(await parents.claim(f"small{number}")).run for number in range(3)} == {run.idempotency_key}


@pytest.fixture
async def one_place(client: PrefectClient, deployment: UUID) -> AsyncIterator[None]:
    """The runs of the pool have one place."""
    await queues.apply(client, POOL)
    queue = await client.read_work_queue_by_name(RUNS, work_pool_name=POOL)
    await client.update_work_queue(queue.id, concurrency_limit=1)
    yield
    await client.update_work_queue(queue.id, concurrency_limit=queue.concurrency_limit)


async def test_runs_killed_with_their_worker_give_their_places_back(
    parents: Parents, copying: PrefectWorker, one_place: None
) -> None:
    """Nothing else ends the run on this server: there is no automation that misses its heartbeats."""
    await parents.ask("abandoned", 2, "halt")
    async with Shift(parents.namespace):
        await halted(parents, "abandoned")
        (first,) = await parents.runs()
        copying.kill()
        await asyncio.to_thread(copying.start)
        await until(lambda: parents.copied("abandoned", 2), "another run does the work in the only place", timeout=120)
    state = (await parents.client.read_flow_run(first.id)).state
    assert state is not None
    assert (state.type, state.name) == (StateType.CRASHED, UNRESPONSIVE)


async def test_a_run_that_outlives_its_worker_keeps_its_place_and_is_not_doubled(
    parents: Parents, copying: PrefectWorker
) -> None:
    await parents.ask("survivor", 2, "halt")
    async with Shift(parents.namespace):
        alive = await halted(parents, "survivor")
        os.kill(copying.pid, signal.SIGKILL)  # alone
        await asyncio.to_thread(copying.start)
        await parents.ask("later", 1)
        await until(lambda: parents.copied("later", 1), "the next worker has looked, and starts runs", timeout=120)
        (run,) = [run for run in await parents.runs() if "survivor" in run.parameters["name"]]
        assert run.state is not None
        assert run.state.is_running()
        assert (await parents.claim("survivor")).run == run.idempotency_key == alive["run"]
        os.kill(alive["pid"], signal.SIGCONT)
        await until(lambda: parents.copied("survivor", 2), "it goes on", timeout=120)

        async def ended() -> bool:
            state = (await parents.client.read_flow_run(run.id)).state
            return state is not None and state.is_completed()

        await until(ended, "it reports its end itself", timeout=120)
    assert {one["pid"] for one in parents.writes("survivor")} == {alive["pid"]}


async def test_a_neighbour_starts_next_though_a_namespace_has_sixty_objects_without_and_sixty_with_work(
    parents: Parents, other_namespace: str, copying: PrefectWorker, one_place: None
) -> None:
    neighbour = Parents(parents.cluster, other_namespace, parents.client, parents.deployment, parents.record)
    for number in range(60):
        await parents.ask(f"settled{number}", 0)
        await parents.ask(f"valid{number}", 1)

    async def started() -> list[FlowRun]:
        return [run for run in await parents.runs() if run.start_time is not None]

    async with Shift(parents.namespace, other=other_namespace):
        await until(started, "the first run has started")
        before = {run.id for run in await started()}
        await neighbour.ask("only", 1)
        await until(lambda: neighbour.copied("only", 1), "the neighbour's copy is made")
    (only,) = await neighbour.runs()
    greedy = await parents.runs()
    assert only.start_time is not None
    between = [run for run in await started() if run.id not in before and run.start_time < only.start_time]
    assert len(between) <= 1, "the run that was queued already"
    assert len(greedy) <= len(before) + len(between) + 1, "one is created ahead"
    assert not any("settled" in name for run in greedy for name in run.parameters["objects"])
    assert {run.work_queue_name for run in (only, *greedy)} == {RUNS}


async def test_nothing_is_started_while_prefects_api_is_away(parents: Parents, deployment: UUID) -> None:
    await parents.ask("patient", 1)
    await parents.ask("settled", 0)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        async with Reconciling((Registered(Copies(), Acting("copies/copies")),), [parents.namespace]) as reconciling:
            plans = await reconciling.look()
            await reconciling.tell([plan for some in plans.values() for plan in some])
            with pytest.raises(RunsUnknown):
                await start_runs(reconciling)
    assert await parents.copied("settled", 0), "statuses are told all the while"
    patient = await parents.cluster.get(CONFIG_MAPS, "patient", parents.namespace)
    assert CLAIM not in patient["metadata"]["annotations"]
    assert not await parents.runs()
    async with Reconciling((Registered(Copies(), Acting("copies/copies")),), [parents.namespace]) as reconciling:

        async def started() -> list[FlowRun]:
            await start_runs(reconciling)  # a slow server is asked again, as the next tick does
            return await parents.runs()

        await until(started, "its run is there")
        assert await start_runs(reconciling) == [], "its run is there already"
    (run,) = await parents.runs()
    assert run.idempotency_key == (await parents.claim("patient")).run
    assert run.name == f"ConfigMap {parents.namespace}/patient"
    await parents.client.delete_flow_run(run.id)


async def start_runs(reconciling: Reconciling) -> list[str]:
    from prefect.logging import disable_run_logger

    from tasks.reconcile import Pass, look_up, start_runs as start
    from tasks.stage import share

    with disable_run_logger(), share(Pass(reconciling)):
        plans = await reconciling.look()
        return await start.fn("its object", list(reconciling.due(plans, await look_up(reconciling, plans)).starts))


async def task_runs(client: PrefectClient, state: State[Any]) -> list[str]:
    """The names of the task runs of the flow run that ended so, as far as they are on record."""
    chosen = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    return [one.name for one in await client.read_task_runs(task_run_filter=chosen)]


async def test_while_a_run_acts_a_tick_is_no_task_run(parents: Parents, deployment: UUID) -> None:
    acting = (await parents.client.read_deployment(deployment)).flow_id
    unattended = await parents.client.create_deployment(flow_id=acting, name="unattended", entrypoint="copies.copies")
    await parents.ask("awaited", 1)
    state = await shift(parents.namespace, 1, 5, "copies/unattended", return_state=True)
    assert "0 failed" in (state.message or "")
    (run,) = await parents.client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[unattended]))
    )
    assert run.state is not None
    assert not run.state.is_final()
    assert run.idempotency_key == (await parents.claim("awaited")).run
    assert len(await until(lambda: task_runs(parents.client, state), "the task run is on record")) == 1
    await parents.client.delete_deployment(unattended)  # and its run


async def test_a_shift_costs_a_task_run_only_where_something_is_told(parents: Parents) -> None:
    selector = {"matchLabels": {"app": "quiet"}}
    server = {"metadata": {"name": "quiet"}, "spec": {"inferenceEngine": "vLLM", "workloadSelector": selector}}
    await parents.cluster.create(SERVERS, server, parents.namespace)

    async def costs() -> list[str]:
        state = await reconcile(
            namespaces=[parents.namespace],
            lease_namespace=parents.namespace,
            interval_seconds=0.5,
            shift_seconds=10,
            early_end_seconds=0.1,
            return_state=True,
        )
        assert state.name == "Completed"
        assert "0 failed" in (state.message or "")
        if "told" not in told:
            return await until(lambda: task_runs(parents.client, state), "the task run is on record")
        return await task_runs(parents.client, state)

    told: set[str] = set()
    (first,) = await costs()
    assert first == f"update ConfigMap {parents.namespace}/modelyard-model-names and 1 more"
    status = (await parents.cluster.get(SERVERS, "quiet", parents.namespace))["status"]
    assert [one["reason"] for one in status["conditions"]] == ["NoReadyPods"]
    told.add("told")
    assert await costs() == []
