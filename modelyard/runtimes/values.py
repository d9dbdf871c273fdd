"""Models, runtimes and wishes as plain values. Nothing here raises for what an object says: what is wrong with it is
kept, so that it can be told of that object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple

from modelyard.models.delivery import read_size, size_of
from modelyard.models.detection import CAPABILITIES, Facts, fill, weight_bits
from modelyard.models.storage import FetchError, source_uri, storage_warnings
from modelyard.objects import (
    LONGEST_PROBLEM,
    MODE,
    MULTI_NODE,
    OF_RUNTIMES,
    RAW,
    SPLIT,
    annotations_of,
    container_gpus,
    cut,
    mapping,
    printable,
)
from modelyard.resources import (
    BaseModel,
    ClusterBaseModel,
    ClusterServingRuntime,
    InferenceService,
    ResourceInvalid,
    ServingRuntime,
)
from modelyard.resources.ome import (
    MAIN,
    BaseModelSpec,
    Container,
    InferenceServiceSpec,
    ModelFormat,
    ModelFrameworkSpec,
    PodFields,
    ServingRuntimeSpec,
    SupportedModelFormat,
    engine_spec,
    main_container,
    older_form_remarks,
)
from modelyard.runtimes.accelerators import Constraints
from modelyard.runtimes.protocols import protocol_name, unknown_protocols

RELEASES = "modelyard.dev/version-comparison"
"""Annotation of a runtime: ``release`` compares major, minor and patch alone where an operator orders versions."""
ACCELERATOR_CLASS = "ome.io/accelerator-class"

_MAX_ENTRIES = 500


class Library(NamedTuple):
    """A format or a framework, with its version; in a runtime also how versions compare, and what it weighs."""

    name: str
    version: str = ""
    operator: str = "Equal"
    weight: int = 1


class Diffusion(NamedTuple):
    """A diffusion pipeline. ``parts`` and ``others``: (name, library, class) of the usual components and of others."""

    class_name: str = ""
    parts: tuple[tuple[str, str, str], ...] = ()
    others: tuple[tuple[str, str, str], ...] = ()


LONGEST_TYPE: Final = 256
"""Characters of a model's type, format, framework, architecture and quantization. Each is compared with every entry of
every runtime, and named in the reason why they differ. A longer type is cut; another longer text is refused."""


class ModelKind(NamedTuple):
    """What a model is, as far as entries of runtimes are compared with it; empty where it is not known."""

    format: Library | None = None
    framework: Library | None = None
    architecture: str = ""
    quantization: str = ""
    method: str = ""
    """Quantization in the words of the files, such as ``compressed-tensors`` or ``awq``."""
    diffusion: Diffusion | None = None
    model_type: str = ""


class SupportedFormat(NamedTuple):
    """One kind of model that a runtime serves."""

    format: Library
    framework: Library | None = None
    architecture: str = ""
    quantization: str = ""
    diffusion: Diffusion | None = None
    auto_select: bool = False
    priority: int | None = None
    release_only: bool = False
    model_type: str = ""


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model as selection sees it. ``size`` is ``None`` where nobody knows it."""

    name: str
    namespace: str = ""
    kind: ModelKind = field(default_factory=ModelKind)
    size: Decimal | None = None
    size_text: str = ""
    disabled: bool = False
    facts: Facts = field(default_factory=Facts)
    problem: str = ""
    capabilities: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    """What is odd about it, and keeps nothing from serving it."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A ServingRuntime, or without a namespace a ClusterServingRuntime. Both ends of its sizes are included."""

    name: str
    namespace: str = ""
    formats: tuple[SupportedFormat, ...] = ()
    smallest: Decimal | None = None
    largest: Decimal | None = None
    size_texts: tuple[str, str] = ("", "")
    ranged: bool = False
    disabled: bool = False
    classes: tuple[str, ...] = ()
    """Accelerator classes it can use; none means that it says nothing of them."""
    devices: int = 0
    """Accelerators of one replica of its smallest component that holds the model."""
    mode: str = RAW
    protocols: tuple[str, ...] = ()
    problem: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def scope(self) -> str:
        return "namespace" if self.namespace else "cluster"

    @property
    def key(self) -> tuple[str, str]:
        """Namespace, empty for the whole cluster, and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a service wants beside its model."""

    classes: tuple[str, ...] = ()
    """Accelerator classes, all of which the runtime must be able to use."""
    constraints: Constraints | None = None
    policy: str = ""
    mode: str = ""
    tokens: int = 1
    """Tokens that the KV cache must have room for."""
    protocol: str = ""
    """Protocol that the endpoint must speak; empty is any."""


