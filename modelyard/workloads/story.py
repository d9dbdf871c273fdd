"""What is told of a service: conditions per component, where it answers, how far its model is. Pure.

``Ready`` says whether it answers; ``LatestDeploymentReady`` whether what answers is what was asked for. Both are told
whatever has failed, with the step that did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modelyard.objects import Condition, Notice
from modelyard.objects.documents import cut
from modelyard.objects.kinds import CONTROLLER_REVISIONS
from modelyard.reconcile.plan import Plan, Status
from modelyard.reconcile.status import is_due, timestamp
from modelyard.workloads import names
from modelyard.workloads.canaries import shares
from modelyard.workloads.changes import Changes, Identity, differences, identity
from modelyard.workloads.components import VIRTUAL
from modelyard.workloads.gates import COMPARED, GateWatch
from modelyard.workloads.gates import READY as READY_SINCE
from modelyard.workloads.model_routes import taken, weights
from modelyard.workloads.resolution import ACCEPT, Resolved
from modelyard.workloads.returning import GOOD, RETURNED, SINCE, Aim
from modelyard.workloads.standing import ComponentStanding, makes_pods
from modelyard.workloads.values import Refused, Rendered
from modelyard.workloads.world import ServicePod, StoredChild, StoredService

READY, LATEST, INGRESS, ROUTES = "Ready", "LatestDeploymentReady", "IngressReady", "RoutesReady"
OURS = frozenset(
    (READY, LATEST, INGRESS, ROUTES, *(f"{kind}Ready" for kind in ("Engine", "Decoder", "Router", "Predictor")))
)
_MOST = 2000
PENDING = "MetadataPending"
"""Reason of a service whose model's files have not been read yet."""
_PUBLISHED = {
    "ModelDisabled": "BaseModelDisabled",
    PENDING: "BaseModelNotReady",
    "ModelInvalid": "BaseModelNotReady",
    "FineTunedWeightsNotReady": "FineTunedWeightsNotFound",
    "RuntimeNotFound": "RuntimeNotRecognized",
    "RuntimeInvalid": "RuntimeNotRecognized",
    "RuntimeNotSupported": "NoSupportingRuntime",
    **{
        name: name
        for name in (
            *("BaseModelNotFound", "BaseModelDisabled", "BaseModelNotReady", "FineTunedWeightsNotFound"),
            *("FineTunedWeightsDisabled", "NoSupportingRuntime", "RuntimeDisabled"),
        )
    },
}
"""Our reasons, as the published schema has them; all others are about the spec."""


@dataclass(frozen=True, slots=True)
class Standing:
    """All that a plan for a service knows: what was resolved, what came of it, what differs, how components stand."""

    service: StoredService
    resolved: Resolved
    result: Rendered | Refused
    changes: Changes = field(default_factory=Changes)
    states: Mapping[str, ComponentStanding] = field(default_factory=dict)
    routed: bool = False
    """Whether what leads to its components is there."""
    there: Mapping[Identity, StoredChild] = field(default_factory=dict)
    """What is there under the names of its children, and all that is its own."""
    held: Sequence[str] = ()
    """What has changed beneath it and is not rolled out unless that is allowed."""
    aim: Aim | None = None
    """What is rolled out; ``None``: nothing new."""
    begun: bool = False
    """Whether all of its pods are asked for that may be by now."""
    good: str = ""
    """The revision that served last."""
    done: bool = False
    """Whether all of it is rolled out, so that nothing before it is kept any more."""
    canary: str = ""
    """What of it serves beside what was before, in words."""
    watch: GateWatch | None = None
    """How what is asked for is compared with what served before."""
    compared: str = ""
    """What came of that."""
    returned: str = ""
    """Why what it asks for was given up."""

    @property
    def problem(self) -> Refused | None:
        """Why nothing is made of it."""
        return self.result if isinstance(self.result, Refused) else None

    @property
    def answers(self) -> bool:
        """Whether requests can be served."""
        return bool(self.states) and all(one.ready for one in self.states.values())

    @property
    def stuck(self) -> bool:
        """Whether waiting will not mend what it lacks."""
        if self.problem is not None:
            return self.problem.reason != PENDING
        behind = [one for one in self.states.values() if not one.rolled_out]
        return bool(self.changes.conflicts or self.returned) or any(
            one.trouble is not None and one.trouble.final for one in behind
        )

    def differences(self, plan: Plan) -> list[str]:
        """What the plan would make, change and take away, a line each; not what is kept of what served."""
        found = []
        for body in plan.apply:
            if body["kind"] == CONTROLLER_REVISIONS.kind:
                continue
            there = self.there.get(identity(body))
            called = f"{body['kind']} {body['metadata']['name']}"
            lines = differences(there.body, body) if there is not None else []
            found += [f"{called}: new"] if there is None else [f"{called}: {line}" for line in lines]
        gone = [one for one in plan.delete if one.kind != CONTROLLER_REVISIONS]
        return found + [f"{one.kind.kind} {one.key.name}: goes" for one in gone]


