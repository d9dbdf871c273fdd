"""Orders of flow runs: whose objects a run works on, whether it claims them, and how long it stays."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

from flows.parameters import BenchmarkParameters
from flows.run_order import RunOrder
from modelyard.objects import Key
from modelyard.reconcile.plans.dispatch import UNATTENDED_SECONDS

RUN = "BenchmarkJob/chat/load/abc/1/2026"
CLAIMED: dict[str, Any] = {
    "name": "load",
    "namespace": "chat",
    "run": RUN,
    "objects": ["chat/load"],
    "timeout_seconds": 7000,
}
NAMED: dict[str, Any] = {"name": "load", "namespace": "chat", "timeout_seconds": 7000}
KEY = Key("chat", "load")
DEPLOYMENT = UUID(int=7)


def order(parameters: dict[str, Any], **run: Any) -> RunOrder:
    """Return the order of a flow run with these parameters."""
    flow_run = FlowRun(flow_id=uuid4(), name="benchmark", **run)
    with FlowRunContext.model_construct(flow_run=flow_run):
        return RunOrder.of(BenchmarkParameters.model_validate(parameters), "benchmarks")


@pytest.mark.parametrize(
    ("parameters", "run", "by_hand", "stays", "seconds"),
    [
        pytest.param(NAMED, {}, True, True, 7000, id="started by a person"),
        pytest.param({**NAMED, "wait": False}, {}, True, False, UNATTENDED_SECONDS, id="by a person who does not wait"),
        pytest.param(
            CLAIMED,
            {"deployment_id": DEPLOYMENT, "idempotency_key": RUN},
            False,
            False,
            UNATTENDED_SECONDS,
            id="by reconcile",
        ),
        pytest.param(
            CLAIMED,
            {"deployment_id": DEPLOYMENT, "idempotency_key": RUN, "parent_task_run_id": uuid4()},
            False,
            False,
            7000,
            id="child of a parent, which waits for it",
        ),
        pytest.param(CLAIMED, {"deployment_id": DEPLOYMENT}, True, True, 7000, id="copied in the UI"),
    ],
)
def test_a_run_claims_and_stays_according_to_who_started_it(
    parameters: dict[str, Any], run: dict[str, Any], by_hand: bool, stays: bool, seconds: float
) -> None:
    current = order(parameters, **run)
    assert (list(current.keys), current.by_hand, current.stays, current.seconds) == ([KEY], by_hand, stays, seconds)
    assert (current.ref.run == RUN) is not by_hand, "a copy has a name of its own in claims"
