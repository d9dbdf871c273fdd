"""Requests to deliver a model, and the state that a model's status reports for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modelyard.cluster import Cluster, NotFound
from modelyard.models.delivery import NUDGE, RESOLVED
from modelyard.objects import Key, ResourceType, condition
from modelyard.reconcile.plans import ObjectResult, ResultState


class NoSuchModel(ValueError):
    """No model has this name; the message says where it was looked for, and what to do."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """A model's published state, reason and message; ``Gone`` where the object does not exist."""

    state: str
    reason: str = ""
    message: str = ""

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> ModelState:
        status = obj.get("status") or {}
        ready = condition(status, "Ready")
        return cls(status.get("state", "Creating"), ready.get("reason", ""), ready.get("message", ""))

    def result(self, key: Key) -> ObjectResult:
        name = key.label
        if self.state == "Ready":
            return ObjectResult(ResultState.DONE, f"{name}: {self.message}")
        if self.state == "Gone":
            return ObjectResult(ResultState.GONE, f"{name} is not ready: there is no such model any more")
        state = ResultState.FAILED if self.state == "Failed" else ResultState.PENDING
        return ObjectResult(state, f"{name} is not ready: {self.reason}: {self.message}")


class DeliveryRequest:
    """A request to deliver a model that may have been requested before.

    ``obj`` is the model right after the request. Its status still reports the request before; ``state`` does not.
    """

    def __init__(self, obj: Mapping[str, Any]) -> None:
        self._generation = int(obj["metadata"].get("generation") or 0)
        status = obj.get("status") or {}
        self.failed_before = status.get("state") == "Failed" or bool(status.get("nodesFailed"))
        seen = int(status.get("observedGeneration") or 0) >= self._generation
        self._before = ModelState.of(obj) if seen and status.get("state") == "Failed" else None

    def state(self, obj: Mapping[str, Any]) -> ModelState:
        """Return the model's state now, ``Creating`` while its status is that of the request before."""
        status, current = obj.get("status") or {}, ModelState.of(obj)
        if status and int(status.get("observedGeneration") or 0) < self._generation:
            return ModelState("Creating", "Requested", "the flow reconcile has not seen the request yet")
        # A refusal is of the spec as it is, and no attempt follows.
        if current == self._before and condition(status, RESOLVED).get("status") != "False":
            return ModelState("Creating", "Requested", "the next attempt has not begun yet")
        self._before = None
        return current


async def request_model(
    cluster: Cluster,
    kind: ResourceType,
    key: Key,
    uri: str,
    node_selector: Mapping[str, str],
    parameters: Mapping[str, str] | None = None,
    secret: str = "",
) -> DeliveryRequest:
    """Create a model of this name and URI, or give the existing one this URI. ``secret``: name of its credentials."""
    given = {"nodeSelector": dict(node_selector), "parameters": dict(parameters or {}), "key": secret}
    storage = {"storageUri": uri, **{name: values for name, values in given.items() if values}}
    body = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": key.name, **({"namespace": key.namespace} if key.namespace else {})},
        "spec": {"storage": storage},
    }
    return DeliveryRequest(await cluster.apply(body))


async def request_retry(cluster: Cluster, kind: ResourceType, key: Key) -> None:
    """Request another attempt at what has failed for a model, at once."""
    body = {"metadata": {"annotations": {NUDGE: f"{cluster.now():.3f}"}}}
    await cluster.merge_patch(kind, key.name, body, key.namespace or None)


async def read_state(
    cluster: Cluster, kind: ResourceType, key: Key, request: DeliveryRequest | None = None
) -> ModelState:
    """Return a model's state now; with ``request``, the state of that request."""
    try:
        obj = await cluster.get(kind, key.name, key.namespace or None)
    except NotFound:
        return ModelState("Gone")
    return ModelState.of(obj) if request is None else request.state(obj)
