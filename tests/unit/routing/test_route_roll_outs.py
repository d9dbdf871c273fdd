"""Roll-outs of ModelRoutes: which weights are set when, when they go back, and what a restart makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st
from plan_details import remember_details
from routing_world import NOW, a_pod, a_route, a_server

from modelyard.metrics.prometheus.routed import quantile
from modelyard.metrics.vocabulary.values import RoutedRequests
from modelyard.objects import Key
from modelyard.reconcile.kernel.mirror import Store
from modelyard.reconcile.kernel.reconciler import only_told
from modelyard.reconcile.plans.plan import Plan
from modelyard.routing.rolling import (
    MEMORY,
    WISH,
    RouteReading,
    RouteRollOut,
    RouteRollOutMemory,
    weights_at,
)
from modelyard.routing.route_roll_out import RouteRollOuts

KEY = Key("shop", "route")
GOOD, BAD = RoutedRequests(100, 0, 0.1), RoutedRequests(100, 30, 0.1)
WELL = (GOOD, GOOD)


class World:
    """A route ``route`` with a wish, ``old`` and ``new`` behind it, and whoever carries its plans out."""

    def __init__(self, wish: Any = None, weights: tuple[int, ...] = (100, 0), ready: bool = True) -> None:
        targets = [
            {"modelServerName": name, "weight": weight}
            for name, weight in zip(("old", "new", "other"), weights, strict=False)
        ]
        self.route = a_route("route", "llama", rules=[{"name": "all", "targetModels": targets}])
        wish = {"to": "new", "steps": [5, 50, 100]} if wish is None else wish
        self.route["metadata"]["annotations"] = {WISH: wish if isinstance(wish, str) else json.dumps(wish)}
        self.others = [a_server("old", app="old"), a_server("new", app="new"), a_server("other", app="other")]
        self.pods = [a_pod("new-1", ready=ready, app="new")]
        self.readings: dict[Key, RouteReading] = {}
        self.lifecycle = RouteRollOuts("http://prometheus", self.readings)
        self.details = remember_details(self.lifecycle)
        self.now = NOW
        self.version = 10

    def plan(self, lifecycle: RouteRollOuts | None = None) -> Plan | None:
        stores = {want.kind: Store(want) for want in RouteRollOuts.wants}
        for obj in (self.route, *self.others, *self.pods):
            next(store for kind, store in stores.items() if kind.kind == obj["kind"]).put(obj)
        assert not any(store.problems for store in stores.values())
        return (lifecycle or self.lifecycle).plan(KEY, stores, self.now)

    def write(self, plan: Plan, weights: bool = True) -> None:
        """As the kernel does; without ``weights``, up to where it was killed."""
        metadata = self.route["metadata"]
        for name, value in plan.annotations.items():
            metadata["annotations"].pop(name, None)
            metadata["annotations"] |= {name: value} if value is not None else {}
        if plan.status is not None:
            self.route["status"] = {
                "conditions": [
                    {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message,
                     "observedGeneration": c.observed_generation}
                    for c in plan.status.conditions
                ]
            }  # fmt: skip
        if plan.fill and weights:
            self.edit(plan.fill["spec"]["rules"])
        self.version += 1
        metadata["resourceVersion"] = str(self.version)

    def edit(self, rules: list[dict[str, Any]]) -> None:
        self.route = {**self.route, "spec": {**self.route["spec"], "rules": rules}}
        self.route["metadata"]["generation"] += 1

    def settle(self) -> None:
        """Carry out until there is nothing to write."""
        for _ in range(10):
            plan = self.plan()
            if plan is None or not plan.writes:
                return
            self.write(plan)
        raise AssertionError("it writes for ever")

    def measured(self, new: RoutedRequests, old: RoutedRequests, after: float = 600) -> None:
        """So many seconds after the step began this is what was measured."""
        here = self.details[KEY]
        assert here.watch is not None
        self.now = here.watch.since + after
        self.readings[KEY] = RouteReading(self.now, here.watch.since, new, old)
        self.settle()

    @property
    def weights(self) -> list[int]:
        return [one["weight"] for one in self.route["spec"]["rules"][0]["targetModels"]]

    @property
    def said(self) -> tuple[str, str]:
        (found,) = self.route["status"]["conditions"]
        return found["reason"], found["message"]


def test_weights_go_up_step_by_step_while_it_serves_as_well() -> None:
    world = World()
    world.settle()
    assert world.weights == [95, 5]
    assert world.said == (
        "RollingOut",
        "5 % of the requests go to new (step 1 of 3), until 2027-01-15T08:10:00Z at least",
    )
    world.measured(*WELL, after=599)
    assert world.weights == [95, 5], "a step lasts its time"
    world.measured(*WELL)
    assert world.weights == [50, 50]
    world.settle()
    assert world.weights == [50, 50], "a reading of the step before says nothing"
    world.measured(*WELL)
    assert world.weights == [0, 100]
    assert world.said[0] == "RollingOut", "all of the load is a step as well"
    world.measured(*WELL)
    assert world.weights == [0, 100]
    assert world.said[0] == "RolledOut"
    plan = world.plan()
    assert plan is not None
    assert not plan.writes


@pytest.mark.parametrize(
    ("new", "old", "after", "weights", "words"),
    [
        (RoutedRequests(100, 30, 0.1), GOOD, 1, [100, 0], "30.0% of 100 requests failed"),
        (RoutedRequests(2, 2, None), GOOD, 1, [95, 5], ""),  # too few to say
        (RoutedRequests(3, 3, None), GOOD, 1, [100, 0], ""),  # more than 50 may have, whatever comes
        (RoutedRequests(27, 27, None), RoutedRequests(), 1, [95, 5], ""),  # as the others might
        (RoutedRequests(28, 28, None), RoutedRequests(), 1, [100, 0], ""),
        (RoutedRequests(100, 30, 0.1), RoutedRequests(100, 28, 0.1), 600, [50, 50], ""),
        (RoutedRequests(100, 0, 0.3), GOOD, 599, [95, 5], ""),  # caches are cold
        (RoutedRequests(100, 0, 0.3), GOOD, 600, [100, 0], "TTFT p95 0.3 s, of the others 0.1 s; 1.5 times"),
        (RoutedRequests(100, 0, 0.14), GOOD, 600, [50, 50], ""),
        (RoutedRequests(100, 0, None), GOOD, 600, [50, 50], ""),
        (RoutedRequests(49, 0, 0.1), GOOD, 6000, [95, 5], ""),
        (GOOD, RoutedRequests(49, 0, 0.1), 6000, [95, 5], ""),
    ],
)  # fmt: skip
def test_what_becomes_of_a_step(
    new: RoutedRequests, old: RoutedRequests, after: float, weights: list[int], words: str
) -> None:
    world = World()
    world.settle()
    world.measured(new, old, after)
    assert world.weights == weights
    assert words in world.said[1]
    assert world.said[0] == ("RolledBack" if weights == [100, 0] else "RollingOut")


def test_what_went_back_stays_back_until_another_wish() -> None:
    world = World(weights=(60, 10, 30))
    world.settle()
    assert world.weights == [63, 5, 32]
    world.measured(*WELL)
    assert world.weights == [33, 50, 17]
    world.measured(BAD, GOOD, 5)
    assert world.weights == [60, 10, 30], "the very weights of before"
    assert world.said[0] == "RolledBack"
    world.now += 100_000
    world.settle()
    assert world.weights == [60, 10, 30]
    world.route["metadata"]["annotations"][WISH] = '{"to": "new", "steps": [10]}'
    world.settle()
    assert world.weights == [60, 10, 30]
    assert world.said[0] == "RollingOut"


def test_at_all_of_the_load_it_is_compared_with_what_was_before_and_goes_back_as_well() -> None:
    world = World({"to": "new", "steps": [100]})
    world.settle()
    here = world.details[KEY]
    assert here.watch is not None
    assert here.watch.spans(NOW + 60) == ((NOW, NOW + 60), (NOW - 600, NOW))
    world.measured(BAD, GOOD, 5)
    assert world.weights == [100, 0]


@pytest.mark.parametrize("killed_at", range(4))
def test_killed_between_memory_and_weights_it_goes_on(killed_at: int) -> None:
    """At each of its writes: the first step, the second, the last, and when it goes back."""
    world = World()
    for step in range(killed_at % 3 if killed_at < 3 else 1):
        world.settle()
        if step + 1 < killed_at < 3:
            world.measured(*WELL)
    if killed_at:
        watch = world.details[KEY].watch
        assert watch is not None
        world.now = watch.since + 600
        world.readings[KEY] = RouteReading(world.now, watch.since, BAD if killed_at == 3 else GOOD, GOOD)
    before = world.weights
    plan = world.plan()
    assert plan is not None
    assert plan.fill
    world.write(plan, weights=False)
    assert world.weights == before
    world.readings.clear()  # whoever comes has measured nothing yet
    world.now += 30
    world.settle()
    assert world.weights == [[95, 5], [50, 50], [0, 100], [100, 0]][killed_at]


def test_who_changes_weights_meanwhile_is_left_alone() -> None:
    world = World()
    world.settle()
    targets = [{"modelServerName": "old", "weight": 100}, {"modelServerName": "new", "weight": 0}]
    world.edit([{"name": "all", "targetModels": targets}])
    world.settle()
    assert world.weights == [100, 0]
    assert world.said[0] == "WeightsEdited"
    world.now += 10_000
    world.settle()
    assert world.weights == [100, 0]


def test_who_changes_something_else_meanwhile_is_none_of_its_business() -> None:
    world = World()
    world.settle()
    world.route["spec"]["rateLimit"] = {"inputTokensPerUnit": 5, "unit": "minute"}
    world.edit(world.route["spec"]["rules"])
    world.measured(*WELL)
    assert world.weights == [50, 50]
    assert world.route["spec"]["rateLimit"] == {"inputTokensPerUnit": 5, "unit": "minute"}


def test_without_the_annotation_weights_stay_and_nothing_is_left_of_it() -> None:
    world = World()
    world.settle()
    del world.route["metadata"]["annotations"][WISH]
    world.settle()
    assert world.weights == [95, 5]
    assert world.route["metadata"]["annotations"] == {}
    assert world.route["status"]["conditions"] == []


def test_it_waits_for_a_pod_and_goes_back_where_all_are_gone_at_the_end_of_a_step() -> None:
    world = World(ready=False)
    world.settle()
    assert world.weights == [100, 0]
    assert world.said == ("NoReadyPods", "waits for a ready pod of ModelServer new")
    world.pods = [a_pod("new-1", app="new")]
    world.settle()
    assert world.weights == [95, 5]
    world.pods = []
    world.measured(*WELL)
    assert world.weights == [100, 0]
    assert "has no ready pod" in world.said[1]


def test_a_shift_that_only_tells_writes_no_weights_and_has_a_run_started() -> None:
    world = World()
    tells = RouteRollOuts("http://prometheus", None)
    plan = world.plan(tells)
    assert plan is not None
    assert plan.acts, "a run is to set the first weights"
    assert not only_told(plan).writes
    world.settle()
    for after in (1, 700):
        world.now = NOW + after
        plan = world.plan(tells)
        assert plan is not None
        assert plan.acts, "a run is to measure"
        assert not only_told(plan).writes, "what there is to tell is told already"


def faults() -> Iterator[tuple[World, str]]:
    yield World("{"), "annotation modelyard.dev/roll-out"
    yield World("[]"), "is no map - write for example {to: chat-next"
    yield World("&a [*a]"), "alias or anchor"
    yield World({}), "to: Field required"
    yield World({"to": "new", "steps": [50, 5]}), "steps: Value error, each step must be greater than the one before"
    yield World({"to": "new", "steps": [0]}), "steps.0: Input should be greater than or equal to 1"
    yield World({"to": "new", "steps": list(range(1, 30))}), "steps"
    yield World({"to": "new", "minutes": 5}), "minutes: Extra inputs are not permitted"
    yield World({"to": "new", "errorRate": float("nan")}), "errorRate"
    yield World({"to": "elsewhere"}), "no rule of the ModelRoute has the ModelServer elsewhere - add {modelServerName"
    world = World()
    world.others = []
    yield world, "there is no ModelServer shop/new - create it"
    world = World()
    world.route["spec"]["rules"][0]["targetModels"][0]["weight"] = 101
    yield world, "the ModelRoute is not accepted: "
    world = World()
    owner = {"apiVersion": "registry.volcano.sh/v1alpha1", "kind": "Model", "name": "llama", "controller": True}
    world.route["metadata"]["ownerReferences"] = [owner]
    yield world, "is made by Model llama, which sets its weights - make a ModelRoute of your own"
    world = World()
    world.lifecycle = RouteRollOuts("", {})
    yield world, "nothing can be measured - set PROMETHEUS_BASE_URL"


@pytest.mark.parametrize(("world", "words"), list(faults()))
def test_a_wish_that_cannot_be_is_told_with_the_remedy(world: World, words: str) -> None:
    weights = world.weights
    world.settle()
    assert world.weights == weights
    reason, message = world.said
    assert reason == "InvalidRollOut"
    assert words in message
    plan = world.plan()
    assert plan is not None
    assert not plan.acts
    assert not plan.awaits


@pytest.mark.parametrize(
    "memory",
    [
        "{", "[]", '{"step": 1e99}', '{"step": 7}', '{"before": [{"rule": 9, "weights": [1, 1]}]}',
        '{"before": [{"rule": 0, "weights": [1]}]}', '{"since": NaN}', "x" * 200_000, '{"said": [1]}',
    ],
)  # fmt: skip
def test_a_memory_that_somebody_has_written_stops_nothing(memory: str) -> None:
    world = World()
    world.route["metadata"]["annotations"][MEMORY] = memory
    world.settle()
    assert world.weights == [95, 5]
    mine = RouteRollOut.read(world.route["metadata"]["annotations"][WISH])
    text = memory.replace("{", f'{{"wish": "{mine.digest}", "to": "new", ', 1).replace(", }", "}")
    world.route["metadata"]["annotations"][MEMORY] = text
    assert world.plan() is not None


def test_what_has_all_requests_already_is_rolled_out() -> None:
    world = World(weights=(0, 100))
    world.settle()
    assert world.weights == [0, 100]
    assert world.said == ("RolledOut", "it has all requests already")


def test_the_steps_are_shown_before_anything_is_done() -> None:
    world = World({"to": "old"}, weights=(100, 0))
    looks = RouteRollOuts("http://prometheus", None, given={KEY: '{"to": "new", "steps": [10, 100]}'})
    plan = world.plan(looks)
    assert plan is not None
    assert plan.details.ladder == ("10 %: rule 0 old 90, new 10", "100 %: rule 0 old 0, new 100")


@given(st.lists(st.integers(0, 100), min_size=2, max_size=16), st.integers(0, 15), st.integers(1, 100))
def test_weights_are_exact_and_the_others_keep_their_shares(before: list[int], place: int, percent: int) -> None:
    place %= len(before)
    if sum(before) == before[place]:
        return
    found = weights_at(before, place, percent)
    assert sum(found) == 100
    assert found[place] == percent
    others = sum(before) - before[place]
    for index, weight in enumerate(found):
        if index != place:
            assert abs(weight - (100 - percent) * before[index] / others) < 1
            assert before[index] or not weight


@pytest.mark.parametrize(
    ("buckets", "found"),
    [
        ({}, None),
        ({1.0: 19, float("inf"): 19}, None),
        ({1.0: 20, float("inf"): 20}, 0.95),
        ({1.0: 0, 2.0: 100, float("inf"): 100}, 1.95),
        ({1.0: 50, 2.0: 60, float("inf"): 100}, 2.0),
    ],
)
def test_the_time_that_most_streams_are_within(buckets: dict[float, float], found: float | None) -> None:
    assert quantile(buckets) == (None if found is None else pytest.approx(found))


def test_its_memory_holds_what_is_said() -> None:
    memory = RouteRollOutMemory()
    for _ in range(100):
        memory = memory.with_said("x" * 1000)
    assert RouteRollOutMemory.model_validate_json(memory.model_dump_json()) == memory
