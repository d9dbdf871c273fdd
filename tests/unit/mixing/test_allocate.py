"""Allocation within capacity: priorities without inversion, minimums, competition, and what happens without effort."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from random import Random

import pytest
from examples import few
from hypothesis import given, strategies as st

from modelyard.autoscaling.mixing import Allocation, Demand, Option, allocate, allocate_greedy, cover
from modelyard.autoscaling.mixing.allocate import EFFORT, competing
from modelyard.autoscaling.mixing.columns import relax
from modelyard.autoscaling.mixing.exact import direct
from modelyard.autoscaling.mixing.model import Capacity
from modelyard.autoscaling.mixing.stage import Columns, Stage
from modelyard.fairness import WorkBudget


def gold_and_silver() -> list[Demand]:
    """The worked fleet of the documented optimizer: each model may run on H100 and on L40S."""

    def options(counts: tuple[int, int], per_minute: tuple[float, float]) -> tuple[Option, ...]:
        return (
            Option("H100", per_minute[0] / 60, 100 * counts[0], "H100", counts[0]),
            Option("L40S", per_minute[1] / 60, 32 * counts[1], "L40S", counts[1]),
        )

    return [
        Demand("chat-gold", 1, 40, options((1, 1), (1699.4, 352.9))),
        Demand("code-gold", 1, 25, options((2, 4), (680.1, 161.2))),
        Demand("chat-silver", 5, 4000 / 60, options((1, 1), (1748.7, 378.6))),
        Demand("code-silver", 5, 10, options((2, 4), (700.6, 172.7))),
    ]


def fractions(demands: list[Demand], allocation: Allocation) -> dict[int, float]:
    """Summed served fractions by priority."""
    sums: dict[int, float] = {}
    for d in demands:
        part = allocation.shares[d.name].served / d.load if d.load else 1.0
        sums[d.priority] = sums.get(d.priority, 0.0) + part
    return dict(sorted(sums.items()))


def test_without_limit_every_demand_is_covered() -> None:
    demands = gold_and_silver()
    allocation = allocate(demands, None)
    assert allocation.method == "covering"
    assert allocation.shares == {d.name: cover(d) for d in demands}
    assert allocation.cost == sum(s.cost for s in allocation.shares.values())
    assert allocation.used == {"H100": 9, "L40S": 8}


def test_enough_capacity_changes_nothing() -> None:
    demands = gold_and_silver()
    assert allocate(demands, {"H100": 9, "L40S": 8}) == allocate(demands, None)


def test_the_priority_inversion_case_serves_all_of_gold() -> None:
    """Whole candidates leave code-gold with nothing at H100 4, L40S 12, while Silver runs; a mix serves all of Gold."""
    demands = gold_and_silver()
    allocation = allocate(demands, {"H100": 4, "L40S": 12})
    shares = allocation.shares
    assert (allocation.method, allocation.note) == ("exact", "")
    assert shares["chat-gold"].replicas == {"H100": 0, "L40S": 7}
    assert shares["code-gold"].replicas == {"H100": 2, "L40S": 1}
    assert (shares["chat-gold"].served, shares["code-gold"].served) == (40, 25)
    # The one L40S that Gold leaves is not stranded.
    assert shares["chat-silver"].replicas == {"H100": 0, "L40S": 1}
    assert shares["code-silver"].replicas == {"H100": 0, "L40S": 0}
    assert allocation.used == {"H100": 4, "L40S": 12}
    assert {n: s.limited for n, s in shares.items()} == {
        "chat-gold": True, "code-gold": False, "chat-silver": True, "code-silver": True,
    }  # fmt: skip


@pytest.mark.parametrize("capacity", [{"H100": 8, "L40S": 10}, {"H100": 6, "L40S": 8}, {"H100": 3}, {"L40S": 5}, {}])
def test_no_unit_goes_to_silver_that_gold_could_use(capacity: dict[str, int]) -> None:
    demands = gold_and_silver()
    both = allocate(demands, capacity)
    alone = allocate([d for d in demands if d.priority == 1], capacity)
    assert fractions(demands, both)[1] == pytest.approx(fractions(demands[:2], alone)[1], abs=1e-6)


def test_missing_types_have_nothing() -> None:
    assert allocate(gold_and_silver(), {}).used == {}


def test_minimums_are_soft_and_the_important_ones_first() -> None:
    def demand(name: str, priority: int, minimum: int) -> Demand:
        return Demand(name, priority, 0, (Option("v", 1, 10, "A", minimum=minimum, current=minimum),))

    demands = [demand("low", 9, 4), demand("high", 1, 3), demand("other", 1, 3)]
    allocation = allocate(demands, {"A": 5})
    assert {n: s.replicas["v"] for n, s in allocation.shares.items()} == {"high": 3, "other": 2, "low": 0}
    assert [n for n, s in allocation.shares.items() if s.limited] == ["low", "other"]
    assert {n: s.replicas["v"] for n, s in allocate(demands, {"A": 20}).shares.items()} == {
        "high": 3, "other": 3, "low": 4,
    }  # fmt: skip


def test_a_minimum_comes_before_the_load_of_others() -> None:
    warm = Demand("warm", 9, 1, (Option("v", 5, 10, "A", minimum=1),))
    busy = Demand("busy", 1, 50, (Option("v", 5, 10, "A"),))
    found = allocate([warm, busy], {"A": 6}).shares
    assert (found["warm"].replicas["v"], found["busy"].replicas["v"]) == (1, 5)


def test_capacity_below_what_runs_takes_from_the_least_important() -> None:
    demands = [
        Demand("high", 1, 20, (Option("v", 5, 10, "A", minimum=1, current=4),)),
        Demand("low", 2, 20, (Option("v", 5, 10, "A", minimum=1, current=4),)),
    ]
    found = allocate(demands, {"A": 5}).shares
    assert (found["high"].replicas["v"], found["low"].replicas["v"]) == (4, 1)
    assert (found["low"].served, found["low"].limited) == (5, True)
    assert found["low"].wanted == {"v": 4}


def test_groups_that_do_not_compete_are_apart() -> None:
    def demand(name: str, load: float, *accelerators: str) -> Demand:
        return Demand(name, 1, load, tuple(Option(a, 1, 1, a) for a in accelerators))

    demands = [demand("x", 10, "A"), demand("y", 10, "A", "B"), demand("z", 10, "C"), demand("w", 10, "D")]
    groups = competing(demands, Capacity({"A": 5, "B": 5, "C": 5, "D": 10}))
    assert [[d.name for d in group] for group in groups] == [["x", "y"], ["z"]]
    allocation = allocate(demands, {"A": 5, "B": 5, "C": 5, "D": 10})
    assert allocation.used == {"A": 5, "B": 5, "C": 5, "D": 10}
    assert allocation.shares["w"].limited is False


def test_a_demand_without_load_does_not_count_as_service_of_its_class() -> None:
    idle = Demand("idle", 1, 0, (Option("A", 1, 10, "A"),))
    busy = Demand("busy", 1, 2, (Option("A", 1, 10, "A"), Option("B", 1, 10, "B")))
    assert allocate([idle, busy], {"A": 0, "B": 1}).shares["busy"].served == 1


def test_without_effort_the_greedy_answer_says_so() -> None:
    demands = gold_and_silver()
    capacity = {"H100": 4, "L40S": 12}
    allocation = allocate(demands, capacity, effort=WorkBudget(0))
    assert allocation.method == "greedy"
    assert allocation.note == "greedy for priority 5: the effort was used up; greedy for cost: the effort was used up"
    assert allocation.shares == allocate_greedy(demands, capacity).shares
    assert all(units <= capacity[a] for a, units in allocation.used.items())


def many(seed: int, part: float = 0.75) -> tuple[list[Demand], dict[str, int]]:
    """A fleet large enough for columns, and a part of what it would take."""
    rng = Random(seed)
    demands = []
    for i in range(40):
        kinds = rng.sample("ABC", 2)
        options = tuple(Option(k, rng.uniform(3, 9), rng.uniform(10, 30), k, rng.randint(1, 2)) for k in kinds)
        demands.append(Demand(f"d{i}", rng.choice((1, 5)), rng.uniform(1, 60), options))
    return demands, {a: int(units * part) for a, units in allocate(demands, None).used.items()}


@pytest.mark.parametrize("seed", range(3))
def test_more_effort_never_serves_less_of_the_most_important_class(seed: int) -> None:
    """Issue 9, A6: and the same effort is always the same answer, within the capacity, which says where it ended."""
    demands, capacity = many(seed, 0.25)
    served, spent = [], []
    for units in (0, 5_000, 10_000, EFFORT):
        efforts = [WorkBudget(units), WorkBudget(units)]
        found, again = (allocate(demands, capacity, effort=effort) for effort in efforts)
        assert (found, efforts[0].left) == (again, efforts[1].left)
        assert all(n <= capacity[a] for a, n in found.used.items())
        assert (found.method == "greedy") == ("the effort was used up" in found.note)
        served.append(fractions(demands, found)[1])
        spent.append(units - efforts[0].left)
    assert all(more >= less - 1e-9 for less, more in pairwise(served))
    assert spent[-1] < EFFORT / 10
    assert served[-1] > served[0]


def test_classes_that_have_an_answer_keep_it_when_the_effort_is_used_up() -> None:
    """Issue 9, A6."""
    demands, capacity = many(1, 0.25)
    found, greedy = allocate(demands, capacity, effort=WorkBudget(7_000)), allocate_greedy(demands, capacity)
    assert found.method == "greedy"
    assert "greedy for priority 1" not in found.note
    assert "greedy for priority 5: the effort was used up" in found.note
    assert fractions(demands, found)[1] > fractions(demands, greedy)[1] + 1


def test_demands_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two demands have the same name"):
        allocate([gold_and_silver()[0]] * 2, None)


@st.composite
def fleets(draw: st.DrawFn, most: int = 3) -> tuple[list[Demand], dict[str, int]]:
    demands = []
    for i in range(draw(st.integers(1, most))):
        options = tuple(
            Option(
                accelerator,
                draw(st.sampled_from((1.0, 2.5, 4.0))),
                draw(st.sampled_from((10.0, 25.0, 32.0))),
                accelerator,
                draw(st.integers(1, 2)),
                draw(st.sampled_from((0, 0, 1))),
                draw(st.sampled_from((None, 2))),
                draw(st.integers(0, 2)),
            )
            for accelerator in draw(st.sampled_from((("A",), ("B",), ("A", "B"))))
        )
        demands.append(Demand(f"d{i}", draw(st.integers(1, 2)), draw(st.floats(0, 8)), options))
    return demands, {"A": draw(st.integers(0, 5)), "B": draw(st.integers(0, 4))}


@given(fleets())
def test_never_above_capacity_and_within_bounds(fleet: tuple[list[Demand], dict[str, int]]) -> None:
    demands, capacity = fleet
    for allocation in (allocate(demands, capacity), allocate_greedy(demands, capacity)):
        assert all(units <= capacity[a] for a, units in allocation.used.items())
        for d in demands:
            share = allocation.shares[d.name]
            assert share.served == d.served(share.replicas)
            assert all(0 <= share.replicas[o.name] <= max(d.most(o), o.minimum) for o in d.options)


def every_allocation(demands: list[Demand], capacity: dict[str, int]) -> list[dict[str, dict[str, int]]]:
    """All replicas within bounds and capacity (demands without minimums)."""
    choices = [
        [
            dict(zip((o.name for o in d.options), counts, strict=True))
            for counts in product(*(range(d.most(o) + 1 if d.load else 1) for o in d.options))
        ]
        for d in demands
    ]
    found = []
    for chosen in product(*choices):
        used = {"A": 0, "B": 0}
        for d, counts in zip(demands, chosen, strict=True):
            for o in d.options:
                used[o.accelerator] += counts[o.name] * o.units
        if all(used[a] <= capacity[a] for a in used):
            found.append({d.name: counts for d, counts in zip(demands, chosen, strict=True)})
    return found


@given(fleets(2))
def test_exact_is_the_best_of_everything_possible(fleet: tuple[list[Demand], dict[str, int]]) -> None:
    """Served fractions in order of priority, then cost with transition penalty."""
    demands, capacity = fleet
    demands = [replace(d, options=tuple(replace(o, minimum=0) for o in d.options)) for d in demands]

    def score(replicas: dict[str, dict[str, int]]) -> tuple[float, float, float]:
        def served(priority: int) -> float:
            return sum(d.served(replicas[d.name]) / d.load for d in demands if d.priority == priority and d.load)

        cost = sum(d.objective(replicas[d.name], 0.1) for d in demands)
        return (-round(served(1), 6), -round(served(2), 6), round(cost, 5))

    allocation = allocate(demands, capacity)
    assert allocation.method in ("covering", "exact")
    best = min(map(score, every_allocation(demands, capacity)))
    assert score({n: s.replicas for n, s in allocation.shares.items()}) == pytest.approx(best, abs=2e-5)


@given(fleets())
def test_exact_serves_no_less_than_greedy_and_costs_no_more_at_equal_service(
    fleet: tuple[list[Demand], dict[str, int]],
) -> None:
    demands, capacity = fleet
    best, greedy = allocate(demands, capacity), allocate_greedy(demands, capacity)
    ours, theirs = list(fractions(demands, best).values()), list(fractions(demands, greedy).values())
    for mine, other in zip(ours, theirs, strict=True):
        assert mine >= other - 1e-6
        if mine > other + 1e-6:
            return

    def objective(allocation: Allocation) -> float:
        return sum(d.objective(allocation.shares[d.name].replicas, 0.1) for d in demands)

    assert objective(best) <= objective(greedy) * (1 + 1e-6) + 1e-6


@given(fleets(2), st.floats(0.1, 5))
def test_more_load_of_the_only_important_class_serves_no_less_of_it(
    fleet: tuple[list[Demand], dict[str, int]], more: float
) -> None:
    demands, capacity = fleet
    first = replace(demands[0], priority=1)
    rest = [replace(d, priority=2) for d in demands[1:]]
    before = allocate([first, *rest], capacity).shares[first.name]
    larger = replace(first, load=first.load + more)
    after = allocate([larger, *rest], capacity).shares[first.name]
    assert after.served >= before.served - 1e-6


@given(fleets())
@few
def test_the_answer_is_always_the_same(fleet: tuple[list[Demand], dict[str, int]]) -> None:
    demands, capacity = fleet
    assert allocate(demands, capacity) == allocate(demands, capacity)


@pytest.mark.parametrize("seed", range(3))
def test_a_larger_fleet_keeps_to_capacity_and_beats_greedy(seed: int) -> None:
    demands, capacity = many(seed)
    best, greedy = allocate(demands, capacity), allocate_greedy(demands, capacity)
    assert best.method in ("exact", "greedy")
    assert all(units <= capacity[a] for a, units in best.used.items())
    ours, theirs = fractions(demands, best), fractions(demands, greedy)
    assert ours[1] >= theirs[1] - 1e-6
    assert ours[5] >= theirs[5] - 1e-6 or ours[1] > theirs[1] + 1e-6


def test_what_was_allocated_stays_when_nothing_changes() -> None:
    rng = Random(7)
    demands = []
    for i in range(120):
        options = tuple(Option(k, rng.uniform(3, 9), rng.uniform(10, 30), k) for k in ("A", "B", "C", "D"))
        demands.append(Demand(f"d{i}", 1, rng.uniform(1, 60), options))
    unlimited = allocate(demands, None)
    capacity = {a: units * 3 // 4 for a, units in unlimited.used.items()}
    capacity = {a: capacity.get(a, 0) for a in "ABCD"}
    first = allocate(demands, capacity)
    running = [
        replace(d, options=tuple(replace(o, current=first.shares[d.name].replicas[o.name]) for o in d.options))
        for d in demands
    ]
    again = allocate(running, capacity)
    assert first.method == again.method == "exact"
    assert fractions(running, again)[1] >= fractions(demands, first)[1] - 1e-6
    moved = sum(again.shares[d.name].replicas != first.shares[d.name].replicas for d in demands)
    assert moved <= len(demands) // 20


def test_the_relaxation_agrees_with_the_direct_program() -> None:
    """Both look at a stage on their own; a bound is below the optimum, and the direct answer is the optimum."""
    demands = gold_and_silver()
    kept = {d.name: dict.fromkeys((o.name for o in d.options), 0) for d in demands}
    stage = Stage(demands, kept, {"H100": 40, "L40S": 40}, {1: None, 5: None}, frozenset(), 0.1)
    start = {d.name: {"H100": 5, "L40S": 0} for d in demands}
    chosen, _, bound = relax(stage, start, Columns(), WorkBudget(EFFORT), 0)
    found, least = direct(stage, start, WorkBudget(EFFORT), 0)
    optimum = sum(d.objective(cover(d).replicas, 0.1) for d in demands)
    assert bound <= optimum + 1e-6
    assert stage.value({**start, **chosen}) >= optimum - 1e-6
    assert stage.value(found) == pytest.approx(optimum)
    assert least == pytest.approx(optimum)
