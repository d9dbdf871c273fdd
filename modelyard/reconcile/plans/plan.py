"""What a lifecycle decides about one object: a plan, pure data, which only ``carry_out`` turns into writes.

Every lifecycle is the same sentence: look at the cluster, work out what should be written, write it, say why. A plan is
the second part. It names nothing that was not seen, so that every write can carry its precondition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from modelyard.objects import CONFIG_MAPS, Condition, Key, Notice, ResourceType, WorkloadId, texts
from modelyard.reconcile.plans.write_rules import NO_CHILDREN, WriteRules
from modelyard.resources.field_effects import warning_of

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


LARGEST = 256 * 1024
"""Bytes of an object as it is sent. Kubernetes allows six times as much, and a tenant as many as it likes."""
CLAIM = "modelyard.dev/run"
"""Annotation that names the run which may work on an object."""
FAILED = "modelyard.dev/failed"
"""Annotation that says what a run could not do for an object, of which generation: its plan tells it."""
MISSING = "modelyard.dev/missing"
"""Annotation of a child that is to be handed a Secret which is not there: what is missing."""
OWNER = "modelyard.dev/owner"
"""Label of an object in another namespace than its owner's, which no ownerReference could name: the owner's uid."""
FINALIZER = "modelyard.dev/cleanup"
WHOLE_MAPS = frozenset(("selector", "matchLabels", "nodeSelector"))
"""Maps of children in which one more entry is another meaning."""


class Ref(NamedTuple):
    """An object by kind and key: how plans, outcomes and logs name their subject."""

    kind: str
    key: Key

    def __str__(self) -> str:
        return f"{self.kind} {self.key.label}"


class Subject(NamedTuple):
    """The object that a plan is about, as it was seen: what its writes are conditional on.

    A new object of the same name, another ``generation`` or a deletion begun meanwhile make the plan void.
    """

    kind: ResourceType
    key: Key
    uid: str
    generation: int
    resource_version: str = ""
    deleting: bool = False
    claim: str = ""
    """What its annotation ``CLAIM`` says."""
    failed: str = ""
    """What its annotation ``FAILED`` says of this generation."""
    ignored: str = ""
    """The warning about fields of its spec without effect; empty where there are none."""

    @classmethod
    def of(cls, kind: ResourceType, obj: Mapping[str, Any]) -> Subject:
        """An object as the API sends it."""
        metadata = obj["metadata"]
        annotations = metadata.get("annotations") or {}
        claim, failed = annotations.get(CLAIM), annotations.get(FAILED)
        generation = int(metadata.get("generation") or 0)
        of, _, what = failed.partition(" ") if isinstance(failed, str) else ("", "", "")
        return cls(
            kind,
            Key(metadata.get("namespace", ""), metadata["name"]),
            metadata.get("uid", ""),
            generation,
            metadata.get("resourceVersion", ""),
            bool(metadata.get("deletionTimestamp")),
            claim if isinstance(claim, str) else "",
            what if of == str(generation) else "",
            warning_of(kind.group, kind.kind, obj),
        )

    @property
    def ref(self) -> Ref:
        """Its name in outcomes."""
        return Ref(self.kind.kind, self.key)

    @property
    def reference(self) -> dict[str, str]:
        """Its ObjectReference, for Events."""
        found = {
            "apiVersion": self.kind.api_version,
            "kind": self.kind.kind,
            "namespace": self.key.namespace,
            "name": self.key.name,
            "uid": self.uid,
        }
        return {name: value for name, value in found.items() if value}


class OfSubject:
    """Base of what is stored about one object: it goes by the object's name."""

    __slots__ = ()
    subject: Subject

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.subject.key


