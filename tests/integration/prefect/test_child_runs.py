"""Child runs on a real Prefect server, their states set by hand: found again, retried, given up, linked to the step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow, task
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterIdempotencyKey,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Cancelled, Completed, Crashed, Failed, Running
from prefect_support import until

from deployments import queues
from deployments.work_pool import create_work_pool
from modelyard.models.delivery.names import BASE_MODELS
from modelyard.reconcile.plans.claims import Claim
from modelyard.reconcile.plans.dispatch import child_claim
from modelyard.reconcile.plans.plan import CLAIM
from modelyard.reconcile.plans.run_limits import RUNS
from tasks.children import MOST_CHILDREN, TOO_MANY, ChildKind, ChildState, follow_child

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

CHILD = ChildKind("deliver/of-a-child", BASE_MODELS, {"kind": "BaseModel"})


@flow(name="deliver")
async def nothing_delivered() -> None:
    """Nothing: its runs are only marked."""


@pytest.fixture
async def model(client: PrefectClient) -> dict[str, Any]:
    """A model with the claim of its child run."""
    await client.create_deployment(await client.create_flow(nothing_delivered), "of-a-child", entrypoint="no.where")
    body: dict[str, Any] = {"kind": "BaseModel", "metadata": {"name": "chat", "namespace": "shop", "uid": uuid4().hex}}
    body["metadata"]["annotations"] = {CLAIM: str(child_claim(body, time.time()))}
    return body


async def in_a_step(work: Callable[[], Awaitable[None]]) -> State[Any]:
    """Do this in a task of a flow."""

    @task(name="deliver the model")
    async def step() -> None:
        await work()

    @flow(name="parent")
    async def parent() -> None:
        await step()

    state: State[Any] = await parent(return_state=True)
    return state


async def child_of(client: PrefectClient, model: dict[str, Any]) -> FlowRun:
    claim = Claim.read(model["metadata"]["annotations"][CLAIM])
    assert claim is not None
    chosen = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[claim.run]))
    (run,) = await client.read_flow_runs(flow_run_filter=chosen)
    return run


async def test_a_child_is_created_once_and_linked_to_the_step(client: PrefectClient, model: dict[str, Any]) -> None:
    async def work() -> None:
        for _ in range(3):
            assert await follow_child(CHILD, model, "home") == ChildState()
        run = await child_of(client, model)
        for ended in (Running(), Completed()):
            await client.set_flow_run_state(run.id, ended, force=True)

    state = await in_a_step(work)
    assert state.is_completed(), state
    run = await child_of(client, model)
    assert (run.name, run.parameters["objects"]) == ("BaseModel shop/chat", ["shop/chat"])
    parent = state.state_details.flow_run_id
    assert parent is not None
    chosen = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[parent]))

    async def recorded() -> dict[str, Any]:
        runs = {task_run.name: task_run for task_run in await client.read_task_runs(task_run_filter=chosen)}
        return runs if len(runs) == 2 else {}

    runs = await until(recorded, "both task runs are on record")
    stands_for = runs.pop("BaseModel shop/chat")
    (step,) = runs.values()
    assert (stands_for.id, stands_for.state_name) == (run.parent_task_run_id, "Completed")
    assert [parent.id for parent in stands_for.task_inputs["__parents__"]] == [step.id]


async def test_a_child_is_retried_twice_as_the_same_run(client: PrefectClient, model: dict[str, Any]) -> None:
    async def end(state: State[Any]) -> ChildState:
        run = await child_of(client, model)
        for ended in (Running(), state):
            await client.set_flow_run_state(run.id, ended, force=True)
        return await follow_child(CHILD, model, "home")

    async def work() -> None:
        await follow_child(CHILD, model, "home")
        for retried in (Crashed(message="killed"), Failed(message="no room")):
            assert await end(retried) == ChildState()
            assert (await child_of(client, model)).state_name == "AwaitingRetry"
        failed = "flow run 'BaseModel shop/chat' failed 3 times: no room"
        assert await end(Failed(message="no room")) == ChildState(False, failed)
        assert await end(Cancelled()) == ChildState(False, "flow run 'BaseModel shop/chat' was cancelled")
        assert await end(Completed()) == ChildState(is_live=False)

    state = await in_a_step(work)
    assert state.is_completed(), state


async def test_an_object_that_failed_itself_says_why(client: PrefectClient, model: dict[str, Any]) -> None:
    async def work() -> None:
        await follow_child(CHILD, model, "home")
        run = await child_of(client, model)
        for ended in (Running(), Failed()):
            await client.set_flow_run_state(run.id, ended, force=True)
        failed = {**model, "status": {"state": "Failed"}}
        assert await follow_child(CHILD, failed, "home") == ChildState(is_live=False)

    state = await in_a_step(work)
    assert state.is_completed(), state


async def test_forged_claims_make_a_bounded_number_of_children(client: PrefectClient, model: dict[str, Any]) -> None:
    def forge(number: int) -> None:
        claim = Claim(f"BaseModel/shop/chat/forged-{number}", "0" * 12, 1, time.time())
        model["metadata"]["annotations"][CLAIM] = str(claim)

    async def work() -> None:
        for number in range(MOST_CHILDREN):
            forge(number)
            for _ in range(2):
                assert await follow_child(CHILD, model, "home") == ChildState()
        for number in range(MOST_CHILDREN, MOST_CHILDREN + 3):
            forge(number)
            assert await follow_child(CHILD, model, "home") == ChildState(problem=TOO_MANY)
            with pytest.raises(ValueError, match="not enough values"):
                await child_of(client, model)
        forge(0)
        assert await follow_child(CHILD, model, "home") == ChildState(), "it is there already"
        other = {**model, "metadata": {**model["metadata"], "name": "other"}}
        other["metadata"]["annotations"] = {CLAIM: str(child_claim(other, time.time()))}
        assert await follow_child(CHILD, other, "home") == ChildState()

    state = await in_a_step(work)
    assert state.is_completed(), state


async def test_children_wait_for_the_turn_of_their_namespace(client: PrefectClient) -> None:
    pool = f"turns-{uuid4().hex[:8]}"
    await create_work_pool(client, pool)
    await queues.apply(client, pool)
    queue = await client.read_work_queue_by_name(RUNS, work_pool_name=pool)
    await client.update_work_queue(queue.id, concurrency_limit=1, priority=queue.priority, is_paused=False)
    flow_id = await client.create_flow(nothing_delivered)
    await client.create_deployment(flow_id, pool, entrypoint="no.where", work_pool_name=pool)
    kind = ChildKind(f"deliver/{pool}", BASE_MODELS, {"kind": "BaseModel"})

    def model_of(namespace: str, name: str) -> dict[str, Any]:
        body: dict[str, Any] = {"kind": "BaseModel", "metadata": {"name": name, "namespace": namespace, "uid": name}}
        body["metadata"]["annotations"] = {CLAIM: str(child_claim(body, time.time()))}
        return body

    greedy = [model_of(pool, name) for name in "abc"]
    waiting = ChildState(waiting="waits for its turn: 1 run of its namespace is under way (limit 1)")

    async def work() -> None:
        states = await asyncio.gather(*(follow_child(kind, model, "home") for model in greedy))
        assert sorted(states) == [ChildState(), waiting, waiting]
        assert await follow_child(kind, model_of(f"{pool}-modest", "d"), "home") == ChildState()
        first = states.index(ChildState())
        run = await child_of(client, greedy[first])
        for ended in (Running(), Completed()):
            await client.set_flow_run_state(run.id, ended, force=True)
        assert await follow_child(kind, greedy[first - 1], "home") == ChildState()
        assert await follow_child(kind, greedy[first - 2], "home") == waiting

    state = await in_a_step(work)
    assert state.is_completed(), state


async def test_a_missing_deployment_is_named(client: PrefectClient, model: dict[str, Any]) -> None:
    missing = "deployment deliver/nowhere not found; run `modelyard bootstrap`"

    async def work() -> None:
        state = await follow_child(ChildKind("deliver/nowhere", BASE_MODELS), model, "home")
        assert state.problem == missing

    state = await in_a_step(work)
    assert state.is_completed(), state
