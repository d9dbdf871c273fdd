"""Queues in which the owner that used least is served first."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from modelyard.fairness import DecayingUsage, FairQueue, StartTimeFairQueue, Ticket


def test_use_fades_and_the_owners_that_used_something_longest_ago_are_forgotten() -> None:
    usage = DecayingUsage(window=10.0, most_owners=2)
    usage.add("a", 100.0, 0.0)
    usage.add("b", 100.0, 10.0)
    usage.add("b", -5.0, 10.0)
    assert math.exp(usage.level("b") - usage.level("a")) == pytest.approx(math.e)
    usage.add("a", 100.0, 10.0)
    assert math.exp(usage.level("a") - 1) == pytest.approx(100 + 100 / math.e)
    usage.add("c", 1.0, 20.0)
    assert usage.level("b") == -math.inf


actions = st.lists(
    st.tuples(st.sampled_from(["add", "add", "next", "oldest", "use", "remove"]), st.integers(0, 3), st.integers(0, 2)),
    max_size=150,
)


@given(actions)
def test_the_first_is_the_least_used_owners_lowest_rank_whatever_was_removed(steps: list[tuple[str, int, int]]) -> None:
    use = [0] * 4
    queue = FairQueue[str](lambda owner: use[owner])
    waiting: list[Ticket[str]] = []
    for action, owner, number in steps:
        own = [ticket for ticket in waiting if ticket.owner == owner]
        if action == "add":
            waiting.append(queue.add(owner, "", number))
        elif action == "use":
            use[owner] += number
        elif own and action == "oldest":
            assert (queue.oldest(owner), queue.oldest()) == (own[0], waiting[0])
            assert queue.last() is max(waiting, key=lambda ticket: (use[ticket.owner], ticket.number))
        elif (action == "next" and waiting) or (action == "remove" and own):
            first = queue.first()
            assert first is not None
            assert use[first.owner] == min(use[ticket.owner] for ticket in waiting)
            rivals = [ticket for ticket in waiting if ticket.owner == first.owner]
            assert first is min(rivals, key=lambda ticket: (ticket.rank, ticket.number))
            gone = first if action == "next" else own[number % len(own)]
            for _ in range(2):  # again: nothing
                queue.remove(gone)
            waiting.remove(gone)
        assert list(queue.tickets) == waiting
        assert len(queue._heap) <= 2 * 4 + 16
    assert (queue.first() is None) == (not waiting)


def test_idleness_earns_nothing_and_equal_owners_alternate() -> None:
    queue = StartTimeFairQueue[str]()
    queue.join("busy")
    queue.join("idle")
    for number in range(3):
        queue.add("busy", f"busy {number}")
        queue.charge("busy", 1.0)
    queue.next()
    queue.add("idle", "idle 0")
    queue.add("idle", "idle 1")
    order = [queue.next() for _ in range(4)]
    assert order == ["idle 0", "busy 1", "idle 1", "busy 2"]


def test_work_of_an_owner_without_open_requests_is_passed_over() -> None:
    queue = StartTimeFairQueue[str]()
    queue.join("gone")
    queue.join("stays")
    queue.add("gone", "gone")
    queue.add("stays", "stays")
    queue.leave("gone")
    assert [queue.next(), queue.next(), queue.next()] == ["gone", "stays", None]
    assert list(queue.accounts) == ["stays"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60))
def test_all_work_is_done_once_and_no_owner_that_waits_gets_more_than_a_slice_less(
    pieces: Sequence[tuple[int, int]],
) -> None:
    queue = StartTimeFairQueue[tuple[int, int]]()
    owners = [("client", str(number)) for number in range(4)]
    for owner in owners:
        queue.join(owner)
    for number, (owner, used) in enumerate(pieces):
        queue.add(owners[owner], (owner, number), used)
    left = [sum(owner == number for owner, _ in pieces) for number in range(4)]
    served, order = [0] * 4, list[tuple[int, int]]()
    while (piece := queue.next()) is not None:
        order.append(piece)
        queue.charge(owners[piece[0]], 1.0)
        served[piece[0]] += 1
        left[piece[0]] -= 1
        waiting = [served[number] for number in range(4) if left[number]]
        assert not waiting or max(served) - min(waiting) <= 1
    assert sorted(order) == sorted((owner, number) for number, (owner, _) in enumerate(pieces))
    assert len(queue) == 0
