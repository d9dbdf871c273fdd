"""Rules between fields, stated once and enforced twice: by the models here and by the API server through the CRD.

A rule carries a Python predicate and the same thing in CEL. API servers before Kubernetes 1.25 ignore CEL, which is
why the predicate exists; where it matters before that, the CRD adds ``oneOf``/``anyOf`` of required fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_snake


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
        """Message and remedy in one line."""
        return f"{self.message} - {self.remedy}"


def one_of(first: str, second: str, remedy: str) -> Rule:
    """Exactly one of two fields (by their names in a manifest) is given."""
    ours = to_snake(first), to_snake(second)
    return Rule(
        f"exactly one of {first} and {second} is needed",
        remedy,
        lambda part: sum(getattr(part, name) is None for name in ours) == 1,
        f"has(self.{first}) != has(self.{second})",
    )


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that does not hold: where, and what to say about it."""

    field: str
    text: str


class RulesBroken(ValueError):
    """Every rule of one object that does not hold."""

    def __init__(self, breaches: list[Breach]) -> None:
        super().__init__("; ".join(f"{b.field}: {b.text}" if b.field else b.text for b in breaches))
        self.breaches = breaches


def repeated(items: list[Any]) -> list[tuple[int, Any]]:
    """Positions and values of the items that have occurred before."""
    seen: set[Any] = set()
    found = []
    for index, item in enumerate(items):
        if item in seen:
            found.append((index, item))
        seen.add(item)
    return found
