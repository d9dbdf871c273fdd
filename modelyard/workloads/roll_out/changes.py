"""What differs between the children an object should have and those it has: create, update, leave alone, remove. Pure.

A child that is there and says what it should is never written. One that somebody else made is never touched.

Source: Kthena Model controller reference, "Create-or-update rule" and "Cleanup", with their repairs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from modelyard.objects import controller_of, in_order, shown
from modelyard.reconcile.plans import WHOLE_MAPS
from modelyard.resources import Quantity
from modelyard.workloads.rendering import ChildObject, canonical

APPLIED: Final = "modelyard.dev/applied"
"""Annotation: hash of what was last asked of a child. It shows what is asked no more; additional fields do not."""
_SETS: Final = frozenset(("loraAdapters",))
"""Lists without an order (``x-kubernetes-list-type: set``): the server appends what is new to what it has."""
Object = Mapping[str, Any]
Identity = tuple[str, str, str]
"""API group, kind and name."""


@dataclass(frozen=True, slots=True)
class Changes:
    """``apply`` in the order in which it was rendered; ``delete`` are ours, rendered no more.

    ``leaving`` are on their way out, and are made anew when they are gone; ``conflicts`` say what is in the way.
    """

    apply: tuple[ChildObject, ...] = ()
    delete: tuple[Object, ...] = ()
    leaving: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()


def identity(body: Object) -> Identity:
    """Which object it is in its namespace, whatever version it is in."""
    version = str(body.get("apiVersion") or "")
    return version.rpartition("/")[0], str(body.get("kind") or ""), str(body["metadata"]["name"])


def changes(uid: str, children: Sequence[ChildObject], there: Iterable[Object]) -> Changes:
    """Return the writes for owner ``uid``; ``there``: at least the objects with its children's names and all it has."""
    found = {identity(one): one for one in there}
    apply, leaving, conflicts = [], [], []
    for child in children:
        one = found.pop(identity(child.body), None)
        if one is None:
            apply.append(child)
            continue
        owner, called = controller_of(one), f"{child.kind} {child.name}"
        if owner is None:
            conflicts.append(f"{called} is there already and belongs to nobody - rename it or delete it")
        elif owner.uid != uid:
            conflicts.append(f"{called} belongs to {owner.kind} {owner.name} - rename one of the two")
        elif one["metadata"].get("deletionTimestamp"):
            leaving.append(called)
        elif not says(one, child.body) or _mark(one) not in ("", asked(child.body)):
            apply.append(child)
    ours = [one for one in found.values() if (owner := controller_of(one)) is not None and owner.uid == uid]
    gone = tuple(one for one in ours if not one["metadata"].get("deletionTimestamp"))
    return Changes(tuple(apply), gone, tuple(leaving), tuple(conflicts))


def asked(wanted: Object) -> str:
    """What is asked for, as a hash; the replicas may be others'."""
    spec = wanted.get("spec")
    if isinstance(spec, Mapping):
        wanted = {**wanted, "spec": {name: value for name, value in spec.items() if name != "replicas"}}
    return hashlib.sha256(canonical(wanted).encode()).hexdigest()[:16]


def marked(body: Object, wanted: Object) -> Object:
    """A child as it is written, with what is asked for of it."""
    metadata = body["metadata"]
    return {
        **body,
        "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), APPLIED: asked(wanted)}},
    }


def _mark(there: Object) -> str:
    return str((there["metadata"].get("annotations") or {}).get(APPLIED) or "")


def says(there: Object, wanted: Object) -> bool:
    """Whether an object has all that is wanted of it, however the server writes it, and whatever else it has."""
    parts = {name: value for name, value in wanted.items() if name not in ("apiVersion", "kind", "metadata")}
    metadata = {name: wanted["metadata"].get(name) or {} for name in ("labels", "annotations")}
    return _covers(there, parts) and _covers(there["metadata"], metadata)


def differences(there: Object | None, wanted: Object) -> list[str]:
    """What would be written over what is there, a line for each field; of an object that is not there, nothing."""
    if there is None:
        return []
    found = []
    for name in ("labels", "annotations"):
        given = {key: value for key, value in (wanted["metadata"].get(name) or {}).items() if key != APPLIED}
        found += _different(there["metadata"].get(name) or {}, given, f"metadata.{name}")
    for name in wanted.keys() - {"apiVersion", "kind", "metadata"}:
        found += _different(there.get(name), wanted[name], name)
    if not found and _mark(wanted) != _mark(there) != "":
        return ["what is not asked for any more goes"]
    return sorted(found)


def _different(there: Any, wanted: Any, path: str, whole: bool = False) -> list[str]:
    if _covers(there, wanted, whole):
        return []
    if isinstance(there, Mapping) and isinstance(wanted, Mapping):
        found = []
        for name, value in wanted.items():
            present, expected = _sorted(name, there.get(name)), _sorted(name, value)
            found += _different(present, expected, f"{path}.{name}", name in WHOLE_MAPS)
        return found or [f"{path}: {shown(there)} → {shown(wanted)}"]
    if isinstance(there, list) and isinstance(wanted, list) and len(there) == len(wanted):
        items = enumerate(zip(in_order(there, wanted), wanted, strict=True))
        return [text for at, (one, other) in items for text in _different(one, other, f"{path}[{at}]")]
    return [f"{path}: {shown(there)} → {shown(wanted)}"]


def _covers(there: Any, wanted: Any, whole: bool = False) -> bool:
    if isinstance(wanted, str) and there == wanted:  # most of what there is
        return True
    if isinstance(wanted, dict | Mapping):
        if not isinstance(there, Mapping):
            return not wanted and there is None
        if whole and there.keys() - wanted.keys():
            return False
        return all(
            _covers(_sorted(name, there.get(name)), _sorted(name, value), name in WHOLE_MAPS)
            for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        given = there or []
        same = isinstance(given, list) and len(given) == len(wanted)
        return same and all(map(_covers, in_order(given, wanted), wanted))
    if there == wanted and isinstance(there, bool) == isinstance(wanted, bool):
        return True
    if there is None:
        return wanted in ("", 0)
    return _same_amount(there, wanted)


def _sorted(name: str, value: Any) -> Any:
    return sorted(value, key=str) if name in _SETS and isinstance(value, list) else value


def _same_amount(there: Any, wanted: Any) -> bool:
    texts = [str(one) for one in (there, wanted) if isinstance(one, str | int) and not isinstance(one, bool)]
    if len(texts) != 2 or not all(text[:1].isdigit() and len(text) <= 32 for text in texts):
        return False
    try:
        return Quantity(texts[0]) == Quantity(texts[1])
    except ValueError:
        return False
