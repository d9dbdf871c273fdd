"""Statuses of serving runtimes: which fields of one have no effect. Nothing is created for a runtime. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from modelyard.objects import Key, ResourceType, stored_status
from modelyard.reconcile.plans import OfSubject, Plan, Subject, Want, World, with_spec_warning
from modelyard.workloads.roll_out.world import RUNTIMES


@dataclass(frozen=True, slots=True)
class StoredRuntime(OfSubject):
    """A serving runtime, as far as its status follows from it."""

    subject: Subject
    status: Mapping[str, Any]


def _want(kind: ResourceType) -> Want[StoredRuntime]:
    def parse(obj: Mapping[str, Any]) -> StoredRuntime:
        return StoredRuntime(Subject.of(kind, obj), stored_status(obj))

    return Want(kind, parse, use="status")


class RuntimeStatus:
    """ServingRuntimes, or ClusterServingRuntimes: the kind that it is ``about``."""

    def __init__(self, about: ResourceType) -> None:
        self.about = about
        self.name = f"{about.kind.lower()}-status"

    @property
    def wants(self) -> tuple[Want[Any], ...]:
        return (_want(self.about),)

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        runtime: StoredRuntime | None = world[self.about].get(key)
        if runtime is None or runtime.subject.deleting:
            return None
        plan = with_spec_warning(Plan(runtime.subject), runtime.status)
        if plan.status is None:
            return plan
        return replace(plan, status=replace(plan.status, fields={"observedGeneration": runtime.subject.generation}))


RUNTIME_STATUSES = tuple(map(RuntimeStatus, RUNTIMES))
