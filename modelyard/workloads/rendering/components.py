"""Which components a service has, what each is made of, and how each is deployed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from modelyard.objects import LARGEST_INTEGER, MODE, MODES, MULTI_NODE, RAW, RAY, SERVERLESS, mapping, shown, texts
from modelyard.resources import InferenceService, ServingRuntime, component_replicas
from modelyard.resources.ome import engine_config
from modelyard.workloads.rendering.merge import merge
from modelyard.workloads.rendering.names import DECODER, ENGINE, ROUTER, component
from modelyard.workloads.rendering.predictors import storage_uri, without_predictor
from modelyard.workloads.rendering.values import Abilities, Body, Refusal, plain

INITIAL_REPLICAS: Final = "modelyard.dev/initial-replicas"
"""Annotation of a service or a component: the replicas to begin with. Default: the fewest, at least one."""
MAX_WEIGHTS: Final = 1000
"""FineTunedWeights of one service, as many as a Model's backend may have adapters."""
KNATIVE: Final = ("serving.knative.dev/v1", "Service")
RAY_CLUSTER: Final = ("ray.io/v1", "RayCluster")
KEDA: Final = ("keda.sh/v1alpha1", "ScaledObject")

_MOST_REPLICAS = {ENGINE: 3, DECODER: 3, ROUTER: 2}
SCALING_FIELDS = (
    *("minReplicas", "maxReplicas", "scaleTarget", "scaleMetric", "containerConcurrency", "timeoutSeconds"),
    *("canaryTrafficPercent", "labels", "annotations", "minAvailable", "maxUnavailable", "deploymentStrategy"),
    "kedaConfig",
)
_NOT_POD = frozenset((*SCALING_FIELDS, "runner", "leader", "worker", "config", "size", "acceleratorOverride"))


@dataclass(frozen=True, slots=True)
class ServiceComponent:
    """``spec`` merges service and runtime, ``own`` is the service's part, ``given`` an administrator's runtime's."""

    kind: str
    name: str
    spec: Body
    own: Body
    given: Body
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The annotations that steer it: its own over the service's."""

    @property
    def path(self) -> str:
        return f"spec.{self.kind}"

    @property
    def grouped(self) -> bool:
        return "leader" in self.spec or "worker" in self.spec

    @property
    def least(self) -> int:
        """Fewest replicas: by the service, else the runtime, else 1; 0 is scale to zero."""
        return component_replicas(self.spec, self.own).least

    @property
    def most(self) -> int:
        """Most replicas: by the service, else the runtime, else 3, for a router 2; never below the fewest."""
        most = component_replicas(self.spec, self.own).most
        return max(_MOST_REPLICAS[self.kind], self.least, 1) if most is None else most

    @property
    def initial(self) -> int:
        """Replicas a workload is made with where a scaler has them from then on: within its bounds, at least one."""
        text, fewest = self.metadata.get(INITIAL_REPLICAS), max(self.least, 1)
        if text is None:
            return fewest
        if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text)):
            where = f"metadata.annotations[{INITIAL_REPLICAS}]"
            raise Refusal("InvalidSpec", where, f"{text} is no whole number from 1 to 999999", "write one")
        most = component_replicas(self.spec, self.own).most
        return max(min(int(text), most or int(text)), fewest)


def pod_fields(part: Mapping[str, Any]) -> Body:
    """What of a component, a leader or a worker is of a pod's spec."""
    return {name: value for name, value in part.items() if name not in _NOT_POD}


def effective(service: InferenceService) -> Body:
    """The spec of a service, with a deprecated predictor as engine, model and runtime. The service itself stays."""
    return without_predictor(_dumped(service, "spec"))


class References(NamedTuple):
    """References of a service (empty: none) with their kinds; ``storage``: its files, where it names no model."""

    model: str = ""
    model_kind: str = ""
    weights: tuple[str, ...] = ()
    runtime: str = ""
    runtime_kind: str = ""
    storage: str = ""


def references(service: InferenceService) -> References:
    """Return what has to be looked up for a service, its predictor's included. Raises ``Refusal``."""
    spec = effective(service)
    model, runtime = spec.get("model") or {}, spec.get("runtime") or {}
    weights = tuple(model.get("fineTunedWeights") or ())
    if len(weights) > MAX_WEIGHTS:
        problem = f"names {len(weights)} FineTunedWeights, of {MAX_WEIGHTS} at most"
        raise Refusal("InvalidSpec", "spec.model.fineTunedWeights", problem, "share them out among several services")
    return References(
        model.get("name", ""),
        model.get("kind", ""),
        weights,
        runtime.get("name", ""),
        runtime.get("kind", ""),
        storage_uri(service),
    )


