"""The flow ``reconcile``: keeps statuses current and starts runs for pending work. Deployed by ``prefect.yaml``."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State

from flows.forms import flat, run_parameters
from flows.parameters import ReconcileParameters
from flows.shift import Turn, run_shift, shift_name, table_key
from modelyard.objects import first_of
from modelyard.reconcile.kernel import Reconciler, Registered
from modelyard.reconcile.plans import KnownRuns, Lifecycle, TickReport
from modelyard.routing import NameRecords, RouteStatus, ServerStatus
from modelyard.workloads.roll_out import RUNTIME_STATUSES
from tasks.reconcile import Pass, RunsUnknown, look_up, start_runs, update_statuses
from tasks.registry import acting_lifecycles
from tasks.stage import share


def lifecycles(home: str, namespaces: Iterable[str] = ()) -> tuple[Registered, ...]:
    """Return every lifecycle, those that runs carry out and those that only publish statuses.

    ``home`` is the controller's namespace; ``namespaces`` are those that the shift looks at (none: all).
    """
    statuses: tuple[Lifecycle, ...] = (
        NameRecords(home, namespaces),
        RouteStatus(home),
        ServerStatus(),
        *RUNTIME_STATUSES,
    )
    return (*map(Registered, statuses), *acting_lifecycles(home))


class Reconciling(Reconciler):
    """All lifecycles as one batch."""

    async def tick(self, turn: Turn) -> TickReport:
        """Write statuses and what needs no run, then start runs: a task run for each, none where there is nothing."""
        plans = await self.look()
        runs: KnownRuns | None = None
        try:
            runs = await look_up(self, plans)
            plans = self.awaiting(plans, runs)
        except RunsUnknown as error:
            get_run_logger().warning("Starting no runs until the next tick: %s", error)
        this = Pass(self, [plan for some in plans.values() for plan in some], None if runs is None else runs.fates)
        with share(this):
            changed = [plan.subject.ref for plan in self.to_write(this.plans, this.fates) if plan.writes]
            if changed:
                await turn.run(update_statuses, first_of(sorted(map(str, changed))))
                plans = await self.look()  # a claim is conditional on the object as it is now
            if runs is not None:
                with suppress(RunsUnknown):
                    starts = self.due(plans, await look_up(self, plans, runs)).starts
                    if starts:
                        subjects = sorted(str(subject.ref) for start in starts for subject, _ in start.claims)
                        await turn.run(start_runs, first_of(subjects), list(starts))
        return TickReport(rows=this.rows)


def run_name() -> str:
    """Return the namespaces that the run looks at, and when."""
    return shift_name(f"reconcile {', '.join(run_parameters(ReconcileParameters).namespaces) or 'all namespaces'}")


@flow(name="reconcile", flow_run_name=run_name, persist_result=False, retries=0)
@flat(ReconcileParameters)
async def reconcile(parameters: ReconcileParameters) -> State[Any]:
    """Keep statuses current and start flow runs for pending work, for one shift.

    Ends as *Completed*; as *Skipped* when its moment had passed, as *Standby* when another run was the writer
    throughout, as *Failed* only when not one tick worked.
    """
    return await run_shift(
        parameters,
        lambda: Reconciling(
            lifecycles(parameters.lease_namespace, parameters.namespaces),
            parameters.namespaces,
            follow=parameters.shift_seconds > 0,
        ),
        table=table_key("reconcile", parameters.lease_name, "plans"),
    )
