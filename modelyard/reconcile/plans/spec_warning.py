"""The condition ``SpecWarning``: fields of a spec without effect, and other advice about a valid spec. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from modelyard.objects import Condition, Notice, condition
from modelyard.reconcile.plans.plan import Plan, Status

SPEC_WARNING, FIELDS_IGNORED = "SpecWarning", "FieldsIgnored"


def with_spec_warning(plan: Plan, stored: Mapping[str, Any], warnings: Sequence[tuple[str, str]] = ()) -> Plan:
    """Return the plan with the condition, and with an Event where its text is new.

    ``stored`` is the object's status; ``warnings`` are reasons and texts besides the subject's fields without effect.
    """
    subject = plan.subject
    if subject.deleting:
        return plan
    ignored = [(FIELDS_IGNORED, subject.ignored)] if subject.ignored else []
    texts = [*warnings, *ignored]
    before = condition(stored, SPEC_WARNING)
    if not texts and not before:
        return plan
    message = "; ".join(text for _, text in texts)
    conditions = (Condition(SPEC_WARNING, "True", texts[0][0], message, subject.generation),) if texts else ()

    def added(status: Status) -> Status:
        everything = (*status.conditions, *conditions)
        return replace(status, conditions=everything, transient=status.transient | {SPEC_WARNING})

    wanted = added(plan.wanted) if plan.wanted is not None else None
    status = added(plan.status) if plan.status is not None else None
    message_before = before.get("message")
    current = (message_before, before.get("observedGeneration")) == (message, subject.generation)
    if status is None and not current:
        status = wanted or added(Status({}))
    news = (Notice(texts[0][0], message, "Warning"),) if texts and message_before != message else ()
    return replace(plan, wanted=wanted, status=status, notices=(*plan.notices, *news))
