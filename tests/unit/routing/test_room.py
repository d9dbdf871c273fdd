"""What requests in progress may have of a router."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from modelyard.routing.room import SMALL, Part, Room


def test_a_namespace_gets_three_quarters_and_a_large_request_not_the_last_eighth() -> None:
    room = Room(100, 32 * SMALL)
    hung = [Part(room) for _ in range(3)]
    assert all(one.hold(8 * SMALL) and not one.belong("hung") for one in hung)
    more = Part(room)
    assert more.hold(10)
    assert "of one namespace" in more.belong("hung")
    more.leave()
    large, small = Part(room), Part(room)
    assert large.hold(4 * SMALL)
    assert not large.hold(1), "bodies that are on their way are nobody's yet"
    assert small.hold(SMALL)
    assert not small.belong("shop")


def test_one_alone_may_have_it_all() -> None:
    room = Room(1, SMALL * 2)
    part = Part(room)
    assert part.hold(SMALL * 2)
    assert not part.belong("shop")
    assert not part.hold(1)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3 * SMALL), st.booleans()), max_size=30))
def test_what_is_over_takes_nothing(requests: list[tuple[str, int, bool]]) -> None:
    room = Room(20, 8 * SMALL)
    parts = []
    for namespace, size, known in requests:
        parts.append(part := Part(room))
        part.hold(size)
        if known:
            part.belong(namespace)
        part.hold(-size // 2)
    for part in parts:
        part.leave()
    assert (room.taken, room.held, room._of) == (0, 0, {})
