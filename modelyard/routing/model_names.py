"""Namespaces that hold model names, and how that is recorded.

A model name is one for the whole cluster: it belongs to the namespace whose ModelRoutes have had it longest without
interruption, as a model or as a LoRA adapter. Tenants choose the names, ages and annotations of their own objects, so
the time since when each name is held is kept where they cannot write: in one ConfigMap for each namespace, in the
controller's namespace (``name_records.py`` writes them). The controller and every router decide by the same records
with the code below. An administrator can bind names to namespaces; a binding comes before any record.

A name that is not recorded yet belongs to the namespace that a process has seen with it first. Claims that it sees
together are ordered by ``claim_order``.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import re2

from modelyard.objects import CONFIG_MAPS, LONGEST_MODEL_NAME, Key, cut, key_of, shown
from modelyard.reconcile.plans import Subject, Want, World
from modelyard.routing.objects import Route

RECORDS: Final = "modelyard-model-names"
"""ConfigMap that lists the namespaces imported so far; ``RECORDS.NAMESPACE`` has the names of a namespace."""
RECORDS_LABEL: Final = "modelyard.dev/records"
RECORDS_LABEL_VALUE: Final = "model-names"
RECORDS_KEY: Final = "names"
IMPORTED_ALL: Final = "_all"
"""Key of the ConfigMap ``RECORDS`` once the names of all namespaces are recorded."""
BINDINGS: Final = "modelyard-model-name-bindings"
"""ConfigMap of the administrator: for each namespace the patterns of the names that are its own, one a line."""
BINDING_PROBLEMS: Final = "modelyard.dev/invalid-bindings"
"""Annotation of ``BINDINGS`` with the entries that are not in force."""
MOST_NAMES: Final = 4000
"""Names of one namespace that are recorded: 300 KiB of the 1 MiB that a ConfigMap may have."""

_LONGEST_SHOWN = 32
_DIGEST_LENGTH = 32
_TIME_LENGTH = len("2026-01-01T00:00:00.000000Z")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NO_PATTERN = re.compile(r"[-*] |[\[{\"']")
"""Characters with which lists and quoted texts of YAML begin."""
_UNSAFE = re.compile(r"[^!-~]")
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False

Order = tuple[int, float, int, Key]
"""Order of claims that are not recorded: see ``claim_order``."""


@lru_cache(maxsize=16_384)
def digest(name: str) -> str:
    """Return the key of a name in records: names are longer and freer than keys of a ConfigMap."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]


