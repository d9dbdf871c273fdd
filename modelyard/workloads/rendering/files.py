"""The model of a service or its fine-tuned weights: what is known of it, and how pods get its files. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from modelyard.models.delivery import FINE_TUNED_WEIGHTS, NotAllowed, StoredModel, model as stored_model, target
from modelyard.models.storage import ClaimFolder, DeliverySettings, FetchError, VendorModel, parse as parse_uri
from modelyard.objects import ResourceType
from modelyard.reconcile.plans import NOT_PERMITTED
from modelyard.resources.ome import BaseModelSpec, FineTunedWeightSpec
from modelyard.workloads.rendering.pods import MODEL_PATH, ModelFiles
from modelyard.workloads.rendering.values import Body, Refusal

MODEL_VOLUME, WEIGHT_VOLUME = "modelyard-model", "modelyard-weights"
CLAIMED: Final = "/opt/ml/model"
"""Where files from a claim are, and fine-tuned weights."""
_DECRYPTION = tuple(f"ome.io/base-model-decryption-{name}" for name in ("key-name", "secret-name"))
_RANKS = ("r", "rank", "lora_r", "lora_rank", "loraRank")
"""Names of an adapter's rank in the settings of trainers."""
_CATEGORY, _DEFAULT_CATEGORY = "models.ome.io/category", "SMALL"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model or weights as a service uses them. ``merged``, ``strategy`` and ``rank`` are of weights."""

    stored: StoredModel
    category: str = _DEFAULT_CATEGORY
    decryption: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.stored.key.name

    @property
    def vendor(self) -> str:
        return (self.stored.spec.vendor if self.stored.spec else None) or ""

    @property
    def format(self) -> tuple[str, str]:
        found = self.stored.spec.model_format if isinstance(self.stored.spec, BaseModelSpec) else None
        return (found.name, found.version or "") if found is not None else ("", "")

    @property
    def merged(self) -> bool:
        spec = self.stored.spec
        found = (spec.configuration or {}).get("merged_weights") if isinstance(spec, FineTunedWeightSpec) else False
        return found is True

    @property
    def strategy(self) -> str:
        """How the weights were made, such as lora or tfew; where nothing says so, their type."""
        spec = self.stored.spec
        if not isinstance(spec, FineTunedWeightSpec):
            return ""
        found = spec.hyper_parameters.get("strategy")
        return found if isinstance(found, str) and found else spec.model_type.lower()

    @property
    def rank(self) -> int:
        """Return the rank of an adapter: of its files, else of the settings of its training; 0: not known."""
        spec, detected = self.stored.spec, self.stored.status.get("detected")
        if not isinstance(spec, FineTunedWeightSpec):
            return 0
        given = [detected.get("loraRank")] if isinstance(detected, Mapping) else []
        given += [spec.hyper_parameters.get(name) for name in _RANKS]
        texts = (str(value) for value in given if isinstance(value, int | str))
        ranks = (int(text) for text in texts if len(text) < 7 and text.isascii() and text.isdigit())
        return next((rank for rank in ranks if rank), 0)


def served(kind: ResourceType, obj: Mapping[str, Any]) -> ServedModel:
    """A BaseModel, ClusterBaseModel or FineTunedWeight as the API or a file has it."""
    annotations = obj["metadata"].get("annotations") or {}
    found = {name: value for name in _DECRYPTION if isinstance(value := annotations.get(name), str)}
    category = annotations.get(_CATEGORY)
    return ServedModel(stored_model(kind, obj), category if isinstance(category, str) else _DEFAULT_CATEGORY, found)


def usable(one: ServedModel, field: str) -> None:
    """Raise ``Refusal`` for a model, or weights, that no service may use."""
    stored, kind = one.stored, one.stored.subject.kind.kind
    word = "FineTunedWeights" if stored.subject.kind == FINE_TUNED_WEIGHTS else "BaseModel"
    if stored.problem is not None or stored.spec is None:
        why = stored.problem[1] if stored.problem else "it has no spec"
        raise Refusal(f"{word}NotReady", field, f"{kind} {one.name} cannot be read: {why}", "correct it")
    if stored.spec.disabled:
        raise Refusal(f"{word}Disabled", field, f"{kind} {one.name} is disabled", "name another one, or enable it")


def files(
    one: ServedModel, namespace: str, settings: DeliverySettings, field: str, volume: str = MODEL_VOLUME
) -> ModelFiles:
    """The model's files for pods of a namespace: from the folder of the node, or from a claim of that namespace."""
    stored = one.stored
    try:
        goal = target(stored, settings)
    except NotAllowed as error:
        kind = f"{stored.subject.kind.kind} {one.name}"
        raise Refusal(error.reason, field, f"{kind}: {error}", "have it corrected, or name another one") from None
    if isinstance(stored.uri, ClaimFolder):
        assert goal.claim is not None
        if goal.claim.namespace != namespace:
            problem = f"its files are in claim {goal.claim}, and pods mount claims of their own namespace only"
            remedy = f"make a BaseModel in namespace {namespace} whose files are in a claim there"
            raise Refusal(NOT_PERMITTED, field, problem, remedy)
        return _in_claim(goal.claim.name, stored.uri.path, volume)
    if isinstance(stored.uri, VendorModel) and not (stored.spec and stored.spec.storage.path):
        return ModelFiles("", {}, "", label=stored.label)
    source = {"hostPath": {"path": goal.path}}
    return ModelFiles(volume, source, goal.path, label=stored.label, env={MODEL_PATH: goal.path})


def _in_claim(claim: str, path: str, volume: str = MODEL_VOLUME) -> ModelFiles:
    source: Body = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    return ModelFiles(volume, source, CLAIMED, path.strip("/"), env={MODEL_PATH: CLAIMED})


def claim_files(uri: str, namespace: str, field: str) -> ModelFiles:
    """Return the files of a service that names no model, in a claim of its namespace. Raises ``Refusal``."""
    try:
        folder = parse_uri(uri)
    except FetchError as error:
        raise Refusal("InvalidSpec", field, str(error), "correct it") from None
    if not isinstance(folder, ClaimFolder):
        raise Refusal("BaseModelNotFound", field, f"no model has {uri}", "make a BaseModel with this storageUri")
    check_claim(folder, namespace, field)
    return _in_claim(folder.claim, folder.path)


def check_claim(folder: ClaimFolder, namespace: str, field: str) -> None:
    """Raise ``Refusal`` for a claim that pods of a namespace cannot mount."""
    if folder.namespace not in (None, namespace):
        problem = f"the claim is in namespace {folder.namespace}, and pods mount claims of their own namespace only"
        raise Refusal(NOT_PERMITTED, field, problem, f"name one of namespace {namespace}")


def base_files(
    reference: Mapping[str, Any], model: ServedModel | None, namespace: str, settings: DeliverySettings
) -> ModelFiles | None:
    """Return the files of the model that ``reference``, a service's ``spec.model``, names. Raises ``Refusal``."""
    field = "spec.model.name"
    if model is None:
        if not reference.get("name"):
            return None
        problem = f"model {reference.get('name')} does not exist"
        raise Refusal("BaseModelNotFound", field, problem, "make it, or name another one")
    usable(model, field)
    return files(model, namespace, settings, field)