@dataclass(frozen=True, slots=True)
class Scale:
    """Replicas for one workload; ``seen`` is what it had when this was decided: if it has moved, nothing is written.

    ``reason`` and ``message`` say why, for the Event and the list of changes.
    """

    workload: WorkloadId
    seen: int
    replicas: int
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """What the status should say.

    ``fields`` is a merge patch without conditions (``None`` removes). Of ``conditions`` those types are ours; types in
    ``transient`` that are not among them are taken away; everybody else's stay. ``alone`` is the part of ``fields``
    that nobody else writes and that may be written without a resource version when others keep rewriting the status
    (empty: it then waits). ``clock`` is the path in ``fields`` of the time of writing, if the kind has such a field.
    """

    fields: Mapping[str, Any]
    conditions: tuple[Condition, ...] = ()
    transient: frozenset[str] = frozenset()
    alone: Mapping[str, Any] = field(default_factory=dict)
    clock: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Child:
    """An object of the subject's to delete: only while it has this uid and the subject owns it, or what stands between
    them (``through``, an object of the subject's) does.

    Outside the subject's namespace garbage collection does not delete what an object of the subject's name leaves that
    was removed by force. ``earlier`` is the uid of that object; only the controller writes there.
    """

    kind: ResourceType
    key: Key
    uid: str
    through: tuple[ResourceType, Key] | None = None
    earlier: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """Keys that the subject has in an object which many share and none of them owns: labels of a Node, entries (data)
    of a ConfigMap. Everybody else's stay; ``None`` takes one away.

    Only while the object has this ``uid``; with none (``""``) it was not there, and is made as ``create`` says.
    """

    kind: ResourceType
    key: Key
    uid: str
    labels: Mapping[str, str | None] = field(default_factory=dict)
    data: Mapping[str, str | None] = field(default_factory=dict)
    create: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = False
    """Only while nothing of the object has changed since it had this ``version``; one that is new is only created."""
    version: str = ""


@dataclass(frozen=True, slots=True)
class HandOver:
    """A copy of a Secret for a child (``owner``, an object that ``apply`` makes), which owns it: they end together.

    ``secret`` is in the subject's namespace, for a subject without one in one of the plan's ``homes``; ``None``: there
    is only what ``extra`` holds. A Secret that is not there is handed over once it is.
    """

    owner: ResourceType
    owner_key: Key
    name: str
    secret: Key | None
    extra: Mapping[str, str] = field(default_factory=dict)


class StepId(NamedTuple):
    """A step of a lifecycle and, where the step fans out, the node, run or candidate that it is for."""

    name: str
    item: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.item}" if self.item else self.name


