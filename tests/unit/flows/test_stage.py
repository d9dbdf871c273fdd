"""What the tasks of a tick hand each other."""

from __future__ import annotations

import gc
import weakref

import pytest

from tasks import autoscale, reconcile
from tasks.stage import Handle


class Fleet:
    """Anything large."""


def test_a_handle_gives_its_value_once_and_keeps_nothing() -> None:
    fleet = Fleet()
    watched = weakref.ref(fleet)
    handle = Handle(fleet)
    assert handle.take() is fleet
    del fleet
    gc.collect()
    assert watched() is None
    with pytest.raises(LookupError, match="taken already"):
        handle.take()


def test_the_tasks_of_a_tick_have_no_tags() -> None:
    tasks = (autoscale.collect, autoscale.decide, autoscale.actuate, reconcile.tell, reconcile.start)
    assert not any(task.tags for task in tasks), "each would ask the server for a slot, and wait while it is away"
