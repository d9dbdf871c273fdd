"""What was found in a model's files, as a value that travels in a container's termination message. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from modelyard.models.detection.sizes import bytes_text, size_text
from modelyard.objects import cut, printable

if TYPE_CHECKING:
    from modelyard.resources.ome import BaseModelSpec, ModelFormat, ModelFrameworkSpec

MAX_JSON = 2048
"""Bytes of ``Facts.to_json`` at most: half of what Kubernetes keeps of a container's last words."""
MAX_NAME = 64
MAX_COUNT = 10**16

_ODD = re.compile(r"[^A-Za-z0-9 ._+/:-]")
_MAX_PROBLEMS = 8
_MAX_PROBLEM = 160
_MAX_COMPONENTS = 16

Name = Annotated[str, Field(max_length=MAX_NAME)]
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT)]


def name(text: str) -> str:
    """A name out of a file, so that it can stand anywhere: odd characters replaced, cut."""
    return _ODD.sub("_", text[:MAX_NAME])


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class Pipeline(_Value):
    """A diffusion pipeline: its class, and (library, class) of each component, which are empty for an absent one."""

    class_name: Name
    components: dict[Name, tuple[Name, Name]] = Field(default_factory=dict, max_length=_MAX_COMPONENTS)


class Facts(_Value):
    """What a model is. ``None`` and empty mean that it is not known.

    ``parameters_from`` says how they were counted: exactly in the headers of the weights, by a formula from the
    configuration, or from a table of well-known models. ``weight_bytes`` is what the weights take on disk and in
    memory. ``kv_bytes_per_token`` is for the layers that keep every token and one copy of the heads, at 16 bits an
    element unless the files say 8. Layers that keep the last ``sliding_window`` tokens of a request add
    ``kv_window_bytes_per_token`` up to there; where every layer is such a layer, ``kv_bytes_per_token`` is theirs.
    ``quantization`` is in the published words (``fp8``, ``int4``), ``quantization_method`` as the files name it
    (``awq``, ``mxfp4``). ``lora_rank`` is the largest rank of an adapter, and all that is known of one.
    """

    model_type: Name | None = None
    architecture: Name | None = None
    format: Name | None = None
    format_version: Name | None = None
    framework: Name | None = None
    framework_version: Name | None = None
    parameters: Count | None = None
    parameters_from: Literal["weights", "formula", "table"] | None = None
    context_length: Count | None = None
    quantization: Name | None = None
    quantization_method: Name | None = None
    dtype: Name | None = None
    capabilities: tuple[Name, ...] = Field((), max_length=8)
    vision: bool = False
    embedding: bool = False
    weight_bytes: Count | None = None
    kv_bytes_per_token: Count | None = None
    kv_window_bytes_per_token: Count | None = None
    sliding_window: Count | None = None
    layers: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    head_size: Count | None = None
    hidden_size: Count | None = None
    vocabulary: Count | None = None
    experts: Count | None = None
    lora_rank: Count | None = None
    pipeline: Pipeline | None = None
    problems: tuple[Annotated[str, Field(max_length=_MAX_PROBLEM)], ...] = Field((), max_length=_MAX_PROBLEMS)

    @property
    def known(self) -> bool:
        return bool(self.model_type or self.architecture)

    @property
    def size(self) -> str | None:
        """The number of parameters as a spec has it, such as ``8.03B``; specs know no thousands."""
        if not self.parameters:
            return None
        return size_text(self.parameters) if self.parameters >= 10**6 else str(self.parameters)

    def to_json(self) -> str:
        """At most ``MAX_JSON`` bytes of ASCII: what does not fit is left out, problems first, then components."""
        shown = self
        while len(text := shown.model_dump_json(by_alias=True, exclude_defaults=True)) > MAX_JSON:
            if shown.problems:
                shown = shown.model_copy(update={"problems": shown.problems[:-1]})
            else:
                assert shown.pipeline is not None
                assert shown.pipeline.components
                kept = dict(list(shown.pipeline.components.items())[:-1])
                update = {"pipeline": shown.pipeline.model_copy(update={"components": kept})}
                shown = shown.model_copy(update=update)
        return text

    @property
    def digest(self) -> dict[str, Any]:
        """What stands in a spec's ``modelConfiguration``."""
        found = {
            "model_type": self.model_type,
            "architecture": self.architecture,
            "context_length": self.context_length,
            "parameter_count": self.size,
            "has_vision": self.vision,
            "is_embedding": self.embedding,
            "transformers_version": self.framework_version if self.framework == "transformers" else None,
            "torch_dtype": self.dtype,
            "model_size_bytes": bytes_text(self.weight_bytes) if self.weight_bytes else None,
        }
        return {key: value for key, value in found.items() if value is not None}


def bounded_problems(texts: list[str]) -> tuple[str, ...]:
    """The first few of them, each once, in one bounded line of ASCII."""
    lines = (printable(text[:1000]).encode("ascii", "replace").decode() for text in texts)
    return tuple(dict.fromkeys(cut(line, _MAX_PROBLEM).replace("…", "~") for line in lines))[:_MAX_PROBLEMS]


def fill(spec: BaseModelSpec, facts: Facts) -> BaseModelSpec:
    """The spec as selection reads it: what the user has written stands, what is empty comes from the files.

    A version is only filled in beside the name that it belongs to. A quantization is one of the published words: what
    is unquantized to the published selection stays so here.
    """
    from modelyard.resources.ome import ModelFormat, ModelFrameworkSpec

    detected: dict[str, Any] = {
        "model_type": facts.model_type,
        "model_architecture": facts.architecture,
        "model_parameter_size": facts.size,
        "model_capabilities": list(facts.capabilities) or None,
        "model_framework": _named(ModelFrameworkSpec, spec.model_framework, facts.framework, facts.framework_version),
        "model_format": _named(ModelFormat, spec.model_format, facts.format, facts.format_version),
        "quantization": facts.quantization,
        "max_tokens": facts.context_length if (facts.context_length or 0) < 2**31 else None,
        "model_configuration": facts.digest if facts.known else None,
        "diffusion_pipeline": None if facts.pipeline is None else _pipeline(facts.pipeline),
    }
    update = {
        field: value
        for field, value in detected.items()
        if value is not None and (not getattr(spec, field) or field in ("model_framework", "model_format"))
    }
    return spec.model_copy(update=update)


def _named(
    cls: type[ModelFormat] | type[ModelFrameworkSpec],
    given: ModelFormat | ModelFrameworkSpec | None,
    found: str | None,
    version: str | None,
) -> ModelFormat | ModelFrameworkSpec | None:
    if given is None:
        return cls(name=found, version=version) if found else None
    return given.model_copy(update={"version": version}) if given.name == found and not given.version else given


_WELL_KNOWN = {"scheduler": "scheduler", "text_encoder": "textEncoder", "tokenizer": "tokenizer", "vae": "vae"} | {
    "transformer": "transformer",
    "unet": "transformer",
}


def _pipeline(found: Pipeline) -> dict[str, Any]:
    spec: dict[str, Any] = {"className": found.class_name}
    for key, (library, cls) in found.components.items():
        component = {"library": library, "type": cls}
        if key in _WELL_KNOWN:
            spec.setdefault(_WELL_KNOWN[key], component)
        else:
            spec.setdefault("additionalComponents", {})[key] = component
    return spec
