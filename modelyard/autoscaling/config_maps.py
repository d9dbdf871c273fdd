"""Finding and reading the ConfigMaps that configure the decision: one YAML document per data key.

Only well-known names are read; names that merely look like one are reported, because a setting nobody reads is the
hardest kind of mistake to see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from modelyard.autoscaling.settings import FleetSettings
from modelyard.objects import Key, Notice
from modelyard.objects.documents import DocumentError, parse_document

DEFAULT_ENTRY = "default"
OLDER_SATURATION_NAMES = ("wva-saturation-scaling-config", "saturation-scaling-config", "capacity-scaling-config")
_TELLING = ("saturation", "scale-to-zero", "scaletozero", "capacity-scaling")

ObjectNotice = tuple[str, Notice]
"""(``namespace/name`` of the ConfigMap, what to say about it)."""


class Entry(NamedTuple):
    """One data key of a ConfigMap, parsed. ``where`` names ConfigMap and key for messages."""

    key: str
    where: str
    fields: Mapping[str, object]


class Document(NamedTuple):
    """A parsed ConfigMap: the entries that could be read, and the keys that could not with the reason."""

    id: Key
    entries: tuple[Entry, ...]
    broken: Mapping[str, str]

    @property
    def name(self) -> str:
        """``namespace/name``."""
        return str(self.id)


@lru_cache(maxsize=2048)
def _load(text: str) -> tuple[Mapping[str, object], str | None]:
    """One data value's mapping, or why it is none. Cached: configuration rarely changes between ticks."""
    try:
        value = parse_document(text)
    except DocumentError as error:
        return {}, str(error)
    if value is None:
        return {}, None
    if not isinstance(value, dict):
        return {}, f"must be a YAML mapping of fields, not {type(value).__name__}"
    return {str(key): item for key, item in value.items()}, None


def read_document(key: Key, data: Mapping[str, str]) -> Document:
    """Parse every data key, in sorted order."""
    entries: list[Entry] = []
    broken: dict[str, str] = {}
    for name in sorted(data):
        where = f"ConfigMap {key} key {name!r}"
        fields, error = _load(data[name])
        if error is None:
            entries.append(Entry(name, where, fields))
        else:
            broken[name] = f"{where}: {error}"
    return Document(key, tuple(entries), broken)


def saturation_names(settings: FleetSettings) -> tuple[str, ...]:
    """Names under which thresholds are accepted, best first."""
    return tuple(dict.fromkeys((settings.saturation_config_map, *OLDER_SATURATION_NAMES)))


def find(
    config_maps: Mapping[Key, Mapping[str, str]], namespace: str, names: Iterable[str]
) -> tuple[Document | None, list[ObjectNotice]]:
    """The first present and non-empty ConfigMap of ``names``; says so when a second one is shadowed by it."""
    found: Document | None = None
    notices: list[ObjectNotice] = []
    for name in names:
        key = Key(namespace, name)
        data = config_maps.get(key)
        if not data:
            continue
        if found is None:
            found = read_document(key, data)
        else:
            message = f"ConfigMap {key} is not used: {found.name} takes precedence"
            notices.append((str(key), Notice("ConfigurationIgnored", message, "Warning")))
    return found, notices


def look_alikes(
    config_maps: Mapping[Key, Mapping[str, str]], settings: FleetSettings, namespaces: Iterable[str]
) -> list[ObjectNotice]:
    """Warnings for ConfigMaps whose names suggest that somebody expects them to be read."""
    known = {*saturation_names(settings), settings.scale_to_zero_config_map}
    relevant = {settings.controller_namespace, *namespaces}
    notices: list[ObjectNotice] = []
    for key in sorted(config_maps):
        name = key.name.lower()
        if key.namespace not in relevant or key.name in known or not any(word in name for word in _TELLING):
            continue
        zero = "zero" in name
        right = settings.scale_to_zero_config_map if zero else settings.saturation_config_map
        message = (
            f"ConfigMap {key} is not read: the name looked up is {right!r}; rename it if it is meant for autoscaling"
        )
        notices.append((str(key), Notice("ConfigurationIgnored", message, "Warning")))
    return notices


def entry_subject(entry: Entry, local_namespace: str | None) -> tuple[str, str | None] | None:
    """(model ID, namespace or ``None`` for any) an entry is for, or ``None`` when it names no model.

    The ``model_id`` and ``namespace`` fields count under any key; the key form ``modelID#namespace`` fills what is
    missing. In a namespace-local map a missing namespace means that namespace.
    """
    model, namespace = entry.fields.get("model_id"), entry.fields.get("namespace")
    if not model and "#" in entry.key:
        key_model, _, key_namespace = entry.key.rpartition("#")
        model, namespace = key_model, namespace or key_namespace
    if not model:
        return None
    return str(model), (str(namespace) if namespace else local_namespace)
