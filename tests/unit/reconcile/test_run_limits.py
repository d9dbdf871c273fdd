"""Order and bounds of flow runs across namespaces and lifecycles, by simulation of Prefect's queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS, SECRETS
from modelyard.reconcile.plans.claims import Claim
from modelyard.reconcile.plans.dispatch import Acting, RunFate, dispatch
from modelyard.reconcile.plans.plan import Plan, Subject
from modelyard.reconcile.plans.run_limits import ActiveRun, RunLimits, RunLoad

NOW = 1_800_000_000.0
DELIVER = Acting("deliver/deliver")
ROLL_OUT = Acting("roll-out/roll-out", batch=3)
KINDS = {DELIVER.deployment: CONFIG_MAPS, ROLL_OUT.deployment: SECRETS}
APPLY: dict[str, Any] = {"apply": ({"kind": "ConfigMap", "metadata": {"name": "child"}},)}
REMOVE: dict[str, Any] = {"finalizer": False}


def plan(namespace: str, name: str, acting: Acting = DELIVER, urgency: int = 0, **deeds: Any) -> Plan:
    subject = Subject(KINDS[acting.deployment], Key(namespace, name), f"{namespace}-{name}", 1)
    return Plan(subject, urgency=urgency, **(deeds or APPLY))


def several(namespace: str, count: int, acting: Acting = DELIVER, **deeds: Any) -> list[Plan]:
    return [plan(namespace, f"n{number:02}", acting, **deeds) for number in range(count)]


class Queue:
    """Prefect's work queue and its workers: runs start in the order of their creation, so many at a time."""

    def __init__(self, places: int) -> None:
        self.limits = RunLimits(places)
        self.queued: list[tuple[str, list[Plan]]] = []
        self.running: list[tuple[str, list[Plan]]] = []
        self.started: list[list[Key]] = []
        """The objects of each run, in the order of starting."""
        self.last_starts: dict[str, float] = {}
        self.waiting: dict[Key, str] = {}

    def load(self) -> RunLoad:
        active = [
            ActiveRun(deployment, frozenset(item.subject.key.namespace for item in objects), queued)
            for queued, runs in ((False, self.running), (True, self.queued))
            for deployment, objects in runs
        ]
        return RunLoad(active, self.limits, self.last_starts)

    def tick(self, due: Sequence[tuple[Acting, list[Plan]]], now: float) -> None:
        """Create runs for what is due and not under way yet."""
        busy = {item.subject for _, objects in (*self.queued, *self.running) for item in objects}
        work = [(acting, [item for item in plans if item.subject not in busy]) for acting, plans in due]
        made = dispatch(work, {}, now, self.load())
        by_subject = {item.subject: item for _, plans in work for item in plans}
        for start in made.starts:
            objects = [by_subject[subject] for subject, _ in start.claims]
            self.queued.append((start.deployment, objects))
            self.last_starts |= {item.subject.key.namespace: now for item in objects}
        self.waiting = {ref.key: reason for ref, reason in made.waiting.items()}

    def poll(self) -> None:
        """Start what has a place."""
        while self.queued and len(self.running) < self.limits.places:
            run = self.queued.pop(0)
            self.running.append(run)
            self.started.append([item.subject.key for item in run[1]])

    def end(self, number: int, due: Sequence[tuple[Acting, list[Plan]]]) -> None:
        """End one of the running runs: its objects are no longer due."""
        _, ended = self.running.pop(number % len(self.running))
        for _, plans in due:
            plans[:] = [item for item in plans if item not in ended]


def test_sixty_deletions_and_sixty_models_of_one_namespace_let_a_neighbour_start_second() -> None:
    """The neighbour's roll-out is of another lifecycle, and becomes due after all of them."""
    greedy = [*several("greedy", 60, **REMOVE), *(plan("greedy", f"valid{number}") for number in range(60))]
    due = [(DELIVER, greedy), (ROLL_OUT, list[Plan]())]
    queue = Queue(places=5)
    for tick in range(10):
        queue.tick(due, NOW + tick)
        queue.poll()
        queue.end(0, due)
    before = len(queue.started)
    due[1][1].append(plan("modest", "only", ROLL_OUT))
    queue.tick(due, NOW + 20)
    queue.poll()
    started = [keys[0].namespace for keys in queue.started[before:]]
    assert "modest" in started
    assert started.count("greedy") <= 1
    assert len(queue.running) + len(queue.queued) <= 5
    (reason,) = set(queue.waiting.values())
    assert reason == "waits for its turn: 3 runs of its namespace are under way (limit 3)"


def test_the_first_run_of_every_namespace_comes_before_the_second_of_any() -> None:
    due = [(DELIVER, [*several("a", 9), *several("b", 2)]), (ROLL_OUT, several("c", 9, ROLL_OUT))]
    made = dispatch(due, {}, NOW, RunLoad(limits=RunLimits(places=6)))
    order = [(start.deployment.partition("/")[0], start.claims[0][0].key.namespace) for start in made.starts]
    assert order[:3] == [("deliver", "a"), ("deliver", "b"), ("roll-out", "c")]
    assert Counter(order) == {("deliver", "a"): 2, ("deliver", "b"): 2, ("roll-out", "c"): 2}, "6 places"
    assert len(made.starts[2].claims) == ROLL_OUT.batch


