"""The three tasks of an autoscaling tick: collect, decide, actuate. Each handles the whole fleet.

Prefect keeps the parameters and the result of a task run for as long as the flow run lasts. The fleet
is therefore in a ``Tick``, which the tasks share, and they take plain values only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from prefect import get_run_logger, task

from modelyard.autoscaling.decision import Record, TickDecision
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.live.controller import Controller
from modelyard.reconcile.report import TickReport
from tasks.stage import BACK_OFF, STAGE, in_time, shared


@dataclass(eq=False)
class Tick:
    """One tick of a controller: the fleet as collected, the decisions about it, and the report of what was written."""

    controller: Controller
    fleet: Fleet | None = None
    decision: TickDecision | None = None
    report: TickReport | None = None

    async def decide(self) -> TickDecision:
        """Decide once, in a thread, so that a large fleet's arithmetic does not hold up the renewal of the Lease."""
        if self.decision is None:
            assert self.fleet is not None
            self.decision = await asyncio.to_thread(self.controller.decide, self.fleet)
        return self.decision


@task(
    name="collect",
    task_run_name="collect at {at:%H:%M:%S}",
    timeout_seconds=60,
    retries=len(BACK_OFF),
    retry_delay_seconds=list(BACK_OFF),
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
    """Decide for every variant and every binding; log each change of a workload with its reason, and return them."""
    changes = [describe(record) for record in (await shared(Tick).decide()).changes]
    for change in changes:
        get_run_logger().info("%s", change)
    return changes


@task(name="actuate", task_run_name="actuate at {at:%H:%M:%S}", timeout_seconds=60, **STAGE)
async def actuate(at: datetime) -> None:
    """Write the decisions to the statuses, scale the workloads that are ours to scale, and send Events.

    The report is left in the tick.
    """
    tick = shared(Tick)
    decision = await tick.decide()
    assert tick.fleet is not None
    done = await tick.controller.actuate(tick.fleet, decision)
    tick.report = await tick.controller.report(decision, done)


def describe(record: Record) -> str:
    """Return the change of a workload's size in a sentence."""
    return f"{record.identity.key} {record.now.current} -> {record.target.replicas}: {record.why.message}"
