"""Whatever tenants write: no object harms another, and every answer is settled once it is written."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st
from routing_world import HOME, NOW, a_pod, a_route, a_server, plan, world, written

from modelyard.objects import Key
from modelyard.reconcile.plans.plan import Plan
from modelyard.routing.lifecycle import RouteStatus, ServerStatus

names = st.sampled_from(["a", "b", "c"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)
routes = st.builds(
    lambda name, namespace, model, age, adapters, server: a_route(
        name, model, server, namespace=namespace, age=age, adapters=tuple(adapters - {model})
    ),
    names,
    names,
    names | st.none(),
    st.integers(0, 3),
    st.sets(names, min_size=1, max_size=2),
    names,
)
servers = st.builds(lambda name, namespace, app: a_server(name, namespace, app=app), names, names, names)
pods = st.builds(
    lambda name, namespace, ready, app: a_pod(name, namespace, ready, app=app), names, names, st.booleans(), names
)
objects = st.lists(routes | servers | pods, max_size=8, unique_by=lambda obj: (obj["kind"], *identity(obj)))


def identity(obj: dict[str, Any]) -> Key:
    return Key(obj["metadata"]["namespace"], obj["metadata"]["name"])


def plans(those: list[dict[str, Any]]) -> dict[tuple[str, Key], Plan | None]:
    everything = world(*those)
    return {
        (obj["kind"], identity(obj)): (RouteStatus(HOME) if obj["kind"] == "ModelRoute" else ServerStatus()).plan(
            identity(obj), everything, NOW
        )
        for obj in those
        if obj["kind"] != "Pod"
    }


@given(st.sampled_from(["ModelRoute", "ModelServer"]), anything, anything)
def test_nothing_that_can_be_stored_breaks_the_plan(kind: str, spec: Any, status: Any) -> None:
    obj = a_route() if kind == "ModelRoute" else a_server()
    found = plan({**obj, "spec": spec, "status": status})
    assert found is not None
    assert not found.acts
    assert found.status is not None
    assert all(len(one.message) < 2000 for one in found.status.conditions)


@given(objects, anything)
def test_a_broken_object_changes_nothing_for_others(those: list[dict[str, Any]], spec: Any) -> None:
    broken = [{**make("broken", namespace="a"), "spec": spec} for make in (a_route, a_server)]
    without, with_ = plans(those), plans([*those, *broken])
    assert {one: with_[one] for one in without} == without


@given(objects)
def test_an_unrelated_object_changes_nothing_for_others(those: list[dict[str, Any]]) -> None:
    strangers = [
        a_route("stranger", "other", "elsewhere", namespace="d", age=59),
        a_server("stranger", "d", app="other"),
        a_pod("stranger", "d", app="a"),
        a_pod("stranger", "a", app="other"),
    ]
    without, with_ = plans(those), plans([*those, *strangers])
    assert {one: with_[one] for one in without} == without


@given(objects)
def test_one_route_comes_first_for_every_name(those: list[dict[str, Any]]) -> None:
    found = plans(those)
    for name in ("a", "b", "c"):
        claims = [
            obj
            for obj in those
            if obj["kind"] == "ModelRoute"
            and (obj["spec"].get("modelName") == name or name in obj["spec"].get("loraAdapters", ()))
        ]
        ahead = [
            obj
            for obj in claims
            if (told := found["ModelRoute", identity(obj)]) is not None
            and told.status is not None
            and not any(repr(name) in one.message for one in told.status.conditions if one.type == "Conflicted")
        ]
        assert len(ahead) == min(1, len(claims))


@given(objects)
def test_what_was_written_is_settled(those: list[dict[str, Any]]) -> None:
    found = plans(those)
    stored = [obj if obj["kind"] == "Pod" else written(obj, found[obj["kind"], identity(obj)]) for obj in those]
    assert not any(told.writes or told.notices for told in plans(stored).values() if told is not None)
