"""Tables of field effects, and the fields of the kinds as the models have them.

``<kind, lower case>.toml`` lists the fields of one kind by path (``spec.rules[].modelMatch.headers.*.exact``) in four
tables: ``acted`` (text: the effect), ``converted`` (text: the result), ``informative`` (text: the reader) and ``none``
(text: the reason). Only fields without effect may be listed as a whole object. Fields that several kinds share are
listed once, in a file of ``shared``, and included under a path; an entry in the including file takes precedence.

Kubernetes' own types count as one field.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from modelyard.resources.base import Resource
from modelyard.resources.ome import Container, KnativeCondition
from modelyard.resources.references import Condition

ATOMIC: Final = (Container, Condition, KnativeCondition)
"""Kubernetes' own types, which count as one field: what is inside them is checked by the API server."""


class Effect(StrEnum):
    """Ways in which a field is treated."""

    ACTED = "acted"
    CONVERTED = "converted"
    INFORMATIVE = "informative"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class FieldEffect:
    """Effect of one field, with a sentence: what it does, what it becomes, whom it informs, or why it does nothing."""

    effect: Effect
    text: str


@dataclass(frozen=True, slots=True)
class FieldNode:
    """One field of a kind. ``fields`` is ``None`` where the inside is not examined, ``is_open`` allows more fields."""

    path: str
    info: FieldInfo
    fields: Mapping[str, FieldNode] | None
    is_open: bool = False
    newer: Mapping[str, str] = field(default_factory=dict)

    def walk(self) -> Iterator[FieldNode]:
        yield self
        for child in (self.fields or {}).values():
            yield from child.walk()


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include: dict[str, str | list[str]] = Field(default_factory=dict)
    acted: dict[str, str] = Field(default_factory=dict)
    converted: dict[str, str] = Field(default_factory=dict)
    informative: dict[str, str] = Field(default_factory=dict)
    none: dict[str, str] = Field(default_factory=dict)

    def own(self) -> Iterator[tuple[str, FieldEffect]]:
        listed: set[str] = set()
        for effect in Effect:
            for path, text in getattr(self, effect.value).items():
                if path in listed:
                    raise ValueError(f"{path} is listed twice; keep one of its effects")
                if not text.strip().endswith("."):
                    raise ValueError(f"{path}: the text is no sentence that ends with a full stop: {text!r}")
                listed.add(path)
                yield path, FieldEffect(effect, " ".join(text.split()))


@cache
def _file(name: str) -> Mapping[str, FieldEffect]:
    file = files("modelyard.resources.field_effects").joinpath(f"{name}.toml")
    table = _Table.model_validate(tomllib.loads(file.read_text("utf-8")))
    entries: dict[str, FieldEffect] = {}
    for path, included in table.include.items():
        for part in [included] if isinstance(included, str) else included:
            entries |= {f"{path}.{inner}" if path else inner: effect for inner, effect in _file(part).items()}
    return {**entries, **dict(table.own())}


@cache
def field_effects(kind: str) -> Mapping[str, FieldEffect]:
    """Return a kind's field effects by path. Raises ``FileNotFoundError``: no table; ``ValueError``: a wrong one."""
    return _file(kind.lower())


@cache
def field_tree(kind: type[Resource]) -> FieldNode:
    """Return the fields of a kind, derived from its model, below a root whose path is empty."""
    fields = {name: _node(name, info) for name, info in kind.model_fields.items() if name in ("spec", "status")}
    return FieldNode("", FieldInfo(annotation=kind), fields)


def _node(path: str, info: FieldInfo) -> FieldNode:
    model, suffix = _model_in(info.annotation)
    if model is None or model in ATOMIC:
        return FieldNode(path, info, None)
    inside = f"{path}{suffix}."
    fields = {
        inner.alias or name: _node(f"{inside}{inner.alias or name}", inner)
        for name, inner in model.model_fields.items()
    }
    is_open = model.model_config.get("extra") == "allow"
    return FieldNode(path, info, fields, is_open, getattr(model, "newer", {}))


def _model_in(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """Return the model that a field holds, and how its path goes on: ``[]`` of a list, ``.*`` of a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    origin = get_origin(annotation)
    suffix = "[]" if origin is list else ".*" if origin is dict else ""
    for argument in get_args(annotation):
        model, inner = _model_in(argument)
        if model is not None:
            return model, suffix + inner
    return None, ""


def effect_of(kind: str, path: str) -> FieldEffect | None:
    """Return the effect of a field by its path: its own entry or that of the object around it."""
    effects = field_effects(kind)
    while path:
        if path in effects:
            return effects[path]
        path = path.rpartition(".")[0].removesuffix(".*").removesuffix("[]")
    return None
