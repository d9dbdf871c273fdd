"""Objects at hand (files, answers of a cluster) as lifecycles see them: what watches would keep of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from modelyard.objects import ResourceType, parse_selector
from modelyard.reconcile.kernel import Store
from modelyard.reconcile.plans import ServedKind, Want
from modelyard.workloads.roll_out import BINDINGS, VARIANTS, RollOut

Object = Mapping[str, Any]


def world_of(wants: Iterable[Want[Any]], objects: Iterable[Object]) -> dict[ResourceType | str, Store[Any]]:
    """Return the stores of what is wanted among the objects, whatever namespace a want is limited to."""
    objects = list(objects)
    world: dict[ResourceType | str, Store[Any]] = {}
    for want in wants:
        store = world[want.called or want.kind] = Store(want)
        matches = parse_selector(want.label_selector)
        for body in objects:
            metadata = body["metadata"]
            is_named = want.field_selector in ("", f"metadata.name={metadata['name']}")
            group = str(body.get("apiVersion") or "").rpartition("/")[0]
            is_of_kind = (group, body["kind"]) == (want.kind.group, want.kind.kind)
            if is_of_kind and is_named and matches(metadata.get("labels") or {}):
                store.put(_as_stored(body, want.kind))
    return world


def world_for(
    lifecycle: RollOut, objects: Iterable[Object], served: Iterable[str]
) -> dict[ResourceType | str, Store[Any]]:
    """Return the world of a lifecycle in a cluster of only these objects.

    It serves Modelyard's own kinds, and those in ``served``: ``apiVersion/Kind``.
    """
    kinds = {*served, *(f"{kind.api_version}/{kind.kind}" for kind in (VARIANTS, BINDINGS))}
    lifecycle.served = frozenset(ServedKind(*kind) for kind in lifecycle.asks if str(ServedKind(*kind)) in kinds)
    return world_of(lifecycle.wants, objects)


def _as_stored(body: Object, kind: ResourceType) -> dict[str, Any]:
    """Return the object without the namespace that files are read with, where its kind has none."""
    metadata = dict(body["metadata"])
    if not kind.namespaced:
        metadata.pop("namespace", None)
    return {**body, "metadata": metadata}
