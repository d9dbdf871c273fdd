"""``status.modelStatus`` of an InferenceService: transition, states, last failure and copies of its model. Pure.

A pipeline that has changed a service reads here what became of the change. ``UpToDate`` therefore means that what is
asked for serves and is accepted: not while it is compared with what served before, not beside a canary, and not after
it was given up, when the model that serves is the one of before. ``activeModelState`` is about the revision that serves
and ``targetModelState`` about the one that is asked for. The last failure stays until a target is up to date.

A component that holds no model, the router, has no part in the states, but an update that it keeps from being accepted
is not up to date.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from modelyard.objects import LONGEST_MESSAGE, cut, mapping, timestamp
from modelyard.workloads.rendering import Refused, Rendered, names
from modelyard.workloads.roll_out.canaries import is_canary
from modelyard.workloads.roll_out.component_revisions import has_split_traffic
from modelyard.workloads.roll_out.diagnosis import EXITED, NO_MODEL, OUT_OF_MEMORY, Trouble
from modelyard.workloads.roll_out.resolution import GENERATION, recorded
from modelyard.workloads.roll_out.returning import GOOD, WORSE, deadline
from modelyard.workloads.roll_out.rollout_state import PENDING, Standing
from modelyard.workloads.roll_out.route_conditions import predictor_state
from modelyard.workloads.roll_out.standing import ComponentStanding
from modelyard.workloads.roll_out.world import ServicePod

UP_TO_DATE, IN_PROGRESS, BLOCKED, INVALID = "UpToDate", "InProgress", "BlockedByFailedLoad", "InvalidSpec"
FAILED: Final = "FailedToLoad"
_ORDER: Final = (FAILED, "Pending", "Loading", "Standby", "Loaded")
"""States, the one that is furthest behind first: that of the whole is that of its component furthest behind."""
_REASONS: Final = {
    "ModelDisabled": "BaseModelDisabled",
    PENDING: "BaseModelNotReady",
    "ModelInvalid": "BaseModelNotReady",
    **dict.fromkeys(("FineTunedWeightsMismatch", "FineTunedWeightsNotReady"), "FineTunedWeightsNotFound"),
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
"""Reasons of refusals, as the published schema has them; all others are about the spec."""


class LoadFailure(NamedTuple):
    """A failure to load the model that is asked for. ``time`` is RFC 3339, empty: when it is first reported."""

    reason: str
    message: str
    location: str = ""
    exit_code: int | None = None
    time: str = ""


class Transition(NamedTuple):
    """Progress to what is asked for. Without a ``failure`` the last one stays published, unless it is ``cleared``."""

    status: str
    active: str
    target: str
    failure: LoadFailure | None = None
    cleared: bool = False


def model_status(state: Standing, doing: Sequence[str], now: float) -> dict[str, Any] | None:
    """Return the model's status; ``None`` where another program creates the pods. ``doing`` names pending writes."""
    if isinstance(state.result, Rendered) and state.result.virtual:
        return None
    holding = [component for kind, component in state.states.items() if kind != names.ROUTER]
    transition = _transition(state, holding, doing, now)
    loaded, failed = _copies(holding)
    stored = mapping(state.service.status.get("modelStatus"))
    if state.failed is not None:
        failed = max(failed, _copies([state.failed], unready=True)[1])
    elif state.returned:  # the pods that failed are gone
        count = mapping(stored.get("modelCopies")).get("failedCopies")
        failed = max(failed, count if isinstance(count, int) else 0)
    fields: dict[str, Any] = {
        "transitionStatus": transition.status,
        "modelRevisionStates": {"activeModelState": transition.active, "targetModelState": transition.target},
        "modelCopies": {"totalCopies": loaded, "failedCopies": failed},
    }
    before = mapping(stored.get("lastFailureInfo"))
    if transition.failure is not None:
        fields["lastFailureInfo"] = _failure_info(state, transition.failure, before, now)
    elif transition.cleared or before.get("reason") == "BaseModelNotReady":  # which was no failure, but a wait
        fields["lastFailureInfo"] = None
    return fields