def time_text(seconds: float) -> str:
    """Return a time of a record. Texts of this form sort as their times do."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class NameRecord(NamedTuple):
    """Since when a namespace holds which names, by digest. Without a namespace: the list of imported namespaces."""

    key: Key
    uid: str
    namespace: str
    since: Mapping[str, str]
    imported: frozenset[str] = frozenset()
    version: str = ""


def record_key(home: str, namespace: str) -> Key:
    """Return the name of the ConfigMap with the names of a namespace."""
    return Key(home, f"{RECORDS}.{namespace}")


def read_record(obj: Mapping[str, Any]) -> NameRecord | None:
    """Read a ConfigMap; ``None`` for one that is no record. Lines that cannot be read are skipped."""
    key, data = key_of(obj), obj.get("data")
    uid, version = (str(obj["metadata"].get(field) or "") for field in ("uid", "resourceVersion"))
    data = data if isinstance(data, Mapping) else {}
    if key.name == RECORDS:
        return NameRecord(key, uid, "", {}, frozenset(data), version)
    prefix, dot, namespace = key.name.partition(".")
    if prefix != RECORDS or not dot or not _NAMESPACE.fullmatch(namespace):
        return None
    since: dict[str, str] = {}
    for line in str(data.get(RECORDS_KEY) or "").splitlines():
        name, _, rest = line.partition(" ")
        time = rest[:_TIME_LENGTH]
        if len(name) == _DIGEST_LENGTH and len(time) == _TIME_LENGTH and len(since) < MOST_NAMES:
            since[name] = time
    return NameRecord(key, uid, namespace, since, version=version)


def record_text(since: Mapping[str, str], names: Mapping[str, str]) -> str:
    """Return the lines of a record: digest, time, and the name (``names`` by digest) as far as it is plain."""
    return "".join(
        f"{name} {time} {_UNSAFE.sub('?', names.get(name, ''))[:_LONGEST_SHOWN]}\n"
        for name, time in sorted(since.items(), key=lambda item: (item[1], item[0]))
    )


@dataclass(frozen=True, slots=True)
class NameBindings:
    """Names that an administrator has bound to namespaces. ``problems`` are entries that are not in force."""

    subject: Subject | None = None
    reported: str = ""
    """The problems in its annotation."""
    exact: Mapping[str, frozenset[str]] = field(default_factory=dict)
    patterns: tuple[tuple[int, Any, frozenset[str]], ...] = field(default=(), compare=False)
    """(literal characters, expression, namespaces), those with most characters first."""
    texts: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.subject.key if self.subject is not None else Key("", BINDINGS)

    def namespaces(self, name: str) -> frozenset[str] | None:
        """Return the namespaces that may hold a name; ``None`` where any may.

        The pattern with most characters beside ``*`` decides, one without ``*`` before all others.
        """
        if (bound := self.exact.get(name)) is not None:
            return bound
        text, length = name.encode("utf-8", "replace"), -1
        bound = frozenset[str]()
        for size, expression, spaces in self.patterns:
            if size < length:
                break
            if expression.fullmatch(text):
                length, bound = size, bound | spaces
        return bound if length >= 0 else None


def read_bindings(obj: Mapping[str, Any]) -> NameBindings:
    """Read the administrator's ConfigMap. An entry that is invalid is a problem and changes no other."""
    data, annotations = obj.get("data"), obj["metadata"].get("annotations") or {}
    spaces: dict[str, set[str]] = {}
    problems: list[str] = []
    for namespace, text in sorted((data if isinstance(data, Mapping) else {}).items()):
        if not _NAMESPACE.fullmatch(namespace):
            problems.append(f"data[{shown(namespace)}]: not the name of a namespace; name the namespace, in lower case")
            continue
        for pattern in filter(None, map(str.strip, str(text).splitlines())):
            if problem := _pattern_problem(pattern):
                problems.append(f"data[{namespace}]: {shown(pattern)}: {problem}")
            else:
                spaces.setdefault(pattern, set()).add(namespace)
    for key in sorted(obj.get("binaryData") or {}):
        problems.append(f"binaryData[{shown(key)}]: not read; write plain text into data")
    globs = [(len(pattern) - pattern.count("*"), pattern) for pattern in spaces if "*" in pattern]
    return NameBindings(
        Subject.of(CONFIG_MAPS, obj),
        str(annotations.get(BINDING_PROBLEMS) or ""),
        {pattern: frozenset(names) for pattern, names in spaces.items() if "*" not in pattern},
        tuple(
            (size, _expression(pattern), frozenset(spaces[pattern]))
            for size, pattern in sorted(globs, key=lambda glob: (-glob[0], glob[1]))
        ),
        tuple((pattern, namespace) for pattern, names in sorted(spaces.items()) for namespace in sorted(names)),
        tuple(problems),
    )


def _pattern_problem(pattern: str) -> str:
    if len(pattern) > LONGEST_MODEL_NAME:
        return f"longer than {LONGEST_MODEL_NAME} characters, which no model name is; shorten it"
    if _NO_PATTERN.match(pattern):
        return "looks like YAML; write one pattern on each line, without quotes"
    return ""


def _expression(pattern: str) -> Any:
    text = ".*".join(re2.escape(part) for part in re.split(r"\*+", pattern))
    return re2.compile(f"(?s){text}".encode(), _OPTIONS)


def records_wanted(home: str) -> Want[NameRecord]:
    """The records in the controller's namespace."""
    selector = f"{RECORDS_LABEL}={RECORDS_LABEL_VALUE}"
    return Want(
        CONFIG_MAPS, read_record, label_selector=selector, use=RECORDS, largest=None, namespace=home,
        called=RECORDS,
    )  # fmt: skip


def bindings_wanted(home: str) -> Want[NameBindings]:
    """The administrator's bindings in the controller's namespace."""
    selector = f"metadata.name={BINDINGS}"
    return Want(
        CONFIG_MAPS, read_bindings, field_selector=selector, use=BINDINGS, largest=None, namespace=home,
        called=BINDINGS,
    )  # fmt: skip


def claim_order(route: Route, *, imported: bool, batch: int = 0) -> Order:
    """Return the order of a route's claims among others that are not recorded: the smallest first.

    ``batch`` counts the looks of a process: what it saw earlier comes first. Before the names of the namespace are
    ``imported`` an object's age decides, as it did before there were records. Afterwards it decides only for an object
    that was never edited, which has had its names since it was created. Others may have any name since a moment ago;
    they come last, by the time of their last write.
    """
    version = route.subject.resource_version
    certain = not imported or route.subject.generation == 1
    revision = int(version) if imported and version.isdecimal() else 0
    return batch, route.created if certain else math.inf, revision, route.key


