"""What the worker finds amiss among the runs of its pool: stuck, past their moment, or missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import DeploymentResponse
from prefect.states import Pending, Running, Scheduled
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

from deployments.pool import (
    AGAIN,
    LATE_AFTER,
    LONGEST,
    OVERDUE_AFTER,
    Patience,
    Short,
    amiss,
    passed,
    stuck,
)
from deployments.work_pool import TEMPLATES, takes_variables

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


def test_a_run_that_was_claimed_and_never_started_is_stuck() -> None:
    old, young = in_state(Pending(), 61), in_state(Pending(), 59)
    prefetched = in_state(Pending(), 61)
    prefetched.expected_start_time = NOW - timedelta(seconds=50)
    assert stuck([young, old, prefetched, in_state(Running(), 9999)], NOW) == [old]


def test_a_run_whose_process_lives_is_starting_however_long_it_takes() -> None:
    ours, elsewhere = in_state(Pending(), 900), in_state(Pending(), 900)
    assert stuck([ours, elsewhere], NOW, living={ours.id}) == [elsewhere]


def test_a_shift_that_goes_on_on_a_starved_machine_is_not_marked_crashed() -> None:
    late = in_state(Running(), 600 + OVERDUE_AFTER - 1, shift=600)
    assert stuck([late], NOW) == [], "its last tick may end minutes after the shift"
    ours = in_state(Running(), 9999, shift=600)
    assert stuck([ours], NOW, living={ours.id}) == [], "its process exists"


def test_a_run_that_could_not_say_that_its_shift_is_over_is_stuck() -> None:
    over, on = (in_state(Running(), 600 + OVERDUE_AFTER + more, shift=600) for more in (1, -1))
    assert stuck([on, over], NOW) == [over]


def test_of_a_backlog_the_newest_run_survives() -> None:
    first, second, newest = due(DEPLOYMENTS[0], 900), due(DEPLOYMENTS[0], 600), due(DEPLOYMENTS[0], 1)
    alone, by_hand = due(DEPLOYMENTS[1], 5000), due(DEPLOYMENTS[0], 4000, auto=False)
    to_come = due(DEPLOYMENTS[1], -20)
    assert {run.id for run in passed([newest, first, alone, to_come, by_hand, second], NOW)} == {first.id, second.id}


def test_a_shift_that_would_be_over_does_not_begin() -> None:
    over, on = due(DEPLOYMENTS[0], 600, shift=600), due(DEPLOYMENTS[1], 599, shift=600)
    assert passed([over, on], NOW) == [over]


@given(st.lists(st.tuples(st.sampled_from(DEPLOYMENTS), st.integers(-30, 10_000), st.booleans())))
def test_every_deployment_keeps_what_is_newest_and_all_by_hand(backlog: list[tuple[UUID, int, bool]]) -> None:
    runs = [due(*entry) for entry in backlog]
    gone = {run.id for run in passed(runs, NOW)}
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


@pytest.mark.parametrize(
    ("runs", "lacks"),
    [
        pytest.param([], 2, id="nothing runs"),
        pytest.param([in_state(Running(), 9)], 1, id="a writer alone"),
        pytest.param([in_state(Running(), 9), in_state(Pending(), 9)], 0, id="a standby is starting"),
        pytest.param([in_state(Running(), 9), due(DEPLOYMENTS[0], -29)], 0, id="a standby is due"),
        pytest.param([in_state(Running(), 9), in_state(Pending(), 99)], 1, id="a standby that never started"),
        pytest.param([in_state(Running(), 9), in_state(Running(), 9)], 0, id="writer and standby"),
        pytest.param([in_state(Running(), 9)] * 3, 0, id="a hand-over"),
        pytest.param([in_state(Running(), 9, DEPLOYMENTS[1])] * 2, 2, id="another deployment's"),
    ],
)
def test_a_shift_should_have_a_writer_and_a_standby(runs: list[FlowRun], lacks: int) -> None:
    short = amiss(runs, [shift_of(DEPLOYMENTS[0])], NOW).short
    assert [len(one.numbers) for one in short] == ([lacks] if lacks else [])


def test_what_was_under_way_when_the_worker_came_may_be_dead_and_does_not_count() -> None:
    shift, dead = shift_of(DEPLOYMENTS[0]), [in_state(Running(), 9), in_state(Pending(), 9)]
    before = {run.id for run in dead}
    assert amiss(dead, [shift], NOW, before).short == [Short(shift, range(2, 4))], "numbers nobody used before it"
    late = [*dead, due(DEPLOYMENTS[0], 100)]
    assert amiss(late, [shift], NOW, before).short == [Short(shift, range(3, 4))], "a late one is started in any case"
    own = [*dead, in_state(Running(), 3), in_state(Running(), 2)]
    assert amiss(own, [shift], NOW, before).short == []
    assert amiss(own[:-1], [shift], NOW, before).short == [Short(shift, range(3, 4))], "and its own are looked after"


def test_runs_that_die_at_once_are_replaced_ever_more_slowly() -> None:
    patience, shift = Patience(), Short(shift_of(DEPLOYMENTS[0]), range(2))
    moments = [second for second in range(3600) if patience.allows([shift], NOW + timedelta(seconds=second))]
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert gaps[:4] == [AGAIN, 2 * AGAIN, 4 * AGAIN, 8 * AGAIN]
    assert gaps[-1] == LONGEST
    assert patience.allows([], NOW + timedelta(seconds=3600)) == [], "it has its runs"
    assert patience.allows([shift], NOW + timedelta(seconds=3601)) == [shift], "and loses one again"


def test_a_clock_that_is_set_back_does_not_keep_a_shift_without_runs() -> None:
    patience, shift = Patience(), Short(shift_of(DEPLOYMENTS[0]), range(2))
    assert patience.allows([shift], NOW) == [shift]
    back = NOW - timedelta(hours=2)
    assert patience.allows([shift], back) == [shift]
    assert patience.allows([shift], back + timedelta(seconds=2 * AGAIN - 1)) == [], "it has its pause"


def test_runs_that_ended_with_their_worker_are_no_writer_and_no_standby() -> None:
    shift, dead = shift_of(DEPLOYMENTS[0]), [in_state(Running(), 9), in_state(Pending(), 99)]
    found = amiss(dead, [shift], NOW, orphans=dead)
    assert (found.stuck, found.short, found.orphans) == ([], [Short(shift, range(2))], dead)


async def test_no_job_variable_changes_what_is_executed() -> None:
    """Whatever got past the server's check: what the worker makes of it."""
    said = {"command": "touch /tmp/stolen", "working_dir": "/etc", "env": {"PYTHONPATH": "/tmp"}, "env.LD_PRELOAD": "x"}
    nowhere = PrefectClient("http://127.0.0.1:9/api")
    made = await ProcessJobConfiguration.from_template_and_values(TEMPLATES["process"], said, client=nowhere)
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
