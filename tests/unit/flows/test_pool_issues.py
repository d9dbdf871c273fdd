"""Issues of the runs of a pool: never started, late, dead, or missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, strategies as st
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import DeploymentResponse
from prefect.states import Cancelling, Crashed, Pending, Running, Scheduled
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

from deployments.pool_issues import (
    ENDED_WITHIN,
    LATE_AFTER,
    MAX_RUNS,
    STARTED_WITHIN,
    STARTS,
    UNRESPONSIVE,
    MissingRuns,
    ShiftBackoff,
    find_issues,
    late_runs,
)
from deployments.work_pool import TEMPLATES, takes_variables
from modelyard.cluster import Renewal

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
DEPLOYMENTS = [uuid4() for _ in range(3)]


def in_state(state: State, age: float, deployment: UUID = DEPLOYMENTS[0], shift: float = 0) -> FlowRun:
    """A run that has been in this state for ``age`` seconds."""
    state = state.model_copy(update={"timestamp": NOW - timedelta(seconds=age)})
    return FlowRun(flow_id=uuid4(), deployment_id=deployment, state=state, parameters={"shift_seconds": shift})


def due(deployment: UUID, age: float, auto: bool = True, shift: float = 0) -> FlowRun:
    """A run that should have begun ``age`` seconds ago."""
    return FlowRun(
        flow_id=uuid4(),
        deployment_id=deployment,
        auto_scheduled=auto,
        expected_start_time=NOW - timedelta(seconds=age),
        state=Scheduled(name="Late") if age > 5 else Scheduled(),
        parameters={"shift_seconds": shift},
    )


def states(runs: list[FlowRun], **observed: Any) -> list[tuple[UUID, str]]:
    return [(run.id, str(state.name)) for run, state in find_issues(runs, [], NOW, **observed).states]


def test_a_claimed_run_without_infrastructure_is_marked_after_three_minutes() -> None:
    old, young, submitted = (in_state(Pending(), age) for age in (181, 179, 900))
    submitted.infrastructure_pid = "cluster:namespace:job"
    prefetched = in_state(Pending(), 181)
    prefetched.expected_start_time = NOW - timedelta(seconds=50)
    assert states([young, old, prefetched, submitted, in_state(Running(), 9999)]) == [(old.id, UNRESPONSIVE)]


def test_a_run_whose_process_lives_is_starting_however_long_it_takes() -> None:
    ours, elsewhere = in_state(Pending(), 900), in_state(Pending(), 900)
    assert states([ours, elsewhere], processes={ours.id}) == [(elsewhere.id, UNRESPONSIVE)]


def test_a_shift_that_goes_on_on_a_starved_machine_is_not_marked_crashed() -> None:
    late = in_state(Running(), 600 + ENDED_WITHIN - 1, shift=600)
    assert states([late]) == [], "its last tick may end minutes after the shift"
    ours = in_state(Running(), 9999, shift=600)
    assert states([ours], processes={ours.id}) == [], "its process exists"
    renewing = in_state(Running(), 9999, shift=600)
    assert states([renewing], renewals=held(renewing, Renewal.FRESH), orphans={renewing.id}) == [], (
        "it renews its Lease"
    )


def test_a_run_that_could_not_report_the_end_of_its_shift_is_marked() -> None:
    over, on = (in_state(Running(), 600 + ENDED_WITHIN + more, shift=600) for more in (1, -1))
    assert states([on, over]) == [(over.id, UNRESPONSIVE)]


def held(run: FlowRun, renewal: Renewal) -> dict[UUID, dict[str, Renewal]]:
    assert run.deployment_id
    return {run.deployment_id: {run.id.hex: renewal}}


def test_a_shift_that_renews_its_lease_is_running_whatever_prefect_has_missed() -> None:
    missed = in_state(Crashed(name=UNRESPONSIVE), 9)
    assert states([missed], renewals=held(missed, Renewal.FRESH)) == [(missed.id, "Running")]
    assert states([missed], renewals=held(missed, Renewal.OVERDUE)) == []
    seen_dying = in_state(Crashed(message="Process exited with status code: -9"), 9)
    assert states([seen_dying], renewals=held(seen_dying, Renewal.FRESH)) == []


def test_a_shift_whose_renewals_ended_is_dead_unless_its_process_only_stands_still() -> None:
    run = in_state(Running(), 100)
    assert states([run], renewals=held(run, Renewal.ENDED)) == [(run.id, UNRESPONSIVE)]
    assert states([run], renewals=held(run, Renewal.ENDED), processes={run.id}) == []
    assert states([run], renewals=held(run, Renewal.OVERDUE)) == [], "clocks may differ"


def test_a_run_that_ended_while_it_was_being_cancelled_is_cancelled() -> None:
    run = in_state(Cancelling(), 100)
    assert states([run], orphans={run.id}) == [(run.id, "Cancelled")]


def test_of_a_backlog_the_newest_run_survives() -> None:
    first, second, newest = due(DEPLOYMENTS[0], 900), due(DEPLOYMENTS[0], 600), due(DEPLOYMENTS[0], 1)
    alone, by_hand = due(DEPLOYMENTS[1], 5000), due(DEPLOYMENTS[0], 4000, auto=False)
    to_come = due(DEPLOYMENTS[1], -20)
    assert {run.id for run in late_runs([newest, first, alone, to_come, by_hand, second], NOW)} == {first.id, second.id}


def test_a_shift_that_would_be_over_does_not_begin() -> None:
    over, on = due(DEPLOYMENTS[0], 600, shift=600), due(DEPLOYMENTS[1], 599, shift=600)
    assert late_runs([over, on], NOW) == [over]


@given(st.lists(st.tuples(st.sampled_from(DEPLOYMENTS), st.integers(-30, 10_000), st.booleans())))
def test_every_deployment_keeps_what_is_newest_and_all_by_hand(backlog: list[tuple[UUID, int, bool]]) -> None:
    runs = [due(*entry) for entry in backlog]
    gone = {run.id for run in late_runs(runs, NOW)}
    assert not any(run.id in gone for run in runs if not run.auto_scheduled)
    for deployment in DEPLOYMENTS:
        scheduled = [run for run in runs if run.deployment_id == deployment and run.auto_scheduled]
        begun = [run for run in scheduled if run.expected_start_time <= NOW]
        kept = [run for run in begun if run.id not in gone]
        assert bool(kept) is bool(begun)
        newest = max((run.expected_start_time for run in begun), default=NOW)
        limit = NOW - timedelta(seconds=LATE_AFTER)
        assert all(run.expected_start_time >= min(newest, limit) for run in kept)
        assert all(run.expected_start_time <= newest for run in begun if run.id in gone)


def shift_of(identity: UUID) -> DeploymentResponse:
    return DeploymentResponse(id=identity, name="autoscale", flow_id=uuid4(), parameters={"shift_seconds": 600})


def lacking(runs: list[FlowRun], **observed: Any) -> int:
    return sum(each.lacking for each in find_issues(runs, [shift_of(DEPLOYMENTS[0])], NOW, **observed).missing)


@pytest.mark.parametrize(
    ("runs", "lacks"),
    [
        pytest.param([], 2, id="nothing runs"),
        pytest.param([in_state(Running(), 9)], 1, id="a writer alone"),
        pytest.param([in_state(Running(), 9), in_state(Pending(), 9)], 0, id="a standby is starting"),
        pytest.param([in_state(Running(), 9), due(DEPLOYMENTS[0], -29)], 0, id="a standby is due"),
        pytest.param([in_state(Running(), 9), in_state(Pending(), 199)], 1, id="a standby that never started"),
        pytest.param([in_state(Running(), 9), in_state(Running(), 9)], 0, id="writer and standby"),
        pytest.param([in_state(Running(), 9)] * 3, 0, id="a hand-over"),
        pytest.param([in_state(Running(), 9, DEPLOYMENTS[1])] * 2, 2, id="another deployment's"),
    ],
)
def test_a_shift_should_have_a_writer_and_a_standby(runs: list[FlowRun], lacks: int) -> None:
    assert lacking(runs) == lacks


@pytest.mark.parametrize(
    ("writer", "standby", "more_runs", "lacks"),
    [
        pytest.param(Renewal.FRESH, Renewal.FRESH, [], 0, id="both renew"),
        pytest.param(Renewal.FRESH, Renewal.ENDED, [], 1, id="the standby died"),
        pytest.param(Renewal.OVERDUE, Renewal.OVERDUE, [], 2, id="both died with another machine"),
        pytest.param(Renewal.FRESH, Renewal.OVERDUE, [in_state(Pending(), 9)], 0, id="a standby is claimed"),
        pytest.param(Renewal.FRESH, Renewal.OVERDUE, [in_state(Running(), 9)], 0, id="a standby has just begun"),
        pytest.param(Renewal.FRESH, Renewal.OVERDUE, [in_state(Running(), 99)], 1, id="one that holds no Lease"),
        pytest.param(Renewal.OVERDUE, Renewal.OVERDUE, [in_state(Running(), 99)] * MAX_RUNS, 0, id="enough of them"),
    ],
)
def test_the_leases_say_whether_a_shift_lacks_a_run(
    writer: Renewal, standby: Renewal, more_runs: list[FlowRun], lacks: int
) -> None:
    pair = [in_state(Running(), 100), in_state(Running(), 100)]
    holders = {run.id.hex: renewal for run, renewal in zip(pair, (writer, standby), strict=True)}
    assert lacking([*pair, *more_runs], renewals={DEPLOYMENTS[0]: holders}) == lacks


def test_a_writer_that_prefect_does_not_know_is_a_writer() -> None:
    """It runs in a terminal."""
    standby = in_state(Running(), 100)
    holders = {"0123abcd": Renewal.FRESH, standby.id.hex: Renewal.FRESH}
    assert lacking([standby], renewals={DEPLOYMENTS[0]: holders}) == 0


def test_a_started_shift_has_a_minute_to_hold_a_lease() -> None:
    runs = [in_state(Running(), STARTED_WITHIN + more) for more in (-1, 0, 1)]
    assert lacking(runs, renewals={DEPLOYMENTS[0]: {}}) == 1
    assert lacking(runs) == 0, "where no Lease can be read, Prefect's word counts"


def test_runs_that_die_at_once_are_replaced_ever_more_slowly() -> None:
    backoff, shift = ShiftBackoff(), MissingRuns(shift_of(DEPLOYMENTS[0]), 2)
    moments = [second for second in range(3600) if backoff.allow([shift], NOW + timedelta(seconds=second))]
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert gaps[:4] == [STARTS.first, 2 * STARTS.first, 4 * STARTS.first, 8 * STARTS.first]
    assert gaps[-1] == STARTS.longest
    assert backoff.allow([], NOW + timedelta(seconds=3600)) == [], "it has its runs"
    assert backoff.allow([shift], NOW + timedelta(seconds=3601)) == [shift], "and loses one again"


def test_a_clock_that_is_set_back_does_not_keep_a_shift_without_runs() -> None:
    backoff, shift = ShiftBackoff(), MissingRuns(shift_of(DEPLOYMENTS[0]), 2)
    assert backoff.allow([shift], NOW) == [shift]
    back = NOW - timedelta(hours=2)
    assert backoff.allow([shift], back) == [shift]
    assert backoff.allow([shift], back + timedelta(seconds=2 * STARTS.first - 1)) == [], "it has its pause"


def test_runs_that_ended_with_their_worker_are_no_writer_and_no_standby() -> None:
    dead = [in_state(Running(), 9), in_state(Pending(), 199)]
    assert lacking(dead, orphans={run.id for run in dead}) == 2
    assert states(dead, orphans={run.id for run in dead}) == [(run.id, UNRESPONSIVE) for run in dead]


async def test_no_job_variable_changes_what_is_executed() -> None:
    """Whatever got past the server's check: what the worker makes of it."""
    variables = {
        "command": "touch /tmp/stolen",
        "working_dir": "/etc",
        "env": {"PYTHONPATH": "/tmp"},
        "env.LD_PRELOAD": "x",
    }
    nowhere = PrefectClient("http://127.0.0.1:9/api")
    made = await ProcessJobConfiguration.from_template_and_values(TEMPLATES["process"], variables, client=nowhere)
    plain = await ProcessJobConfiguration.from_template_and_values(TEMPLATES["process"], {}, client=nowhere)
    assert made == plain
    assert made.command == TEMPLATES["process"]["job_configuration"]["command"]
    assert made.env == {}


def test_our_templates_take_no_variables_and_those_that_prefect_makes_do() -> None:
    assert not any(takes_variables(template) for template in TEMPLATES.values())
    assert takes_variables(ProcessWorker.get_default_base_job_template())
    plain = TEMPLATES["process"]
    assert takes_variables({**plain, "job_configuration": {"command": "{{ command }}"}})
    assert takes_variables({**plain, "job_configuration": {"env": {}}}), "Prefect merges a run's into it"
    assert takes_variables({**plain, "variables": {"type": "object", "properties": {}}})
