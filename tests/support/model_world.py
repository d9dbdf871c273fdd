"""A small cluster in memory that carries plans of models out: nodes, reports, Jobs and their pods."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

from modelyard.models.delivery import names
from modelyard.models.delivery.lifecycle import REPORTS, SETTINGS, ModelDelivery
from modelyard.models.delivery.running import MODEL
from modelyard.models.storage.settings import CONFIG_MAP
from modelyard.objects import Key, ResourceType
from modelyard.objects.kinds import JOBS, NODES, SECRETS
from modelyard.reconcile.kernel.mirror import Store
from modelyard.reconcile.plans import status as statuses
from modelyard.reconcile.plans.plan import LOOK_UPS, OWNER, Plan, Presence, Want

NOW = 1_800_000_000.0
HOME = "modelyard"
Object = dict[str, Any]


def rfc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def model(name: str = "llama", namespace: str = "", uri: str = "hf://meta/llama", **storage: Any) -> Object:
    kind = "BaseModel" if namespace else "ClusterBaseModel"
    metadata = {
        "name": name,
        "uid": f"uid-{name}",
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": rfc(NOW),
    }
    if namespace:
        metadata["namespace"] = namespace
    spec = {"storage": {"storageUri": uri, **storage}}
    return {"apiVersion": "ome.io/v1beta1", "kind": kind, "metadata": metadata, "spec": spec}


class LookedUp:
    """Presence of the Secrets of a small cluster."""

    def __init__(self, secrets: Store[Presence]) -> None:
        self._secrets = secrets

    def get(self, key: Key) -> Presence:
        return self._secrets.get(key) or Presence.ABSENT


class Cluster:
    """Objects by kind and key. ``now`` moves only when told to."""

    def __init__(self, *nodes: str, settings: str = "", **labels: str) -> None:
        self.now = NOW
        self.objects: dict[tuple[str, Key], Object] = {}
        self.settings = settings
        self.plans: list[Plan] = []
        for name in nodes:
            self.node(name, **labels)

    def node(self, name: str, ready: bool = True, **labels: str) -> Object:
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": rfc(self.now)}
        node = {
            "metadata": {"name": name, "uid": f"uid-{name}", "labels": dict(labels)},
            "status": {"conditions": [condition]},
        }
        return self.put("Node", node)

    def put(self, kind: str, obj: Object) -> Object:
        self.objects[kind, Key(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])] = obj
        return obj

    def get(self, kind: str, name: str, namespace: str = "") -> Object:
        return self.objects[kind, Key(namespace, name)]

    def all(self, kind: str) -> list[Object]:
        return [obj for (known, _), obj in sorted(self.objects.items()) if known == kind]

    def lifecycle(self, kind: ResourceType) -> ModelDelivery:
        return ModelDelivery(kind, HOME)

    def world(self, lifecycle: ModelDelivery) -> dict[Any, Any]:
        stores: dict[Any, Store[Any]] = {}
        for want in lifecycle.wants:
            store = stores[want.called or want.kind] = Store(want)
            if want.called == SETTINGS:
                metadata = {"name": CONFIG_MAP, "namespace": HOME}
                store.put({"metadata": metadata, "data": {"settings": self.settings}})
            for obj in self.all(want.kind.kind):
                is_report = names.REPORT_LABEL in obj["metadata"].get("labels", {})
                if want.called in (REPORTS, SETTINGS) and is_report is not (want.called == REPORTS):
                    continue
                if want.kind == JOBS and MODEL not in obj["metadata"].get("labels", {}):
                    continue
                store.put(obj)
            assert not store.problems, store.problems
        secrets = Store(Want(SECRETS, lambda _: Presence.PRESENT))
        for obj in self.all("Secret"):
            secrets.put(obj)
        return {**stores, LOOK_UPS: LookedUp(secrets)}

    def plan(self, obj: Object) -> Plan | None:
        kind = next(kind for kind in names.KINDS if kind.kind == obj["kind"])
        lifecycle = self.lifecycle(kind)
        key = Key(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        return lifecycle.plan(key, self.world(lifecycle), self.now)

    def step(self, obj: Object) -> Plan | None:
        """Plan for a model and carry it out."""
        plan = self.plan(obj)
        if plan is not None:
            self.plans.append(plan)
            self._carry_out(obj, plan)
        return plan

    def secret(self, name: str, namespace: str = HOME) -> None:
        """Somebody creates a Secret."""
        self.put("Secret", {"metadata": {"name": name, "namespace": namespace}})

    def settle(self, obj: Object, most: int = 40) -> Plan | None:
        """Step until nothing is written any more."""
        for _ in range(most):
            plan = self.step(obj)
            if plan is None or not plan.writes:
                return plan
        raise AssertionError(f"not settled after {most} steps: {self.plans[-1]}")

    def _carry_out(self, obj: Object, plan: Plan) -> None:
        metadata = obj["metadata"]
        if plan.finalizer:
            metadata.setdefault("finalizers", []).append(plan.finalizer_name)
        for name, text in plan.annotations.items():
            annotations = metadata.setdefault("annotations", {})
            annotations.pop(name, None)
            if text is not None:
                annotations[name] = text
        if plan.status is not None:
            stored = obj.get("status") or {}
            merged = {**stored, **statuses.patch(plan.status, stored, self.now)}
            obj["status"] = {name: value for name, value in merged.items() if value is not None}
        if plan.fill:
            obj["spec"] |= {name: value for name, value in plan.fill["spec"].items() if value is not None}
            metadata["generation"] += 1
        for mark in plan.marks:
            there = self.objects.get((mark.kind.kind, mark.key))
            if there is None:
                if not mark.create:
                    continue
                there = self.put(mark.kind.kind, {**copy.deepcopy(dict(mark.create)), "data": {}})
                there["metadata"]["uid"] = f"uid-report-{mark.key.name}"
            else:
                assert mark.uid == there["metadata"]["uid"]
            for place, values in (
                (there["metadata"].setdefault("labels", {}), mark.labels),
                (there.setdefault("data", {}), mark.data),
            ):
                for name, value in values.items():
                    place.pop(name, None)
                    if value is not None:
                        place[name] = value
        for given in plan.hand_over:
            self.put("Secret", {"metadata": {"name": given.name, "namespace": given.owner_key.namespace}})
        for manifest in plan.apply:
            assert not (why := plan.rules.refusal(manifest)), why
            self._make(obj, copy.deepcopy(dict(manifest)))
        for child in plan.delete:
            found = self.objects[child.kind.kind, child.key]
            assert found["metadata"]["uid"] == child.uid
            owners = (metadata["uid"], child.earlier if child.key.namespace == HOME else "")
            assert self._owner(found) in owners, "only what it owns is deleted"
            del self.objects[child.kind.kind, child.key]
            self.objects.pop(("Pod", child.key), None)
        if plan.finalizer is False:
            metadata["finalizers"].remove(plan.finalizer_name)
            del self.objects[obj["kind"], Key(metadata.get("namespace", ""), metadata["name"])]

    @staticmethod
    def _owner(obj: Object) -> str:
        metadata = obj["metadata"]
        owners = metadata.get("ownerReferences") or [{"uid": metadata["labels"].get(OWNER)}]
        return str(owners[0]["uid"])

    def _make(self, obj: Object, job: Object) -> None:
        metadata = job["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        assert ("Job", key) not in self.objects, "a Job's template cannot be changed"
        metadata |= {"uid": f"uid-{key.name}", "creationTimestamp": rfc(self.now)}
        if obj["metadata"].get("namespace", key.namespace) == key.namespace:
            metadata["ownerReferences"] = [{"uid": obj["metadata"]["uid"]}]
        else:
            metadata["labels"][OWNER] = obj["metadata"]["uid"]
        self.put("Job", job)
        pod = copy.deepcopy(job["spec"]["template"])
        pod["metadata"] |= {"name": key.name, "namespace": key.namespace, "uid": f"uid-pod-{key.name}"}
        pod["metadata"]["ownerReferences"] = [{"kind": "Job", "uid": metadata["uid"]}]
        pod["spec"]["nodeName"] = self.task(job)["node"]
        self.put("Pod", pod | {"status": {"phase": "Running"}})

    @staticmethod
    def task(job: Object) -> Object:
        task: Object = json.loads(job["metadata"]["annotations"]["modelyard.dev/work"])
        return task

    def jobs(self, purpose: str = "") -> dict[str, Object]:
        """Jobs that have not ended, by node."""
        live = [job for job in self.all("Job") if not job.get("status")]
        return {self.task(job)["node"]: job for job in live if purpose in ("", self.task(job)["purpose"])}

    def end(self, job: Object, outcome: str = "Fetched", **said: Any) -> None:
        """A Job ends, with a report."""
        state = "Failed" if outcome == "Failed" else "Complete"
        condition = {"type": state, "status": "True", "lastTransitionTime": rfc(self.now)}
        job["status"] = {"conditions": [condition]}
        pod = self.get("Pod", job["metadata"]["name"], job["metadata"]["namespace"])
        report = json.dumps({"outcome": outcome, **said})
        ended = {"exitCode": 0 if state == "Complete" else 1, "message": report}
        pod["status"] = {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": ended}}]}

    def label(self, node: str, key: str) -> str | None:
        found: str | None = self.get(NODES.kind, node)["metadata"]["labels"].get(key)
        return found

    def entry(self, node: str, key: str) -> Object | None:
        report = self.objects.get(("ConfigMap", Key(HOME, node)))
        text = (report or {}).get("data", {}).get(key)
        return None if text is None else json.loads(text)


def delete(obj: Object) -> None:
    """Somebody deletes it; finalizers keep it."""
    obj["metadata"]["deletionTimestamp"] = rfc(NOW)


def edit(obj: Object, **storage: Any) -> None:
    """Somebody edits its storage."""
    obj["spec"]["storage"] |= storage
    obj["metadata"]["generation"] += 1


def condition(obj: Object, kind: str) -> tuple[str, str]:
    """Status and reason."""
    return next((c["status"], c["reason"]) for c in obj["status"]["conditions"] if c["type"] == kind)
