"""The three tasks of an autoscaling tick: collect, decide, actuate. Each handles the whole fleet.

Prefect keeps the parameters and the result of a task run for as long as the flow run lasts. The fleet
is therefore in a ``Tick``, which the tasks share, and they take plain values only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from prefect import get_run_logger, task

from modelyard.autoscaling.decisions import TickDecision
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.live import Controller
from modelyard.reconcile.plans import TickReport
from tasks.stage import READ_DELAYS, STAGE, in_time, shared


@dataclass(eq=False)
class Tick:
    """One tick of a controller: the fleet as collected, the decisions about it, and the report of what was written."""

    controller: Controller
    fleet: Fleet | None = None
    decision: TickDecision | None = None
    report: TickReport | None = None


@task(
    name="collect",
    task_run_name="collect at {at:%H:%M:%S}",
    timeout_seconds=60,
    retries=len(READ_DELAYS),
    retry_delay_seconds=READ_DELAYS,
    retry_condition_fn=in_time,
    **STAGE,
)
async def collect(at: datetime, until: float) -> None:
    """Read everything a decision rests on from Kubernetes and Prometheus.

    That is a constant number of queries and lists, whatever the size of the fleet. It is retried while the retry can
    end before ``until``, a reading of the monotonic clock.
    """
    tick = shared(Tick)
    tick.fleet = await tick.controller.collect()


@task(name="decide", task_run_name="decide at {at:%H:%M:%S}", timeout_seconds=30, **STAGE)
async def decide(at: datetime) -> list[str]:
    """Decide for every variant and binding; return the changes of workloads, each with its reason, and log them.

    A thread decides, so that a large fleet's arithmetic does not delay the renewal of the Lease.
    """
    tick = shared(Tick)
    assert tick.fleet is not None
    tick.decision = await asyncio.to_thread(tick.controller.decide, tick.fleet)
    changes = [
        f"{record.identity.key} {record.now.current} -> {record.target.replicas}: {record.why.message}"
        for record in tick.decision.changes
    ]
    for change in changes:
        get_run_logger().info("%s", change)
    return changes


@task(name="actuate", task_run_name="actuate at {at:%H:%M:%S}", timeout_seconds=60, **STAGE)
async def actuate(at: datetime) -> None:
    """Write the decisions to the statuses, scale the workloads that are ours to scale, and send Events.

    The report is left in the tick.
    """
    tick = shared(Tick)
    assert tick.fleet is not None
    assert tick.decision is not None
    done = await tick.controller.actuate(tick.fleet, tick.decision)
    tick.report = await tick.controller.report(tick.decision, done)