def model_view(spec: BaseModelSpec, name: str, namespace: str = "", facts: Facts | None = None) -> ModelView:
    """The model of this spec; what the spec leaves empty comes from the facts that were found in the files."""
    facts = facts or Facts()
    seen = fill(spec, facts)
    size = size_of(spec.model_parameter_size, facts)
    kind = ModelKind(
        _library(seen.model_format),
        _library(seen.model_framework),
        seen.model_architecture or "",
        seen.quantization or "",
        facts.quantization_method or "",
        _diffusion(seen.diffusion_pipeline),
        (seen.model_type or "")[:LONGEST_TYPE].strip(),
    )
    capable = tuple(cut(printable(one), 40) for one in (seen.model_capabilities or ())[:20])
    unknown = [one for one in capable if one not in CAPABILITIES]
    return ModelView(
        name,
        namespace,
        kind,
        size.parameters,
        size.text,
        bool(seen.disabled),
        _memory(facts, size.parameters, kind),
        size.problem,
        capable,
        tuple(_model_remarks(spec, size.remark, unknown)),
    )


def _model_remarks(spec: BaseModelSpec, size: str, unknown: Sequence[str]) -> Iterator[str]:
    if size:
        yield size
    if unknown:
        yield f"spec.modelCapabilities: {', '.join(unknown)}: not among the known ones"
    try:
        uri = source_uri(spec.storage.storage_uri, spec.storage.parameters)
    except FetchError:
        uri = None  # told where the files are fetched
    yield from storage_warnings(uri, spec.storage)


def _memory(facts: Facts, size: Decimal | None, kind: ModelKind) -> Facts:
    if facts.weight_bytes or size is None:
        return facts
    size_bytes = int(float(size) * weight_bits(kind.quantization or kind.method) / 8)
    return facts.model_copy(update={"weight_bytes": size_bytes})


def parse_model(obj: Mapping[str, Any], facts: Facts | None = None) -> ModelView:
    """Read a BaseModel or ClusterBaseModel as the API has it; without ``facts`` those of its status count."""
    kind = ClusterBaseModel if obj.get("kind") == "ClusterBaseModel" else BaseModel
    name, namespace = _identity(obj, kind.namespaced)
    try:
        read = kind.parse(obj, unknown="accept")
        _check_lengths(mapping(obj.get("spec")), "spec")
        return model_view(read.spec, name, namespace, facts or _stored(read))
    except Exception as error:  # whatever a tenant has thought of
        return ModelView(name, namespace, problem=_wrong(error))


def _stored(model: BaseModel) -> Facts:
    """What was found in the files before; nothing where somebody else has written something else there."""
    try:
        return Facts.model_validate((model.status and model.status.detected) or {})
    except ValueError:
        return Facts()


def _check_lengths(part: Mapping[str, Any], path: str) -> None:
    texts = {name: part.get(name) for name in ("modelArchitecture", "quantization")}
    for name in ("modelFormat", "modelFramework"):
        texts |= {f"{name}.{field}": mapping(part.get(name)).get(field) for field in ("name", "version")}
    for name, text in texts.items():
        if isinstance(text, str) and len(text) > LONGEST_TYPE:
            raise ValueError(f"{path}.{name} has {len(text)} characters; write at most {LONGEST_TYPE}")


