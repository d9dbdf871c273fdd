"""What the tasks of one flow run share, and how they are declared."""

from __future__ import annotations

import gc
import weakref

import pytest

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


def test_the_tasks_of_a_tick_have_no_tags() -> None:
    tasks = (autoscale.collect, autoscale.decide, autoscale.actuate, reconcile.update_statuses, reconcile.start_runs)
    assert not any(task.tags for task in tasks), "each would ask the server for a slot, and wait while it is away"
