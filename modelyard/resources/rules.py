"""Rules between fields, stated once and enforced twice: by the models here and by the API server through the CRD.

A rule carries a Python predicate and the same thing in CEL. API servers before Kubernetes 1.25 ignore CEL, which is
why the predicate exists; where it matters before that, the CRD adds the same of required fields (``unless``).

Pydantic's errors become lines a person can act on: which object, which field, what is wrong, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_snake
from pydantic_core import ErrorDetails

from modelyard.objects import few

MOST_NAMES = 12
"""Fields that a message about an unknown one lists."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition an object must meet.

    ``message`` says what is wrong, ``remedy`` what to do. ``field`` is the path below the object the rule sits on that
    an error should name. ``cel`` is ``None`` where the API server cannot check the rule at a bounded cost, and
    ``holds`` is ``None`` for transition rules, which only the server can check because only it knows the old object.
    """

    message: str
    remedy: str
    holds: Callable[[Any], bool] | None
    cel: str | None
    field: str = ""

    @property
    def text(self) -> str:
        return f"{self.message} - {self.remedy}"

    @property
    def validation(self) -> dict[str, str]:
        """The rule as an entry of ``x-kubernetes-validations``; servers before 1.28 leave the path out."""
        assert self.cel is not None
        where = {"fieldPath": f".{self.field}"} if self.field else {}
        return {"rule": self.cel, "message": self.text, **where}


def one_of(first: str, second: str, remedy: str) -> Rule:
    """Exactly one of two fields (by their names in a manifest) is given."""
    ours = to_snake(first), to_snake(second)
    return Rule(
        f"exactly one of {first} and {second} is needed",
        remedy,
        lambda part: sum(getattr(part, name) is None for name in ours) == 1,
        f"has(self.{first}) != has(self.{second})",
    )


def unless(condition: dict[str, Any]) -> dict[str, Any]:
    """Schema extras that refuse what does not meet ``condition``, said so that a rule in CEL can say it better.

    A server that finds a required field missing does not evaluate CEL, and of ``anyOf`` it tells the fields that the
    nearest alternative lacks, which need not be those that are meant. Of ``not`` it tells nothing, and goes on.
    """
    return {"not": {"not": condition}}


class RulesBroken(ValueError):
    """Every rule of one object that does not hold: (field path, what to say about it)."""

    def __init__(self, breaches: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{field}: {text}" if field else text for field, text in breaches))
        self.breaches = breaches


def repeats(field: str, items: Iterable[Any]) -> list[tuple[str, str]]:
    """List (field path, message) of each text or integer seen before in a list; keyed objects come as tuples."""
    seen: set[Any] = set()
    found = []
    for index, item in enumerate(items):
        if not all(isinstance(part, str | int) for part in (item if isinstance(item, tuple) else (item,))):
            continue
        if item in seen:
            what = ", ".join(map(str, item)) if isinstance(item, tuple) else item
            found.append((f"{field}[{index}]", f"{what!r} occurs twice - keep one of them"))
        seen.add(item)
    return found


def distinct_lists(model: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """The lists that the schema declares as sets or maps, by field: the keys by which their items differ."""
    found = {}
    for name, info in model.model_fields.items():
        extras = info.json_schema_extra
        if isinstance(extras, dict) and extras.get("x-kubernetes-list-type") in ("set", "map"):
            keys = extras.get("x-kubernetes-list-map-keys") or []
            found[name] = tuple(map(str, keys)) if isinstance(keys, list) else ()
    return found


def repeats_within(annotation: Any, raw: Any, path: str) -> list[tuple[str, str]]:
    """``repeats`` of every list of a raw object that should become ``annotation``, whatever else is wrong with it."""
    if isinstance(raw, list):
        return [one for i, item in enumerate(raw) for one in repeats_within(annotation, item, f"{path}[{i}]")]
    model = _model_in(annotation)
    if model is None or not isinstance(raw, Mapping):
        return []
    found: list[tuple[str, str]] = []
    distinct = distinct_lists(model)
    for name, info in model.model_fields.items():
        value, where = raw.get(info.alias or name), f"{path}.{info.alias or name}"
        if name in distinct and isinstance(value, list):
            keys = distinct[name]
            items = (tuple(map(item.get, keys)) if keys and isinstance(item, Mapping) else item for item in value)
            found += repeats(where, items)
        found += repeats_within(info.annotation, value, where)
    return found


_REMEDIES = {
    "missing": "add it",
    "string_pattern_mismatch": "change it to match",
    "string_too_short": "fill it in",
    "string_too_long": "shorten it",
    "too_short": "add an entry",
    "too_long": "remove some",
    "int_type": "write a whole number without quotes",
    "bool_type": "write true or false without quotes",
    "string_type": "write text; put quotes around a number",
    "dict_type": "write an object",
    "model_type": "write an object",
    "list_type": "write a list",
}


class ResourceInvalid(ValueError):
    """A manifest that is not valid. ``problems`` holds (field path, message with remedy), ``str()`` a line for each."""

    def __init__(self, kind: str, metadata: Any, problems: Iterable[tuple[str, str]]) -> None:
        meta = metadata if isinstance(metadata, Mapping) else {}
        name = str(meta.get("name") or meta.get("generateName") or "<no name>")
        namespace = meta.get("namespace")
        self.kind = kind
        self.object = f"{namespace}/{name}" if namespace else name
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{kind} {self.object}: {field}: {text}" for field, text in self.problems))


def explain(model: type[BaseModel], error: ValidationError) -> list[tuple[str, str]]:
    """(field path, message with remedy) for every error."""
    lines: list[tuple[str, str]] = []
    for detail in error.errors(include_url=False):
        path = field_path(detail["loc"])
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, RulesBroken):
            lines.extend((".".join(filter(None, (path, field))) or "object", text) for field, text in cause.breaches)
        else:
            lines.append((path or "object", _sentence(model, detail)))
    return lines


def field_path(location: tuple[int | str, ...]) -> str:
    """``("spec", "rules", 0, "name")`` as ``spec.rules[0].name``."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]":
            path += f".{part}" if path else part
    return path


