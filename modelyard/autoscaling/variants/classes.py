"""Service classes: which latency targets and which priority a variant has.

Called once per tick by ``slo.prepare``. A class is one YAML document under one data key of a ConfigMap: ``name``,
``priority`` and ``data``, a list of entries with ``model``, ``slo-tpot`` (or ``slo-itl``) and ``slo-ttft`` in
milliseconds. ``sloClassRef`` is looked up first, in the variant's namespace and then in the controller's; without it
the well-known ConfigMap is scanned in the order of its keys. Source: WVA SLO reference, "service-classes-config".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from modelyard.autoscaling.configuration import Document, Entry, FleetSettings, ObjectNotice, Remarks, read_document
from modelyard.autoscaling.fleet import SLOSpec, Variant
from modelyard.autoscaling.mixing import LOWEST_PRIORITY
from modelyard.autoscaling.variants.costs import number
from modelyard.objects import Key, Notice, shown

DEFAULT_MODEL = "default/default"
DEFAULT = "fleet targets"
"""The class of a model in saturation form that no service class has: nobody asked for its targets in so many words."""
MOST_CLASS_MAPS = 5
"""ConfigMaps that the variants of a namespace may name with ``sloClassRef``: each is looked up on its own."""
_CLASS_FIELDS = ("name", "priority", "data")
_ENTRY_FIELDS = ("model", "slo-tpot", "slo-itl", "slo-ttft")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain: what an object may be called."""


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """The SLO of one model in one class. Targets are milliseconds, 0 for none; ``priority`` 1 is the most important."""

    name: str
    priority: int
    ttft: float
    itl: float
    where: str


def class_references(variants: Iterable[Variant]) -> dict[str, set[str]]:
    """ConfigMaps of ``sloClassRef`` with their namespaces: the first ``MOST_CLASS_MAPS`` valid names of each."""
    named: dict[str, set[str]] = {}
    for variant in variants:
        name = variant.slo.class_name if variant.slo is not None else ""
        if len(name) <= 253 and _NAME.fullmatch(name):
            named.setdefault(variant.key.namespace, set()).add(name)
    found: dict[str, set[str]] = {}
    for namespace, names in named.items():
        for name in sorted(names)[:MOST_CLASS_MAPS]:
            found.setdefault(name, set()).add(namespace)
    return found


class Found(NamedTuple):
    """A class, or why there is none; ``note`` says when it is not the one asked for."""

    service: ServiceClass | None
    note: str = ""


class _Class(NamedTuple):
    name: str
    models: Mapping[str, ServiceClass]


class _Map(NamedTuple):
    """Classes by data key, in sorted order, and by name; the first service class of each model."""

    classes: Mapping[str, _Class]
    by_name: Mapping[str, Sequence[_Class]]
    by_model: Mapping[str, ServiceClass]
    broken: Mapping[str, str]


