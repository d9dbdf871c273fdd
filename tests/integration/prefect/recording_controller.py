"""The recording loop in the real tasks of the autoscaler."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from recording_loop import Recording

from flows.autoscale import Autoscaling
from flows.forms import flat
from flows.parameters import AutoscaleParameters
from flows.shift import Turn, run_shift, table_key
from modelyard.reconcile.plans.report import TickReport


class RecordingController(Recording, Autoscaling):
    async def tick(self, turn: Turn) -> TickReport:
        self.number = turn.number
        return await Autoscaling.tick(self, turn)


@flow(name="autoscale", persist_result=False, retries=0)
@flat(AutoscaleParameters)
async def autoscale(parameters: AutoscaleParameters) -> State[Any]:
    """The flow ``flows.autoscale`` with a recording controller in place of the real one."""
    dry_run = parameters.fleet.dry_run
    table = table_key("autoscale", parameters.lease_name, "decisions")
    return await run_shift(parameters, lambda: RecordingController(parameters), table=table, writes=not dry_run)
