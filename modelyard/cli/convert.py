"""``modelyard convert``: manifests of newer peers in the published form, as far as that can say the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from modelyard.cli.options import warn
from modelyard.objects import MODE, RAW

Object = dict[str, Any]

_OF_A_SERVER = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")
"""What an API server adds to metadata, and a manifest does not have."""


class Inconvertible(ValueError):
    """A manifest that the published form cannot express. The message names the field and what to do."""


class Converted(NamedTuple):
    """The published form of one manifest, which may be several, and the fields that had to be left out, with why."""

    manifests: list[Object]
    remarks: list[str]


def converted(manifest: Mapping[str, Any]) -> Converted:
    """One manifest in the published form; foreign kinds unchanged. Raises ``Inconvertible`` and ``ResourceInvalid``."""
    from modelyard.resources import KINDS, RENAMED_GROUPS

    group = str(manifest.get("apiVersion", "")).partition("/")[0]
    kind = str(manifest.get("kind", ""))
    if kind in ("ScaledObject", "HorizontalPodAutoscaler"):
        return _scaler(manifest)
    kind = "Model" if kind == "ModelBooster" else kind
    cls = KINDS.get((RENAMED_GROUPS.get(group, group), kind))
    if cls is None:
        return Converted([dict(manifest)], [])
    remarks: list[str] = []
    try:
        body = copy.deepcopy({"apiVersion": cls.api_version, "kind": kind, **_stated(manifest)})
        done = list(_REWRITE[kind](body, remarks)) if kind in _REWRITE else [body]
    except (AttributeError, KeyError, TypeError) as error:
        raise Inconvertible(f"not in the form of {kind}: {error}") from error
    for one in done:
        remarks += _left_out(one)
    return Converted(done, remarks)


def _stated(manifest: Mapping[str, Any]) -> Object:
    metadata = {key: value for key, value in (manifest.get("metadata") or {}).items() if key not in _OF_A_SERVER}
    annotations = metadata.get("annotations") or {}
    annotations = {k: v for k, v in annotations.items() if k != "kubectl.kubernetes.io/last-applied-configuration"}
    metadata = {**metadata, "annotations": annotations} if annotations else _without(metadata, "annotations")
    return {"metadata": metadata, "spec": manifest.get("spec") or {}}


def _without(values: Mapping[str, Any], *names: str) -> Object:
    return {key: value for key, value in values.items() if key not in names}


def _left_out(body: Object) -> Iterator[str]:
    """Take out the fields that the published form does not have, and say so. Raises ``ResourceInvalid``."""
    from pydantic import ValidationError

    from modelyard.resources import KINDS, field_path, parse
    from modelyard.resources.field_effects import ineffective

    cls = KINDS[body["apiVersion"].partition("/")[0], body["kind"]]
    try:
        cls.model_validate(_without(body, "apiVersion", "kind"))
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if detail["type"] == "extra_forbidden":
                *path, last = detail["loc"]
                inside: Any = body
                for step in path:
                    inside = inside[step]
                del inside[last]
                yield f"{field_path(detail['loc'])} is left out: the published form has no such field"
    parse(body)
    yield from (f"{field.path} has no effect in Modelyard: {field.reason}" for field in ineffective(cls, body))


def _model(body: Object, remarks: list[str]) -> Iterator[Object]:
    spec = body["spec"]
    if "backend" in spec:
        backend = spec.pop("backend")
        spec["backends"] = [backend]
        if "autoscalingPolicy" in spec:
            # The policy of a Model shares replicas out between backends by their cost; of one backend it is its own.
            backend["autoscalingPolicy"] = spec.pop("autoscalingPolicy")
    for backend in spec.get("backends") or ():
        if "replicas" in backend:
            backend["minReplicas"] = backend["maxReplicas"] = backend.pop("replicas")
    for scaled in (spec, *(spec.get("backends") or ())):
        _name_metrics(scaled.get("autoscalingPolicy") or {}, {})
    yield body


def _name_metrics(policy: Object, exposed: Mapping[str, str]) -> None:
    for metric in policy.get("metrics") or ():
        if "name" in metric:
            metric["metricName"] = metric.pop("name")
        if metric.get("metricName") in exposed:
            metric["metricName"] = exposed[metric["metricName"]]


_TARGETS = {"homogeneousTarget": "scalingConfiguration", "heterogeneousTarget": "optimizerConfiguration"}
_ROLES = "the published form scales whole workloads; give each role a workload, a policy and a binding of its own"


def _policy(body: Object, remarks: list[str]) -> Iterator[Object]:
    spec = body["spec"]
    if "disaggregatedTarget" in spec:
        raise Inconvertible(f"spec.disaggregatedTarget: {_ROLES}")
    target = {name: spec.pop(name) for name in _TARGETS if name in spec}
    exposed: dict[str, str] = {}
    bindings: list[Object] = []
    if target:
        binding = {"kind": "AutoscalingPolicyBinding", "metadata": copy.deepcopy(body["metadata"])}
        binding = {"apiVersion": body["apiVersion"], **binding, "spec": {"policyRef": {"name": _name(body)}, **target}}
        bindings += _binding(binding, remarks, exposed)
    _name_metrics(spec, exposed)
    yield body
    yield from bindings


def _binding(body: Object, remarks: list[str], exposed: dict[str, str] | None = None) -> Iterator[Object]:
    """``exposed`` is filled with the names that pods show metrics under, where these are not the policy's."""
    from modelyard.autoscaling.reading.bindings import SOURCES

    spec = body["spec"]
    for newer, ours in _TARGETS.items():
        if newer in spec:
            spec[ours] = spec.pop(newer)
    exposed = {} if exposed is None else exposed
    several = (spec.get("optimizerConfiguration") or {}).get("params")
    queries: dict[str, Any] = {}
    for part in several or [spec.get("scalingConfiguration") or {}]:
        target = part.get("target") or {}
        if asked := _target(target, exposed, remarks):
            queries |= {target["targetRef"]["name"]: asked} if several else asked
    if queries:
        import yaml

        body["metadata"].setdefault("annotations", {})[SOURCES] = yaml.safe_dump(queries, sort_keys=False, width=1000)
    yield body


