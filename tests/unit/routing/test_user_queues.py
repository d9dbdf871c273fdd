"""Whose turn it is, in virtual time and on an event loop."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from modelyard.fairness import DecayingUsage, Ticket
from modelyard.router.process.user_queues import UserQueues
from modelyard.routing.configuration import FairnessSettings
from modelyard.routing.seams import NotServed, Principal
from modelyard.routing.user_queue import NOBODY, UserQueue

ONE = FairnessSettings(enabled=True, max_concurrent=1)


def queue_of(settings: FairnessSettings, used: dict[str, int] | None = None) -> UserQueue[int]:
    usage = DecayingUsage(settings.window_seconds)
    for user, tokens in (used or {}).items():
        usage.add(("m", user), settings.cost(tokens, 0), 0.0)
    return UserQueue("m", usage, settings)


def joined(queue: UserQueue[int], user: str, tag: int = 0) -> Ticket[int]:
    ticket, displaced = queue.join(user, tag)
    assert ticket is not None
    assert displaced is None
    return ticket


def order(queue: UserQueue[int]) -> list[tuple[str, int]]:
    found = []
    while (ticket := queue.next(0.0)) is not None:
        found.append((str(ticket.owner), ticket.value))
        queue.end()
    return found


def test_who_used_less_goes_first_and_each_in_his_order() -> None:
    usage = DecayingUsage(ONE.window_seconds)
    used = [("m", "a", 100, 50), ("m", "b", 80, 40), ("other", "b", 10**6, 0), ("m", "b", -5, -5)]
    for model, user, *tokens in used:
        usage.add((model, user), ONE.cost(*tokens), 0.0)
    assert [math.exp(usage.level(("m", user))) for user in "ab"] == pytest.approx([200, 160])
    queue = UserQueue[int]("m", usage, ONE)
    for tag, user in enumerate(["a", NOBODY, "a", "b", "b", "new"]):
        joined(queue, user, tag)
    assert order(queue) == [("new", 5), ("b", 3), ("b", 4), ("a", 0), ("a", 2), (NOBODY, 1)]


def test_usage_told_while_waiting_counts() -> None:
    queue = queue_of(ONE, {"b": 10})
    for user in ("a", "a", "b"):
        joined(queue, user)
    assert queue.next(0.0) is not None
    queue.end()
    queue.usage.add(("m", "a"), 100, 0.0)
    assert [user for user, _ in order(queue)] == ["b", "a"]


def test_the_rate_does_not_save_up() -> None:
    queue = queue_of(FairnessSettings(enabled=True, max_qps=10))
    for _ in range(3):
        joined(queue, "a")
    assert queue.next(100.0) is not None
    assert queue.next(100.0) is None
    assert queue.begins_at(100.0) == pytest.approx(100.1)
    assert queue.next(100.11) is not None


def test_in_a_full_queue_who_used_most_gives_way() -> None:
    queue = queue_of(ONE.model_copy(update={"max_waiting": 3}), {"heavy": 100, "light": 1})
    first, last = joined(queue, "heavy"), joined(queue, "heavy")
    joined(queue, "light")
    for user in ("heavy", NOBODY):
        ticket, displaced = queue.join(user, 0)
        assert ticket is displaced
    ticket, displaced = queue.join("light", 0)
    assert ticket is not None
    assert displaced is last
    assert len(queue) == 3
    assert first in queue.tickets


actions = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from([NOBODY, *"abcd"])),
        st.tuples(st.just("next"), st.just("")),
        st.tuples(st.just("used"), st.sampled_from([*"abcd"])),
        st.tuples(st.just("leave"), st.sampled_from([*"abcd"])),
    ),
    max_size=150,
)


@given(actions, st.integers(1, 5), st.integers(1, 20))
def test_nobody_starves_the_queue_is_bounded_and_the_rest_go_by_usage(
    steps: list[tuple[str, str]], every: int, most: int
) -> None:
    queue = queue_of(ONE.model_copy(update={"oldest_every": every, "max_waiting": most}))
    waiting: list[Ticket[int]] = []
    may_wait: dict[int, int] = {}  # turns until a request's own at most: those before it, each within `every`
    given_ = 0
    for number, (action, user) in enumerate(steps):
        if action == "join":
            ticket, displaced = queue.join(user, number)
            if displaced is not None and displaced is not ticket:
                waiting.remove(displaced)
            if displaced is not ticket:
                may_wait[ticket.number] = given_ + every * (len(waiting) + 1)
                waiting.append(ticket)
            else:
                assert len(waiting) == most
                levels = [queue.level(str(one.owner)) for one in waiting]
                assert queue.level(user) >= max(levels)
        elif action == "next":
            ticket = queue.next(0.0)
            assert (ticket is None) == (not waiting)
            if ticket is None:
                continue
            given_ += 1
            assert given_ <= may_wait[ticket.number]
            if given_ % every:
                assert ticket is min(waiting, key=lambda one: (queue.level(str(one.owner)), one.number))
            else:
                assert ticket is waiting[0]
            waiting.remove(ticket)
            assert queue.next(0.0) is None  # one at once
            queue.end()
        elif action == "used":
            queue.usage.add(("m", user), ONE.cost(10, 5), 0.0)
        elif found := next((one for one in waiting if str(one.owner) == user), None):
            queue.remove(found)
            waiting.remove(found)
        assert len(queue) == len(waiting) <= most
        assert list(queue.tickets) == waiting


async def served(ours: UserQueues, user: str, log: list[str], hold: asyncio.Event | None = None) -> None:
    async with ours.turn("m", Principal(user)):
        log.append(user)
        if hold is not None:
            await hold.wait()


async def test_turns_of_tasks() -> None:
    ours, log, hold = UserQueues(ONE), list[str](), asyncio.Event()
    ours.used("m", Principal("heavy"), 100, 0)
    first = asyncio.create_task(served(ours, "heavy", log, hold))
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(served(ours, user, log)) for user in ("heavy", "gone", "light")]
    await asyncio.sleep(0)
    assert (log, ours.waiting("m")) == (["heavy"], 3)
    waiting[1].cancel()
    hold.set()
    await first
    await asyncio.gather(*waiting, return_exceptions=True)
    assert log == ["heavy", "light", "heavy"]
    assert ours.waiting("m") == 0


async def test_a_client_that_leaves_as_its_turn_comes_takes_nobody_elses() -> None:
    ours, log, hold = UserQueues(ONE), list[str](), asyncio.Event()

    async def first() -> None:
        await served(ours, "a", log, hold)
        left.cancel()  # its turn has begun, and it has not run since

    going = asyncio.create_task(first())
    await asyncio.sleep(0)
    left, next_ = (asyncio.create_task(served(ours, user, log)) for user in ("b", "c"))
    await asyncio.sleep(0)
    hold.set()
    await going
    with suppress(asyncio.CancelledError):
        await left
    await next_
    assert log == ["a", "c"]


async def test_who_waits_too_long_or_for_nothing_is_told() -> None:
    ours, hold = UserQueues(ONE.model_copy(update={"queue_timeout_seconds": 0.01})), asyncio.Event()
    first = asyncio.create_task(served(ours, "a", [], hold))
    await asyncio.sleep(0)
    with pytest.raises(NotServed) as timeout:
        await served(ours, "b", [])
    assert (timeout.value.answer.status, ours.waiting("m")) == (504, 0)
    ours = UserQueues(ONE)
    second = asyncio.create_task(served(ours, "a", [], hold))
    waiting = asyncio.create_task(served(ours, "b", []))
    await asyncio.sleep(0)
    ours.close("m")
    with pytest.raises(NotServed) as closed:
        await waiting
    assert closed.value.answer.status == 404
    hold.set()
    await asyncio.gather(first, second)


async def test_turns_by_rate() -> None:
    log = list[str]()
    await asyncio.gather(
        *(served(UserQueues(FairnessSettings(enabled=True, max_qps=1000)), "a", log) for _ in range(20))
    )
    assert len(log) == 20
