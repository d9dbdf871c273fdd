"""Fields that have an effect only together with other fields of the same object. Pure.

The object is as the API sends it, valid or not: what is not in the form that a rule expects is no case of the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from modelyard.objects import annotations_of, items_of, mapping
from modelyard.resources.networking import MOST_RETRIES
from modelyard.resources.ome import REPLACED, ignored_fields
from modelyard.resources.registry import DISAGGREGATED, ENDPOINT_VARIABLES, LITERAL_VARIABLES

Unused = Iterator[tuple[str, str]]
"""Paths of fields and the reasons for which they have no effect."""

_PARAMETERS: Final = {"decodeParms": ("alpha", "beta"), "prefillParms": ("gamma", "delta")}
_OF_PROFILES: Final = {
    "variantID": "",
    "accelerator": "; the label inference.optimization/acceleratorName names it without one",
    "acceleratorCount": "; the workload's resources give it without one",
    "sloClassRef": "; without one the service class is found by modelID",
}
DEFAULT_EXPANSION: Final = 200


def unused_fields(kind: str, obj: Mapping[str, Any]) -> Unused:
    """Iterate over the fields of an object that have no effect for want, or because, of another field."""
    rule, spec = _RULES.get(kind), obj.get("spec")
    if rule is not None and isinstance(spec, Mapping):
        yield from rule(spec, annotations_of(obj))


def _of_variant(spec: Mapping[str, Any], _: Mapping[str, Any]) -> Unused:
    profile = spec.get("variantProfile")
    for name, instead in _OF_PROFILES.items():
        if not profile and spec.get(name) is not None:
            yield f"spec.{name}", f"used together with variantProfile only{instead}"
    parameters = mapping(mapping(profile).get("perfParms"))
    for field, names in _PARAMETERS.items():
        for name in mapping(parameters.get(field)):
            if name not in names:
                text = f"no parameter of the line, which has {' and '.join(names)}"
                yield f"spec.variantProfile.perfParms.{field}.{name}", text


def _of_binding(spec: Mapping[str, Any], annotations: Mapping[str, Any]) -> Unused:
    rate = mapping(spec.get("optimizerConfiguration")).get("costExpansionRatePercent")
    if annotations.get("modelyard.dev/optimizer") == "exact" and rate not in (None, DEFAULT_EXPANSION):
        text = "the annotation modelyard.dev/optimizer: exact makes no batches"
        yield "spec.optimizerConfiguration.costExpansionRatePercent", text


def _of_route(spec: Mapping[str, Any], _: Mapping[str, Any]) -> Unused:
    limit = spec.get("rateLimit")
    if isinstance(limit, Mapping) and not any(limit.get(f"{name}TokensPerUnit") for name in ("input", "output")):
        yield "spec.rateLimit", "it limits neither input nor output tokens"


def _of_runtime(spec: Mapping[str, Any], _: Mapping[str, Any]) -> Unused:
    for name in ignored_fields(spec):
        yield f"spec.{name}", REPLACED


def _of_server(spec: Mapping[str, Any], _: Mapping[str, Any]) -> Unused:
    groups = mapping(mapping(spec.get("workloadSelector")).get("pdGroup"))
    if spec.get("kvConnector") is not None and not groups:
        yield "spec.kvConnector", "used together with workloadSelector.pdGroup only"
    prefill, decode = mapping(groups.get("prefillLabels")), mapping(groups.get("decodeLabels"))
    if decode and all(prefill.get(name) == value for name, value in decode.items()):
        path = "spec.workloadSelector.pdGroup.prefillLabels"
        yield path, "every pod that carries them carries decodeLabels too, and counts as a decode pod"
    attempts = mapping(mapping(spec.get("trafficPolicy")).get("retry")).get("attempts")
    if isinstance(attempts, int) and attempts > MOST_RETRIES:
        yield "spec.trafficPolicy.retry.attempts", f"a request is retried {MOST_RETRIES} times at most"


def _of_backend(backend: Mapping[str, Any], path: str) -> Unused:
    names = {*LITERAL_VARIABLES}
    if str(backend.get("cacheURI")).startswith("hostpath://"):
        names.update(ENDPOINT_VARIABLES.get(str(backend.get("modelURI")).partition("://")[0], ()))
    for number, variable in enumerate(map(mapping, items_of(backend.get("env")))):
        name = variable.get("name")
        if isinstance(name, str) and name in names and variable.get("valueFrom") is not None:
            yield f"{path}.env[{number}].valueFrom", f"{name} takes effect with a value that is written out"
    if str(backend.get("type")) in DISAGGREGATED:
        for number, worker in enumerate(map(mapping, items_of(backend.get("workers")))):
            pods = worker.get("pods")
            if isinstance(pods, int) and pods > 1:
                yield f"{path}.workers[{number}].pods", "every instance of a disaggregated backend's role is one pod"


def _of_model(spec: Mapping[str, Any], _: Mapping[str, Any]) -> Unused:
    backends = spec.get("backends")
    for number, backend in enumerate(items_of(backends)):
        yield from _of_backend(mapping(backend), f"spec.backends[{number}]")
    model = mapping(mapping(spec.get("modelMatch")).get("body")).get("model")
    if model is not None and isinstance(backends, list) and len(backends) > 1:
        text = "with several backends every rule matches the name of the Model or an adapter"
        yield "spec.modelMatch.body.model", text


_RULES: Final[Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Unused]]] = {
    "AutoscalingPolicyBinding": _of_binding,
    "ClusterServingRuntime": _of_runtime,
    "Model": _of_model,
    "ModelRoute": _of_route,
    "ModelServer": _of_server,
    "ServingRuntime": _of_runtime,
    "VariantAutoscaling": _of_variant,
}
