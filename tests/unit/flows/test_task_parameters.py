"""Every task takes plain, serializable parameters: no connections, callbacks or futures."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import pkgutil
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from prefect import Task
from pydantic import BaseModel

import flows
import tasks

SCALARS = {str, int, float, bool, type(None), datetime, Path, Any, object}
CONTAINERS = {list, tuple, set, frozenset, dict, Sequence, Collection, Mapping, typing.Union, types.UnionType}


def every_task() -> Iterator[Task[..., Any]]:
    for package in (flows, tasks):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            yield from (
                found
                for found in vars(importlib.import_module(module.name)).values()
                if isinstance(found, Task) and found.fn.__module__ == module.name
            )


def not_plain(annotation: Any, seen: frozenset[Any] = frozenset()) -> list[str]:
    """Return what in a type Prefect could not store and read back."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Ellipsis or annotation in SCALARS or annotation in seen or origin is typing.Literal:
        return []
    if origin is typing.Annotated:
        return not_plain(parts[0], seen)
    if (origin or annotation) in CONTAINERS:
        return [problem for part in parts for problem in not_plain(part, seen)]
    if isinstance(annotation, type):
        if issubclass(annotation, enum.Enum | BaseModel):
            return []
        if dataclasses.is_dataclass(annotation) or (issubclass(annotation, tuple) and hasattr(annotation, "_fields")):
            hints = typing.get_type_hints(annotation)
            names = getattr(annotation, "_fields", None) or [field.name for field in dataclasses.fields(annotation)]
            return [problem for name in names for problem in not_plain(hints[name], seen | {annotation})]
    return [str(annotation)]


TASKS = {f"{found.fn.__module__}.{found.fn.__name__}": found for found in every_task()}


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_task_takes_plain_parameters(name: str) -> None:
    hints = typing.get_type_hints(TASKS[name].fn)
    hints.pop("return", None)
    assert {parameter: problems for parameter, hint in hints.items() if (problems := not_plain(hint))} == {}


def test_connections_and_callbacks_are_no_plain_parameters() -> None:
    from collections.abc import Callable

    from modelyard.cluster import Cluster

    for annotation in (Cluster, Callable[[str], None], list[Cluster], dict[str, Callable[[], int]]):
        assert not_plain(annotation), annotation
