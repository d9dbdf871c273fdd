"""Issues of the runs of a work pool that Prefect never corrects, and the state that each run should have. Pure.

A run that was claimed and never started stays Pending, after an outage every missed run is started, and a shift that
died has no successor. A shift lives while it renews the Lease of the writer or of the standby, whatever Prefect says;
where the Leases are not known, Prefect's word counts. All moments are those of the Prefect server's clock.

A crashed parent, a run that waits for child runs, is resumed as the same flow run, so that it finds its children again
and the tree of runs stays whole. Its first task takes the object over, unless another run works on it now. Failed and
cancelled parents are left to people.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import DeploymentResponse
from prefect.states import Cancelled, Crashed, Running

from modelyard.backoff import Backoff
from modelyard.cluster import Renewal

UNRESPONSIVE = "Unresponsive"
"""Name of the state of type CRASHED of runs without a sign of life, also in ``deployments/automations.yaml``."""
STARTS = Backoff(5.0, longest=300.0)
"""Delays until a shift may have its next run, if it still lacks one."""
CLAIMED_WITHIN = 180.0
"""Seconds within which a claimed run has infrastructure; on a busy cluster it may take a while to create a Job."""
STARTED_WITHIN = 60.0
"""Seconds within which a started shift holds a Lease."""
ENDED_WITHIN = 300.0
"""Seconds after the end of its shift until a running run counts as dead; the last tick of a starved machine is late."""
LATE_AFTER = 15.0
"""Seconds after which a scheduled run gives way to a newer one."""
SOON = 30.0
"""Seconds within which a scheduled run counts as existing."""
STANDING = 2
"""Runs that each shift should have: a writer and a standby."""
MAX_RUNS = 3 * STANDING
"""Unfinished runs of a shift above which none is added, whatever its Leases say."""
PARENTS = "parents"
"""Work queue of flows that wait for child runs."""
MOST_CRASHES = 3
"""Times that a parent is resumed; after another crash it is left to people."""
RESUMED_FOR = timedelta(hours=1)
"""Time after its crash for which a parent is resumed: later, people may have gone on without it."""

Renewals = Mapping[UUID, Mapping[str, Renewal]]
"""Holders of each shift's Leases by deployment: flow run ids in hexadecimal; no entry where they are not known."""


class MissingRuns(NamedTuple):
    """A shift that lacks runs, and how many."""

    shift: DeploymentResponse
    lacking: int


class PoolIssues(NamedTuple):
    """Runs whose state is wrong, each with the right one, and shifts that lack runs."""

    states: Sequence[tuple[FlowRun, State[Any]]] = ()
    missing: Sequence[MissingRuns] = ()


class ShiftBackoff:
    """Pauses before a shift may have its next runs: twice as long each time that it still lacks one."""

    def __init__(self) -> None:
        self._pauses: dict[UUID, tuple[datetime, int]] = {}

    def allow(self, missing: Iterable[MissingRuns], now: datetime) -> list[MissingRuns]:
        """Return those that may have their runs now. The pauses of a shift that lacks none start over."""
        pauses = {each.shift.id: self._pauses.get(each.shift.id, (now, 0)) for each in missing}
        # A pause that would last longer than the longest was set before the clock was set back.
        latest = now + timedelta(seconds=STARTS.longest)
        allowed = [each for each in missing if not now < pauses[each.shift.id][0] <= latest]
        for each in allowed:
            starts = pauses[each.shift.id][1] + 1
            pauses[each.shift.id] = now + timedelta(seconds=STARTS.delay(starts)), starts
        self._pauses = pauses
        return allowed


