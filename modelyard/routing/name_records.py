"""The records of model names, written by the reconcile shift.

One ConfigMap for each namespace with ModelRoutes says since when the namespace holds each of its names. It is in the
controller's namespace, where no tenant writes. A name that no route of the namespace has any more is removed, so that
it counts anew when it comes back. A namespace has one write in a tick at most, however many names change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from modelyard.objects import CONFIG_MAPS, Key, Notice, cut, epoch
from modelyard.reconcile.plans import Mark, Plan, Subject, Want, World
from modelyard.routing.lifecycle import ROUTES_WANTED
from modelyard.routing.model_names import (
    BINDING_PROBLEMS,
    BINDINGS,
    IMPORTED_ALL,
    MOST_NAMES,
    RECORDS,
    RECORDS_KEY,
    RECORDS_LABEL,
    RECORDS_LABEL_VALUE,
    HeldNames,
    NameBindings,
    NameRecord,
    Order,
    bindings_wanted,
    claim_order,
    digest,
    record_key,
    record_text,
    records_wanted,
    time_text,
)
from modelyard.routing.objects import ROUTES, Route

INVALID_BINDING: Final = "InvalidNameBinding"
_LONGEST_REPORT = 1000
_MICROSECOND = 1e-6


class NameRecords:
    """Records of the names of ``namespaces`` (none: all), in the controller's namespace ``home``.

    The objects that it plans for are namespaces, each by the key (namespace, name of its record); the list of imported
    namespaces and the administrator's bindings have keys in ``home``.
    """

    name = "model-names"
    about = CONFIG_MAPS

    def __init__(self, home: str, namespaces: Iterable[str] = ()) -> None:
        self._home = home
        self._namespaces = frozenset(namespaces)
        self._held = HeldNames()
        self.wants: tuple[Want[Any], ...] = (ROUTES_WANTED, records_wanted(home), bindings_wanted(home))

    def keys(self, world: World) -> Iterable[Key]:
        """The namespaces with names now or in a record, each with the name of its record."""
        spaces = {route.key.namespace for route in world[ROUTES].all()}
        spaces |= {record.namespace for record in world[RECORDS].all() if record.namespace}
        if self._namespaces:
            spaces &= self._namespaces
        records = [Key(space, record_key(self._home, space).name) for space in sorted(spaces)]
        return [*records, Key(self._home, RECORDS), Key(self._home, BINDINGS)]

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        """The record that the namespace should have."""
        if key.name == BINDINGS:
            return self._report(world[BINDINGS].get(key))
        if not self._held.follow(world):
            return None
        if key.name == RECORDS:
            return self._imported(world, now)
        return self._record(key.namespace, world, now)

    def _report(self, bindings: NameBindings | None) -> Plan | None:
        if bindings is None or bindings.subject is None:
            return None
        text = cut("; ".join(bindings.problems), _LONGEST_REPORT)
        if text == bindings.reported:
            return None
        notices = (Notice(INVALID_BINDING, f"not in force: {text}", "Warning"),) if text else ()
        return Plan(
            bindings.subject, INVALID_BINDING if text else "Valid", text,
            annotations={BINDING_PROBLEMS: text or None}, notices=notices,
        )  # fmt: skip

    def _imported(self, world: World, now: float) -> Plan | None:
        """Note that the names that there were before any record are recorded, once all of them are."""
        record: NameRecord | None = world[RECORDS].get(Key(self._home, RECORDS))
        written = record.imported if record is not None else frozenset[str]()
        spaces = self._namespaces or {IMPORTED_ALL}
        missing = {space for space in spaces if IMPORTED_ALL not in written and space not in written}
        routes: Iterable[Route] = world[ROUTES].all()
        claiming = {route.key.namespace for route in routes if route.claims}
        if not missing or any(
            self._held.record(space) is None for space in claiming if not self._namespaces or space in self._namespaces
        ):
            return None
        return self._write(Key(self._home, RECORDS), record, dict.fromkeys(sorted(missing), time_text(now)), "Imported")

    def _record(self, namespace: str, world: World, now: float) -> Plan | None:
        held = self._held
        record = held.record(namespace)
        before = record.since if record is not None else {}
        stored: NameRecord | None = world[RECORDS].get(record_key(self._home, namespace))
        claims = self._orders(world[ROUTES].by("namespace", namespace))
        names = {digest(name): name for name in claims}
        since = {text: time for text, time in before.items() if text in names}
        new = sorted((order, name) for name, order in claims.items() if digest(name) not in since)
        for order, name in new[: max(0, MOST_NAMES - len(since))]:
            since[digest(name)] = time_text(self._since(namespace, name, order, world, now))
        if since == before and (stored is not None or not claims):
            return None
        key = record_key(self._home, namespace)
        data = {RECORDS_KEY: record_text(since, names)}
        return self._write(key, stored, data, "Recorded", share_of=namespace)

    def _since(self, namespace: str, name: str, order: Order, world: World, now: float) -> float:
        """That is now, where another namespace is recorded with it, and later than each of those records: a clock that
        was set back gives nobody's name to another. Else it is the time that ``claim_order`` goes by; those that come
        together without such a time follow each other by a microsecond.
        """
        recorded = [epoch(time) for space, time in self._held.since(name).items() if space != namespace]
        if recorded:
            return max(now, max(recorded) + _MICROSECOND)
        created = order[1]
        if not math.isinf(created):
            return created
        rivals = self._held.orders(world[ROUTES].by("name", name))
        return now + _MICROSECOND * sum(rival < order for space, rival in rivals.items() if space != namespace)

    def _orders(self, routes: Iterable[Route]) -> dict[str, Order]:
        orders: dict[str, Order] = {}
        for route in routes:
            order = claim_order(route, imported=self._held.imported(route.key.namespace))
            for name in route.claims:
                orders[name] = min(orders.get(name, order), order)
        return orders

    def _write(
        self, key: Key, record: NameRecord | None, data: dict[str, str], reason: str, share_of: str = ""
    ) -> Plan:
        """Plan the write of a ConfigMap, which counts as one of the namespace ``share_of``."""
        labels = {RECORDS_LABEL: RECORDS_LABEL_VALUE, "app.kubernetes.io/part-of": "modelyard"}
        body = {
            "apiVersion": CONFIG_MAPS.api_version,
            "kind": CONFIG_MAPS.kind,
            "metadata": {"name": key.name, "namespace": key.namespace, "labels": labels},
        }
        uid, version = (record.uid, record.version) if record is not None else ("", "")
        mark = Mark(CONFIG_MAPS, key, uid, labels, data, body, exact=True, version=version)
        subject = Subject(CONFIG_MAPS, Key(share_of or key.namespace, key.name), "", 0)
        return Plan(subject, reason, f"{key.name} is written", marks=(mark,), by_shift=True)
