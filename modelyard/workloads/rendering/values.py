"""What rendering takes and gives: what the cluster can do, children, refusals. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from modelyard.objects import Key, Namespace, ResourceType, cut, key_of, printable
from modelyard.resources import Resource, ResourceInvalid
from modelyard.workloads.rendering.settings import ServingSettings

Body = dict[str, Any]
T = TypeVar("T", bound=Resource)

MOST_NESTED: Final = 40
"""Depth of what is rendered; a pod's template needs about fifteen."""
MOST_PROBLEMS: Final = 50
"""Problems of one object that are shown. One more is kept, to tell that there are others."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing is rendered: what is wrong with which field, and what to do. ``reason`` is a condition's.

    ``backend`` names the backend of a Model that the field belongs to; ``also`` are the object's further problems.
    """

    reason: str
    field: str
    problem: str
    remedy: str
    backend: str = ""
    also: tuple[Refused, ...] = ()

    def __str__(self) -> str:
        texts = list(map(Refused._text, self.each()))
        return "; ".join([*texts[:MOST_PROBLEMS], *(["and more"] if len(texts) > MOST_PROBLEMS else [])])

    def each(self) -> tuple[Refused, ...]:
        return (replace(self, also=()), *self.also)

    def _text(self) -> str:
        backend = f" (backend {self.backend})" if self.backend else ""
        return f"{self.field}{backend}: {self.problem} - {self.remedy}"


class Refusal(Exception):
    """Carries a ``Refused`` to where rendering began."""

    def __init__(self, reason: str, field: str, problem: str, remedy: str, also: Iterable[Refused] = ()) -> None:
        field, problem, remedy = (cut(printable(text), 500) for text in (field, problem, remedy))
        self.refused = Refused(reason, field, problem, remedy, also=tuple(islice(also, MOST_PROBLEMS)))
        super().__init__(str(self.refused))


class Problems:
    """Collects what is wrong with an object, so that all of it is shown at once."""

    def __init__(self) -> None:
        self._refused: dict[Refused, None] = {}

    def __bool__(self) -> bool:
        return bool(self._refused)

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Note a ``Refusal`` of the block, and go on behind it."""
        try:
            yield
        except Refusal as refusal:
            if len(self._refused) <= MOST_PROBLEMS:
                self._refused |= dict.fromkeys(refusal.refused.each())

    def raise_all(self) -> None:
        if self._refused:
            first, *more = self._refused
            raise Refusal(first.reason, first.field, first.problem, first.remedy, more)


@dataclass(frozen=True, slots=True)
class ChildObject:
    """An object to make or change once components in ``after`` are ready; ``seed``: first replicas under a scaler."""

    body: Body
    component: str = ""
    after: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def kind(self) -> str:
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def seeded(self) -> Body:
        if self.seed is None:
            return self.body
        return {**self.body, "spec": {**self.body["spec"], "replicas": self.seed}}


@dataclass(frozen=True, slots=True)
class Retired:
    """An object of an older form, to be deleted when the components in ``after`` are ready, and only if it is owned."""

    kind: str
    name: str
    after: tuple[str, ...]


class Right(NamedTuple):
    """Something a pod has that not everybody may give; ``what`` is the annotation's word for it."""

    what: str
    field: str
    value: str


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
    rights: frozenset[Right] = frozenset()


@dataclass(frozen=True, slots=True)
class Abilities:
    """Kinds that the cluster serves (``apps/v1/Deployment``), settings, and namespaces, which allow services more."""

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
        first, *more = [_refused_field(*problem) for problem in error.problems[: MOST_PROBLEMS + 1]]
        return naming_backends(replace(first, also=tuple(more)), _backends(obj))
    except Exception as error:  # whatever a tenant has thought of
        return unreadable(error)


def _refused_field(field: str, text: str) -> Refused:
    problem, _, remedy = text.rpartition(" - ")
    return refused(field, problem or text, remedy if problem else "correct it")


_BACKEND: Final = re.compile(r"spec\.backends\[(\d{1,4})\]")


def naming_backends(problem: Refused, names: Sequence[str]) -> Refused:
    """Return the problems of a Model with the names of its backends, which are ``names`` in their order."""

    def name(single: Refused) -> Refused:
        place = _BACKEND.match(single.field)
        index = int(place[1]) if place else len(names)
        return replace(single, backend=names[index]) if index < len(names) else single

    return replace(name(problem), also=tuple(map(name, problem.also)))


def _backends(obj: Mapping[str, Any]) -> list[str]:
    spec = obj.get("spec")
    backends = spec.get("backends") if isinstance(spec, Mapping) else None
    listed = backends if isinstance(backends, list) else []
    names = [backend.get("name") if isinstance(backend, Mapping) else "" for backend in listed]
    return [cut(printable(name), 63) if isinstance(name, str) else "" for name in names]


def unreadable(error: Exception) -> Refused:
    """What a tenant has thought of that nobody else has."""
    return refused("spec", f"cannot be read: {type(error).__name__}: {error}", "write it as the reference has it")


def refused(field: str, problem: str, remedy: str) -> Refused:
    """The spec is not valid."""
    return Refusal("InvalidSpec", field, problem, remedy).refused


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


class StoredChild(NamedTuple):
    """Something that is there and says that it belongs to a service; ``owner`` is the uid of its controller."""

    kind: ResourceType
    body: Body
    owner: str
    component: str = ""

    @property
    def key(self) -> Key:
        return key_of(self.body)
