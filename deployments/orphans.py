"""Flow runs that ended together with their worker, and still hold places of their work queues.

A run that was killed with its worker reports nothing: it counts as running until Prefect has missed its heartbeats for
300 seconds. The labels of a run name its worker, and the name that ``modelyard worker`` chooses says which process the
worker is. So runs without a process on this machine are found sooner:

* on the machine of the worker at once, when the worker's process has ended;
* elsewhere once the worker is offline for Prefect and the run has sent no heartbeat for as long. Both must stay so for
  a while, because a Prefect server that was away missed the signs of life of all.

A mistake costs no more than a restart. A shift that renews its Lease gets its state back, and another run stops writing
once the claims of its objects name its successor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import psutil
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, WorkerStatus
from prefect.events.filters import EventFilter, EventNameFilter, EventOccurredFilter, EventResourceFilter

from modelyard.cluster import Holder

QUIET_AFTER = timedelta(seconds=90)
"""Time without a heartbeat: three that are missing, after which Prefect takes a worker to be offline, too."""
SURE_AFTER = 40.0
"""Seconds for which a run and its worker must be quiet: longer than from one heartbeat to the next."""
CLAIMED_FOR = timedelta(seconds=10)
"""Time for which a pending run may still have the label of a worker that had claimed it before."""
WORKERS = 200
"""Workers that are read, those with the latest heartbeats: the most that Prefect returns."""

_WORKER_LABEL = "prefect.worker.name"
_HEARTBEAT = "prefect.flow-run.heartbeat"
_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"


def processes_of_runs() -> set[UUID]:
    """Return the flow runs that have a process on this machine, as far as this user may look."""
    runs = set()
    for process in psutil.process_iter():
        try:
            runs.add(UUID(process.environ()[_RUN_VARIABLE]))
        except (psutil.Error, KeyError, ValueError):
            continue
    return runs


class OrphanSearch:
    """Search for runs that ended with their worker. It remembers since when a run and its worker have been quiet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._quiet_since: dict[UUID, float] = {}

    async def find(
        self, client: PrefectClient, pool: str, runs: Sequence[FlowRun], now: datetime, processes: Container[UUID] = ()
    ) -> set[UUID]:
        """Return those of the runs that ended with their worker. ``now`` is the server's time.

        ``processes`` are the runs that have a process on this machine.
        """
        workers = {run.id: worker for run in runs if run.id not in processes and (worker := _worker_of(run, now))}
        ended = {name for name in set(workers.values()) if (holder := Holder.read(name)) and holder.has_ended()}
        lost = {
            run.id
            for run in runs
            if workers.get(run.id) in ended and (run.infrastructure_pid is None or run.infrastructure_pid.isdigit())
        }
        old = [
            run
            for run in runs
            if run.id in workers.keys() - lost and run.state and now - run.state.timestamp > QUIET_AFTER
        ]
        seen = await client.read_workers_for_work_pool(pool, limit=WORKERS) if old else []
        offline = {worker.name for worker in seen if worker.status is WorkerStatus.OFFLINE}
        quiet = [run.id for run in old if workers[run.id] in offline and not await _has_heartbeat(client, run, now)]
        moment = self._clock()
        self._quiet_since = {run: self._quiet_since.get(run, moment) for run in quiet}
        return lost | {run for run, since in self._quiet_since.items() if moment - since >= SURE_AFTER}


def _worker_of(run: FlowRun, now: datetime) -> str:
    state = run.state
    if state is None or state.is_scheduled() or state.is_final():
        return ""
    if state.is_pending() and now - state.timestamp <= CLAIMED_FOR:
        return ""
    return str((run.labels or {}).get(_WORKER_LABEL) or "")


async def _has_heartbeat(client: PrefectClient, run: FlowRun, now: datetime) -> bool:
    sent = EventFilter(
        occurred=EventOccurredFilter(since=now - QUIET_AFTER, until=now + QUIET_AFTER),
        event=EventNameFilter(name=[_HEARTBEAT]),
        resource=EventResourceFilter(id=[f"prefect.flow-run.{run.id}"]),
    )
    return bool((await client.read_events(sent, limit=1)).events)
