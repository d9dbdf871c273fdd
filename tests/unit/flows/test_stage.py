"""What the tasks of a tick hand each other."""

from __future__ import annotations

import gc
import weakref

import pytest

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
