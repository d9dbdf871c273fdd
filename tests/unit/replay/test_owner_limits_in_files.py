"""Replica bounds of services and Models in files: ``plan``, virtual time and a replay decide alike on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from replay_fleets import poisson

from modelyard.autoscaling.configuration.files import PlanInputError
from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.decision import TickDecision
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.offline.fleet import fleet_from_files, remarks
from modelyard.autoscaling.offline.manifests import Manifest, read_manifests
from modelyard.autoscaling.offline.snapshot import Snapshot
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.what_if import settle
from modelyard.replay.backtest.simulate import simulate
from modelyard.replay.policies.modelyard import ModelyardPolicy
from modelyard.replay.simulation.variants import variants_of

NOW = 1_790_000_000.0
UPPER = "spec.engine.maxReplicas of InferenceService chat/llama"
ARGUMENTS = ["--model", "llama", "--max-num-seqs", "24", "--kv-cache-tokens=30000", "--startup-delay", "40"]
REFERENCE = {
    "apiVersion": "ome.io/v1beta1",
    "kind": "InferenceService",
    "name": "llama",
    "uid": "u1",
    "controller": True,
}


def variant(kind: str = "Deployment", name: str = "llama-engine", api_version: str = "apps/v1") -> dict[str, Any]:
    return {
        "apiVersion": "llmd.ai/v1alpha1",
        "kind": "VariantAutoscaling",
        "metadata": {
            "name": "llama",
            "namespace": "chat",
            "labels": {"inference.optimization/acceleratorName": "H100"},
        },
        "spec": {
            "scaleTargetRef": {"apiVersion": api_version, "kind": kind, "name": name},
            "modelID": "llama",
            "variantCost": "10.0",
        },
    }


def deployment(owner: dict[str, Any] | None = REFERENCE, replicas: int = 2, **labels: str) -> dict[str, Any]:
    owners = {"ownerReferences": [owner]} if owner is not None else {}
    container = {"name": "engine", "args": ARGUMENTS, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "llama-engine",
            "namespace": "chat",
            "labels": {"component": "engine", **labels},
            **owners,
        },
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [container]}}},
    }


def service(namespace: str = "chat", uid: str | None = "u1", runtime: str = "", **engine: int) -> dict[str, Any]:
    metadata = {"name": "llama", "namespace": namespace, **({"uid": uid} if uid else {})}
    named = {"runtime": {"name": runtime}} if runtime else {}
    spec = {"engine": engine, **named}
    return {"apiVersion": "ome.io/v1beta1", "kind": "InferenceService", "metadata": metadata, "spec": spec}


def runtime(**engine: int) -> dict[str, Any]:
    return {
        "apiVersion": "ome.io/v1beta1",
        "kind": "ClusterServingRuntime",
        "metadata": {"name": "small"},
        "spec": {"engineConfig": engine},
    }


def manifests(folder: Path, *objects: dict[str, Any]) -> list[Manifest]:
    (folder / "manifests.yaml").write_text(yaml.safe_dump_all(objects))
    return read_manifests([folder / "manifests.yaml"])


def fleet_of(found: list[Manifest], replicas: int = 2, workload: str = "Deployment/llama-engine") -> Fleet:
    busy = {"namespace": "chat", "model": "llama", "kv": 0.95, "waiting": 9, "workload": workload}
    pods = [{**busy, "pod": f"p{number}"} for number in range(replicas)]
    return fleet_from_files(found, Snapshot.model_validate({"pods": pods}), NOW)


def target(fleet: Fleet) -> tuple[int | None, str]:
    (record,) = decide(fleet, FleetSettings()).records
    return record.target.replicas, record.why.message


@pytest.mark.parametrize(
    ("objects", "expected", "named"),
    [
        ([deployment(), service(maxReplicas=3)], 3, ""),
        ([deployment(), service(maxReplicas=2)], 2, UPPER),
        ([deployment(), service(maxReplicas=1)], 1, UPPER),
        ([deployment(), service(runtime="small"), runtime(maxReplicas=2)], 2, "engineConfig.maxReplicas of"),
        # A manifest that was written by hand has no uid.
        ([deployment(), service(uid=None, maxReplicas=2)], 2, UPPER),
        ([deployment(), service(uid="u2", maxReplicas=2)], 4, ""),
        ([deployment(owner=None), service(maxReplicas=2)], 4, ""),
        ([deployment(), service(namespace="other", maxReplicas=2)], 4, ""),
    ],
)
def test_a_plan_keeps_within_the_bounds_of_the_owner(
    tmp_path: Path, objects: list[dict[str, Any]], expected: int, named: str
) -> None:
    replicas, message = target(fleet_of(manifests(tmp_path, variant(), *objects)))
    assert replicas == expected
    assert named in message


def test_groups_of_pods_are_bounded_in_groups(tmp_path: Path) -> None:
    template = {"spec": {"containers": [{"name": "engine"}]}}
    groups = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {
            "name": "lws-llama-engine",
            "namespace": "chat",
            "ownerReferences": [REFERENCE],
        },
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}},
    }
    own = variant("LeaderWorkerSet", "lws-llama-engine", "leaderworkerset.x-k8s.io/v1")
    found = manifests(tmp_path, own, groups, service(maxReplicas=2))
    fleet = fleet_of(found, workload="LeaderWorkerSet/lws-llama-engine")
    (limits,) = [workload.limits for workload in fleet.workloads.values()]
    assert limits is not None
    assert (limits.lower, limits.upper) == (1, 2)


def test_a_binding_is_planned_within_the_bounds_of_the_backend(tmp_path: Path) -> None:
    owner = {**REFERENCE, "apiVersion": "registry.volcano.sh/v1alpha1", "kind": "Model"}
    backend = {"name": "main", "minReplicas": 1, "maxReplicas": 3, "workers": [{"type": "server"}]}
    stored = {
        "apiVersion": "registry.volcano.sh/v1alpha1",
        "kind": "Model",
        "metadata": {"name": "llama", "namespace": "chat", "uid": "u1"},
        "spec": {"backends": [backend]},
    }
    policy = {
        "apiVersion": "registry.volcano.sh/v1alpha1",
        "kind": "AutoscalingPolicy",
        "metadata": {"name": "queue", "namespace": "chat"},
        "spec": {"metrics": [{"metricName": "waiting", "targetValue": "5"}]},
    }
    scaling = {
        "target": {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama-engine"}},
        "minReplicas": 1,
        "maxReplicas": 20,
    }
    binding = {
        "apiVersion": "registry.volcano.sh/v1alpha1",
        "kind": "AutoscalingPolicyBinding",
        "metadata": {"name": "llama", "namespace": "chat"},
        "spec": {"policyRef": {"name": "queue"}, "scalingConfiguration": scaling},
    }
    own = deployment(owner, **{"registry.volcano.sh/backend-name": "main"})
    found = manifests(tmp_path, policy, binding, own, stored)
    measured = {"namespace": "chat", "binding": "llama", "instances": [{"waiting": 50.0}] * 2}
    fleet = fleet_from_files(found, Snapshot.model_validate({"policies": [measured]}), NOW)
    (record,) = decide(fleet, FleetSettings()).records
    assert (record.target.replicas, record.bounds.upper) == (3, 3)
    assert record.bounds.upper_from == "maxReplicas of backend main of Model chat/llama"


def test_virtual_time_and_a_replay_keep_within_the_same_bounds(tmp_path: Path) -> None:
    found = manifests(tmp_path, variant(), deployment(replicas=1), service(maxReplicas=2))
    settled = settle(fleet_of(found, 1), FleetSettings())
    assert [record.target.replicas for record in settled.last.records] == [2]

    seen: list[TickDecision] = []
    policy = ModelyardPolicy(found, FleetSettings(), on_decision=lambda _, decision: seen.append(decision))
    specs = variants_of(fleet_from_files(found, Snapshot(), 0.0), found)
    run = simulate(poisson(12, 600, prompt=800, output=200), specs, policy)
    assert max(action.after for action in run.actions) == 2
    assert any(UPPER in record.why.message for decision in seen for record in decision.records)


def test_an_owner_in_none_of_the_files_is_told(tmp_path: Path) -> None:
    found = manifests(tmp_path, variant(), deployment())
    told = [remark for remark in remarks(fleet_of(found), found) if "belongs to" in remark]
    assert told == [
        "Deployment chat/llama-engine belongs to InferenceService llama, which is in none of the files: its "
        "minReplicas and maxReplicas are not known; add its manifest with -f"
    ]
    complete = manifests(tmp_path, variant(), deployment(), service(maxReplicas=3))
    assert not [remark for remark in remarks(fleet_of(complete), complete) if "belongs to" in remark]


@pytest.mark.parametrize(
    ("references", "message"),
    [
        ([{"controller": True}], "metadata.ownerReferences[0].kind: is missing; add it"),
        ([REFERENCE, {"kind": "ReplicaSet", "controller": True}], "metadata.ownerReferences[1].name: is missing"),
        ([{**REFERENCE, "name": 7}], "metadata.ownerReferences[0].name: 7 is not the owner's name"),
        ([{**REFERENCE, "kind": ""}], "metadata.ownerReferences[0].kind: '' is not the owner's kind"),
        ([{**REFERENCE, "uid": 7}], "metadata.ownerReferences[0].uid: 7 is not the owner's uid"),
        (["llama"], "metadata.ownerReferences[0]: 'llama' is not an object"),
        ({"kind": "ReplicaSet"}, "metadata.ownerReferences: {'kind': 'ReplicaSet'} is not a list"),
    ],
)
def test_a_malformed_owner_reference_is_named(tmp_path: Path, references: Any, message: str) -> None:
    for kind in ("Deployment", "Pod", "HorizontalPodAutoscaler", "ConfigMap"):
        metadata = {"name": "llama", "namespace": "chat", "ownerReferences": references}
        with pytest.raises(PlanInputError) as raised:
            manifests(tmp_path, {"apiVersion": "v1", "kind": kind, "metadata": metadata})
        assert f"document 1: {kind} llama: {message}" in str(raised.value)
