"""What requests in progress may have of a router."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from modelyard.routing.errors import ErrorAnswer
from modelyard.routing.room import SMALL, Part, Room, client_of


def told(full: ErrorAnswer | None, status: int) -> str:
    assert full is not None
    assert full.status == status
    return full.message


def test_of_what_is_on_its_way_a_client_gets_its_share_and_what_is_there_is_no_longer_its() -> None:
    room = Room(4, 32 * SMALL, share=0.5)
    parts = [Part(room, "here") for _ in range(3)]
    assert [bool(one.full) for one in parts] == [True] * 3
    assert "2 requests of one client" in told(parts[2].full, 429)
    parts.pop().leave()
    assert not parts[0].hold(10 * SMALL)
    assert "of one client" in told(parts[1].hold(8 * SMALL), 429)
    other = Part(room, "there")
    assert not other.hold(8 * SMALL)
    assert not parts[0].belong("shop")
    assert not parts[1].hold(SMALL), "the other's bytes are the namespace's now"
    for one in (*parts, other):
        one.leave()
    assert (room.taken, room.held, room._of) == (0, 0, {})


def test_with_a_share_of_all_a_client_has_no_bound_of_its_own() -> None:
    room = Room(2, 2 * SMALL)
    parts = [Part(room, "here") for _ in range(2)]
    assert not any(one.full or one.hold(SMALL) for one in parts)
    assert told(parts[0].hold(1), 503)


def test_a_namespace_gets_three_quarters_and_a_large_request_not_the_last_eighth() -> None:
    room = Room(100, 32 * SMALL)
    hung = [Part(room) for _ in range(3)]
    assert not any(one.hold(8 * SMALL) or one.belong("hung") for one in hung)
    more = Part(room)
    assert not more.hold(10)
    assert "of one namespace" in told(more.belong("hung"), 503)
    more.leave()
    large, small = Part(room), Part(room)
    assert not large.hold(4 * SMALL)
    assert large.hold(1), "bodies that are on their way are nobody's yet"
    assert not small.hold(SMALL)
    assert not small.belong("shop")


def test_one_alone_may_have_it_all() -> None:
    room = Room(1, SMALL * 2)
    part = Part(room)
    assert not part.hold(SMALL * 2)
    assert not part.belong("shop")
    assert part.hold(1)


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 3 * SMALL), st.booleans()), max_size=30))
def test_what_is_over_takes_nothing(requests: list[tuple[str, int, bool]]) -> None:
    room = Room(20, 8 * SMALL, share=0.5)
    parts = []
    for name, size, known in requests:
        parts.append(part := Part(room, name))
        part.hold(size)
        if known:
            part.belong(name or "a")
        part.hold(-size // 2)
    for part in parts:
        part.leave()
    assert (room.taken, room.held, room._of) == (0, 0, {})


@pytest.mark.parametrize(
    ("addresses", "client"),
    [
        (("10.0.0.7", "::ffff:10.0.0.7"), "10.0.0.7"),
        (("2001:db8:0:1::7", "2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:DB8::1:0:0:0:7"), "2001:db8:0:1::/64"),
        (("fe80::7%eth0", "fe80::8%eth0"), "fe80::/64"),
        (("",), ""),
        (("a name",), "a name"),
    ],
)
def test_addresses_that_one_host_may_use_are_one_client(addresses: tuple[str, ...], client: str) -> None:
    assert {client_of(address) for address in addresses} == {client}


def test_other_networks_are_other_clients() -> None:
    assert len({client_of(address) for address in ("10.0.0.7", "10.0.0.8", "2001:db8:0:1::7", "2001:db8:0:2::7")}) == 4
