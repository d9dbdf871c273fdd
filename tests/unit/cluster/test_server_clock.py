"""Time by the API server's clock, whatever this machine's clock does."""

from __future__ import annotations

import time
from collections.abc import Iterable
from email.utils import formatdate

import pytest
from hypothesis import given, strategies as st

from modelyard.cluster.clock import ServerClock

EPOCH = 1_800_000_000.0


class Server:
    """A server whose clock is ``ahead`` seconds ahead of the true time, and a machine that asks it."""

    def __init__(self) -> None:
        self.true = self.ahead = 0.0
        self.clock = ServerClock(lambda: self.true)

    @property
    def time(self) -> float:
        return EPOCH + self.true + self.ahead

    def ask(self, there: float = 0.0, back: float = 0.0) -> None:
        """One request; seconds until the server answers, and until its answer begins to arrive."""
        sent = self.true
        self.true += there
        date = formatdate(int(self.time), usegmt=True)
        self.true += back
        self.clock.note(date, sent)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=20))
def test_it_is_right_to_within_a_second_and_the_time_of_an_exchange(
    exchanges: Iterable[tuple[float, float, float]],
) -> None:
    server, worst = Server(), float("inf")
    for pause, there, back in exchanges:
        server.true += pause
        server.ask(there, back)
        worst = min(worst, 1 + there + back)
        assert abs(server.clock.now() - server.time) <= max(worst, 2) + 1e-3


@pytest.mark.parametrize("jump", [7200.0, -7200.0, 2.0])
def test_it_follows_when_the_servers_clock_is_set(jump: float) -> None:
    server = Server()
    server.ask()
    server.ahead += jump
    server.ask(0.1, 0.1)
    assert abs(server.clock.now() - server.time) <= 1.2


def test_it_never_goes_back_while_answers_narrow_the_estimate() -> None:
    server, times = Server(), []
    for pause in (0.0, 0.9, 0.55, 0.05, 0.5, 0.3, 0.01, 0.01, 0.97):
        server.true += pause
        server.ask(0.0, 0.01)
        times += [server.clock.now(), server.clock.now()]
    assert times == sorted(times)


def test_it_goes_on_evenly_between_answers_that_say_the_same() -> None:
    server = Server()
    for _ in range(30):
        server.true += 0.37
        server.ask(0.01, 0.01)
    before = server.clock.now() - server.true
    for _ in range(300):
        server.true += 0.37
        server.ask(0.01, 0.01)
        assert server.clock.now() - server.true == pytest.approx(before, abs=0.05)


@pytest.mark.parametrize("date", [None, "", "yesterday", "Wed, 99 Oct 2015 07:28:00 GMT"])
def test_an_answer_without_a_date_changes_nothing(date: str | None) -> None:
    clock = ServerClock()
    clock.note(date, time.monotonic())
    assert clock.now() == pytest.approx(time.time(), abs=5), "before any answer it is this machine's"
    server = Server()
    server.ask()
    before = server.clock.now()
    server.clock.note(date, server.true)
    assert server.clock.now() == before