def find_issues(
    runs: Sequence[FlowRun],
    shifts: Iterable[DeploymentResponse],
    now: datetime,
    renewals: Renewals = MappingProxyType({}),
    orphans: Container[UUID] = (),
    processes: Container[UUID] = (),
) -> PoolIssues:
    """Return what to repair in the runs that are unfinished, or due within ``SOON`` seconds, or hold a Lease.

    ``orphans`` are runs that ended with their worker, ``processes`` those that have a process on this machine.
    """
    held = {token: renewal for holders in renewals.values() for token, renewal in holders.items()}
    states: dict[UUID, State[Any]] = {run.id: _LATE for run in late_runs(runs, now)}
    for run in runs:
        state, renewal = run.state, held.get(run.id.hex)
        if state is None or renewal is Renewal.FRESH:
            if state and state.name == UNRESPONSIVE:
                states[run.id] = _ALIVE
        elif run.id in processes or state.is_final():
            continue  # on a busy machine it may take any time to start, to renew and to end
        elif run.id in orphans or (renewal is Renewal.ENDED and state.is_running()):
            states[run.id] = _CANCELLED if state.is_cancelling() else _LOST
        elif now > _deadline(run, state):
            states[run.id] = _SILENT
    by_shift: defaultdict[UUID | None, list[FlowRun]] = defaultdict(list)
    for run in runs:
        if run.id not in states and run.state and not (run.state.is_final() or run.state.is_cancelling()):
            by_shift[run.deployment_id].append(run)
    missing = [MissingRuns(shift, _lacking(shift, by_shift[shift.id], now, renewals)) for shift in shifts]
    return PoolIssues(
        [(run, states[run.id].fresh_copy()) for run in runs if run.id in states],
        [each for each in missing if each.lacking > 0],
    )


_ALIVE: State[Any] = Running(message="Heartbeats were missing, but the run renews its Lease")
_LATE: State[Any] = Cancelled(message="Its scheduled time has passed; a newer run is scheduled")
_LOST: State[Any] = Crashed(name=UNRESPONSIVE, message="Its process or its worker has ended without reporting it")
_SILENT: State[Any] = Crashed(name=UNRESPONSIVE, message="It never started, or could not report the end of its shift")
_CANCELLED: State[Any] = Cancelled(message="Its worker ended while the run was being cancelled")


def _lacking(shift: DeploymentResponse, runs: Sequence[FlowRun], now: datetime, renewals: Renewals) -> int:
    if shift.id not in renewals:
        return STANDING - len(runs)
    holders = renewals[shift.id]
    fresh = sum(renewal is Renewal.FRESH for renewal in holders.values())
    starting = [run for run in runs if run.id.hex not in holders and _is_starting(run, now)]
    return min(STANDING - fresh - len(starting), MAX_RUNS - len(runs))


def _is_starting(run: FlowRun, now: datetime) -> bool:
    state = run.state
    return state is not None and (not state.is_running() or now - state.timestamp < timedelta(seconds=STARTED_WITHIN))


def _deadline(run: FlowRun, state: State[Any]) -> datetime:
    """Return the time by which a pending run should have infrastructure and a shift should have ended."""
    if state.is_pending() and not run.infrastructure_pid:
        return max(state.timestamp, run.expected_start_time or state.timestamp) + timedelta(seconds=CLAIMED_WITHIN)
    if state.is_running() and (seconds := shift_seconds(run.parameters)):
        return state.timestamp + timedelta(seconds=seconds + ENDED_WITHIN)
    return datetime.max.replace(tzinfo=UTC)


def late_runs(runs: Iterable[FlowRun], now: datetime) -> list[FlowRun]:
    """Return of each deployment's scheduled runs that are due all but the newest, and that too if its shift is over.

    Runs that are a few seconds late or that a user created are not among them.
    """
    by_deployment: defaultdict[UUID | None, list[tuple[float, int, FlowRun]]] = defaultdict(list)
    for number, run in enumerate(runs):
        waits = run.state is not None and run.state.name in ("Scheduled", "Late")
        if run.auto_scheduled and waits and run.expected_start_time and run.expected_start_time <= now:
            late_by = (now - run.expected_start_time).total_seconds()
            by_deployment[run.deployment_id].append((late_by, number, run))
    late = []
    for newest, *older in map(sorted, by_deployment.values()):
        late += [run for late_by, _, run in older if late_by > LATE_AFTER]
        late_by, _, run = newest
        if 0 < shift_seconds(run.parameters) <= late_by:
            late.append(run)
    return late


def shift_seconds(parameters: Mapping[str, Any]) -> float:
    """Return the length of the shift; 0 for what is none."""
    seconds = parameters.get("shift_seconds")
    return seconds if isinstance(seconds, int | float) else 0


def is_resumable(states: Iterable[State[Any]], now: datetime) -> bool:
    """Return whether to resume a parent that has had these states."""
    history = sorted(states, key=lambda state: state.timestamp)
    crashes = sum(state.is_crashed() for state in history)
    return history[-1].is_crashed() and crashes <= MOST_CRASHES and now - history[-1].timestamp < RESUMED_FOR
