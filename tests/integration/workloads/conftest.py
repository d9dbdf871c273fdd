"""Services on the real control plane without nodes: their pods stay unscheduled, and what is written is compared."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fleet_fixture import eventually
from kthena_models import a_backend

from modelyard.cluster import Cluster, Object
from modelyard.local.stack import LocalStack
from modelyard.models.delivery.names import CLUSTER_BASE_MODELS
from modelyard.objects.kinds import NAMESPACES
from modelyard.workloads.kthena.lifecycle import ModelRollOut
from modelyard.workloads.roll_out.lifecycle import RollOut, ServiceRollOut
from modelyard.workloads.roll_out.world import MODELS, RUNTIMES

FORMAT = {
    "modelFormat": {"name": "safetensors", "version": "1.0.0"},
    "modelFramework": {"name": "transformers", "version": "4.43.0"},
    "modelArchitecture": "LlamaForCausalLM",
}
ENGINE = {"name": "ome-container", "image": "example.invalid/engine:1", "ports": [{"containerPort": 8080}]}
MODEL = {**FORMAT, "modelParameterSize": "8B", "storage": {"storageUri": "vendor://acme/model/llama"}}
RUNTIME = {
    "supportedModelFormats": [{**FORMAT, "autoSelect": True, "priority": 1}],
    "engineConfig": {"runner": ENGINE},
    "routerConfig": {"runner": ENGINE},
}
VOLATILE = frozenset(
    (
        *("uid", "resourceVersion", "generation", "observedGeneration", "creationTimestamp", "managedFields"),
        *("lastTransitionTime", "clusterIP", "clusterIPs", "nodePort", "modelyard.dev/run", "modelyard.dev/since"),
        *("modelRevisionName", "location", "time"),
        *("deployment.kubernetes.io/revision", "modelyard.dev/applied", "secrets", "selfLink"),
        # In which a Model's uid is.
        *("registry.volcano.sh/model-uid", "registry.volcano.sh/revision", "modelinfer.volcano.sh/revision"),
        "modelyard.dev/pods",
    )
)
"""Fields that differ between two roll-outs of the same."""


_TOLD = ("EngineReady", "RouterReady", "LatestDeploymentReady", "Ready", "Failed")
_AT_REST = frozenset(("Unschedulable", "NoNodeHasModel", "VirtualDeployment"))


class Fleets:
    """Namespaces that each hold the same services. ``home`` is the controller's, and the name of model and runtime."""

    def __init__(self, cluster: Cluster, home: str) -> None:
        self.cluster, self.home = cluster, home
        self.spaces: list[str] = []
        self.kinds: RollOut = ServiceRollOut(home)

    def of_models(self) -> None:
        """From now on Models are meant."""
        self.kinds = ModelRollOut(self.home, self.kinds.served)

    async def space(self) -> str:
        name = f"{self.home}-{len(self.spaces)}"
        await self.cluster.create(NAMESPACES, {"metadata": {"name": name}})
        self.spaces.append(name)
        return name

    async def make(self, space: str, name: str = "chat", **spec: Any) -> Object:
        body = {"model": {"name": self.home}, "runtime": {"name": self.home}, "engine": {}, **spec}
        if self.kinds.about is MODELS:
            body = {"backends": [a_backend()]}
        metadata = {"name": name, "namespace": space}
        return await self.cluster.create(self.kinds.about, {"metadata": metadata, "spec": body})

    async def there(self, space: str) -> dict[str, Any]:
        """All that is in a namespace to stay and somebody has written on purpose, by kind and name."""
        found = {}
        about = self.kinds.about
        for kind in (about, *self.kinds.kinds):
            for obj in await self.cluster.list(kind, space):
                metadata = obj["metadata"]
                if "deletionTimestamp" in metadata or (kind is not about and not metadata.get("ownerReferences")):
                    continue
                name = metadata["name"]
                if kind is not about:
                    obj.pop("status", None)
                found[f"{kind.kind} {name}"] = _plain(obj, space)
        return found

    async def end(self, space: str) -> dict[str, Any]:
        """The same when all is made, and told that there is no node for the pods; or nothing is to be there."""

        async def waiting() -> dict[str, Any] | None:
            found = await self.there(space)
            services = [one for name, one in found.items() if name.startswith(f"{self.kinds.about.kind} ")]
            told = [{kind: reason(one, kind) for kind in _TOLD if reason(one, kind)} for one in services]
            whole = all(one and {*one.values()} <= _AT_REST for one in told)
            return found if whole else None

        return await eventually(waiting, f"{space} is rolled out", 240)


def _plain(value: Any, space: str) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one, space) for name, one in value.items() if name not in VOLATILE and one not in ({}, [])}
    if isinstance(value, list):
        return [_plain(one, space) for one in value]
    return re.sub(rf"\b{space}\b", "SPACE", value) if isinstance(value, str) else value


def reason(service: Object, kind: str) -> str:
    """Of a condition; that of a Model has it in its message."""
    found = (service.get("status") or {}).get("conditions") or ()
    one = next((one for one in found if one["type"] == kind), {"reason": "", "message": ""})
    return str(one["message"]).partition(":")[0] if kind == "Failed" else str(one["reason"])


@pytest.fixture
async def fleets(
    control_plane: LocalStack, control_plane_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Fleets]:
    """What a test makes is deleted after it."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    cluster, name = control_plane_cluster, f"f-{uuid.uuid4().hex[:6]}"
    await cluster.create(CLUSTER_BASE_MODELS, {"metadata": {"name": name}, "spec": MODEL})
    await cluster.create(RUNTIMES[1], {"metadata": {"name": name}, "spec": RUNTIME})
    found = Fleets(cluster, name)
    found.kinds.served = frozenset([one for one in found.kinds.asks if await cluster.serves(*one)])
    yield found
    for space in found.spaces:
        await cluster.delete(NAMESPACES, space)
    await cluster.delete(CLUSTER_BASE_MODELS, name)
    await cluster.delete(RUNTIMES[1], name)
