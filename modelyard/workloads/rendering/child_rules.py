"""Check of a service's children right before they are written: pod rights, and rights of the router's account. Pure.

It takes nothing from how a child was rendered but the rights that ``reach.check`` has allowed for the service's pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from modelyard.objects import Namespace, ResourceType, mapping, shown, texts
from modelyard.reconcile.plans import WriteRules
from modelyard.workloads.rendering.reach import allowed, by_annotations, rights
from modelyard.workloads.rendering.shared import SEES_PODS
from modelyard.workloads.rendering.values import Right


def child_rules(kinds: Iterable[ResourceType], permitted: frozenset[Right], namespace: Namespace) -> WriteRules:
    """Return rules for children of these kinds: pods have ``permitted`` rights and what the Namespace allows."""
    return WriteRules.of(kinds, partial(_problem, permitted=permitted, namespace=namespace))


def pod_rights(manifest: Mapping[str, Any]) -> frozenset[Right]:
    """Return the rights of all pods that come of an object, of whatever kind it is."""
    asked = frozenset[Right]()
    for metadata, spec in _pods(manifest):
        asked |= rights(spec) | by_annotations(texts(metadata.get("annotations")))
    return asked


def _problem(manifest: Mapping[str, Any], permitted: frozenset[Right], namespace: Namespace) -> str:
    place = manifest["metadata"].get("namespace")
    if place != namespace.name:
        return f"metadata.namespace is {shown(place)}, and the service is in {namespace.name}"
    try:
        excess = sorted(right for right in pod_rights(manifest) - permitted if right.what not in allowed(namespace))
    except (AttributeError, KeyError, TypeError) as error:
        return f"its pods cannot be read: {type(error).__name__}: {error}"
    if excess:
        return f"{excess[0].field} {excess[0].value} is a right that its service does not have"
    return _account_problem(manifest)


def _account_problem(manifest: Mapping[str, Any]) -> str:
    kind, name, namespace = manifest["kind"], manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    if kind == "Role" and manifest.get("rules") != [SEES_PODS]:
        return "rules are not those of a router, which may see pods"
    if kind == "RoleBinding":
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
        if (manifest.get("roleRef"), manifest.get("subjects")) != (reference, subjects):
            return "roleRef and subjects are not the router's own Role and ServiceAccount"
    if kind == "ServiceAccount" and (more := manifest.keys() - {"apiVersion", "kind", "metadata"}):
        return f"{min(more)} is no field of a router's ServiceAccount"
    return ""


def _pods(value: Any, metadata: Mapping[str, Any] | None = None) -> Iterator[tuple[Mapping[str, Any], Any]]:
    if isinstance(value, list):
        for item in value:
            yield from _pods(item)
    if not isinstance(value, Mapping):
        return
    if "containers" in value:
        yield metadata or {}, value
        return
    for name, item in value.items():
        yield from _pods(item, mapping(value.get("metadata")) if name == "spec" else None)
