"""Child flow runs: what a step's object needs done is a run of its lifecycle's deployment, linked to the step's task.

The object carries the child's claim from the moment it is created, so that ``reconcile`` leaves it to this run, and
whoever repeats the step finds the same child again. A child that failed is retried as the same run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prefect import get_run_logger
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import arun_deployment
from prefect.states import AwaitingRetry

from modelyard.objects import Key, ResourceType
from modelyard.reconcile.dispatch import Claim, is_own_key
from modelyard.reconcile.plan import Subject
from modelyard.reconcile.run_limits import RUNS
from modelyard.reconcile.run_view import StepFailed
from tasks.reconcile import CHILD_RETRIES
from tasks.run_load import CALL_TIMEOUT

EVERY = 2.0
"""Seconds between two looks at a child's state."""


@dataclass(frozen=True, slots=True)
class ChildKind:
    """The deployment whose runs work on objects of a kind, and what they are given beside the object."""

    deployment: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


async def follow_child(child: ChildKind, kind: ResourceType, obj: Mapping[str, Any], home: str) -> float:
    """Start the run that an object's claim names, unless it exists; run it again if it failed.

    Returns the seconds until the next look. Raises ``StepFailed`` where somebody has cancelled it.
    """
    subject = Subject.of(kind, obj)
    claim = Claim.read(subject.claim)
    if claim is None or not is_own_key(claim.run, subject.ref):  # reconcile claims it, alone or with others
        return EVERY
    async with asyncio.timeout(3 * CALL_TIMEOUT), get_client() as client:
        run = await _read(client, claim.run)
        if run is None:
            await _start(client, child, subject, claim.run, home)
        elif run.state is not None and run.state.is_cancelled():
            raise StepFailed(f"flow run {run.name!r} was cancelled")
        elif (
            run.state is not None
            and (run.state.is_failed() or run.state.is_crashed())
            and run.run_count <= CHILD_RETRIES
        ):
            get_run_logger().warning("Retrying flow run %s: %s", run.name, run.state and run.state.message)
            await client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
    return EVERY


def _is_to_be_retried(run: FlowRun) -> bool:
    failed = run.state is not None and (run.state.is_failed() or run.state.is_crashed())
    return failed and run.run_count <= CHILD_RETRIES


async def _read(client: PrefectClient, key: str) -> FlowRun | None:
    chosen = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[key]))
    return next(iter(await client.read_flow_runs(flow_run_filter=chosen, limit=1)), None)


async def _start(client: PrefectClient, child: ChildKind, subject: Subject, run: str, home: str) -> None:
    """Create the run; not before it is known to be missing, since its placeholder would stay for ever otherwise."""
    key: Key = subject.key
    await arun_deployment(
        child.deployment,
        client=client,
        timeout=0,
        idempotency_key=run,
        flow_run_name=str(subject.ref),
        work_queue_name=RUNS,
        parameters={
            **child.parameters,
            "name": key.name,
            "run": run,
            "objects": [f"{key.namespace}/{key.name}"],
            "controller_namespace": home,
        },
    )
