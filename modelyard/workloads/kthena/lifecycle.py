"""The life of a Model: as that of an InferenceService, with what a Model has in place of its parts. Pure.

Its components are its backends; a backend's files, workloads, ModelServer and policies belong to the Model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar

from modelyard.models.delivery import BASE_MODELS
from modelyard.objects import CONFIG_MAPS, DEPLOYMENTS, SERVICES, STATEFUL_SETS, Key, ResourceType, key_of
from modelyard.reconcile.plans import Plan, ServedKind, Want, World
from modelyard.resources import AutoscalingPolicy, Model, ModelRoute, ModelServer
from modelyard.workloads.kthena.render import rendered
from modelyard.workloads.kthena.setup import LWS, OF_MODEL, Existing
from modelyard.workloads.kthena.status import ACTIVE, FAILED, told
from modelyard.workloads.rendering import Abilities, Refused, Rendered
from modelyard.workloads.roll_out import (
    BINDINGS,
    MODELS,
    MODELS_WANTED,
    SERVED_MODELS_WANTED,
    VARIANTS,
    OwnLabels,
    Resolved,
    RollOut,
    Standing,
    StoredService,
    floor,
    is_workload,
)

LEADER_WORKER_SETS = ResourceType("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets", True)
_MADE = (
    *(BASE_MODELS, CONFIG_MAPS, SERVICES, DEPLOYMENTS, STATEFUL_SETS),
    *map(ResourceType.of_resource, (ModelServer, ModelRoute, AutoscalingPolicy)),
    BINDINGS,
)
OF_MODELS = OwnLabels(f"{OF_MODEL}/model-uid", f"{OF_MODEL}/backend-name")
DELIVERED = "delivered"
_DELIVERED = MODELS_WANTED[0]._replace(label_selector=OF_MODELS.service, use=DELIVERED, called=DELIVERED)


_ELSEWHERE = tuple(
    ResourceType(group, "v1alpha1", kind, plural, True)
    for group in ("workload.volcano.sh", "workload.serving.volcano.sh")
    for kind, plural in (("ModelInfer", "modelinfers"), ("ModelServing", "modelservings"))
)
"""What Kthena's own controller has pods made by, under the names that it has had."""


def _key_and_owners(obj: Mapping[str, Any]) -> tuple[Key, tuple[str, ...]]:
    # Kthena's references do not say that the Model is its controller.
    return key_of(obj), tuple(owner["uid"] for owner in obj["metadata"].get("ownerReferences") or ())


class ModelRollOut(RollOut):
    """Models (registry.volcano.sh)."""

    labels = OF_MODELS
    name = "roll-out-models"
    about = MODELS
    asks = (
        ServedKind(LWS, "LeaderWorkerSet"),
        *(ServedKind(one.api_version, one.kind) for one in (VARIANTS, BINDINGS, *_ELSEWHERE)),
    )

    well: ClassVar[Mapping[str, str]] = {FAILED: "False", ACTIVE: "True"}

    @property
    def kinds(self) -> tuple[ResourceType, ...]:
        return (*_MADE, LEADER_WORKER_SETS) if self.asks[0] in self.served else _MADE

    @property
    def named(self) -> tuple[Want[Any], ...]:
        others = (Want(kind, _key_and_owners, indexes={"owner": itemgetter(1)}) for kind in self._others)
        return (SERVED_MODELS_WANTED, _DELIVERED, *others)

    @property
    def _others(self) -> list[ResourceType]:
        return [one for one in _ELSEWHERE if ServedKind(one.api_version, one.kind) in self.served]

    def beside(self, service: StoredService, world: World) -> Sequence[str]:
        found = ((kind, key) for kind in self._others for key, _ in world[kind].by("owner", service.subject.uid))
        return [f"{kind.kind} {key.name}" for kind, key in found if key.namespace == service.key.namespace]

    def resolve(self, service: StoredService, world: World) -> Resolved:
        """A Model names no other object. What is delivered for it counts as its weights."""
        mine = (world[DELIVERED].get(one.key) for one in self._owned(service, world) if one.kind == BASE_MODELS)
        return Resolved(weights=tuple(one for one in mine if one is not None))

    def render(self, service: StoredService, found: Resolved, abilities: Abilities, world: World) -> Rendered | Refused:
        assert isinstance(service.resource, Model)
        workloads = [one.body for one in self._owned(service, world) if is_workload(one)]
        replicas = {one["metadata"]["name"]: one["spec"].get("replicas", 1) for one in workloads}
        return rendered(service.resource, abilities, existing=Existing(replicas, self._scaled(service, world)))

    def tell(self, here: Standing, doing: Sequence[str], now: float) -> Plan:
        return told(here, doing, now)

    def least(self, service: StoredService, result: Rendered, component: str) -> int:
        """As few as its backend may have, whatever there are."""
        assert isinstance(service.resource, Model)
        backend = next((one for one in service.resource.spec.backends if one.name == component), None)
        if backend is None:  # of the revision that served before
            return floor(result.children, component)
        each = min(one.replicas or 1 for one in backend.workers)
        return max(backend.min_replicas * each, floor(result.children, component))
