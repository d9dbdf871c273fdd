"""What a Model's status should say, from how its backends stand: computed once, written if new. Pure.

Source: Kthena Model controller reference, "Conditions" and "Model.status", with their repairs: nothing flickers, and
``Failed`` is taken back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from modelyard.objects import Condition, Notice
from modelyard.objects.documents import cut, few
from modelyard.reconcile.plan import Plan, Status
from modelyard.reconcile.status import is_due
from modelyard.resources import Model
from modelyard.workloads.components import texts
from modelyard.workloads.kthena.setup import OF_GROUP
from modelyard.workloads.rollout_state import Standing
from modelyard.workloads.standing import is_workload
from modelyard.workloads.story import as_asked, record, slim
from modelyard.workloads.values import Body

INITIALIZED, ACTIVE, FAILED = "Initialized", "Active", "Failed"
_LONGEST: Final = 2000


def told(here: Standing, doing: Sequence[str], now: float) -> Plan:
    """A plan with the status as it should be. ``doing`` names what is being written or taken away."""
    subject, stored = here.service.subject, here.service.status
    conditions = _conditions(here, doing)
    fields = {"backendStatuses": _backends(here), "observedGeneration": subject.generation, **record(here, now)}
    status = Status(slim(fields, stored), conditions)
    _, active, failed = conditions
    main = failed if failed.status == "True" or active.status == "True" else active
    plan = Plan(subject, reason=main.reason, message=main.message, wanted=status, stored=stored)
    if not is_due(status, stored, now, 0.0, subject.uid):
        return plan
    return replace(plan, status=status, notices=_news(here, active, failed))


def _conditions(here: Standing, doing: Sequence[str]) -> tuple[Condition, Condition, Condition]:
    def condition(type: str, status: bool, reason: str, message: str) -> Condition:
        return Condition(type, str(status), reason, cut(message, _LONGEST), here.service.subject.generation)

    waiting = [f"backend {one.message}" for one in here.states.values() if not one.ready]
    active = bool(here.states) and not waiting
    said = "every backend has the replicas that it must have"
    latest = as_asked(here, doing)
    failed = latest.status == "False" and (here.stuck or latest.reason == "ApplyFailed")
    because = latest.message if latest.status == "True" else f"{latest.reason}: {latest.message}"
    return (
        condition(INITIALIZED, True, "ModelCreating", "the model is looked after"),
        condition(ACTIVE, True, "ModelAvailable", said)
        if active
        else condition(ACTIVE, False, "ModelProcessing", "; ".join(few(waiting)) or "there is no workload"),
        condition(FAILED, True, "ModelAbnormal", because)
        if failed
        else condition(FAILED, False, "Reconciled" if latest.status == "True" else "Reconciling", because),
    )


def _news(here: Standing, active: Condition, failed: Condition) -> tuple[Notice, ...]:
    """What is worth an Event: whether it answers, and what keeps it from what was asked for."""
    stored = {one.get("type"): one.get("status") for one in here.service.status["conditions"]}
    found = []
    if stored.get(ACTIVE, "False") != active.status:
        found.append(Notice(active.reason, active.message, "Normal" if active.status == "True" else "Warning"))
    if stored.get(FAILED, "False") != failed.status:
        found.append(Notice(failed.reason, failed.message, "Warning" if failed.status == "True" else "Normal"))
    return tuple(found)


def _backends(here: Standing) -> list[dict[str, Any]]:
    """Of each backend the replicas that are ready, and all there are."""
    resource = here.service.resource
    each = (
        {one.name: one.workers[0].replicas or 1 for one in resource.spec.backends}
        if isinstance(resource, Model)
        else {}
    )
    found = []
    for name in here.states:
        mine = [one for one in here.there.values() if is_workload(one) and one.component == name]
        ready, total = _replicas([one.body for one in mine if one.owner == here.service.subject.uid], each.get(name, 1))
        found.append({"name": name, "replicas": ready, "totalReplicas": total})
    return found


def _replicas(workloads: Iterable[Body], each: int) -> tuple[int, int]:
    """Groups that are ready, and those there are; ``each`` is how many of a workload's replicas are one of the
    backend's."""
    groups: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    count = 0
    for one in workloads:
        count += 1
        pods = ((one.get("spec") or {}).get("template") or {}).get("metadata") or {}
        group = texts(pods.get("labels")).get(f"{OF_GROUP}/group-name")
        groups[group or one["metadata"]["name"]].append(_counts(one))
    if count == 1:
        ((ready, total, _),) = next(iter(groups.values()))
        return ready // each, total // each
    # A group is ready when all it is made of is; one whose roles are scaled to zero has nothing that could be.
    whole = [
        all(ready >= wished for ready, _, wished in parts) and any(wished for _, _, wished in parts)
        for parts in groups.values()
    ]
    return sum(whole), len(groups)


def _counts(workload: Body) -> tuple[int, int, int]:
    """Ready, there, wished; of a workload whose controller has not seen its newest form nothing is ready."""
    status, spec = workload.get("status") or {}, workload.get("spec") or {}
    wished = spec.get("replicas")
    seen = int(status.get("observedGeneration") or 0) >= int(workload["metadata"].get("generation") or 0)
    ready = int(status.get("readyReplicas") or 0) if seen or workload["kind"] == "LeaderWorkerSet" else 0
    return ready, int(status.get("replicas") or 0), 1 if wished is None else int(wished)
