"""A cluster in memory for roll-outs: what a plan writes is there at the next look, and pods come when told to."""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from plan_details import remember_details

from modelyard.objects import Key
from modelyard.reconcile.kernel.mirror import Store
from modelyard.reconcile.plans import status as statuses
from modelyard.reconcile.plans.plan import Mark, Plan, ServedKind, Subject
from modelyard.workloads.rendering.values import canonical
from modelyard.workloads.roll_out.lifecycle import RollOut, ServiceRollOut
from modelyard.workloads.roll_out.rollout_state import Standing

NOW = 1_800_000_000.0
SERVED = frozenset(
    (ServedKind("autoscaling/v2", "HorizontalPodAutoscaler"), ServedKind("policy/v1", "PodDisruptionBudget"))
)
FORMAT = {
    "modelFormat": {"name": "safetensors", "version": "1.0.0"},
    "modelFramework": {"name": "transformers", "version": "4.43.0"},
    "modelArchitecture": "LlamaForCausalLM",
}
ENGINE = {
    "name": "ome-container",
    "image": "engine:1",
    "ports": [{"containerPort": 8080}],
    "readinessProbe": {"httpGet": {"path": "/health", "port": 8080}},
}


class Fleet:
    """Objects by kind, namespace and name. ``look`` plans, ``carry`` writes, ``settle`` does both till all is told."""

    def __init__(self, *, served: frozenset[ServedKind] = SERVED, lifecycle: type[RollOut] = ServiceRollOut) -> None:
        self.lifecycle: RollOut = lifecycle("home", served)
        self.details = remember_details(self.lifecycle)
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._uids = itertools.count(1)

    def put(self, kind: str, name: str, namespace: str = "", **body: Any) -> dict[str, Any]:
        """An object, new or over what there is; ``metadata`` is added to what it must have."""
        before = self.objects.get((kind, namespace, name), {"metadata": {}})["metadata"]
        metadata = {
            "name": name,
            "uid": before.get("uid") or f"uid-{next(self._uids)}",
            "generation": before.get("generation", 0) + 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **({"namespace": namespace} if namespace else {}),
            **body.pop("metadata", {}),
        }
        obj = {"kind": kind, **body, "metadata": metadata}
        self.objects[kind, namespace, name] = obj
        return obj

    def service(self, name: str = "chat", namespace: str = "shop", *, annotations: Any = None, **spec: Any) -> None:
        body = {"model": {"name": "llama"}, "engine": {}, **spec}
        status = self.objects.get(("InferenceService", namespace, name), {}).get("status", {})
        self.put(
            "InferenceService", name, namespace, spec=body, status=status, metadata={"annotations": annotations or {}}
        )

    def model(self, name: str = "llama", **spec: Any) -> None:
        """A model that is on node-1."""
        body = {
            **FORMAT,
            "modelParameterSize": "8B",
            "storage": {"storageUri": "hf://meta/llama"},
            **spec,
        }
        self.put("ClusterBaseModel", name, spec=body, status={"state": "Ready"})

    def runtime(self, name: str = "small", **spec: Any) -> None:
        entry = {**FORMAT, "autoSelect": True, "priority": 1}
        body = {"supportedModelFormats": [entry], "engineConfig": {"runner": ENGINE}, **spec}
        self.put("ClusterServingRuntime", name, spec=body)

    def forge_revision(
        self, inputs: Mapping[str, Any], name: str = "chat", namespace: str = "shop", **more: Any
    ) -> str:
        """A ControllerRevision that a tenant made, and a status that names it as the last that served; its name."""
        service = self.objects[self.lifecycle.about.kind, namespace, name]
        text = canonical(inputs)
        called = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        owner = {**Subject.of(self.lifecycle.about, service).reference, "controller": True}
        label = {self.lifecycle.labels.service: name}
        metadata = {"ownerReferences": [owner], "labels": label}
        data = {"inputs": text, **more}
        self.put("ControllerRevision", called, namespace, data=data, metadata=metadata)
        service["status"]["annotations"]["modelyard.dev/good"] = called
        return called

    def look(self, name: str = "chat", namespace: str = "shop", now: float = NOW) -> Plan | None:
        return self.lifecycle.plan(Key(namespace, name), self.stores(), now)

    def standing(self, name: str = "chat", namespace: str = "shop") -> Standing:
        standing: Standing = self.details[Key(namespace, name)]
        return standing

    def stores(self) -> dict[Any, Store[Any]]:
        found: dict[Any, Store[Any]] = {}
        for want in self.lifecycle.wants:
            store = found[want.called or want.kind] = Store(want)
            for (kind, _, name), obj in self.objects.items():
                labels = obj["metadata"].get("labels") or {}
                if kind != want.kind.kind or (want.label_selector and want.label_selector not in labels):
                    continue
                if want.field_selector not in ("", f"metadata.name={name}"):
                    continue
                if kind == "Service" and ("serving" in str(obj.get("apiVersion"))) != bool(want.kind.group):
                    continue
                store.put(obj)
            assert not store.problems, store.problems
        return found

    def carry(self, plan: Plan | None, now: float = NOW, most: int = 1000) -> int:
        """Write what the plan says, in the kernel's order, as the API server would have it afterwards.

        Whoever writes is killed after ``most`` writes; how many there were.
        """
        writes = [] if plan is None else list(self._writes(plan, now))
        for write in writes[:most]:
            write()
        return len(writes)

    def _writes(self, plan: Plan, now: float) -> Iterator[Callable[[], None]]:
        key = plan.subject.key
        owner = self.objects[plan.subject.kind.kind, key.namespace, key.name]
        reference = {**plan.subject.reference, "controller": True}

        def remember() -> None:
            owner["metadata"]["annotations"] = _merged(owner["metadata"].get("annotations") or {}, plan.annotations)

        def tell() -> None:
            assert plan.status is not None
            owner["status"] = _merged(owner.get("status") or {}, statuses.patch(plan.status, owner["status"], now))

        def mark(mark: Mark) -> None:
            before = self.objects.get((mark.kind.kind, mark.key.namespace, mark.key.name), {})
            data = _merged(before.get("data") or {}, mark.data)
            self.put(mark.kind.kind, mark.key.name, mark.key.namespace, data=data)

        def apply(manifest: Mapping[str, Any]) -> None:
            assert not (why := plan.rules.refusal(manifest)), why
            body = copy.deepcopy(dict(manifest))
            about = body.pop("metadata")
            before = self.objects.get((body["kind"], about["namespace"], about["name"]), {})
            kept = {"status": before["status"]} if "status" in before else {}
            noted = {**before.get("metadata", {}).get("annotations", {}), **about.get("annotations", {})}
            metadata = {**about, "annotations": noted, "ownerReferences": [reference]}
            self.put(body.pop("kind"), about["name"], about["namespace"], **kept, **body, metadata=metadata)

        if plan.annotations:
            yield remember
        if plan.status is not None:
            yield tell
        for given in plan.marks:
            yield partial(mark, given)
        for manifest in plan.apply:
            yield partial(apply, manifest)
        for child in plan.delete:
            yield partial(self.objects.pop, (child.kind.kind, child.key.namespace, child.key.name))

    def settle(self, name: str = "chat", namespace: str = "shop", now: float = NOW) -> Plan | None:
        """Look and write until nothing is left to write; the last plan."""
        for _ in range(20):
            plan = self.look(name, namespace, now)
            if plan is None or not plan.writes:
                return plan
            self.carry(plan, now)
        raise AssertionError(f"it never settles: {plan}")

    def up(self, name: str, ready: int = 1, *, namespace: str = "shop", kind: str = "Deployment") -> None:
        """The controller of a workload has followed, and so many of its pods are ready."""
        obj = self.objects[kind, namespace, name]
        replicas = obj["spec"].get("replicas", 1)
        obj["status"] = {
            "observedGeneration": obj["metadata"]["generation"],
            **dict.fromkeys(("replicas", "updatedReplicas"), replicas),
            **dict.fromkeys(("readyReplicas", "availableReplicas"), ready),
        }

    def pod(self, name: str, component: str = "engine", service: str = "chat", **status: Any) -> None:
        labels = {"ome.io/inferenceservice": service, "component": component}
        self.put("Pod", name, "shop", spec=status.pop("spec", {}), status=status, metadata={"labels": labels})

    def condition(self, kind: str, name: str = "chat", namespace: str = "shop") -> tuple[str, str, str]:
        """Status, reason and message that the service has."""
        status = self.objects[self.lifecycle.about.kind, namespace, name].get("status") or {}
        one = next((c for c in status.get("conditions") or () if c["type"] == kind), {})
        return one.get("status", ""), one.get("reason", ""), one.get("message", "")

    def status(self, name: str = "chat") -> dict[str, Any]:
        found: dict[str, Any] = self.objects[self.lifecycle.about.kind, "shop", name]["status"]
        return found

    def names(self) -> set[str]:
        """What there is beside what people have made."""
        return {
            f"{kind} {name}"
            for (kind, _, name), obj in self.objects.items()
            if obj["metadata"].get("ownerReferences") and kind != "ControllerRevision"
        }


def serving() -> Fleet:
    """One service that answers."""
    fleet = Fleet()
    fleet.model()
    fleet.runtime()
    fleet.service()
    fleet.settle()
    fleet.up("chat-engine")
    fleet.settle()
    return fleet


def _merged(stored: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(stored)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            result[name] = _merged(result.get(name) or {}, value)
        else:
            result[name] = value
    return result
