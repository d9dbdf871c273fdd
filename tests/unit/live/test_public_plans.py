"""Manifests made after public reports, planned from files: the right decision, or its right reason."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from modelyard.autoscaling.configuration.files import PlanInputError
from modelyard.autoscaling.configuration.settings import Compatibility, FleetSettings
from modelyard.autoscaling.decisions.decision import TickDecision
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.live.scalers import unread_scalers
from modelyard.autoscaling.offline.fleet import fleet_from_files, remarks
from modelyard.autoscaling.offline.manifests import read_manifests
from modelyard.autoscaling.offline.snapshot import Snapshot, read_snapshot
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.reading.observe import scaled_object

DATA = Path(__file__).resolve().parents[2] / "data" / "plan"
NOW = 1_795_860_000.0  # after the pods' transitions


def fleet_of(metrics: Path | dict[str, Any], *files: Path) -> Fleet:
    snapshot = read_snapshot(metrics) if isinstance(metrics, Path) else Snapshot.model_validate(metrics)
    return fleet_from_files(read_manifests(files), snapshot, NOW)


def plan(metrics: Path | dict[str, Any], *files: Path, settings: FleetSettings | None = None) -> TickDecision:
    return decide(fleet_of(metrics, *files), settings or FleetSettings())


# Workers of a LeaderWorkerSet that serve

LWS = (DATA / "lws.yaml", DATA / "lws-pods.yaml", DATA / "lws-sets.yaml")


def rows(*pods: tuple[str, float, float]) -> dict[str, Any]:
    """A snapshot of pods: name, KV use and waiting requests."""
    common = {"namespace": "chat", "model": "org/moe", "running": 20, "completedRate": 1.0}
    return {"pods": [{**common, "pod": pod, "kv": kv, "waiting": waiting} for pod, kv, waiting in pods]}


def test_busy_workers_of_a_leader_worker_set_scale_it() -> None:
    decision = plan(DATA / "lws-metrics-workers-busy.yaml", *LWS)
    (record,) = decision.records
    assert (record.now.current, record.now.ready, record.now.reporting, record.target.replicas) == (2, 2, 2, 4)
    assert decision.unattributed_signals == 0


@pytest.mark.parametrize(
    ("pods", "target"),
    [
        # Only workers report: the leaders route to them.
        ([("wide-0-1", 0.97, 12), ("wide-1-1", 0.97, 12)], 4),
        # Workers that repeat what their leaders say are no further load.
        ([(f"wide-{group}{worker}", 0.5, 1.6) for group in (0, 1) for worker in ("", "-1")], 2),
        # Four engines with three waiting each: each has spare places, though a group has six waiting.
        ([(f"wide-{group}{worker}", 0.5, 2) for group in (0, 1) for worker in ("", "-1")], 2),
    ],
)
def test_a_group_is_as_full_as_its_engines(pods: list[tuple[str, float, float]], target: int) -> None:
    (record,) = plan(rows(*pods), *LWS).records
    assert (record.now.reporting, record.target.replicas) == (2, target)


def test_workers_of_a_group_that_was_made_again_belong_to_the_new_one(tmp_path: Path) -> None:
    """The StatefulSets of a LeaderWorkerSet that was deleted name another one."""
    sets = list(yaml.safe_load_all(LWS[2].read_text()))
    sets[0]["metadata"]["ownerReferences"][0]["uid"] = "u-before"
    (tmp_path / "sets.yaml").write_text(yaml.safe_dump_all(sets))
    (record,) = plan(DATA / "lws-metrics-workers-busy.yaml", *LWS[:2], tmp_path / "sets.yaml").records
    assert record.now.reporting == 0


def test_missing_stateful_sets_of_a_leader_worker_set_are_named() -> None:
    files = LWS[:2]
    fleet = fleet_of(DATA / "lws-metrics-workers-busy.yaml", *files)
    text = "\n".join(remarks(fleet, read_manifests(files)))
    assert "chat/wide-0-1 count for nothing: its StatefulSet wide-0 is in none of the files" in text


def test_tokens_of_a_group_are_those_of_all_its_engines(tmp_path: Path) -> None:
    """Two engines of 10 000 tokens, the worker's full: the group has 20 000 and uses half of them."""
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "wva-saturation-scaling-config", "namespace": "workload-variant-autoscaler-system"},
        "data": {"default": "analyzerName: saturation\n"},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    names = [f"wide-{group}{worker}" for group in (0, 1) for worker in ("", "-1")]
    metrics = rows(*((name, 0.9 if name.endswith("-1") and name.count("-") == 2 else 0.1, 0) for name in names))
    common = {"namespace": "chat", "model": "org/moe", "completed": 10, "promptTokens": 100, "outputTokens": 100}
    metrics["performance"] = [
        {**common, "pod": pod["pod"], "kvTokens": 10_000, "meanKv": pod["kv"]} for pod in copy.deepcopy(metrics["pods"])
    ]
    for settings in (FleetSettings(), FleetSettings(compatibility=Compatibility.PUBLISHED)):
        (record,) = plan(metrics, *LWS, tmp_path / "config.yaml", settings=settings).records
        assert record.now.reporting == 2
        repaired = settings.compatibility is not Compatibility.PUBLISHED
        assert ("demand 20000 tokens" in record.why.message) == repaired, record.why.message


