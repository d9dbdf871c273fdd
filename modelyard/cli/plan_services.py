"""Services in ``modelyard plan``: what their roll-out would make, change and take away now, and what holds it back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from modelyard.autoscaling.offline import Manifest
from modelyard.cli.worlds import world_for
from modelyard.cluster import Cluster, ClusterError, ClusterSettings, UnknownKind
from modelyard.objects import Key, parse_selector
from modelyard.reconcile.kernel import look
from modelyard.reconcile.plans import Plan
from modelyard.workloads.kthena import ModelRollOut
from modelyard.workloads.roll_out import ACCEPT, RollOut, ServiceRollOut, Standing


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """What would be done for one service. ``changes`` are lines, one for each object or field."""

    plan: Plan
    here: Standing
    changes: Sequence[str]

    @property
    def name(self) -> str:
        return f"{self.plan.subject.kind.kind} {self.plan.subject.key}"

    @property
    def why(self) -> str:
        """What holds it back; else what is waited for, or how it stands."""
        here, plan = self.here, self.plan
        if here.problem is not None:
            return f"refused: {here.problem}"
        if here.changes.conflicts:
            return "; ".join(here.changes.conflicts)
        if here.held:
            return f"held: {'; '.join(here.held)}: allow it by the annotation {ACCEPT}"
        if here.returned:
            return here.returned
        if self.changes:
            return f"then waits for {'; '.join(plan.awaits)}" if plan.awaits else ""
        return plan.message

    def as_json(self) -> dict[str, Any]:
        key = self.plan.subject.key
        return {
            "service": {"namespace": key.namespace, "name": key.name},
            "kind": self.plan.subject.kind.kind,
            "reason": self.plan.reason,
            "message": self.why,
            "refused": self.here.problem is not None,
            "changes": list(self.changes),
            "held": list(self.here.held),
            "awaits": list(self.plan.awaits),
        }


def _lifecycles(home: str) -> tuple[RollOut, ...]:
    return ServiceRollOut(home), ModelRollOut(home)


def _planned(plans: Iterable[Plan], selector: str) -> Iterator[ServicePlan]:
    matches = parse_selector(selector)
    for plan in plans:
        here: Standing = plan.details
        resource = here.service.resource
        labels = {} if resource is None else (resource.metadata.model_extra or {}).get("labels") or {}
        if matches(labels):
            yield ServicePlan(plan, here, here.differences(plan))


async def from_cluster(home: str, namespaces: Sequence[str], selector: str) -> tuple[list[ServicePlan], list[str]]:
    """The services of these namespaces (none: of all), and why some could not be looked at."""
    found: list[ServicePlan] = []
    problems = []
    async with Cluster.connect(ClusterSettings()) as cluster:
        for lifecycle in _lifecycles(home):
            try:
                plans = await look(cluster, lifecycle, namespaces)
            except UnknownKind:
                continue  # such services are not served here
            except ClusterError as error:
                problems.append(f"{lifecycle.about.kind}s are not planned: {error}")
                continue
            found += _planned(plans.values(), selector)
    return sorted(found, key=lambda one: one.name), problems


def from_files(
    manifests: Sequence[Manifest], served: Iterable[str], namespaces: Sequence[str], selector: str, home: str
) -> list[ServicePlan]:
    """The services among these objects, in a cluster in which there is nothing else; it serves these kinds."""
    found: list[ServicePlan] = []
    kinds = list(served)
    for lifecycle in _lifecycles(home):
        world = world_for(lifecycle, [one.body for one in manifests], kinds)
        keys: list[Key] = [one.key for one in world[lifecycle.about].within(namespaces)]
        plans = [lifecycle.plan(key, world, time.time()) for key in keys]
        found += _planned(filter(None, plans), selector)
    return sorted(found, key=lambda one: one.name)
