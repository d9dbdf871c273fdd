"""``modelyard convert``: manifests of newer peers, and what comes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Done, modelyard

from modelyard.autoscaling.reading.bindings.objects import binding, policy
from modelyard.autoscaling.reading.observe import variant
from modelyard.resources import parse

DATA = Path(__file__).resolve().parents[2] / "data"
KTHENA = "workload.serving.volcano.sh/v1alpha1"


def convert(folder: Path, *documents: Any) -> tuple[list[dict[str, Any]], Done]:
    path = folder / "newer.yaml"
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    done = modelyard("convert", "-f", path)
    found = list(yaml.safe_load_all(done.out))
    for one in found:
        if one["apiVersion"].partition("/")[0].endswith(("volcano.sh", "llmd.ai", "ome.io")):
            parse(one)
    return found, done


def manifest(kind: str, spec: Any, api_version: str = KTHENA, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "llama", **metadata}, "spec": spec}


def target(name: str, **sources: Any) -> dict[str, Any]:
    return {"targetRef": {"kind": "ModelServing", "name": name}, "metricSources": sources}


POD = {"pod": {"name": "vllm:num_requests_waiting", "port": 8000, "labelSelector": {"matchLabels": {"role": "decode"}}}}
PROMETHEUS = {"prometheus": {"serverURL": "http://prometheus:9090", "query": "sum(waiting)"}}
METRICS = {"metrics": [{"name": "waiting", "targetValue": "10"}]}


def test_a_policy_with_its_target_becomes_a_policy_and_a_binding(tmp_path: Path) -> None:
    spec = {
        **METRICS,
        "homogeneousTarget": {"target": target("llama", waiting=POD), "minReplicas": 1, "maxReplicas": 4},
    }
    (first, second), done = convert(tmp_path, manifest("AutoscalingPolicy", spec, namespace="chat"))
    assert (done.code, done.err) == (0, "")
    read = policy(first)
    assert read.view is not None
    assert read.view.targets == {"vllm:num_requests_waiting": 10.0}, "the name that pods show it under"
    bound = binding(second)
    assert (bound.view.problem, bound.view.key, bound.view.policy_name) == (None, ("chat", "llama"), "llama")
    (one,) = bound.targets
    assert (one.name, one.port, one.uri, one.minimum, one.maximum) == ("llama", 8000, "/metrics", 1, 4)
    assert one.match_labels == {"role": "decode"}


def test_metrics_from_prometheus_become_the_annotation(tmp_path: Path) -> None:
    params = [
        {"target": target("h100", waiting=PROMETHEUS), "cost": 70, "minReplicas": 0, "maxReplicas": 4},
        {"target": target("l40s"), "cost": 20, "minReplicas": 1, "maxReplicas": 6},
    ]
    spec = {**METRICS, "heterogeneousTarget": {"params": params, "costExpansionRatePercent": 150}}
    (_, second), done = convert(tmp_path, manifest("AutoscalingPolicy", spec))
    assert done.code == 0
    assert "http://prometheus:9090 is left out" in done.err
    bound = binding({**second, "metadata": {**second["metadata"], "namespace": "chat"}})
    assert bound.view.problem is None
    assert bound.sources == {"h100": {"waiting": "sum(waiting)"}}
    assert bound.view.expansion_percent == 150
    assert [one.cost for one in bound.targets] == [70, 20]


def test_a_binding_of_the_years_between_is_rewritten(tmp_path: Path) -> None:
    endpoint = {"port": 9000, "labelSelector": {"matchLabels": {"a": "b"}}}
    part = {"target": {"targetRef": {"name": "llama"}, "metricEndpoint": endpoint}, "minReplicas": 1, "maxReplicas": 2}
    spec = {"policyRef": {"name": "p"}, "homogeneousTarget": part}
    (found,), done = convert(tmp_path, manifest("AutoscalingPolicyBinding", spec))
    assert (done.code, done.err) == (0, "")
    scaled = found["spec"]["scalingConfiguration"]["target"]
    assert scaled["metricEndpoint"] == {"port": 9000}
    assert scaled["additionalMatchLabels"] == {"a": "b"}


def test_a_sub_target_becomes_the_label_of_its_role(tmp_path: Path) -> None:
    part = {"target": {**target("llama-main", waiting=PROMETHEUS)}, "minReplicas": 1, "maxReplicas": 4}
    part["target"]["subTargets"] = {"kind": "Role", "name": "decode"}
    (_, second), done = convert(tmp_path, manifest("AutoscalingPolicy", {**METRICS, "homogeneousTarget": part}))
    assert done.code == 0
    (one,) = binding({**second, "metadata": {**second["metadata"], "namespace": "chat"}}).targets
    assert one.is_alias
    assert one.match_labels == {"modelinfer.volcano.sh/role": "decode"}
    part["target"]["subTargets"]["kind"] = "Group"
    _, done = convert(tmp_path, manifest("AutoscalingPolicy", {**METRICS, "homogeneousTarget": part}))
    assert done.code == 1
    assert "target llama-main: the published form scales whole workloads" in done.err


WORKER = {"type": "server", "image": "vllm/vllm-openai:v0.9.2", "tolerations": [{"operator": "Exists"}]}
BACKEND = {"name": "vllm", "type": "vLLM", "modelURI": "hf://meta/llama", "workers": [WORKER]}


@pytest.mark.parametrize(
    ("sizes", "policies", "expected"),
    [
        ({"replicas": 2}, {}, (2, 2)),
        ({"minReplicas": 1, "maxReplicas": 4}, {"autoscalingPolicy": METRICS}, (1, 4)),
    ],
)
def test_a_model_booster_becomes_a_model(
    tmp_path: Path, sizes: dict[str, Any], policies: dict[str, Any], expected: tuple[int, int]
) -> None:
    (found,), done = convert(tmp_path, manifest("ModelBooster", {"backend": {**BACKEND, **sizes}, **policies}))
    assert done.code == 0
    assert "spec.backends[0].workers[0].tolerations is left out" in done.err
    assert found["kind"] == "Model"
    (backend,) = found["spec"]["backends"]
    assert (backend["minReplicas"], backend["maxReplicas"]) == expected
    named = [metric["metricName"] for metric in backend.get("autoscalingPolicy", {}).get("metrics", ())]
    assert named == ["waiting"] * len(policies)


def test_bounds_of_a_variant_become_annotations(tmp_path: Path) -> None:
    spec = {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "modelID": "m", "minReplicas": 0, "maxReplicas": 7}
    body = manifest("VariantAutoscaling", {**spec, "priority": 3}, "llmd.ai/v1alpha1", namespace="chat", uid="u")
    (found,), done = convert(tmp_path, {**body, "status": {"desiredOptimizedAlloc": {"numReplicas": 1}}})
    assert done.code == 0
    assert "spec.priority is left out" in done.err
    assert set(found) == {"apiVersion", "kind", "metadata", "spec"}
    read = variant({**found, "metadata": {**found["metadata"], "resourceVersion": "1"}}, strict=True)
    assert read.problem is None
    assert read.annotations == {"modelyard.dev/min-replicas": "0", "modelyard.dev/max-replicas": "7"}


def test_an_inference_service_keeps_its_mode_and_tells_what_it_loses(tmp_path: Path) -> None:
    spec = {"model": {"name": "m"}, "engine": {"topologyKey": "zone"}, "deploymentMode": "RawDeployment", "rollout": {}}
    spec["acceleratorSelector"] = {"acceleratorClass": "h100"}
    (found,), done = convert(tmp_path, manifest("InferenceService", spec, "ome.io/v1beta1"))
    assert done.code == 0
    assert found["metadata"]["annotations"] == {"ome.io/deploymentMode": "RawDeployment"}
    assert found["spec"] == {"model": {"name": "m"}, "engine": {}, "acceleratorSelector": {"acceleratorClass": "h100"}}
    for text in ("spec.rollout is left out", "spec.engine.topologyKey is left out"):
        assert text in done.err
    assert "acceleratorSelector" not in done.err, "runtimes are chosen by it"


def test_routes_change_their_group_and_what_is_published_stays_as_it_is(tmp_path: Path) -> None:
    route = manifest("ModelRoute", {"modelName": "m", "rules": []}, "networking.serving.volcano.sh/v1alpha1")
    other = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 1}}
    published = {**route, "apiVersion": "networking.volcano.sh/v1alpha1"}
    found, done = convert(tmp_path, {"kind": "List", "apiVersion": "v1", "items": [route, other]}, published)
    assert (done.code, done.err) == (0, "")
    assert found == [published, other, published]


ROLES = {"targetRef": {"name": "llama"}, "roles": {"decode": {"minReplicas": 1, "maxReplicas": 2}}}
ELSEWHERE = {"pod": {"port": 9000}}
TWO = {"metrics": [{"name": "waiting", "targetValue": "10"}, {"name": "cache", "targetValue": "1"}]}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({**METRICS, "disaggregatedTarget": ROLES}, "spec.disaggregatedTarget"),
        (
            {
                **TWO,
                "homogeneousTarget": {
                    "target": target("llama", waiting=POD, cache=ELSEWHERE),
                    "minReplicas": 1,
                    "maxReplicas": 2,
                },
            },
            "metricSources of cache, waiting are at different places",
        ),
        ({"metrics": [{"name": "waiting", "targetValue": 0.8}]}, "put quotes around it"),
        ({"metrics": "none"}, "not in the form of AutoscalingPolicy"),
    ],
)
def test_what_cannot_be_said_is_refused_by_its_name_and_the_rest_converted(
    tmp_path: Path, spec: dict[str, Any], named: str
) -> None:
    good = manifest("AutoscalingPolicy", METRICS)
    found, done = convert(tmp_path, manifest("AutoscalingPolicy", spec), good)
    assert done.code == 1
    assert named in done.err
    assert [one["spec"]["metrics"][0]["metricName"] for one in found] == ["waiting"]


BOMB = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10))])
CHAIN = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 5000))])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "more than 1000000 values, with what its aliases stand for"),
        (CHAIN, "nested more than 100 deep, with what its aliases stand for"),
        ("a: &a [*a]", "of what it is itself in"),
        ("a: &a {b: {c: *a}}", "of what it is itself in"),
        ("a: *b", "alias of nothing"),
        ("[" * 200_000, "nested more than 100 deep"),
        ("a: " + "[" * 200 + "]" * 200, "nested more than 100 deep"),
        ("a: 0b_", "not YAML"),
        ("a: 99999999999999999999", "whole number beyond 64 bits"),
        ("{apiVersion: llmd.ai/v1alpha1, kind: VariantAutoscaling, metadata: 5}", "not in the form of"),
        ('kind: VariantAutoscaling\napiVersion: llmd.ai/v1alpha1\nmetadata: {name: "\\e[2J"}', "\\x1b[2J"),
    ],
)
def test_a_strangers_manifest_gets_a_sentence_and_moves_no_cursor(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "strange.yaml").write_text(text)
    done = modelyard("convert", "-f", tmp_path / "strange.yaml")
    assert done.code
    assert said in done.err
    assert "strange.yaml" in done.err
    assert "Traceback" not in done.err
    assert "\x1b[2J" not in done.err


def test_what_holds_no_manifests_is_left_as_it_is(tmp_path: Path) -> None:
    found, done = convert(tmp_path, {"apiVersion": "v1", "kind": "Odd", "items": 5})
    assert (done.code, found) == (0, [{"apiVersion": "v1", "kind": "Odd", "items": 5}])


def test_a_scaler_annotated_for_the_later_autoscaler_becomes_a_variant_and_stays(tmp_path: Path) -> None:
    scaler = yaml.safe_load((DATA / "plan" / "annotated.yaml").read_text())
    stored = {**scaler, "metadata": {**scaler["metadata"], "resourceVersion": "7", "uid": "u"}, "status": {"x": 1}}
    (made, kept), done = convert(tmp_path, stored)
    assert (done.code, done.err) == (0, "")
    assert kept == scaler
    read = variant(made, strict=True)
    assert (read.problem, read.key, read.model_id, read.cost) == (None, ("chat", "qwen"), "Qwen/Qwen3-32B", 40.0)
    assert read.annotations == {"modelyard.dev/actuation": "signal"}
    assert read.target == ("apps/v1", "Deployment", "qwen")


def test_an_annotated_scaler_that_reads_another_gauge_is_told(tmp_path: Path) -> None:
    metric = {"name": "wva_desired_replicas", "selector": {"matchLabels": {"variant_name": "qwen-va"}}}
    spec = {
        "scaleTargetRef": {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "qwen"},
        "maxReplicas": 4,
        "metrics": [{"type": "External", "external": {"metric": metric}}],
    }
    annotations = {"llm-d.ai/managed": "true", "llm-d.ai/model-id": "qwen"}
    scaler = manifest("HorizontalPodAutoscaler", spec, "autoscaling/v2", annotations=annotations)
    (made, _), done = convert(tmp_path, scaler)
    assert made["spec"]["variantCost"] == "10.0"
    assert "reads the desired replicas of qwen-va, and its own are published as llama" in done.err


@pytest.mark.parametrize(
    ("reference", "annotations", "why"),
    [
        ({"kind": "Deployment", "name": "a"}, {}, "annotation llm-d.ai/model-id: is missing"),
        (
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "a"},
            {"llm-d.ai/model-id": "m"},
            "cannot be a managed",
        ),
        ({}, {"llm-d.ai/model-id": "m"}, "Deployment (no name) cannot be a managed target"),
    ],
)
def test_an_annotated_scaler_that_describes_no_variant_is_refused(
    tmp_path: Path, reference: dict[str, str], annotations: dict[str, str], why: str
) -> None:
    spec = {"scaleTargetRef": reference, "maxReplicas": 4}
    annotations = {"llm-d.ai/managed": "true", **annotations}
    found, done = convert(
        tmp_path, manifest("HorizontalPodAutoscaler", spec, "autoscaling/v2", annotations=annotations)
    )
    assert (found, done.code) == ([], 1)
    assert why in done.err


def test_other_scalers_stay_as_they_are(tmp_path: Path) -> None:
    scaler = manifest("ScaledObject", {"scaleTargetRef": {"name": "a"}}, "keda.sh/v1alpha1")
    found, done = convert(tmp_path, scaler)
    assert (found, done.code, done.err) == ([scaler], 0, "")
