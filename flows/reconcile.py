"""The flow ``reconcile``: a shift that tells the truth in every status, and starts the runs of what is due.

Deployed by ``prefect.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State

from flows.forms import flat, run_parameters
from flows.parameters import ReconcileParameters
from flows.shift import Turn, run_shift, shift_name, table_key
from modelyard.benchmarks.lifecycle import BenchmarkRuns
from modelyard.metrics.client import PrometheusSettings
from modelyard.models.lifecycle import ModelDelivery
from modelyard.models.names import KINDS as MODEL_KINDS
from modelyard.reconcile.dispatch import Acting
from modelyard.reconcile.plan import Lifecycle
from modelyard.reconcile.reconciler import Reconciler, Registered
from modelyard.reconcile.report import TickReport
from modelyard.routing.lifecycle import RouteStatus, ServerStatus
from modelyard.routing.name_records import NameRecords
from modelyard.routing.route_roll_out import RouteRollOuts
from modelyard.workloads.kthena.lifecycle import ModelRollOut
from modelyard.workloads.lifecycle import ServiceRollOut
from modelyard.workloads.runtime_status import RUNTIME_STATUSES
from tasks.reconcile import Runs, RunsUnknown, awaiting, due, look_up, start, tell
from tasks.stage import Handle


def lifecycles(home: str, namespaces: Iterable[str] = ()) -> tuple[Registered, ...]:
    """Every lifecycle, and the deployment whose runs act for it; ``home`` is the controller's namespace.

    ``namespaces`` are those that the shift looks at (none: all).
    """
    models = (
        Registered(
            ModelDelivery(kind, home),
            Acting("deliver/deliver", parameters={"kind": kind.kind, "controller_namespace": home}),
        )
        for kind in MODEL_KINDS
    )
    prometheus = PrometheusSettings().base_url
    services = (
        Registered(
            one,
            Acting("roll-out/roll-out", batch=20, parameters={"kind": one.about.kind, "controller_namespace": home}),
        )
        for one in (ServiceRollOut(home, prometheus=prometheus), ModelRollOut(home, prometheus=prometheus))
    )
    benchmarks = Registered(
        BenchmarkRuns(home), Acting("benchmark/benchmark", batch=10, parameters={"controller_namespace": home})
    )
    routes = Registered(
        RouteRollOuts(prometheus),
        Acting("roll-out/roll-out", parameters={"kind": "ModelRoute", "controller_namespace": home}),
    )
    statuses: tuple[Lifecycle, ...] = (
        NameRecords(home, namespaces),
        RouteStatus(home),
        ServerStatus(),
        *RUNTIME_STATUSES,
    )
    return (*map(Registered, statuses), *models, *services, routes, benchmarks)


class Reconciling(Reconciler):
    """All lifecycles as one batch."""

    async def tick(self, turn: Turn) -> TickReport:
        """Write statuses and what needs no run, then start runs: a task run for each, none where there is nothing."""
        plans, report = await self.look(), TickReport()
        runs: Runs | None = None
        try:
            runs = await look_up(self, plans)
            plans = awaiting(self, plans, runs)
        except RunsUnknown as error:
            get_run_logger().warning("Nothing is started, the next tick tries again (%s)", error)
        everything = [plan for some in plans.values() for plan in some]
        fates = None if runs is None else runs.fates
        if any(plan.writes for plan in self.to_write(everything, fates)):
            report = (await turn.run(tell, self, turn.number, Handle((everything, fates)))).take()
            plans = await self.look()  # a claim is conditional on the object as it is now
        if runs is None:
            return report
        try:
            starts = due(self, plans, await look_up(self, plans, runs)).starts
        except RunsUnknown:
            return report
        if starts:
            await turn.run(start, self, turn.number, Handle(starts))
        return report


def run_name() -> str:
    """Whose statuses the run tells, and when."""
    return shift_name(f"reconcile {', '.join(run_parameters(ReconcileParameters).namespaces) or 'all namespaces'}")


@flow(
    name="reconcile",
    flow_run_name=run_name,
    description="Tells the truth in every status and starts the runs of what is due, for one shift.",
    persist_result=False,
    retries=0,
)
@flat(ReconcileParameters)
async def reconcile(parameters: ReconcileParameters) -> State[Any]:
    """Keep every status true and every lifecycle moving, for one shift.

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
