"""The state that Prefect keeps of a flow run, watched by the run itself.

Heartbeats are events that may be late or lost: on a starved machine, after a suspended one wakes, or while the server
catches up, the zombie automation takes a live run for a lost one. A run that finds itself marked so corrects its state.
A run that was given any other final state stops: whoever set it counts on another run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.states import Completed, Running

T = TypeVar("T")
Log = logging.Logger | logging.LoggerAdapter[logging.Logger]

UNRESPONSIVE = "Unresponsive"
"""Name of the state of type CRASHED that ``deployments/automations.yaml`` sets when heartbeats are missing."""
EVERY = 30.0
"""Seconds between two looks at the run's state."""
CALL_TIMEOUT = 10.0
"""Seconds that one look may take; the server may be away."""


async def run_unless_ended(work: Coroutine[Any, Any, T], run: UUID, log: Log) -> T | State[Any]:
    """Do the work; stop it when somebody gives the run a final state, and return the state to end in."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(_final_state(run, log))
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        state = watching.result()
        log.warning("Stopping: this run was given the state %s (%s)", state.name, state.message)
        message = f"The run was given the state {state.name} while it ran, and stopped; the next one goes on"
        return Completed(name="Superseded", message=message)
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _final_state(run: UUID, log: Log) -> State[Any]:
    """Wait for a final state that is not a mistake about this run."""
    while True:
        await asyncio.sleep(EVERY)
        try:
            async with asyncio.timeout(CALL_TIMEOUT), get_client() as client:
                state = (await client.read_flow_run(run)).state
                if state is None or not state.is_final():
                    continue
                if not (state.is_crashed() and state.name == UNRESPONSIVE):
                    return state
                message = "Heartbeats were missing, but the run goes on"
                await client.set_flow_run_state(run, Running(message=message), force=True)
                log.warning("Corrected the state of this run: %s (%s)", state.name, state.message)
        except Exception as error:  # a server may fail in many ways; none of them may end the work
            log.debug("The state of this run cannot be read: %r", error)
