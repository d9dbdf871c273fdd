"""Pods parsed once: what has not changed is the very same, what has changed is new, what is gone is forgotten."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from modelyard.autoscaling.live.reading import PodCache
from modelyard.objects import parse


def stored(version: str = "1", phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    fields = {"name": "llama-0", "namespace": "chat", "uid": "u", "resourceVersion": version, **metadata}
    return {"metadata": fields, "spec": {"containers": []}, "status": {"phase": phase}}


def test_an_unchanged_pod_is_parsed_once() -> None:
    cache = PodCache()
    first = cache.parse(stored())
    for _ in range(3):
        cache.turn()
        assert cache.parse(stored()) is first
        assert cache.parse(stored()) is first
    assert first == parse.pod(stored())


def test_a_changed_pod_is_parsed_anew() -> None:
    cache = PodCache()
    cache.parse(stored())
    cache.turn()
    assert cache.parse(stored("2", "Failed")).phase == "Failed"
    assert cache.parse(stored("2", "Failed")).phase == "Failed"


def test_two_readers_of_one_tick_may_see_two_versions() -> None:
    cache = PodCache()
    assert cache.parse(stored("1", "Pending")).phase == "Pending"
    assert cache.parse(stored("2", "Running")).phase == "Running"
    assert cache.parse(stored("1", "Pending")).phase == "Pending"


def test_a_pod_that_is_gone_is_forgotten() -> None:
    class Seen(str):
        """Text that can be referred to weakly."""

    cache, uid = PodCache(), Seen("gone")
    kept = weakref.ref(uid)
    cache.parse(stored(uid=uid))
    del uid
    cache.turn()
    cache.parse(stored(uid="other"))
    cache.turn()
    gc.collect()
    assert kept() is None


def test_without_an_identity_nothing_is_kept() -> None:
    cache = PodCache()
    assert cache.parse(stored(uid="", phase="Pending")).phase == "Pending"
    assert cache.parse(stored(uid="", phase="Running")).phase == "Running"