def _transition(state: Standing, holding: Sequence[ComponentStanding], doing: Sequence[str], now: float) -> Transition:
    serving = _serving(state, holding)
    if (problem := state.problem) is not None:
        failure = LoadFailure(_refusal_reason(problem), str(problem), problem.field)
        if problem.reason == PENDING:
            return Transition(IN_PROGRESS, serving, "Pending", failure)
        return Transition(INVALID, serving, FAILED, failure)
    if state.returned:
        return Transition(BLOCKED, serving, FAILED, _given_up(state))
    if state.changes.conflicts:
        return Transition(
            INVALID, serving, FAILED, LoadFailure("InvalidPredictorSpec", "; ".join(state.changes.conflicts))
        )
    if doing and state.service.subject.failed:
        return Transition(BLOCKED, serving, FAILED, LoadFailure("RuntimeUnhealthy", state.service.subject.failed))
    if state.held and recorded(state.service).get(GENERATION) != str(state.service.subject.generation):
        return Transition(IN_PROGRESS, serving, "Pending")
    return _progress(state, holding, serving, now)


def _progress(state: Standing, holding: Sequence[ComponentStanding], serving: str, now: float) -> Transition:
    is_split = any(has_split_traffic(state, component) for component in holding)
    behind = [component for component in holding if not component.rolled_out]
    target = _furthest_behind(_target(state, component) for component in holding)
    if not behind and holding and not (state.updates or is_split):
        return Transition(UP_TO_DATE, target, target, cleared=True)
    # What served well and is asked for still is one revision, whose state is one.
    is_serving_target = bool(recorded(state.service).get(GOOD)) and not state.updates and bool(behind)
    if state.updates:
        behind = [component for component in state.states.values() if not component.rolled_out]
    for component in behind:
        trouble = component.trouble
        if trouble is not None and (trouble.final or trouble.state == FAILED or _has_failed_delivery(state, trouble)):
            failure = _pod_failure(state, component, trouble, served=is_serving_target)
            return Transition(
                BLOCKED, FAILED if is_serving_target and not component.ready else serving, FAILED, failure
            )
    if behind and not is_serving_target and (late := _overdue(state, behind[0], now)) is not None:
        return Transition(BLOCKED, serving, FAILED, late)
    waiting = next((c for c in behind if c.trouble is not None and c.trouble.reason == NO_MODEL), None)
    wait = _pod_failure(state, waiting, waiting.trouble) if waiting is not None and waiting.trouble else None
    return Transition(IN_PROGRESS, target if is_serving_target and serving == "Pending" else serving, target, wait)


def _overdue(state: Standing, component: ComponentStanding, now: float) -> LoadFailure | None:
    limit = deadline(state.service)
    if state.aim is None or state.aim.since is None or now < state.aim.since + limit:
        return None
    failure = LoadFailure("RuntimeUnhealthy", component.message, component.kind)
    if component.trouble is not None:
        failure = _pod_failure(state, component, component.trouble)
    return failure._replace(message=f"{failure.message}; not ready within {limit:g} s")


def _serving(state: Standing, holding: Sequence[ComponentStanding]) -> str:
    """Return the state of the model that serves: of the revision of before, during an update."""
    old = predictor_state(state)
    if old is not None and old.ready:
        return "Standby" if old.zero else "Loaded"
    # While nothing is accepted, what is not ready is the target's, not that of what serves.
    accepted = bool(state.returned) or (state.problem is not None and bool(recorded(state.service).get(GOOD)))
    return _furthest_behind(_ready_state(component, accepted) for component in holding)


def _ready_state(component: ComponentStanding, accepted: bool) -> str:
    if component.ready:
        return "Standby" if component.zero else "Loaded"
    return component.trouble.state if accepted and component.trouble is not None else "Pending"


def _target(state: Standing, component: ComponentStanding) -> str:
    if component.rolled_out:
        return "Standby" if component.zero or _has_empty_canary(state, component.kind) else "Loaded"
    return component.trouble.state if component.trouble is not None else "Pending"


def _has_empty_canary(state: Standing, kind: str) -> bool:
    children = state.result.children if isinstance(state.result, Rendered) else ()
    return any(
        child.component == kind and is_canary(child.body) and not child.body["spec"]["replicas"] for child in children
    )


