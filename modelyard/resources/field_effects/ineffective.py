"""Fields of an object that have no effect, and the warning that names them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from modelyard.objects import counted, cut, printable
from modelyard.resources import KINDS
from modelyard.resources.base import Resource
from modelyard.resources.field_effects.conditional import unused_fields
from modelyard.resources.field_effects.tables import Effect, FieldEffect, FieldNode, field_effects, field_tree

MOST_FIELDS: Final = 10
"""Fields that one warning names."""
_MOST_TEXT: Final = 2000
_LONGEST_NAME: Final = 64
_LONGEST_PATH: Final = 120


@dataclass(frozen=True, slots=True)
class Ineffective:
    """A field of an object that has no effect. ``path`` is its first place, ``count`` the number of its places."""

    path: str
    reason: str
    count: int = 1

    def __str__(self) -> str:
        places = f" and {counted(self.count - 1, 'more place')}" if self.count > 1 else ""
        return f"{self.path}{places}: {self.reason}"


def ineffective(kind: type[Resource], obj: Mapping[str, Any]) -> list[Ineffective]:
    """List an object's spec fields set without effect, unknown ones too, valid or not; its size bounds the work."""
    fields: dict[object, Ineffective] = {}
    tree, effects = field_tree(kind), field_effects(kind.kind)
    extra = [name for name in obj if name not in ("apiVersion", "kind", "metadata", "spec", "status")]
    assert tree.fields is not None
    if tree.fields.keys() >= {"spec"}:
        for place, node, name in _walk(obj.get("spec"), tree.fields["spec"], "spec", effects):
            key = node.path if name is None else (node.path, name[:_LONGEST_NAME])
            if (before := fields.get(key)) is not None:
                fields[key] = Ineffective(before.path, before.reason, before.count + 1)
            else:
                # A suggestion takes longer than all else, and only the first few are shown.
                fields[key] = Ineffective(place, _reason(node, name, effects, suggest=len(fields) < MOST_FIELDS))
    for path, reason in unused_fields(kind.kind, obj):
        fields.setdefault(path, Ineffective(cut(printable(path[:_LONGEST_PATH]), _LONGEST_PATH), reason))
    for name in extra:
        fields[name] = Ineffective(_shown(name), "unknown field")
    return list(fields.values())


def _walk(
    value: Any, node: FieldNode, place: str, effects: Mapping[str, FieldEffect]
) -> Iterator[tuple[str, FieldNode, str | None]]:
    """Iterate over (place, field, name of an unknown field inside it) of what has no effect."""
    if value is None:
        return
    own = effects.get(node.path)
    if own is not None and own.effect is Effect.NONE:
        if value not in ({}, [], "") and value != node.info.get_default(call_default_factory=False):
            yield place, node, None
        return
    if node.fields is None:
        return
    items: list[tuple[str, Any]] = [(place, value)]
    if isinstance(value, list) and _repeats(node, "[]"):
        items = [(f"{place}[{index}]", item) for index, item in enumerate(value)]
    elif isinstance(value, Mapping) and _repeats(node, ".*"):
        items = [(f"{place}.{_shown(key)}", item) for key, item in value.items()]
    for where, item in items:
        if not isinstance(item, Mapping):
            continue
        for name, inner in item.items():
            child = node.fields.get(name)
            if child is not None:
                yield from _walk(inner, child, f"{where}.{name}", effects)
            elif not node.is_open:
                yield f"{where}.{_shown(name)}", node, str(name)


def _repeats(node: FieldNode, suffix: str) -> bool:
    """Return whether a field is a list (suffix ``[]``) or a mapping (``.*``) of objects."""
    child = next(iter((node.fields or {}).values()), None)
    return child is not None and child.path.startswith(f"{node.path}{suffix}")


def _reason(node: FieldNode, name: str | None, effects: Mapping[str, FieldEffect], *, suggest: bool) -> str:
    if name is None:
        return effects[node.path].text.removesuffix(".")
    if name in node.newer:
        return f"unknown field, write {node.newer[name]}"
    close = difflib.get_close_matches(name[:_LONGEST_NAME], node.fields or (), n=1) if suggest else ()
    return f"unknown field, did you mean {close[0]!r}?" if close else "unknown field"


def _shown(name: object) -> str:
    return cut(printable(str(name)[: 2 * _LONGEST_NAME]), _LONGEST_NAME)


def warning(kind: type[Resource], obj: Mapping[str, Any]) -> str:
    """Return one sentence about the fields of an object without effect; empty where there are none."""
    fields = ineffective(kind, obj)
    if not fields:
        return ""
    more = [f"and {counted(len(fields) - MOST_FIELDS, 'more field')}"] if len(fields) > MOST_FIELDS else []
    return cut(f"without effect: {'; '.join([*map(str, fields[:MOST_FIELDS]), *more])}", _MOST_TEXT)


def warning_of(group: str, kind: str, obj: Mapping[str, Any]) -> str:
    """Return ``warning`` of an object of one of the kinds; empty for any other."""
    resource = KINDS.get((group, kind))
    return warning(resource, obj) if resource is not None else ""