def parse_runtime(obj: Mapping[str, Any]) -> Runtime:
    """A ServingRuntime or ClusterServingRuntime as the API has it."""
    kind = ClusterServingRuntime if obj.get("kind") == "ClusterServingRuntime" else ServingRuntime
    name, namespace = _identity(obj, kind.namespaced)
    try:
        read = kind.parse(obj, unknown="accept")
        formats = mapping(obj.get("spec")).get("supportedModelFormats")
        for index, entry in enumerate((formats if isinstance(formats, list) else [])[:_MAX_ENTRIES]):
            _check_lengths(mapping(entry), f"spec.supportedModelFormats[{index}]")
        return _runtime(read.spec, name, namespace, annotations_of(obj))
    except Exception as error:  # whatever a tenant has thought of
        return Runtime(name, namespace, problem=_wrong(error))


def _runtime(spec: ServingRuntimeSpec, name: str, namespace: str, annotations: Mapping[str, Any]) -> Runtime:
    release_only = annotations.get(RELEASES) == "release"
    found = spec.supported_model_formats or []
    problem = f"more than {_MAX_ENTRIES} supportedModelFormats" if len(found) > _MAX_ENTRIES else ""
    bounds: list[Decimal | None] = [None, None]
    remarks = [*older_form_remarks(spec), *unknown_protocols(spec.protocol_versions or ())]
    spec = spec.model_copy(update={"engine_config": engine_spec(spec), "workers": None})
    remarks += _remarks(spec)
    sizes = spec.model_size_range
    texts = (sizes.min or "", sizes.max or "") if sizes else ("", "")
    for place, (end, text) in enumerate(zip(("min", "max"), texts, strict=True)):
        try:
            if text:
                bounds[place], _, remark = read_size(text)
                remarks += [f"spec.modelSizeRange.{end}: {remark}"] if remark else []
        except ValueError as error:
            problem = f"spec.modelSizeRange.{end}: {error}"
    return Runtime(
        name,
        namespace,
        tuple(_format(entry, release_only) for entry in found[:_MAX_ENTRIES]),
        smallest=bounds[0],
        largest=bounds[1],
        size_texts=texts,
        ranged=any(texts),
        disabled=bool(spec.disabled),
        classes=_classes(spec.accelerator_requirements),
        devices=_devices(spec),
        mode=_mode(spec),
        protocols=tuple(map(protocol_name, spec.protocol_versions or ())),
        problem=problem,
        remarks=tuple(remarks),
    )


def parse_wishes(obj: Mapping[str, Any]) -> Wishes:
    """What an InferenceService asks for; nothing where it cannot be read, which is told on the service itself."""
    try:
        spec = InferenceService.parse(obj, unknown="accept").spec
        selector = mapping(spec.accelerator_selector)
        named = [annotations_of(obj).get(ACCELERATOR_CLASS), selector.get("acceleratorClass")]
        named += [
            mapping(part.accelerator_override).get("acceleratorClass") for part in (spec.engine, spec.decoder) if part
        ]
        mode = annotations_of(obj).get(MODE)
        return Wishes(
            classes=tuple(dict.fromkeys(one for one in named if isinstance(one, str) and one)),
            constraints=Constraints.of(mapping(selector.get("constraints"))),
            policy=_text(selector.get("policy")),
            mode=mode if mode in OF_RUNTIMES else "",
            protocol=_protocol(spec),
        )
    except Exception:  # whatever a tenant has thought of
        return Wishes()


def _protocol(spec: InferenceServiceSpec) -> str:
    model = spec.predictor.model if spec.predictor is not None and spec.engine is None else None
    if model is not None and model.protocol_version:
        return protocol_name(model.protocol_version)
    engine = spec.engine if spec.engine is not None else spec.predictor
    runner = getattr(engine, "runner", None)
    variables = [v for v in (runner.env if runner is not None else None) or () if v.get("name") == "PROTOCOL_VERSION"]
    return protocol_name(_text(variables[0].get("value"))) if variables else ""


def _identity(obj: Mapping[str, Any], namespaced: bool) -> tuple[str, str]:
    metadata = mapping(obj.get("metadata"))
    return _text(metadata.get("name")), (_text(metadata.get("namespace")) or "default") if namespaced else ""


