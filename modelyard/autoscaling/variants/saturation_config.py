"""Thresholds of the saturation analysis: built-in defaults, then the ``default`` entry, then the model's override.

``decide`` builds one ``SaturationConfigs`` per tick and asks it per model group. Every field is tri-state: absent
inherits, zero is zero. The merged result is validated, never a single layer alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from modelyard.autoscaling.configuration import (
    DEFAULT_ENTRY,
    Document,
    Entry,
    FleetSettings,
    Remarks,
    entry_subject,
    find,
    saturation_names,
)
from modelyard.autoscaling.decisions import Step
from modelyard.autoscaling.fleet import Quota, short_name
from modelyard.objects import SHOWN, Key, Notice, cut, shown
from modelyard.resources import explain


class Thresholds(NamedTuple):
    """When a replica is saturated and how much mean spare triggers growth. KV values are fractions, queues requests."""

    kv: float = 0.80
    queue: float = 5.0
    kv_trigger: float = 0.10
    queue_trigger: float = 3.0


class TokenThresholds(NamedTuple):
    """The token analyzer's: load over capacity above which a model grows, and below which it may shrink."""

    up: float = 0.85
    down: float = 0.70


Gpus = Annotated[int, Field(strict=True, ge=-1)]
"""A number of GPUs; -1 is no limit."""


