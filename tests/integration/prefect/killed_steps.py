"""Flow runs whose process dies by SIGKILL while the step that ``KILL_AT`` names is active, and is retried.

A deployment's entrypoint in this module is the product's flow; the process that carries it out kills itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from prefect import Flow
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.logging import disable_run_logger
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL
from prefect.states import AwaitingRetry

from flows.benchmark import benchmark
from flows.deliver import deliver
from flows.roll_out import roll_out
from modelyard.cluster import Cluster
from modelyard.objects import Key, ResourceType
from modelyard.objects.kinds import CONFIG_MAPS, DEPLOYMENTS, JOBS, SERVICES
from modelyard.reconcile.kernel.run_view import StepFailed
from modelyard.reconcile.plans.plan import PlanStep, StepId
from tasks import steps
from tasks.reconcile import BY_ID
from tasks.steps import RunRef, open_run, run_step

FLOWS: dict[str, Flow[..., Any]] = {flow.name: flow for flow in (benchmark, deliver, roll_out)}
ENTRYPOINTS = {"benchmark": "benchmark", "deliver": "deliver", "roll-out": "roll_out"}
KILL_AT = "KILL_AT"


async def carry_out_and_die(view: Any, key: Key, step: StepId, limits: Any, report: Any) -> str:
    """Carry out a step, and die where it is seen for the second time: it has written, or waited."""
    looks = 0

    async def counted(state: PlanStep) -> None:
        nonlocal looks
        await report(state)
        looks += 1
        if looks == 2 and step.name == os.environ[KILL_AT]:
            os.kill(os.getpid(), signal.SIGKILL)

    return await carry_out_step(view, key, step, limits, counted)


carry_out_step = steps.carry_out_step
if os.environ.get(KILL_AT):
    steps.carry_out_step = carry_out_and_die


async def run_and_kill(client: PrefectClient, flow: str, killed: Sequence[str], **parameters: Any) -> FlowRun:
    """Run a flow; kill its process in each of these steps, and retry the run; return the run at its end."""
    deployment = await client.create_deployment(
        flow_id=await client.create_flow(FLOWS[flow]),
        name=f"killed-{uuid4().hex[:8]}",
        entrypoint=f"killed_steps.{ENTRYPOINTS[flow]}",
    )
    run = await client.create_flow_run_from_deployment(deployment, parameters=parameters)
    server = {"PREFECT_API_URL": PREFECT_API_URL.value(), "PREFECT_API_AUTH_STRING": PREFECT_API_AUTH_STRING.value()}
    for step in [*killed, ""]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "prefect.engine", str(run.id)),
            env={**os.environ, **{name: str(value) for name, value in server.items()}, KILL_AT: step},
        )
        code = await process.wait()
        assert (code == -signal.SIGKILL) is bool(step), f"the process to be killed in {step or 'no step'}: code {code}"
        if step:
            await client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
    return await client.read_flow_run(run.id)


async def assert_repeating_changes_nothing(
    cluster: Cluster, lifecycle: str, run: FlowRun, key: Key, home: str, done: Iterable[StepId], kind: ResourceType
) -> None:
    """Repeat each of these steps of a run that is over, alone, and compare all objects with those before."""

    async def objects() -> dict[str, Any]:
        """Return what was written of each object: its controllers' statuses may still arrive."""
        kinds = (JOBS, CONFIG_MAPS, DEPLOYMENTS, SERVICES)
        spaces = {key.namespace or home, home}
        listed = [obj for space in spaces for made in kinds for obj in await cluster.list(made, space)]
        listed.append(await cluster.get(kind, key.name, key.namespace or None))
        changing = ("resourceVersion", "managedFields")
        written = {}
        for obj in listed:
            metadata = {name: value for name, value in obj["metadata"].items() if name not in changing}
            written[metadata["uid"]] = {**obj, "metadata": metadata, "status": None}
        return written

    async def settled() -> dict[str, Any]:
        """Return them once garbage collection is done."""
        before = await objects()
        await asyncio.sleep(1)
        while (now := await objects()) != before:
            before = now
            await asyncio.sleep(1)
        return now

    ref, before = RunRef(lifecycle, home, f"{BY_ID}{run.id}"), await settled()
    with disable_run_logger():
        for step in done:
            async with open_run(ref):
                with suppress(StepFailed):  # a step that has failed fails again
                    await run_step.fn(ref, key, step, datetime.now(UTC), False)
    assert await objects() == before
