"""Flow runs that ended together with their worker, and still hold places of their work queues.

A run that was killed with its worker reports nothing: it counts as running until Prefect has missed its heartbeats for
300 seconds. The labels of a run name its worker, and the name of a worker says which process it is. So runs are found
sooner:

* on the machine of the worker at once: the worker's process has ended, and no process of the run exists;
* elsewhere once the worker is offline for Prefect and the run has sent no heartbeat for as long. Both must stay so for
  a while, because a Prefect server that was away missed the signs of life of all.

A mistake costs no more than a restart. A shift that lives corrects its state (``flows/own_state.py``), and another run
stops writing once the claims of its objects name its successor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid4

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


def worker_name() -> str:
    """Return a name for a worker in this process: it says which process that is, on which machine."""
    return f"{Holder.here()}_{uuid4().hex[:8]}".replace("/", ".")


def worker_of(run: FlowRun) -> str:
    """Return the name of the worker that claimed a run; empty: none has."""
    return str((run.labels or {}).get(_WORKER_LABEL) or "")


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
        self, client: PrefectClient, pool: str, runs: Iterable[FlowRun], now: datetime, living: Container[UUID] = ()
    ) -> list[FlowRun]:
        """Return those of the runs that ended with their worker. ``now`` is the server's time."""
        claimed = [run for run in runs if worker_of(run) and run.id not in living and _is_claimed(run, now)]
        ended = _ended_here({worker_of(run) for run in claimed})
        apart = [
            run
            for run in claimed
            if worker_of(run) not in ended and run.state and now - run.state.timestamp > QUIET_AFTER
        ]
        offline = await _offline(client, pool) if apart else set[str]()
        suspects = [run for run in apart if worker_of(run) in offline]
        existing = processes_of_runs() if ended or suspects else set[UUID]()
        quiet = [run for run in suspects if run.id not in existing and not await _has_heartbeat(client, run, now)]
        return [run for run in claimed if worker_of(run) in ended and run.id not in existing] + self._sure(quiet)

    @property
    def is_watching(self) -> bool:
        """Return whether some runs have been quiet, but not for long enough."""
        return bool(self._quiet_since)

    def _sure(self, quiet: Sequence[FlowRun]) -> list[FlowRun]:
        moment = self._clock()
        self._quiet_since = {run.id: self._quiet_since.get(run.id, moment) for run in quiet}
        return [run for run in quiet if moment - self._quiet_since[run.id] >= SURE_AFTER]


def _is_claimed(run: FlowRun, now: datetime) -> bool:
    state = run.state
    if state is None or state.is_scheduled() or state.is_final():
        return False
    return not state.is_pending() or now - state.timestamp > CLAIMED_FOR


def _ended_here(names: Iterable[str]) -> set[str]:
    holders = {name: Holder.read(name) for name in names}
    return {name for name, holder in holders.items() if holder is not None and holder.has_ended()}


async def _offline(client: PrefectClient, pool: str) -> set[str]:
    workers = await client.read_workers_for_work_pool(pool, limit=WORKERS)
    return {worker.name for worker in workers if worker.status is WorkerStatus.OFFLINE}


async def _has_heartbeat(client: PrefectClient, run: FlowRun, now: datetime) -> bool:
    sent = EventFilter(
        occurred=EventOccurredFilter(since=now - QUIET_AFTER, until=now + QUIET_AFTER),
        event=EventNameFilter(name=[_HEARTBEAT]),
        resource=EventResourceFilter(id=[f"prefect.flow-run.{run.id}"]),
    )
    return bool((await client.read_events(sent, limit=1)).events)
