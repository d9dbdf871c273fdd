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


@pytest.mark.parametrize(
    ("looks", "state"),
    [
        pytest.param([(0, 0)], Renewal.FRESH, id="renewed a moment ago"),
        pytest.param([(0, 60)], Renewal.OVERDUE, id="its own moment is old, its clock may be wrong"),
        pytest.param([(0, -60)], Renewal.FRESH, id="its clock is ahead"),
        pytest.param([(0, 60), (5, 55)], Renewal.FRESH, id="an old moment that changes"),
        pytest.param([(0, 0), (5, 0), (10, 0), (14, 0)], Renewal.FRESH, id="within its duration"),
        pytest.param([(0, 0), (5, 0), (10, 0), (15, 0)], Renewal.ENDED, id="unchanged for its duration"),
        pytest.param([(0, 0), (100, 0)], Renewal.OVERDUE, id="the observer stood still and missed renewals"),
        pytest.param([(0, None)], None, id="there is no Lease"),
    ],
)
def test_a_holder_is_judged_by_what_changes_on_the_observers_clock(
    looks: list[tuple[float, float | None]], state: Renewal | None
) -> None:
    """``looks``: when the observer looks, and the age that the record had at first; ``None``: no record."""
    records = {age: spec(age) if age is not None else {} for _, age in looks}
    monitor, seen = RenewalMonitor(), None
    for now, age in looks:
        seen = monitor.judge({LEASE: records[age]}, now).get(LEASE, ("", None))[1]
    assert seen is state


def test_a_released_lease_has_no_holder() -> None:
    assert RenewalMonitor().judge({LEASE: spec(holder="")}, 0) == {}


def test_no_record_is_judged_by_its_own_moment_after_an_outage_in_which_nobody_could_renew() -> None:
    monitor = RenewalMonitor()
    monitor.forget()
    assert monitor.judge({LEASE: spec(age=60)}, 0)[LEASE][1] is Renewal.FRESH
    taken = monitor.judge({LEASE: spec(age=60, holder="host_other")}, 1)
    assert taken[LEASE] == ("other", Renewal.FRESH), "it took the Lease just now"


def test_the_token_of_the_holder_is_reported() -> None:
    assert RenewalMonitor().judge({LEASE: spec(holder="host_12_abc")}, 0) == {LEASE: ("abc", Renewal.FRESH)}
