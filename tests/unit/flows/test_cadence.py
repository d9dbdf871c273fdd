from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from modelyard.reconcile.plans.cadence import Cadence, Slot, shift_cadence

INTERVALS = st.floats(0.1, 600)
STARTS = st.floats(-1e6, 1e6)
DURATIONS = st.lists(st.floats(0, 2000), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("now", "after", "expected"),
    [
        pytest.param(1000.0, -1, Slot(0, 1000.0), id="on time: at once"),
        pytest.param(990.0, -1, Slot(0, 1000.0), id="early: wait for the start"),
        pytest.param(1007.0, -1, Slot(0, 1000.0), id="less than half an interval late: at once"),
        pytest.param(1008.0, -1, Slot(1, 1015.0), id="more than half an interval late: the next one"),
        pytest.param(1002.0, 0, Slot(1, 1015.0), id="a short tick waits for the next instant"),
        pytest.param(1017.0, 0, Slot(1, 1015.0), id="an overrun of two seconds costs nothing"),
        pytest.param(1053.0, 0, Slot(4, 1060.0), id="an overrun of three ticks skips them"),
        pytest.param(1294.0, 18, None, id="nothing after the last tick of the shift"),
        pytest.param(1291.0, 18, Slot(19, 1285.0), id="the last tick, late"),
        pytest.param(5000.0, 3, None, id="after the shift"),
    ],
)
def test_default_shift(now: float, after: int, expected: Slot | None) -> None:
    cadence = shift_cadence(now=1000.0, late_by=0, interval=15, shift=300, early_end=5)
    assert cadence.next(now, after) == expected


def run(cadence: Cadence, durations: list[float], now: float) -> list[tuple[Slot, float]]:
    """The (slot, moment it began) pairs of a shift whose ticks take ``durations``."""
    begun: list[tuple[Slot, float]] = []
    after = -1
    for duration in durations:
        slot = cadence.next(now, after)
        if slot is None:
            break
        now = max(now, slot.instant)
        begun.append((slot, now))
        after, now = slot.number, now + duration
    return begun


@given(STARTS, INTERVALS, DURATIONS, st.floats(-100, 2000))
def test_ticks_are_on_the_grid_never_bunched_and_never_twice(
    start: float, interval: float, durations: list[float], late: float
) -> None:
    cadence = Cadence(start, interval, start + 3000)
    begun = run(cadence, durations, start + late)
    slack = 1e-6 * max(1.0, abs(start))
    for slot, moment in begun:
        assert slot.instant == start + slot.number * interval
        assert slot.instant < cadence.end
        assert slot.instant <= moment <= slot.instant + interval / 2 + slack
    for (slot, moment), (following, later) in pairwise(begun):
        assert following.number > slot.number
        assert later - moment >= interval / 2 - slack


@given(STARTS, INTERVALS, st.integers(1, 200))
def test_quick_ticks_miss_no_instant(start: float, interval: float, count: int) -> None:
    cadence = Cadence(start, interval, start + (count - 0.5) * interval)
    begun = run(cadence, [interval / 4] * (count + 5), start)
    assert [slot.number for slot, _ in begun] == list(range(count))


@given(st.floats(0, 299), st.integers(1, 20))
def test_successive_shifts_share_one_grid(late_by: float, shifts: int) -> None:
    """However late each process came up, the instants are those of one endless grid, and no shift enters the next."""
    origin, interval, shift = 10_000.0, 15.0, 300.0
    for index in range(shifts):
        scheduled = origin + index * shift
        cadence = shift_cadence(now=scheduled + late_by, late_by=late_by, interval=interval, shift=shift, early_end=5)
        now, after = scheduled + late_by, -1
        while (slot := cadence.next(now, after)) is not None:
            on_grid = (slot.instant - origin) / interval
            assert abs(on_grid - round(on_grid)) < 1e-6
            assert slot.instant <= scheduled + shift - 5
            now, after = max(now, slot.instant), slot.number


@given(STARTS, INTERVALS, st.floats(-10, 1e5))
def test_a_shift_of_zero_seconds_is_one_tick_at_once(now: float, interval: float, late_by: float) -> None:
    cadence = shift_cadence(now=now, late_by=late_by, interval=interval, shift=0, early_end=5)
    assert cadence.next(now) == Slot(0, now)
    assert cadence.next(now + interval, after=0) is None


def test_an_interval_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="interval must be above zero"):
        Cadence(0, 0, 10)