def test_urgency_counts_within_a_namespace_alone() -> None:
    greedy = [plan("greedy", name, urgency=1000) for name in "abc"]
    modest = [plan("modest", "calm"), plan("modest", "urgent", urgency=1)]
    made = dispatch([(DELIVER, [*greedy, *modest])], {}, NOW)
    names = [start.claims[0][0].key.name for start in made.starts]
    assert names == ["a", "urgent", "b", "calm", "c"]


def test_lifecycles_of_one_namespace_take_turns() -> None:
    due = [(DELIVER, several("a", 60, **REMOVE)), (ROLL_OUT, [plan("a", "service", ROLL_OUT)])]
    made = dispatch(due, {}, NOW)
    assert [start.deployment for start in made.starts] == [DELIVER.deployment, ROLL_OUT.deployment, DELIVER.deployment]
    under_way = [ActiveRun(DELIVER.deployment, frozenset(["a"]))] * 2
    (start,) = dispatch(due, {}, NOW, RunLoad(under_way)).starts
    assert start.deployment == ROLL_OUT.deployment, "the other one has two runs already"


@pytest.mark.parametrize(
    ("active", "reason"),
    [
        ([ActiveRun("x", frozenset(["a"]))] * 3, "3 runs of its namespace are under way (limit 3)"),
        ([ActiveRun("x", frozenset("abc"))] * 4, "4 runs of its namespace are under way (limit 3)"),
        ([ActiveRun("by hand", frozenset())] * 10, "the runs of all namespaces are at their limit (10)"),
        (
            [*[ActiveRun("x", frozenset("b"))] * 5, ActiveRun("x", frozenset("a"), queued=True)],
            "a run of its namespace is queued, and all 5 places are taken",
        ),
        ([*[ActiveRun("x", frozenset("b"))] * 5, ActiveRun("x", frozenset("c"), queued=True)], ""),
        ([ActiveRun("x", frozenset("a"), queued=True)] * 2, ""),
    ],
)
def test_an_object_that_waits_for_its_turn_says_for_what(active: list[ActiveRun], reason: str) -> None:
    made = dispatch([(DELIVER, [plan("a", "x")])], {}, NOW, RunLoad(active))
    assert [*made.waiting.values()] == ([f"waits for its turn: {reason}"] if reason else [])
    assert len(made.starts) == (not reason)


def test_more_runs_of_one_namespace_than_it_may_have_take_no_turn_of_others() -> None:
    """They were started by hand, or by parents side by side."""
    greedy = [ActiveRun("x", frozenset(["greedy"]), queued) for queued in (False, True) for _ in range(5)]
    (start,) = dispatch([(DELIVER, [plan("modest", "x")])], {}, NOW, RunLoad(greedy)).starts
    assert start.claims[0][0].key.namespace == "modest"
    several_greedy = [ActiveRun("x", frozenset([name]), True) for name in "abcd" for _ in range(9)]
    made = dispatch([(DELIVER, [plan("modest", "x")])], {}, NOW, RunLoad(several_greedy))
    assert [*made.waiting.values()] == ["waits for its turn: the runs of all namespaces are at their limit (10)"]


def test_what_is_under_way_waits_for_no_turn() -> None:
    claim = Claim("before", "0" * 12, 1, NOW)
    busy = plan("a", "x")
    busy = Plan(busy.subject._replace(claim=str(claim)), **APPLY)
    made = dispatch([(DELIVER, [busy])], {"before": RunFate(None)}, NOW, RunLoad([ActiveRun("x", frozenset("a"))] * 9))
    assert not made.starts
    assert not made.waiting


objects = st.lists(
    st.tuples(st.sampled_from("abcd"), st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1, max_size=40
)
events = st.lists(st.one_of(st.just(None), st.integers(0, 9)), max_size=30)


@settings(max_examples=300)
@given(objects, events, st.integers(1, 7))
def test_no_first_run_waits_for_more_than_one_of_each_other_namespace(
    wanted: list[tuple[str, bool, bool, int]], completions: list[int | None], places: int
) -> None:
    """Whatever is due, of whichever lifecycle, and in whatever order runs end."""
    due: list[tuple[Acting, list[Plan]]] = [(DELIVER, []), (ROLL_OUT, [])]
    for number, (namespace, second, deleted, urgency) in enumerate(wanted):
        acting, plans = due[second]
        plans.append(plan(namespace, f"n{number}", acting, urgency, **(REMOVE if deleted else APPLY)))
    queue = Queue(places)
    moments = [*completions, *[0] * (len(wanted) + 1)]
    late_at = len(completions) // 2
    for moment, number in enumerate(moments):
        if moment == late_at:
            ahead = Counter(name for _, runs in queue.queued for name in {plan.subject.key.namespace for plan in runs})
            began = len(queue.started)
            due[0][1].append(plan("late", "first"))
        queue.tick(due, NOW + moment)
        assert len(queue.queued) + len(queue.running) <= queue.limits.total
        load = Counter(name for run in queue.load().active for name in run.namespaces)
        assert not load or max(load.values()) <= queue.limits.per_namespace
        queue.poll()
        if number is not None and queue.running:
            queue.end(number, due)
    assert not any(plans for _, plans in due), "everything had its turn"
    assert max(ahead.values(), default=0) <= 1
    first = next(number for number, keys in enumerate(queue.started) if Key("late", "first") in keys)
    turns = Counter(
        keys[0].namespace for keys in queue.started[began:first]
    )  # others join a run that is created anyway
    assert max(turns.values(), default=0) <= 1