def runs_itself(service: InferenceService) -> bool:
    """Return whether a service says itself what runs its engine: then it needs no runtime, as by OME's admission."""
    engine = effective(service).get("engine") or {}
    parts = [engine.get(name) for name in ("leader", "worker") if name in engine] or [engine]
    return all(_has_image(part or {}) for part in parts)


def _has_image(part: Mapping[str, Any]) -> bool:
    pods = [part["runner"]] if part.get("runner") else part.get("containers") or []
    return bool(pods) and all(container.get("image") for container in pods)


def components(service: InferenceService, spec: Body, runtime: ServingRuntime | None) -> list[ServiceComponent]:
    """The components that the service names, each on top of what the runtime says of it; modes come later."""
    if "engine" not in spec:
        remedy = "write engine: {}, which takes everything from the runtime"
        if service.spec.predictor is not None:
            remedy += "; or name a model in spec.predictor.model.baseModel"
        raise Refusal("InvalidSpec", "spec.engine", "is missing", remedy)
    configured: Body = {}
    if runtime is not None:
        configured = _dumped(runtime, "runtime")
        configured["engineConfig"] = engine_config(configured)
    annotations = texts(service.metadata.model_dump().get("annotations"))
    result = []
    for kind in (ENGINE, DECODER, ROUTER):
        if kind not in spec:
            continue
        base = configured.get(f"{kind}Config") or {}
        merged = merge(base, spec[kind], f"spec.{kind}")
        _check_numbers(merged, f"spec.{kind}")
        trusted = base if runtime is not None and not type(runtime).namespaced else {}
        steering = {**annotations, **(merged.get("annotations") or {})}
        name = component(service.name, kind)
        result.append(ServiceComponent(kind, name, merged, spec[kind], trusted, metadata=steering))
    return result


def _check_numbers(part: Mapping[str, Any], path: str) -> None:
    numbers = {name: part.get(name) for name in ("minReplicas", "maxReplicas", "size")}
    numbers |= {"worker.size": mapping(part.get("worker")).get("size")}
    for name, number in numbers.items():
        if isinstance(number, int) and number > LARGEST_INTEGER:
            raise Refusal("InvalidSpec", f"{path}.{name}", f"{shown(number)} is above {LARGEST_INTEGER}", "lower it")


def _dumped(one: InferenceService | ServingRuntime, path: str) -> Body:
    try:
        found: Body = plain(one.spec.model_dump(mode="json", by_alias=True, exclude_none=True), path)
    except (ValueError, RecursionError):
        raise Refusal("InvalidSpec", path, "cannot be written as JSON", "write it flatter, with plain values") from None
    return found


def mode(one: ServiceComponent, split: bool, abilities: Abilities, zero: bool) -> str:
    """How a component is deployed. Raises ``Refusal`` for what the cluster does not serve.

    ``split``: prefill and decode run apart. ``zero``: who scales it can start its first replica.
    """
    asked: str = (one.spec.get("annotations") or {}).get(MODE, "")
    wide = one.metadata.get(MODE, "")
    if asked and asked not in MODES:
        remedy = f"write one of {', '.join(MODES)}"
        raise Refusal("InvalidSpec", f"{one.path}.annotations[{MODE}]", f"{asked} is no deployment mode", remedy)
    if asked in (RAW, MULTI_NODE, RAY, SERVERLESS):
        chosen = asked
    elif wide == RAY and one.kind != ROUTER:
        chosen = RAY
    elif one.grouped and one.kind != ROUTER:
        chosen = MULTI_NODE
    elif one.kind != DECODER and not split and (wide == SERVERLESS or (one.least == 0 and not zero)):
        chosen = SERVERLESS
    else:
        chosen = RAW
    for needed, (version, kind) in ((SERVERLESS, KNATIVE), (RAY, RAY_CLUSTER)):
        if chosen == needed and not abilities.version(kind, version):
            if not asked and wide != chosen:
                break
            remedy = f"install what serves {kind} of {version}, or take the annotation {MODE} away"
            problem = f"{chosen} needs {kind} of {version}, which is not served here"
            reason = "ServerlessModeRejected" if chosen == SERVERLESS else "ModeNotServed"
            raise Refusal(reason, f"{one.path}.annotations[{MODE}]", problem, remedy)
    if one.least == 0 and not zero and (chosen != SERVERLESS or not abilities.version(KNATIVE[1], KNATIVE[0])):
        remedy = (
            "write 1, scale it by KEDA (annotation ome.io/autoscalerClass: keda), by a VariantAutoscaling, or install"
            " Knative Serving"
        )
        problem = "0 needs something that starts the first replica again, and nothing here does"
        raise Refusal("ScaleToZeroNotServed", f"{one.path}.minReplicas", problem, remedy)
    return chosen
