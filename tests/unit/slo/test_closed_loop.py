"""Nothing oscillates and nothing runs away, in hours of virtual time with noise and start-up delays."""

from __future__ import annotations

import pytest
from closed_loop import History, live
from slo_builders import RATE_P

FORMS = ["slo", "saturation", "token"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("share", "replicas"), [(1.0, 1), (1.2, 1), (1.85, 2), (4.6, 5)])
def test_a_constant_load_at_the_edge_of_a_size_settles(form, share, replicas):
    history = live(form, lambda _: share * RATE_P, 7200, replicas)
    assert history.turns <= 8
    assert History(history.sizes[len(history.sizes) // 2 :]).turns <= 4
    tail = history.sizes[len(history.sizes) // 2 :]
    assert max(tail) - min(tail) <= 1


@pytest.mark.parametrize("form", FORMS)
def test_a_step_that_fills_queues_does_not_order_replicas_for_what_waits_in_engines(form):
    history = live(form, lambda t: RATE_P * (0.8 if t < 900 else 5.3), 4500)
    assert 4 <= history.sizes[-1] <= 8
    assert max(history.sizes) <= 14


@pytest.mark.parametrize("form", FORMS)
def test_a_ramp_up_and_down_turns_once(form):
    history = live(form, lambda t: RATE_P * (0.5 + 4 * min(t, 7200 - t) / 3600), 7200)
    assert history.turns <= 4
    assert max(history.sizes) <= 7
    assert history.sizes[-1] <= 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rate", [0.3, 0.05, 0.005, 0.0])
def test_next_to_no_load_needs_one_replica(form, rate):
    history = live(form, lambda _: rate, 2700, replicas=4)
    assert history.sizes[-1] == 1


@pytest.mark.parametrize("form", FORMS)
def test_bursts_that_come_back_at_once_are_waited_for(form):
    history = live(form, lambda t: RATE_P * (1.5 if t // 300 % 2 else 0.6), 7200, replicas=2)
    assert history.turns <= 8