def told(here: Standing, doing: Sequence[str], now: float) -> Plan:
    """A plan with the status as it should be. ``doing`` names what is being written or taken away."""
    subject, stored = here.service.subject, here.service.status
    wanted = _conditions(here, doing)
    fields: dict[str, Any] = {
        "observedGeneration": subject.generation,
        "components": _components(here),
        "modelStatus": _model_status(here),
    }
    if isinstance(here.result, Rendered) and not here.held:
        # A name that an older route has leads to its pods, which may be another tenant's.
        url = here.result.address if _taken(here) else here.result.url
        fields |= {"url": url or None, "address": {"url": here.result.address or None}}
    fields |= record(here, now)
    status = Status(slim(fields, stored), tuple(wanted.values()), transient=OURS)
    main = wanted[READY] if wanted[READY].status != "True" or LATEST not in wanted else wanted[LATEST]
    plan = Plan(subject, reason=main.reason, message=main.message, wanted=status, stored=stored)
    if not is_due(status, stored, now, 0.0, subject.uid):
        return plan
    return replace(plan, status=status, notices=tuple(_news(here, wanted)))


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
            RETURNED: cut(here.returned, _MOST) or None,
            READY_SINCE: timestamp(here.watch.ready) if here.watch is not None else None,
            COMPARED: here.compared or None,
        }
    }


def _conditions(here: Standing, doing: Sequence[str]) -> dict[str, Condition]:
    result, problem = here.result, here.problem
    if isinstance(result, Rendered) and result.virtual:
        message = "InferenceService is in VirtualDeployment mode"
        return {READY: Condition(READY, "True", VIRTUAL, message)}
    found = [_component(one) for one in here.states.values()]
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
        ready = Condition(READY, "True", "Ready", cut(said, _MOST))
    routes = Condition(ROUTES, ingress.status, ingress.reason, ingress.message)
    return {one.type: one for one in (*found, ingress, routes, latest, ready)}


def _component(one: ComponentStanding) -> Condition:
    return Condition(f"{one.kind.capitalize()}Ready", str(one.ready), one.reason, cut(one.message, _MOST))


def as_asked(here: Standing, doing: Sequence[str]) -> Condition:
    """Whether what was asked for is what runs; if not, which step it is at, and why."""

    def no(reason: str, message: str) -> Condition:
        return Condition(LATEST, "False", reason, cut(message, _MOST))

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
    if hindered is not None and hindered.trouble is not None:
        return no(hindered.trouble.reason, hindered.message)
    if doing:
        return no("Applying", f"to be written: {', '.join(doing)}")
    if here.changes.leaving:
        return no("Replacing", f"being taken away, to be made anew: {', '.join(here.changes.leaving)}")
    if behind:
        one = behind[0]
        return no(one.trouble.reason if one.trouble is not None else "RollingOut", one.message)
    if here.watch is not None:
        return no("Comparing", f"what was asked for is what runs, {here.watch.words}")
    if here.canary:
        return Condition(LATEST, "True", "Canary", cut("; ".join(filter(None, (here.canary, here.compared))), _MOST))
    if here.held:
        said = f"{'; '.join(here.held)}: allow it by the annotation {ACCEPT} (what it would be, adoption, or always)"
        return Condition(LATEST, "True", "ChangesHeld", cut(said, _MOST))
    notes = here.result.notes if isinstance(here.result, Rendered) else ()
    said = "what was asked for is what runs"
    better = f"a new service would have runtime {here.resolved.better}" if here.resolved.better else ""
    words = filter(None, (said, here.compared, _taken(here), better, *(note.message for note in notes)))
    return Condition(LATEST, "True", "RolledOut", cut("; ".join(words), _MOST))


def _taken(here: Standing) -> str:
    """Why the router does not give the service its requests, where it is behind it."""
    behind = isinstance(here.result, Rendered) and weights(here.result.children)
    return taken(here.there.values(), here.service.subject.uid) if behind else ""


