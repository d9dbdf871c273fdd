"""Which pods should answer, best first."""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from modelyard.objects import Key
from modelyard.routing.plugins import Configuration, Plugins, configuration
from modelyard.routing.schedule import (
    Context,
    EngineGauges,
    FilteredOut,
    Memo,
    PrefixCache,
    PrefixCaches,
    RoutedPod,
    average,
    least_latency,
    least_request,
    pair,
    prefix_hashes,
    rank,
)

SHIPPED = Plugins(scores=(("least-request", 1), ("gpu-usage", 1), ("least-latency", 1), ("prefix-cache", 1)))


def a_replica(name: str, outstanding: int = 0, group: str = "", models: str = "", **gauges: float) -> RoutedPod:
    told = EngineGauges(0.0, **{"running": outstanding, **gauges})
    key = Key("shop", name)
    return RoutedPod(key, f"http://{name}", group, frozenset(models.split()), told, outstanding=outstanding)


def names(found: list[Any]) -> list[str]:
    return [one.pod.key.name for one in found]


def test_the_shipped_set() -> None:
    pods = [
        a_replica("A", 2, usage=0.4, ttft=0.2, tpot=0.02),
        a_replica("B", 0, usage=0.1, ttft=0.4, tpot=0.03),
        a_replica("C", 6, waiting=1, usage=0.9, ttft=0.8, tpot=0.06),
    ]
    cache, hashes = PrefixCache(), (1, 2, 3, 4)
    cache.learn(pods[0].key, hashes[:3])
    cache.learn(pods[2].key, hashes)
    found = rank(pods, Context(hashes=hashes), SHIPPED, cache, 0.0, Random(0))
    assert names(found) == ["A", "B", "C"]
    assert [list(one.points.values()) for one in found] == [[98, 60, 100, 75], [100, 90, 70, 0], [0, 9, 0, 100]]
    pods[2].gauges = EngineGauges(0.0, waiting=10)
    assert names(rank(pods, Context(hashes=hashes), SHIPPED, cache, 0.0, Random(0))) == ["A", "B"]


def test_requests_under_way_that_the_engine_does_not_run_count_as_waiting() -> None:
    pods = [a_replica("x", 5), a_replica("y", 5, running=0), a_replica("z", 0)]
    only = Plugins(scores=(("least-request", 1.0),))
    found = rank(pods, Context(), only, PrefixCache(), 0.0, Random(0))
    assert {one.pod.key.name: one.points["least-request"] for one in found} == {"x": 99, "y": 0, "z": 100}
    assert least_request([0.0, 1010, 505]) == [100, 0, 50]
    assert least_request([0.0, 0.0]) == [100, 100]


@pytest.mark.parametrize(("share", "points"), [(0.5, [100, 62, 0]), (1.0, [100, 50, 0]), (0.0, [100, 75, 0])])
def test_least_latency(share: float, points: list[int]) -> None:
    ttft, tpot = np.array([0.2, 0.5, 0.8]), np.array([0.02, 0.03, 0.06])
    assert least_latency(ttft, tpot, share).tolist() == points
    assert least_latency(np.append(ttft, 0), np.append(tpot, 0), share).tolist() == [*points, 50]


@pytest.mark.parametrize(("capacity", "prompt", "matched"), [(2, 3, 2), (3, 5, 3)])
def test_the_head_of_a_prefix_is_kept(capacity: int, prompt: int, matched: int) -> None:
    cache, pod, hashes = PrefixCache(capacity), Key("shop", "a"), list(range(prompt))
    cache.learn(pod, hashes)
    assert cache.matches(hashes, {pod}, 5) == {pod: matched}
    assert cache.matches(hashes, set(), 5) == {}
    cache.forget(pod)
    assert cache.matches(hashes, {pod}, 5) == {}


