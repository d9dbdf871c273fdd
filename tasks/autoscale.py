"""The three tasks of an autoscaling tick: collect, decide, actuate. Each handles the whole fleet."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from prefect import task

from modelyard.autoscaling.decision import TickDecision
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.live.controller import Controller
from modelyard.reconcile.report import TickReport
from tasks.stage import BACK_OFF, STAGE, Handle, in_time


class Decided(NamedTuple):
    """A fleet, and what was decided about it."""

    fleet: Fleet
    decision: TickDecision


@task(
    name="collect",
    task_run_name="collect-{number}",
    description="Read everything a decision rests on from Kubernetes and Prometheus.",
    timeout_seconds=60,
    retries=len(BACK_OFF),
    retry_delay_seconds=list(BACK_OFF),
    retry_condition_fn=in_time,
    **STAGE,
)
async def collect(controller: Controller, number: int, until: float) -> Handle[Fleet]:
    """Read a constant number of queries and lists, whatever the size of the fleet; again if that fails in good time."""
    return Handle(await controller.collect())


@task(
    name="decide",
    task_run_name="decide-{number}",
    description="Decide for every variant and every binding; pure.",
    timeout_seconds=30,
    **STAGE,
)
async def decide(controller: Controller, number: int, seen: Handle[Fleet]) -> Handle[Decided]:
    """Decide in a thread, so that a large fleet's arithmetic does not hold up the renewal of the Lease."""
    fleet = seen.take()
    return Handle(Decided(fleet, await asyncio.to_thread(controller.decide, fleet)))


@task(
    name="actuate",
    task_run_name="actuate-{number}",
    description="Write intent to status, move the workloads that are ours to move, and tell people.",
    timeout_seconds=60,
    **STAGE,
)
async def actuate(controller: Controller, number: int, decided: Handle[Decided]) -> Handle[TickReport]:
    """Write what was decided, then tell what became of it."""
    fleet, decision = decided.take()
    done = await controller.actuate(fleet, decision)
    return Handle(await controller.report(decision, done))
