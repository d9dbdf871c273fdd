"""Options of a command made from the fields of a request or settings model, which declares each of them once.

``options_from(Model)`` turns the fields of a Pydantic model, or of a dataclass, into options: type, limits, default and
help come from the field, other spellings from ``Cli`` markers. The command receives a mapping of the values that were
typed, which ``parse_options`` validates. Unset options are not in it, so that the defaults of the model hold, or the
values of a file. A field that is a dataclass contributes its own fields; one that is a model is a YAML file.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from modelyard.cli.options import PAIR, UsageError, pairs
from modelyard.objects.cli_marker import Cli

T = TypeVar("T")

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "namespace": ("-n", "--namespace"),
    "namespaces": ("-n", "--namespace"),
    "manifests": ("-f", "--filename"),
    "fleet": ("--settings",),
    "prometheus_url": ("--prometheus",),
}
"""Options that every command spells the same."""
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def options_from(
    model: type[Any], *, arguments: Collection[str] = (), leave_out: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a model's fields, before its own; ``arguments`` are positional.

    The command is called with the typed values by field as its first parameter.
    """
    fields = {name: field for name, field in _leaves(model) if name not in leave_out}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = [*inspect.signature(function, eval_str=True).parameters.values()][1:]
        made = [_parameter(name, field, name in arguments) for name, field in fields.items()]
        made += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

        def command(**typed: Any) -> None:
            given = {name: typed.pop(name, None) for name in fields}
            function({name: value for name, value in given.items() if value not in (None, [], ())}, **typed)

        command.__doc__, command.__module__ = function.__doc__, function.__module__
        command.__name__, command.__annotations__ = function.__name__, {}
        vars(command)["__signature__"] = inspect.Signature(made)
        return command

    return decorate


def parse_options(model: type[T], given: Mapping[str, Any]) -> T:
    """Return the model with these values. Raises ``UsageError``, which names the options."""
    fields = dict(_leaves(model))
    try:
        return TypeAdapter(model).validate_python(_nested(model, read_options(model, given)))
    except ValidationError as error:
        from modelyard.resources.rules import explain

        raise UsageError(
            *(_fault(fields, place, text) for place, text in explain(cast("type[BaseModel]", model), error))
        ) from None