class Limiter(BaseModel):
    """An entry of ``limiters``: GPUs that the nodes have (``gpu-inventory``), or a quota of them."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)

    type: Literal["gpu-inventory", "inventory", "quota"]
    name: str = Field("quota", min_length=1, max_length=63)
    scope: Literal["cluster", "namespace"] | None = None
    quotas: dict[str, Gpus] | None = None
    namespace_quotas: dict[str, dict[str, Gpus]] | None = None
    exclude: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _says_what_it_is(self) -> Self:
        given = {"quotas": self.quotas is not None, "namespaceQuotas": self.namespace_quotas is not None}
        wanted = {"cluster": ("quotas",), "namespace": ("namespaceQuotas",)}.get(self.scope or "", tuple(given))
        if self.type != "quota" and (any(given.values()) or self.scope or self.exclude):
            raise ValueError(f"{self.type} takes no quotas; write them under an entry of type: quota")
        if self.type == "quota" and not any(given[name] for name in wanted):
            raise ValueError(f"has no {' and no '.join(wanted)}; give the GPUs allowed by accelerator")
        if self.type == "quota" and any(given[name] for name in given if name not in wanted):
            raise ValueError(f"scope {self.scope} takes {wanted[0]} only; leave scope out to give both")
        return self


class _Limiters(BaseModel):
    limiters: list[Limiter]


def _quota(entry: Limiter) -> Quota:
    caps, spaces = entry.quotas, entry.namespace_quotas
    of_spaces = None if spaces is None else {space: _short(of_space) for space, of_space in spaces.items()}
    return Quota(entry.name, None if caps is None else _short(caps), of_spaces, frozenset(entry.exclude))


def _short(caps: Mapping[str, int]) -> dict[str, int]:
    return {short_name(name): gpus for name, gpus in caps.items()}


BUILT_IN: Mapping[str, object] = {
    "kvCacheThreshold": 0.80,
    "queueLengthThreshold": 5.0,
    "kvSpareTrigger": 0.10,
    "queueSpareTrigger": 3.0,
    "enableLimiter": False,
    "limiters": [],
    "analyzerName": "",
    "scaleUpThreshold": 0.85,
    "scaleDownBoundary": 0.70,
}
_PERCENTAGES = ("kvCacheThreshold", "queueLengthThreshold", "kvSpareTrigger", "queueSpareTrigger")
_TOKENS = ("scaleUpThreshold", "scaleDownBoundary")
_NUMBERS = tuple(name for name, value in BUILT_IN.items() if isinstance(value, float))
_SUBJECT = ("model_id", "namespace")
TOKEN_ANALYZER = "saturation"


@dataclass(frozen=True, slots=True)
class Effective:
    """The configuration one model group is decided with.

    ``errors`` forbid a decision. ``unsafe`` values pass the documented validation and still make scaling endless or
    impossible: they forbid a decision in repaired mode and are warnings in published mode. ``step`` shows the values.
    ``tokens`` are the thresholds of the token analyzer where it decides, ``None`` where the percentage analysis does.
    """

    thresholds: Thresholds
    errors: tuple[str, ...]
    unsafe: tuple[str, ...]
    step: Step
    tokens: TokenThresholds | None = None
    analyzer: str = ""


class _Layer(NamedTuple):
    where: str
    values: Mapping[str, object]
    errors: Mapping[str, str]
    """Message by field; a document that could not be read at all has the field ``""``."""


class _Map:
    def __init__(self, source: str) -> None:
        self.source = source
        self.default = _Layer("", {}, {})
        self.overrides: dict[tuple[str, str | None], _Layer] = {}
        self.resolved: dict[tuple[tuple[str, str | None] | None, str], Effective] = {}
        """By override (``None``: only the default entry) and analyzer."""

    def override(self, namespace: str, model_id: str) -> tuple[str, str | None] | None:
        return next((key for key in ((model_id, namespace), (model_id, None)) if key in self.overrides), None)


class SaturationConfigs:
    """All saturation configuration of one tick; local maps are read when first asked for."""

    def __init__(
        self,
        config_maps: Mapping[Key, Mapping[str, str]],
        settings: FleetSettings,
        analyzers: Collection[str] = ("", TOKEN_ANALYZER),
    ) -> None:
        """``analyzers``: values of ``analyzerName`` that choose a strategy."""
        self._config_maps = config_maps
        self._settings = settings
        self._analyzers = analyzers
        self.notices = Remarks()
        self._global_namespace = settings.controller_namespace
        self._maps: dict[str, _Map | None] = {}
        document, notices = find(config_maps, settings, self._global_namespace, saturation_names(settings))
        self.notices += notices
        if document is None:
            name = f"{self._global_namespace}/{settings.saturation_config_map}"
            message = f"ConfigMap {name} does not exist or is empty: built-in thresholds apply ({_summary(BUILT_IN)})"
            self.notices.say(name, Notice("DefaultConfiguration", message))
            self._global = _Map("built-in defaults")
        else:
            self._global = self._read(document, local=None)
        values = self._global.default.values
        entries: Iterable[Limiter] = values.get("limiters", ())  # type: ignore[assignment]
        self.limiter = values.get("enableLimiter") is True or any(entry.type != "quota" for entry in entries)
        """Whether the global default entry switches the GPU limiter on."""
        self.quotas = tuple(_quota(entry) for entry in entries if entry.type == "quota")

    def resolve(self, namespace: str, model_id: str) -> Effective:
        """The effective configuration of a model in a namespace. Never raises: problems are in ``errors``."""
        source = self._global
        if namespace and namespace != self._global_namespace:
            if namespace not in self._maps:
                document, notices = find(self._config_maps, self._settings, namespace, saturation_names(self._settings))
                self.notices += notices
                self._maps[namespace] = None if document is None else self._read(document, local=namespace)
            source = self._maps[namespace] or self._global
        subject = source.override(namespace, model_id)
        analyzer = self._analyzer(namespace, model_id)
        if (subject, analyzer) not in source.resolved:
            override = source.overrides[subject] if subject else None
            source.resolved[subject, analyzer] = self._merge(source, override, analyzer)
        return source.resolved[subject, analyzer]

    def _analyzer(self, namespace: str, model_id: str) -> str:
        """The global ConfigMap alone decides, by model if it wants."""
        subject = self._global.override(namespace, model_id)
        return _analyzer_of(self._global.default, self._global.overrides[subject] if subject else None)

    def _read(self, document: Document, local: str | None) -> _Map:
        result = _Map(f"ConfigMap {document.name}")
        for key, problem in document.broken.items():
            self.notices.warn(document, f"{problem}; the entry is skipped")
            if key == DEFAULT_ENTRY:
                # Guessing thresholds because of a typo would move every model: keep replicas until it is mended.
                result.default = _Layer(f"ConfigMap {document.name} key 'default'", {}, {"": problem})
        for entry in document.entries:
            is_default = entry.key == DEFAULT_ENTRY
            layer = self._layer(document, entry)
            for field in ("enableLimiter", "limiters"):
                if field in layer.values and not (is_default and local is None):
                    text = f"{field} is read from the global 'default' entry only; ignored here"
                    self.notices.warn(document, f"{entry.where}: {text}")
            if "analyzerName" in layer.values and local is not None:
                text = "analyzerName is read from the global ConfigMap only; ignored here"
                self.notices.warn(document, f"{entry.where}: {text}")
            elif layer.values.get("analyzerName", "") not in self._analyzers:
                known = " or ".join(repr(name) for name in sorted(self._analyzers) if name)
                text = f"unknown analyzer; known is {known} or none; the percentage analysis decides"
                message = f"{layer.where}: analyzerName = {shown(layer.values['analyzerName'])}: {text}"
                self.notices.say(document.name, Notice("AnalyzerNotAvailable", message, "Warning"))
            if is_default:
                result.default = layer
                continue
            subject = entry_subject(entry, local)
            if subject is None:
                self.notices.warn(document, f"{entry.where}: override without model_id; the entry is skipped")
            elif subject in result.overrides:
                text = f"second override for model {shown(subject[0])} in namespace {cut(subject[1] or '(any)', SHOWN)}"
                self.notices.warn(document, f"{entry.where}: {text}; {result.overrides[subject].where} is used")
            else:
                result.overrides[subject] = layer
        for subject in (None, *result.overrides):
            override = result.overrides[subject] if subject else None
            model = subject[0] if subject else ""
            analyzer = _analyzer_of(result.default, override) if local is None else self._analyzer(local, model)
            effective = result.resolved[subject, analyzer] = self._merge(result, override, analyzer)
            for message in (*effective.errors, *effective.unsafe, *_unwise(effective, self._settings)):
                self.notices.warn(document, message)
        return result

    def _layer(self, document: Document, entry: Entry) -> _Layer:
        values: dict[str, object] = {}
        errors: dict[str, str] = {}
        self.notices.unknown(document, entry.where, entry.fields, (*BUILT_IN, *_SUBJECT))
        for field, value in entry.fields.items():
            if field not in BUILT_IN or value is None:
                continue
            if field == "limiters":
                try:
                    values[field] = tuple(_Limiters.model_validate({field: value}).limiters)
                except ValidationError as error:
                    told = "; ".join(f"{path}: {text}" for path, text in explain(_Limiters, error))
                    errors[field] = f"{entry.where}: {told}"
            elif problem := _wrong_type(field, value):
                errors[field] = f"{entry.where}: {field} = {shown(value)}: {problem}"
            else:
                values[field] = float(value) if field in _NUMBERS and isinstance(value, int | float) else value
        return _Layer(entry.where, values, errors)

    def _merge(self, source: _Map, override: _Layer | None, analyzer: str) -> Effective:
        layers = [source.default] if override is None else [source.default, override]
        merged = dict(BUILT_IN)
        origin: dict[str, str] = {}
        errors: dict[str, str] = {}
        for layer in layers:
            merged.update(layer.values)
            origin.update(dict.fromkeys(layer.values, layer.where))
            # A field that a layer sets well is not spoilt by a bad value beneath it.
            errors = {field: text for field, text in errors.items() if field not in layer.values} | dict(layer.errors)
        merged["analyzerName"] = analyzer
        invalid, unsafe = _validate(merged, origin, layers[-1].where or "built-in defaults")
        where = " + ".join(layer.where for layer in layers if layer.where) or source.source
        summary = _summary(merged) if analyzer in ("", TOKEN_ANALYZER) else f"analyzer {analyzer}"
        step = Step("configuration", None, None, f"{summary} from {where}")
        tokens = TokenThresholds(*_numbers(merged, _TOKENS)) if analyzer == TOKEN_ANALYZER else None
        thresholds = Thresholds(*_numbers(merged, _PERCENTAGES))
        return Effective(thresholds, (*errors.values(), *invalid), unsafe, step, tokens, analyzer)


def _analyzer_of(default: _Layer, override: _Layer | None) -> str:
    name = default.values.get("analyzerName", "")
    return str(name if override is None else override.values.get("analyzerName", name))


def _wrong_type(field: str, value: object) -> str | None:
    if field in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return "must be a finite number"
    elif field == "enableLimiter":
        if not isinstance(value, bool):
            return "must be true or false"
    elif not isinstance(value, str):
        return "must be a string"
    return None


def _numbers(merged: Mapping[str, object], names: Iterable[str]) -> Iterator[float]:
    return (value for name in names if isinstance(value := merged[name], float))


def _summary(merged: Mapping[str, object]) -> str:
    names = (*_PERCENTAGES[:2], *_TOKENS) if merged["analyzerName"] == TOKEN_ANALYZER else _PERCENTAGES
    return ", ".join(f"{name} {merged[name]:g}" for name in names)


def _validate(
    merged: Mapping[str, object], origin: Mapping[str, str], fallback: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(errors of the documented validation, values it lets through although they cannot work)."""
    kv, queue, kv_trigger, queue_trigger = _numbers(merged, _PERCENTAGES)
    errors: list[str] = []

    def say(field: str, problem: str) -> str:
        return f"{origin.get(field, fallback)}: {field} = {merged[field]:g}: {problem}"

    for field, value in (("kvCacheThreshold", kv), ("kvSpareTrigger", kv_trigger)):
        if not 0 <= value <= 1:
            errors.append(say(field, "must be between 0 and 1"))
    for field, value in (("queueLengthThreshold", queue), ("queueSpareTrigger", queue_trigger)):
        if value < 0:
            errors.append(say(field, "must not be negative"))
    if 0 <= kv < kv_trigger <= 1:
        errors.append(say("kvCacheThreshold", f"must not be below kvSpareTrigger = {kv_trigger:g}"))
    if merged["analyzerName"] == TOKEN_ANALYZER:
        up, down = _numbers(merged, _TOKENS)
        for field, value in (("scaleUpThreshold", up), ("scaleDownBoundary", down)):
            if not 0 < value <= 1:
                errors.append(say(field, "must be above 0 and at most 1"))
        if up <= down:
            errors.append(say("scaleUpThreshold", f"must be above scaleDownBoundary = {down:g}"))
    unsafe: list[str] = []
    for field, value in (("kvCacheThreshold", kv), ("queueLengthThreshold", queue)):
        if value == 0:
            unsafe.append(say(field, "every replica counts as saturated at 0; use a value above 0"))
    if queue_trigger > queue > 0:
        unsafe.append(say("queueSpareTrigger", f"above queueLengthThreshold = {queue:g}: even idle replicas scale up"))
    return tuple(errors), tuple(unsafe)


def _unwise(effective: Effective, settings: FleetSettings) -> list[str]:
    kv, queue, kv_trigger, queue_trigger = effective.thresholds
    where = effective.step.detail.partition(" from ")[2]
    margin = 1 + settings.scale_down_margin
    warnings: list[str] = []
    if queue > 0 and queue_trigger == queue:
        text = f"queueSpareTrigger = {queue_trigger:g} equals queueLengthThreshold: any waiting request scales up"
        warnings.append(f"{where}: {text}")
    elif 0 < queue_trigger < queue < max(queue_trigger * margin, queue_trigger + 1):
        text = f"queueSpareTrigger = {queue_trigger:g} is so near queueLengthThreshold = {queue:g}"
        warnings.append(f"{where}: {text} that scale-down is hardly possible")
    if 0 < kv_trigger <= kv < kv_trigger * margin:
        text = f"kvSpareTrigger = {kv_trigger:g} is so near kvCacheThreshold = {kv:g}"
        warnings.append(f"{where}: {text} that scale-down is impossible")
    return warnings