# A model by another name than its pods report

ID = (DATA / "id.yaml",)
PODS = {"namespace": "chat", "workload": "Deployment/qwen", "kv": 0.95, "waiting": 20, "running": 60}


def conditions(decision: TickDecision) -> dict[str, tuple[str, str, str]]:
    (variant,) = decision.variants
    return {c.type: (c.status, c.reason, c.message) for c in variant.conditions}


def test_a_wrong_model_id_is_told_with_what_the_pods_report() -> None:
    decision = plan(DATA / "id-metrics.yaml", *ID)
    status, reason, message = conditions(decision)["MetricsAvailable"]
    assert (status, reason) == ("False", "MetricsUnavailable")
    assert message.startswith("its pods report Qwen/Qwen3-32B, the variant says Qwen3-32B; set spec.modelID")
    assert "ServiceMonitor" not in message
    assert decision.records[0].why.message.startswith("its pods report Qwen/Qwen3-32B")


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (["/mnt/models"], "its pods report /mnt/models, the variant says Qwen3-32B; "),
        (["qwen3-32b", "other"], "its pods report other, qwen3-32b, the variant says Qwen3-32B; "),
        ([""], "its pods report no model name, the variant says Qwen3-32B; add the label model_name"),
        ([], "no metrics for model 'Qwen3-32B' in namespace chat, 1 replica ready: check that (1)"),
    ],
)
@pytest.mark.parametrize("compatibility", ["repaired", "published"])
def test_whatever_the_pods_report_is_told_first(models: list[str], message: str, compatibility: str) -> None:
    pods = [{**PODS, "pod": "qwen-0", "model": model} for model in models]
    # Of a workload without metrics, its replicas are still ready.
    decision = plan({"pods": pods}, *ID, settings=FleetSettings.model_validate({"compatibility": compatibility}))
    assert conditions(decision)["MetricsAvailable"][2].startswith(message)


def test_a_variant_whose_pods_report_another_model_is_told_though_its_model_has_metrics(tmp_path: Path) -> None:
    variant, deployment = yaml.safe_load_all(ID[0].read_text())
    other = copy.deepcopy([variant, deployment])
    for manifest in other:
        manifest["metadata"]["name"] = "second"
    other[0]["spec"]["scaleTargetRef"]["name"] = "second"
    (tmp_path / "second.yaml").write_text(yaml.safe_dump_all(other))
    pods = [
        {**PODS, "pod": "qwen-0", "model": "Qwen3-32B", "kv": 0.3, "waiting": 0},
        {**PODS, "pod": "second-0", "model": "second", "workload": "Deployment/second"},
    ]
    decision = plan({"pods": pods}, *ID, tmp_path / "second.yaml")
    available = {
        variant.key.name: next((c.status, c.message) for c in variant.conditions if c.type == "MetricsAvailable")
        for variant in decision.variants
    }
    assert available["qwen"][0] == "True"
    assert available["second"][0] == "False"
    assert available["second"][1].startswith("its pods report second, the variant says Qwen3-32B")


# Scalers that are annotated for the later llm-d autoscaler

ANNOTATED = DATA / "annotated.yaml"


def annotated(folder: Path, **changes: Any) -> Path:
    """The annotated ScaledObject with other annotations; ``None`` removes one."""
    scaler = yaml.safe_load(ANNOTATED.read_text())
    annotations = scaler["metadata"]["annotations"]
    for name, value in changes.items():
        annotations[f"llm-d.ai/{name.replace('_', '-')}"] = value
    scaler["metadata"]["annotations"] = {name: value for name, value in annotations.items() if value is not None}
    (folder / "scaler.yaml").write_text(yaml.safe_dump(scaler))
    return folder / "scaler.yaml"


