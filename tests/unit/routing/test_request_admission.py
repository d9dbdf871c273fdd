"""Admission of requests in progress to a router."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from modelyard.routing.admission import SMALL, RequestCapacity, Reservation, client_of
from modelyard.routing.errors import ErrorAnswer


def told(full: ErrorAnswer | None, status: int) -> str:
    assert full is not None
    assert full.status == status
    return full.message


def test_of_what_is_on_its_way_a_client_gets_its_share_and_what_is_there_is_no_longer_its() -> None:
    capacity = RequestCapacity(4, 32 * SMALL, client_share=0.5)
    reservations = [Reservation(capacity, "here") for _ in range(3)]
    assert [bool(one.refusal) for one in reservations] == [True] * 3
    assert "2 requests of one client" in told(reservations[2].refusal, 429)
    reservations.pop().release()
    assert not reservations[0].hold(10 * SMALL)
    assert "of one client" in told(reservations[1].hold(8 * SMALL), 429)
    other = Reservation(capacity, "there")
    assert not other.hold(8 * SMALL)
    assert not reservations[0].charge_to("shop")
    assert not reservations[1].hold(SMALL), "the other's bytes are the namespace's now"
    for one in (*reservations, other):
        one.release()
    assert (capacity.places.used, capacity.memory.used, capacity.places._by_owner, capacity.memory._by_owner) == (
        0,
        0,
        {},
        {},
    )


def test_with_a_share_of_all_a_client_has_no_bound_of_its_own() -> None:
    capacity = RequestCapacity(2, 2 * SMALL)
    reservations = [Reservation(capacity, "here") for _ in range(2)]
    assert not any(one.refusal or one.hold(SMALL) for one in reservations)
    assert told(reservations[0].hold(1), 503)


def test_a_namespace_gets_three_quarters_and_a_large_request_not_the_last_eighth() -> None:
    capacity = RequestCapacity(100, 32 * SMALL)
    hung = [Reservation(capacity) for _ in range(3)]
    assert not any(one.hold(8 * SMALL) or one.charge_to("hung") for one in hung)
    more = Reservation(capacity)
    assert not more.hold(10)
    assert "of one namespace" in told(more.charge_to("hung"), 503)
    more.release()
    large, small = Reservation(capacity), Reservation(capacity)
    assert not large.hold(4 * SMALL)
    assert large.hold(1), "bodies that are on their way are nobody's yet"
    assert not small.hold(SMALL)
    assert not small.charge_to("shop")


def test_one_alone_may_have_it_all() -> None:
    capacity = RequestCapacity(1, SMALL * 2)
    reservation = Reservation(capacity)
    assert not reservation.hold(SMALL * 2)
    assert not reservation.charge_to("shop")
    assert reservation.hold(1)


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 3 * SMALL), st.booleans()), max_size=30))
def test_what_is_over_takes_nothing(requests: list[tuple[str, int, bool]]) -> None:
    capacity = RequestCapacity(20, 8 * SMALL, client_share=0.5)
    reservations = []
    for name, size, known in requests:
        reservations.append(reservation := Reservation(capacity, name))
        reservation.hold(size)
        if known:
            reservation.charge_to(name or "a")
        reservation.hold(-size // 2)
    for reservation in reservations:
        reservation.release()
    assert (capacity.places.used, capacity.memory.used, capacity.places._by_owner, capacity.memory._by_owner) == (
        0,
        0,
        {},
        {},
    )


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
