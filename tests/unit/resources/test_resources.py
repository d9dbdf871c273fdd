"""Parsing, errors and printing of the kinds; the samples; the rules between fields."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from resource_cases import BAD, GOOD, patched, sample

from modelyard.resources import KINDS, Duration, Quantity, Resource, ResourceInvalid, parse
from modelyard.resources.field_effects import ineffective
from modelyard.resources.llmd import VariantAutoscaling
from modelyard.resources.networking import ModelRoute
from modelyard.resources.ome.services import InferenceService
from modelyard.resources.registry import AutoscalingPolicy, Model

SAMPLES = sorted((Path(__file__).parents[3] / "config" / "samples").glob("*.yaml"))


def test_there_is_a_sample_of_every_kind_and_form() -> None:
    parsed = [parse(yaml.safe_load(path.read_text(encoding="utf-8"))) for path in SAMPLES]
    assert {(p.group, p.kind) for p in parsed} == set(KINDS)
    profiles = [p.spec.variant_profile for p in parsed if isinstance(p, VariantAutoscaling)]
    assert None in profiles
    assert any(profiles)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_print_and_parse_again_to_the_same(path: Path) -> None:
    first = parse(yaml.safe_load(path.read_text(encoding="utf-8")))
    manifest = first.to_manifest()
    again = parse(manifest)
    assert again == first
    assert again.to_manifest() == manifest


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_bad_manifests_name_object_field_and_remedy(case: Any) -> None:
    with pytest.raises(ResourceInvalid) as caught:
        parse(case.manifest())
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.problems)
    matching = [line for line in lines if f": {case.field}: " in line]
    assert matching, lines
    assert matching[0].startswith(f"{case.kind} ")
    assert " - " in matching[0].split(f": {case.field}: ", 1)[1]


@pytest.mark.parametrize(("name", "changes"), GOOD)
def test_the_other_side_of_a_bound_is_accepted(name: str, changes: dict[str, Any]) -> None:
    first = parse(patched(name, changes))
    assert parse(first.to_manifest()) == first


def test_every_error_is_reported_at_once() -> None:
    manifest = patched("variantautoscaling-slo", {"spec.accelerator": "", "spec.acceleratorCount": 0, "spec.typo": 1})
    with pytest.raises(ResourceInvalid) as caught:
        parse(manifest)
    assert {field for field, _ in caught.value.problems} == {"spec.accelerator", "spec.acceleratorCount", "spec.typo"}


def test_an_unknown_field_is_met_with_the_likely_name() -> None:
    with pytest.raises(ResourceInvalid, match=r"spec\.workloadPort\.protocoll: unknown field - write 'protocol'"):
        parse(patched("modelserver", {"spec.workloadPort.protocoll": "http"}))


def test_pod_fragments_keep_what_they_hold() -> None:
    manifest = patched(
        "inferenceservice",
        {
            "spec.engine.volumes": [{"name": "v", "emptyDir": None, "later": {"x": 1}}],
            "spec.engine.runner.later": {"y": None},
        },
    )
    engine = InferenceService.parse(manifest).to_manifest()["spec"]["engine"]
    assert engine["volumes"] == [{"name": "v", "emptyDir": None, "later": {"x": 1}}]
    assert engine["runner"]["later"] == {"y": None}


def test_status_is_read_leniently() -> None:
    manifest = sample("variantautoscaling-saturation")
    condition = {"type": "MetricsAvailable", "status": "True", "reason": "MetricsAvailable", "message": "m"}
    condition["lastTransitionTime"] = "2026-01-09T22:00:00Z"
    manifest["status"] = {
        "desiredOptimizedAlloc": {"lastRunTime": None, "accelerator": "", "numReplicas": 0},
        "conditions": [condition],
        "load": {"arrivalRate": "1.0"},
    }
    variant = VariantAutoscaling.parse(manifest)
    assert variant.status is not None
    assert variant.status.desired_optimized_alloc is None, "never decided"
    assert variant.status.conditions is not None
    assert variant.to_manifest()["status"] == {"conditions": [condition]}


def test_status_that_is_no_object_counts_as_none() -> None:
    manifest = sample("variantautoscaling-saturation")
    manifest["status"] = {"conditions": "broken"}
    assert VariantAutoscaling.parse(manifest).to_manifest()["status"] == {}


def test_defaults_hold_inside_objects_that_are_present() -> None:
    policy = AutoscalingPolicy.parse(sample("autoscalingpolicy")).spec
    assert policy.tolerance_percent == 10
    assert policy.metrics[0].target_value == Quantity("750m")
    assert policy.behavior is not None
    assert policy.behavior.scale_up is not None
    assert policy.behavior.scale_up.panic_policy is not None
    assert policy.behavior.scale_up.panic_policy.panic_mode_hold == Duration("60s")
    bare = AutoscalingPolicy.parse(patched("autoscalingpolicy", {"spec.behavior": None})).spec
    assert bare.behavior is None


def test_metadata_survives() -> None:
    manifest = sample("model")
    manifest["metadata"] |= {
        "uid": "u",
        "generation": 3,
        "creationTimestamp": "2026-01-09T22:00:00Z",
        "annotations": {"a": "b"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u", "blockOwnerDeletion": False}],
        "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
        "selfLink": "kept",
    }
    assert Model.parse(manifest).to_manifest()["metadata"] == manifest["metadata"]


def test_objects_of_lists_need_no_api_version() -> None:
    item = {key: value for key, value in sample("modelroute").items() if key not in ("apiVersion", "kind")}
    assert ModelRoute.parse(item).name == "chat"


def test_another_kind_is_refused() -> None:
    with pytest.raises(ResourceInvalid, match=r"kind: is 'ModelServer', not 'ModelRoute'"):
        ModelRoute.parse(sample("modelserver"))
    with pytest.raises(ResourceInvalid, match="Deployment of group apps is not known"):
        parse({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}})


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.kind)
def test_identity(kind: type[Resource]) -> None:
    assert kind.api_version == f"{kind.group}/{kind.version}"
    assert kind.plural == kind.plural.lower()
    assert kind.__doc__
    assert kind.columns[-1].name == "Age"


def test_parsing_leaves_the_input_alone() -> None:
    for path in SAMPLES:
        manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
        before = copy.deepcopy(manifest)
        parse(manifest)
        assert manifest == before


def stored_by_a_newer_ome(name: str) -> dict[str, Any]:
    """A sample as an API server with a newer CRD stores it: its defaults filled in, its further fields used."""

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(item) for item in value]
        if not isinstance(value, dict):
            return value
        compared = {"operator": "Equal", "weight": 1}
        found = {key: filled(item) for key, item in value.items()}
        return {k: {**v, **compared} if k in ("modelFormat", "modelFramework") else v for k, v in found.items()}

    manifest: dict[str, Any] = filled(sample(name))
    spec = manifest["spec"]
    spec.get("storage", {})["downloadPolicy"] = "ReuseIfExists"
    if "Model" in manifest["kind"]:
        spec["apiCapabilities"] = ["OPENAI_V1_CHAT_COMPLETIONS", "OPENAI_V1_LATER"]
    for component in (spec.get("engine"), spec.get("engineConfig")):
        if component is not None:
            component |= {"minAvailable": 1, "maxUnavailable": "25%"}
            component["kedaConfig"] = {"authenticationRef": {"name": "grafana"}, "authModes": "tls,basic"}
    return manifest


def paths_without_effect(manifest: dict[str, Any]) -> list[str]:
    return [
        field.path for field in ineffective(KINDS[manifest["apiVersion"].partition("/")[0], manifest["kind"]], manifest)
    ]


OME_SAMPLES = [p.stem for p in SAMPLES if "ome.io/v1beta1" in p.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", OME_SAMPLES)
def test_objects_stored_under_a_newer_crd_are_read_whole(name: str) -> None:
    manifest = stored_by_a_newer_ome(name)
    read = parse(manifest)
    assert paths_without_effect(manifest) == []
    assert parse(read.to_manifest()) == read
    changed = {key: value for key, value in manifest["spec"].items() if value != sample(name)["spec"].get(key)}
    shown = read.to_manifest()["spec"]
    assert {key: without_defaults(shown[key], value) for key, value in changed.items()} == changed


def without_defaults(shown: Any, given: Any) -> Any:
    """What is shown, without what was not given."""
    if isinstance(given, dict):
        return {key: without_defaults(shown[key], value) for key, value in given.items()}
    if isinstance(given, list):
        return [without_defaults(*pair) for pair in zip(shown, given, strict=True)]
    return shown


_ENTRY = "spec.supportedModelFormats[0]"


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("servingruntime", f"{_ENTRY}.acceleratorConfig", {"nvidia-h100": {"runner": {"args": ["--tp=2"]}}}),
        ("modelroute", "spec.parentRefs", [{"name": "gateway", "sectionName": "http", "port": 80}]),
    ],
)
def test_fields_without_effect_are_kept_and_told(name: str, path: str, value: Any) -> None:
    manifest = patched(name, {path: value})
    assert paths_without_effect(manifest) == [path]
    kept = parse(manifest).to_manifest()
    for key in re.findall(r"[^.\[\]]+", path):
        kept = kept[int(key)] if key.isdigit() else kept[key]
    assert without_defaults(kept, value) == value


def test_a_target_beside_the_model_servers_is_kept_and_told() -> None:
    elsewhere = {"externalModelProviderName": "somebody", "weight": 5}
    manifest = patched("modelroute", {"spec.rules[0].targetModels": [elsewhere]})
    route = ModelRoute.parse(manifest)
    assert paths_without_effect(manifest) == ["spec.rules[0].targetModels[0].externalModelProviderName"]
    assert route.to_manifest()["spec"]["rules"][0]["targetModels"] == [elsewhere]
    for wrong in ({}, {"modelServerName": "a", **elsewhere}):
        with pytest.raises(ResourceInvalid, match=r"targetModels\[0\]: exactly one of modelServerName and"):
            ModelRoute.parse(patched("modelroute", {"spec.rules[0].targetModels": [wrong]}))


def test_unknown_fields_are_wrong_in_a_file_and_told_of_an_object_from_a_cluster() -> None:
    manifest = patched("modelroute", {"spec.later": 1, "spec.rules[1].targetModels[0].zone": "b", "later": {}})
    with pytest.raises(ResourceInvalid) as caught:
        ModelRoute.parse(manifest)
    paths = {path for path, _ in caught.value.problems}
    read = ModelRoute.parse(manifest, unknown="accept")
    assert set(paths_without_effect(manifest)) == paths == {"later", "spec.later", "spec.rules[1].targetModels[0].zone"}
    assert read.to_manifest() == ModelRoute.parse(sample("modelroute")).to_manifest()


def test_fragments_of_pods_and_statuses_are_not_told_as_unknown() -> None:
    manifest = patched("inferenceservice", {"spec.engine.runner.later": 1, "status": {"later": {"x": 1}}})
    assert paths_without_effect(manifest) == []


@pytest.mark.parametrize(
    ("name", "changes", "path", "advice"),
    [
        (
            "autoscalingpolicy",
            {"spec.metrics[0]": {"name": "m", "targetValue": 1}},
            "spec.metrics[0].name",
            "write metricName",
        ),
        (
            "autoscalingpolicy",
            {"spec.metrics[0]": {"name": "m", "targetValue": 1}},
            "spec.metrics[0].metricName",
            "rename name",
        ),
        (
            "autoscalingpolicy",
            {"spec.homogeneousTarget": {}},
            "spec.homogeneousTarget",
            "write scalingConfiguration of an AutoscalingPolicyBinding",
        ),
        (
            "autoscalingpolicybinding",
            {"spec.optimizerConfiguration.params[0].target.metricSources": {}},
            "spec.optimizerConfiguration.params[0].target.metricSources",
            "write metricEndpoint",
        ),
        (
            "variantautoscaling-saturation",
            {"spec.minReplicas": 1},
            "spec.minReplicas",
            "write the annotation modelyard.dev/min-replicas",
        ),
        ("model", {"apiVersion": "workload.serving.volcano.sh/v1alpha1"}, "kind", "modelyard convert"),
    ],
)
def test_the_shapes_of_newer_peers_are_refused_with_what_to_write(
    name: str, changes: dict[str, Any], path: str, advice: str
) -> None:
    with pytest.raises(ResourceInvalid) as caught:
        parse(patched(name, changes))
    told = dict(caught.value.problems)
    assert advice in told[path]


def test_a_number_with_a_fraction_is_met_with_quotes() -> None:
    with pytest.raises(ResourceInvalid, match=r"metrics\[0\]\.targetValue: 0\.8 .* - put quotes around it"):
        parse(patched("autoscalingpolicy", {"spec.metrics[0].targetValue": 0.8}))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("autoscalingpolicybinding", {"spec.optimizerConfiguration.costExpansionRatePercent": 5000}),
        ("modelserver", {"spec.trafficPolicy.retry": {}}),
        ("modelroute", {"spec.rateLimit.global": {"redis": {"address": "[2001:db8::1]:6379"}}}),
        ("modelroute", {"spec.rateLimit.global": {"redis": {"address": "redis.cache:6379"}}}),
    ],
)
def test_what_the_reference_allows_is_accepted(name: str, changes: dict[str, Any]) -> None:
    parse(patched(name, changes))