def workload(folder: Path) -> Path:
    (folder / "workload.yaml").write_text(yaml.safe_dump(list(yaml.safe_load_all(ID[0].read_text()))[1]))
    return folder / "workload.yaml"


def test_an_annotated_scaler_is_planned_as_a_managed_target(tmp_path: Path) -> None:
    files = (ANNOTATED, workload(tmp_path))
    decision = plan(DATA / "id-metrics.yaml", *files)
    (record,) = decision.records
    assert (record.identity.key, record.identity.model_id) == (("chat", "qwen"), "Qwen/Qwen3-32B")
    assert (record.now.cost, record.now.current, record.target.replicas) == (40, 1, 2)
    assert (record.bounds.upper, record.writes.scale) == (8, None), "the scaler scales, within its bounds"
    assert not decision.variants[0].notices
    (text,) = remarks(fleet_of(DATA / "id-metrics.yaml", *files), read_manifests(files))
    assert "ScaledObject chat/qwen: planned as the VariantAutoscaling" in text
    assert "modelyard convert -f" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_id": None}, "annotation llm-d.ai/model-id: is missing; write the model's name"),
        ({"model_id": ""}, "annotation llm-d.ai/model-id: is missing"),
        ({"variant_cost": "cheap"}, "annotation llm-d.ai/variant-cost: 'cheap' is no cost; write a number"),
        ({"variant_cost": "-1"}, "annotation llm-d.ai/variant-cost: '-1' is no cost"),
    ],
)
def test_annotations_that_describe_no_variant_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanInputError, match=re.escape(f"ScaledObject chat/qwen: {message}")):
        plan(DATA / "id-metrics.yaml", annotated(tmp_path, **changes))


@pytest.mark.parametrize(("managed", "remark"), [("True", "annotation llm-d.ai/managed is 'True'"), (None, None)])
def test_a_scaler_that_is_not_managed_is_none(tmp_path: Path, managed: str | None, remark: str | None) -> None:
    files = (annotated(tmp_path, managed=managed),)
    fleet = fleet_of({"pods": []}, *files)
    assert fleet.variants == ()
    assert [remark in text for text in remarks(fleet, read_manifests(files)) if remark] == ([True] if remark else [])


def test_an_annotated_hpa_and_its_copies(tmp_path: Path) -> None:
    """KEDA's own HPA is no second variant; a ScaledObject wins over an HPA; a VariantAutoscaling over both."""
    hpa = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {
            "name": "by-hand",
            "namespace": "chat",
            "labels": {"inference.optimization/acceleratorName": "H100"},
            "annotations": {"llm-d.ai/managed": "true", "llm-d.ai/model-id": "Qwen/Qwen3-32B"},
        },
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "qwen"}, "minReplicas": 1, "maxReplicas": 4},
    }
    owner = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "qwen", "controller": True}
    copied = copy.deepcopy(hpa)
    copied["metadata"] |= {"name": "keda-hpa-qwen", "ownerReferences": [owner]}
    files = {"hpa": [hpa], "copy": [copied]}
    for name, documents in files.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(documents))
    alone = fleet_of({"pods": []}, tmp_path / "hpa.yaml", workload(tmp_path))
    (variant,) = alone.variants
    assert (variant.key.name, variant.cost, variant.labels) == ("by-hand", 10.0, hpa["metadata"]["labels"])
    both = fleet_of({"pods": []}, tmp_path / "hpa.yaml", tmp_path / "copy.yaml", ANNOTATED)
    assert [found.key.name for found in both.variants] == ["qwen"]
    written = fleet_of({"pods": []}, tmp_path / "hpa.yaml", ANNOTATED, *ID)
    assert [found.model_id for found in written.variants] == ["Qwen3-32B"]


def test_annotated_scalers_of_a_cluster_are_told_with_the_remedy() -> None:
    scaler = yaml.safe_load(ANNOTATED.read_text())
    consumer = scaled_object({key: scaler[key] for key in ("metadata", "spec")})  # items of a list have no kind
    (text,) = unread_scalers([consumer], set())
    assert "kubectl get scaledobject qwen -n chat -o yaml | modelyard convert -f - | kubectl apply -f -" in text
    assert not list(unread_scalers([consumer], {consumer.target}))
