"""Routes, servers and pods as the API sends them, and a world of them to plan in."""

from __future__ import annotations

from typing import Any

from modelyard.objects import Key, ResourceType
from modelyard.reconcile.kernel.mirror import Store
from modelyard.reconcile.plans.plan import Plan, Want, World
from modelyard.routing.lifecycle import RouteStatus, ServerStatus

NOW = 1_800_000_000.0
HOME = "home"


def world(*objects: dict[str, Any]) -> World:
    """The stores that the lifecycles ask for, filled with these."""
    wants = {want.called or want.kind: want for want in (*RouteStatus(HOME).wants, *ServerStatus.wants)}
    stores: dict[ResourceType | str, Store[Any]] = {name: Store(want) for name, want in wants.items()}
    for obj in objects:
        for name, want in wants.items():
            if want.kind.kind == obj["kind"] and _is_selected(want, obj["metadata"]):
                stores[name].put(obj)
    assert not any(store.problems for store in stores.values())
    return stores


def _is_selected(want: Want[Any], about: dict[str, Any]) -> bool:
    if want.namespace is not None and about["namespace"] != want.namespace:
        return False
    label, _, value = want.label_selector.partition("=")
    if label and (about.get("labels") or {}).get(label) != value:
        return False
    return want.field_selector in ("", f"metadata.name={about['name']}")


def plan(obj: dict[str, Any], *others: dict[str, Any]) -> Plan | None:
    lifecycle = RouteStatus(HOME) if obj["kind"] == "ModelRoute" else ServerStatus()
    key = Key(obj["metadata"]["namespace"], obj["metadata"]["name"])
    return lifecycle.plan(key, world(obj, *others), NOW)


def told(obj: dict[str, Any], *others: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Status and reason of the conditions the object should have, by type."""
    found = plan(obj, *others)
    assert found is not None
    assert found.status is not None
    return {one.type: (one.status, one.reason) for one in found.status.conditions}


def written(obj: dict[str, Any], found: Plan | None) -> dict[str, Any]:
    """The object with the plan's status stored, by somebody who has conditions of his own there too."""
    assert found is not None
    assert found.status is not None
    conditions = [
        {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message, "observedGeneration": 1}
        for c in found.status.conditions
    ]
    theirs = {"type": "example.com/Seen", "status": "True", "reason": "Seen", "message": ""}
    fields = {name: value for name, value in found.status.fields.items() if value is not None}
    return {**obj, "status": {**fields, "conditions": [theirs, *conditions]}}


def metadata(name: str, namespace: str, age: int) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{namespace}-{name}",
        "generation": 1,
        "resourceVersion": "7",
        "creationTimestamp": f"2026-01-01T00:{59 - age:02}:00Z",
    }


def a_route(
    name: str = "route",
    model: str | None = "llama",
    *servers: str,
    namespace: str = "shop",
    age: int = 0,
    adapters: tuple[str, ...] = (),
    **spec: Any,
) -> dict[str, Any]:
    """A route with one rule that sends to ``servers``; ``age`` in minutes."""
    body: dict[str, Any] = {"rules": [{"targetModels": [{"modelServerName": one} for one in servers or ("server",)]}]}
    if model is not None:
        body["modelName"] = model
    if adapters:
        body["loraAdapters"] = list(adapters)
    return {"kind": "ModelRoute", "metadata": metadata(name, namespace, age), "spec": {**body, **spec}}


def a_router_configuration(text: str, name: str = "modelyard-router", namespace: str = HOME) -> dict[str, Any]:
    """The ConfigMap with the configuration of the routers."""
    return {"kind": "ConfigMap", "metadata": metadata(name, namespace, 0), "data": {"routerConfiguration": text}}


def a_server(
    name: str = "server", namespace: str = "shop", groups: dict[str, Any] | None = None, **labels: str
) -> dict[str, Any]:
    selector: dict[str, Any] = {"matchLabels": labels or {"app": "llama"}}
    if groups is not None:
        selector["pdGroup"] = groups
    spec = {"inferenceEngine": "vLLM", "workloadSelector": selector}
    return {"kind": "ModelServer", "metadata": metadata(name, namespace, 0), "spec": spec}


def a_pod(
    name: str = "pod",
    namespace: str = "shop",
    ready: bool = True,
    phase: str = "Running",
    deleting: bool = False,
    **labels: str,
) -> dict[str, Any]:
    meta = {**metadata(name, namespace, 0), "labels": labels or {"app": "llama"}}
    if deleting:
        meta["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T01:00:00Z"}
    return {"kind": "Pod", "metadata": meta, "spec": {}, "status": {"phase": phase, "conditions": [condition]}}
