"""What a binding's status becomes in the exposition."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from modelyard.autoscaling.reading.bindings.gauges import Gauges, PolicyCollector, gauges_of
from modelyard.objects import Key

KEY = Key("chat", "llama")
READY = {"type": "Ready", "status": "True"}
UNIT = {"name": "llama", "currentReplicas": 2, "desiredReplicas": 6, "mode": "Panic"}


def test_each_target_of_a_decided_binding() -> None:
    status = {"conditions": [READY], "units": [UNIT, {"name": "slow", "desiredReplicas": 0}]}
    assert list(gauges_of(KEY, status)) == [Gauges(KEY, "llama", 6, 2, True), Gauges(KEY, "slow", 0, None, False)]


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"units": [UNIT]},
        {"conditions": [{"type": "Ready", "status": "False"}], "units": [UNIT]},
        {"conditions": [READY], "units": [{"name": "llama"}]},
    ],
)
def test_what_was_not_decided_has_no_series(status: dict[str, Any]) -> None:
    assert list(gauges_of(KEY, status)) == []


def test_series_are_at_most_as_many_as_targets_can_be() -> None:
    status = {"conditions": [READY], "units": [{"name": f"u{n}", "desiredReplicas": 1} for n in range(9000)]}
    assert len(list(gauges_of(KEY, status))) == 32


class Shown:
    """Bindings as ``Fleetwatch`` gives them."""

    def __init__(self, *found: Gauges, instance: str | None = None) -> None:
        self.found, self.instance = found, instance

    def published_bindings(self) -> tuple[Gauges, ...]:
        return self.found


def text(shown: Shown) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PolicyCollector(shown))
    return generate_latest(registry).decode()


def test_the_exposition() -> None:
    found = text(Shown(Gauges(KEY, "llama", 6, 2, True)))
    labels = '{binding_name="llama",namespace="chat",target="llama"}'
    for name, value in (("desired_replicas", "6.0"), ("current_replicas", "2.0"), ("panic", "1.0")):
        assert f"modelyard_policy_{name}{labels} {value}\n" in found
    assert 'controller_instance="blue"' in text(Shown(Gauges(KEY, "llama", 6, None, False), instance="blue"))
    assert text(Shown()) == ""
