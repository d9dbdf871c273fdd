"""The flow ``autoscale``: collect, decide, actuate, over and over for one shift. Deployed by ``prefect.yaml``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.forms import flat, run_parameters
from flows.parameters import AutoscaleParameters
from flows.shift import Turn, run_shift, shift_name, table_key
from modelyard.autoscaling.live import Controller
from modelyard.reconcile.plans import TickReport
from tasks.autoscale import Tick, actuate, collect, decide
from tasks.stage import share


class Autoscaling(Controller):
    """The controller as a batch lifecycle."""

    async def tick(self, turn: Turn) -> TickReport:
        """Collect, decide, actuate, over the whole fleet. Statuses alone are written without a task run."""
        tick, at = Tick(self), datetime.now(UTC)
        with share(tick):
            await turn.run(collect, at, turn.until)
            if await turn.run(decide, at):
                await turn.run(actuate, at)
            else:
                await turn.call("actuate", actuate.fn, at)
        assert tick.report is not None
        return tick.report


def run_name() -> str:
    """Return the namespaces that the run scales, and when."""
    given = run_parameters(AutoscaleParameters)
    verb = "plan" if given.fleet.dry_run else "autoscale"
    return shift_name(f"{verb} {', '.join(given.namespaces) or 'all namespaces'}")


@flow(name="autoscale", flow_run_name=run_name, persist_result=False, retries=0)
@flat(AutoscaleParameters)
async def autoscale(parameters: AutoscaleParameters) -> State[Any]:
    """Keep every variant at the size its traffic needs, for one shift.

    Ends as *Completed*; as *Skipped* when its moment had passed, as *Standby* when another run was the writer
    throughout, as *Failed* only when not one tick worked.
    """
    dry_run = parameters.fleet.dry_run
    table = table_key("autoscale", parameters.lease_name, "plan" if dry_run else "decisions")
    return await run_shift(parameters, lambda: Autoscaling(parameters.for_controller), table=table, writes=not dry_run)
