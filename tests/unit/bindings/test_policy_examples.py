"""The worked examples of the Kthena autoscaler reference, one by one."""

from __future__ import annotations

import pytest
from policy_builders import FREE, METRIC, WRITTEN, World, each

from modelyard.autoscaling.bindings.histogram import Buckets, quantile_of_difference
from modelyard.autoscaling.bindings.recommend import recommend
from modelyard.autoscaling.bindings.shares import Block, Candidate, blocks, exact_shares, greedy_shares
from modelyard.autoscaling.configuration.settings import Compatibility, FleetSettings
from modelyard.autoscaling.fleet.binding_view import Behaviour, DirectionLimits, Panic

PUBLISHED = FleetSettings(compatibility=Compatibility.PUBLISHED)


def asked(current: int, target: float, instances: object, **rest: object) -> int | None:
    return recommend(current, 0, 100, 0.1, {METRIC: target}, instances, **rest).replicas  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "repaired", "published"),
    [(10.5, 5, 6), (2, 1, 5)],
    ids=["within tolerance per instance", "far below target"],
)
def test_tolerance_is_per_instance(value: float, repaired: int, published: int) -> None:
    assert asked(5, 10, each(5, value)) == repaired
    assert asked(5, 10, [{METRIC: 5 * value}], doubts=False) == published


@pytest.mark.parametrize(
    ("current", "target", "instances", "unready", "expected"),
    [
        (4, 10, each(3, 20), 1, 6),
        (4, 10, each(1, 30), 3, 4),
        (10, 1, (*each(8, 0.5), {}, {}), 0, 6),
        (3, 10, each(3, 5 / 3), 0, 1),
    ],
    ids=["unready on the way up", "other side of 1", "missing on the way down", "no instance of the empty target"],
)
def test_unready_and_missing(current: int, target: float, instances: object, unready: int, expected: int) -> None:
    assert asked(current, target, instances, unready=unready) == expected


def test_an_empty_target_counted_as_missing_as_documented() -> None:
    assert asked(3, 10, [{METRIC: 5}, {}], doubts=False) == 2


def test_histogram_difference() -> None:
    past = Buckets(200, ((1, 100), (2, 190), (4, 200)))
    now = Buckets(300, ((1, 120), (2, 260), (4, 300)))
    assert quantile_of_difference(now, past, 95) == pytest.approx(3.667, abs=5e-4)


def test_up_with_written_defaults() -> None:
    assert World(WRITTEN, 2).run(lambda _: 12, 300) == {0: 6, 75: 12}


def test_up_without_seed_as_documented() -> None:
    assert World(WRITTEN, 2, settings=PUBLISHED).run(lambda _: 12, 300) == {0: 6, 15: 12}


def test_down_with_written_defaults() -> None:
    assert World(WRITTEN, 10).run(lambda now: 10 if now < 30 else 3, 600) == {330: 3}


def test_a_scale_down_hold_renews_itself_as_documented() -> None:
    assert World(WRITTEN, 10, settings=PUBLISHED).run(lambda now: 10 if now < 30 else 3, 1200) == {}


def test_down_with_and() -> None:
    slow = Behaviour(WRITTEN.up, DirectionLimits(1, 50, 60, "And", 60), WRITTEN.panic)
    expected = {90: 9, 165: 8, 240: 7, 315: 6, 390: 5, 465: 4, 540: 3, 615: 2}
    assert World(slow, 10).run(lambda now: 10 if now < 30 else 2, 900) == expected


def test_panic() -> None:
    hectic = Behaviour(FREE.up, DirectionLimits(0, 100, 60, "Or", 0), Panic(100, 30, 200, 60))
    world = World(hectic, 2)
    assert world.run(lambda now: 16 if now < 60 else 3, 105) == {0: 4, 45: 8}
    assert world.last is not None
    assert world.last.panic
    assert world.tick(120, 3) == 3
    assert not world.last.panic


A100, H100 = Candidate("A100", 60, 1, 8), Candidate("H100", 100, 0, 4)


def test_blocks() -> None:
    assert blocks([A100, H100], 200) == [
        Block(60, 0, 1),
        Block(100, 1, 1),
        Block(100, 1, 1),
        Block(120, 0, 2),
        Block(200, 1, 2),
        Block(240, 0, 4),
    ]


@pytest.mark.parametrize(
    ("total", "a100", "h100"),
    [
        (1, 1, 0),
        (2, 2, 0),
        (3, 2, 1),
        (4, 2, 2),
        (5, 3, 2),
        (6, 4, 2),
        (7, 4, 3),
        (8, 4, 4),
        (9, 5, 4),
        (12, 8, 4),
        (20, 8, 4),
        (0, 1, 0),
    ],
)
def test_shares(total: int, a100: int, h100: int) -> None:
    assert greedy_shares(total, [A100, H100], 200) == [a100, h100]


@pytest.mark.parametrize(("total", "expected"), [(8, [8, 0]), (9, [8, 1])])
def test_shares_at_rate_100(total: int, expected: list[int]) -> None:
    assert greedy_shares(total, [A100, H100], 100) == expected


@pytest.mark.parametrize(
    ("rate", "g", "c"),
    [
        (150, [(100, 1), (100, 1), (200, 2)], [(30, 1), (30, 1), (60, 2), (60, 2)]),
        (200, [(100, 1), (100, 1), (200, 2)], [(30, 1), (60, 2), (90, 3)]),
    ],
)
def test_block_sizes(rate: int, g: list[tuple[float, int]], c: list[tuple[float, int]]) -> None:
    found = blocks([Candidate("G", 100, 1, 5), Candidate("C", 30, 2, 8)], rate)
    assert [(block.cost, block.size) for block in found if block.candidate == 0] == g
    assert [(block.cost, block.size) for block in found if block.candidate == 1] == c


@pytest.mark.parametrize("rate", [20, 150, 200])
def test_nine_between_g_and_c(rate: int) -> None:
    assert greedy_shares(9, [Candidate("G", 100, 1, 5), Candidate("C", 30, 2, 8)], rate) == [1, 8]


def test_below_rate_100_cheapest_first() -> None:
    pair = [Candidate("G", 100, 1, 5), Candidate("C", 30, 2, 8)]
    assert [greedy_shares(total, pair, 20) for total in (3, 8, 9, 10)] == [[1, 2], [1, 7], [1, 8], [2, 8]]


def test_exact_prefers_the_dearer_accelerator_that_carries_more() -> None:
    slow, fast = Candidate("A100", 60, 0, 20), Candidate("H100", 100, 0, 20, capacity=3.0)
    assert exact_shares(9, [slow, fast]) == [0, 3]
    assert exact_shares(10, [slow, fast]) == [1, 3]
    assert greedy_shares(9, [slow, fast], 100) == [9, 0]


def test_exact_gives_everything_when_that_is_not_enough() -> None:
    assert exact_shares(1000, [A100, H100]) == [8, 4]