def _sentence(model: type[BaseModel], detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "missing":
        newer = [name for name, ours in _newer_at(model, detail["loc"]).items() if ours == detail["loc"][-1]]
        given = [name for name in newer if name in detail["input"]]
        return f"is required - rename {given[0]}, as a newer peer calls it" if given else "is required - add it"
    if kind == "extra_forbidden":
        return f"unknown field - {_suggestion(model, detail['loc'])}"
    if kind == "literal_error":
        return f"{detail['input']!r} is not one of the allowed values - write {context['expected']}"
    if kind == "value_error":
        return str(context["error"]).replace("; ", " - ", 1)
    text = detail["msg"][:1].lower() + detail["msg"][1:]
    return f"{text} (found {_short(detail['input'])}) - {_REMEDIES.get(kind, 'correct the value')}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _suggestion(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    name = str(location[-1])
    if ours := _newer_at(model, location).get(name):
        return f"a newer peer's: write {ours} ('modelyard convert -f' rewrites such manifests)"
    found = _model_at(model, location[:-1])
    names = [info.alias or field for field, info in found.model_fields.items()] if found else []
    close = difflib.get_close_matches(name, names, n=1) or [full for full in names if name and full.startswith(name)]
    if close:
        return f"write {close[0]!r}, or remove it"
    return f"remove it, or write one of {', '.join(few(names, MOST_NAMES))}" if names else "remove it"


def _newer_at(model: type[BaseModel], location: tuple[int | str, ...]) -> Mapping[str, str]:
    found: Mapping[str, str] = getattr(_model_at(model, location[:-1]), "newer", {})
    return found


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel] | None:
    current: type[BaseModel] | None = model
    annotation: Any = model
    for part in location:
        if current is not None and isinstance(part, str):
            found = [info.annotation for name, info in current.model_fields.items() if part in (name, info.alias)]
            annotation = found[0] if found else None
        current = _model_in(annotation)
    return current


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        found = _model_in(argument)
        if found is not None:
            return found
    return None