class StepPhase(StrEnum):
    """Phase of a step. A ``BLOCKED`` step waits for earlier steps, a ``WAITING`` one for its turn."""

    BLOCKED = "Blocked"
    WAITING = "Waiting"
    ACTIVE = "Active"
    DONE = "Done"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step's part of a plan: its phase, and the marks, children and deletions that it consists of.

    ``progress`` is a share from 0 to 1; ``None``: unknown. ``awaits`` is what a run stays for. ``keeps``: what the plan
    writes into the object itself (``annotations``, ``fill``) is this step's.
    """

    phase: StepPhase
    message: str = ""
    progress: float | None = None
    marks: tuple[Mark, ...] = ()
    apply: tuple[Mapping[str, Any], ...] = ()
    hand_over: tuple[HandOver, ...] = ()
    delete: tuple[Child, ...] = ()
    awaits: tuple[str, ...] = ()
    keeps: bool = False

    @property
    def deeds(self) -> tuple[object, ...]:
        """Everything that the step writes, apart from the object itself."""
        return (*self.marks, *self.apply, *self.hand_over, *self.delete)

    @property
    def writes(self) -> bool:
        """Return whether there is anything for the step to write."""
        return self.keeps or bool(self.deeds)

    @property
    def unfinished(self) -> bool:
        """Return whether the step can still be completed as things are."""
        return self.phase in (StepPhase.WAITING, StepPhase.ACTIVE)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything to write for one object. Nothing to write and nothing awaited: the object is settled.

    The order of the writes is fixed and the same for every lifecycle (``carry_out``): annotations, status, children,
    scales. ``annotations`` holds only what has to change (``None`` removes one); with ``exact`` it is written only if
    nothing at all of the object has changed since it was seen (a claim). ``status_first`` turns the first two round,
    for a memory that must not be newer than the status it belongs to. ``status`` is ``None`` when the stored one is
    true. ``apply`` holds manifests; what they make belongs to the subject, and is in its namespace or in one of
    ``homes``; ``rules`` say which may be written. ``finalizer`` is ``True`` to set ours (``finalizer_name``) before
    anything else, ``False`` to take it off
    when all else is done. ``fill`` is a merge patch for the object itself, written only if nothing of it has changed.
    ``awaits`` is what a run stays for: never a person. ``needs`` are Secrets that have to exist before it can go on
    (``LOOK_UPS``). ``due`` is when (epoch seconds) to look again though nothing has moved.
    ``by_shift``: the reconcile shift itself carries it out unless it creates or scales something or edits the object:
    marks, deletions and the finalizer are a few writes that nobody follows.
    ``part`` numbers the parts of long work: the run of the next part starts without a pause.
    ``urgency`` orders what is started: the highest first. ``noted``: what fails of its deeds is kept in ``FAILED``.
    ``wanted`` is the whole status as it should be and ``stored`` the one there is, whether or not they differ.
    ``news`` is told each time (unless a scale of the plan is: that is the same news), ``notices`` tell what stands and
    are repeated rarely.
    ``steps`` are the parts that runs carry out one by one (``part_of``); without any the whole plan is one step.
    ``details`` are what the lifecycle found, as a value of its own type, for whoever follows a run or shows the plan.
    """

    subject: Subject
    reason: str = ""
    message: str = ""
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    status: Status | None = None
    status_first: bool = False
    exact: bool = False
    marks: tuple[Mark, ...] = ()
    apply: tuple[Mapping[str, Any], ...] = ()
    hand_over: tuple[HandOver, ...] = ()
    delete: tuple[Child, ...] = ()
    fill: Mapping[str, Any] = field(default_factory=dict)
    homes: frozenset[str] = frozenset()
    rules: WriteRules = field(default=NO_CHILDREN, compare=False)
    scales: tuple[Scale, ...] = ()
    news: tuple[Notice, ...] = ()
    notices: tuple[Notice, ...] = ()
    finalizer: bool | None = None
    finalizer_name: str = FINALIZER
    awaits: tuple[str, ...] = ()
    needs: tuple[Key, ...] = ()
    due: float | None = None
    part: int = 0
    urgency: int = 0
    noted: bool = False
    by_shift: bool = False
    steps: Mapping[StepId, PlanStep] = field(default_factory=dict, compare=False)
    wanted: Status | None = field(default=None, compare=False, repr=False)
    stored: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    details: Any = field(default=None, compare=False, repr=False)

    @property
    def writes(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.annotations or self.status is not None or self.acts)

    @property
    def acts(self) -> bool:
        """Return whether it does more than write the status."""
        return bool(self.deeds) or self.finalizer is not None

    @property
    def needs_run(self) -> bool:
        """Return whether a run of the lifecycle carries it out, not the reconcile shift."""
        creates = self.apply or self.hand_over or self.scales or self.fill
        return self.acts and bool(creates or not self.by_shift)

    @property
    def deeds(self) -> tuple[object, ...]:
        """What it does, but for the finalizer."""
        return (*self.marks, *self.apply, *self.hand_over, *self.delete, *self.scales, *self.fill.items())


Index = Callable[[T], Iterable[object]]
"""Under which values an object is filed."""


