"""Renewals of Leases as supervision sees them: specs of the Leases and the observer's clock in, states out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from modelyard.cluster import Renewal, RenewalMonitor
from modelyard.objects import Key

LEASE = Key("home", "writer")
DURATION = 15


def spec(age: float = 0.0, holder: str = "host_token") -> dict[str, Any]:
    """A record that was renewed ``age`` seconds ago by its holder's clock."""
    moment = datetime.now(UTC) - timedelta(seconds=age)
    renewed = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": holder, "leaseDurationSeconds": DURATION, "renewTime": renewed}


def observe(looks: list[tuple[float, dict[str, Any]]], monitor: RenewalMonitor | None = None) -> Renewal | None:
    """Return what the last of these looks says; ``None``: no holder."""
    monitor, state = monitor or RenewalMonitor(), None
    for now, seen in looks:
        state = monitor.judge({LEASE: seen}, now).get(LEASE, ("", None))[1]
    return state


SAME = spec()


@pytest.mark.parametrize(
    ("looks", "state"),
    [
        pytest.param([(0, spec())], Renewal.FRESH, id="renewed a moment ago"),
        pytest.param([(0, spec(age=60))], Renewal.OVERDUE, id="its own moment is old, its clock may be wrong"),
        pytest.param([(0, spec(age=-60))], Renewal.FRESH, id="its clock is ahead"),
        pytest.param([(0, spec(age=60)), (5, spec(age=55))], Renewal.FRESH, id="an old moment that changes"),
        pytest.param([(0, SAME), (5, SAME), (10, SAME), (14, SAME)], Renewal.FRESH, id="within its duration"),
        pytest.param([(0, SAME), (5, SAME), (10, SAME), (15, SAME)], Renewal.ENDED, id="unchanged for its duration"),
        pytest.param([(0, SAME), (100, SAME)], Renewal.OVERDUE, id="the observer stood still and missed renewals"),
        pytest.param([(0, spec(holder=""))], None, id="released"),
        pytest.param([(0, {})], None, id="there is no Lease"),
    ],
)
def test_a_holder_is_judged_by_what_changes_on_the_observers_clock(
    looks: list[tuple[float, dict[str, Any]]], state: Renewal | None
) -> None:
    assert observe(looks) is state


def test_no_record_is_judged_by_its_own_moment_after_an_outage_in_which_nobody_could_renew() -> None:
    monitor = RenewalMonitor()
    monitor.forget()
    assert observe([(0, spec(age=60))], monitor) is Renewal.FRESH
    assert observe([(1, spec(age=60, holder="host_other"))], monitor) is Renewal.FRESH, "it took the Lease just now"


def test_the_token_of_the_holder_is_reported() -> None:
    assert RenewalMonitor().judge({LEASE: spec(holder="host_12_abc")}, 0) == {LEASE: ("abc", Renewal.FRESH)}