def _target(target: Object, exposed: dict[str, str], remarks: list[str]) -> dict[str, str]:
    """Rewrite a target in place; the PromQL of the metrics that it takes from Prometheus."""
    from modelyard.autoscaling.reading.bindings import ROLE

    reference = target.get("targetRef") or {}
    part = target.pop("subTargets", None)
    if (part and part.get("kind") != "Role") or reference.get("kind") == "ModelServing/Role":
        raise Inconvertible(f"target {reference.get('name')}: {_ROLES}")
    sources = target.pop("metricSources", None) or {}
    pods = {name: source["pod"] or {} for name, source in sources.items() if "pod" in source}
    places = [_without(pod, "name") for pod in pods.values()]
    if any(place != places[0] for place in places):
        where = f"target {reference.get('name')}: metricSources of {', '.join(pods)}"
        raise Inconvertible(f"{where} are at different places; a target has one port, path and set of labels")
    if places:
        target["metricEndpoint"] = places[0]
    for name, pod in pods.items():
        shown = pod.get("name") or name
        if exposed.setdefault(name, shown) != shown:
            raise Inconvertible(f"metric {name}: pods of two targets show it under different names; make them equal")
    selector = (target.get("metricEndpoint") or {}).pop("labelSelector", None) or {}
    if selector.get("matchExpressions"):
        raise Inconvertible(f"target {reference.get('name')}: labelSelector.matchExpressions: write matchLabels")
    role = {ROLE: part.get("name")} if part else {}
    if labels := {**(target.get("additionalMatchLabels") or {}), **(selector.get("matchLabels") or {}), **role}:
        target["additionalMatchLabels"] = labels
    asked = {name: source["prometheus"] for name, source in sources.items() if "prometheus" in source}
    if clash := exposed.keys() & asked.keys():
        raise Inconvertible(f"metric {min(clash)}: comes from pods and from Prometheus; give these two names")
    remarks += (
        f"serverURL {one['serverURL']} is left out: Modelyard asks its own Prometheus" for one in asked.values()
    )
    return {name: one["query"] for name, one in asked.items()}