def _wrong(error: Exception) -> str:
    if isinstance(error, ResourceInvalid):
        return cut(printable("; ".join(f"{path}: {text}" for path, text in error.problems)), LONGEST_PROBLEM)
    return cut(printable(f"{type(error).__name__}: {error}"), LONGEST_PROBLEM)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _library(found: ModelFormat | ModelFrameworkSpec | None) -> Library | None:
    if found is None:
        return None
    return Library(
        found.name, found.version or "", found.operator or "Equal", 1 if found.weight is None else found.weight
    )


def _format(entry: SupportedModelFormat, release_only: bool) -> SupportedFormat:
    framework, kind = _library(entry.model_framework), _library(entry.model_format)
    assert kind is not None
    return SupportedFormat(
        kind,
        framework,
        entry.model_architecture or "",
        entry.quantization or "",
        _diffusion(entry.diffusion_pipeline),
        bool(entry.auto_select),
        entry.priority,
        release_only,
        (entry.model_type or "").strip(),
    )


_PARTS = ("scheduler", "textEncoder", "tokenizer", "transformer", "vae")


def _diffusion(found: Mapping[str, Any] | None) -> Diffusion | None:
    if found is None:
        return None
    others = mapping(found.get("additionalComponents"))
    return Diffusion(
        _text(found.get("className")),
        tuple(_component(name, found[name]) for name in _PARTS if found.get(name)),
        tuple(_component(name, others[name]) for name in sorted(others)[:64]),
    )


def _component(name: str, value: object) -> tuple[str, str, str]:
    found = mapping(value)
    return name, _text(found.get("library")), _text(found.get("type"))


def _classes(requirements: Mapping[str, Any] | None) -> tuple[str, ...]:
    listed = mapping(requirements).get("acceleratorClasses")
    return tuple(one for one in listed[:100] if isinstance(one, str)) if isinstance(listed, list) else ()


def _devices(spec: ServingRuntimeSpec) -> int:
    found = []
    for part in (spec.engine_config, spec.decoder_config):
        if part is None:
            continue
        count = 0
        for pod, times in ((part, 1), (part.leader, 1), (part.worker, part.worker.size if part.worker else 0)):
            resources = _resources(pod, pod.runner) if pod is not None else {}
            count += sum(container_gpus({"resources": resources}).values()) * (times or 0)
        found.append(count)
    return min((count for count in found if count), default=0)


def _resources(pod: PodFields, runner: Container | None) -> Mapping[str, Any]:
    containers = (pod.containers or [])[:100]
    if runner is not None:
        if runner.resources:
            return runner.resources
        names = [container.get("name") for container in containers]
        name = runner.name or MAIN
        return mapping(containers[names.index(name)].get("resources")) if name in names else {}
    return mapping(containers[main_container(containers)].get("resources")) if containers else {}


def _mode(spec: ServingRuntimeSpec) -> str:
    engine, decoder = spec.engine_config, spec.decoder_config
    if engine is not None and decoder is not None:
        return SPLIT
    return MULTI_NODE if engine is not None and (engine.leader or engine.worker) else RAW


def _remarks(spec: ServingRuntimeSpec) -> list[str]:
    """Configurations that the published admission refuses, as remarks."""
    engine = spec.engine_config
    if engine is None or spec.decoder_config is not None:
        return []
    pods = [part for part in (engine, engine.leader, engine.worker) if part is not None]
    variables = [v for pod in pods for v in _variables(pod, pod.runner)]
    mode = next((_text(one.get("value")) for one in variables if one.get("name") == "DEPLOYMENT_MODE"), "")
    size = engine.worker.size or 0 if engine.worker else 0
    if mode == MULTI_NODE and size <= 0:
        return ["a multi-node runtime needs a leader and workers, with a size above 0"]
    if mode == RAW and size > 0:
        return ["a RawDeployment runtime has no leader and no workers"]
    return []


def _variables(pod: PodFields, runner: Container | None) -> Iterator[Mapping[str, Any]]:
    containers = [*([{"env": runner.env}] if runner is not None else []), *(pod.containers or ())[:100]]
    for container in containers:
        yield from (v for v in (container.get("env") or ())[:100] if isinstance(v, dict))
