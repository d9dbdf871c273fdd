"""Notes about fields of a service or its runtime that have no effect in this service. Pure.

Fields that never have an effect are listed in ``modelyard.resources.field_effects``. Those here depend on the runtime,
the mode and the scaler of a component, or on the form of an object, so that only rendering knows them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from modelyard.objects import RAW, RAY, SERVERLESS, few
from modelyard.resources import InferenceService, ServingRuntime
from modelyard.resources.ome import ignored_fields, replaced
from modelyard.workloads.rendering import predictors
from modelyard.workloads.rendering.components import ServiceComponent, pod_fields
from modelyard.workloads.rendering.files import ServedModel
from modelyard.workloads.rendering.values import Note

WITHOUT_EFFECT: Final = "FieldsWithoutEffect"
_SCALERS: Final = frozenset(("HorizontalPodAutoscaler", "ScaledObject"))
_SWITCH: Final = "enableKeda"


def unused_fields(
    component: ServiceComponent, mode: str, place: str, kinds: Collection[str], unscaled: bool
) -> Iterator[Note]:
    """Iterate over the notes about one component. ``kinds`` are those of the objects rendered for it.

    ``place`` is the part that its first pod is made of: ``leader``, ``worker``, or empty for the component itself.
    ``unscaled``: another note says already that nothing scales it.
    """
    own = component.own
    if place:
        names = [*sorted(pod_fields(own)), *(["runner"] if "runner" in own else [])]
        yield from _note(component, names, f"its pods are described by {place}; write them there")
    if mode != RAW:
        yield from _note(component, _set(own, "deploymentStrategy"), "only a Deployment has one")
    if mode in (RAY, SERVERLESS):
        names = _set(own, "minAvailable", "maxUnavailable")
        yield from _note(component, names, f"the mode {mode} has no PodDisruptionBudget")
    if "ScaledObject" not in kinds and _settings(own):
        yield from _note(component, ["kedaConfig"], "no ScaledObject of KEDA scales it; set enableKeda, or remove it")
    if mode != SERVERLESS and not unscaled and not _SCALERS & set(kinds):
        text = "no HorizontalPodAutoscaler and no ScaledObject of the service scales it"
        yield from _note(component, _set(own, "scaleMetric", "scaleTarget"), text)


def unused_keda(spec: Mapping[str, Any], kinds: Iterable[str]) -> Iterator[Note]:
    """Iterate over the note about ``kedaConfig`` of a service, none of whose components KEDA scales."""
    if _settings(spec) and "ScaledObject" not in kinds:
        text = "no ScaledObject of KEDA scales a component; set enableKeda, or remove it"
        yield Note(WITHOUT_EFFECT, f"without effect: spec.kedaConfig: {text}")


def older_forms(service: InferenceService, model: ServedModel | None, runtime: ServingRuntime | None) -> Iterator[Note]:
    """Iterate over the notes about a runtime's older form and about a service's predictor."""
    if runtime is not None:
        spec = runtime.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        if fields := ignored_fields(spec):
            yield Note("OlderFormWithoutEffect", f"{runtime.kind} {runtime.name}: {replaced(fields)}")
    stored = model.stored.spec if model is not None else None
    yield from predictors.notes(service, stored.storage.storage_uri if stored is not None else "")


def unused_tag(tag: str, images: Iterable[str]) -> Iterator[Note]:
    """Iterate over the notes about a predictor's version, which is the tag of no image that names a digest."""
    for image in dict.fromkeys(images):
        problem = f"{predictors.VERSION_FIELD} {tag} has no effect on {image}, which names a digest"
        yield Note(predictors.WITHOUT_EFFECT, problem)


def ray_scaling(component: ServiceComponent, keda: bool) -> tuple[Note, ...]:
    """Return the note that nothing scales a component on Ray, where it asks for more replicas, a metric or KEDA."""
    replicas, most = max(component.least, 1), component.spec.get("maxReplicas") or 0
    fields = ["maxReplicas"] if most > replicas else []
    fields += [name for name in ("scaleMetric", "scaleTarget") if component.spec.get(name)]
    fields += ["KEDA"] if keda else []
    if not fields:
        return ()
    reason = f"nothing scales RayClusters, so {', '.join(fields)} have no effect"
    return (Note("ScalerNotServed", f"{component.kind}: {replicas} Ray clusters: {reason}", component.kind),)


def _settings(part: Mapping[str, Any]) -> bool:
    return any(name != _SWITCH for name in part.get("kedaConfig") or ())


def _set(part: Mapping[str, Any], *names: str) -> list[str]:
    return [name for name in names if part.get(name) is not None]


def _note(component: ServiceComponent, names: list[str], reason: str) -> Iterator[Note]:
    if names:
        fields = ", ".join(few([f"{component.path}.{name}" for name in names]))
        yield Note(WITHOUT_EFFECT, f"without effect: {fields}: {reason}", component.kind)