def _components(here: Standing) -> dict[str, Any]:
    """By component; ``None`` takes away what was told of one that is not there any more."""
    before = here.service.status.get("components")
    before = before if isinstance(before, Mapping) else {}
    if isinstance(here.result, Rendered) and here.result.virtual:
        return {**dict.fromkeys(before), "predictor": {"url": here.result.url}}
    found: dict[str, Any] = dict.fromkeys(before)
    urls, uid = _urls(here), here.service.subject.uid
    weighed = weights(here.result.children) if isinstance(here.result, Rendered) else {}
    for kind, one in here.states.items():
        told: dict[str, Any] = {"latestCreatedRevision": one.revision or None, "url": urls.get(kind)}
        if one.rolled_out:
            told |= {"latestReadyRevision": one.revision or None, "latestRolledoutRevision": one.revision or None}
        mine = [child.body for child in here.there.values() if child.component == kind and child.owner == uid]
        found[kind] = {**told, "traffic": shares(filter(makes_pods, mine), weighed)}
    return found


def _urls(here: Standing) -> dict[str, str]:
    """Where each component that is ready answers inside the cluster."""
    if not isinstance(here.result, Rendered) or here.held:
        before = here.service.status.get("components")
        known = before.items() if isinstance(before, Mapping) else ()
        return {kind: one["url"] for kind, one in known if isinstance(one, Mapping) and "url" in one}
    found = {}
    for child in here.result.children:
        metadata, ports = child.body["metadata"], (child.body.get("spec") or {}).get("ports")
        state = here.states.get(child.component)
        own = child.name == names.component(here.service.key.name, child.component)
        if child.kind == "Service" and own and ports and state is not None and state.ready:
            found[child.component] = f"http://{child.name}.{metadata['namespace']}.svc.cluster.local:{ports[0]['port']}"
    return found


def _model_status(here: Standing) -> dict[str, Any] | None:
    """How far the model is: of engine and decoder, the one that is furthest behind."""
    if not here.resolved.named.model and here.problem is None:
        return None
    if isinstance(here.result, Rendered) and here.result.virtual:
        return None
    holding = [one for kind, one in here.states.items() if kind != names.ROUTER]
    active = _active(holding)
    copies = {"totalCopies": sum(one.ready_pods for one in holding), "failedCopies": len(_failed(holding))}
    problem = here.problem
    if problem is not None:
        waits = problem.reason == PENDING
        reason = _PUBLISHED.get(problem.reason, "InvalidPredictorSpec")
        return {
            "transitionStatus": "InProgress" if waits else "InvalidSpec",
            "modelRevisionStates": {
                "activeModelState": active,
                "targetModelState": "Pending" if waits else "FailedToLoad",
            },
            "lastFailureInfo": _failure(reason, str(problem)),
            "modelCopies": copies,
        }
    states = {"activeModelState": active, "targetModelState": active}
    behind = [one for one in holding if not one.rolled_out]
    if not behind and holding:
        return {
            "transitionStatus": "UpToDate",
            "modelRevisionStates": states,
            "lastFailureInfo": None,
            "modelCopies": copies,
        }
    first = next((one for one in behind if one.trouble is not None), None)
    trouble = first.trouble if first is not None else None
    target = trouble.state if trouble is not None else "Pending"
    states["targetModelState"] = target
    if trouble is None or target != "FailedToLoad":
        return {
            "transitionStatus": "InProgress",
            "modelRevisionStates": states,
            "lastFailureInfo": None,
            "modelCopies": copies,
        }
    assert first is not None
    where = next((str(pod.key) for pod in first.pods if pod.trouble == trouble), None)
    return {
        "transitionStatus": "BlockedByFailedLoad",
        "modelRevisionStates": states,
        "lastFailureInfo": {
            **_failure("ModelLoadFailed", trouble.message),
            "location": where,
            "exitCode": trouble.exit_code,
            "time": trouble.time or None,
        },
        "modelCopies": copies,
    }


def _active(holding: Sequence[ComponentStanding]) -> str:
    if not holding or not all(one.ready for one in holding):
        return "Pending"
    return "Standby" if all(one.zero for one in holding) else "Loaded"


def _failed(holding: Sequence[ComponentStanding]) -> list[ServicePod]:
    return [
        pod for one in holding for pod in one.pods if pod.trouble is not None and pod.trouble.state == "FailedToLoad"
    ]


def _failure(reason: str, message: str) -> dict[str, Any]:
    return {"reason": reason, "message": cut(message, _MOST), "location": None, "exitCode": None, "time": None}


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


def _news(here: Standing, wanted: Mapping[str, Condition]) -> list[Notice]:
    """What is worth an Event: whether it answers, and what keeps it from what was asked for."""
    stored = {one.get("type"): (one.get("status"), one.get("reason")) for one in here.service.status["conditions"]}
    found = []
    ready = wanted[READY]
    if stored.get(READY, ("",))[0] != ready.status and (READY in stored or ready.status == "True"):
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
    if isinstance(here.result, Rendered):
        found += [Notice(note.reason, note.message, "Warning") for note in here.result.notes]
    return found
