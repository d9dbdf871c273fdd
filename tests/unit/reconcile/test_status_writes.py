"""When a status is worth a write, and what is then written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from modelyard.objects import Condition
from modelyard.objects.parse import timestamp
from modelyard.reconcile.plans.plan import Status
from modelyard.reconcile.plans.status import is_status_due, patch

NOW = 1_763_690_400.0
REFRESH = 300.0
READY = Condition("Ready", "True", "Reconciled", "3 of 3 pods are ready", 2, NOW - 500)
SAYS = Status(fields={"pods": {"ready": 3}, "gone": None}, conditions=(READY,), transient=frozenset({"Degraded"}))
CLOCKED = replace(SAYS, fields={**SAYS.fields, "run": {"at": timestamp(NOW), "count": 1}}, clock=("run", "at"))


def stored(status: Status, written: float = NOW) -> dict[str, Any]:
    """The status after it was written."""
    found = {name: value for name, value in patch(status, {}, written).items() if value is not None}
    if status.clock:
        found["run"] = {**found["run"], "at": timestamp(written)}
    return found


def test_what_is_stored_already_is_not_written_again() -> None:
    assert not is_status_due(SAYS, stored(SAYS), NOW + 10_000, REFRESH)
    assert is_status_due(SAYS, {}, NOW, REFRESH)


@pytest.mark.parametrize(
    "changed",
    [
        replace(SAYS, fields={"pods": {"ready": 2}}),
        replace(SAYS, fields={"pods": None}),
        replace(SAYS, fields={"pods": {"ready": 3, "waiting": 0}}),
        replace(SAYS, conditions=(replace(READY, status="False"),)),
        replace(SAYS, conditions=(replace(READY, reason="Other"),)),
        replace(SAYS, conditions=(replace(READY, observed_generation=3),)),
        replace(SAYS, conditions=(READY, Condition("More", "True", "R", "m"))),
    ],
)
def test_a_change_that_matters_is_written_at_once(changed: Status) -> None:
    assert is_status_due(changed, stored(SAYS), NOW, REFRESH, written=NOW)


def test_other_words_wait_a_while() -> None:
    words = replace(SAYS, conditions=(replace(READY, message="as ready as ever"),))
    assert not is_status_due(words, stored(SAYS), NOW + 59, REFRESH, written=NOW)
    assert is_status_due(words, stored(SAYS), NOW + 60, REFRESH, written=NOW)
    assert is_status_due(words, stored(SAYS), NOW, REFRESH)


def test_a_clock_is_wound_at_least_every_refresh_and_says_when_words_were_written() -> None:
    known = stored(CLOCKED)
    words = replace(CLOCKED, conditions=(replace(READY, message="other"),))
    for uid in ("", "one", "two"):
        assert not is_status_due(CLOCKED, known, NOW + REFRESH * 0.79, REFRESH, uid)
        assert is_status_due(CLOCKED, known, NOW + REFRESH, REFRESH, uid)
        assert not is_status_due(words, known, NOW + 59, REFRESH, uid)
        assert is_status_due(words, known, NOW + 60, REFRESH, uid)
    assert is_status_due(CLOCKED, stored(SAYS), NOW, REFRESH), "never written"
    unclocked = {**known, "run": {"count": 1}}
    assert is_status_due(CLOCKED, unclocked, NOW, REFRESH)


def test_many_objects_written_together_are_not_renewed_together() -> None:
    known = stored(CLOCKED)
    last = 0
    for age in range(240, 301, 15):
        due = sum(is_status_due(CLOCKED, known, NOW + age, REFRESH, f"uid-{number}") for number in range(1000))
        assert due - last < 400
        last = due
    assert last == 1000


def test_a_transient_condition_with_nothing_to_say_is_taken_away() -> None:
    known = stored(SAYS)
    known["conditions"] += [{"type": "Degraded", "status": "True"}, {"type": "Theirs", "status": "True"}]
    assert is_status_due(SAYS, known, NOW, REFRESH, written=NOW)
    assert [item["type"] for item in patch(SAYS, known, NOW)["conditions"]] == ["Ready", "Theirs"]


def test_conditions_of_others_stay_in_place_and_a_transition_keeps_its_time() -> None:
    before = [
        {"type": "Theirs", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]
    (theirs, ours) = patch(SAYS, {"conditions": before}, NOW)["conditions"]
    assert theirs == before[0]
    assert ours["lastTransitionTime"] == timestamp(NOW - 500)
    untimed = replace(SAYS, conditions=(replace(READY, last_transition=None),))
    assert patch(untimed, {"conditions": before}, NOW)["conditions"][1]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    turned = replace(SAYS, conditions=(replace(READY, last_transition=None, status="False"),))
    assert patch(turned, {"conditions": before}, NOW)["conditions"][1]["lastTransitionTime"] == timestamp(NOW)


def test_a_status_without_conditions_leaves_those_of_others_alone() -> None:
    assert patch(Status({"a": 1}), {"conditions": [{"type": "Theirs"}]}, NOW) == {"a": 1}
