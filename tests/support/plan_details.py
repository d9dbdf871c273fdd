"""The details of a lifecycle's latest plans, by object."""

from __future__ import annotations

from typing import Any

from modelyard.objects import Key
from modelyard.reconcile.plans.plan import Lifecycle, Plan, World


def remember_details(lifecycle: Lifecycle) -> dict[Key, Any]:
    """Keep the details of every plan that the lifecycle makes from now on."""
    details, plan_of = dict[Key, Any](), lifecycle.plan

    def plan(key: Key, world: World, now: float) -> Plan | None:
        plan = plan_of(key, world, now)
        details[key] = plan.details if plan is not None else None
        return plan

    lifecycle.plan = plan  # type: ignore[method-assign]
    return details
