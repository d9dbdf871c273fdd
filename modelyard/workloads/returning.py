"""An update that does not become ready goes back by itself to what served before. Pure.

What served is kept whole, as it was rendered, in a ControllerRevision of the service: so pods of whatever kind come
back, with the ports, routes and scalers that they had. Which one it is, is recorded in the service's status.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from modelyard.objects import Key
from modelyard.objects.kinds import CONTROLLER_REVISIONS
from modelyard.objects.parse import controller_of, epoch, key_of
from modelyard.reconcile.plan import LARGEST, Child, Want, World
from modelyard.workloads import names
from modelyard.workloads.changes import Object
from modelyard.workloads.resolution import GENERATION, Resolved, recorded
from modelyard.workloads.standing import ComponentStanding, makes_pods
from modelyard.workloads.values import Body, ChildObject, Note, Rendered, canonical
from modelyard.workloads.world import OwnLabels, StoredService

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
_DIGITS: Final = 16
_DATA: Final = "rendered"


class Revision(NamedTuple):
    """A rendering as it is kept: ``name`` ends with the hash of ``text``, so that nothing else is brought back by it.

    ``pods`` is the hash of what makes its pods, whatever the number of them.
    """

    name: str
    text: str
    pods: str

    @classmethod
    def of(cls, service: StoredService, result: Rendered) -> Revision:
        """How a rendering is kept."""
        parts = {
            "children": [[one.body, one.component, one.after, one.seed] for one in result.children],
            "notes": [[one.reason, one.message, one.component] for one in result.notes],
            **{name: getattr(result, name) for name in ("modes", "entry", "url", "address")},
        }
        text = canonical(parts)
        name = f"{names.fitting(service.key.name, names.LONGEST - _DIGITS - 1)}-{_hash(text)}"
        return cls(name, text, pods_hash(result.children))

    def manifest(self, service: StoredService, labels: OwnLabels) -> Body:
        """The object that keeps it."""
        about = {"name": self.name, "namespace": service.key.namespace, "labels": {labels.service: service.label}}
        kind, data = CONTROLLER_REVISIONS, {_DATA: self.text}
        identity = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": about}
        return {**identity, "data": data, "revision": service.subject.generation}


class StoredRevision(NamedTuple):
    """One that is there; ``owner`` is the service's uid. Without ``text`` it is not what its name says."""

    key: Key
    uid: str
    owner: str
    text: str

    def rendered(self) -> Rendered:
        """What served."""
        parts: dict[str, Any] = json.loads(self.text)
        children = (ChildObject(body, kind, tuple(after), seed) for body, kind, after, seed in parts.pop("children"))
        return Rendered(tuple(children), notes=tuple(Note(*one) for one in parts.pop("notes")), **parts)


def pods_hash(children: Iterable[ChildObject]) -> str:
    """Return a hash of what makes the pods of these children, whatever the number of them."""
    return _hash(canonical({"pods": list(filter(None, map(_pods, children)))}))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _pods(child: ChildObject) -> Body | None:
    if not makes_pods(child.body):
        return None
    spec = {name: value for name, value in child.body["spec"].items() if name != "replicas"}
    return {"kind": child.kind, "name": child.name, "spec": spec}


def _stored(obj: Object) -> StoredRevision | None:
    owner, key, text = controller_of(obj), key_of(obj), (obj.get("data") or {}).get(_DATA)
    if owner is None or not isinstance(text, str):
        return None  # a StatefulSet's
    return StoredRevision(key, obj["metadata"]["uid"], owner.uid, text if key.name.endswith(f"-{_hash(text)}") else "")


def _owner(one: StoredRevision) -> tuple[str, ...]:
    return (one.owner,)


def revisions_wanted(labels: OwnLabels) -> Want[StoredRevision]:
    """What is kept of services."""
    return Want(CONTROLLER_REVISIONS, _stored, label_selector=labels.service, indexes={"owner": _owner}, use="services")


class Aim(NamedTuple):
    """What is rolled out: how it is recorded (``marks``), and since when (epoch seconds; ``None``: from now on)."""

    revision: Revision
    marks: Mapping[str, str | None]
    since: float | None

    @classmethod
    def of(cls, service: StoredService, found: Resolved, result: Rendered) -> Aim:
        """What a service asks for."""
        revision, before = Revision.of(service, result), recorded(service)
        marks = {**found.inputs, GENERATION: str(service.subject.generation), PODS: revision.pods}
        known = SINCE in before and all(before.get(name) == value for name, value in marks.items())
        return cls(revision, marks, epoch(before[SINCE]) if known else None)

    def returned(self, service: StoredService) -> bool:
        """Whether it was given up."""
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


def before(service: StoredService, aim: Aim, world: World) -> StoredRevision | None:
    """What served last, unless that has the pods that are asked for: then there is nothing to go back to."""
    found: StoredRevision | None = world[CONTROLLER_REVISIONS].get(
        Key(service.key.namespace, recorded(service).get(GOOD, ""))
    )
    if found is None or not found.text or found.owner != service.subject.uid:
        return None
    return None if Revision.of(service, found.rendered()).pods == aim.revision.pods else found


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
    others = tuple(Child(CONTROLLER_REVISIONS, one.key, one.uid) for one in there if one.key.name not in stay)
    if new is None or len(new.text) > LARGEST // 2 or any(one.key.name == new.name and one.text for one in there):
        return (), others
    return (new.manifest(service, labels),), others
