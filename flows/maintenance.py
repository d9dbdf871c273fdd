"""The flow ``maintenance``: correct what Prefect leaves behind. Deployed hourly by ``prefect.yaml``."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.parameters import MaintenanceParameters, flat
from tasks.prefect_backlog import cancel_late_backlog, crash_stuck_pending


@flow(
    name="maintenance",
    flow_run_name="correct stuck and late runs of {work_pool}",
    description="Marks runs stuck in Pending as Crashed, and cancels the backlog an outage leaves behind.",
    persist_result=False,
    retries=0,
)
@flat(MaintenanceParameters)
async def maintenance(parameters: MaintenanceParameters) -> State[Any]:
    """Mark runs stuck in Pending as Crashed, and cancel the backlog an outage leaves behind.

    A worker that dies between claiming a run and starting it leaves it Pending for ever; and after an outage Prefect
    starts every run it missed, which for a control loop is work without a point.
    """
    crashed = await crash_stuck_pending(parameters.work_pool, parameters.pending_limit_seconds)
    cancelled = await cancel_late_backlog(parameters.work_pool, parameters.late_limit_seconds)
    if not crashed and not cancelled:
        return Completed(name="NoChange", message="Nothing was stuck")
    return Completed(message=f"{crashed} stuck runs marked as crashed, {cancelled} superseded late runs cancelled")
