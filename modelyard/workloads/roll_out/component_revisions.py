"""``status.components`` of an InferenceService: revisions, traffic and addresses of each component. Pure.

Revisions are named by who makes them: a Deployment's by the number its controller gives it, a Knative Service's by
Knative, a canary's by its Deployment. Groups of pods have no controller that names them, so that theirs are named by a
hash of what makes the pods. An update that is rolled out but not accepted yet is no rolled-out revision, because what
served before may come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from modelyard.objects import MULTI_NODE, RAY, SERVERLESS, mapping
from modelyard.workloads.rendering import Body, Rendered, names, weights
from modelyard.workloads.roll_out.canaries import is_canary, shares
from modelyard.workloads.roll_out.changes import identity
from modelyard.workloads.roll_out.resolution import recorded
from modelyard.workloads.roll_out.returning import GOOD, pods_hash
from modelyard.workloads.roll_out.rollout_state import Standing
from modelyard.workloads.roll_out.standing import ComponentStanding, is_knative, makes_pods

_DIGITS: Final = 10


def component_statuses(state: Standing) -> dict[str, Any]:
    """Return the status of each component by its kind; ``None`` removes that of one that does not exist any more."""
    stored = mapping(state.service.status.get("components"))
    fields: dict[str, Any] = dict.fromkeys(stored)
    if isinstance(state.result, Rendered) and state.result.virtual:
        return {**fields, "predictor": _addresses(state.result.url, state.result.address)}
    ratio = weights(state.result.children) if isinstance(state.result, Rendered) else {}
    for kind, component in state.states.items():
        workloads = component_workloads(state, kind)
        fields[kind] = {
            **_revision_fields(state, component, workloads, mapping(stored.get(kind))),
            **_address_fields(state, component, workloads),
            "traffic": shares(workloads, ratio),
        }
    return fields


def component_workloads(state: Standing, kind: str) -> list[Body]:
    """Return the service's own objects that make the pods of a component."""
    uid = state.service.subject.uid
    children = (child for child in state.there.values() if child.component == kind and child.owner == uid)
    return [child.body for child in children if makes_pods(child.body)]


def knative_service(component: ComponentStanding, workloads: Iterable[Body]) -> Body | None:
    """Return the Knative Service of a component; that of an earlier deployment mode does not count."""
    return next(filter(is_knative, workloads), None) if component.mode in ("", SERVERLESS) else None


def has_split_traffic(state: Standing, component: ComponentStanding) -> bool:
    """Return whether Knative shares a component's requests between revisions."""
    knative = knative_service(component, component_workloads(state, component.kind)) or {}
    targets = (knative.get("status") or {}).get("traffic") or ()
    return bool(targets) and not _whole(targets)


class _Revisions(NamedTuple):
    """Names of the newest revision, of the newest that is ready and of the one with all requests; empty: unknown."""

    created: str = ""
    ready: str = ""
    rolled_out: str = ""


def _revision_fields(
    state: Standing, component: ComponentStanding, workloads: Sequence[Body], stored: Mapping[str, Any]
) -> dict[str, str]:
    """Return the revisions that are known; a merge patch keeps the stored names of the others."""
    revisions = _revisions(state, component, workloads)
    fields = {"latestCreatedRevision": revisions.created, "latestReadyRevision": revisions.ready}
    if revisions.rolled_out and (state.is_accepted or state.returned):
        fields["latestRolledoutRevision"] = revisions.rolled_out
        last = stored.get("latestRolledoutRevision")
        if isinstance(last, str) and last != revisions.rolled_out and _is_replaced(state, component, workloads):
            fields["previousRolledoutRevision"] = last
    return {name: value for name, value in fields.items() if value}


def _is_replaced(state: Standing, component: ComponentStanding, workloads: Sequence[Body]) -> bool:
    """A Deployment numbers its pods again when it goes back to them: then only the number is another."""
    if knative_service(component, workloads) is not None:
        return not state.returned
    return recorded(state.service).get(GOOD, "") not in ("", state.good)


def _revisions(state: Standing, component: ComponentStanding, workloads: Sequence[Body]) -> _Revisions:
    if (knative := knative_service(component, workloads)) is not None:
        status = knative.get("status") or {}
        created, ready = (str(status.get(f"latest{word}RevisionName") or "") for word in ("Created", "Ready"))
        return _Revisions(created, ready, _whole(status.get("traffic") or ()))
    canary = next(filter(is_canary, workloads), None)
    if canary is not None and state.canary:
        name = str(canary["metadata"]["name"])
        return _Revisions(name, name if (canary.get("status") or {}).get("availableReplicas") else "")
    current = component.revision or _group_revision(state, component)
    whole = current if component.rolled_out else ""
    return _Revisions(current, whole, whole)


def _whole(targets: Iterable[Mapping[str, Any]]) -> str:
    return next((str(target.get("revisionName") or "") for target in targets if target.get("percent") == 100), "")


def _group_revision(state: Standing, component: ComponentStanding) -> str:
    """Return the name of the revision of groups or Ray clusters, once the first object of it is written."""
    if not isinstance(state.result, Rendered) or state.held or component.mode not in (MULTI_NODE, RAY):
        return ""
    children = [
        child for child in state.result.children if child.component == component.kind and makes_pods(child.body)
    ]
    pending = {identity(child.body) for child in state.changes.apply}
    if all(identity(child.body) in pending or identity(child.body) not in state.there for child in children):
        return ""
    return f"{names.component(state.service.key.name, component.kind)}-{pods_hash(children)[:_DIGITS]}"


def _address_fields(state: Standing, component: ComponentStanding, workloads: Sequence[Body]) -> dict[str, Any]:
    """Return where a component answers; of one that is not ready nothing, of what is not rendered as it is stored."""
    if not component.ready:
        return _addresses("", "")
    if (knative := knative_service(component, workloads)) is not None:
        status = knative.get("status") or {}
        url = str(status.get("url") or "")
        return _addresses(url, str((status.get("address") or {}).get("url") or url))
    if not isinstance(state.result, Rendered) or state.held:
        return {}
    own = names.component(state.service.key.name, component.kind)
    for child in state.result.children:
        ports = (child.body.get("spec") or {}).get("ports")
        if (child.kind, child.name, child.component) == ("Service", own, component.kind) and ports:
            url = f"http://{own}.{child.body['metadata']['namespace']}.svc.cluster.local:{ports[0]['port']}"
            return _addresses(url, url)
    return _addresses("", "")


def _addresses(url: str, inside: str) -> dict[str, Any]:
    return {"url": url or None, "restURL": url or None, "address": {"url": inside} if inside else None}
