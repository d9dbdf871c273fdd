"""The rules of a schema (``x-kubernetes-validations``) on an object, as an API server of Kubernetes 1.25 or later
evaluates them: after defaulting, each on the part of the object that its schema describes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import celpy
from celpy.celtypes import IntType, ListType

Schema = dict[str, Any]

RESERVED = frozenset(
    {"as", "break", "const", "continue", "else", "false", "for", "function", "if"}
    | {"import", "in", "let", "loop", "namespace", "null", "package", "return", "true"}
)
"""Names of fields that a rule writes as ``__name__``, because the language has them for itself."""


def rules(schema: Schema) -> Iterator[str]:
    """Every rule that a schema holds, anywhere."""
    yield from (validation["rule"] for validation in schema.get("x-kubernetes-validations", ()))
    more = (schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict))
    for child in (*schema.get("properties", {}).values(), *more):
        yield from rules(child)


def violated(schema: Schema, value: Any, old: Any = None) -> list[str]:
    """The rules that an object breaks; those on the way from an old object only where there is one."""
    return list(_violated(schema, _stored(schema, value), None if old is None else _stored(schema, old)))


def _stored(schema: Schema, value: Any) -> Any:
    """The value as the schema has it: defaults filled in, and whole numbers of a number field no integers."""
    if isinstance(value, dict):
        fields = {name: child["default"] for name, child in schema.get("properties", {}).items() if "default" in child}
        return {name: _stored(_child(schema, name), item) for name, item in {**fields, **value}.items()}
    if isinstance(value, list):
        return [_stored(schema.get("items", {}), item) for item in value]
    return float(value) if schema.get("type") == "number" else value


def _child(schema: Schema, name: str) -> Schema:
    more = schema.get("additionalProperties")
    child: Schema = schema.get("properties", {}).get(name) or (more if isinstance(more, dict) else {})
    return child


def _violated(schema: Schema, value: Any, old: Any) -> Iterator[str]:
    for validation in schema.get("x-kubernetes-validations", ()):
        rule = validation["rule"]
        if old is None:
            applies, known = "oldSelf" not in rule, {"self": value}
        else:
            applies, known = True, {"self": value, "oldSelf": old}
        if applies and not _holds(rule, {name: _spoken(schema, item) for name, item in known.items()}):
            yield rule
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _violated(_child(schema, name), item, old.get(name) if isinstance(old, dict) else None)
    elif isinstance(value, list):
        for item in value:  # Without a key of the list, an item has no old self.
            yield from _violated(schema.get("items", {}), item, None)


def _spoken(schema: Schema, value: Any) -> Any:
    """The value with its fields as rules must write those that the language has reserved."""
    if isinstance(value, dict):
        reserved = RESERVED & schema.get("properties", {}).keys()
        return {
            f"__{name}__" if name in reserved else name: _spoken(_child(schema, name), item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_spoken(schema.get("items", {}), item) for item in value]
    return value


def _holds(rule: str, known: dict[str, Any]) -> bool:
    """Raises where a rule cannot be evaluated, such as on a value of the wrong form."""
    return bool(_program(rule).evaluate({name: celpy.json_to_cel(value) for name, value in known.items()}))


@cache
def _program(rule: str) -> celpy.Runner:
    environment = celpy.Environment()
    return environment.program(environment.compile(rule), functions={"sum": _sum})


def _sum(values: ListType) -> IntType:
    """One of the functions on lists that Kubernetes adds to the language."""
    return IntType(sum(values))
