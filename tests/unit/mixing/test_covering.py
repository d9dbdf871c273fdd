"""Covering one demand: the worked example, ties, bounds, and agreement with trying everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, strategies as st

from modelyard.autoscaling.mixing import Demand, Option, cover
from modelyard.autoscaling.mixing.covering import mix
from modelyard.fairness import WorkBudget

H100 = Option("H100", 28.323, 100, "H100")
L40S = Option("L40S", 5.882, 32, "L40S")


def demand(load: float, *options: Option) -> Demand:
    return Demand("d", 1, load, options)


@pytest.mark.parametrize(
    ("options", "replicas", "cost"),
    [
        ((H100, L40S), {"H100": 1, "L40S": 1}, 132),
        ((H100,), {"H100": 2}, 200),
        ((L40S,), {"L40S": 6}, 192),
    ],
)
def test_a_load_of_31_is_split(options: tuple[Option, ...], replicas: dict[str, int], cost: float) -> None:
    share = cover(demand(31, *options))
    assert (share.replicas, share.cost, share.served, share.limited) == (replicas, cost, 31, False)
    assert share.wanted == replicas


@pytest.mark.parametrize("n", [1, 2, 3, 7, 49, 1000, 12_345])
@pytest.mark.parametrize("rate", [28.323, 0.1, 1 / 3, 18.751])
def test_a_load_of_exactly_n_rates_takes_n(n: int, rate: float) -> None:
    assert cover(demand(n * rate, Option("v", rate, 1, "A"))).replicas == {"v": n}
    assert cover(demand(n * rate * 1.0001, Option("v", rate, 1, "A"))).replicas["v"] > n


def test_no_load_means_the_minimums() -> None:
    share = cover(demand(0, Option("a", 5, 1, "A", minimum=2, current=9), Option("b", 5, 0, "A", current=3)))
    assert share.replicas == {"a": 2, "b": 0}
    assert share.served == 0


def test_a_load_beyond_the_bounds_takes_everything() -> None:
    share = cover(demand(100, Option("a", 5, 1, "A", maximum=3), Option("b", 2, 9, "A", maximum=4)))
    assert share.replicas == {"a": 3, "b": 4}
    assert share.served == 23


@pytest.mark.parametrize(("other", "moves"), [(81, True), (82, False)])
def test_running_replicas_stay_unless_moving_pays(other: float, moves: bool) -> None:
    # Both ways one replica goes and one comes: 1.1·c must be below 0.9·100.
    found = cover(demand(9, Option("old", 10, 100, "A", current=1), Option("new", 10, other, "B"))).replicas
    assert found == ({"old": 0, "new": 1} if moves else {"old": 1, "new": 0})


def test_equal_costs_go_by_fewer_changes_then_name() -> None:
    a, b = Option("a", 10, 50, "A"), Option("b", 10, 50, "B", current=1)
    assert cover(demand(8, a, b), penalty=0).replicas == {"a": 0, "b": 1}
    same = (Option("b", 10, 50, "B"), Option("a", 10, 50, "A"))
    assert cover(demand(8, *same)).replicas == {"a": 1, "b": 0}


def test_more_than_enough_is_not_mistaken_for_best() -> None:
    # The cheapest per request overshoots; one of it less and small ones are cheaper.
    share = cover(
        demand(10.9, Option("s", 1, 10, "A"), Option("m", 3.3, 33, "A", minimum=1), Option("l", 5.5, 33, "A"))
    )
    assert share.cost == 96


@pytest.mark.parametrize("penalty", [-0.1, 1.1, float("nan")])
def test_the_penalty_is_a_share(penalty: float) -> None:
    with pytest.raises(ValueError, match="it must be 0 to 1"):
        cover(demand(5, H100), penalty=penalty)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (lambda: Option("v", 0, 1, "A"), "option 'v': rate is 0"),
        (lambda: Option("v", float("nan"), 1, "A"), "option 'v': rate is nan"),
        (lambda: Option("v", 1, -1, "A"), "option 'v': cost is -1"),
        (lambda: Option("v", 1, 1, "A", units=0), "option 'v': units is 0"),
        (lambda: Option("v", 1, 1, "A", current=-1), "option 'v': minimum and current"),
        (lambda: Option("v", 1, 1, "A", minimum=2, maximum=1), "option 'v': maximum 1 is below minimum 2"),
        (lambda: Demand("d", 0, 1, ()), "demand 'd': priority is 0"),
        (lambda: Demand("d", 1, float("nan"), ()), "demand 'd': load is nan"),
        (lambda: Demand("d", 1, -1, ()), "demand 'd': load is -1"),
        (lambda: Demand("d", 1, 1, (H100, H100)), "demand 'd': two options have the same name"),
    ],
)
def test_wrong_values_are_named(bad: object, text: str) -> None:
    assert callable(bad)
    with pytest.raises(ValueError, match=text):
        bad()


options = st.builds(
    Option,
    st.just("v"),
    st.sampled_from((1.0, 2.0, 3.3, 5.5, 7.25)) | st.floats(1, 10),
    st.sampled_from((0.0, 10.0, 20.0, 33.0, 100.0)) | st.floats(1, 100),
    st.just("A"),
    st.just(1),
    st.integers(0, 1),
    st.none() | st.integers(1, 5),
    st.integers(0, 4),
)


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    drawn = draw(st.lists(options, min_size=1, max_size=3))
    named = tuple(Option(f"v{i}", o.rate, o.cost, "A", 1, o.minimum, o.maximum, o.current) for i, o in enumerate(drawn))
    return demand(draw(st.floats(0.1, 18)), *named)


def every_mix(given_: Demand) -> list[dict[str, int]]:
    spans = [range(o.minimum, max(o.minimum, given_.most(o)) + 1) for o in given_.options]
    mixes = [dict(zip((o.name for o in given_.options), counts, strict=True)) for counts in product(*spans)]
    return [m for m in mixes if given_.carried(m) >= given_.need]


@given(demands(), st.sampled_from((0.0, 0.1, 0.5, 1.0)))
def test_cover_costs_what_the_best_of_all_mixes_costs(given_: Demand, penalty: float) -> None:
    share = cover(given_, penalty=penalty)
    mixes = every_mix(given_)
    if not mixes:
        assert share.replicas == {o.name: given_.most(o) for o in given_.options}
        assert share.served < given_.load
        return
    assert given_.carried(share.replicas) >= given_.need
    best = min(given_.objective(m, penalty) for m in mixes)
    assert given_.objective(share.replicas, penalty) == pytest.approx(best, rel=1e-7, abs=1e-6)
    for option in given_.options:
        assert option.minimum <= share.replicas[option.name] <= given_.most(option)


@given(demands(), st.floats(0.1, 18))
def test_more_load_never_gets_less_capacity_for_less(given_: Demand, more: float) -> None:
    larger = Demand("d", 1, given_.load + more, given_.options)
    before, after = cover(given_, penalty=0), cover(larger, penalty=0)
    assert after.cost >= before.cost - 1e-6
    assert after.served >= before.served


@given(demands(), st.floats(0, 200))
def test_leaving_load_unserved_at_a_price(given_: Demand, price: float) -> None:
    """The mix with a price on unserved load is no dearer than any mix, the empty and the full one included."""
    free = Demand("d", 1, given_.load, tuple(Option(o.name, o.rate, o.cost, "A") for o in given_.options))
    slopes = [(o.cost, o.cost) for o in free.options]
    uppers = [free.most(o) for o in free.options]
    counts = mix(free, [0] * len(uppers), uppers, slopes, price)

    def total(replicas: dict[str, int]) -> float:
        return free.cost(replicas) + price * (1 - free.served(replicas) / free.load)

    names = [o.name for o in free.options]
    best = min(total(dict(zip(names, c, strict=True))) for c in product(*(range(u + 1) for u in uppers)))
    assert total(dict(zip(names, counts, strict=True))) == pytest.approx(best, rel=1e-7, abs=1e-6)


def test_many_near_equal_mixes_stay_exact_on_a_grid() -> None:
    """Costs in proportion to rates, in cents: the cheapest mix has the least cost above the load's own."""
    rates = (3.01, 5.02, 7.03, 11.07)
    tied = tuple(Option(f"v{i}", r, r, "A") for i, r in enumerate(rates))
    share = cover(demand(4000.005, *tied))
    assert share.cost == pytest.approx(4000.01)


@given(demands(), st.sampled_from((0, 1, 7, 40)))
def test_a_search_without_effort_carries_the_load_all_the_same(given_: Demand, left: int) -> None:
    effort = WorkBudget(left)
    share = cover(replace(given_, effort=effort))
    assert 0 <= effort.left <= left
    assert share.served == cover(given_).served
    assert all(o.minimum <= share.replicas[o.name] <= max(o.minimum, given_.most(o)) for o in given_.options)


def test_a_search_takes_no_more_effort_than_there_is() -> None:
    """Costs next to proportional to rates, on no grid: nothing can be told to be hopeless before it was looked at."""
    near = tuple(Option(f"v{i}", (p := 1 + i * 0.0371), p * 10 * (1 + i * 1.7e-6), "A", maximum=9) for i in range(20))
    effort = WorkBudget(400_000)
    first = cover(replace(demand(61.23, *near), effort=effort))
    assert effort.left == 0
    second = cover(replace(demand(61.23, *near), effort=effort))
    assert first.served == second.served == 61.23
    assert first.cost <= second.cost
