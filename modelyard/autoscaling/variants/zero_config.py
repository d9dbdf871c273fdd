"""Scale-to-zero configuration: which models, after how much idleness. ``retentions``: windows to count over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from modelyard.autoscaling.configuration import (
    DEFAULT_ENTRY,
    Document,
    Entry,
    FleetSettings,
    Remarks,
    entry_subject,
    find,
    zero_names,
)
from modelyard.autoscaling.fleet import Variant
from modelyard.objects import Key, parse_go_duration, shown

DEFAULT_RETENTION = 600.0
LONGEST = 24 * 3600.0
"""Seconds. Over how long requests are counted is over how long Prometheus has to look, in every tick."""
MOST_RETENTIONS = 3
"""Different retentions that the ConfigMap of a namespace may ask for: each is a query of its own."""
_FIELDS = ("model_id", "namespace", "enable_scale_to_zero", "retention_period")
_ALIASES = {"modelID": "model_id", "enableScaleToZero": "enable_scale_to_zero", "retentionPeriod": "retention_period"}
"""Fields as the SLO form's reference calls them."""
_DEFAULTS = (DEFAULT_ENTRY, "__defaults__")


class ZeroRule(NamedTuple):
    """``retention`` is the idleness in seconds after which an enabled model goes to zero."""

    enabled: bool
    retention: float

    @property
    def window(self) -> int:
        """The retention as the whole seconds under which ``Signals.request_counts`` is keyed."""
        return max(1, round(self.retention))


class _Layer(NamedTuple):
    where: str
    enabled: bool | None = None
    retention: float | None = None


class _Map(NamedTuple):
    default: _Layer = _Layer("")
    models: Mapping[tuple[str, str | None], _Layer] = {}


class ZeroConfigs:
    """All scale-to-zero configuration of one tick."""

    def __init__(self, config_maps: Mapping[Key, Mapping[str, str]], settings: FleetSettings) -> None:
        self._config_maps = config_maps
        self._settings = settings
        self.notices = Remarks()
        self._maps: dict[str, _Map | None] = {}
        self._global = self._map(settings.controller_namespace) or _Map()

    def resolve(self, namespace: str, model_id: str) -> ZeroRule:
        """The rule of a model: its entry, else the default entry, else the fleet settings and ten minutes."""
        source = (self._map(namespace) if namespace else None) or self._global
        model = source.models.get((model_id, namespace)) or source.models.get((model_id, None)) or _Layer("")
        given = (model.enabled, source.default.enabled, self._settings.scale_to_zero)
        retention = model.retention or source.default.retention or DEFAULT_RETENTION
        return ZeroRule(next(enabled for enabled in given if enabled is not None), retention)

    def _map(self, namespace: str) -> _Map | None:
        if namespace not in self._maps:
            names = zero_names(self._settings, namespace)
            document, notices = find(self._config_maps, self._settings, namespace, names)
            self.notices += notices
            self._maps[namespace] = None if document is None else self._read(document, namespace)
        return self._maps[namespace]

    def _read(self, document: Document, namespace: str) -> _Map:
        local = None if namespace == self._settings.controller_namespace else namespace
        default = _Layer("")
        models: dict[tuple[str, str | None], _Layer] = {}
        for problem in document.broken.values():
            self.notices.warn(document, f"{problem}; the entry is skipped")
        for entry in document.entries:
            written = {_ALIASES.get(name, name): name for name in entry.fields}
            entry = entry._replace(fields={known: entry.fields[name] for known, name in written.items()})
            layer = self._layer(document, entry, written)
            if entry.key in _DEFAULTS:
                if default.where:
                    self.notices.warn(document, f"{entry.where}: second default entry; {default.where} is used")
                else:
                    default = layer
                continue
            subject = entry_subject(entry, local)
            if subject is None:
                self.notices.warn(document, f"{entry.where}: entry without model_id; it is skipped")
            elif subject in models:
                text = f"second entry for model {shown(subject[0])}; {models[subject].where} is used"
                self.notices.warn(document, f"{entry.where}: {text}")
            else:
                models[subject] = layer
        return _Map(default, models) if local is None else self._few(document, default, models)

    def _few(self, document: Document, default: _Layer, models: Mapping[tuple[str, str | None], _Layer]) -> _Map:
        """The longest retention counts for all where there are too many different ones."""
        mine = {subject: layer for subject, layer in models.items() if subject[1] == document.id.namespace}
        usual = default.retention or DEFAULT_RETENTION
        found = {usual, *(layer.retention or usual for layer in mine.values())}
        if len(found) <= MOST_RETENTIONS:
            return _Map(default, mine)
        longest = max(found)
        without = f"{DEFAULT_RETENTION:g} s where none is given"
        text = f"{len(found)} different retentions ({without}), at most {MOST_RETENTIONS} can be had"
        self.notices.warn(document, f"ConfigMap {document.name}: {text}: the longest, {longest:g} s, is used for all")
        same = {subject: layer._replace(retention=longest) for subject, layer in mine.items()}
        return _Map(default._replace(retention=longest), same)

    def _layer(self, document: Document, entry: Entry, written: Mapping[str, str]) -> _Layer:
        """``written``: the entry's names of its fields."""
        enabled = entry.fields.get("enable_scale_to_zero")
        if enabled is not None and not isinstance(enabled, bool):
            field = f"{entry.where}: {written['enable_scale_to_zero']} = {shown(enabled)}"
            self.notices.warn(document, f"{field}: must be true or false; inherited")
            enabled = None
        retention: float | None = None
        if (text := entry.fields.get("retention_period")) is not None:
            field = f"{entry.where}: {written['retention_period']}"
            try:
                retention = parse_go_duration(str(text))
            except ValueError as error:
                self.notices.warn(document, f"{field}: {error}; inherited")
            else:
                if retention <= 0:
                    self.notices.warn(document, f"{field} = {shown(text)}: must be above 0; inherited")
                    retention = None
                elif retention > LONGEST:
                    self.notices.warn(document, f"{field} = {shown(text)} is longer than a day; a day is used")
                    retention = LONGEST
        self.notices.unknown(document, entry.where, entry.fields, _FIELDS)
        return _Layer(entry.where, enabled, retention)


def retentions(
    variants: Iterable[Variant], config_maps: Mapping[Key, Mapping[str, str]], settings: FleetSettings
) -> dict[tuple[str, str], int]:
    """Window in seconds by (namespace, model) for which request counts are needed: models that may go to zero."""
    configs = ZeroConfigs(config_maps, settings)
    windows: dict[tuple[str, str], int] = {}
    for variant in variants:
        subject = (variant.key.namespace, variant.model_id)
        if subject not in windows and (rule := configs.resolve(*subject)).enabled:
            windows[subject] = rule.window
    return windows