class HeldNames:
    """Records and bindings as they were read last."""

    def __init__(self) -> None:
        self.bindings = NameBindings()
        self._read: tuple[Sequence[NameRecord], Sequence[NameBindings]] = ((), ())
        self._by_namespace: dict[str, NameRecord] = {}
        self._by_digest: dict[str, dict[str, str]] = {}
        self._imported: frozenset[str] = frozenset()

    def update(self, records: Sequence[NameRecord], bindings: Sequence[NameBindings]) -> frozenset[str] | None:
        """Take the records and bindings; return the digests of the names whose holder may differ (``None``: any).

        Sequences that are the very same as the last time cost nothing. The controller deletes no record: one that is
        not listed any more stays as it was, and the controller writes it again.
        """
        before, self._read = self._read, (records, bindings)
        changed: frozenset[str] | None = frozenset()
        if bindings is not before[1]:
            given = bindings[0] if bindings else NameBindings()
            if given.texts != self.bindings.texts:
                changed = None
            self.bindings = given
        if records is before[0]:
            return changed
        now = self._by_namespace | {each.namespace: each for each in records}
        listed = now.pop("", None)
        self._imported = listed.imported if listed is not None else self._imported
        differing: set[str] = set()
        for namespace in {*now, *self._by_namespace}:
            old, new = self._by_namespace.get(namespace), now.get(namespace)
            if old is new:
                continue
            was, has = old.since if old is not None else {}, new.since if new is not None else {}
            if (len(was) < MOST_NAMES) != (len(has) < MOST_NAMES):
                changed = None
            for name, _ in was.items() - has.items():
                del self._by_digest[name][namespace]
                if not self._by_digest[name]:
                    del self._by_digest[name]
                differing.add(name)
            for name, time in has.items() - was.items():
                self._by_digest.setdefault(name, {})[namespace] = time
                differing.add(name)
        self._by_namespace = now
        return None if changed is None else frozenset(differing)

    def follow(self, world: World) -> bool:
        """Take what the world has; return whether it can be read. What cannot be read any more stays as it was."""
        records, bindings = world[RECORDS], world[BINDINGS]
        if records.errors or bindings.errors:
            return False
        self.update(tuple(records.all()), tuple(bindings.all()))
        return True

    def record(self, namespace: str) -> NameRecord | None:
        """Return the record of a namespace."""
        return self._by_namespace.get(namespace)

    def imported(self, namespace: str) -> bool:
        """Return whether the names that the namespace had before there were records are recorded."""
        return IMPORTED_ALL in self._imported or namespace in self._imported

    def orders(self, routes: Iterable[Route]) -> dict[str, Order]:
        """Return the namespaces of routes, each with the first place that the claims of one of its routes have."""
        orders: dict[str, Order] = {}
        for route in routes:
            space = route.key.namespace
            order = claim_order(route, imported=self.imported(space))
            orders[space] = min(orders.get(space, order), order)
        return orders

    def is_full(self, namespace: str) -> bool:
        """Return whether the namespace has as many names as are recorded."""
        record = self._by_namespace.get(namespace)
        return record is not None and len(record.since) >= MOST_NAMES

    def since(self, name: str) -> Mapping[str, str]:
        """Return the namespaces that hold a name by the records, each with the time since when."""
        return self._by_digest.get(digest(name), {})

    def holder(self, name: str, claims: Mapping[str, Order]) -> str:
        """Return the namespace that a name belongs to; empty: none of those with the name.

        ``claims`` are the namespaces that are seen with the name. A recorded namespace comes before all that are not.
        """
        bound = self.bindings.namespaces(name)
        recorded = self.since(name)
        held = [(time, namespace) for namespace, time in recorded.items() if bound is None or namespace in bound]
        if held:
            return min(held)[1]
        seen = [
            (order, namespace)
            for namespace, order in claims.items()
            if (bound is None or namespace in bound) and not self.is_full(namespace)
        ]
        return min(seen)[1] if seen else ""


class NameHolder(NamedTuple):
    """The holder of a name for people. ``since`` is the time of the record, empty where there is none."""

    namespace: str
    since: str
    bound: frozenset[str] | None
    claims: tuple[str, ...]
    """Namespaces with the name that do not hold it."""

    def lines(self) -> Iterator[str]:
        """Yield sentences; none for a name that no namespace has and no binding names."""
        bound = f"bound by an administrator to {', '.join(sorted(self.bound))}" if self.bound else ""
        if self.namespace or self.claims or bound:
            since = f"held since {self.since}" if self.since else "not recorded yet"
            holder = (
                f"the name belongs to namespace {self.namespace} ({since})" if self.namespace else "nobody holds it"
            )
            yield f"{holder}{f'; {bound}' if bound else ''}"
        if self.claims:
            yield cut(f"no requests for it go to the routes of {', '.join(self.claims)}", 1000)
