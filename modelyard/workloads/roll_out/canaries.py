"""A canary: a new revision in a share of a component's pods, beside what serves, until it is promoted or goes. Pure.

A second Deployment has the new pods; its replicas stand to those of the first as the percentage wants it. The Service
of the component leads to both, so that requests go by the number of pods; behind the router each has a ModelServer, and
the route has the percentage. Everything else stays as it is. What is promoted has the canary beside it until it is all
rolled out.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import Final

from modelyard.objects import LARGEST_INTEGER, RAW, SERVERLESS, counted
from modelyard.resources import InferenceService, ServingRuntime
from modelyard.workloads.rendering import (
    Behind,
    Body,
    ChildObject,
    Note,
    Rendered,
    StoredChild,
    components,
    effective,
    model_routes,
    names,
    plain,
)
from modelyard.workloads.roll_out.changes import Identity, Object, identity
from modelyard.workloads.roll_out.standing import makes_pods
from modelyard.workloads.roll_out.world import KNATIVE

CANARY: Final = "modelyard.dev/canary"
"""Label of a canary's Deployment and pods."""


def wished(service: InferenceService, runtime: ServingRuntime | None, modes: Mapping[str, str]) -> dict[str, int]:
    """By component, the percentage of requests that a new revision is to have; not those that it has all of."""
    found = {}
    for one in components(service, effective(service), runtime):
        percent = one.spec.get("canaryTrafficPercent")
        if isinstance(percent, int) and percent < 100 and modes.get(one.kind) != SERVERLESS:  # which has its own
            found[one.kind] = max(percent, 0)
    return found


def notes(wanted: Mapping[str, int], modes: Mapping[str, str]) -> tuple[Note, ...]:
    """Of components that cannot have one."""
    said = "{}: canaryTrafficPercent has no effect on groups of pods, whose updates are rolled out as a whole"
    return tuple(Note("CanaryNotServed", said.format(kind), kind) for kind in wanted if modes[kind] != RAW)


def is_canary(body: Object) -> bool:
    """Whether a Deployment is one."""
    return CANARY in (body["metadata"].get("labels") or {})


def share(replicas: int, percent: int) -> int:
    """Pods of a canary beside so many others."""
    return min(max(1, round(replicas * percent / (100 - percent))), LARGEST_INTEGER) if percent and replicas else 0


def beside(
    new: Rendered, old: Rendered, wanted: Mapping[str, int], there: Mapping[Identity, StoredChild]
) -> Rendered | None:
    """What serves, with canaries of the components whose pods are new; of what is promoted, with the canaries that are
    still there. ``None`` where there are none."""
    before = {one.component: one for one in old.children if one.kind == "Deployment"}
    made = {}
    for child in new.children:
        kind = child.component
        if child.kind != "Deployment" or kind not in wanted or kind not in before or new.modes.get(kind) != RAW:
            continue
        first = before[kind]
        if first.name == child.name and first.body["spec"]["template"] != child.body["spec"]["template"]:
            live = there.get(identity(first.body))
            replicas = (live.body["spec"] if live is not None else first.body["spec"]).get("replicas", 1)
            made[kind] = ChildObject(_canary(child.body, share(replicas, wanted[kind])), kind)
    if not made:
        left = {one.component for one in there.values() if makes_pods(one.body) and is_canary(one.body)}
        return replace(new, children=tuple(_together(one, left) for one in new.children)) if left else None
    stays = [one for one in old.children if one.component in made or one.component not in new.modes]
    moves = [one for one in new.children if one.component in new.modes and one.component not in made]
    children = [one for one in (*stays, *moves) if one.kind not in model_routes.KINDS]
    behind, url = _behind(new, old, made, wanted)
    together = (
        one if one.kind == "ModelServer" else _together(one, made) for one in (*children, *made.values(), *behind)
    )
    return replace(
        old, children=tuple(together), modes=new.modes, notes=new.notes, url=url, rights=old.rights | new.rights
    )


def _behind(
    new: Rendered, old: Rendered, made: Mapping[str, ChildObject], wanted: Mapping[str, int]
) -> tuple[tuple[ChildObject, ...], str]:
    mine, other = Behind.of(old.children), Behind.of(new.children)
    if mine is None or other is None:
        return (), old.url if mine is None else new.url
    kind = mine.server.component
    canary = made.get(kind)
    return mine.beside(other, canary.body, wanted[kind]) if canary is not None else (*other,), old.url


def _together(child: ChildObject, kinds: Container[str]) -> ChildObject:
    """What leads to the pods of one of these components, leading to those of its canary as well."""
    if child.component not in kinds or child.kind not in ("Service", "ModelServer"):
        return child
    if child.kind == "ModelServer":
        return model_routes.selecting(child, {})
    mine = {name: child.body["metadata"]["labels"][name] for name in (names.SERVICE, names.COMPONENT)}
    return replace(child, body={**child.body, "spec": {**child.body["spec"], "selector": mine}})


def _canary(body: Body, replicas: int) -> Body:
    """Its pods are known as its own, so that what leads to those that serve leads to these only where that is meant."""
    metadata, spec = body["metadata"], body["spec"]
    name, pods = names.fitting(f"{metadata['name']}-canary"), spec["template"]
    mark = {names.APP: name, CANARY: "true"}
    return {
        **body,
        "metadata": {**metadata, "name": name, "labels": {**metadata["labels"], **mark}},
        "spec": {
            **spec,
            "replicas": replicas,
            "selector": {"matchLabels": mark},
            "template": {**pods, "metadata": {**pods["metadata"], "labels": {**pods["metadata"]["labels"], **mark}}},
        },
    }


def shares(workloads: Iterable[Body], weights: Mapping[str, int]) -> list[Body] | None:
    """Shares of a component's requests by revision, as Knative writes them; ``None``: one has all. A canary has its
    weight in the route if both have pods, else its part of the available pods."""
    found = list(workloads)
    for one in found:
        if str(one["apiVersion"]).startswith(f"{KNATIVE}/"):
            return plain((one.get("status") or {}).get("traffic")) or None
    if not any(map(is_canary, found)):
        return None
    pods = {one["metadata"]["name"]: (one.get("status") or {}).get("availableReplicas") or 0 for one in found}
    canary = next(one["metadata"]["name"] for one in found if is_canary(one))
    routed = weights.keys() == pods.keys() and all(pods.values())
    share = weights[canary] if routed else round(100 * pods[canary] / (sum(pods.values()) or 1))
    return [
        {"revisionName": name, "percent": share, "latestRevision": True}
        if name == canary
        else {"revisionName": name, "percent": 100 - share, "latestRevision": False, "tag": "prev"}
        for name in sorted(pods)
    ]


def told(result: Rendered, wanted: Mapping[str, int]) -> str:
    """What stands beside what, in words."""
    found = [one for one in result.children if is_canary(one.body)]
    said = [
        f"{one.component}: {counted(one.body['spec']['replicas'], 'pod')} of what was asked for last beside what"
        f" served before (canaryTrafficPercent {wanted[one.component]})"
        for one in found
    ]
    return "; ".join([*said, "100 or none rolls it out"]) if said else ""
