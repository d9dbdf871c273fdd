"""Small values passed between the cluster layer and its callers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ObjectList:
    """One consistent list. A watch from ``resource_version`` sees everything after it."""

    items: list[Object]
    resource_version: str

    def __iter__(self) -> Iterator[Object]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class ScaleSubresource:
    """The scale subresource: wanted and observed replicas, and the pods' label selector (empty if not given)."""

    replicas: int
    status_replicas: int
    selector: str
    resource_version: str


class WatchEvent(NamedTuple):
    """One event of a watch. ``kind`` is ADDED, MODIFIED, DELETED or SYNC.

    SYNC follows every complete list: the events before it make up the whole collection at
    ``object["metadata"]["resourceVersion"]``. DELETED carries the last state, or, where the end was not told but found
    out by a list, no more than names, uid and version.
    """

    kind: str
    object: Object


UNREAD = "modelyard.dev/unread"
"""Of an object that is too large or too deeply nested to be carried on: why, in place of all but its identity."""


def outline(obj: Object) -> Object:
    """The object's identity: kind, namespace, name, uid and resource version."""
    meta = metadata(obj)
    kept = {name: meta[name] for name in ("namespace", "name", "uid", "resourceVersion") if name in meta}
    return {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"), "metadata": kept}


def metadata(obj: Object) -> Object:
    """The object's metadata, empty when it has none."""
    found: Object = obj.get("metadata") or {}
    return found


def resource_version(obj: Object) -> str:
    """The object's resource version, ``""`` when it has none."""
    return str(metadata(obj).get("resourceVersion") or "")
