"""Fleets from files: what a file may hold, what is said when it does not, and the way back from a live fleet."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from modelyard.autoscaling.configuration.files import PlanInputError
from modelyard.autoscaling.configuration.settings import Compatibility, FleetSettings
from modelyard.autoscaling.decisions.decision import Action, TickDecision
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.offline.fleet import fleet_from_files, remarks
from modelyard.autoscaling.offline.manifests import read_manifests
from modelyard.autoscaling.offline.snapshot import (
    Snapshot,
    read_snapshot,
    remarks as snapshot_remarks,
    signals_of,
    snapshot_of,
)
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.metrics.vocabulary.values import ModelLoad, PodPerformance, PodSignal, Signals
from modelyard.objects import Key, WorkloadId

NOW = 1_790_000_000.0

VARIANT: dict[str, Any] = {
    "apiVersion": "llmd.ai/v1alpha1",
    "kind": "VariantAutoscaling",
    "metadata": {
        "name": "llama",
        "namespace": "chat",
        "labels": {"inference.optimization/acceleratorName": "H100"},
    },
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"},
        "modelID": "llama",
        "variantCost": "10.0",
    },
}
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "llama", "namespace": "chat"},
    "spec": {"replicas": 2},
}


def pod(name: str, workload: str | None = "Deployment/llama", **values: Any) -> dict[str, Any]:
    named = {"workload": workload} if workload else {}
    return {"namespace": "chat", "pod": name, "model": "llama", "kv": 0.3, "waiting": 0, **named, **values}


def plan(
    folder: Path, manifests: list[Any], pods: list[dict[str, Any]], settings: FleetSettings | None = None
) -> TickDecision:
    fleet = fleet_of(folder, manifests, pods)
    return decide(fleet, settings or FleetSettings())


def fleet_of(folder: Path, manifests: list[Any], pods: list[dict[str, Any]]) -> Fleet:
    file = folder / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    return fleet_from_files(read_manifests([file]), Snapshot.model_validate({"pods": pods}), NOW)


# Decisions


def test_pods_of_the_snapshot_stand_in_for_manifests(tmp_path: Path) -> None:
    decision = plan(tmp_path, [VARIANT, DEPLOYMENT], [pod("a", kv=0.76), pod("b", kv=0.76)])
    (record,) = decision.records
    assert (record.now.current, record.now.ready, record.now.reporting, record.target.replicas) == (2, 2, 2, 3)
    assert record.target.action is Action.UP
    assert decision.unattributed_signals == 0


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        ("apps/v1", "StatefulSet"),
        ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
        ("serving.example.com/v1", "Engine"),
    ],
)
def test_any_kind_of_workload_is_found(tmp_path: Path, api_version: str, kind: str) -> None:
    reference = {"apiVersion": api_version, "kind": kind, "name": "llama"}
    variant = {**VARIANT, "spec": {**VARIANT["spec"], "scaleTargetRef": reference}}
    workload = {**DEPLOYMENT, "apiVersion": api_version, "kind": kind}
    pods = [pod(name, f"{kind}/llama", kv=0.76) for name in ("a", "b")]
    (record,) = plan(tmp_path, [variant, workload], pods).records
    assert (record.now.current, record.now.reporting, record.target.replicas) == (2, 2, 3)


def test_five_replicas_three_of_them_drowning(tmp_path: Path) -> None:
    """The published algorithm gives a replica back here; ours adds some."""
    pods = [pod(f"full-{i}", kv=0.95, waiting=9) for i in range(3)] + [
        pod(f"idle-{i}", kv=0.10, waiting=1) for i in range(2)
    ]
    manifests = [VARIANT, {**DEPLOYMENT, "spec": {"replicas": 5}}]
    (repaired,) = plan(tmp_path, manifests, pods).records
    settings = FleetSettings(compatibility=Compatibility.PUBLISHED)
    (published,) = plan(tmp_path, manifests, pods, settings).records
    assert repaired.target.replicas is not None
    assert repaired.target.replicas > 5
    assert (published.target.replicas, published.target.action) == (4, Action.DOWN)


def test_an_unknown_field_in_a_file_is_wrong(tmp_path: Path) -> None:
    misspelt = {**VARIANT, "spec": {**VARIANT["spec"], "variantcost": "5"}}
    (record,) = plan(tmp_path, [misspelt, DEPLOYMENT], [pod("a")]).records
    assert record.why.reason == "InvalidConfiguration"
    assert "spec.variantcost: unknown field - write 'variantCost'" in record.why.message


def test_objects_as_kubectl_dumps_them(tmp_path: Path) -> None:
    """One List, pods owned by a ReplicaSet, a status: nothing needs naming in the snapshot."""

    def owned(kind: str, name: str, by: tuple[str, str, str]) -> dict[str, Any]:
        owner = {"apiVersion": "apps/v1", "kind": by[0], "name": by[1], "uid": by[2], "controller": True}
        metadata = {"name": name, "namespace": "chat", "uid": f"uid-{name}", "ownerReferences": [owner]}
        return {"apiVersion": "v1" if kind == "Pod" else "apps/v1", "kind": kind, "metadata": metadata}

    ready = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    deployment = {
        **DEPLOYMENT,
        "metadata": {**DEPLOYMENT["metadata"], "uid": "uid-llama"},
        "status": {"replicas": 2, "readyReplicas": 2},
    }
    items = [VARIANT, deployment, owned("ReplicaSet", "llama-1", ("Deployment", "llama", "uid-llama"))]
    for name in ("a", "b"):
        made = owned("Pod", name, ("ReplicaSet", "llama-1", "uid-llama-1"))
        items.append({**made, "status": {"phase": "Running", **ready}})
    dump = {"apiVersion": "v1", "kind": "List", "items": items}
    pods = [pod("a", None, kv=0.76), pod("b", None, kv=0.76)]
    (record,) = plan(tmp_path, [dump], pods).records
    assert (record.now.ready, record.now.reporting, record.target.replicas) == (2, 2, 3)


def test_a_live_workload_without_pods_yet_is_not_taken_as_ready(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, [VARIANT, {**DEPLOYMENT, "status": {}}], [])
    assert fleet.workloads[WorkloadId("chat", "apps", "Deployment", "llama")].ready == 0


def test_times_without_quotes_are_text_as_for_kubernetes(tmp_path: Path) -> None:
    file = tmp_path / "variant.yaml"
    file.write_text(
        "kind: VariantAutoscaling\n"
        "metadata: {name: llama, creationTimestamp: 2026-01-01T00:00:00Z}\n"
        "spec: {modelID: llama, scaleTargetRef: {kind: Deployment, name: llama}}\n"
        "status: {desiredOptimizedAlloc: {lastRunTime: 2026-01-01T00:00:00Z, numReplicas: 4, accelerator: H100}}\n"
    )
    (variant,) = fleet_from_files(read_manifests([file]), Snapshot(), NOW).variants
    assert variant.status_replicas == 4
    assert variant.last_run == 1767225600


def test_a_folder_is_read_whole_but_for_what_lies_beside(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "variant.yml").write_text(yaml.safe_dump(VARIANT))
    (tmp_path / "deployment.json").write_text('{"kind": "Deployment", "metadata": {"name": "llama"}}')
    (tmp_path / "kustomization.yaml").write_text("kind: Kustomization\nresources: [base]\n")
    (tmp_path / "metrics.yaml").write_text("pods: []\n")
    found = read_manifests([tmp_path], beside=[tmp_path / "metrics.yaml"])
    assert sorted((m.kind, m.key) for m in found) == [
        ("Deployment", Key("default", "llama")),
        ("VariantAutoscaling", Key("chat", "llama")),
    ]


def test_the_same_object_twice_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(yaml.safe_dump(VARIANT))
    assert len(read_manifests([file, tmp_path])) == 1


# What is said about bad files


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1,", ["m.yaml, line 2", "not YAML"]),
        ("a: 1", ["document 1", "no kind", "kubectl get"]),
        ("just text", ["document 1", "no kind"]),
        ("kind: Deployment", ["document 1", "Deployment without metadata.name"]),
        (
            "kind: List\nitems: [{kind: Pod, metadata: {name: 7}}]",
            ["document 1 items[0]", "Pod without metadata.name", "as text"],
        ),
        ("kind: List\nitems: [null]", ["document 1 items[0]", "no kind"]),
        (
            "kind: Namespace\nmetadata: {name: n, annotations: {wva.llmd.ai/exclude: true}}",
            ["document 1", "metadata.annotations[wva.llmd.ai/exclude]", "quotes"],
        ),
        (
            "---\n---\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: '2'}",
            ["document 2", "Deployment default/d", "spec.replicas", "'2'", "without quotes"],
        ),
        (
            "kind: Deployment\nmetadata: {name: d}\nspec: [1]",
            ["document 1", "Deployment default/d", "not in the form", "kubectl apply --dry-run"],
        ),
        (
            "kind: ConfigMap\nmetadata: {name: wva-saturation-scaling-config}\ndata: {default: {kvCacheThreshold: 1}}",
            ["document 1", "ConfigMap", "data[default]", "quotes"],
        ),
        (
            "kind: Pod\nmetadata: {name: p}\n---\nkind: Pod\nmetadata: {name: p, labels: {a: b}}",
            ["document 2", "Pod default/p", "stands differently", "document 1", "keep one"],
        ),
    ],
)
def test_a_bad_manifest_is_named_with_place_and_remedy(tmp_path: Path, text: str, said: list[str]) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(text)
    with pytest.raises(PlanInputError) as caught:
        fleet_from_files(read_manifests([file]), Snapshot(), NOW)
    for part in [str(file), *said]:
        assert part in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(PlanInputError, match=r"nowhere\.yaml: No such file.* -f"):
        read_manifests([tmp_path / "nowhere.yaml"])
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanInputError, match=r"binary\.yaml: not a text file"):
        read_manifests([tmp_path / "binary.yaml"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(PlanInputError, match=r"empty: no .*\.yaml"):
        read_manifests([tmp_path / "empty"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pods: [{pod: a, model: m, kvv: 0.5}]", ["pods[0].kvv", "unknown field", "'kv'"]),
        ("pods: [{pod: a, model: m, kv: high}]", ["pods[0].kv", "'high' is no number", "without quotes"]),
        ("pods: [{pod: a, model: m, kv: '0.75'}]", ["pods[0].kv", "'0.75' is no number", "without quotes"]),
        ("pods: [{pod: a, model: m, waiting: -1}]", ["pods[0].waiting"]),
        ("pods: [{pod: a, model: m, kv: .nan}]", ["pods[0].kv"]),
        ("pods: [{pod: a}]", ["pods[0].model", "required"]),
        ("pods: [{pod: a, model: m, workload: llama}]", ["pods[0].workload"]),
        ("requestCounts: [{model: m, retention: 10 minutes, count: 0}]", ["requestCounts[0].retention", "10m"]),
        ("at: 2026-01-01T00:00:00", ["at", "timezone"]),
        ("at: yesterday", ["at"]),
        ("loads: [{model: m, arrivals: -1}]", ["loads[0].arrivals"]),
        ("loads: [{model: m, history: [{ago: 5}]}]", ["loads[0].history[0].rate", "required"]),
        ("loads: [{arrivals: 1}]", ["loads[0].model", "required"]),
        ("performance: [{pod: a, model: m, ttft: fast}]", ["performance[0].ttft", "'fast' is no number"]),
        ("performance: [{pod: a, model: m, kvTokens: 1.5}]", ["performance[0].kvTokens"]),
        ("performance: [{pod: a, model: m, prefixHitRate: 25}]", ["performance[0].prefixHitRate"]),
        ("wake: [{name: v, pending: soon}]", ["wake[0].pending", "'soon' is no number"]),
        ("wake: [{name: v}]", ["wake[0].pending", "required"]),
        ("- pods", ["m.yaml: object"]),
        ("pods: [\n", ["m.yaml, line 2", "not YAML", "--save-snapshot"]),
        ("pods: []\n---\npods: []", ["2 documents", "--save-snapshot"]),
        ("pods: [{pod: a, model: m, kv: x, waiting: y}]", ["pods[0].kv", "pods[0].waiting"]),
    ],
)
def test_a_bad_snapshot_is_named_by_field(tmp_path: Path, text: str, said: list[str]) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(text)
    with pytest.raises(PlanInputError) as caught:
        read_snapshot(file)
    for part in [str(file), *said]:
        assert part in str(caught.value)


def test_an_empty_snapshot_says_nothing_and_an_absent_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("# nothing\n")
    assert read_snapshot(tmp_path / "m.yaml") == Snapshot()
    with pytest.raises(PlanInputError, match="--metrics"):
        read_snapshot(tmp_path / "absent.yaml")


def test_what_is_missing_from_the_files_is_said_with_the_remedy(tmp_path: Path) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "llama-1", "uid": "1", "controller": True}
    owned = {"kind": "Pod", "metadata": {"name": "owned", "namespace": "chat", "ownerReferences": [owner]}}
    manifests = [VARIANT, owned]
    fleet = fleet_of(tmp_path, manifests, [pod("owned", None), pod("unknown", None)])
    said = list(remarks(fleet, read_manifests([tmp_path / "manifests.yaml"])))
    assert len(said) == 3
    assert "document 1" in said[0]
    assert "scaleTargetRef names Deployment chat/llama" in said[0]
    assert "-f" in said[0]
    assert "ReplicaSet llama-1" in said[1]
    assert "kubectl get" in said[1]
    assert "chat/unknown" in said[2]
    assert "workload: Deployment/NAME" in said[2]


# The way back


def test_a_snapshot_keeps_everything_prometheus_said(tmp_path: Path) -> None:
    signals = Signals(
        pods=(
            PodSignal("chat", "a", 'odd "model"', 0.75, 2.0, 20.0, 1.5, NOW - 3),
            PodSignal("chat", "b", "llama", None, 0.0, None, None, None),
        ),
        request_counts={("chat", "llama", 600): 0.0, ("chat", "llama", 90): 3.5},
        last_seen={("chat", "llama"): NOW - 3, ("chat", "gone"): NOW - 900},
        gateway_queue={("", "llama"): 4.0, ("chat", "org/llama"): 2.0, ("", "odd#one"): 1.0},
        loads={
            ("chat", "llama"): ModelLoad(3.25, ((NOW - 60, 2.0), (NOW - 30, 0.0), (NOW, 3.25))),
            ("chat", "quiet"): ModelLoad(None),
            ("chat", "zero"): ModelLoad(0.0),
        },
        performance=(
            PodPerformance("chat", "a", "llama", 12.0, 512.5, 0.0, 250.25, 8.5, 400000, 0.25),
            PodPerformance("chat", "b", "llama"),
        ),
        wake={Key("chat", "asleep"): 4.0, Key("chat", "none"): 0.0},
        error="no answer",
        partial_errors=("running requests: timeout",),
        errors_in={"chat": ("VariantAutoscaling chat/asleep: no PromQL", "a picker hangs")},
        gateway_unknown=True,
    )
    file = tmp_path / "metrics.yaml"
    file.write_text(snapshot_of(Fleet(now=NOW, signals=signals)))
    again = fleet_from_files([], read_snapshot(file), now=0)
    assert again.now == NOW
    kept = dataclasses.replace(signals, pods=(signals.pods[0], dataclasses.replace(signals.pods[1], sampled_at=NOW)))
    assert again.signals == kept


values = st.none() | st.floats(0, 1e9)
names = st.text(min_size=1, max_size=20)


@given(
    pods=st.lists(st.builds(PodSignal, names, names, names, values, values, values, values, st.just(NOW)), max_size=4),
    counts=st.dictionaries(st.tuples(names, names, st.integers(1, 10**6)), st.floats(0, 1e9), max_size=4),
)
def test_any_snapshot_survives_the_file(
    tmp_path_factory: pytest.TempPathFactory, pods: list[PodSignal], counts: dict[tuple[str, str, int], float]
) -> None:
    file = tmp_path_factory.mktemp("snapshot") / "metrics.yaml"
    signals = Signals(pods=tuple(pods), request_counts=counts)
    file.write_text(snapshot_of(Fleet(now=NOW, signals=signals)), encoding="utf-8")
    again = signals_of(read_snapshot(file), NOW)
    assert again.pods == signals.pods
    assert again.request_counts == signals.request_counts


def test_an_old_snapshot_on_a_live_fleet_counts_as_said_now() -> None:
    text = {"at": "2026-01-01T00:00:00Z", "pods": [pod("a", None, sampledAt="2025-12-31T23:59:50Z")]}
    (signal,) = signals_of(Snapshot.model_validate(text), NOW).pods
    assert signal.sampled_at == NOW - 10


def test_seconds_where_milliseconds_belong_are_remarked() -> None:
    entry = {"pod": "a", "model": "m", "ttft": 0.25, "itl": 20}
    said = list(snapshot_remarks(Snapshot.model_validate({"performance": [entry]})))
    assert len(said) == 1
    assert "performance[0].ttft is 0.25" in said[0]


SLO_VARIANT = {
    "apiVersion": "llmd.ai/v1alpha1",
    "kind": "VariantAutoscaling",
    "metadata": {"name": "sized", "namespace": "chat"},
    "spec": {
        "modelID": "llama",
        "variantID": "llama-H100-1",
        "accelerator": "H100",
        "acceleratorCount": 1,
        "sloClassRef": {"name": "my-classes", "key": "premium"},
        "variantProfile": {
            "maxBatchSize": 64,
            "perfParms": {
                "decodeParms": {"alpha": "6.9", "beta": "0.04"},
                "prefillParms": {"gamma": "5.2", "delta": "0.1"},
            },
        },
    },
}


def config_map(namespace: str, name: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": {"a": "b"}}


def test_config_maps_that_an_slo_class_names_are_kept_of_its_own_namespace_only(tmp_path: Path) -> None:
    maps = [config_map("chat", "my-classes"), config_map("other", "my-classes"), config_map("chat", "unrelated")]
    fleet = fleet_of(tmp_path, [SLO_VARIANT, *maps], [])
    assert set(fleet.config_maps) == {Key("chat", "my-classes")}
    assert fleet.variants[0].slo is not None
    (said,) = remarks(fleet, read_manifests([tmp_path / "manifests.yaml"]))
    assert "scales the workload of its own name, Deployment chat/sized" in said