def test_prefixes_of_one_namespace_have_a_bound_and_push_out_none_of_another() -> None:
    caches = PrefixCaches(most=100)
    ours, pod = Key("shop", "server"), Key("shop", "a")
    caches.of(ours, 50)
    caches.learn(ours, pod, range(30))
    for number in range(40):  # as many servers before the same pods as a tenant likes
        server = Key("hostile", f"s{number}")
        caches.of(server, 50)
        caches.learn(server, Key("hostile", "p"), range(number, number + 40))
    assert sum(caches.of(Key("hostile", f"s{number}"), 50).size for number in range(40)) <= 100
    assert caches.of(Key("hostile", "s39"), 50).size == 40
    assert caches.of(ours, 50).matches(range(30), {pod}, 5) == {pod: 30}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 9), unique=True), st.booleans()), max_size=30))
def test_a_cache_knows_its_size_and_its_owners(told: list[tuple[str, list[int], bool]]) -> None:
    cache, held = PrefixCache(1000), {Key("shop", "a"): set[int](), Key("shop", "b"): set[int]()}
    for name, hashes, forgotten in told:
        pod = Key("shop", name)
        if forgotten:
            cache.forget(pod)
            held[pod] = set()
        else:
            cache.learn(pod, hashes)
            held[pod] |= set(hashes)
        assert cache.size == sum(map(len, held.values()))
        for one in range(10):
            assert cache.matches([one], held.keys(), 5).keys() == {pod for pod in held if one in held[pod]}


def test_hashes_of_a_prompt() -> None:
    assert prefix_hashes("test-model", "Hello World", Plugins()) == [1993528491812861608]
    assert prefix_hashes("test-model", "", Plugins()) == []
    assert len(prefix_hashes("m", "ü" * 100_000, Plugins())) == 128


