"""What waits at gateways is read alike by who wakes a tick and by the tick."""

from __future__ import annotations

import pytest
from builders import MODEL, Serving, make_fleet, records

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.fleet.fleet import shared_models
from modelyard.autoscaling.live.wake import Source
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.metrics.vocabulary.values import queued_for
from modelyard.objects import Key

ASLEEP = Serving("v1", current=0, ready=0)


async def read() -> None:
    return None


@pytest.mark.parametrize(
    ("neighbours", "queue", "wakes"),
    [
        ((), {("", MODEL): 4.0}, True),
        ((Serving("v2", namespace="code"),), {("", MODEL): 4.0}, False),
        ((Serving("v2", namespace="code"),), {("", MODEL): 4.0, ("chat", MODEL): 1.0}, True),
        ((Serving("v2", namespace="code", variant={"deleting": True}),), {("", MODEL): 4.0}, True),
        ((Serving("v2", namespace="code", variant={"labels": {"wva.llmd.ai/controller-instance": "b"}}),),
         {("", MODEL): 4.0}, False),
        ((), {("code", MODEL): 4.0}, False),
    ],
    ids=["alone", "shared", "its own", "deleted", "of another controller", "of another namespace"],
)  # fmt: skip
def test_a_tick_is_woken_for_the_demand_that_it_sees(
    neighbours: tuple[Serving, ...], queue: dict[tuple[str, str], float], wakes: bool
) -> None:
    fleet = make_fleet(ASLEEP, *neighbours, signals={"gateway_queue": queue})
    key = Key("chat", "v1")
    source = Source(read, {key: MODEL}, shared_models(fleet.variants), answer=queue)
    assert (source.said[key] > 0) is wakes
    decided = records(decide(fleet, FleetSettings()))["v1"]
    assert (decided.why.reason == "WokenByDemand") is wakes


def test_an_unknown_queue_is_not_an_empty_one() -> None:
    assert queued_for({}, "chat", MODEL) is None
    assert queued_for({("", MODEL): 0.0}, "chat", MODEL) == 0.0
    assert queued_for({("", MODEL): 2.0}, "chat", MODEL, is_shared=True) is None
    assert queued_for({("", MODEL): 2.0, ("chat", MODEL): -1.0}, "chat", MODEL) == 2.0
