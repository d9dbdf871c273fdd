"""A fetching process is killed at any byte, again and again: what it leaves is carried on with, never half a model."""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from model_hub import Hub, serve
from node_jobs import Node

from modelyard.models.download.fetch import TOGETHER
from modelyard.models.download.pace import Limits

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["modelyard.models.download.node", "modelyard.models.sources.hub", "node_jobs"])

_FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Killed processes leave nothing in the page cache that others could miss: a disk in memory shows the same."""
LIMITS = Limits(parallel=4, part_size=4096, patience=60.0)
_random = random.Random(7)
FILES = {
    "model-1.safetensors": _random.randbytes(700_000),
    "model-2.safetensors": _random.randbytes(150_000),
    **{f"small/{number}.json": _random.randbytes(700) for number in range(10)},
}
SIZE = sum(map(len, FILES.values()))


def _fetch(root: str, endpoint: str) -> None:
    Node(Path(root), endpoint).fetch("hf://o/m", limits=LIMITS)


def _fetch_and_die(root: Path, hub: Hub, at: int) -> None:
    """One process, killed when the hub has sent so many bytes; beyond all bytes: while it finishes."""
    there, dead = threading.Event(), threading.Event()

    def hear(_: int) -> None:
        there.set() if hub.bytes_served - begin >= at else None
        if there.is_set():
            dead.wait(60)  # Nothing more is sent to who is about to be killed.

    begin = hub.bytes_served
    hub.hear = hear
    process = _CONTEXT.Process(target=_fetch, args=(str(root), hub.address), daemon=True)
    process.start()
    while process.is_alive() and not there.wait(0.002):
        pass
    process.kill()
    dead.set()
    process.join()
    hub.hear = lambda _: None


@pytest.mark.parametrize("fifth", range(5))
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_after_any_kill_the_rest_is_fetched_and_no_more(fifth: int, data: st.DataObject) -> None:
    """A hundred kills: four for each example, of which the first is in this fifth of all bytes."""
    first = st.integers(fifth * SIZE // 5, (fifth + 1) * SIZE // 5 + 1)
    kills = [data.draw(first), *data.draw(st.lists(st.integers(0, SIZE // 3), min_size=3, max_size=3))]
    with serve() as hub, tempfile.TemporaryDirectory(dir=_FAST) as folder:
        hub.add("o/m", FILES)
        node = Node(Path(folder), hub.address)
        for at in kills:
            _fetch_and_die(node.root, hub, at)
            assert not (node.root / "m").exists() or node.files() == FILES
        done = node.fetch("hf://o/m", limits=LIMITS)
        assert done.outcome == "Fetched"
        assert node.files() == FILES
        assert node.check().outcome == "Verified"
        assert node.leftovers() == []
        assert hub.bytes_served <= SIZE + len(kills) * LIMITS.parallel * TOGETHER * LIMITS.part_size
