"""Namespaces and deployment that a run of Prefect counts for."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import AwaitingRetry, Cancelling, Late, Pending, Running, Scheduled

from modelyard.reconcile.plans.run_limits import ActiveRun
from tasks.flow_runs import active_run, is_planned

DELIVER = uuid4()


@pytest.mark.parametrize(
    ("parameters", "namespaces"),
    [
        ({"objects": ["shop/chat", "shop/code", "lab/chat"], "namespace": "x"}, {"shop", "lab"}),
        ({"objects": ["/base-model"]}, {""}),
        ({"namespace": "shop", "objects": []}, set()),
        ({"trace": "day.csv"}, set()),
        ({"name": "chat", "namespace": "shop"}, {"shop"}),
        ({"objects": "shop/chat"}, set()),
        ({"objects": [None, 3, "shop/chat"]}, {"", "shop"}),
    ],
)
def test_a_run_counts_for_the_namespaces_of_its_objects(parameters: dict[str, Any], namespaces: set[str]) -> None:
    run = FlowRun(flow_id=uuid4(), deployment_id=DELIVER, parameters=parameters, state=Running())
    assert active_run(run, {DELIVER: "deliver/deliver"}) == ActiveRun("deliver/deliver", frozenset(namespaces))


@pytest.mark.parametrize(
    ("state", "queued"),
    [
        (None, True),
        (Scheduled(), True),
        (Late(), True),
        (AwaitingRetry(), True),
        (Pending(), False),
        (Running(), False),
        (Cancelling(), False),
    ],
)
def test_a_run_takes_its_place_when_a_worker_has_claimed_it(state: State[Any] | None, queued: bool) -> None:
    run = FlowRun(flow_id=uuid4(), state=state)
    assert active_run(run, {}) == ActiveRun("", frozenset(), queued)


def test_planned_runs_of_a_schedule_take_no_places() -> None:
    states = [Scheduled(), Late(), Pending(), AwaitingRetry()]
    runs = [FlowRun(flow_id=uuid4(), state=state, auto_scheduled=True) for state in states]
    assert [is_planned(run) for run in runs] == [True, False, False, False]
    assert not is_planned(FlowRun(flow_id=uuid4(), state=Scheduled()))
