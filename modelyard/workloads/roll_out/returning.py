"""Rollback of an update that does not become ready to the revision that served before. Pure.

A ControllerRevision in the service's namespace keeps what the revision was rendered from (``recorded_inputs``), and the
service's status names the revision that served last. Whoever may write ControllerRevisions can forge both. So nothing
that is kept is ever applied: a rollback renders the inputs again, through the checks that every service passes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from modelyard.objects import CONTROLLER_REVISIONS, LONGEST_LABEL, Key, controller_of, epoch, key_of
from modelyard.reconcile.plans import LARGEST, Child, Want, World
from modelyard.workloads.rendering import Body, ChildObject, Rendered, canonical, names
from modelyard.workloads.roll_out.changes import Object
from modelyard.workloads.roll_out.resolution import GENERATION, Resolved, recorded
from modelyard.workloads.roll_out.standing import ComponentStanding, makes_pods
from modelyard.workloads.roll_out.world import OwnLabels, StoredService

PODS, SINCE = "modelyard.dev/pods", "modelyard.dev/since"
"""Annotations of a status: which pods are rolled out, as a hash of what makes them, and since when."""
GOOD, RETURNED = "modelyard.dev/good", "modelyard.dev/returned"
"""Annotations of a status: the ControllerRevision of what served last, and why what is asked for was given up."""
DEADLINE = "modelyard.dev/progress-deadline-seconds"
"""Annotation of a service: how long an update may take to become ready."""
USUAL, SHORTEST, LONGEST = 1800.0, 10.0, 86_400.0
GRACE = 60.0
"""Seconds before an update is given up whose pods do not mend themselves; less where the deadline is shorter."""
UNOBSERVED = 10.0
"""Seconds after which a LeaderWorkerSet is taken at its word, which does not say what it has observed."""
WORSE: Final = "served worse"
"""Words in ``RETURNED`` of an update that became ready, and was given up for what it did then."""
MAX_TEXT: Final = LARGEST // 2
"""Characters of what is kept of a revision. A longer one is not kept, and a forged one not read."""
MAX_DELETED: Final = 20
"""Superseded revisions that one plan deletes: a tenant can forge hundreds of them."""
_DIGITS: Final = 16
_DATA: Final = "inputs"
_EARLIER_DATA: Final = "rendered"
"""Key in the revisions of earlier releases, which kept whole objects. They are deleted, and not read."""


class Revision(NamedTuple):
    """The inputs of a rendering as they are kept. ``name`` ends with the hash of ``text``.

    ``pods`` is the hash of what makes its pods, whatever the number of them. Empty ``text``: they cannot be kept.
    """

    name: str
    text: str
    pods: str

    @classmethod
    def of(cls, service: StoredService, inputs: Mapping[str, Any], result: Rendered) -> Revision:
        text = canonical(inputs) if inputs else ""
        name = f"{names.fitting(service.key.name, LONGEST_LABEL - _DIGITS - 1)}-{_hash(text)}"
        return cls(name, text if len(text) <= MAX_TEXT else "", pods_hash(result.children))

    def manifest(self, service: StoredService, labels: OwnLabels) -> Body:
        about = {"name": self.name, "namespace": service.key.namespace, "labels": {labels.service: service.label}}
        kind, data = CONTROLLER_REVISIONS, {_DATA: self.text}
        identity = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": about}
        return {**identity, "data": data, "revision": service.subject.generation}


class StoredRevision(NamedTuple):
    """A revision in the cluster; ``owner`` is the service's uid. Without ``text`` there is nothing to go back to."""

    key: Key
    uid: str
    owner: str
    text: str
    deleting: bool = False
    """True while it is being deleted; a finalizer may keep it for ever."""

    def inputs(self) -> dict[str, Any]:
        try:
            inputs = json.loads(self.text)
        except (ValueError, RecursionError):
            return {}
        return inputs if isinstance(inputs, dict) else {}


def pods_hash(children: Iterable[ChildObject]) -> str:
    """Return a hash of what makes the pods of these children, whatever the number of them."""
    return _hash(canonical({"pods": list(filter(None, map(_pods, children)))}))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:_DIGITS]


def _pods(child: ChildObject) -> Body | None:
    if not makes_pods(child.body):
        return None
    spec = {name: value for name, value in child.body["spec"].items() if name != "replicas"}
    return {"kind": child.kind, "name": child.name, "spec": spec}


