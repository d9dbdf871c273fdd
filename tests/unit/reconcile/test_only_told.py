"""What the reconcile shift itself writes of a plan."""

from __future__ import annotations

from modelyard.objects import Key, Notice
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.reconcile.kernel.reconciler import only_told
from modelyard.reconcile.plans.plan import Plan, Status, Subject

SUBJECT = Subject(CONFIG_MAPS, Key("shop", "a"), "uid", 1)


def test_a_plan_that_only_tells_is_told_whole() -> None:
    plan = Plan(SUBJECT, annotations={"a": "b"}, status=Status({"ready": 1}))
    assert only_told(plan) is plan


def test_of_a_plan_that_acts_only_the_status_is_told() -> None:
    notices = (Notice("Waiting", "for a node"),)
    plan = Plan(
        SUBJECT, annotations={"a": "b"}, status=Status({"ready": 1}), apply=({},), finalizer=True, notices=notices
    )
    told = only_told(plan)
    assert (told.status, told.notices) == (plan.status, notices)
    assert not told.acts
    assert not told.annotations
