"""An update that does not become ready goes back by itself to the revision that was. Pure.

Kubernetes keeps that revision: the ReplicaSet of a Deployment. Which one was good is recorded while it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from modelyard.objects import Key
from modelyard.objects.kinds import REPLICA_SETS
from modelyard.objects.parse import controller_of, epoch, key_of
from modelyard.reconcile.plan import Want, World
from modelyard.workloads import names
from modelyard.workloads.changes import Object
from modelyard.workloads.components import texts
from modelyard.workloads.resolution import GENERATION, Resolved, recorded
from modelyard.workloads.standing import ComponentStanding
from modelyard.workloads.values import Body, Rendered
from modelyard.workloads.world import StoredChild, StoredService

GOOD, RETURNED, SINCE = "modelyard.dev/good", "modelyard.dev/returned", "modelyard.dev/since"
"""Annotations of a status: the revisions that served last (COMPONENT=HASH), the generation that was given up, and since
when this generation is rolled out."""
DEADLINE = "modelyard.dev/progress-deadline-seconds"
"""Annotation of a service: how long an update may take to become ready."""
USUAL, SHORTEST, LONGEST = 1800.0, 10.0, 86_400.0
GRACE = 60.0
"""Seconds before an update is given up whose pods do not mend themselves; less where the deadline is shorter."""
_HASH: Final = "pod-template-hash"
_REVISION: Final = "deployment.kubernetes.io/revision"


class StoredRevision(NamedTuple):
    """What a Deployment ran, or runs: ``owner`` is the Deployment's uid, ``hash`` what its pods are told apart by."""

    key: Key
    owner: str
    hash: str
    revision: str
    template: Body


def _revision(obj: Object) -> StoredRevision:
    metadata, owner = obj["metadata"], controller_of(obj)
    template = dict((obj.get("spec") or {}).get("template") or {})
    about = dict(template.get("metadata") or {})
    about["labels"] = {name: value for name, value in texts(about.get("labels")).items() if name != _HASH}
    return StoredRevision(
        key_of(obj),
        owner.uid if owner is not None else "",
        texts(metadata.get("labels")).get(_HASH, ""),
        texts(metadata.get("annotations")).get(_REVISION, ""),
        {**template, "metadata": {name: value for name, value in about.items() if value}},
    )


def _owner(one: StoredRevision) -> tuple[str, ...]:
    return (one.owner,) if one.owner else ()


REVISIONS_WANTED = Want(
    REPLICA_SETS, _revision, label_selector=names.SERVICE, indexes={"owner": _owner}, use="services"
)


def deadline(service: StoredService) -> float:
    """Seconds that an update of the service may take."""
    text = service.annotations.get(DEADLINE, "")
    return min(max(float(text), SHORTEST), LONGEST) if text.isascii() and text.isdigit() and len(text) < 7 else USUAL


def begun(service: StoredService, found: Resolved) -> float | None:
    """Since when this is rolled out (epoch seconds); ``None``: from now on."""
    before, asked = recorded(service), {**found.inputs, GENERATION: str(service.subject.generation)}
    return epoch(before.get(SINCE)) if all(before.get(name) == value for name, value in asked.items()) else None


def returned(service: StoredService, found: Resolved) -> bool:
    """Whether this was given up."""
    return begun(service, found) is not None and RETURNED in recorded(service)


def given_up(
    service: StoredService, found: Resolved, states: Iterable[ComponentStanding], now: float
) -> ComponentStanding | None:
    """The component for whose sake an update is given up now."""
    since = begun(service, found)
    behind = [one for one in states if one.exists and not one.rolled_out]
    if since is None or not behind:
        return None
    stuck = next((one for one in behind if one.trouble is not None and one.trouble.final), None)
    if stuck is not None and now >= since + min(GRACE, deadline(service)):
        return stuck
    return behind[0] if now >= since + deadline(service) else None


def look_again(
    service: StoredService, found: Resolved, states: Iterable[ComponentStanding], now: float
) -> float | None:
    """When to look whether an update is to be given up."""
    since = begun(service, found)
    if since is None or returned(service, found) or all(one.rolled_out for one in states):
        return None
    moments = (since + min(GRACE, deadline(service)), since + deadline(service))
    return next((one for one in moments if one > now), None)


def good_revisions(
    service: StoredService, states: Mapping[str, ComponentStanding], owned: Iterable[StoredChild], world: World
) -> str:
    """What is to be recorded as good: of each component the revision that is rolled out, else what was before."""
    found = _recorded(service)
    for child in owned:
        state = states.get(child.component)
        if child.kind.kind == "Deployment" and state is not None and state.rolled_out:
            current = texts(child.body["metadata"].get("annotations")).get(_REVISION)
            revisions = world[REPLICA_SETS].by("owner", child.body["metadata"]["uid"])
            found.update((child.component, one.hash) for one in revisions if one.revision == current and one.hash)
    return ",".join(f"{kind}={value}" for kind, value in sorted(found.items()) if kind in states)


def as_it_was(service: StoredService, result: Rendered, owned: Iterable[StoredChild], world: World) -> Rendered | None:
    """The rendering with the pods of the good revisions; ``None`` where one of them is not there any more."""
    good = _recorded(service)
    templates: dict[str, Body] = {}
    for child in owned:
        if child.kind.kind == "Deployment" and child.component in result.modes:
            revisions = world[REPLICA_SETS].by("owner", child.body["metadata"]["uid"])
            wanted = good.get(child.component)
            templates.update((child.key.name, one.template) for one in revisions if one.hash == wanted)
    children = []
    for one in result.children:
        if one.kind == "Deployment":
            if one.name not in templates:
                return None
            spec: dict[str, Any] = {**one.body["spec"], "template": templates[one.name]}
            one = replace(one, body={**one.body, "spec": spec})
        elif one.kind in ("StatefulSet", "LeaderWorkerSet", "RayCluster"):
            return None
        children.append(one)
    return replace(result, children=tuple(children)) if templates else None


def _recorded(service: StoredService) -> dict[str, str]:
    pairs = (text.partition("=") for text in recorded(service).get(GOOD, "").split(",")[:10])
    return {kind: value for kind, _, value in pairs if value}