def _variant(body: Object, remarks: list[str]) -> Iterator[Object]:
    from modelyard.autoscaling.configuration import MAX_REPLICAS, MIN_REPLICAS

    spec, metadata = body["spec"], body["metadata"]
    bounds = {
        annotation: str(spec.pop(field))
        for field, annotation in (("minReplicas", MIN_REPLICAS), ("maxReplicas", MAX_REPLICAS))
        if spec.get(field) is not None
    }
    if bounds:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **bounds}
    yield body


def _scaler(manifest: Mapping[str, Any]) -> Converted:
    from modelyard.autoscaling.reading import AnnotationInvalid, gauge_remarks, is_managed, variant_manifest
    from modelyard.resources import parse

    scaler = dict(manifest)
    try:
        if not is_managed(scaler):
            return Converted([scaler], [])
        variant = variant_manifest(scaler)
    except AnnotationInvalid as error:
        raise Inconvertible(str(error)) from error
    except (AttributeError, KeyError, TypeError) as error:
        raise Inconvertible(f"not in the form of {manifest.get('kind')}: {error}") from error
    parse(variant)
    stated = {"apiVersion": scaler["apiVersion"], "kind": scaler["kind"], **_stated(scaler)}
    return Converted([variant, stated], gauge_remarks(scaler))


def _service(body: Object, remarks: list[str]) -> Iterator[Object]:
    if body["spec"].get("deploymentMode") == RAW:
        body["metadata"].setdefault("annotations", {})[MODE] = body["spec"].pop("deploymentMode")
    yield body


def _runtime(body: Object, remarks: list[str]) -> Iterator[Object]:
    """Rewrite the older form of a runtime, a pod at the top level, into ``engineConfig``."""
    from modelyard.resources.ome import FIELDS, REPLACED, WORKERS, engine_config, ignored_fields

    spec = body["spec"]
    older = [name for name in (*FIELDS, WORKERS) if name in spec]
    kept = [f"spec.{WORKERS}.{name}" for name in ("labels", "annotations") if (spec.get(WORKERS) or {}).get(name)]
    if ignored := ignored_fields(spec):
        remarks.append(f"{', '.join(f'spec.{name}' for name in ignored)}: left out, {REPLACED}")
    elif kept:
        remarks.append(f"{', '.join(kept)}: engineConfig.worker has no such field, so that the older form is kept")
        older = []
    elif older:
        names = ", ".join(f"spec.{name}" for name in older)
        remarks.append(f"{names}: moved to spec.engineConfig, of which they are the older form")
        spec["engineConfig"] = engine_config(spec)
    for name in older:
        del spec[name]
    yield body


_REWRITE: Mapping[str, Callable[[Object, list[str]], Iterable[Object]]] = {
    "Model": _model,
    "AutoscalingPolicy": _policy,
    "AutoscalingPolicyBinding": _binding,
    "VariantAutoscaling": _variant,
    "InferenceService": _service,
    "ServingRuntime": _runtime,
    "ClusterServingRuntime": _runtime,
}


def _name(body: Mapping[str, Any]) -> str:
    metadata = body.get("metadata")
    return str((metadata.get("name") if isinstance(metadata, dict) else None) or "<no name>")


def convert(
    files: Annotated[
        list[Path], typer.Option("-f", "--filename", help="Manifest file, '-' for standard input; repeat.")
    ],
) -> None:
    """Rewrite manifests of newer peers into the published form that Modelyard reads. Prints them; changes no file."""
    import yaml

    from modelyard.autoscaling.configuration import documents
    from modelyard.resources import ResourceInvalid

    done: list[Object] = []
    failed = False
    for path in files:
        for document in documents(path, "give a manifest with -f"):
            items = document.get("items") if isinstance(document, dict) else None
            for manifest in items if isinstance(items, list) else [document]:
                if not isinstance(manifest, dict):
                    continue
                what = f"{path}: {manifest.get('kind')} {_name(manifest)}"
                try:
                    manifests, remarks = converted(manifest)
                except (Inconvertible, ResourceInvalid) as error:
                    warn(f"{what} is not converted: {error}", "error")
                    failed = True
                    continue
                done += manifests
                for remark in dict.fromkeys(remarks):
                    warn(f"{what}: {remark}")
    typer.echo(yaml.safe_dump_all(done, sort_keys=False, allow_unicode=True), nl=False)
    if failed:
        raise typer.Exit(1)
