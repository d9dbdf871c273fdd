"""What is told of a model: state, conditions, nodes and facts, in bounded size however many nodes there are. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from modelyard.models.delivery.legs import Leg, NodeStage, Wish
from modelyard.models.delivery.model_size import size_of
from modelyard.models.delivery.world import FILLED, LIFECYCLE, LIFECYCLES, ReportEntry, StoredModel
from modelyard.models.detection import Facts, fill
from modelyard.models.storage import storage_warnings
from modelyard.objects import Condition, Notice, counted, cut, few, mapping, printable
from modelyard.reconcile.plans import Plan, Status, status_plan, with_spec_warning
from modelyard.resources.ome import BaseModelSpec

RESOLVED, DOWNLOADED, DETECTED = "Resolved", "Downloaded", "MetadataDetected"
READY, ALL_READY, DISABLED = "Ready", "AllNodesReady", "Disabled"
OURS = frozenset({RESOLVED, DOWNLOADED, DETECTED, READY, ALL_READY, DISABLED})

MOST_NODES = 20
"""Nodes of which a status tells more than the name."""
MOST_NAMES = 2000
"""Names of nodes in one list of a status; more than this, and the counts tell."""
_SHOWN = 3
MOST_WORDS = 300

CREATING, IN_TRANSIT, FAILED = "Creating", "In_Transit", "Failed"
NO_NODES = "NoMatchingNodes"


def told(
    wish: Wish,
    parts: Sequence[Leg],
    facts: ReportEntry | None,
    now: float,
    explain_no_nodes: Callable[[], str] = lambda: "",
) -> Plan:
    """The plan and status of a model that can be delivered; ``explain_no_nodes`` says why no node is chosen."""
    model, goal = wish.model, wish.goal
    assert model.spec is not None
    chosen = [leg for leg in parts if leg.stage not in (NodeStage.REMOVING, NodeStage.GONE)]
    ready, failed = _of(chosen, NodeStage.READY), _of(chosen, NodeStage.FAILED)
    unfinished = [leg for leg in chosen if leg.stage is not NodeStage.READY]
    state, reason, message = _state(chosen, ready, failed) if chosen else (IN_TRANSIT, NO_NODES, explain_no_nodes())
    count = f"{len(ready)} of {counted(len(chosen), 'node')}" if goal.claim is None else str(goal.claim)
    done = facts.delivered if facts is not None else None
    weights = printable(done.weights) if done is not None else ""
    found = done.facts if done is not None and model.told else {}
    where = model.spec.storage.storage_uri + (f" → {goal.path}" if goal.claim is None else "")
    facts_words = (done.facts_error if done is not None else None) or "no facts were found in the files"
    everywhere = bool(chosen) and not unfinished
    conditions = [
        _condition(RESOLVED, True, "Resolved", where),
        _condition(
            DOWNLOADED,
            bool(ready),
            "Downloaded" if ready else reason,
            "; ".join(filter(None, (count, weights))) if ready else message,
        ),
        _condition(DETECTED, True, "Detected", "what the model is was found in its files")
        if found
        else Condition(
            DETECTED,
            "False" if ready else "Unknown",
            "NotDetected" if ready else reason,
            facts_words if ready else message,
        ),
        _condition(READY, state == "Ready", "Ready" if state == "Ready" else reason, count if ready else message),
        _condition(
            ALL_READY,
            everywhere,
            "AllNodesReady" if everywhere else (_most(unfinished) if chosen else reason),
            count if everywhere else f"{count}; {_words(unfinished)}" if chosen else message,
        ),
    ]
    if model.spec.disabled:
        conditions.append(_condition(DISABLED, True, "Disabled", "spec.disabled: no service may use it"))
    delivery = {
        "path": goal.path,
        "revision": done.revision if done is not None else None,
        "bytes": done.bytes if done is not None else None,
        "weights": weights or None,
        "selected": len(chosen),
        "ready": len(ready),
        "failed": len(failed),
        "active": len(_of(chosen, NodeStage.ACTIVE)),
        "waiting": sum(leg.stage is NodeStage.WAITING and leg.starts for leg in chosen),
        "nodes": [_node(leg) for leg in _interesting(parts)] or None,
    }
    names = [leg.node for leg in ready if leg.node], [leg.node for leg in failed if leg.node]
    plan = _tell(model, state, conditions, names, delivery, found, now)
    return _filled(plan, model, found) if found else plan


def refused(model: StoredModel, problem: tuple[str, str], now: float) -> Plan:
    """The plan of a model that cannot be delivered as it is."""
    reason, message = problem
    conditions = [_condition(name, False, reason, message) for name in (RESOLVED, DOWNLOADED, READY, ALL_READY)]
    if model.spec is not None and model.spec.disabled:
        conditions.append(_condition(DISABLED, True, "Disabled", "spec.disabled: no service may use it"))
    return _tell(model, FAILED, conditions, ([], []), None, {}, now)


def held(model: StoredModel, reason: str, message: str, now: float) -> Plan:
    """The plan of a model of which nothing can be decided, by no fault of its own: what there is stays, and is told."""
    wrong = replace(_condition(RESOLVED, False, reason, message), observed_generation=model.subject.generation)
    wanted = Status({} if model.status.get("state") else {"state": CREATING}, (wrong,))
    plan = status_plan(model.subject, wrong, wanted, model.status, now)
    return with_spec_warning(plan, model.status, list(_spec_warnings(model, {})))


def removing(model: StoredModel, parts: Sequence[Leg], now: float) -> Plan:
    """The plan of a model that is being deleted, which says what it still waits for."""
    generation = model.subject.generation
    left = [leg for leg in parts if leg.stage is not NodeStage.GONE]
    message = f"files are being removed from {counted(len(left), 'node')}; {_words(left)}"
    ready = Condition(READY, "False", "Removing", message if left else "nothing of it is left", generation)
    nodes = [_node(leg) for leg in _interesting(parts)] or None
    wanted = Status({"delivery": {"nodes": nodes}, "observedGeneration": generation}, (ready,))
    return status_plan(model.subject, ready, wanted, model.status, now)


def _state(chosen: Sequence[Leg], ready: Sequence[Leg], failed: Sequence[Leg]) -> tuple[str, str, str]:
    if ready:
        return "Ready", "Ready", ""
    if len(failed) == len(chosen):
        return FAILED, _most(failed), _words(failed)
    active = _of(chosen, NodeStage.ACTIVE)
    left = active or [leg for leg in chosen if leg.stage is not NodeStage.FAILED]
    return IN_TRANSIT if active or failed else CREATING, _most(left), _words(left)


def _tell(
    model: StoredModel,
    state: str,
    conditions: Iterable[Condition],
    nodes: tuple[Sequence[str], Sequence[str]],
    delivery: Mapping[str, Any] | None,
    found: Mapping[str, Any],
    now: float,
) -> Plan:
    subject, (ready, failed) = model.subject, nodes
    wanted = tuple(replace(one, observed_generation=subject.generation) for one in conditions)
    fields: dict[str, Any] = {
        "lifecycle": model.lifecycle if model.lifecycle in LIFECYCLES else None,
        "state": state,
        "observedGeneration": subject.generation,
        "nodesReady": sorted(ready)[:MOST_NAMES] or None,
        "nodesFailed": sorted(failed)[:MOST_NAMES] or None,
        "delivery": delivery,
    }
    detected = mapping(model.status.get("detected"))
    if found or detected:
        fields["detected"] = {**dict.fromkeys(detected), **found} if found else None
    status = Status(fields, wanted, transient=OURS)
    main = next(one for one in wanted if one.type == READY)

    def news(stored: Mapping[str, tuple[str, str]]) -> Iterable[Notice]:
        if stored.get(READY) != (main.status, main.reason):
            bad = main.status == "False" and (state == FAILED or main.reason == NO_NODES)
            yield Notice(main.reason, main.message, "Warning" if bad else "Normal")
        weights = (delivery or {}).get("weights")
        if weights and weights != mapping(model.status.get("delivery")).get("weights"):
            yield Notice("WeightsChosen", weights)

    plan = status_plan(subject, main, status, model.status, now, news)
    return with_spec_warning(plan, model.status, list(_spec_warnings(model, found)))


def _spec_warnings(model: StoredModel, detected: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if model.lifecycle and model.lifecycle not in LIFECYCLES:
        text = f"annotation {LIFECYCLE}: {printable(model.lifecycle)} is no lifecycle; write {', '.join(LIFECYCLES)}"
        yield "LifecycleUnknown", text
    spec = model.spec
    if spec is None:
        return
    if isinstance(spec, BaseModelSpec) and spec.model_parameter_size:
        try:
            facts = Facts.model_validate(detected)
        except ValueError:
            facts = Facts()
        size = size_of(spec.model_parameter_size, facts)
        yield from [("ModelSizeInvalid", size.problem)] if size.problem else []
        yield from [("ModelSizeCorrected", size.remark)] if size.remark else []
    yield from (("ParameterIgnored", text) for text in storage_warnings(model.uri, spec.storage))


def _filled(plan: Plan, model: StoredModel, found: Mapping[str, Any]) -> Plan:
    spec = model.spec
    if not isinstance(spec, BaseModelSpec):
        return plan
    try:
        facts = Facts.model_validate(found)
        ours = json.loads(model.filled) if model.filled else {}
    except ValueError:
        return plan
    has = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    mine = {name for name, value in ours.items() if has.get(name) == value} if isinstance(ours, dict) else set()
    empty = {field: None for field, info in type(spec).model_fields.items() if (info.alias or field) in mine}
    full = fill(spec.model_copy(update=empty), facts).model_dump(mode="json", by_alias=True, exclude_none=True)
    change = {name: full.get(name) for name in full.keys() | mine if full.get(name) != has.get(name)}
    if not change:
        return plan
    keeps = {name: full[name] for name in mine | change.keys() if name in full}
    note = {FILLED: json.dumps(keeps, sort_keys=True)}
    return replace(plan, fill={"spec": change}, annotations={**plan.annotations, **note})


def _of(parts: Iterable[Leg], stage: NodeStage) -> list[Leg]:
    return [leg for leg in parts if leg.stage is stage]


def _most(parts: Iterable[Leg]) -> str:
    counts = Counter(leg.reason for leg in parts)
    return min(counts, key=lambda reason: (-counts[reason], reason), default="Unknown")


def _words(parts: Sequence[Leg]) -> str:
    alike = len({leg.reason for leg in parts}) == 1
    shown = [
        f"{leg.node}: "
        + ", ".join(filter(None, ("" if alike and leg.message else leg.reason, cut(leg.message, MOST_WORDS))))
        for leg in parts
    ]
    return "; ".join(text.removeprefix(": ") for text in few(shown, _SHOWN))


def _interesting(parts: Iterable[Leg]) -> list[Leg]:
    order = {NodeStage.FAILED: 0, NodeStage.ACTIVE: 1, NodeStage.REMOVING: 2, NodeStage.WAITING: 3}
    told = [leg for leg in parts if leg.stage in order]
    return sorted(told, key=lambda leg: (order[leg.stage], leg.node))[:MOST_NODES]


def _node(leg: Leg) -> dict[str, Any]:
    told: dict[str, Any] = {"node": leg.node} if leg.node else {}
    told |= {"state": leg.stage.value, "reason": leg.reason, "message": cut(leg.message, MOST_WORDS)}
    progress = leg.entry.progress if leg.entry is not None else None
    if leg.stage is NodeStage.ACTIVE and progress is not None and progress.total_bytes > 0:
        told |= {"percent": min(100, progress.completed_bytes * 100 // progress.total_bytes)}
    return told


def _condition(kind: str, holds: bool, reason: str, message: str) -> Condition:
    return Condition(kind, str(holds), reason, message)