@given(st.text(max_size=300), st.text(max_size=300), st.integers(1, 64))
def test_prompts_share_hashes_as_far_as_they_share_blocks(head: str, tail: str, size: int) -> None:
    plugins = Plugins(block_size=size)
    whole, first = (prefix_hashes("m", text, plugins) for text in (head + tail, head))
    shared = min(len(head.encode()) // size, plugins.max_blocks)
    assert whole[:shared] == first[:shared]


@pytest.mark.parametrize(
    ("before", "now", "seconds"),
    [
        ((10, 5), (18, 9), 2.0),
        ((10, 5), (10, 5), 7.0),
        ((10, 5), (9, 2), 4.5),
        ((100, 10), (15, 15), 1.0),
        ((10, 5), (0, 0), 0.0),
        (None, (10, 5), 0.0),
    ],
)
def test_averages(before: tuple[float, float] | None, now: tuple[float, float], seconds: float) -> None:
    assert average(before, now, last=7.0) == seconds


def test_equal_pods_share_the_load() -> None:
    pods, random = [a_replica(str(index)) for index in range(4)], Random(3)
    first = Counter(names(rank(pods, Context(), Plugins(), PrefixCache(), 0.0, random))[0] for _ in range(2000))
    assert all(count > 350 for count in first.values())
    assert len(first) == 4


def test_a_pod_that_tells_nothing_is_neither_best_nor_worst_and_an_unreachable_one_is_last() -> None:
    pods = [a_replica("idle"), a_replica("middle", waiting=4), a_replica("busy", waiting=8), a_replica("old")]
    pods[3].gauges = EngineGauges(-60.0)
    only = Plugins(scores=(("least-request", 1.0),))
    found = rank(pods, Context(), only, PrefixCache(), 0.0, Random(0))
    assert {one.pod.key.name: one.points["least-request"] for one in found} == {
        "idle": 100, "middle": 50, "busy": 0, "old": 50
    }  # fmt: skip
    pods[0].failed = 3
    assert names(rank(pods, Context(), only, PrefixCache(), 0.0, Random(0)))[-1] == "idle"


@pytest.mark.parametrize(
    ("gauges", "points"),
    [
        ({"usage": math.nan}, {"gpu-usage": 50, "least-request": 0}),
        ({"waiting": math.nan, "running": math.nan, "usage": 0.0}, {"gpu-usage": 100, "least-request": 50}),
    ],
)
def test_a_gauge_that_an_engine_does_not_show_is_that_of_the_others(
    gauges: dict[str, float], points: dict[str, float]
) -> None:
    pods = [a_replica("idle", usage=0.2), a_replica("busy", waiting=8, usage=0.8), a_replica("silent")]
    pods[2].gauges = EngineGauges(0.0, **{"waiting": 8, "usage": 0.5, **gauges})
    both = Plugins(scores=(("gpu-usage", 1.0), ("least-request", 1.0)))
    points_of = {
        picked.pod.key.name: picked.points for picked in rank(pods, Context(), both, PrefixCache(), 0.0, Random(0))
    }
    assert points_of["silent"] == points
    alone = rank(pods[2:], Context(), both, PrefixCache(), 0.0, Random(0))
    assert len(alone) == 1


def test_adapters() -> None:
    pods = [a_replica("a", 5, models="base poet"), a_replica("b", models="base")]
    strict = Plugins(filters=("lora-affinity",))
    assert names(rank(pods, Context("poet", lora=True), Plugins(), PrefixCache(), 0.0, Random(0))) == ["a"]
    assert len(rank(pods, Context("other", lora=True), Plugins(), PrefixCache(), 0.0, Random(0))) == 2
    with pytest.raises(FilteredOut, match="lora-affinity"):
        rank(pods, Context("other", lora=True), strict, PrefixCache(), 0.0, Random(0))


def test_prefill_and_decode_are_paired_within_a_group() -> None:
    prefill = [a_replica("p1", 3, group="1"), a_replica("p2", group="1"), a_replica("p3", group="2")]
    decode = [a_replica("d1", group="1"), a_replica("d2", 4, group="2"), a_replica("d3", group="3")]
    found = pair(decode, prefill, Context(), Plugins(), PrefixCache(), 0.0, Random(0))
    assert [(one.pod.key.name, one.prefill and one.prefill.key.name) for one in found] == [("d1", "p2"), ("d2", "p3")]
    with pytest.raises(FilteredOut, match="no valid prefill-decode"):
        pair(decode[2:], prefill, Context(), Plugins(), PrefixCache(), 0.0, Random(0))
    with pytest.raises(FilteredOut, match="no decode pod"):
        pair([], prefill, Context(), Plugins(), PrefixCache(), 0.0, Random(0))


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20), st.floats(0, 1), st.floats(0, 9)), max_size=30),
    st.integers(),
)
def test_the_best_are_among_those_given_and_equal_seeds_choose_equally(
    loads: list[tuple[int, int, float, float]], seed: int
) -> None:
    pods = [
        a_replica(str(index), out, waiting=waiting, usage=usage, ttft=time, tpot=time)
        for index, (out, waiting, usage, time) in enumerate(loads)
    ]
    can = [pod for pod in pods if pod.gauges is not None and pod.gauges.waiting < 10]
    if pods and not can:
        with pytest.raises(FilteredOut):
            rank(pods, Context(), SHIPPED, PrefixCache(), 0.0, Random(seed))
        return
    found = rank(pods, Context(), SHIPPED, PrefixCache(), 0.0, Random(seed))
    assert names(found) == names(rank(pods, Context(), SHIPPED, PrefixCache(), 0.0, Random(seed)))
    assert len({*names(found)}) == len(found) == min(5, len(can))
    assert all(one.pod in can for one in found)
    assert all(0 <= points <= 100 for one in found for points in one.points.values())
    totals = [sum(one.points.values()) for one in found]
    assert totals == sorted(totals, reverse=True)


unknown = st.just(math.nan)
gauges = st.none() | st.builds(
    EngineGauges, st.floats(-12, 3), st.integers(0, 12) | unknown, st.integers(0, 9) | unknown,
    st.floats(0, 1) | unknown, st.floats(0, 2), st.floats(0, 1),
)  # fmt: skip
changes = st.tuples(st.integers(0, 5), gauges, st.integers(0, 9), st.integers(0, 4), st.sampled_from(["", "poet"]))


