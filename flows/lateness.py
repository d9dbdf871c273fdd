"""How late a run begins, and whether its moment has passed.

After an outage Prefect starts every run it missed, oldest first; without this guard each would drive the fleet once.
"""

from __future__ import annotations

from datetime import datetime

from prefect.client.schemas.objects import FlowRun


def seconds_late(run: FlowRun | None, now: datetime) -> float:
    """Seconds between the moment a run was meant for and ``now``; negative when it is ahead of it.

    Zero for a run somebody asked for by hand: it is meant for whenever it begins.
    """
    if run is None or run.expected_start_time is None or not (run.auto_scheduled or _by_automation(run)):
        return 0.0
    return (now - run.expected_start_time).total_seconds()


def is_on_schedule(run: FlowRun | None) -> bool:
    """Whether the run's shift belongs to the schedule, and so begins and ends with it."""
    return run is not None and run.auto_scheduled


def _by_automation(run: FlowRun) -> bool:
    return run.created_by is not None and run.created_by.type == "AUTOMATION"
