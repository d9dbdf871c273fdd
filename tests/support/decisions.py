"""Decisions for tests: made of a few flat fields, or looked at without opening the record first."""

from __future__ import annotations

from typing import Any

from modelyard.autoscaling.configuration.settings import Mode
from modelyard.autoscaling.decisions.decision import (
    UNBOUNDED,
    Action,
    Bounds,
    Decision,
    Identity,
    Now,
    Record,
    Target,
    TickDecision,
    Why,
    Writes,
)
from modelyard.autoscaling.memory.variants import VariantMemory
from modelyard.reconcile.plans.plan import Subject

GROUPS: dict[str, Any] = {"identity": Identity, "now": Now, "target": Target, "why": Why, "writes": Writes}
DEFAULTS: dict[str, Any] = {
    "form": "saturation",
    "model_id": "llama",
    "workload": None,
    "current": 2,
    "ready": 2,
    "reporting": 2,
    "desired": 2,
    "replicas": 2,
    "action": Action.NONE,
    "decided": True,
    "reason": "Steady",
    "message": "steady",
    "mode": Mode.DIRECT,
}


def make_record(subject: Subject, bounds: Bounds = UNBOUNDED, **fields: Any) -> Record:
    """A record; each field goes into the group that has it."""
    fields = {**DEFAULTS, "subject": subject, **fields}
    made: dict[str, Any] = {}
    for name, group in GROUPS.items():
        made[name] = group(**{key: fields.pop(key) for key in set(group._fields) & fields.keys()})
    assert not fields, f"no group has {sorted(fields)}"
    return Record(**made, bounds=bounds)


class Told(Decision[VariantMemory]):
    """A variant's decision with its one record's groups at hand."""

    @property
    def identity(self) -> Identity:
        """Which object."""
        return self.record.identity

    @property
    def now(self) -> Now:
        """What there is."""
        return self.record.now

    @property
    def target(self) -> Target:
        """What there should be."""
        return self.record.target

    @property
    def why(self) -> Why:
        """The reasons."""
        return self.record.why

    @property
    def bounds(self) -> Bounds:
        """What the target may be."""
        return self.record.bounds

    @property
    def writes(self) -> Writes:
        """What follows."""
        return self.record.writes


def told(decision: TickDecision) -> list[Told]:
    """The decisions about variants."""
    return [Told(*one) for one in decision.variants]
