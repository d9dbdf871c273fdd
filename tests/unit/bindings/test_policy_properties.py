"""What holds for every policy, load and history."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from binding_decisions import decide_binding
from hypothesis import given, strategies as st
from policy_builders import METRIC, SETTINGS, World, binding, each, policy, target

from modelyard.autoscaling.bindings import windows
from modelyard.autoscaling.bindings.recommend import recommend
from modelyard.autoscaling.bindings.shares import Candidate, exact_shares, greedy_shares
from modelyard.autoscaling.fleet.binding_view import Behaviour, DirectionLimits, Panic
from modelyard.autoscaling.memory.bindings import POLICY_STATE, BindingMemory, History
from modelyard.reconcile.plans.memory import parse_memory, render_memory

TICK = SETTINGS.tick
PERIODS = st.sampled_from([0.0, 10.0, 15.0, 30.0, 60.0, 300.0])
LIMITS = st.builds(
    DirectionLimits, st.integers(0, 4), st.integers(0, 200), PERIODS, st.sampled_from(["Or", "And"]), PERIODS
)
PANICS = st.builds(Panic, st.integers(0, 1000), PERIODS, st.integers(110, 300), PERIODS)
BEHAVIOURS = st.builds(Behaviour, LIMITS, LIMITS, PANICS)
DEMANDS = st.lists(st.integers(0, 30), min_size=1, max_size=40)


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=60),
    st.sampled_from([5.0, 10.0, 15.0, 31.0, 60.0, 300.0]),
    st.booleans(),
)
def test_change_points_say_what_an_entry_per_tick_says(values: list[int], length: float, line: bool) -> None:
    history = History()
    every: list[tuple[float, int]] = []
    for number, value in enumerate(values):
        now = number * TICK
        if line:
            force = [v for (_, v), (until, _) in pairwise(every) if until >= now - length]
            force += [v for t, v in every[-1:] if t + 2 * length >= now]
            highest, lowest = max((9, *force)), min((9, *force))
            assert windows.highest_line(history, length, now, TICK, 9) == highest
            assert windows.lowest_line(history, length, now, TICK, 9) == lowest
        else:
            found = [v for t, v in every if t + length >= now]
            assert windows.highest_record(history, length, now, TICK) == max(found, default=None)
            assert windows.lowest_record(history, length, now, TICK) == min(found, default=None)
        every.append((now, value))
        history = windows.record(history, value, now, TICK, line=line)


def test_no_length_no_window() -> None:
    history = windows.seeded(3, 0)
    assert windows.highest_record(history, 0, 0, TICK) is None
    assert windows.highest_line(history, 0, 0, TICK, 5) is None
    assert windows.lowest_line(history, 0, 0, TICK, 5) is None


def test_history_is_bounded() -> None:
    history = windows.seeded(0, 0)
    for number in range(5000):
        history = windows.record(history, (number * 7919) % 1000, float(number), 1.0, line=True)
    assert len(history.past) <= windows.MOST
    for number in range(5000, 5300):
        history = windows.record(history, number, float(number), 1.0, line=True)
    assert len(history.past) == windows.MOST


@given(BEHAVIOURS, DEMANDS, st.integers(1, 12), st.data())
def test_killing_at_any_tick_changes_no_decision(
    behaviour: Behaviour, demands: list[int], current: int, data: st.DataObject
) -> None:
    kills = data.draw(st.sets(st.integers(0, len(demands))))
    lasting, killed = World(behaviour, current), World(behaviour, current)
    for number, demand in enumerate(demands):
        if number in kills:
            killed.kill()
        assert lasting.tick(number * TICK, demand) == killed.tick(number * TICK, demand)
        assert lasting.last is not None
        assert killed.last is not None
        assert lasting.last.panic == killed.last.panic
        assert parse_memory(BindingMemory, POLICY_STATE, render_memory(lasting.memory)) == (killed.memory, None)


@given(BEHAVIOURS, DEMANDS, st.integers(0, 5), st.integers(0, 10))
def test_bounds_hold_and_panic_never_shrinks(behaviour: Behaviour, demands: list[int], low: int, extra: int) -> None:
    high = max(1, low + extra)
    world = World(behaviour, 3, low, high)
    for number, demand in enumerate(demands):
        before = world.current
        after = world.tick(number * TICK, demand)
        assert low <= after <= high
        assert world.last is not None
        if world.last.panic:
            assert after >= min(before, high)


@given(BEHAVIOURS, DEMANDS, st.integers(0, 40), st.integers(0, 40))
def test_more_metric_never_gives_fewer(behaviour: Behaviour, demands: list[int], first: int, second: int) -> None:
    world = World(replace(behaviour, panic=replace(behaviour.panic, period=0.0)), 3)
    for number, demand in enumerate(demands):
        world.tick(number * TICK, demand)
    low, high = sorted((first, second))
    found = []
    for demand in (low, high):
        seen = target(current=world.current, instances=each(world.current, demand * 10 / world.current))
        view = replace(binding(seen, policy_view=world.policy), memory=world.memory)
        found.append(decide_binding(view, SETTINGS, len(demands) * TICK).records[0].target.replicas or 0)
    assert found[0] <= found[1]


COUNTS = st.integers(0, 6)


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.floats(0, 100), st.floats(0, 100), st.integers(0, 30))
def test_recommendation_is_monotone_and_never_goes_the_wrong_way(
    ready: int, lacking: int, unready: int, beyond: int, first: float, second: float, tolerance: int
) -> None:
    current = ready + lacking + unready + beyond
    found = []
    for value in sorted((first, second)):
        instances = [*each(ready, value), *({} for _ in range(lacking))]
        replicas = recommend(current, 0, 10**6, tolerance / 100, {METRIC: 10.0}, instances, unready=unready).replicas
        assert (replicas is None) == (ready == 0)
        if replicas is not None:
            assert replicas >= current if value >= 10 else replicas <= current
            found.append(replicas)
    assert found == sorted(found)


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(0, 5), st.integers(0, 20)), min_size=1, max_size=5),
    st.integers(0, 120),
    st.integers(0, 400),
)
def test_shares_add_up_within_bounds_and_grow_with_the_total(
    parts: list[tuple[int, int, int]], total: int, rate: int
) -> None:
    candidates = [Candidate(str(i), cost, low, low + room) for i, (cost, low, room) in enumerate(parts)]
    least, most = sum(c.minimum for c in candidates), sum(c.maximum for c in candidates)
    shares = greedy_shares(total, candidates, rate)
    assert sum(shares) == min(max(total, least), most)
    assert all(c.minimum <= share <= c.maximum for c, share in zip(candidates, shares, strict=True))
    assert all(a <= b for a, b in zip(shares, greedy_shares(total + 1, candidates, rate), strict=True))


@given(
    st.lists(
        st.tuples(st.integers(1, 100), st.integers(0, 4), st.sampled_from([1.0, 2.5, 4.0])), min_size=1, max_size=3
    ),
    st.integers(0, 20),
)
def test_exact_shares_cover_and_cost_no_more_than_greedy(parts: list[tuple[int, int, float]], demand: int) -> None:
    candidates = [Candidate(str(i), cost, 0, room, capacity=cap) for i, (cost, room, cap) in enumerate(parts)]
    exact = exact_shares(demand, candidates)
    carried = sum(c.capacity * n for c, n in zip(candidates, exact, strict=True))
    assert carried >= demand or all(n == c.maximum for c, n in zip(candidates, exact, strict=True))
    plain = [c._replace(capacity=1.0) for c in candidates]
    if sum(c.maximum for c in plain) >= demand:
        costs = [
            sum(c.cost * n for c, n in zip(plain, shares, strict=True))
            for shares in (exact_shares(demand, plain), greedy_shares(demand, plain, 100))
        ]
        assert costs[0] <= costs[1]


@given(BEHAVIOURS, st.integers(1, 9), st.integers(1, 9))
def test_a_quiet_binding_writes_nothing(behaviour: Behaviour, current: int, demand: int) -> None:
    world = World(replace(behaviour, panic=replace(behaviour.panic, hold=0.0)), current)
    for number in range(45):
        world.tick(number * TICK, demand)
    if world.current == demand:
        world.tick(45 * TICK, demand)  # notices that the last change has arrived
        settled = world.memory
        for number in range(46, 60):
            assert world.tick(number * TICK, demand) == demand
            assert world.memory is settled


def test_at_zero_nothing_is_written_in_panic_either() -> None:
    world = World(Behaviour(*(DirectionLimits(0, 100, 60, "Or", 0),) * 2, Panic(1000, 0, 200, 60)), 0, low=0)
    world.tick(0, 0)
    settled = world.memory
    for number in range(1, 20):
        world.tick(number * TICK, 0)
        assert world.memory is settled
    assert settled.panic_until is None


def test_memory_survives_unknown_fields() -> None:
    assert parse_memory(BindingMemory, POLICY_STATE, '{"subject": "x", "later": 1}') == (
        BindingMemory(subject="x"),
        None,
    )


def test_panic_at_zero_needs_a_recommendation() -> None:
    hectic = Behaviour(*(DirectionLimits(0, 100, 60, "Or", 0),) * 2, Panic(1000, 0, 200, 60))
    seen = target(current=0, low=0, external={METRIC: 0.0})
    decision = decide_binding(binding(seen, policy_view=policy(hectic)), SETTINGS, 0)
    assert not decision.panic
