"""The part of all plans that the reconcile shift carries out itself: a share of each namespace, beside no live run."""

from __future__ import annotations

from typing import Any

import pytest

from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS, JOBS
from modelyard.reconcile.kernel.reconciler import MOST_CARRIED_OUT, MOST_CHANGES, only_told, shares
from modelyard.reconcile.plans.claims import Claim
from modelyard.reconcile.plans.dispatch import RETRIES, Acting, Dispatch, RunFate, dispatch
from modelyard.reconcile.plans.plan import CLAIM, Child, Plan, Status, Subject

NOW = 1_800_000_000.0
RUN = "Model/shop/a/0123456789ab/1/1"


def deletion(name: str = "a", namespace: str = "shop", run: str = "", at: float = NOW - 60, **more: Any) -> Plan:
    """The plan of a deleted object with nothing left but the finalizer."""
    claim = str(Claim(run, "0" * 12, 1, at)) if run else ""
    key = Key(namespace, name)
    subject = Subject(CONFIG_MAPS, key, f"uid-{key}", 1, "7", deleting=True, claim=claim)
    return Plan(subject, **{"finalizer": False, "by_shift": True, **more})


def test_sixty_deletions_start_no_run_and_delay_no_neighbour() -> None:
    plans = [deletion(f"m{number}", "many") for number in range(60)] + [deletion("one", "neighbour")]
    assert dispatch([(Acting("deliver/deliver"), plans)], {}, NOW) == Dispatch()
    carried = [plan.subject.key for plan in shares(plans, {}, NOW) if plan.acts]
    assert len(carried) == MOST_CARRIED_OUT + 1
    assert Key("neighbour", "one") in carried
    left = [plan for plan in plans if plan.subject.key not in carried]
    assert all(plan.acts for plan in shares(left, {}, NOW)), "the rest has its turn in the next tick"


def test_a_tick_has_a_bound_for_all_namespaces_and_the_first_of_each_come_first() -> None:
    jobs = tuple(Child(JOBS, Key("home", f"j{number}"), "uid") for number in range(99))
    plans = [deletion(f"m{n}", f"space{n % 4}", delete=jobs) for n in range(40)]
    carried = [plan for plan in shares(plans, {}, NOW) if plan.acts]
    assert len(carried) == MOST_CHANGES // 100
    assert {plan.subject.key.namespace for plan in carried} == {f"space{n}" for n in range(4)}
    huge = deletion(delete=jobs * 20)
    assert shares([huge], {}, NOW) == [huge], "one that is larger than the bound alone is carried out all the same"


@pytest.mark.parametrize(
    ("fate", "at", "carried"),
    [
        (RunFate(None), NOW - 60, False),
        (RunFate(None, queued=NOW - 30), NOW - 60, True),
        (RunFate(NOW - 1), NOW - 60, True),
        (RunFate(NOW - 1, died=True), NOW - 60, True),
        (None, NOW - 60, True),
        (None, NOW - RETRIES.first + 1, False),
    ],
)
def test_nothing_is_carried_out_beside_a_run_that_works_on_it(fate: RunFate | None, at: float, carried: bool) -> None:
    plan = deletion(run=RUN, at=at, status=Status({"a": 1}))
    (written,) = shares([plan], {RUN: fate} if fate is not None else {}, NOW)
    assert written.acts is carried
    assert written.status == plan.status, "what there is to tell is told in any case"
    if carried:
        assert written.annotations == {CLAIM: None}, "a run that begins now does not find itself named"
        assert written.exact, "and nothing is written if the object has changed since"


def test_without_knowing_what_became_of_runs_only_unclaimed_objects_are_carried_out() -> None:
    mine, theirs = deletion("mine"), deletion("theirs", run=RUN)
    assert [plan.acts for plan in shares([mine, theirs], None, NOW)] == [True, False]


@pytest.mark.parametrize(
    "more",
    [
        {"apply": ({"kind": "Job"},)},
        {"fill": {"spec": {}}},
        {"by_shift": False},
    ],
)
def test_what_creates_something_or_edits_the_object_is_a_run_s(more: dict[str, Any]) -> None:
    plan = deletion(**more)
    assert plan.needs_run
    assert shares([plan], {}, NOW) == [only_told(plan)]
    assert len(dispatch([(Acting("deliver/deliver"), [plan])], {}, NOW).starts) == 1


def test_one_that_failed_is_paused() -> None:
    plan = deletion()
    (written,) = shares([plan], {}, NOW, {plan.subject.ref})
    assert not written.acts
