"""Plans as plain values that can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modelyard.reconcile.plans.plan import Plan
from modelyard.reconcile.plans.spec_warning import SPEC_WARNING

_HASHES = frozenset(("modelyard.dev/applied", "modelyard.dev/revision"))


def planned(plan: Plan | None) -> Any:
    """Return a plan as plain values, without the warning about fields of the spec and without copies of the spec."""
    if plan is None:
        return None
    status = plan.wanted or plan.status
    conditions = status.conditions if status is not None else ()
    return {
        "reason": plan.reason,
        "message": plan.message,
        "fields": plain(status.fields) if status is not None else {},
        "conditions": [
            (entry.type, entry.status, entry.reason, entry.message)
            for entry in conditions
            if entry.type != SPEC_WARNING
        ],
        "annotations": dict(plan.annotations),
        "deeds": plain(plan.deeds),
        "awaits": plan.awaits,
        "due": plan.due,
        "urgency": plan.urgency,
    }


def _is_copy(deed: object) -> bool:
    """Return whether an object holds the spec of another: the list of models for containers, and kept revisions."""
    if not isinstance(deed, Mapping) or "metadata" not in deed or "kind" not in deed:
        return False
    kind, name = deed["kind"], deed["metadata"].get("name", "")
    return kind == "ControllerRevision" or (kind == "ConfigMap" and name.startswith("modelconfig-"))


def plain(value: Any) -> Any:
    """Return a value without copies of a spec, and without hashes of them."""
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items() if name not in _HASHES}
    if type(value) in (list, tuple):
        return [plain(inner) for inner in value if not _is_copy(inner)]
    return value
