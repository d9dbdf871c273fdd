"""Child runs of onboardings on real parts: killed, cancelled, retried from the UI, and more than there are places."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from uuid import UUID

import model_hub
import pytest
from onboarding_site import MODEL, Site, kill, onboarding_site, onboarding_worker, serving_hub
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect_support import until

from deployments.server import PrefectServer
from modelyard.cluster import Cluster
from modelyard.local.stack import LocalStack
from modelyard.models.delivery.names import BASE_MODELS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

NOTHING = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"x" * 8_000_000}
"""A model that can be delivered, and that no runtime serves."""
UNSERVED = "no runtime serves the model on an accelerator that has a price"


@pytest.fixture(scope="module")
async def deployed(
    prefect_server: PrefectServer, local_stack: LocalStack, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[model_hub.Hub, UUID]]:
    """A hub, and the deployment of onboardings, under a worker with one place for them and one for their children."""
    folder, limits = tmp_path_factory.mktemp("children"), {"parents": 1, "runs": 1}
    with pytest.MonkeyPatch.context() as patch, serving_hub() as hub:
        patch.setenv("KUBECONFIG", str(local_stack.kubeconfig))
        url, kubeconfig = prefect_server.api_url, local_stack.kubeconfig
        async with get_client() as client, onboarding_worker(client, url, kubeconfig, folder, limits) as deployment:
            yield hub, deployment


@pytest.fixture
async def site(
    deployed: tuple[model_hub.Hub, UUID], local_cluster: Cluster, local_namespace: str
) -> AsyncIterator[Site]:
    hub, deployment = deployed
    async with (
        get_client() as client,
        onboarding_site(local_cluster, client, local_namespace, deployment, hub) as place,
    ):
        yield place


async def test_a_killed_child_and_a_killed_parent_go_on_as_the_same_flow_runs(site: Site) -> None:
    site.hub.add("meta/killed", NOTHING)
    site.hold()
    parent = await site.onboard("killed")
    child = await site.running_child(parent)
    kill(child.id)
    again = await site.running_child(parent, starts=2)
    assert again.id == child.id
    kill(parent)

    async def resumed() -> bool:
        run = await site.client.read_flow_run(parent)
        return run.run_count >= 2 and run.state_type is StateType.RUNNING

    assert await until(resumed, "the parent is resumed", 240)
    site.released.set()
    state = await site.ended(parent)
    assert (state.name, UNSERVED in (state.message or "")) == ("Failed", True), state.message
    assert (await site.ended(child.id)).name == "Completed"
    assert [run.id for run in (await site.children(parent)).values()] == [child.id]
    assert not [run.name for run in await site.task_runs(parent) if run.state_type is StateType.PENDING]


@pytest.mark.long
async def test_cancelling_a_child_fails_the_step_of_its_parent(site: Site) -> None:
    site.hub.add("meta/stopped", NOTHING)
    site.hold()
    parent = await site.onboard("stopped")
    child = await site.running_child(parent)
    await site.cancel(child.id)
    state = await site.ended(parent)
    assert state.name == "Failed"
    assert f"flow run '{child.name}' was cancelled" in (state.message or "")

    async def failed() -> bool:
        runs = {run.name: run.state_name for run in await site.task_runs(parent)}
        return runs.get(f"deliver the model of {site.space}/stopped-onboarding") == "Failed"

    assert await until(failed, "the step has failed")
    site.released.set()
    await site.retry(parent)
    state = await site.ended(parent)
    assert UNSERVED in (state.message or "")
    assert [run.id for run in (await site.children(parent)).values()] == [child.id], "it was retried with its parent"


async def test_cancelling_a_parent_cancels_its_children_also_if_it_cannot_do_so_itself(site: Site) -> None:
    site.hub.add("meta/ended", NOTHING)
    site.hold()
    first = await site.onboard("ended")
    child = await site.running_child(first)
    kill(first, signal.SIGSTOP)
    await site.cancel(first)
    assert (await site.ended(first)).name == "Cancelled"
    assert (await site.ended(child.id, 120)).name == "Cancelled"
    second = await site.onboard("ended")
    other = await site.running_child(second)
    assert other.id != child.id, "the run of a cancelled parent would be cancelled again"
    site.released.set()
    state = await site.ended(second)
    assert UNSERVED in (state.message or "")
    assert (await site.state(child.id)).name == "Cancelled"


@pytest.mark.long
async def test_what_failed_completes_when_the_ui_retries_the_child_and_then_the_parent(site: Site) -> None:
    wrong = {"uri": "hf://meta/later"}
    parent, alone = await site.onboard("chat", **wrong), await site.onboard("solo", uri="hf://meta/alone")
    for run in (parent, alone):
        state = await site.ended(run)
        assert (state.name, "cannot be delivered" in (state.message or "")) == ("Failed", True), state.message
    (child,) = (await site.children(parent)).values()
    assert child.state_name == "Failed"
    site.hub.add("meta/later", MODEL)
    site.hub.add("meta/alone", NOTHING)

    await site.retry(child.id)
    assert (await site.ended(child.id)).name == "Completed"
    await site.retry(parent)
    state = await site.ended(parent, 600)
    assert state.name == "Completed", state.message
    children = await site.children(parent)
    assert children[f"BaseModel {site.space}/chat"].id == child.id
    assert [(await site.ended(run.id)).name for run in children.values()] == ["Completed"] * 4

    await site.retry(alone)
    state = await site.ended(alone)
    assert UNSERVED in (state.message or ""), "its model was delivered, by its child or by a run of reconcile"


@pytest.mark.long
async def test_twice_as_many_onboardings_as_places_all_complete(site: Site) -> None:
    parents = [await site.onboard(name, uri="hf://meta/chat") for name in ("one", "two")]
    states = await asyncio.gather(*(site.ended(parent, 900) for parent in parents))
    assert [state.name for state in states] == ["Completed"] * 2
    models = {model["metadata"]["name"] for model in await site.cluster.list(BASE_MODELS, site.space)}
    assert models == {"one", "two"}
