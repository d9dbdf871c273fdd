"""The flow ``carry_out_objects``: runs the steps of any registered lifecycle for its objects.

A lifecycle needs no flow of its own unless its runs do more than its steps. Deployed by ``prefect.yaml``.
"""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Failed
from pydantic import Field

from flows.forms import flat, run_parameters
from flows.parameters import LifecycleParameters
from flows.run_order import RunOrder, carry_out
from modelyard.objects import counted
from modelyard.reconcile.plans import ObjectResult, ResultState
from tasks.registry import REGISTRY
from tasks.steps import conclude, open_run


class CarryOutParameters(LifecycleParameters):
    """The lifecycle and the object that it works on."""

    lifecycle: str = Field(min_length=1, max_length=100, description=f"name of the lifecycle: {', '.join(REGISTRY)}")


def run_name() -> str:
    """Return the lifecycle and its objects."""
    given = run_parameters(CarryOutParameters)
    return f"{given.lifecycle} {given.named}"


@flow(name="carry-out", flow_run_name=run_name, persist_result=False, retries=0)
@flat(CarryOutParameters)
async def carry_out_objects(parameters: CarryOutParameters) -> State[Any]:
    """Claim the objects, and run each of their steps as a task until nothing is left to write or to wait for."""
    if parameters.lifecycle not in REGISTRY:
        return Failed(message=f"lifecycle: no {parameters.lifecycle!r}; write one of {', '.join(REGISTRY)}")
    order = RunOrder.of(parameters, parameters.lifecycle)
    async with open_run(order.ref, f"{parameters.lifecycle} {parameters.named}"):
        acted = await carry_out(order)
    done = ObjectResult(ResultState.DONE, f"{counted(len(acted.steps), 'step')} carried out")
    return conclude(acted, order.keys, [done], order.stays)
