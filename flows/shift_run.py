"""A shift as a flow run: skipped when its moment has passed, else run, and its outcome told as a state."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.states import Completed, Failed

from flows.lateness import is_on_schedule, seconds_late
from flows.parameters import AutoscaleParameters
from flows.shift import LoopType, Outcome, Shift, TickType


async def run_shift(parameters: AutoscaleParameters, loop_type: LoopType, tick_type: TickType) -> State[Any]:
    """One shift of any loop inside the current flow run, and the state the run should end in."""
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    late_by = seconds_late(run, datetime.now(UTC))
    if parameters.is_stale(late_by):
        return Completed(name="Skipped", message=f"{late_by:.0f} s late: its moment has passed, a newer run is due")
    shift = Shift(
        parameters,
        open_loop=lambda: loop_type(parameters.for_loop),
        new_tick=tick_type,
        log=get_run_logger(),
        late_by=late_by if is_on_schedule(run) else 0.0,
    )
    return final_state(await shift.run())


def final_state(outcome: Outcome) -> State[Any]:
    """The state a run ends in, with the shift in numbers as its message."""
    if outcome.ticks == 0:
        if outcome.obstacle:
            return Failed(message=f"Not one tick: {outcome.obstacle}")
        return Completed(name="Standby", message="Another run held the lease all the while; nothing was done")
    if outcome.failed == outcome.ticks:
        return Failed(message=f"Every tick failed: {outcome}")
    return Completed(message=str(outcome))
