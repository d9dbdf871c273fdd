"""What a Model's status should say, from how its backends stand: computed once, written if new. Pure.

Source: Kthena Model controller reference, "Conditions" and "Model.status", with their repairs: nothing flickers, and
``Failed`` is taken back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from modelyard.objects import Condition, Notice, few, texts
from modelyard.reconcile.plans import Plan, Status, status_plan
from modelyard.resources import DISAGGREGATED, Model, ModelBackend
from modelyard.workloads.kthena.setup import OF_GROUP, SCALED_ROLES, role_of
from modelyard.workloads.rendering import Body
from modelyard.workloads.roll_out import Standing, as_asked, is_workload, record, slim

INITIALIZED, ACTIVE, FAILED = "Initialized", "Active", "Failed"


def told(here: Standing, doing: Sequence[str], now: float) -> Plan:
    """A plan with the status as it should be. ``doing`` names what is being written or taken away."""
    subject, stored = here.service.subject, here.service.status
    conditions = _conditions(here, doing)
    fields = {"backendStatuses": _backends(here), "observedGeneration": subject.generation, **record(here, now)}
    status = Status(slim(fields, stored), conditions)
    _, active, failed = conditions
    main = failed if failed.status == "True" or active.status == "True" else active
    return status_plan(subject, main, status, stored, now, lambda before: _news(active, failed, before))


def _conditions(here: Standing, doing: Sequence[str]) -> tuple[Condition, Condition, Condition]:
    def condition(type: str, status: bool, reason: str, message: str) -> Condition:
        return Condition(type, str(status), reason, message, here.service.subject.generation)

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


def _news(active: Condition, failed: Condition, stored: Mapping[str, tuple[str, str]]) -> Iterator[Notice]:
    for condition, good in ((active, "True"), (failed, "False")):
        if stored.get(condition.type, ("False", ""))[0] != condition.status:
            kind = "Normal" if condition.status == good else "Warning"
            yield Notice(condition.reason, condition.message, kind)


def _backends(here: Standing) -> list[dict[str, Any]]:
    resource = here.service.resource
    backends = {backend.name: backend for backend in resource.spec.backends} if isinstance(resource, Model) else {}
    statuses = []
    for name in here.states:
        mine = [child for child in here.there.values() if is_workload(child) and child.component == name]
        bodies = [child.body for child in mine if child.owner == here.service.subject.uid]
        ready, total = _replicas(bodies, backends.get(name))
        statuses.append({"name": name, "replicas": ready, "totalReplicas": total})
    return statuses


def _replicas(workloads: Iterable[Body], backend: ModelBackend | None) -> tuple[int, int]:
    """Ready, and all. Roles that run apart are counted by group: pods of different groups are never paired."""
    sizes = {role_of(worker): worker.replicas or 1 for worker in backend.workers} if backend is not None else {}
    groups: defaultdict[str, list[tuple[str, _Counts]]] = defaultdict(list)
    for body in workloads:
        labels = _pod_labels(body)
        group = labels.get(f"{OF_GROUP}/group-name") or body["metadata"]["name"]
        groups[group].append((labels.get(f"{OF_GROUP}/role", ""), _counts(body)))
    if backend is None or backend.type not in DISAGGREGATED:
        size = next(iter(sizes.values()), 1)
        # The pods of a group that StatefulSets keep are an instance together.
        whole = [tuple(map(min, zip(*(c[:2] for _, c in parts), strict=True))) for parts in groups.values()]
        return sum(ready for ready, _ in whole) // size, sum(total for _, total in whole) // size
    complete = [_complete(parts, sizes) for parts in groups.values()]
    return sum(ready for ready, _ in complete), sum(total for _, total in complete)


def _complete(parts: Sequence[tuple[str, _Counts]], sizes: Mapping[str, int]) -> tuple[int, int]:
    """As many as the scarcest role that scales allows; the others, such as a coordinator, serve all of the group."""
    scaled = [(counts, sizes.get(role, 1)) for role, counts in parts if role in SCALED_ROLES]
    if not scaled or not all(counts.ready >= counts.wanted for role, counts in parts if role not in SCALED_ROLES):
        ready = 0
    else:
        ready = min(counts.ready // size for counts, size in scaled)
    return ready, min((counts.total // size for counts, size in scaled), default=0)


def _pod_labels(workload: Body) -> Mapping[str, str]:
    template = (workload.get("spec") or {}).get("template") or {}
    return texts((template.get("metadata") or {}).get("labels"))


class _Counts(NamedTuple):
    ready: int
    total: int
    wanted: int


def _counts(workload: Body) -> _Counts:
    """Count the pods of a workload. None is ready while its controller has not seen the newest form."""
    status, spec = workload.get("status") or {}, workload.get("spec") or {}
    wanted = spec.get("replicas")
    seen = int(status.get("observedGeneration") or 0) >= int(workload["metadata"].get("generation") or 0)
    ready = int(status.get("readyReplicas") or 0) if seen or workload["kind"] == "LeaderWorkerSet" else 0
    return _Counts(ready, int(status.get("replicas") or 0), 1 if wanted is None else int(wanted))
