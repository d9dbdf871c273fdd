"""Options of a command made from the fields of a request or settings model, which declares each of them once.

``options_from(Model)`` turns the fields of a Pydantic model, or of a dataclass, into options: type, limits, default and
help come from the field, other spellings from ``Cli`` markers. The command receives the values that were typed, for
``parse_options`` to validate; where nothing was typed, the defaults of the model hold, or the values of a file. A field
that is a dataclass contributes its own fields; one that is a model is a YAML file.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

import typer
from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic.fields import FieldInfo

from modelyard.cli.options import PAIR, UsageError, pairs
from modelyard.objects import Cli

T = TypeVar("T")
Command = Callable[..., None]

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "namespace": ("-n", "--namespace"),
    "namespaces": ("-n", "--namespace"),
    "manifests": ("-f", "--filename"),
    "fleet": ("--settings",),
    "prometheus_url": ("--prometheus",),
}
"""Options that every command spells the same."""


def options_from(
    model: type[Any], *, arguments: Collection[str] = (), leave_out: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Give a command the options of a model's fields, before its own; ``arguments`` are positional.

    The command is called with the typed values as its first parameter, nested as the model is.
    """
    options = [_Option(name, field, above) for name, field, above in _leaves(model) if name not in leave_out]

    def decorate(function: Command) -> Command:
        own = [*inspect.signature(function, eval_str=True).parameters.values()][1:]
        made = [option.parameter(option.name in arguments) for option in options]

        def command(**typed: Any) -> None:
            given: dict[str, Any] = {}
            for option in options:
                if (value := typed.pop(option.name)) not in (None, [], ()):
                    inside = given
                    for name in option.above:
                        inside = inside.setdefault(name, {})
                    inside[option.name] = (
                        pairs(option.flags[-1], value, str(option.metavar)) if option.is_mapping else value
                    )
            function(given, **typed)

        command.__name__, command.__doc__, command.__annotations__ = function.__name__, function.__doc__, {}
        signature = inspect.Signature([*made, *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own)])
        vars(command)["__signature__"] = signature
        return command

    return decorate


def parse_options(model: type[T], given: Mapping[str, Any]) -> T:
    """Return the model with these values. Raises ``UsageError``, which names the options."""
    try:
        return TypeAdapter(model).validate_python(given)
    except ValidationError as error:
        from modelyard.resources import explain

        options = {name: _Option(name, field) for name, field, _ in _leaves(model)}
        faults = explain(cast("type[BaseModel]", model), error)
        raise UsageError(*(_fault(options, place, text) for place, text in faults)) from None


def _fault(options: Mapping[str, _Option], place: str, text: str) -> str:
    option = next((options[name] for name in re.split(r"\W+", place) if name in options), None)
    if option is None:
        return f"{place}: {text}".removeprefix("object: ")
    return f"{option.flags[-1]}: {text}" + (f"; write {option.metavar}" if option.metavar else "")


def _leaves(model: type[Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, FieldInfo, tuple[str, ...]]]:
    """Yield the fields with their names, and the names of the dataclasses that they are in."""
    is_model = issubclass(model, BaseModel)
    fields = model.model_fields if is_model else pydantic_dataclass(model, frozen=True).__pydantic_fields__
    for name, field in fields.items():
        if isinstance(field.annotation, type) and is_dataclass(field.annotation):
            yield from _leaves(field.annotation, (*above, name))
        else:
            yield name, field, above


class _Option:
    def __init__(self, name: str, field: FieldInfo, above: tuple[str, ...] = ()) -> None:
        self.name, self.field, self.above = name, field, above
        cli = next((mark for mark in field.metadata if isinstance(mark, Cli)), None)
        self.flags = (cli and cli.names) or SPELLINGS.get(name) or (f"--{name.replace('_', '-')}",)
        inner = _plain(field.annotation)
        kind, self.marks = inner.annotation, [*inner.metadata, *field.metadata]
        of: Any = get_origin(kind)
        is_read = any(isinstance(mark, BeforeValidator) for mark in self.marks)
        self.is_mapping = of is dict and not is_read
        self.is_list = self.is_mapping or (isinstance(of, type) and issubclass(of, Sequence))
        self.type: Any = str if is_read else _simple(_plain(get_args(kind)[0]).annotation if self.is_list else kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            self.type = Path
        if self.type is bool and cli is None:
            self.flags = (f"{self.flags[0]}/--no-{self.flags[0].removeprefix('--')}",)
        self.metavar = (cli and cli.metavar) or (PAIR if self.is_mapping else None)
        self.help = self._help((cli and cli.help) or field.description or "")

    def parameter(self, is_argument: bool) -> inspect.Parameter:
        shown: dict[str, Any] = {"help": self.help, "metavar": self.metavar}
        option = typer.Argument(**shown) if is_argument else typer.Option(*self.flags, **shown)
        kind = list[self.type] if self.is_list else self.type  # type: ignore[name-defined]
        annotation, default = Annotated[kind | None, option], None
        if self.field.is_required():
            annotation, default = Annotated[kind, option], inspect.Parameter.empty
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)

    def _help(self, text: str) -> str:
        default = None if self.field.is_required() else self.field.get_default(call_default_factory=True)
        values = default if isinstance(default, list | tuple) else [default]
        shown = [self.flags[-1].partition("/")[0] if value is True else _shown(value) for value in values]
        facts = [] if self.is_list else list(self._limits())
        facts += [f"default {', '.join(shown)}"] if any(shown) else []
        text = f"{text[:1].upper()}{text[1:]}{'; repeat' if self.is_list else ''}"
        return f"{text} ({', '.join(facts)})." if facts else f"{text}."

    def _limits(self) -> Iterator[str]:
        for name, word, strictest in (("ge", "at least", max), ("gt", "above", max), ("le", "at most", min)):
            if limits := [getattr(mark, name) for mark in self.marks if hasattr(mark, name)]:
                yield f"{word} {_shown(strictest(limits))}"


def _plain(annotation: Any) -> FieldInfo:
    """Return the type and the constraints of a value that is not ``None``."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not type(None))
    return FieldInfo.from_annotation(annotation)


def _simple(kind: Any) -> type[Any]:
    """Return the type that typer reads; the model reads other types from text, or from a file."""
    if isinstance(kind, type) and issubclass(kind, Enum | Path | int | float):  # bool is an int
        return kind
    return str


def _shown(value: Any) -> str:
    """Return a value as people type it; empty where there is none, or only a file can hold it."""
    if value is None or value is False or isinstance(value, BaseModel | Mapping):
        return ""
    return f"{value:.10g}" if isinstance(value, float) else str(value)
