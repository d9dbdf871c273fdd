"""The deprecated ``predictor`` of a service, read as engine, model and runtime. Pure.

The service itself is not changed. ``engine``, ``model`` and ``runtime`` win over what the predictor says of them, and a
note on the service names what is without effect.

Source: ome.io/v1beta1, PredictorSpec and PredictorExtensionSpec.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from modelyard.objects import cut, few, printable
from modelyard.resources import InferenceService
from modelyard.resources.ome import ModelSpec, main_container
from modelyard.workloads.rendering.merge import merge
from modelyard.workloads.rendering.values import Body, Note, Refusal

WITHOUT_EFFECT: Final = "PredictorWithoutEffect"
VERSION_FIELD: Final = "spec.predictor.model.runtimeVersion"
STORAGE_FIELD: Final = "spec.predictor.model.storageUri"
_PARTS: Final = (
    *("serviceAccountName", "containers", "volumes", "nodeSelector", "tolerations", "affinity", "workerSpec"),
    *("minReplicas", "maxReplicas"),
)
_OF_A_CONTAINER: Final = frozenset(
    (
        *("name", "image", "imagePullPolicy", "command", "args", "workingDir", "ports", "env", "envFrom", "resources"),
        *("resizePolicy", "restartPolicy", "restartPolicyRules", "volumeMounts", "volumeDevices", "lifecycle"),
        *("livenessProbe", "readinessProbe", "startupProbe", "securityContext", "stdin", "stdinOnce", "tty"),
        *("terminationMessagePath", "terminationMessagePolicy"),
    )
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def is_used(predictor: Mapping[str, Any]) -> bool:
    """Return whether a predictor says enough to be read: a model, or anything of its pods or replicas."""
    model = predictor.get("model") or {}
    return bool(
        model.get("baseModel")
        or model.get("storageUri")
        or "minReplicas" in predictor
        or any(predictor.get(name) for name in _PARTS)
    )


def without_predictor(spec: Body) -> Body:
    """Return the spec of a service with its predictor as engine, model and runtime."""
    predictor = spec.pop("predictor", None)
    return spec if not predictor or "engine" in spec or not is_used(predictor) else _migrated(spec, predictor)


def migrates(service: InferenceService) -> bool:
    """Return whether a service is still in the older form, whose Deployment gives way to that of the engine."""
    predictor = service.spec.predictor
    if predictor is None or service.spec.engine is not None:
        return False
    stated = {info.alias or name: getattr(predictor, name) for name, info in type(predictor).model_fields.items()}
    model = predictor.model
    stated["model"] = {"baseModel": model.base_model, "storageUri": model.storage_uri} if model is not None else {}
    return is_used({name: value for name, value in stated.items() if value is not None})


def read_model(service: InferenceService) -> ModelSpec | None:
    """Return the model of the predictor, where the predictor is read; ``None`` where it is not."""
    predictor = service.spec.predictor
    if predictor is None or service.spec.engine is not None:
        return None
    return predictor.model


def storage_uri(service: InferenceService) -> str:
    """Return where the files of a service are that names no model: the ``storageUri`` of its predictor."""
    model = read_model(service)
    if model is None or model.base_model or service.spec.model is not None:
        return ""
    return model.storage_uri or ""


def image_tag(service: InferenceService) -> str:
    """Return the tag that the engine's image is to have; empty for its own. Raises ``Refusal``."""
    model = read_model(service)
    tag = (model.runtime_version if model is not None else None) or ""
    if tag and not _TAG.fullmatch(tag):
        raise Refusal("InvalidSpec", VERSION_FIELD, f"{tag!r} is no tag of an image", "write one, such as v0.9.2")
    return tag


def with_tag(image: str, tag: str) -> str:
    """Return an image with another tag; one that names a digest stays as it is."""
    if "@" in image:
        return image
    path, slash, name = image.rpartition("/")
    return f"{path}{slash}{name.partition(':')[0]}:{tag}"


def notes(service: InferenceService, model_uri: str = "") -> Iterator[Note]:
    """Tell what of a predictor has no effect. ``model_uri`` is where the files of the service's model are."""
    predictor = service.spec.predictor
    if predictor is None or not predictor.model_fields_set:
        return
    if service.spec.engine is not None:
        yield Note(WITHOUT_EFFECT, "spec.predictor has no effect: spec.engine replaces it; remove one of the two")
        return
    model = predictor.model
    if model is None:
        return
    if unknown := sorted(set(model.model_extra or ()) - _OF_A_CONTAINER):
        listed = ", ".join(few([cut(printable(name), 60) for name in unknown]))
        text = f"has unknown fields without effect: {listed}; remove them"
        yield Note(WITHOUT_EFFECT, f"spec.predictor.model {text}")
    pairs: list[tuple[str, str | None, str, str | None]] = []
    if service.spec.model is not None:
        pairs.append(("baseModel", model.base_model, "spec.model", service.spec.model.name))
    if service.spec.runtime is not None:
        pairs.append(("runtime", model.runtime, "spec.runtime", service.spec.runtime.name))
    for field, ours, winner, theirs in pairs:
        if ours and ours != theirs:
            text = f"{cut(printable(ours), 60)} has no effect: {winner} names {theirs}; remove one of the two"
            yield Note(WITHOUT_EFFECT, f"spec.predictor.model.{field} {text}")
    weights = (service.spec.model.fine_tuned_weights if service.spec.model is not None else None) or []
    if weights and model.fine_tuned_weights and weights != model.fine_tuned_weights:
        listed = ", ".join(few(model.fine_tuned_weights))
        text = (
            f"spec.predictor.model.fineTunedWeights ({listed}) has no effect: spec.model.fineTunedWeights replaces it"
        )
        yield Note(WITHOUT_EFFECT, f"{text}; remove one of the two")
    if model.storage_uri and not storage_uri(service) and model.storage_uri != model_uri:
        name = service.spec.model.name if service.spec.model is not None else model.base_model
        uri = cut(printable(model.storage_uri), 60)
        text = f"{uri} is not mounted: the files of model {name} are; remove one of the two"
        yield Note(WITHOUT_EFFECT, f"{STORAGE_FIELD} {text}")


def _migrated(spec: Body, predictor: Body) -> Body:
    model = predictor.get("model") or {}
    engine = {name: value for name, value in predictor.items() if name not in ("model", "workerSpec", "containers")}
    containers = predictor.get("containers") or []
    if containers:
        chosen = main_container(containers)
        runner = containers[chosen]
        if sidecars := [container for index, container in enumerate(containers) if index != chosen]:
            engine["containers"] = sidecars
    else:
        runner = {name: value for name, value in model.items() if name in _OF_A_CONTAINER}
    env = [] if not containers else list(model.get("env") or ())
    for name, source in (("STORAGE_URI", "storageUri"), ("PROTOCOL_VERSION", "protocolVersion")):
        if model.get(source):
            env.append({"name": name, "value": model[source]})
    if env:
        runner = merge(runner, {"env": env}, "spec.predictor.model")
    if runner:
        engine["runner"] = runner
    if "workerSpec" in predictor:
        engine["worker"] = predictor["workerSpec"]
    result = {**spec, "engine": engine}
    if model.get("baseModel") and "model" not in spec:
        result["model"] = {"name": model["baseModel"]}
    if model.get("fineTunedWeights") and not (result.get("model") or {}).get("fineTunedWeights"):
        result["model"] = {**(result.get("model") or {}), "fineTunedWeights": model["fineTunedWeights"]}
    if model.get("runtime") and "runtime" not in spec:
        result["runtime"] = {"name": model["runtime"]}
    return result
