"""Whether an entry of a runtime is for a kind of model, and every difference there is. Pure."""

from __future__ import annotations

from modelyard.models.detection import is_asked_for
from modelyard.runtimes.values import Diffusion, Library, ModelKind, SupportedFormat
from modelyard.runtimes.versions import versions_match


def matches(entry: SupportedFormat, kind: ModelKind) -> bool:
    """Whether there is no difference. What differs most often is looked at first, and no sentence is made of it."""
    alike = entry.architecture == kind.architecture or (kind.model_type and not kind.architecture)
    return bool(alike) and not differences(entry, kind)


def differences(entry: SupportedFormat, kind: ModelKind) -> tuple[str, ...]:
    """Every difference, naming both values; none for an entry that matches. What is absent must be absent in both."""
    found: list[str] = []
    if kind.format is None:
        found.append(f"model has no format but runtime requires {entry.format.name!r}")
    else:
        found += _library("format", entry.format, kind.format, entry.release_only)
    if entry.framework is None or kind.framework is None:
        if entry.framework is not None:
            found.append(f"model has no framework but runtime requires {entry.framework.name!r}")
        elif kind.framework is not None:
            found.append(f"model has framework {kind.framework.name!r} but runtime has no requirement")
    else:
        found += _library("framework", entry.framework, kind.framework, entry.release_only)
    found += _architecture(entry.architecture, kind)
    found += _quantization(entry.quantization, kind)
    if entry.diffusion is not None:
        found += _diffusion(entry.diffusion, kind.diffusion)
    return tuple(found)


def _quantization(asked: str, kind: ModelKind) -> list[str]:
    """A runtime without a quantization also serves a model whose method has no published word."""
    if asked and is_asked_for(asked, kind.quantization, kind.method):
        return []
    return _exactly("quantization", asked, kind.quantization or (kind.method if asked else ""))


def _architecture(asked: str, kind: ModelKind) -> list[str]:
    if not asked or kind.architecture or not kind.model_type:
        return _exactly("architecture", asked, kind.architecture)
    if is_architecture_of(asked, kind.model_type):
        return []
    return [f"architecture mismatch: model is of type {kind.model_type!r}, runtime {asked!r}"]


_OTHER_STEMS = {"kimi_k2": "deepseekv3", "nemotron-nas": "decilm"}
"""Types whose architectures are not named after them."""
_HEADS = ("for", "lm", "model", "causallm")


def is_architecture_of(architecture: str, model_type: str) -> bool:
    """Return whether an architecture is of a type: ``LlamaForCausalLM`` of ``llama``, ``Llama4ForCausalLM`` not."""
    kind = model_type.lower().removesuffix("_text")
    name, stem = _letters(architecture), _OTHER_STEMS.get(kind) or _letters(kind)
    head = name.removeprefix(stem)
    return bool(stem) and name.startswith(stem) and (not head or head.startswith(_HEADS))


def _letters(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalnum())


def label(kind: ModelKind) -> str:
    """A kind of model in one word: format, architecture, quantization, framework, with versions."""
    parts = [kind.format and _named(kind.format), kind.architecture, kind.quantization or kind.method]
    return ":".join(filter(None, [*parts, kind.framework and _named(kind.framework)])) or "unknown"


def _named(library: Library) -> str:
    return f"{library.name}:{library.version}" if library.version else library.name


def _library(what: str, entry: Library, model: Library, release_only: bool) -> list[str]:
    if entry.name != model.name:
        return [f"{what} mismatch: model has {model.name!r}, runtime {entry.name!r}"]
    if not entry.version and not model.version:
        return []
    if not entry.version:
        return [f"model has {what} version {model.version!r} but runtime has no requirement"]
    if not model.version:
        return [f"model has no {what} version but runtime requires {entry.version!r}"]
    if versions_match(entry.version, model.version, entry.operator, release_only):
        return []
    return [
        f"{what} version mismatch: runtime {entry.version!r} is not {_SIGNS[entry.operator]} model {model.version!r}"
    ]


_SIGNS = {"Equal": "equal to", "GreaterThan": "above", "GreaterThanOrEqual": "at or above"}


def _exactly(what: str, entry: str, model: str) -> list[str]:
    if entry == model:
        return []
    if not model:
        return [f"model has no {what} but runtime requires {entry!r}"]
    if not entry:
        return [f"model has {what} {model!r} but runtime has no requirement"]
    return [f"{what} mismatch: model has {model!r}, runtime {entry!r}"]


def _diffusion(entry: Diffusion, model: Diffusion | None) -> list[str]:
    if model is None:
        return [f"model is no diffusion pipeline but runtime requires {entry.class_name or 'one'!r}"]
    found = []
    if entry.class_name and entry.class_name != model.class_name:
        found.append(f"pipeline class mismatch: model has {model.class_name!r}, runtime {entry.class_name!r}")
    there = {name: (library, cls) for name, library, cls in (*model.parts, *model.others)}
    for name, library, cls in (*entry.parts, *entry.others):
        if name not in there:
            found.append(f"pipeline has no {name}")
            continue
        for what, wanted, has in zip(("library", "class"), (library, cls), there[name], strict=True):
            if wanted and wanted != has:
                found.append(f"{what} mismatch of pipeline component {name}: model has {has!r}, runtime {wanted!r}")
    return found
