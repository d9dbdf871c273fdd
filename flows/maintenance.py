"""The flow ``maintenance``: correct what Prefect leaves behind. Deployed hourly by ``prefect.yaml``."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed
from pydantic import BaseModel, ConfigDict, Field

from tasks.prefect_backlog import cancel_late_backlog, crash_stuck_pending


class MaintenanceParameters(BaseModel):
    """What counts as stuck."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    work_pool: str = Field("modelyard", min_length=1, description="only runs of this work pool are touched")
    pending_limit_seconds: float = Field(
        300, ge=60, le=86_400, description="a run that is Pending for longer was never started and is marked Crashed"
    )
    late_limit_seconds: float = Field(
        120,
        ge=0,
        le=86_400,
        description="late scheduled runs older than this are cancelled if a newer one of their deployment is late too",
    )


@flow(name="maintenance", persist_result=False, retries=0)
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
