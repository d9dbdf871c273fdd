"""Which runs are started: one live run per object, the dead replaced, the failing ever more rarely, in fair batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from modelyard.objects import Condition, Key
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.reconcile.plans.claims import Claim
from modelyard.reconcile.plans.dispatch import (
    EXPECTED_START,
    MOST_ATTEMPTS,
    MOST_IN_A_BATCH,
    RETRIES,
    Acting,
    RunFate,
    Start,
    awaited_run,
    dispatch as start_runs,
    fingerprint,
    is_due,
    is_free,
    named,
    with_awaited_run,
)
from modelyard.reconcile.plans.plan import CLAIM, Child, Plan, Status, Subject
from modelyard.reconcile.plans.run_limits import RunLimits, RunLoad
from modelyard.reconcile.plans.status import condition_body

NOW = 1_800_000_000.0
ONE = Acting("copies/copies")
ALIVE = RunFate(None)


def plan(name: str = "a", namespace: str = "shop", claim: str = "", generation: int = 1, **acts: Any) -> Plan:
    acts = acts or {"apply": ({"kind": "ConfigMap", "metadata": {"name": "child"}},)}
    key = Key(namespace, name)
    return Plan(Subject(CONFIG_MAPS, key, f"uid-{namespace}-{name}", generation, claim=claim), **acts)


def claimed(of: Plan, run: str = "before", attempt: int = 1, at: float = NOW - 5, other: bool = False) -> Plan:
    """The plan of an object that names ``run``, which was about the same work or about something ``other``."""
    work = "0" * 12 if other else fingerprint(of)
    return replace(of, subject=of.subject._replace(claim=str(Claim(run, work, attempt, at))))


def dispatch(plans: Iterable[Plan], acting: Acting, runs: Mapping[str, RunFate], now: float) -> list[Start]:
    """The starts for plans of one lifecycle, where places are plenty."""
    return [*start_runs([(acting, plans)], runs, now, RunLoad(limits=RunLimits(1000))).starts]


def attempts(starts: list[Start]) -> list[int]:
    return [claim.attempt for start in starts for _, claim in start.claims]


def test_a_plan_that_acts_starts_a_run_under_its_idempotency_key() -> None:
    (start,) = dispatch([plan()], ONE, {}, NOW)
    assert start.deployment == "copies/copies"
    assert start.key == f"ConfigMap/shop/a/{fingerprint(plan())}/1/{NOW:.0f}"
    ((subject, claim),) = start.claims
    assert subject == plan().subject
    assert claim == Claim(start.key, fingerprint(plan()), 1, NOW)


def test_what_only_tells_starts_nothing() -> None:
    told = plan(status=Status({"ready": 1}), annotations={"a": "b"}, awaits=("pods",))
    assert not dispatch([told, plan("b", delete=())], ONE, {}, NOW)
    assert not named([claimed(told)])


@pytest.mark.parametrize(
    ("run", "attempt", "seconds", "starts"),
    [
        (ALIVE, 1, 0, []),
        (ALIVE, 1, 1e6, []),
        (RunFate(NOW, died=True), 1, 0, [2]),
        (RunFate(NOW, died=True), 2, 14, []),
        (RunFate(NOW, died=True), 2, 15, [3]),
        (RunFate(NOW), 1, 14, []),
        (RunFate(NOW), 1, 15, [2]),
        (RunFate(NOW), 2, 29, []),
        (RunFate(NOW), 2, 30, [3]),
        (RunFate(NOW), 40, 599, []),
        (RunFate(NOW), 40, 600, [41]),
        (None, 1, 9, []),
        (None, 1, 10, [1]),
        (None, 40, 10, [40]),
    ],
)
def test_a_run_is_followed_by_another_in_good_time(
    run: RunFate | None, attempt: int, seconds: float, starts: list[int]
) -> None:
    due = claimed(plan(), attempt=attempt)
    runs = {} if run is None else {"before": run}
    assert attempts(dispatch([due], ONE, runs, NOW + seconds)) == starts


def test_a_run_that_got_somewhere_is_followed_at_once_by_a_first_attempt() -> None:
    due = claimed(plan(), attempt=7, other=True)
    assert attempts(dispatch([due], ONE, {"before": RunFate(NOW)}, NOW)) == [1]
    assert not dispatch([due], ONE, {"before": ALIVE}, NOW), "but only once it is over"


def test_the_next_part_of_long_work_is_started_at_once() -> None:
    due = claimed(plan(), attempt=7)
    assert not dispatch([due], ONE, {"before": RunFate(NOW)}, NOW)
    assert attempts(dispatch([replace(due, part=1)], ONE, {"before": RunFate(NOW)}, NOW)) == [1]


def test_the_next_claim_can_be_read_however_often_it_was_tried() -> None:
    due = claimed(plan(), attempt=MOST_ATTEMPTS)
    (start,) = dispatch([due], ONE, {"before": RunFate(NOW)}, NOW + RETRIES.longest)
    ((_, claim),) = start.claims
    assert Claim.read(str(claim)) == claim


def test_work_that_is_due_a_second_time_is_not_taken_for_the_first() -> None:
    before = dispatch([plan()], ONE, {}, NOW)[0]
    again = claimed(plan(), "another", other=True)
    (start,) = dispatch([again], ONE, {before.key: RunFate(NOW), "another": RunFate(NOW + 60)}, NOW + 60)
    assert attempts([start]) == [1]
    assert start.key != before.key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "?",
        "run",
        "run 0123456789ab/1",
        "run 0123456789ab/x 1",
        "a b 0123456789ab/1 1",
        f"{'r' * 600} {'0' * 12}/1 1",
        f"run\0 {'0' * 12}/1 1",
        f"r\u00fcn {'0' * 12}/1 1",
        f"run {'0' * 12}/\u0661 1",
    ],
)
def test_an_annotation_that_is_no_claim_is_nobodys(text: str) -> None:
    assert Claim.read(text) is None
    assert attempts(dispatch([plan(claim=text)], ONE, {}, NOW)) == [1]


def test_a_claim_from_the_future_is_nobodys() -> None:
    assert attempts(dispatch([claimed(plan(), at=NOW * 2)], ONE, {}, NOW)) == [1]


@pytest.mark.parametrize("ahead", [30, 120, 7200, 1e9])
def test_a_run_that_lives_is_not_doubled_whatever_the_time_of_its_claim(ahead: float) -> None:
    """The clock was set back after the claim."""
    running = claimed(plan(), at=NOW + ahead)
    assert not dispatch([running], ONE, {"before": ALIVE}, NOW)
    assert not is_free(running.subject.claim, {"before": ALIVE}, NOW)
    assert not is_due(running, {"before": ALIVE}, NOW)


@pytest.mark.parametrize("ahead", [7200, 86_400])
def test_work_goes_on_with_its_pauses_after_the_clock_was_set_back(ahead: float) -> None:
    ended = RunFate(NOW + ahead)
    assert attempts(dispatch([claimed(plan(), attempt=3, at=NOW + ahead)], ONE, {"before": ended}, NOW)) == [4]
    assert is_free(str(Claim("never-created", "0" * 12, 1, NOW + ahead)), {}, NOW)
    # Prefect's server has a clock that is ahead all the time: pauses count from the claims.
    due = claimed(plan(), attempt=3, at=NOW)
    assert not dispatch([due], ONE, {"before": ended}, NOW + 59)
    assert attempts(dispatch([due], ONE, {"before": ended}, NOW + 60)) == [4]


def test_only_runs_of_plans_that_act_are_looked_up() -> None:
    assert named([claimed(plan("a"), "x"), claimed(plan("b", awaits=("y",)), "z"), plan("c")]) == {"x"}


def test_the_fingerprint_is_of_the_work_and_of_the_object() -> None:
    same = [plan(), plan(claim="whoever"), replace(plan(), status=Status({"ready": 1}), message="later")]
    assert len({fingerprint(one) for one in same}) == 1
    child = Child(CONFIG_MAPS, Key("shop", "child"), "uid")
    different = [plan(), plan("b"), plan(generation=2), plan(apply=({"kind": "Job"},)), plan(delete=(child,))]
    assert len({fingerprint(one) for one in different}) == 5


def test_the_moment_in_the_claim_of_a_child_run_is_no_other_work() -> None:
    def creating(claim: str, digest: str = "d") -> Plan:
        annotations = {CLAIM: claim, "digest": digest}
        return plan(apply=({"kind": "BaseModel", "metadata": {"name": "chat", "annotations": annotations}},))

    assert fingerprint(creating("run at ten")) == fingerprint(creating("run at eleven"))
    assert fingerprint(creating("run at ten")) != fingerprint(creating("run at ten", "other"))


WAITING = Condition("Ready", "False", "Starting", "h100-0: its Job is created next")
ACTING = Acting("deliver/deliver")
OWN = "ConfigMap/shop/a/0123456789ab/1/1799999800"
QUEUED = RunFate(None, queued=NOW - 150, name="BaseModel shop/a")
SAYS = (
    "waiting since 2027-01-15T07:57:30Z for flow run 'BaseModel shop/a' of deliver/deliver to start; check that a"
    " worker runs, and that work queue runs has a free place"
)


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (QUEUED, SAYS),
        (QUEUED._replace(queued=NOW - EXPECTED_START + 1), ""),
        (RunFate(None, name="BaseModel shop/a"), ""),
        (None, ""),
        (
            RunFate(NOW - 2, died=False, name="BaseModel shop/a"),
            "flow run 'BaseModel shop/a' of deliver/deliver ended at 2027-01-15T07:59:58Z; the next is started at"
            " 2027-01-15T08:00:13Z",
        ),
        (RunFate(NOW - 2, died=True, name="BaseModel shop/a"), ""),
    ],
)
def test_the_status_says_which_flow_run_is_awaited_and_since_when(run: RunFate | None, says: str) -> None:
    waiting = claimed(plan(), OWN, at=NOW - 200)
    assert awaited_run(waiting, ACTING, {OWN: run} if run else {}, NOW) == says
    assert awaited_run(plan(), ACTING, {}, NOW) == "", "none is named yet: it is started at this tick"
    told = claimed(plan(status=Status({})), OWN, at=NOW - 200)
    assert awaited_run(told, ACTING, {OWN: QUEUED}, NOW) == "", "it only tells"


@pytest.mark.parametrize(
    "run",
    [
        "ConfigMap/batch-of-2/0123456789abcdef01234567",
        "flow-run/0123abcd-0123-0123-0123-0123456789ab",
        "ConfigMap/bank/merger/0123456789ab/1/1799999800",
        "ConfigMap/shop/ab/0123456789ab/1/1799999800",
    ],
)
def test_the_name_of_a_run_that_is_not_for_the_object_alone_is_not_told(run: str) -> None:
    """It may be that of an object in another namespace."""
    queued = RunFate(None, queued=NOW - 150, name="ConfigMap bank/merger and 1 more")
    waiting = claimed(plan(), run, at=NOW - 200)
    says = SAYS.replace("flow run 'BaseModel shop/a' of", "a flow run of")
    assert awaited_run(waiting, ACTING, {run: queued}, NOW) == says
    ended = awaited_run(waiting, ACTING, {run: queued._replace(ended=NOW - 2)}, NOW)
    assert ended.startswith("a flow run of deliver/deliver ended at ")


def test_a_run_that_got_somewhere_is_followed_at_once_and_nothing_is_told_of_it() -> None:
    ended = RunFate(NOW - 2, name="BaseModel shop/a")
    assert awaited_run(claimed(plan(), other=True), ACTING, {"before": ended}, NOW) == ""


def test_what_is_awaited_is_written_once_and_taken_away_when_the_run_begins() -> None:
    other = Condition("Resolved", "True", "Resolved", "hf://a/b")
    all_nodes = replace(WAITING, type="AllNodesReady", message=f"0 of 1 node; {WAITING.message}")
    status = Status({"state": "Creating"}, (other, WAITING, all_nodes))
    bodies = [condition_body(one, NOW) for one in status.conditions]
    stored = {"state": "Creating", "conditions": bodies}
    silent = replace(plan(), reason="Starting", message=WAITING.message, wanted=status, stored=stored)
    waiting = with_awaited_run(silent, SAYS, NOW)
    assert waiting.status is not None
    messages = [one.message for one in waiting.status.conditions]
    assert messages == ["hf://a/b", f"{WAITING.message}; {SAYS}", f"0 of 1 node; {WAITING.message}; {SAYS}"]
    written = {"state": "Creating", "conditions": [condition_body(one, NOW) for one in waiting.status.conditions]}
    assert with_awaited_run(replace(silent, stored=written), SAYS, NOW + 5).status is None, "it stands there"
    assert with_awaited_run(silent, "", NOW) is silent
    assert with_awaited_run(plan(), SAYS, NOW).status is None, "nothing is known of its status"


def test_a_batch_is_one_run_and_its_key_follows_from_its_content() -> None:
    acting = Acting("copies/copies", batch=3)
    plans = [plan(name) for name in "abcd"]
    first, second = dispatch(plans, acting, {}, NOW)
    assert [subject.key.name for subject, _ in first.claims] == ["a", "b", "c"]
    assert {claim.run for _, claim in first.claims} == {first.key}
    assert Claim.read(str(first.claims[0][1])) is not None
    assert second.key == f"ConfigMap/shop/d/{fingerprint(plan('d'))}/1/{NOW:.0f}"
    assert dispatch(plans[:3], acting, {}, NOW)[0].key == first.key
    assert dispatch(plans[1:], acting, {}, NOW)[0].key != first.key
    assert dispatch([*plans[:2], plan("c", generation=2)], acting, {}, NOW)[0].key != first.key


def test_a_batch_has_its_limits() -> None:
    with pytest.raises(ValueError, match="1 to 50 objects, not 51"):
        Acting("copies/copies", batch=MOST_IN_A_BATCH + 1)


runs = st.sampled_from([None, ALIVE, RunFate(NOW - 3), RunFate(NOW - 3, died=True), RunFate(NOW - 1e4)])
objects = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "d"]),
        st.sampled_from(["x", "y"]),
        st.booleans(),
        st.integers(0, 4),
        st.booleans(),
        runs,
    ),
    unique_by=lambda one: one[:2],
    max_size=8,
)


@given(objects, st.integers(1, 4))
def test_nothing_is_started_twice_and_nothing_is_forgotten(those: list[Any], batch: int) -> None:
    acting, known, plans = Acting("copies/copies", batch), {}, []
    for name, namespace, acts, attempt, other, run in those:
        one = plan(name, namespace) if acts else plan(name, namespace, awaits=("time",))
        if attempt:
            one = claimed(one, f"{namespace}-{name}", attempt, other=other)
        plans.append(one)
        if run is not None:
            known[f"{namespace}-{name}"] = run
    starts = dispatch(plans, acting, known, NOW)
    started = [subject.ref for start in starts for subject, _ in start.claims]
    assert len(started) == len(set(started)), "one run per object"
    assert len({start.key for start in starts}) == len(starts)
    assert all(1 <= len(start.claims) <= batch for start in starts)
    assert all(claim.run == start.key for start in starts for _, claim in start.claims)
    busy = {one.subject.ref for one in plans if known.get((Claim.read(one.subject.claim) or ("",))[0]) == ALIVE}
    assert not busy & set(started)
    late = dispatch(plans, acting, known, NOW + RETRIES.longest)
    reached = {subject.ref for start in late for subject, _ in start.claims}
    assert reached == {one.subject.ref for one in plans if one.acts} - busy


@given(objects, st.integers(1, 4))
def test_who_is_there_besides_does_not_change_what_is_due(those: list[Any], batch: int) -> None:
    plans = [plan(name, namespace) for name, namespace, *_ in those]
    alone = [dispatch([one], ONE, {}, NOW) for one in plans]
    together = dispatch(plans, Acting("copies/copies", batch), {}, NOW)
    members = sorted((s.key, c.fingerprint, c.attempt) for start in together for s, c in start.claims)
    assert members == sorted((s.key, c.fingerprint, c.attempt) for (start,) in alone for s, c in start.claims)


def test_a_run_that_dies_at_every_step_is_replaced_at_every_tick() -> None:
    """Each attempt does a part of the work, so that what is left, and with it the fingerprint, changes."""
    left = [{"kind": "ConfigMap", "metadata": {"name": name}} for name in "abc"]
    claim, keys = "", []
    for tick in itertools.count():
        due = plan(claim=claim, apply=tuple(left))
        if not due.acts:
            break
        (start,) = dispatch([due], ONE, dict.fromkeys(keys, RunFate(NOW + tick, died=True)), NOW + tick)
        keys.append(start.key)
        claim = str(start.claims[0][1])
        left.pop()
    assert len(keys) == len(set(keys)) == 3


def test_a_cancelled_child_is_replaced_only_when_its_object_changes() -> None:
    cancelled = RunFate(NOW, name="BaseModel shop/a", child=True, cancelled=True)
    assert not dispatch([claimed(plan(), other=True)], ONE, {"before": cancelled}, NOW + 1e6)
    awaited = awaited_run(claimed(plan(), OWN, other=True), ACTING, {OWN: cancelled}, NOW + 60)
    assert awaited.startswith("flow run 'BaseModel shop/a' of deliver/deliver was cancelled")
    changed = claimed(plan(generation=2), other=True)
    assert attempts(dispatch([changed], ONE, {"before": cancelled}, NOW + 60)) == [1]


def test_a_child_that_its_parent_has_not_created_yet_is_left_to_it_for_longer() -> None:
    due = claimed(plan(), other=True, at=NOW)
    assert not dispatch([due], ONE, {}, NOW + 59)
    assert attempts(dispatch([due], ONE, {}, NOW + 60)) == [1]
