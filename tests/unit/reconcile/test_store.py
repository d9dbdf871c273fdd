"""The store of a mirror: what is in it, under which indexes, and that nothing is left of what is gone."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import given, strategies as st

from modelyard.objects import Key, Pod, parse
from modelyard.objects.kinds import PODS
from modelyard.reconcile.kernel.mirror import Store
from modelyard.reconcile.plans.plan import Want

WANT: Want[Pod] = Want(PODS, parse.pod, indexes={"node": lambda pod: [pod.node] if pod.node else []})


def stored(name: str = "llama-0", version: str = "1", phase: str = "Running", node: str = "") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "chat", "uid": "u", "resourceVersion": version}
    return {"metadata": metadata, "spec": {"containers": [], "nodeName": node}, "status": {"phase": phase}}


def test_an_object_is_what_was_put_last() -> None:
    store = Store(WANT)
    store.put(stored())
    assert store.all() == (parse.pod(stored()),)
    store.put(stored(version="2", phase="Failed"))
    found = store.get(Key("chat", "llama-0"))
    assert found is not None
    assert found.phase == "Failed"
    assert store.all() == (found,)


def test_what_nobody_looks_at_is_no_change() -> None:
    """Heartbeats of nodes and pods of others go on all the time; what is planned is planned anew after changes only."""
    phases: Want[str] = Want(PODS, lambda obj: obj["status"]["phase"] if obj["metadata"]["name"] == "ours" else None)
    store = Store(phases)
    store.put(stored("ours"))
    before = store.version
    store.put(stored("ours", version="2", node="elsewhere"))
    store.put(stored("theirs"))
    store.drop(Key("chat", "theirs"))
    assert (store.version, store.all()) == (before, ("Running",))
    for change in (stored("ours", phase="Failed"), stored("ours", phase="Running")):
        store.put(change)
        assert store.version > before
        before = store.version
    store.drop(Key("chat", "ours"))
    assert store.version > before
    assert store.all() == ()


def test_nothing_is_kept_of_what_is_gone() -> None:
    class Seen(str):
        """Text that can be referred to weakly."""

    store, node = Store(WANT), Seen("gpu-1")
    kept = weakref.ref(node)
    store.put(stored(node=node))
    del node
    assert len(store.by("node", "gpu-1")) == 1
    store.drop(Key("chat", "llama-0"))
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("where", ["parse", "index"])
@pytest.mark.parametrize("error", [RecursionError, RuntimeError, ValueError])
def test_an_object_that_exhausts_us_is_left_out_alone(where: str, error: type[Exception]) -> None:
    def fails(pod: Pod) -> Pod:
        if pod.node == "broken":
            raise error("x" * 10_000)
        return pod

    store = Store(
        Want(
            PODS,
            (lambda obj: fails(parse.pod(obj))) if where == "parse" else parse.pod,
            indexes={"node": (lambda pod: [fails(pod).node])} if where == "index" else {},
        )
    )
    store.put(stored("a", node="one"))
    store.put(stored("b", node="one"))
    store.put(stored("a", node="broken"))
    assert [one.key.name for one in store.all()] == ["b"], "what it was before is not true any more"
    ((key, why),) = store.problems.items()
    assert error.__name__ in why
    assert len(why) < 2000
    store.put(stored("a", node="two"))
    assert [one.key.name for one in store.all()] == ["a", "b"]
    assert not store.problems
    store.put(stored("a", node="broken"))
    store.drop(key)
    assert not store.problems


CHANGES = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["", "one", "two", None])), max_size=30)


@given(CHANGES)
def test_indexes_are_what_a_search_would_find(changes: list[tuple[str, str | None]]) -> None:
    store, there = Store(WANT), {}
    for name, node in changes:
        if node is None:
            there.pop(name, None)
            store.drop(Key("chat", name))
        else:
            there[name] = parse.pod(stored(name, node=node))
            store.put(stored(name, node=node))
        assert store.all() == tuple(there[name] for name in sorted(there))
        for place in ("", "one", "two"):
            expected = tuple(there[name] for name in sorted(there) if place and there[name].node == place)
            assert store.by("node", place) == expected
        assert store.by("namespace", "chat") == store.within(["chat"]) == store.all()
        assert store.within(["elsewhere"]) == ()
