"""Plans as plain values that can be compared."""

from __future__ import annotations

from typing import Any

from modelyard.reconcile.plan import Plan
from modelyard.reconcile.spec_warning import SPEC_WARNING


def planned(plan: Plan | None) -> Any:
    """Return a plan as plain values, without the warning about fields of the spec."""
    if plan is None:
        return None
    status = plan.wanted or plan.status
    conditions = status.conditions if status is not None else ()
    return {
        "reason": plan.reason,
        "message": plan.message,
        "fields": dict(status.fields) if status is not None else {},
        "conditions": [
            (one.type, one.status, one.reason, one.message) for one in conditions if one.type != SPEC_WARNING
        ],
        "annotations": dict(plan.annotations),
        "deeds": plan.deeds,
        "awaits": plan.awaits,
        "due": plan.due,
        "urgency": plan.urgency,
    }
