"""Gauges of how the controller fares: when it decided, what the conditions say, who may write, prices and targets.

For dashboards and alerts, nobody scales by them. Rendered from statuses, annotations and Leases at every scrape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from modelyard.autoscaling.decisions import conditions as names
from modelyard.autoscaling.fleet import Variant
from modelyard.autoscaling.reading import read_prediction
from modelyard.metrics.vocabulary import ENGINES, Signal
from modelyard.objects import Condition, Key, parse

CONDITION_TYPES: Final = frozenset(
    {
        *(names.TARGET_RESOLVED, names.METRICS_AVAILABLE, names.OPTIMIZATION_READY, names.ACCELERATOR_RESOLVED),
        *(names.PROFILE_VALID, names.SLO_FEASIBLE, names.CAPACITY_LIMITED, names.SCALE_FROM_ZERO),
        *(names.READY, names.TARGET_FOUND),
    }
)
"""Those that are shown; whoever may write a status could invent any number of others."""
MAX_REASON = 64
"""Characters of a reason that are shown; ours are shorter."""
LATENCIES: Final = {"ttft": Signal.TTFT, "itl": Signal.ITL}


class LeaseState(NamedTuple):
    """A Lease: whether it names a holder, and when that one renewed it (epoch seconds; ``None``: never or no Lease)."""

    key: Key
    held: bool = False
    renewed: float | None = None


class Told(NamedTuple):
    """The conditions of one object."""

    kind: str
    key: Key
    conditions: Sequence[Condition]


class Watched(Protocol):
    """What there is to expose; a ``Fleetwatch``."""

    instance: str | None

    def published(self) -> Iterable[tuple[Variant, int | None]]: ...

    def told(self) -> Iterable[Told]: ...

    def leases(self) -> Iterable[LeaseState]:
        """The Leases that are looked for, as far as they may be read."""


def lease_state(obj: Mapping[str, Any]) -> LeaseState:
    """What a Lease says."""
    spec = obj.get("spec") or {}
    return LeaseState(parse.key_of(obj), bool(spec.get("holderIdentity")), parse.epoch(spec.get("renewTime")) or None)


def cost_of(variant: Variant) -> float:
    """Cost of one replica: what the status paid for each (SLO form: by price list), else ``spec.variantCost``."""
    allocation = variant.status.get("currentAlloc") or {}
    replicas = allocation.get("numReplicas") or 0
    if variant.slo is None or replicas < 1:
        return variant.cost
    try:
        return float(allocation["variantCost"]) / int(replicas)
    except (KeyError, TypeError, ValueError):
        return variant.cost


def bounds_of(latency: str, target: float) -> Iterator[tuple[str, str]]:
    """The engines, and of each the bucket ``le`` that counts what is within ``target`` seconds, rounded up."""
    for engine in ENGINES.values():
        family = engine.of.get(LATENCIES[latency])
        if family is not None and family.buckets and engine.model:
            above = (bound for bound in family.buckets if bound * family.scale >= target * (1 - 1e-9))
            yield engine.name, next((str(float(bound)) for bound in above), "+Inf")


class ControllerCollector(Collector):
    """The exposition of what is known of one installation's controller."""

    def __init__(self, fleet: Watched) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        own = [self._fleet.instance] if self._fleet.instance else []
        more = ["controller_instance"] if own else []

        def family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"modelyard_{name}", text, labels=[*labels, *more])

        variant_labels = ("variant_name", "namespace")
        decided = family(
            "variant_decided_timestamp_seconds", "When the decision in status was last written", *variant_labels
        )
        cost_labels = (*variant_labels, "model_name", "accelerator_type")
        cost = family("variant_cost", "Cost of one replica, in the unit of prices", *cost_labels)
        target = family(
            "slo_target_seconds",
            "Latency target (ttft, itl) of the service class; le: its bucket in this engine's histogram",
            *(*variant_labels, "model_name", "latency", "engine", "le"),
        )
        condition = family(
            "condition",
            "1 for the state of each status condition",
            *("kind", "name", "namespace", "type", "status", "reason"),
        )
        held = family("lease_held", "1 while the Lease names a holder", "lease_name", "namespace")
        renewed = family("lease_renewed_timestamp_seconds", "When the holder renewed it", "lease_name", "namespace")
        for variant, _ in self._fleet.published():
            where = [variant.key.name, variant.key.namespace]
            if variant.last_run is not None:
                decided.add_metric([*where, *own], variant.last_run)
            accelerator = variant.status_accelerator or "unresolved"
            cost.add_metric([*where, variant.model_id, accelerator, *own], cost_of(variant))
            told = read_prediction(variant.annotations) if variant.slo is not None else {}
            for latency in LATENCIES:
                if milliseconds := told.get(f"{latency}_target"):
                    for engine, bound in bounds_of(latency, milliseconds / 1000):
                        values = [*where, variant.model_id, latency, engine, bound, *own]
                        target.add_metric(values, milliseconds / 1000)
        for kind, key, conditions in self._fleet.told():
            for one in {one.type: one for one in conditions if one.type in CONDITION_TYPES}.values():
                state = [one.type, one.status, one.reason[:MAX_REASON]]
                condition.add_metric([kind, key.name, key.namespace, *state, *own], 1)
        for lease in self._fleet.leases():
            where = [lease.key.name, lease.key.namespace]
            held.add_metric([*where, *own], float(lease.held))
            if lease.renewed is not None:
                renewed.add_metric([*where, *own], lease.renewed)
        return [one for one in (decided, cost, target, condition, held, renewed) if one.samples]