def read_options(model: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with mappings in place of ``KEY=VALUE`` texts. Raises ``UsageError``."""
    values = dict(given)
    for name, field in _leaves(model):
        if isinstance(values.get(name), list) and _is_mapping(_plain(field.annotation)):
            values[name] = pairs(_names(name, field)[-1], values[name], _spelling(field).metavar or PAIR)
    return values


def _fault(fields: Mapping[str, FieldInfo], place: str, text: str) -> str:
    name = place.partition("[")[0].partition(".")[0]
    if name not in fields:
        return f"{place}: {text}".removeprefix("object: ")
    metavar = _spelling(fields[name]).metavar
    return f"{_names(name, fields[name])[-1]}: {text}" + (f"; write {metavar}" if metavar else "")


def _fields(model: type[Any]) -> dict[str, FieldInfo]:
    if not dataclasses.is_dataclass(model):
        fields: dict[str, FieldInfo] = model.model_fields
        return fields
    hints, made = get_type_hints(model, include_extras=True), {}
    for field in dataclasses.fields(model):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        is_required = default is dataclasses.MISSING
        hint = hints[field.name]
        made[field.name] = (
            FieldInfo.from_annotation(hint) if is_required else FieldInfo.from_annotated_attribute(hint, default)
        )
    return made


def _leaves(model: type[Any]) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in _fields(model).items():
        if dataclasses.is_dataclass(field.annotation) and isinstance(field.annotation, type):
            yield from _leaves(field.annotation)
        else:
            yield name, field


def _nested(model: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    nested = dict(values)
    for name, field in _fields(model).items():
        if dataclasses.is_dataclass(field.annotation) and isinstance(field.annotation, type) and name not in nested:
            inner = dict(_leaves(field.annotation)).keys() & nested.keys()
            nested[name] = _nested(field.annotation, {key: nested.pop(key) for key in inner})
    return nested


def _spelling(field: FieldInfo) -> Cli:
    return next((mark for mark in field.metadata if isinstance(mark, Cli)), Cli())


def _names(name: str, field: FieldInfo) -> tuple[str, ...]:
    return _spelling(field).names or SPELLINGS.get(name) or (f"--{name.replace('_', '-')}",)


def _has(field: FieldInfo, kind: type[Any]) -> bool:
    return any(isinstance(mark, kind) for mark in field.metadata)


def _plain(annotation: Any) -> FieldInfo:
    """Return type and constraints of what may be ``None``."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not type(None))
    return FieldInfo.from_annotation(annotation)


def _option_type(field: FieldInfo) -> Any:
    """Return the type that typer parses. What a validator of the field reads remains text."""
    inner = _plain(field.annotation)
    kind = inner.annotation
    origin = get_origin(kind)
    is_read = _has(field, BeforeValidator) or _has(inner, BeforeValidator)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return str if is_read else list[str]
    if isinstance(origin, type) and issubclass(origin, Collection):
        item = str if is_read else _simple(_plain(get_args(kind)[0]).annotation)
        return list[item]  # type: ignore[valid-type]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return Path
    return str if is_read else _simple(kind)


def _simple(kind: Any) -> type[Any]:
    return kind if isinstance(kind, type) and issubclass(kind, Enum | Path | int | float) else str  # bool is an int


def _parameter(name: str, field: FieldInfo, is_argument: bool) -> inspect.Parameter:
    kind = _option_type(field)
    metavar = _spelling(field).metavar
    if get_origin(kind) is list and _is_mapping(_plain(field.annotation)):
        metavar = metavar or PAIR
    shared: dict[str, Any] = {"help": _help(name, field, kind), "metavar": metavar}
    names = _names(name, field)
    if kind is bool and not _spelling(field).names:
        names = (f"{names[-1]}/--no-{names[-1].removeprefix('--')}",)
    option: Any = typer.Argument(**shared) if is_argument else typer.Option(*names, **shared)
    required = field.is_required()
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind if required else kind | None, option],
        default=inspect.Parameter.empty if required else None,
    )


def _is_mapping(field: FieldInfo) -> bool:
    origin = get_origin(field.annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _help(name: str, field: FieldInfo, kind: Any) -> str:
    """Return the field's description as a sentence, with its limits and its default."""
    text = _spelling(field).help or field.description or ""
    text = text[:1].upper() + text[1:]
    if get_origin(kind) is list:
        text += "; repeat"
    facts = [] if get_origin(kind) is list else _limits(field)
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    values = default if isinstance(default, list | tuple) else [default]
    shown = [_names(name, field)[-1] if value is True else _shown(value) for value in values]
    if any(shown):
        facts.append(f"default {', '.join(shown)}")
    return f"{text} ({', '.join(facts)})." if facts else f"{text}."


def _limits(field: FieldInfo) -> list[str]:
    limits: dict[str, Any] = {}
    for mark in (*_plain(field.annotation).metadata, *field.metadata):
        for name in _LIMITS.keys() & set(dir(mark)):
            strictest, limit = max if name in ("ge", "gt") else min, getattr(mark, name)
            limits[name] = strictest(limit, limits.get(name, limit))
    if "gt" in limits:
        limits.pop("ge", None)
    if "ge" in limits and "le" in limits:
        return [f"{_shown(limits['ge'])} to {_shown(limits['le'])}"]
    return [f"{text} {_shown(limits[name])}" for name, text in _LIMITS.items() if name in limits]


def _shown(value: Any) -> str:
    """Return a value as people type it; empty where there is none, or only a file can hold it."""
    if value is None or value is False or isinstance(value, BaseModel | Mapping):
        return ""
    return f"{value:.10g}" if isinstance(value, float) else str(value)
