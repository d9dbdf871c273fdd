"""Finding and reading the ConfigMaps that configure the decision: one YAML document per data key.

Only well-known names are read; names that merely look like one are reported, because a setting nobody reads is the
hardest kind of mistake to see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.objects import MAX_TEXT, DocumentError, Key, Notice, few, parse_document, shown

DEFAULT_ENTRY = "default"
OLDER_SATURATION_NAMES = ("wva-saturation-scaling-config", "saturation-scaling-config", "capacity-scaling-config")
PUBLISHED_ZERO_NAME = "model-scale-to-zero-config"
"""Of the SLO form's reference, which reads it in the controller's namespace."""
_PROCESS_SETTINGS = "variantautoscaling-config"
"""The end of the names under which the references keep what is a parameter or an environment variable here."""
_TELLING = ("saturation", "scale-to-zero", "scaletozero", "capacity-scaling")
MOST_REMARKS = 20
"""Remarks about one ConfigMap; of the others it is only said how many there are."""
MOST_KEYS = 200
"""Keys that are read of a tenant's ConfigMap, in all of which ``MAX_TEXT`` characters."""

ConfigMaps = Mapping[Key, Mapping[str, str]]
ObjectNotice = tuple[str, Notice]
"""(``namespace/name`` of the ConfigMap, what to say about it)."""


class Remarks(list[ObjectNotice]):
    """What there is to say about ConfigMaps, of each no more than anybody reads."""

    def __init__(self) -> None:
        super().__init__()
        self._made: Counter[str] = Counter()
        self._last: dict[str, int] = {}

    def say(self, about: str, notice: Notice) -> None:
        """Add a remark; beyond ``MOST_REMARKS`` it is counted in the last."""
        self._made[about] += 1
        more = self._made[about] - MOST_REMARKS
        if more > 0:
            notice = Notice("InvalidConfiguration", f"ConfigMap {about}: and {more} more remarks like these", "Warning")
        if more > 1:
            self[self._last[about]] = about, notice
        else:
            self._last[about] = len(self)
            self.append((about, notice))

    def warn(self, document: Document, message: str) -> None:
        self.say(document.name, Notice("InvalidConfiguration", message, "Warning"))

    def unknown(self, document: Document, where: str, fields: Iterable[object], known: Container[str]) -> None:
        if odd := [shown(field) for field in fields if field not in known]:
            self.warn(document, f"{where}: unknown field{'s' * (len(odd) > 1)} {', '.join(few(odd))}; ignored")


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
        return str(self.id)


MAX_SHORT = 2048
"""Characters of a text of which many are remembered."""


def _load(text: str) -> tuple[Mapping[str, object], str | None]:
    """One data value's mapping, or why it is none. Cached: configuration rarely changes between ticks."""
    return _short(text) if len(text) <= MAX_SHORT else _long(text)


def _parse(text: str) -> tuple[Mapping[str, object], str | None]:
    try:
        value = parse_document(text)
    except DocumentError as error:
        return {}, str(error)
    if value is None:
        return {}, None
    if not isinstance(value, dict):
        return {}, f"must be a YAML mapping of fields, not {type(value).__name__}"
    return {str(key): item for key, item in value.items()}, None


_short, _long = lru_cache(maxsize=2048)(_parse), lru_cache(maxsize=64)(_parse)


def read_document(key: Key, data: Mapping[str, str], settings: FleetSettings) -> Document:
    """Parse every data key, in sorted order; outside of the controller's namespace up to a limit."""
    entries: list[Entry] = []
    broken: dict[str, str] = {}
    limited = key.namespace != settings.controller_namespace
    left = MAX_TEXT
    for number, name in enumerate(sorted(data)):
        where = f"ConfigMap {key} key {name!r}"
        most = "what a ConfigMap outside of the controller's namespace may have"
        if limited and number == MOST_KEYS:
            broken[name] = f"{where}: neither it nor any key after it is read: {MOST_KEYS} keys are {most}"
            break
        if limited and len(data[name]) > left:
            broken[name] = f"{where}: is not read: {MAX_TEXT} characters in all are {most}"
            continue
        left -= len(data[name])
        fields, error = _load(data[name])
        if error is None:
            entries.append(Entry(name, where, fields))
        else:
            broken[name] = f"{where}: {error}"
    return Document(key, tuple(entries), broken)


def saturation_names(settings: FleetSettings) -> tuple[str, ...]:
    """Names under which thresholds are accepted, best first."""
    return tuple(dict.fromkeys((settings.saturation_config_map, *OLDER_SATURATION_NAMES)))


def zero_names(settings: FleetSettings, namespace: str) -> tuple[str, ...]:
    """Names under which scale-to-zero entries are accepted in a namespace, best first."""
    further = (PUBLISHED_ZERO_NAME,) if namespace == settings.controller_namespace else ()
    return tuple(dict.fromkeys((settings.scale_to_zero_config_map, *further)))


def find(
    config_maps: ConfigMaps, settings: FleetSettings, namespace: str, names: Iterable[str]
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
            found = read_document(key, data, settings)
        else:
            message = f"ConfigMap {key} is not used: {found.name} takes precedence"
            notices.append((str(key), Notice("ConfigurationIgnored", message, "Warning")))
    return found, notices


def look_alikes(config_maps: ConfigMaps, settings: FleetSettings, namespaces: Iterable[str]) -> list[ObjectNotice]:
    """Warnings for ConfigMaps whose names suggest that somebody expects them to be read."""
    relevant = {settings.controller_namespace, *namespaces}
    notices: list[ObjectNotice] = []
    for key in sorted(config_maps):
        name = key.name.lower()
        if key.namespace == settings.controller_namespace and name.endswith(_PROCESS_SETTINGS):
            message = (
                f"ConfigMap {key} is not read: what it sets ({', '.join(sorted(config_maps[key])) or 'nothing'}) are "
                "parameters of the flow autoscale and environment variables of its worker; move it there and delete it"
            )
        else:
            known = (*saturation_names(settings), *zero_names(settings, key.namespace))
            if key.namespace not in relevant or key.name in known or not any(word in name for word in _TELLING):
                continue
            right = settings.scale_to_zero_config_map if "zero" in name else settings.saturation_config_map
            message = f"ConfigMap {key} is not read: the name looked up is {right!r}; rename it if it is meant for "
            message += "autoscaling"
        notices.append((str(key), Notice("ConfigurationIgnored", message, "Warning")))
    return notices


def entry_subject(entry: Entry, local_namespace: str | None) -> tuple[str, str | None] | None:
    """(model ID, namespace or ``None`` for any) an entry is for, or ``None`` when it names no model.

    Fields count under any key; the key form ``modelID#namespace``, then a local map's namespace, fill what is missing.
    """
    model, namespace = entry.fields.get("model_id"), entry.fields.get("namespace")
    if not model and "#" in entry.key:
        key_model, _, key_namespace = entry.key.rpartition("#")
        model, namespace = key_model, namespace or key_namespace
    if not model:
        return None
    return str(model), (str(namespace) if namespace else local_namespace)
