"""The tables of field effects are complete: every field of the models is listed, and every entry is a field."""

from __future__ import annotations

import pytest

from modelyard.resources import KINDS, Resource
from modelyard.resources.field_effects import Effect, effect_of, field_effects, field_tree

ALL = sorted(KINDS.values(), key=lambda kind: kind.kind)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.kind)
def test_every_field_is_listed(kind: type[Resource]) -> None:
    leaves = [node.path for node in field_tree(kind).walk() if node.fields is None and node.path]
    assert [path for path in leaves if effect_of(kind.kind, path) is None] == []


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.kind)
def test_every_entry_is_a_field(kind: type[Resource]) -> None:
    nodes = {node.path: node for node in field_tree(kind).walk()}
    effects = field_effects(kind.kind)
    assert [path for path in effects if path not in nodes] == []
    objects = [path for path, entry in effects.items() if entry.effect is not Effect.NONE and nodes[path].fields]
    assert objects == [], "only fields without effect are listed as a whole"


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.kind)
def test_no_entry_is_inside_another(kind: type[Resource]) -> None:
    paths = sorted(field_effects(kind.kind))
    inside = [path for path in paths for outer in paths if path.startswith((f"{outer}.", f"{outer}[].", f"{outer}.*."))]
    assert inside == []