class Want(NamedTuple, Generic[T]):
    """Which objects, and what is kept of each.

    ``kind`` must name its version. ``cached``: the first list may be the API server's watch cache. An object for which
    ``parse`` gives ``None`` is not kept. ``wish`` says what of an object a person controls (``None``: nothing): where
    that changes, ``Mirror.wait`` returns. ``use`` keeps apart what would otherwise be one store. An object of more than
    ``largest`` bytes, or of too many levels, is not parsed: that is its problem (``None``: any size and depth).
    """

    kind: ResourceType
    parse: Callable[[Mapping[str, Any]], T | None]
    label_selector: str = ""
    field_selector: str = ""
    cached: bool = False
    indexes: Mapping[str, Index[T]] = MappingProxyType({})
    wish: Callable[[Mapping[str, Any]], object] | None = None
    use: str = ""
    largest: int | None = LARGEST
    namespace: str | None = None
    """Only there, or everywhere (``""``), whatever namespaces the subjects are in (``None``: where those are)."""
    called: str = ""
    """Its name in the ``World``, for one who wants a kind twice; else the kind is."""

    def spaces(self, namespaces: Iterable[str]) -> tuple[str, ...]:
        """Where to look (nowhere in particular: everywhere), for subjects in these namespaces."""
        if not self.kind.namespaced or self.namespace == "":
            return ()
        return tuple(namespaces) if self.namespace is None else (self.namespace,)


def settings_wanted(home: str, name: str, parse: Callable[[Mapping[str, str]], T], called: str) -> Want[T]:
    """Want the data of a ConfigMap of the controller's namespace, which holds settings of administrators."""
    selector = f"metadata.name={name}"
    return Want(
        CONFIG_MAPS,
        lambda obj: parse(texts(obj.get("data"))),
        field_selector=selector,
        use="settings",
        namespace=home,
        called=called,
    )


def wish_of(*annotations: str) -> Callable[[Mapping[str, Any]], object]:
    """Return a ``wish``: the spec, whether the object is being deleted, and these annotations."""

    def wish(obj: Mapping[str, Any]) -> object:
        metadata = obj["metadata"]
        given = metadata.get("annotations") or {}
        return metadata.get("generation"), metadata.get("deletionTimestamp"), *map(given.get, annotations)

    return wish


class Store(Protocol[T_co]):
    """The objects of one kind as they are now, each parsed once per resource version."""

    @property
    def errors(self) -> Mapping[str, Exception]:
        """Why namespaces could not be read (``""``: all of them)."""

    def get(self, key: Key) -> T_co | None:
        """The object of this name."""

    def all(self) -> Iterable[T_co]:
        """Every object, in key order."""

    def by(self, index: str, value: object) -> Iterable[T_co]:
        """The objects that ``index`` files under ``value``, in key order."""


World = Mapping[ResourceType | str, Store[Any]]
"""What a plan may look at: the stores of what the lifecycle asked for, by kind or by the name it gave."""

LOOK_UPS = "look-ups"
"""Name in the ``World`` of the ``Presence`` of the Secrets that plans need, where somebody looks them up."""


class Presence(StrEnum):
    """Result of looking up an object that may be read by its name only."""

    PRESENT = "Present"
    ABSENT = "Absent"
    FORBIDDEN = "Forbidden"
    UNKNOWN = "Unknown"


class ServedKind(NamedTuple):
    """A kind in one version, which a server may have or not."""

    api_version: str
    kind: str

    def __str__(self) -> str:
        return f"{self.api_version}/{self.kind}"


@runtime_checkable
class Adapting(Protocol):
    """A lifecycle whose ``wants`` depend on what the server has: of the kinds it ``asks`` for, those ``served`` are
    set before anything is wanted.
    """

    served: frozenset[ServedKind]

    @property
    def asks(self) -> tuple[ServedKind, ...]:
        """The kinds that there may be."""


@runtime_checkable
class Enumerating(Protocol):
    """A lifecycle that names the objects to plan for itself: they are not those of its kind."""

    def keys(self, world: World) -> Iterable[Key]:
        """The keys to plan; the namespace of each is the one whose share of the time it takes."""


class Lifecycle(Protocol):
    """One kind's life: what it needs to see, and what follows from it. ``name`` is that of its flow, too."""

    name: str
    about: ResourceType
    """The kind of its subjects."""

    @property
    def wants(self) -> tuple[Want[Any], ...]:
        """What it needs to see, its subjects (which have a ``key``) among them."""

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        """What should be written for the object of this name; ``None`` when it is gone or not ours. Pure."""
