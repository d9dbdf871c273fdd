"""Which models may go to zero replicas, and after how much idleness. Read from the scale-to-zero ConfigMap.

``retentions`` are the windows to count requests over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from modelyard.autoscaling.config_maps import DEFAULT_ENTRY, Document, Entry, ObjectNotice, entry_subject, find
from modelyard.autoscaling.fleet import Variant
from modelyard.autoscaling.settings import FleetSettings
from modelyard.objects import Key, Notice
from modelyard.objects.documents import shown
from modelyard.objects.durations import parse_go_duration

DEFAULT_RETENTION = 600.0
_LONG = 24 * 3600.0
_FIELDS = ("model_id", "namespace", "enable_scale_to_zero", "retention_period")


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
    default: _Layer
    models: Mapping[tuple[str, str | None], _Layer]


class ZeroConfigs:
    """All scale-to-zero configuration of one tick."""

    def __init__(self, config_maps: Mapping[Key, Mapping[str, str]], settings: FleetSettings) -> None:
        self._config_maps = config_maps
        self._settings = settings
        self.notices: list[ObjectNotice] = []
        self._maps: dict[str, _Map | None] = {}
        self._global = self._map(settings.controller_namespace)

    def resolve(self, namespace: str, model_id: str) -> ZeroRule:
        """The rule of a model: its entry, else the default entry, else the fleet settings and ten minutes."""
        source = (self._map(namespace) if namespace else None) or self._global
        if source is None:
            return ZeroRule(self._settings.scale_to_zero, DEFAULT_RETENTION)
        nothing = _Layer("")
        model = source.models.get((model_id, namespace)) or source.models.get((model_id, None)) or nothing
        enabled = next(
            (layer.enabled for layer in (model, source.default) if layer.enabled is not None),
            self._settings.scale_to_zero,
        )
        retention = model.retention or source.default.retention or DEFAULT_RETENTION
        return ZeroRule(enabled, retention)

    def _map(self, namespace: str) -> _Map | None:
        if namespace not in self._maps:
            document, notices = find(self._config_maps, namespace, (self._settings.scale_to_zero_config_map,))
            self.notices += notices
            self._maps[namespace] = None if document is None else self._read(document, namespace)
        return self._maps[namespace]

    def _warn(self, document: Document, message: str) -> None:
        self.notices.append((document.name, Notice("InvalidConfiguration", message, "Warning")))

    def _read(self, document: Document, namespace: str) -> _Map:
        local = None if namespace == self._settings.controller_namespace else namespace
        default = _Layer("")
        models: dict[tuple[str, str | None], _Layer] = {}
        for problem in document.broken.values():
            self._warn(document, f"{problem}; the entry is skipped")
        for entry in document.entries:
            layer = self._layer(document, entry)
            if entry.key == DEFAULT_ENTRY:
                default = layer
                continue
            subject = entry_subject(entry, local)
            if subject is None:
                self._warn(document, f"{entry.where}: entry without model_id; it is skipped")
            elif subject in models:
                self._warn(
                    document, f"{entry.where}: second entry for model {subject[0]!r}; {models[subject].where} is used"
                )
            else:
                models[subject] = layer
        return _Map(default, models)

    def _layer(self, document: Document, entry: Entry) -> _Layer:
        enabled = entry.fields.get("enable_scale_to_zero")
        if enabled is not None and not isinstance(enabled, bool):
            self._warn(
                document, f"{entry.where}: enable_scale_to_zero = {shown(enabled)}: must be true or false; inherited"
            )
            enabled = None
        retention: float | None = None
        text = entry.fields.get("retention_period")
        if text is not None:
            try:
                retention = parse_go_duration(str(text))
            except ValueError as error:
                self._warn(document, f"{entry.where}: retention_period: {error}; inherited")
            else:
                if retention <= 0:
                    self._warn(document, f"{entry.where}: retention_period = {shown(text)}: must be above 0; inherited")
                    retention = None
                elif retention > _LONG:
                    self._warn(document, f"{entry.where}: retention_period = {shown(text)} is longer than a day")
        for field in entry.fields:
            if field not in _FIELDS:
                self._warn(document, f"{entry.where}: unknown field {shown(field)}; ignored")
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
