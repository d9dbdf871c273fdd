"""Parsing, errors and printing of the kinds; the samples; the rules between fields."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from resource_cases import BAD, patched, sample

from modelyard.resources import KINDS, Duration, Quantity, Resource, ResourceInvalid, parse
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
    assert ModelRoute.parse(item).name == "llama-8b"


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
