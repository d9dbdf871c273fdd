"""Objects with one field changed, and the fields whose change makes a difference."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Place = tuple[str | int, ...]


class InvalidObject(Exception):
    """An object that is refused: that is no proof that a field has an effect."""


@dataclass(frozen=True, eq=False)
class Scenario:
    """A rich object, and what follows from it; ``alternatives`` are values of fields that cannot be left out, by path.

    A path may be the end of one. ``outcome`` raises ``InvalidObject`` for an object that is refused.
    """

    obj: Mapping[str, Any]
    outcome: Callable[[dict[str, Any]], Any]
    alternatives: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def expected(self) -> Any:
        """The outcome of the object as it is."""
        return self.outcome(copied(self.obj))

    def alternative(self, path: str) -> Any:
        """Return another value of a field that cannot be left out; ``None`` for one that can."""
        return next((value for end, value in self.alternatives.items() if f".{path}".endswith(f".{end}")), None)


def copied(obj: Any) -> Any:
    """Return a copy in which no part is in two places."""
    return json.loads(json.dumps(obj))


def _places(value: Any, place: Place) -> Iterator[Place]:
    items: Sequence[tuple[str | int, Any]] = ()
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for name, inner in items:
        yield (*place, name)
        yield from _places(inner, (*place, name))


def _fits(place: Place, pattern: Sequence[str]) -> bool:
    return len(place) == len(pattern) and all(
        part in ("*", name) if isinstance(name, str) else part == "[]"
        for name, part in zip(place, pattern, strict=True)
    )


def mutants(scenario: Scenario, path: str) -> Iterator[dict[str, Any]]:
    """Iterate over the object without the field, or with another value of it, once for each of its places."""
    pattern = path.replace("[]", ".[]").split(".")
    for place in list(_places(scenario.obj, ())):
        if not _fits(place, pattern):
            continue
        mutant: Any = copied(scenario.obj)
        inside = mutant
        for part in place[:-1]:
            inside = inside[part]
        if scenario.alternative(path) is not None:
            inside[place[-1]] = scenario.alternative(path)
        else:
            del inside[place[-1]]
        yield mutant


def makes_a_difference(scenario: Scenario, path: str) -> bool | None:
    """Return whether a change of the field alone changes what follows; ``None`` where the object does not have it."""
    has_field = None
    for mutant in mutants(scenario, path):
        has_field = False
        try:
            if scenario.outcome(mutant) != scenario.expected:
                return True
        except InvalidObject:
            continue
    return has_field
