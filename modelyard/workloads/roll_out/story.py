"""What is told of a service: conditions per component, where it answers, how far its model is. Pure.

``Ready`` says whether it answers; ``LatestDeploymentReady`` whether what answers is what was asked for. Both are told
whatever has failed, with the step that did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from modelyard.objects import LONGEST_MESSAGE, VIRTUAL, Condition, Notice, condition, cut, timestamp
from modelyard.reconcile.plans import Plan, Status, status_plan
from modelyard.workloads.rendering import Rendered, taken, weights
from modelyard.workloads.roll_out.component_revisions import component_statuses
from modelyard.workloads.roll_out.gates import COMPARED, READY as READY_SINCE
from modelyard.workloads.roll_out.model_status import model_status
from modelyard.workloads.roll_out.resolution import ACCEPT
from modelyard.workloads.roll_out.returning import GOOD, RETURNED, SINCE
from modelyard.workloads.roll_out.rollout_state import Standing
from modelyard.workloads.roll_out.route_conditions import (
    COMPONENT_CONDITIONS,
    predictor_condition,
    roll_up,
    route_conditions,
)
from modelyard.workloads.roll_out.weight_status import WEIGHTS_READY, weights_ready

READY, LATEST, INGRESS = "Ready", "LatestDeploymentReady", "IngressReady"
OURS = frozenset((READY, LATEST, INGRESS, "RoutesReady", WEIGHTS_READY, *COMPONENT_CONDITIONS))
UNREPORTED = "what was asked for is written, and its controller has not reported on it yet"


def told(here: Standing, doing: Sequence[str], now: float) -> Plan:
    """A plan with the status as it should be. ``doing`` names what is being written or taken away."""
    subject, stored = here.service.subject, here.service.status
    wanted = _conditions(here, doing)
    fields: dict[str, Any] = {
        "observedGeneration": subject.generation,
        "components": component_statuses(here),
        "modelStatus": model_status(here, doing, now),
    }
    if isinstance(here.result, Rendered) and not here.held:
        # A name that an older route has leads to its pods, which may be another tenant's.
        url = here.result.address if _taken(here) else here.result.url
        fields |= {"url": url or None, "address": {"url": here.result.address or None}}
    fields |= record(here, now)
    status = Status(slim(fields, stored), tuple(wanted.values()), transient=OURS)
    main = wanted[READY] if wanted[READY].status != "True" or LATEST not in wanted else wanted[LATEST]
    return status_plan(subject, main, status, stored, now, lambda before: _news(here, wanted, before))


def record(here: Standing, now: float) -> dict[str, Any]:
    """What a status keeps of what is rolled out: which it is, since when, and what came of it."""
    if here.aim is None:
        return {}
    since = now if here.aim.since is None and here.begun else here.aim.since
    return {
        "annotations": {
            **here.aim.marks,
            SINCE: timestamp(since) if since is not None else None,
            GOOD: here.good or None,
            RETURNED: cut(here.returned, LONGEST_MESSAGE) or None,
            READY_SINCE: timestamp(here.watch.ready) if here.watch is not None else None,
            COMPARED: here.compared or None,
        }
    }


def _conditions(here: Standing, doing: Sequence[str]) -> dict[str, Condition]:
    result, problem = here.result, here.problem
    if isinstance(result, Rendered) and result.virtual:
        message = "InferenceService is in VirtualDeployment mode"
        return {READY: Condition(READY, "True", VIRTUAL, message)}
    found = [
        Condition(f"{one.kind.capitalize()}Ready", str(one.ready), one.reason, one.message)
        for one in here.states.values()
    ]
    latest = as_asked(here, doing)
    failing = next((one for one in found if one.status != "True"), None)
    if here.routed:
        ingress = Condition(INGRESS, "True", "RoutesMade", "what leads to its components is there")
    elif failing is not None:
        ingress = Condition(INGRESS, "False", "ComponentNotReady", failing.message)
    else:
        ingress = Condition(INGRESS, "False", latest.reason, latest.message)
    if not here.states:
        ready = Condition(READY, "False", latest.reason, latest.message)
    elif failing is not None:
        # What keeps the components from being made is what to look at, as long as there is nothing of them.
        cause = latest if not any(one.exists for one in here.states.values()) else failing
        ready = Condition(READY, "False", cause.reason, cause.message)
    elif not here.routed:
        ready = Condition(READY, "False", ingress.reason, ingress.message)
    else:
        said = "all components are ready" + (f"; not as it was asked for: {problem}" if problem is not None else "")
        ready = Condition(READY, "True", "Ready", said)
    routes = route_conditions(here, latest)
    wanted = {one.type: one for one in (*found, ingress, *routes, roll_up(ingress, routes), latest, ready)}
    if (predictor := predictor_condition(here, wanted)) is not None:
        wanted[predictor.type] = predictor
    if (weights_state := weights_ready(here, latest)) is not None:
        wanted[weights_state.type] = weights_state
    return wanted


def as_asked(here: Standing, doing: Sequence[str]) -> Condition:
    """Whether what was asked for is what runs; if not, which step it is at, and why."""

    def no(reason: str, message: str) -> Condition:
        return Condition(LATEST, "False", reason, message)

    if here.problem is not None:
        return no(here.problem.reason, str(here.problem))
    if here.returned:
        return no("RolledBack", here.returned)
    if here.changes.conflicts:
        return no("ChildConflict", "; ".join(here.changes.conflicts))
    if doing and here.service.subject.failed:
        return no("ApplyFailed", here.service.subject.failed)
    behind = [one for one in here.states.values() if not one.rolled_out]
    hindered = next((one for one in behind if one.exists and one.trouble is not None and one.trouble.final), None)
    lasting = f"; cannot be rolled back: {here.unreturnable}" if here.unreturnable else ""
    if hindered is not None and hindered.trouble is not None:
        return no(hindered.trouble.reason, f"{hindered.message}{lasting}")
    if doing:
        return no("Applying", f"to be written: {', '.join(doing)}")
    if here.changes.leaving:
        return no("Replacing", f"being taken away, to be made anew: {', '.join(here.changes.leaving)}")
    if behind:
        one = behind[0]
        return no(one.trouble.reason if one.trouble is not None else "RollingOut", f"{one.message}{lasting}")
    if here.watch is not None:
        return no("Comparing", f"what was asked for is what runs, {here.watch.words}")
    if here.canary:
        return Condition(LATEST, "True", "Canary", "; ".join(filter(None, (here.canary, here.compared))))
    if here.updates:  # of a LeaderWorkerSet, which does not say what it has observed
        return no("RollingOut", UNREPORTED)
    if here.held:
        said = f"{'; '.join(here.held)}: allow it by the annotation {ACCEPT} (what it would be, adoption, or always)"
        return Condition(LATEST, "True", "ChangesHeld", said)
    notes = here.result.notes if isinstance(here.result, Rendered) else ()
    said = "what was asked for is what runs"
    better = f"a new service would have runtime {here.resolved.better}" if here.resolved.better else ""
    deprecated = (text for _, text in _deprecations(here))
    words = filter(None, (said, here.compared, _taken(here), better, *deprecated, *(note.message for note in notes)))
    return Condition(LATEST, "True", "RolledOut", "; ".join(words))


def _deprecations(here: Standing) -> list[tuple[str, str]]:
    model, weights = here.resolved.model, here.resolved.weights
    each = [("BaseModelDeprecated", "model", model)] if model is not None else []
    each += [("FineTunedWeightsDeprecated", "fine-tuned weights", weight) for weight in weights]
    return [
        (reason, f"{kind} {offer.served.name}: deprecated; move to another one")
        for reason, kind, offer in each
        if offer.served.stored.is_deprecated
    ]


def _taken(here: Standing) -> str:
    behind = isinstance(here.result, Rendered) and weights(here.result.children)
    return taken(here.there.values(), here.service.subject.uid) if behind else ""


def slim(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """A merge patch without removals of what is not there, which would be a change each time."""
    found: dict[str, Any] = {}
    for name, value in wanted.items():
        before = stored.get(name)
        if isinstance(value, Mapping):
            value = slim(value, before if isinstance(before, Mapping) else {})
            if not value and before is None:
                continue
        elif value is None and before is None:
            continue
        found[name] = value
    return found


def _news(here: Standing, wanted: Mapping[str, Condition], stored: Mapping[str, tuple[str, str]]) -> list[Notice]:
    found, ready = [], wanted[READY]
    if stored.get(READY, ("", ""))[0] != ready.status and (READY in stored or ready.status == "True"):
        up = ready.status == "True"
        name = "InferenceServiceReady" if up else "InferenceServiceNotReady"
        found.append(Notice(name, ready.message, "Normal" if up else "Warning"))
    latest = wanted.get(LATEST)
    hindered = here.problem is not None or bool(here.changes.conflicts or here.returned or here.service.subject.failed)
    bad = hindered or any(one.trouble is not None and one.trouble.final for one in here.states.values())
    if (
        latest is not None
        and ((bad and latest.status == "False") or here.held)
        and stored.get(LATEST) != (latest.status, latest.reason)
    ):
        found.append(Notice(latest.reason, latest.message, "Warning"))
    before = condition(here.service.status, LATEST).get("message", "")
    new = [(reason, text) for reason, text in _deprecations(here) if text not in str(before)]
    if latest is not None and latest.reason == "RolledOut":
        found += [Notice(reason, text, "Warning") for reason, text in new]
    if isinstance(here.result, Rendered):
        found += [Notice(note.reason, note.message, "Warning") for note in here.result.notes]
    return found
