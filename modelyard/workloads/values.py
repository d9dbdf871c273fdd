"""What rendering takes and gives: what the cluster can do, children, refusals. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from modelyard.objects import Namespace
from modelyard.objects.documents import cut, printable
from modelyard.resources import ResourceInvalid
from modelyard.resources.base import Resource
from modelyard.workloads.settings import ServingSettings

Body = dict[str, Any]
T = TypeVar("T", bound=Resource)

MOST_NESTED: Final = 40
"""Depth of what is rendered; a pod's template needs about fifteen."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing is rendered: what is wrong with which field, and what to do. ``reason`` is a condition's."""

    reason: str
    field: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field}: {self.problem} - {self.remedy}"


class Refusal(Exception):
    """Carries a ``Refused`` to where rendering began."""

    def __init__(self, reason: str, field: str, problem: str, remedy: str) -> None:
        self.refused = Refused(reason, *(cut(printable(text), 500) for text in (field, problem, remedy)))
        super().__init__(str(self.refused))


@dataclass(frozen=True, slots=True)
class ChildObject:
    """A whole object to apply. ``after`` names the components that must be ready before it is made or changed.

    ``seed`` is how many replicas it is made with where a scaler has them from then on.
    """

    body: Body
    component: str = ""
    after: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def kind(self) -> str:
        """Its kind."""
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.body["metadata"]["name"])

    @property
    def seeded(self) -> Body:
        """As it is first made."""
        if self.seed is None:
            return self.body
        return {**self.body, "spec": {**self.body["spec"], "replicas": self.seed}}


@dataclass(frozen=True, slots=True)
class Retired:
    """An object of an older form, to be deleted when the components in ``after`` are ready, and only if it is owned."""

    api_version: str
    kind: str
    name: str
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that is not as it was asked for, and keeps nothing from being served. ``reason`` is a condition's."""

    reason: str
    message: str
    component: str = ""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The children of a service, in the order in which they are applied.

    ``modes`` is the deployment mode of each component; ``entry`` the one that requests go to. ``url`` is for clients,
    ``address`` for those inside the cluster; both work as they stand. Where ``virtual``, somebody else brings the pods.
    """

    children: tuple[ChildObject, ...] = ()
    retired: tuple[Retired, ...] = ()
    notes: tuple[Note, ...] = ()
    modes: Mapping[str, str] = field(default_factory=dict)
    entry: str = ""
    url: str = ""
    address: str = ""
    virtual: bool = False


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the cluster serves, as ``apiVersion/Kind``, such as ``policy/v1/PodDisruptionBudget``, what its
    administrator has set, and its namespaces, whose annotations allow services more."""

    served: frozenset[str] = frozenset()
    settings: ServingSettings = field(default_factory=ServingSettings)
    namespaces: Mapping[str, Namespace] = field(default_factory=dict)

    def version(self, kind: str, *versions: str) -> str:
        """The first of these ``apiVersion`` in which the kind is served; ``""``: in none."""
        return next((version for version in versions if f"{version}/{kind}" in self.served), "")


def read_resource(parser: type[T], obj: Mapping[str, Any]) -> T | Refused:
    """An object as the API sends it (or a file has it); nothing a tenant writes makes it raise."""
    try:
        return parser.parse(obj, unknown="accept")
    except ResourceInvalid as error:
        field, text = error.problems[0]
        more = f" (and {len(error.problems) - 1} more)" if error.problems[1:] else ""
        problem, _, remedy = text.rpartition(" - ")
        return refused(field, problem or text, (remedy if problem else "correct it") + more)
    except Exception as error:  # whatever a tenant has thought of
        return unreadable(error)


def unreadable(error: Exception) -> Refused:
    """What a tenant has thought of that nobody else has."""
    return refused("spec", f"cannot be read: {type(error).__name__}: {error}", "write it as the reference has it")


def refused(field: str, problem: str, remedy: str) -> Refused:
    """The spec is not valid."""
    return Refused("InvalidSpec", *(cut(printable(text), 500) for text in (field, problem, remedy)))


def canonical(body: Mapping[str, Any]) -> str:
    """The one text of an object: equal objects have equal texts."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def plain(value: Any, path: str = "", depth: int = 0) -> Any:
    """A copy of its own, without nulls. Raises ``Refusal`` for what is nested too deep."""
    if depth > MOST_NESTED:
        raise Refusal("InvalidSpec", path, f"is nested more than {MOST_NESTED} deep", "write it flatter")
    if isinstance(value, Mapping):
        return {k: plain(v, path or str(k), depth + 1) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [plain(item, path, depth + 1) for item in value if item is not None]
    return value