def _stored(obj: Object) -> StoredRevision | None:
    owner, key, data = controller_of(obj), key_of(obj), obj.get("data")
    if owner is None or not isinstance(data, Mapping) or not {_DATA, _EARLIER_DATA} & data.keys():
        return None  # a StatefulSet's
    text = data.get(_DATA)
    is_intact = isinstance(text, str) and len(text) <= MAX_TEXT and key.name.endswith(f"-{_hash(text)}")
    metadata = obj["metadata"]
    deleting = bool(metadata.get("deletionTimestamp"))
    return StoredRevision(key, metadata["uid"], owner.uid, str(text) if is_intact else "", deleting)


def revisions_wanted(labels: OwnLabels) -> Want[StoredRevision]:
    """What is kept of services."""
    owner = {"owner": lambda one: (one.owner,)}
    return Want(CONTROLLER_REVISIONS, _stored, label_selector=labels.service, indexes=owner, use="services")


class Aim(NamedTuple):
    """What is rolled out: how it is recorded (``marks``), and since when (epoch seconds; ``None``: from now on)."""

    revision: Revision
    marks: Mapping[str, str | None]
    since: float | None

    @classmethod
    def of(cls, service: StoredService, found: Resolved, inputs: Mapping[str, Any], result: Rendered) -> Aim:
        revision, before = Revision.of(service, inputs, result), recorded(service)
        marks = {**found.inputs, GENERATION: str(service.subject.generation), PODS: revision.pods}
        known = SINCE in before and all(before.get(name) == value for name, value in marks.items())
        return cls(revision, marks, epoch(before[SINCE]) if known else None)

    def returned(self, service: StoredService) -> bool:
        return self.since is not None and RETURNED in recorded(service)


def deadline(service: StoredService) -> float:
    """Seconds that an update of the service may take."""
    text = service.annotations.get(DEADLINE, "")
    return min(max(float(text), SHORTEST), LONGEST) if text.isascii() and text.isdigit() and len(text) < 7 else USUAL


def given_up(
    service: StoredService, aim: Aim, states: Iterable[ComponentStanding], now: float
) -> ComponentStanding | None:
    """The component for whose sake an update is given up now."""
    behind = [one for one in states if one.exists and not one.rolled_out]
    if aim.since is None or not behind:
        return None
    stuck = next((one for one in behind if one.trouble is not None and one.trouble.final), None)
    if stuck is not None and now >= aim.since + min(GRACE, deadline(service)):
        return stuck
    return behind[0] if now >= aim.since + deadline(service) else None


def is_done(aim: Aim, result: Rendered, states: Collection[ComponentStanding], now: float) -> bool:
    """Whether all is rolled out that is asked for."""
    sets = any(one.kind == "LeaderWorkerSet" for one in result.children)
    observed = not sets or (aim.since is not None and now >= aim.since + UNOBSERVED)
    return bool(states) and all(one.rolled_out for one in states) and observed


def look_again(service: StoredService, aim: Aim, now: float) -> float | None:
    """When to look whether an update is rolled out, or is to be given up."""
    if aim.since is None or aim.returned(service):
        return None
    moments = sorted(aim.since + seconds for seconds in (UNOBSERVED, min(GRACE, deadline(service)), deadline(service)))
    return next((one for one in moments if one > now), None)


def last_good(service: StoredService, world: World) -> StoredRevision | None:
    """Return the revision that the status names as the last that served, if the service owns it and it is intact."""
    name = recorded(service).get(GOOD, "")
    stored: StoredRevision | None = world[CONTROLLER_REVISIONS].get(Key(service.key.namespace, name))
    return stored if stored is not None and stored.text and stored.owner == service.subject.uid else None


def kept(
    aim: Aim | None, good: str, labels: OwnLabels, service: StoredService, world: World
) -> tuple[tuple[Body, ...], tuple[Child, ...]]:
    """What to make so that what is rolled out is kept from its beginning, and which others to take away: all but it and
    the ``good`` one. Without an aim all stay as they are."""
    if aim is None:
        return (), ()
    new = None if aim.returned(service) else aim.revision
    found = world[CONTROLLER_REVISIONS].by("owner", service.subject.uid)
    there = [one for one in found if one.key.namespace == service.key.namespace]
    stay = {good, *([new.name] if new is not None else ())}
    superseded = [one for one in there if one.key.name not in stay and not one.deleting]
    others = tuple(Child(CONTROLLER_REVISIONS, one.key, one.uid) for one in superseded[:MAX_DELETED])
    if new is None or not new.text or any(one.key.name == new.name and one.text for one in there):
        return (), others
    return (new.manifest(service, labels),), others