@given(st.lists(changes, max_size=25), st.floats(0, 4), st.sampled_from([SHIPPED, Plugins()]))
def test_what_is_kept_from_pick_to_pick_changes_no_pick(
    steps: list[tuple[int, EngineGauges | None, int, int, str]], each: float, plugins: Plugins
) -> None:
    pods = [a_replica(str(index), models="poet" if index < 2 else "") for index in range(6)]
    cache, memo, now = PrefixCache(), Memo(), 0.0
    cache.learn(pods[3].key, (1, 2))
    for seed, (place, told, outstanding, failed, adapter) in enumerate(steps):
        pods[place].gauges, pods[place].outstanding, pods[place].failed = told, outstanding, failed
        now += each
        context = Context(adapter, bool(adapter), (1, 2, 3))
        found = []
        for kept in (memo, None):
            try:
                some = pods[seed % 2 :]
                ranked = rank(some, context, plugins, cache, now, Random(seed), memo=kept)
                found.append([(one.pod.key.name, one.points) for one in ranked])
            except FilteredOut as why:
                found.append([(str(why), {})])
        assert found[0] == found[1]


def test_a_configuration_is_read_whole() -> None:
    found = configuration(
        {
            "scheduler": {
                "pluginConfig": [{"name": "least-request", "args": {"maxWaitingRequests": 3}}],
                "plugins": {
                    "Filter": {"enabled": ["least-request", "lora-affinity"], "disabled": ["lora-affinity"]},
                    "Score": {"enabled": [{"name": "random"}, {"name": "gpu-usage", "weight": 0.5}]},
                },
            },
            "modelServers": {"shop/a": {"scheduler": {"plugins": {"Filter": {"enabled": []}}}}},
        }
    )
    base = Plugins(filters=("least-request",), scores=(("gpu-usage", 0.5),), max_waiting=3)
    assert found.of("shop/b") == base
    assert found.of("shop/a") == Plugins(filters=(), scores=base.scores, max_waiting=3)
    assert configuration({}) == Configuration()


@pytest.mark.parametrize(
    ("scheduler", "told"),
    [
        ({"plugins": {"Score": {"enabled": [{"name": "kv-cache"}]}}}, "kv-cache"),
        (
            {"plugins": {"Score": {"enabled": [{"name": "kvcache-aware"}]}}},
            "scheduler.plugins.Score: 'kvcache-aware' is not available: .*score 0; use prefix-cache",
        ),
        (
            {"plugins": {"Score": {"enabled": [{"name": "prefix-cache"}, {"name": "kvcache-aware", "weight": 0}]}}},
            "'kvcache-aware' is not available",
        ),
        (
            {"pluginConfig": [{"name": "kvcache-aware", "args": {"blockSizeToHash": 16}}]},
            r"scheduler.pluginConfig\[0\].name: 'kvcache-aware' is not available",
        ),
        ({"pluginConfig": [{"name": "kv-cache"}]}, "no plugin 'kv-cache', only .*prefix-cache"),
        ({"plugins": {"Score": {"enabled": [{"name": "random", "weight": -1}]}}}, "weight of random"),
        ({"plugins": {"Score": {"enabled": [{"name": "random", "weight": float("nan")}]}}}, "weight of random"),
        ({"plugins": {"Filter": {"enabled": ["least-latency"]}}}, "least-latency"),
        ({"plugins": {"Bind": {}}}, "Bind"),
        ({"pluginConfig": [{"name": "least-request", "args": {"most": 1}}]}, "most"),
        ({"pluginConfig": [{"name": "least-latency", "args": {"TTFTTPOTWeightFactor": 2}}]}, "from 0 to 1"),
        ({"pluginConfig": [{"name": "prefix-cache", "args": {"topKMatches": 1.5}}]}, "1.5"),
        ([], "not a mapping"),
    ],
)
def test_a_bad_configuration_is_refused(scheduler: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        configuration({"scheduler": scheduler})