def _furthest_behind(states: Iterable[str]) -> str:
    return min(states, key=_ORDER.index, default="Pending")


def _copies(components: Iterable[ComponentStanding], unready: bool = False) -> tuple[int, int]:
    """Loaded and failed: a group of pods is one copy. ``unready``: every copy counts as failed that is not ready."""
    loaded = failed = 0
    for component in components:
        groups: dict[str, list[ServicePod]] = {}
        for pod in component.pods:
            groups.setdefault(pod.group or pod.key.name, []).append(pod)
        for pods in groups.values():
            loaded += sum(pod.ready for pod in pods) >= (component.size if pods[0].group else 1)
            troubles = [pod.trouble for pod in pods if pod.trouble is not None]
            failed += any(unready or trouble.final or trouble.state == FAILED for trouble in troubles)
    return loaded, failed


def _refusal_reason(problem: Refused) -> str:
    if problem.reason not in _REASONS and problem.field.startswith("spec.router"):
        return "InvalidRouterSpec"
    return _REASONS.get(problem.reason, "InvalidPredictorSpec")


def _given_up(state: Standing) -> LoadFailure:
    component = state.failed
    if component is not None and component.trouble is not None:
        failure = _pod_failure(state, component, component.trouble)
        return failure._replace(message=state.returned)
    stored = mapping(mapping(state.service.status.get("modelStatus")).get("lastFailureInfo"))
    if stored.get("message") == cut(state.returned, LONGEST_MESSAGE):
        return LoadFailure(
            str(stored.get("reason") or ""),
            state.returned,
            str(stored.get("location") or ""),
            code if isinstance(code := stored.get("exitCode"), int) else None,
            str(stored.get("time") or ""),
        )
    is_worse = WORSE in state.returned
    return LoadFailure("RuntimeUnhealthy" if is_worse or component is not None else "ModelLoadFailed", state.returned)


def _pod_failure(
    state: Standing, component: ComponentStanding, trouble: Trouble, *, served: bool = False
) -> LoadFailure:
    """Return the failure of a component's pods; ``served``: they had loaded the model before."""
    pod = next((pod for pod in component.pods if pod.trouble == trouble), None)
    if pod is None:  # its trouble was explained by what the pod cannot know
        pod = next((pod for pod in component.pods if pod.trouble is not None), None)
    location = pod.key.name if pod is not None else component.kind
    reason = _pod_reason(state, component, trouble, served)
    return LoadFailure(reason, trouble.message, location, trouble.exit_code, trouble.time)


def _pod_reason(state: Standing, component: ComponentStanding, trouble: Trouble, served: bool) -> str:
    if trouble.reason == NO_MODEL:
        model, weights = state.resolved.model, state.resolved.weights
        is_weight = model is not None and model.state == "Ready" and any(one.state != "Ready" for one in weights)
        return "FineTunedWeightsNotFound" if is_weight else "BaseModelNotReady"
    loads = trouble.reason in (EXITED, OUT_OF_MEMORY) or trouble.state == "Loading"
    return "ModelLoadFailed" if loads and not served and component.kind != names.ROUTER else "RuntimeUnhealthy"


def _has_failed_delivery(state: Standing, trouble: Trouble) -> bool:
    models = [model for model in (state.resolved.model, *state.resolved.weights) if model is not None]
    return trouble.reason == NO_MODEL and any(model.state == "Failed" for model in models)


def _failure_info(state: Standing, failure: LoadFailure, stored: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the failure as it is published. What is reported again keeps its time."""
    service = state.service
    revision = state.aim.revision.name if state.aim is not None else ""
    info: dict[str, Any] = {
        "reason": failure.reason,
        "message": cut(failure.message, LONGEST_MESSAGE),
        "location": cut(failure.location, 253) or None,
        "exitCode": failure.exit_code,
        "modelRevisionName": revision or f"{service.key.name}-generation-{service.subject.generation}",
    }
    if state.returned and stored.get("message") == info["message"] and stored.get("modelRevisionName"):
        info["modelRevisionName"] = stored["modelRevisionName"]
    same = all(stored.get(name) == info[name] for name in ("reason", "location", "modelRevisionName"))
    return {**info, "time": failure.time or (stored.get("time") if same else None) or timestamp(now)}
