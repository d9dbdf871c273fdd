"""Objects that the tasks of one flow run share, and declarations of tasks."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest

from flows import is_worth_reading
from tasks import autoscale, reconcile
from tasks.stage import share, shared


class Connections:
    """Anything large, or open."""


def test_a_value_is_shared_as_long_as_its_owner_says_and_kept_by_nobody() -> None:
    connections = Connections()
    watched = weakref.ref(connections)
    with share(connections):
        assert shared(Connections) is connections
    with pytest.raises(LookupError):
        shared(Connections)
    del connections
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize(
    ("level", "text", "shown"),
    [
        (logging.INFO, "Finished in state Completed()", False),
        (logging.ERROR, "Finished in state Failed('no room')", True),
        (logging.INFO, "Scaled chat 1 -> 2", True),
    ],
)
def test_that_a_task_completed_is_not_logged(level: int, text: str, shown: bool) -> None:
    record = logging.LogRecord("prefect.task_runs", level, __file__, 1, text, (), None)
    assert is_worth_reading(record) is shown
    assert bool(logging.getLogger("prefect.task_runs").filter(record)) is shown


def test_the_tasks_of_a_tick_have_no_tags() -> None:
    tasks = (autoscale.collect, autoscale.decide, autoscale.actuate, reconcile.update_statuses, reconcile.start_runs)
    assert not any(task.tags for task in tasks), "each would ask the server for a slot, and wait while it is away"
