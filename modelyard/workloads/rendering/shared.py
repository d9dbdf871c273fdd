"""What belongs to no single component: the description of the model, and who the router is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from modelyard.resources import InferenceService
from modelyard.workloads.rendering import metadata, names
from modelyard.workloads.rendering.files import ServedModel
from modelyard.workloads.rendering.values import Body, ChildObject, canonical

_SECRET: Final = ("token", "secretKey")
"""Parameters of a storage that are nobody's business in a tenant's namespace."""
_RBAC: Final = "rbac.authorization.k8s.io"
SEES_PODS: Final = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
"""All that a router may do: it finds engines and decoders by their labels."""


def shared(
    service: InferenceService, model: ServedModel | None, weights: Sequence[ServedModel], router: bool
) -> list[ChildObject]:
    """The ConfigMap of the model, and the ServiceAccount of a router with its rights."""
    namespace = service.namespace
    bodies: list[tuple[Body, str]] = []
    if model is not None:
        labels = {names.SERVICE: names.label_value(service.name)}
        about = metadata.of(names.model_config(service.name), namespace, labels, {})
        entries = [canonical(described(model, weight)) for weight in weights or (None,)]
        data = {"models.json": f"[{','.join(entries)}]"}
        bodies.append(({"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": data}, ""))
    if router:
        identity = names.component(service.name, names.ROUTER)
        about = metadata.of(identity, namespace, metadata.selector(service.name, names.ROUTER), {})
        role = {"apiGroup": _RBAC, "kind": "Role", "name": identity}
        subject = {"kind": "ServiceAccount", "name": identity, "namespace": namespace}
        rights: list[Body] = [
            {"apiVersion": "v1", "kind": "ServiceAccount"},
            {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "rules": [SEES_PODS]},
            {"apiVersion": f"{_RBAC}/v1", "kind": "RoleBinding", "roleRef": role, "subjects": [subject]},
        ]
        bodies += [({**one, "metadata": about}, names.ROUTER) for one in rights]
    return [ChildObject(body, component) for body, component in bodies]


def described(model: ServedModel, weight: ServedModel | None) -> Body:
    """The published entry of a model in ``models.json``; with several weights there is one for each."""
    spec = _dumped(model)
    storage, framework = spec["storage"], spec.get("modelFramework") or {}
    about = {
        "storageUri": storage["storageUri"],
        "path": storage.get("path"),
        "schemaPath": storage.get("schemaPath"),
        "parameters": storage.get("parameters"),
        "storageKey": storage.get("key"),
        "modelFormatName": model.format[0],
        "modelFormatVersion": model.format[1],
        "modelType": spec.get("modelType"),
        "modelFrameworkName": framework.get("name"),
        "modelFrameworkVersion": framework.get("version"),
    }
    result: Body = {"modelName": model.name, "modelSpec": {name: value for name, value in about.items() if value}}
    return result if weight is None else {**result, "fineTunedWeightSpec": _dumped(weight)}


def _dumped(one: ServedModel) -> dict[str, Any]:
    assert one.stored.spec is not None
    found = one.stored.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    given: Mapping[str, str] = found["storage"].get("parameters") or {}
    parameters = {name: value for name, value in given.items() if name not in _SECRET}
    return {**found, "storage": {**found["storage"], "parameters": parameters}}