class ServiceClasses:
    """All service classes of one tick. A document or entry that is broken hurts only itself, and is named."""

    def __init__(
        self,
        config_maps: Mapping[Key, Mapping[str, str]],
        settings: FleetSettings,
        references: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """``references`` are those that are looked up, see ``class_references``; ``None``: all."""
        self._config_maps = config_maps
        self._settings = settings
        self._references = references
        self._maps: dict[Key, _Map | None] = {}
        self._resolved: dict[tuple[str, str, str, str, bool], Found] = {}
        self.notices = Remarks()
        self.used: set[Key] = set()
        """ConfigMaps a variant refers to, whether they exist or not."""

    def resolve(self, namespace: str, spec: SLOSpec, model: str, by_reference: bool = True) -> Found:
        """The class of a variant. Unless ``by_reference``, only the central document counts, and none for any model."""
        key = (namespace, spec.class_name, spec.class_key, model, by_reference)
        if key not in self._resolved:
            self._resolved[key] = self._resolve(*key)
        return self._resolved[key]

    def _resolve(self, namespace: str, name: str, key: str, model: str, by_reference: bool) -> Found:
        central = self._settings.controller_namespace
        note = ""
        if by_reference:
            tried = [Key(where, name) for where in dict.fromkeys((namespace, central))]
            for id_ in tried:
                self.used.add(id_)
                source = self._read(id_)
                if source is None:
                    continue
                if key in source.broken:
                    return Found(None, f"sloClassRef: {source.broken[key]}")
                if (service := _referred(source, key, model)) is not None:
                    return Found(service)
            note = f"sloClassRef {name}/{key}: no ConfigMap {' or '.join(str(id_) for id_ in tried)}"
            if places := " and ".join(str(id_) for id_ in tried if self._read(id_) is not None):
                classes = f"no such class with model {model!r} or {DEFAULT_MODEL!r}"
                note = f"sloClassRef {name}/{key}: ConfigMap {places} has {classes}"
            if self._references is not None and namespace not in self._references.get(name, ()):
                why = f"no object can be called so, or {MOST_CLASS_MAPS} others are named there"
                note += f" (in {namespace} it was not looked up: {why})"
        spaces = dict.fromkeys((namespace, central) if by_reference else (central,))
        scanned = [Key(where, self._settings.service_class_config_map) for where in spaces]
        for name_ in (model, DEFAULT_MODEL) if by_reference else (model,):
            for id_ in scanned:
                source = self._read(id_)
                if source is not None and (service := source.by_model.get(name_)) is not None:
                    return Found(service, f"{note}; used is {service.where}" if note else "")
        places = " or ".join(str(id_) for id_ in scanned)
        missing = f"no service class names model {model!r}: add it to a document of ConfigMap {places}"
        return Found(None, f"{note}; {missing}" if note else missing)

    def _read(self, id_: Key) -> _Map | None:
        if id_ not in self._maps:
            data = self._config_maps.get(id_)
            self._maps[id_] = self._parse(read_document(id_, data, self._settings)) if data else None
        return self._maps[id_]

    def _parse(self, document: Document) -> _Map:
        classes: dict[str, _Class] = {}
        broken = dict(document.broken)
        for entry in document.entries:
            try:
                classes[entry.key] = self._class(document, entry)
            except ValueError as error:
                broken[entry.key] = str(error)
        for problem in broken.values():
            self.notices.warn(document, f"{problem}; the class is skipped")
        by_name: dict[str, list[_Class]] = {}
        by_model: dict[str, ServiceClass] = {}
        for class_ in classes.values():
            by_name.setdefault(class_.name, []).append(class_)
            for model, service in class_.models.items():
                by_model.setdefault(model, service)
        return _Map(classes, by_name, by_model, broken)

    def _class(self, document: Document, entry: Entry) -> _Class:
        fields = entry.fields
        data = fields.get("data")
        if not isinstance(data, list):
            raise ValueError(f"{entry.where}: data must be a list of entries with model, slo-tpot and slo-ttft")
        name = str(fields.get("name") or entry.key)
        priority = self._priority(document, entry)
        self.notices.unknown(document, entry.where, fields, _CLASS_FIELDS)
        models: dict[str, ServiceClass] = {}
        for index, item in enumerate(data):
            where = f"{entry.where} data[{index}]"
            if not isinstance(item, dict) or not item.get("model"):
                self.notices.warn(document, f"{where}: must be a mapping with a model; the entry is skipped")
                continue
            model = str(item["model"])
            self.notices.unknown(document, where, item, _ENTRY_FIELDS)
            targets = self._targets(document, where, item)
            if targets is None:
                continue
            if model in models:
                text = f"model {shown(model)} is there twice; {models[model].where} is used"
                self.notices.warn(document, f"{where}: {text}")
                continue
            models[model] = ServiceClass(name, priority, *targets, where)
        return _Class(name, models)

    def _targets(self, document: Document, where: str, item: Mapping[object, object]) -> tuple[float, float] | None:
        found: dict[str, float] = {}
        for field in ("slo-ttft", "slo-tpot", "slo-itl"):
            value = item.get(field)
            if value is None:
                continue
            parsed = number(value)
            if parsed is None:
                text = f"{where}: {field} = {shown(value)} must be a finite number of at least 0, in milliseconds"
                self.notices.warn(document, f"{text}; the entry is skipped")
                return None
            found[field] = parsed
        if len({found[field] for field in ("slo-tpot", "slo-itl") if field in found}) > 1:
            self.notices.warn(document, f"{where}: slo-tpot and slo-itl mean the same and differ; slo-tpot is used")
        return found.get("slo-ttft", 0.0), found.get("slo-tpot", found.get("slo-itl", 0.0))

    def _priority(self, document: Document, entry: Entry) -> int:
        value = entry.fields.get("priority")
        if value is None:
            return LOWEST_PRIORITY
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LOWEST_PRIORITY:
            return value
        text = f"priority = {shown(value)} must be a whole number from 1 (most important) to 100; 100 is used"
        self.notices.warn(document, f"{entry.where}: {text}")
        return LOWEST_PRIORITY


def _referred(source: _Map, key: str, model: str) -> ServiceClass | None:
    """A document (by data key, then by class name), else a model entry."""
    named = [source.classes[key]] if key in source.classes else []
    for class_ in (*named, *source.by_name.get(key, ())):
        service = class_.models.get(model) or class_.models.get(DEFAULT_MODEL)
        if service is not None:
            return service
    return source.by_model.get(key)


_TELLING = ("unit-cost", "unitcost", "service-class", "serviceclass")


def slo_look_alikes(
    config_maps: Mapping[Key, Mapping[str, str]],
    settings: FleetSettings,
    namespaces: Iterable[str],
    used: Iterable[Key],
) -> list[ObjectNotice]:
    """Warnings for ConfigMaps whose names suggest that somebody expects them to be read, and nobody does."""
    known = {settings.unit_cost_config_map, settings.service_class_config_map}
    relevant = {settings.controller_namespace, *namespaces}
    read = set(used)
    notices: list[ObjectNotice] = []
    for key in sorted(config_maps):
        name = key.name.lower()
        if key.namespace not in relevant or key.name in known or key in read:
            continue
        if any(word in name for word in _TELLING):
            right = settings.unit_cost_config_map if "cost" in name else settings.service_class_config_map
            text = f"not read: the name looked up is {right!r}; rename it, or refer to it by sloClassRef"
            notices.append((str(key), Notice("ConfigurationIgnored", f"ConfigMap {key} is {text}", "Warning")))
    return notices
