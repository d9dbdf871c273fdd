"""What a Model's status should say, from what was rendered and what is there: computed once, written if new. Pure.

Source: Kthena Model controller reference, "Conditions" and "Model.status", with their repairs: nothing flickers, and
``Failed`` is taken back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from modelyard.objects import Condition
from modelyard.objects.documents import cut, few
from modelyard.workloads.changes import Identity, identity
from modelyard.workloads.kthena.setup import OF_GROUP, OF_MODEL
from modelyard.workloads.values import Refused, Rendered

INITIALIZED, ACTIVE, FAILED = "Initialized", "Active", "Failed"
WORKLOADS: Final = ("Deployment", "StatefulSet", "LeaderWorkerSet")
_LONGEST: Final = 1000


class Ready(NamedTuple):
    """Groups of a backend: those that are ready, those there are, and how many must be ready."""

    ready: int
    total: int
    needed: int
    missing: tuple[str, ...] = ()


class ModelState(NamedTuple):
    """The conditions, and the other fields of the status."""

    conditions: tuple[Condition, ...]
    fields: Mapping[str, Any]


def state(
    model: Mapping[str, Any],
    rendered: Rendered | Refused,
    there: Iterable[Mapping[str, Any]],
    failures: Sequence[str] = (),
) -> ModelState:
    """The status of a Model. ``there`` are its workloads; ``failures`` say what could not be written."""
    generation = int(model["metadata"].get("generation") or 0)
    spec = model.get("spec")
    given = spec.get("backends") if isinstance(spec, Mapping) else None
    backends = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    found = _backends(backends, rendered, list(there))
    waiting = [_waiting(name, one) for name, one in found.items() if one.missing or one.ready < one.needed]
    wrong = [str(rendered)] if isinstance(rendered, Refused) else []
    wrong += failures
    if not found:
        waiting = ["there is no workload"]

    def condition(type: str, status: bool, reason: str, message: str) -> Condition:
        return Condition(type, str(status), reason, cut(message, _LONGEST), generation)

    conditions = (
        condition(INITIALIZED, True, "ModelCreating", "the model is looked after"),
        condition(ACTIVE, False, "ModelProcessing", "; ".join(few(waiting)))
        if waiting
        else condition(ACTIVE, True, "ModelAvailable", "every backend has the replicas that it must have"),
        condition(FAILED, True, "ModelAbnormal", "; ".join(few(wrong)))
        if wrong
        else condition(FAILED, False, "Reconciled", "everything is as the spec has it"),
    )
    statuses = [{"name": name, "replicas": one.ready, "totalReplicas": one.total} for name, one in found.items()]
    return ModelState(conditions, {"backendStatuses": statuses, "observedGeneration": generation})


def _waiting(name: str, one: Ready) -> str:
    if one.missing:
        return f"backend {name}: not there yet: {', '.join(few(one.missing, 3))}"
    return f"backend {name}: {one.ready} of {one.needed} replicas are ready"


def _backends(
    backends: Sequence[Mapping[str, Any]], rendered: Rendered | Refused, there: list[Mapping[str, Any]]
) -> dict[str, Ready]:
    """By backend, in the order of the spec. Of a Model that is refused, what still runs is told."""
    wanted: defaultdict[str, list[Identity]] = defaultdict(list)
    for child in rendered.children if isinstance(rendered, Rendered) else ():
        if child.kind in WORKLOADS:
            wanted[child.component].append(identity(child.body))
    of: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in there:
        of[(one["metadata"].get("labels") or {}).get(f"{OF_MODEL}/backend-name", "")].append(one)
    found = {}
    for backend in backends:
        name = str(backend.get("name") or "")
        own, should = of.get(name, []), wanted.get(name, [])
        if isinstance(rendered, Rendered) or own:
            known = {identity(one) for one in own}
            missing = tuple(f"{kind} {called}" for group, kind, called in should if (group, kind, called) not in known)
            found[name] = _ready(backend, [one for one in own if not should or identity(one) in should], missing)
    return found


def _ready(backend: Mapping[str, Any], workloads: list[Mapping[str, Any]], missing: tuple[str, ...]) -> Ready:
    least = backend.get("minReplicas")
    least = least if isinstance(least, int) else 0
    groups: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for one in workloads:
        spec = one.get("spec") or {}
        labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
        groups[labels.get(f"{OF_GROUP}/group-name") or one["metadata"]["name"]].append(_counts(one))
    if len(groups) == 1 and len(workloads) == 1:
        ready, total, wished = next(iter(groups.values()))[0]
        workers = backend.get("workers")
        first = workers[0] if isinstance(workers, list) and workers else None
        given = first.get("replicas") if isinstance(first, Mapping) else None
        each = given if isinstance(given, int) and given > 0 else 1
        return Ready(ready // each, total // each, min(least, -(-wished // each)), missing)
    # A group is ready when all it is made of is; one whose roles are scaled to zero has nothing that could be.
    whole = [all(ready >= wished for ready, _, wished in parts) for parts in groups.values()]
    some = [any(wished for _, _, wished in parts) for parts in groups.values()]
    return Ready(sum(map(all, zip(whole, some, strict=True))), len(groups), sum(some), missing)


def _counts(workload: Mapping[str, Any]) -> tuple[int, int, int]:
    """Ready, there, wished; of a workload whose controller has not seen its newest form nothing is ready."""
    status, spec = workload.get("status") or {}, workload.get("spec") or {}
    wished = spec.get("replicas")
    seen = int(status.get("observedGeneration") or 0) >= int(workload["metadata"].get("generation") or 0)
    ready = int(status.get("readyReplicas") or 0) if seen or workload["kind"] == "LeaderWorkerSet" else 0
    return ready, int(status.get("replicas") or 0), 1 if wished is None else int(wished)
