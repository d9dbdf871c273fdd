"""Which server a request goes to."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st
from routing_world import a_route

from modelyard.objects import Key
from modelyard.routing.objects import Route, TextTest, WeightedServer, route
from modelyard.routing.table import Asked, RouteTable, at, draw, holds


def find(asked: Asked, *routes: dict[str, Any], ready: Any = lambda _: True, seed: int = 0) -> str | None:
    found = RouteTable.of(map(route, routes)).find(asked, ready, Random(seed))
    return found and found.server.name


@pytest.mark.parametrize(
    ("weights", "point", "index"),
    [([70, 30], 69, 0), ([70, 30], 70, 1), ([0, 1], 0, 1)] + [([3, 1], r, int(r == 3)) for r in range(4)],
)
def test_a_point_falls_on_a_target(weights: list[int], point: int, index: int) -> None:
    assert at(weights, point) == index


@pytest.mark.parametrize(
    ("test", "value", "taken"),
    [
        (TextTest(exact="a"), "a", True),
        (TextTest(exact="a"), "A", False),
        (TextTest(exact="", prefix="x"), "x", False),  # exact comes first
        (TextTest(prefix="/v1/chat"), "/v1/chatx", True),
        (TextTest(regex="b+"), "abbc", True),  # searched for, not anchored
        (TextTest(regex="^b+"), "abbc", False),
        (TextTest(regex="("), "(", False),
        (TextTest(regex="(a)\\1"), "aa", False),  # RE2 has no back references
        (TextTest(regex="^$"), "", True),
        (TextTest(regex="ü"), "Zürich", True),
        (TextTest(regex="a"), "\udcff", False),
        (TextTest(), "anything", True),
    ],
)
def test_a_text_is_compared(test: TextTest, value: str, taken: bool) -> None:
    assert holds(test, value) is taken


def test_a_regex_bomb_is_matched_in_linear_time() -> None:
    assert not holds(TextTest(regex="^(a+)+$"), "a" * 100_000 + "b")


def test_an_adapter_s_requests_are_not_taken_by_a_model_of_a_namespace_that_came_later() -> None:
    ours = a_route("ours", None, "ours", adapters=("sql",), age=9)
    thief = a_route("thief", "sql", "thief", namespace="hostile")
    assert find(Asked("sql"), ours, thief) == "ours"
    assert find(Asked("sql"), ours, a_route("model", "sql", "model")) == "model", "of the own namespace"
    assert find(Asked("sql"), ours, a_route("older", "sql", "older", namespace="other", age=10)) == "older"


def test_what_conditions_cost_a_request_has_a_bound() -> None:
    """A tenant writes the expressions and sends the headers they are tried on: all others wait meanwhile."""

    def rule(**header: str) -> dict[str, Any]:
        return {"targetModels": [{"modelServerName": "server"}], "modelMatch": {"headers": {"x": header}}}

    long = Asked("llama", headers={"x": "a" * 16_000})
    costly = a_route("a", rules=[rule(regex="(a?){500}b")] * 16)
    assert find(long, a_route(rules=[rule(prefix="a")])) == "server"
    assert find(long, costly, a_route("b", rules=[rule(prefix="a")])) is None, "it was tried to the end"
    assert find(Asked("llama", headers={"x": "aab"}), costly) == "server"
    cookie = Asked("llama", headers={"x": "a" * 4000 + "tier=gold;"})
    assert find(cookie, a_route(rules=[rule(regex="tier=silver;")] * 15 + [rule(regex="tier=gold;")])) == "server"
    many = [a_route(f"r{number:04}", rules=[rule(exact="b")] * 16) for number in range(3000)]
    assert find(long, *many, a_route("s", rules=[rule(prefix="a")])) is None


def test_every_condition_of_a_rule_must_hold() -> None:
    picky = {
        "modelMatch": {
            "headers": {"X-Tier": {"exact": "gold"}},
            "uri": {"prefix": "/v1/chat"},
            "body": {"model": "llama"},
        },
        "targetModels": [{"modelServerName": "gold"}],
    }
    rules = [picky, {"targetModels": [{"modelServerName": "rest"}]}]
    ours = a_route(rules=rules, adapters=("poet",))
    gold = Asked("llama", "/v1/chat/completions", {"x-tier": "gold"})
    assert find(gold, ours) == "gold"
    for other in (gold._replace(model="poet"), gold._replace(path="/v1/embeddings"), gold._replace(headers={})):
        assert find(other, ours) == "rest"


def test_the_oldest_route_comes_first_and_the_next_one_after_it() -> None:
    never = {"modelMatch": {"uri": {"exact": "/never"}}, "targetModels": [{"modelServerName": "old"}]}
    old, young = a_route("old", "llama", "old", age=9), a_route("young", "llama", "young")
    assert find(Asked("llama"), young, old) == "old"
    assert find(Asked("llama"), young, a_route("old", age=9, rules=[never])) == "young"


def test_a_model_is_never_taken_for_an_adapter() -> None:
    lora = a_route("lora", "base", "adapted", age=9, adapters=("llama",))
    never = {"modelMatch": {"uri": {"exact": "/never"}}, "targetModels": [{"modelServerName": "old"}]}
    assert find(Asked("llama"), lora) == "adapted"
    assert find(Asked("llama"), lora, a_route(rules=[never])) is None


def test_a_target_without_pods_gives_way_to_one_with_some() -> None:
    two = a_route("two", "llama", "empty", "full")
    for seed in range(20):
        assert find(Asked("llama"), two, ready=lambda key: key.name == "full", seed=seed) == "full"
    assert find(Asked("llama"), two, ready=lambda _: False) in ("empty", "full")


@given(st.lists(st.integers(0, 100), min_size=1, max_size=16).filter(any), st.integers(), st.text(min_size=1))
def test_no_target_of_weight_0_is_drawn_and_a_session_stays_where_it_is(
    weights: list[int], seed: int, session: str
) -> None:
    targets = [WeightedServer(str(index), weight) for index, weight in enumerate(weights)]
    for asked in ("", session):
        drawn = draw(targets, asked, Random(seed))
        assert drawn is not None
        assert drawn.weight
        assert draw(targets, asked, Random(seed)) == drawn
    assert draw(targets, session, Random(1)) == draw(targets, session, Random(2))


def test_draws_follow_the_weights() -> None:
    targets, random = [WeightedServer("a", 50), WeightedServer("b", 30)], Random(7)
    drawn = [draw(targets, "", random) for _ in range(20_000)]
    assert drawn.count(targets[0]) / len(drawn) == pytest.approx(0.625, abs=0.02)


_ROUTES = st.builds(
    lambda name, space, model, adapters, age: route(
        a_route(name, model, name, namespace=space, age=age, adapters=tuple(sorted(adapters - {model})))
    ),
    st.sampled_from("abcd"),
    st.sampled_from(["shop", "bank"]),
    st.sampled_from("xyz"),
    st.sets(st.sampled_from("uvxyz"), max_size=3),
    st.integers(0, 5),
)


@given(st.lists(_ROUTES, max_size=12))
def test_a_table_that_is_changed_is_the_table_that_is_built(changes: list[Route]) -> None:
    table, held = RouteTable(), dict[Key, Route]()
    for one in changes:
        before = held.get(one.key)
        held[one.key] = one
        unchanged = RouteTable(dict(table.claims), dict(table.served))
        after = table.changed([(before, one)])
        assert table == unchanged
        table = after
    assert table == RouteTable.of(held.values())
    for one in list(held.values()):
        table = table.changed([(one, None)])
    assert table == RouteTable()
