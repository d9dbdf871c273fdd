"""The gauges of AutoscalingPolicyBindings, rendered from their status at every scrape.

What an HPA or KEDA follows where a binding is in signal mode, and what a dashboard shows in any mode. A binding that
cannot be decided has no series: whoever follows keeps what there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from modelyard.autoscaling.decisions import READY
from modelyard.objects import Key, condition

MOST_UNITS = 32
"""As many targets as a binding may have."""


class Gauges(NamedTuple):
    """The latest decision about one target of a binding. ``current`` is ``None`` when it was not known."""

    binding: Key
    target: str
    desired: int
    current: int | None
    panic: bool


class PublishedBindings(Protocol):
    """What there is to expose; a ``Fleetwatch``."""

    instance: str | None

    def published_bindings(self) -> Iterable[Gauges]: ...


def gauges_of(key: Key, status: Mapping[str, Any]) -> Iterator[Gauges]:
    """What the status of a binding says of each target, nothing unless the binding was decided."""
    if condition(status, READY).get("status") != "True":
        return
    for unit in (status.get("units") or ())[:MOST_UNITS]:
        desired, current = unit.get("desiredReplicas"), unit.get("currentReplicas")
        if isinstance(desired, int):
            known = current if isinstance(current, int) else None
            yield Gauges(key, str(unit.get("name", "")), desired, known, unit.get("mode") == "Panic")


class PolicyCollector(Collector):
    """The exposition of one installation's bindings: no families at all where there are none."""

    def __init__(self, fleet: PublishedBindings) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        own = [self._fleet.instance] if self._fleet.instance else []
        labels = ["binding_name", "namespace", "target", *(["controller_instance"] if own else [])]
        desired = GaugeMetricFamily(
            "modelyard_policy_desired_replicas", "Replicas a binding's target should have", labels=labels
        )
        current = GaugeMetricFamily(
            "modelyard_policy_current_replicas", "Replicas a binding's target had at the decision", labels=labels
        )
        panic = GaugeMetricFamily("modelyard_policy_panic", "1 while the binding is in panic", labels=labels)
        for one in self._fleet.published_bindings():
            values = [one.binding.name, one.binding.namespace, one.target, *own]
            desired.add_metric(values, one.desired)
            panic.add_metric(values, float(one.panic))
            if one.current is not None:
                current.add_metric(values, one.current)
        return [family for family in (desired, current, panic) if family.samples]
