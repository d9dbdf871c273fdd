"""What a newcomer does: press the button of every deployment, with the parameters that it comes with; and what the
server says where these are not enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateName,
)
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import PrefectHTTPStatusError
from prefect_support import until

from deployments.bootstrap import deploy, deployment_names, read
from deployments.checks import schedule_problems
from deployments.profile import ROOT
from deployments.server import PrefectServer
from deployments.work_pool import create_work_pool
from deployments.worker import PrefectWorker
from modelyard.cluster import Cluster
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import NAMESPACES
from tasks.flow_runs import read_all

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

POOL = "buttons"
NEEDED = {
    "benchmark": ["name"],
    "carry-out": ["name", "lifecycle"],
    "deliver": ["name"],
    "onboard": ["uri", "name", "results"],
    "re-run-benchmarks": ["jobs"],
    "roll-out": ["name"],
}
"""Deployments whose form cannot be submitted as it is, and the fields that are required."""
SHORT = {"shift_seconds": 15, "early_end_seconds": 2}
"""What a user may set in the form of a shift."""
LESS = {"replay": {"minutes": 2}}
"""Parameters that a user may set in other forms: a whole replay takes long."""


def written(folder: Path, cron: bool = False) -> Path:
    """prefect.yaml as it is, but for a pool of its own; ``cron``: with a tick a minute instead of shifts."""
    content = read()
    for deployment in content["deployments"]:
        deployment["work_pool"] = {"name": POOL}
        for schedule in deployment.get("schedules", ()):
            if cron and deployment["entrypoint"] == "flows.autoscale.autoscale":
                schedule["active"] = not schedule["active"]
    file = folder / "prefect.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return file


async def deployed(client: PrefectClient) -> dict[str, DeploymentResponse]:
    names = deployment_names()
    return {each.name: each for each in await read_all(client.read_deployments) if each.name in names}


async def press(client: PrefectClient, deployment: DeploymentResponse) -> State:
    """Press the button; what the run ends in."""
    shorter = SHORT if deployment.parameters.get("shift_seconds") else LESS.get(deployment.name, {})
    run = await client.create_flow_run_from_deployment(deployment.id, parameters=shorter)

    async def ended() -> FlowRun | None:
        now = await client.read_flow_run(run.id)
        return now if now.state and now.state.is_final() else None

    state = (await until(ended, f"a run of {deployment.name} ends", timeout=280)).state
    assert state is not None
    return state


@pytest.fixture(scope="module")
async def pressed(
    prefect_server: PrefectServer,
    control_plane: LocalStack,
    control_plane_cluster: Cluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[dict[str, State]]:
    """The last state of a run of each deployment, under a worker that finds two variants in its cluster."""
    folder = tmp_path_factory.mktemp("buttons")
    for manifest in yaml.safe_load_all((ROOT / "deployments/kubernetes/namespace.yaml").read_text()):
        await control_plane_cluster.apply(manifest)
    await control_plane_cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "chat"}})
    for manifest in yaml.safe_load_all((ROOT / "config/samples/plan/manifests.yaml").read_text()):
        await control_plane_cluster.apply(manifest)
    async with get_client() as client:
        await create_work_pool(client, POOL)
        await deploy(client, written(folder))
        there = await deployed(client)
        for deployment in there.values():
            await client.pause_deployment(deployment.id)  # the worker would begin, and its runs have the Lease
        known = {"KUBECONFIG": str(control_plane.kubeconfig), "PREFECT_WORKER_QUERY_SECONDS": "1"}
        async with PrefectWorker(prefect_server.api_url, folder, pool=POOL, extra=known):
            states: dict[str, State] = {}
            ticks = {name for name, one in there.items() if one.parameters.get("shift_seconds") == 0}
            # A tick has to wait for a shift with the same Lease.
            for names in (sorted(there.keys() - ticks - NEEDED.keys()), sorted(ticks)):
                found = await asyncio.gather(*(press(client, there[name]) for name in names))
                states |= dict(zip(names, found, strict=True))
            yield states
        for deployment in (await deployed(client)).values():
            await client.delete_deployment(deployment.id)
    await control_plane_cluster.delete(NAMESPACES, "chat")


@pytest.mark.parametrize("name", sorted(NEEDED))
async def test_a_form_that_lacks_what_is_required_is_refused(
    pressed: dict[str, State], client: PrefectClient, name: str
) -> None:
    deployment = (await deployed(client))[name]
    form = deployment.parameter_openapi_schema or {}
    assert form["required"] == NEEDED[name], "the UI calls every other field optional"
    assert all(field.get("description") for field in form["properties"].values())
    with pytest.raises(PrefectHTTPStatusError, match=f"'{NEEDED[name][0]}' is a required property"):
        await client.create_flow_run_from_deployment(deployment.id)
    if name == "onboard":
        given = {"uri": "hf://a/b", "name": "chat", "results": "s3://bucket", "output_tokens": 1}
        with pytest.raises(PrefectHTTPStatusError, match="output_tokens"):
            await client.create_flow_run_from_deployment(deployment.id, parameters=given)


@pytest.mark.parametrize("name", sorted(deployment_names() - NEEDED.keys()))
async def test_every_deployment_runs_at_the_press_of_its_button(pressed: dict[str, State], name: str) -> None:
    assert pressed[name].name == "Completed", pressed[name].message
    assert "error" not in (pressed[name].message or "")


async def test_the_tables_that_a_newcomer_finds_begin_with_what_matters(
    pressed: dict[str, State], client: PrefectClient
) -> None:
    begin = {"autoscale-decisions": ["variant", "now → target", "why"], "replay": ["policy", "rate", "cost"]}
    for key, columns in begin.items():
        chosen = ArtifactFilter(key=ArtifactFilterKey(any_=[key]))
        rows = yaml.safe_load(str((await client.read_artifacts(artifact_filter=chosen))[0].data))
        assert len(rows) >= 2
        assert list(rows[0])[:3] == columns


async def test_a_tick_a_minute_by_cron_instead_of_shifts(
    pressed: dict[str, State], client: PrefectClient, tmp_path: Path
) -> None:
    """What the comment in prefect.yaml says: one schedule on, the other off, and applied again."""
    await deploy(client, written(tmp_path, cron=True))
    there = await deployed(client)
    for name in ("autoscale", "autoscale-once"):
        await client.resume_deployment(there[name].id)
    assert await schedule_problems(client, {"autoscale-once"}, timeout=60) == []

    async def planned(name: str) -> list[FlowRun]:
        return await client.read_flow_runs(
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[there[name].id])),
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Scheduled"]))),
        )

    moments = sorted(run.expected_start_time for run in await planned("autoscale-once") if run.expected_start_time)
    assert {(later - earlier).total_seconds() for earlier, later in pairwise(moments)} == {60}
    assert await planned("autoscale") == []
