"""Fine-tuned weights of a service: which may be used, where they are mounted, and how they are loaded. Pure.

Weights are served in one of three ways. Merged weights take the model's place. LoRA adapters are loaded by vLLM or
SGLang, through options that are added to the command line of the runtime. For any other container, and for one that
uses ``FINE_TUNED_WEIGHT_PATH``, the weights are mounted where the engines of their kind look, as in the published API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from modelyard.models.delivery import BASE_MODELS
from modelyard.models.storage import DeliverySettings
from modelyard.objects import cut, printable
from modelyard.resources.ome import FineTunedWeightSpec
from modelyard.workloads.rendering.files import CLAIMED, WEIGHT_VOLUME, ServedModel, files, usable
from modelyard.workloads.rendering.lora import Adapter, adapter_problem, loads_itself, started_engine
from modelyard.workloads.rendering.pods import MODEL_PATH, ModelFiles
from modelyard.workloads.rendering.values import Note, Problems, Refusal

PATH: Final = "FINE_TUNED_WEIGHT_PATH"
_BESIDE_CLAIM: Final = "/opt/ml/weights"
"""Folder of the first weights if the model's claim is mounted at the usual folder."""
_FURTHER: Final = "/opt/ml/adapters"
"""Folder of all but the first of the weights."""


class Loading(NamedTuple):
    """Files that pods of a component mount, adapters that engines load, and why other weights are not served."""

    files: tuple[ModelFiles, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    notes: tuple[Note, ...] = ()


def checked(
    reference: Mapping[str, Any], model: ServedModel | None, offered: Iterable[ServedModel], field: str
) -> tuple[ServedModel, ...]:
    """Return the weights that ``reference``, a service's ``spec.model``, names in ``field``. Raises ``Refusal``."""
    named, problems = reference.get("fineTunedWeights") or (), Problems()
    existing = {weight.name: weight for weight in offered}
    result = []
    for place, name in enumerate(named):
        path = f"{field}[{place}]"
        with problems.collect():
            if name in named[:place]:
                raise Refusal("InvalidSpec", path, f"{name} is named twice", "remove one of the two")
            weight = existing.get(name)
            if weight is None:
                text = f"FineTunedWeight {printable(cut(name, 253)) or repr(name)} does not exist"
                raise Refusal("FineTunedWeightsNotFound", path, text, "create it, or name another one")
            usable(weight, path)
            if model is None:
                remedy = "name the model that they were made from"
                raise Refusal("InvalidSpec", path, f"weights {name} are named without a model", remedy)
            _check_origin(weight, model, path)
            if weight.merged and len(named) > 1:
                text = (
                    f"FineTunedWeight {name} is merged with its model, so that no other weights can be served with it"
                )
                raise Refusal("InvalidSpec", path, text, "name it alone, or name adapters only")
            result.append(weight)
    problems.raise_all()
    return tuple(result)


def _check_origin(weight: ServedModel, model: ServedModel, path: str) -> None:
    """Raise ``Refusal`` for weights of another model: loaded, they would answer nonsense, or the engine would end."""
    spec, subject = weight.stored.spec, model.stored.subject
    assert isinstance(spec, FineTunedWeightSpec)
    origin = spec.base_model_ref
    namespace = subject.key.namespace if subject.kind == BASE_MODELS else ""
    if (origin.name, origin.namespace or "") == (subject.key.name, namespace):
        return
    kind = f"BaseModel {origin.namespace}/{origin.name}" if origin.namespace else f"ClusterBaseModel {origin.name}"
    used = f"{subject.kind.kind} {f'{namespace}/' if namespace else ''}{subject.key.name}"
    text = (
        f"FineTunedWeight {weight.name} was made from {kind} (its spec.baseModelRef), and the service's model is {used}"
    )
    written = f"{{name: {subject.key.name}{f', namespace: {namespace}' if namespace else ''}}}"
    remedy = f"name weights of that model, or correct spec.baseModelRef of the FineTunedWeight to {written}"
    raise Refusal("FineTunedWeightsMismatch", path, text, remedy)


def loading(
    base: ModelFiles,
    weights: Sequence[ServedModel],
    model: ServedModel,
    containers: Sequence[Mapping[str, Any]],
    namespace: str,
    settings: DeliverySettings,
    component: str,
    field: str,
) -> Loading:
    """Return how a component whose pods have these main containers gets the weights."""
    if not weights:
        return Loading((base,))
    mounted = [
        files(weight, namespace, settings, f"{field}[{place}]", f"{WEIGHT_VOLUME}-{place}" if place else WEIGHT_VOLUME)
        for place, weight in enumerate(weights)
    ]
    if weights[0].merged:
        return Loading((mounted[0],))
    further = [
        _at(folder, f"{_FURTHER}/{weight.name}", {}) for folder, weight in zip(mounted[1:], weights[1:], strict=True)
    ]
    if any(map(loads_itself, containers)):
        text = f"the runtime loads {PATH} itself, which is the folder of {weights[0].name} alone"
        notes = [_note(weight, "LoadedByRuntime", text, component) for weight in weights[1:]]
        return Loading((*_published(base, mounted[0], weights[0], model), *further), notes=tuple(notes))
    if not any(started_engine(container) for container in containers):
        text = f"no command line of vLLM or SGLang is in the runtime: use one of these, or {PATH} in its arguments"
        notes = [_note(weight, "EngineWithoutAdapters", text, component) for weight in weights]
        return Loading((*_published(base, mounted[0], weights[0], model), *further), notes=tuple(notes))
    first = _at(mounted[0], _place(base), {PATH: _place(base)})
    adapters, notes = [], []
    for weight, folder in zip(weights, (first, *further), strict=True):
        reason, text = adapter_problem(weight.strategy, weight.rank)
        if not folder.volume:
            reason, text = "NotMounted", "its files are in the engine's image, so that their folder is not known"
        if reason:
            notes.append(_note(weight, reason, text, component))
        else:
            adapters.append(Adapter(weight.name, folder.path, weight.rank))
    return Loading((base, first, *further), tuple(adapters), tuple(notes))


def _published(base: ModelFiles, folder: ModelFiles, weight: ServedModel, model: ServedModel) -> list[ModelFiles]:
    """Return the files of model and weights where the images of the published API look for them."""
    place, variables, first = _place(base), dict[str, str](), base
    if model.vendor == "meta":
        place, variables = CLAIMED, {"SERVED_MODEL_NAME": f"/data/{weight.name}", MODEL_PATH: CLAIMED}
        first = _at(base, base.path, {})
    elif model.vendor == "cohere" and weight.strategy == "tfew":
        name = model.format[0]
        place, variables = f"/opt/ml/tfew/{name}", {"TFEW_PATH": "/opt/ml/tfew/fastertransformer/1"}
        first = _at(base, f"{CLAIMED}/{name}", {MODEL_PATH: f"{CLAIMED}/{name}"})
    return [first, _at(folder, place, {PATH: place, **variables})]


def _place(base: ModelFiles) -> str:
    return _BESIDE_CLAIM if base.path == CLAIMED else CLAIMED


def _at(folder: ModelFiles, path: str, variables: Mapping[str, str]) -> ModelFiles:
    return ModelFiles(folder.volume, folder.source, path, folder.sub_path, folder.label, variables)


def subject(name: str) -> str:
    """Return how a note about weights begins."""
    return f"FineTunedWeight {name}: "


def _note(weight: ServedModel, reason: str, text: str, component: str) -> Note:
    return Note(reason, f"{subject(weight.name)}not loaded: {text}", component)
