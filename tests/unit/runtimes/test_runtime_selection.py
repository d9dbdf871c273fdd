"""Which runtime is chosen, in which order, and every reason against the others: worked examples, tables, properties."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from modelyard.models.detection import Facts, parse_size
from modelyard.runtimes import (
    AcceleratorClass,
    Constraints,
    ModelView,
    Ranking,
    Runtime,
    Wishes,
    parse_model,
    parse_runtime,
    parse_wishes,
    select,
    warnings,
)
from modelyard.runtimes.values import Diffusion, Library, ModelKind, SupportedFormat

LLAMA = ModelKind(Library("safetensors", "1.0.0"), Library("transformers", "4.43.0"), "LlamaForCausalLM")
PYTORCH = ModelKind(Library("pytorch"), Library("transformers"))


def entry(
    kind: ModelKind = LLAMA, *, auto: bool = True, priority: int | None = None, weight: int = 1
) -> SupportedFormat:
    assert kind.format is not None
    found = kind.format._replace(weight=weight)
    return SupportedFormat(
        found, kind.framework, kind.architecture, kind.quantization, kind.diffusion, auto, priority=priority
    )


def runtime(name: str, *formats: SupportedFormat, sizes: str = "", namespace: str = "", **others: Any) -> Runtime:
    low, _, high = sizes.partition("-")
    return Runtime(
        name,
        namespace,
        formats or (entry(),),
        parse_size(low) if low else None,
        parse_size(high) if high else None,
        (low, high),
        bool(sizes),
        **others,
    )


def model(size: str = "", kind: ModelKind = LLAMA, **others: Any) -> ModelView:
    return ModelView("m", "shop", kind, parse_size(size) if size else None, size, **others)


def order(ranking: Ranking) -> list[str]:
    return [verdict.runtime.name for verdict in ranking.accepted]


def codes(ranking: Ranking, name: str) -> list[str]:
    return [r.code for verdict in ranking.verdicts if verdict.runtime.name == name for r in verdict.reasons]


def test_namespaced_runtimes_come_first_whatever_their_priority() -> None:
    p = runtime("P", entry(PYTORCH, priority=2, weight=10), sizes="1B-10B", namespace="shop")
    q = runtime("Q", entry(PYTORCH, priority=1, weight=5), sizes="1B-20B", namespace="shop")
    c = runtime("C", entry(PYTORCH, priority=9, weight=7), sizes="5B-15B")
    found = select(model("7B", PYTORCH), [c, q, p])
    assert order(found) == ["P", "Q", "C"]
    assert found.chosen is not None
    assert found.chosen.runtime is p


def test_the_narrower_range_around_the_size_comes_first() -> None:
    assert order(select(model("46.7B"), [runtime("a", sizes="40B-50B"), runtime("b", sizes="45B-50B")])) == ["b", "a"]


def test_a_range_that_contains_the_size_comes_before_none_and_before_an_open_one() -> None:
    runtimes = [runtime("a"), runtime("b", sizes="1B-"), runtime("c", sizes="1B-10B"), runtime("d", sizes="-10B")]
    assert order(select(model("7B"), runtimes)) == ["c", "b", "d", "a"]


def test_no_entry_lends_its_priority_to_another() -> None:
    mistral = LLAMA._replace(architecture="MistralForCausalLM")
    x = runtime("X", entry(priority=1), entry(mistral, priority=9))
    y = runtime("Y", entry(priority=3))
    assert order(select(model(), [x, y])) == ["Y", "X"]


def test_an_entry_without_auto_select_lends_its_priority_to_nobody() -> None:
    x = runtime("X", entry(priority=9, auto=False), entry(priority=1))
    assert order(select(model(), [x, runtime("Y", entry(priority=2))])) == ["Y", "X"]


@pytest.mark.parametrize(
    ("size", "sizes", "fits"),
    [
        ("109B", "100B-109B", True),
        ("109.1B", "100B-109B", False),
        ("402B", "400B-402B", True),
        ("402.1B", "400B-402B", False),
        ("400B", "400B-402B", True),
        ("41.9B", "40B-45B", True),
        ("16B", "40B-45B", False),
        ("20B", "10B-15B", False),
        ("20B", "115B-125B", False),
        ("7B", "-7B", True),
        ("7B", "7B-", True),
        ("7B", "8B-", False),
        ("500M", "0.5B-1B", True),
    ],
)
def test_both_ends_of_a_range_are_in_it(size: str, sizes: str, fits: bool) -> None:
    found = select(model(size), [runtime("r", sizes=sizes)])
    assert bool(found.chosen) is fits
    assert codes(found, "r") == ([] if fits else ["SizeOutOfRange"])
    if not fits:
        low, high = (end or "any" for end in sizes.split("-"))
        assert found.verdicts[0].why == f"model size {size} is outside supported range [{low}, {high}]"


@pytest.mark.parametrize(
    ("asked", "word", "method", "accepted"),
    [
        ("fp8", "fp8", "compressed-tensors", True),
        ("fbgemm_fp8", "fp8", "compressed-tensors", True),
        ("int4", "", "awq", True),
        ("int4", "int4", "compressed-tensors", True),
        ("awq", "", "awq", True),
        ("awq", "", "gptq", False),
        ("", "", "awq", True),
        ("", "int4", "compressed-tensors", False),
        ("fp8", "", "", False),
    ],
)
def test_runtimes_and_files_meet_in_the_words_of_quantization(
    asked: str, word: str, method: str, accepted: bool
) -> None:
    kind = LLAMA._replace(quantization=word, method=method)
    ranking = select(model(kind=kind), [runtime("r", entry(LLAMA._replace(quantization=asked)))])
    assert bool(ranking.chosen) is accepted
    is_mentioned = accepted and not asked and bool(method)
    assert any("which the runtime does not mention" in note for note in ranking.verdicts[0].notes) is is_mentioned


def test_an_unknown_size_skips_ranges_and_says_so() -> None:
    found = select(model(), [runtime("r", sizes="1B-2B"), runtime("a")])
    assert order(found) == ["a", "r"]
    assert found.verdicts[1].notes == ("the size of the model was not checked: its size is not known",)


def test_versions_of_formats_are_versions_and_not_text() -> None:
    one = LLAMA._replace(format=Library("safetensors", "1"))
    assert order(select(model(), [runtime("r", entry(one))])) == ["r"]


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ({"architecture": "A"}, {"architecture": "B"}, "architecture mismatch: model has 'B', runtime 'A'"),
        ({"architecture": "A"}, {"architecture": ""}, "model has no architecture but runtime requires 'A'"),
        ({"architecture": ""}, {"architecture": "B"}, "model has architecture 'B' but runtime has no requirement"),
        ({"quantization": "fp8"}, {"quantization": "int4"}, "quantization mismatch: model has 'int4', runtime 'fp8'"),
        ({"quantization": "fp8"}, {}, "model has no quantization but runtime requires 'fp8'"),
        ({}, {"quantization": "fp8"}, "model has quantization 'fp8' but runtime has no requirement"),
        ({"format": Library("onnx")}, {}, "format mismatch: model has 'safetensors', runtime 'onnx'"),
        (
            {"format": Library("safetensors", "2.0.0")},
            {},
            "format version mismatch: runtime '2.0.0' is not equal to model '1.0.0'",
        ),
        (
            {"format": Library("safetensors")},
            {},
            "model has format version '1.0.0' but runtime has no requirement",
        ),
        (
            {},
            {"format": Library("safetensors")},
            "model has no format version but runtime requires '1.0.0'",
        ),
        ({"framework": Library("trt")}, {}, "framework mismatch: model has 'transformers', runtime 'trt'"),
        ({}, {"framework": None}, "model has no framework but runtime requires 'transformers'"),
        ({"framework": None}, {}, "model has framework 'transformers' but runtime has no requirement"),
        (
            {"framework": Library("transformers", "4.42.0", "GreaterThanOrEqual")},
            {},
            "framework version mismatch: runtime '4.42.0' is not at or above model '4.43.0'",
        ),
        (
            {"framework": Library("transformers")},
            {},
            "model has framework version '4.43.0' but runtime has no requirement",
        ),
        (
            {},
            {"framework": Library("transformers")},
            "model has no framework version but runtime requires '4.43.0'",
        ),
        ({"diffusion": Diffusion("FluxPipeline")}, {}, "model is no diffusion pipeline but runtime requires"),
        (
            {"diffusion": Diffusion("FluxPipeline", (("vae", "diffusers", "A"),), (("x", "", ""),))},
            {"diffusion": Diffusion("WanPipeline", (("vae", "diffusers", "B"),))},
            "pipeline class mismatch: model has 'WanPipeline', runtime 'FluxPipeline', class mismatch of pipeline "
            "component vae: model has 'B', runtime 'A', pipeline has no x",
        ),
        ({}, {"format": None}, "model has no format but runtime requires 'safetensors'"),
    ],
)
def test_every_difference_of_an_entry_is_said(ours: dict[str, Any], theirs: dict[str, Any], said: str) -> None:
    found = select(model(kind=LLAMA._replace(**theirs)), [runtime("r", entry(LLAMA._replace(**ours)))])
    assert said in found.verdicts[0].why
    assert codes(found, "r") == ["FormatNotSupported"]


def test_an_entry_without_a_pipeline_takes_any() -> None:
    assert order(select(model(kind=LLAMA._replace(diffusion=Diffusion("FluxPipeline"))), [runtime("r")])) == ["r"]


def test_all_entries_are_told_with_all_their_differences() -> None:
    first, second = LLAMA._replace(architecture="A", quantization="fp8"), LLAMA._replace(format=Library("onnx"))
    found = select(model(), [runtime("r", entry(first), entry(second))])
    assert found.verdicts[0].why == (
        "model format 'safetensors:1.0.0:LlamaForCausalLM:transformers:4.43.0' not in supported formats: architecture"
        " mismatch: model has 'LlamaForCausalLM', runtime 'A', model has no quantization but runtime requires 'fp8';"
        " format mismatch: model has 'safetensors', runtime 'onnx'"
    )


def test_what_differs_in_many_entries_is_told_once() -> None:
    names = [f"A{number}" for number in range(12)]
    entries = [entry(LLAMA._replace(architecture=name, quantization=way)) for name in names for way in ("", "fp8")]
    why = select(model(), [runtime("r", *entries)]).verdicts[0].why
    assert why.endswith(
        "in supported formats: architecture mismatch: model has 'LlamaForCausalLM', runtime "
        + " or ".join(map(repr, names[:10]))
        + " or 2 more"
    )


def test_a_name_without_end_is_told_in_part() -> None:
    """What is told of it is found in as many steps as are told, not in all pairs of its characters."""
    endless = Library("'" + " runtime '" * 20_000, "1", "Equal", 1)
    kind = ModelKind(endless, LLAMA.framework, LLAMA.architecture)
    ranking = select(model(), [runtime("r", entry(kind))], named="r")
    assert ranking.problem is not None
    assert len(ranking.problem.message) <= 1000


ENDLESS = "x" * 300


@pytest.mark.parametrize("field", ["modelArchitecture", "quantization", "modelFormat", "modelFramework"])
def test_texts_without_end_are_compared_with_nothing(field: str) -> None:
    """Finding: a text of a megabyte was copied for each entry of each runtime before a message was cut."""
    value = {"name": ENDLESS} if field in ("modelFormat", "modelFramework") else ENDLESS
    usual = {"modelFormat": {"name": "safetensors"}, "modelFramework": {"name": "transformers"}}
    about = {**usual, field: value}
    storage = {"storage": {"storageUri": "hf://a/b"}}
    read = parse_model({"kind": "ClusterBaseModel", "metadata": {"name": "m"}, "spec": {**about, **storage}})
    served = {"supportedModelFormats": [usual, about]}
    found = parse_runtime({"kind": "ClusterServingRuntime", "metadata": {"name": "r"}, "spec": served})
    for problem, path in ((read.problem, "spec."), (found.problem, "spec.supportedModelFormats[1].")):
        assert f"{path}{field}" in problem
        assert "has 300 characters; write at most 256" in problem
    assert read.kind == ModelKind()
    assert found.formats == ()


def test_every_check_is_made_whatever_the_others_found() -> None:
    everything = runtime(
        "r", entry(LLAMA._replace(architecture="A")), sizes="1B-2B", disabled=True, problem="odd", classes=("l40",)
    )
    found = select(model("7B"), [everything], wishes=Wishes(classes=("h100",), mode="MultiNode"))
    assert codes(found, "r") == [
        "RuntimeDisabled",
        "RuntimeInvalid",
        "AcceleratorClassNotSupported",
        "SizeOutOfRange",
        "DeploymentModeNotSupported",
    ]


def test_a_quantization_that_the_published_words_lack_is_taken_by_who_names_it_and_by_who_names_none() -> None:
    awq = LLAMA._replace(method="awq")
    named, silent = runtime("named", entry(LLAMA._replace(quantization="awq"))), runtime("silent")
    other = runtime("other", entry(LLAMA._replace(quantization="gptq")))
    found = select(model(kind=awq), [named, silent, other])
    assert order(found) == ["named", "silent"]
    assert [verdict.notes for verdict in found.accepted] == [
        (),
        ("the weights are quantized by awq, which the runtime does not mention",),
    ]


def test_a_runtime_without_auto_select_is_only_for_who_names_it() -> None:
    shy = runtime("shy", entry(auto=False))
    found = select(model(), [shy])
    assert codes(found, "shy") == ["NotAutoSelectable"]
    assert found.problem is not None
    assert found.problem.code == "NoSupportingRuntime"
    found = select(model(), [shy], named="shy")
    assert found.chosen is not None
    assert found.chosen.runtime is shy


def test_auto_select_of_another_entry_does_not_count() -> None:
    mixed = runtime("mixed", entry(auto=False), entry(LLAMA._replace(architecture="A")))
    assert codes(select(model(), [mixed]), "mixed") == ["NotAutoSelectable"]


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("none", "runtime none not found in namespace shop or at cluster scope"),
        ("off", "cluster runtime off is disabled"),
        ("other", "runtime other does not support model m: model format "),
        ("small", "runtime small does not support model m: model size 7B is outside supported range [1B, 2B]"),
    ],
)
def test_a_named_runtime_that_cannot_be_used_says_why(named: str, problem: str) -> None:
    runtimes = [
        runtime("off", disabled=True),
        runtime("other", entry(LLAMA._replace(architecture="A"))),
        runtime("small", sizes="1B-2B"),
        runtime("good"),
    ]
    found = select(model("7B"), runtimes, named=named)
    assert found.chosen is None
    assert found.problem is not None
    assert found.problem.message.startswith(problem)


def test_a_name_is_looked_up_in_the_namespace_first_and_in_no_other() -> None:
    here, there, wide = (runtime("r", namespace=place) for place in ("shop", "other", ""))
    found = select(model(), [there, wide, here], named="r")
    assert found.chosen is not None
    assert found.chosen.runtime is here
    assert {verdict.runtime.namespace for verdict in found.verdicts} == {"shop", ""}
    found = select(model(), [there, wide], named="r")
    assert found.chosen is not None
    assert found.chosen.runtime is wide


def test_a_live_service_stays_with_its_runtime_and_a_better_one_is_reported() -> None:
    old, new = runtime("old", entry(priority=1)), runtime("new", entry(priority=2))
    found = select(model(), [old, new], current=("", "old"))
    assert found.chosen is not None
    assert found.better is not None
    assert (found.chosen.runtime, found.better.runtime) == (old, new)
    found = select(model(), [old, new], current=("", "new"))
    assert found.chosen is not None
    assert (found.chosen.runtime, found.better) == (new, None)
    # It stays although it would no longer be chosen without being named.
    shy = dataclasses.replace(old, formats=(entry(auto=False),))
    found = select(model(), [shy], current=("", "old"))
    assert found.chosen is not None
    for gone in (dataclasses.replace(old, disabled=True), runtime("old", sizes="1B-2B"), None):
        found = select(model("7B"), [one for one in (gone, new) if one], current=("", "old"))
        assert found.chosen is not None
        assert (found.chosen.runtime, found.better) == (new, None)


def test_a_model_that_cannot_be_served_at_all_says_so_and_every_runtime_is_judged_all_the_same() -> None:
    for seen, code in (
        (model(disabled=True), "ModelDisabled"),
        (model(kind=ModelKind()), "MetadataPending"),
        (ModelView("m", problem="spec: odd"), "ModelInvalid"),
    ):
        found = select(seen, [runtime("r")])
        assert found.problem is not None
        assert (found.problem.code, found.chosen, len(found.verdicts)) == (code, None, 1)


def test_the_message_without_a_candidate_names_the_model_and_all_reasons_in_one_order() -> None:
    runtimes = [runtime("b", sizes="1B-2B"), runtime("a", disabled=True), runtime("z", namespace="shop", sizes="8B-")]
    found = select(model("7B"), runtimes)
    assert found.problem is not None
    assert found.problem.message == (
        "no runtime found to support model m with format safetensors in namespace shop. Checked 3 runtimes"
        " (1 namespace-scoped, 2 cluster-scoped). Excluded runtimes: z (model size 7B is outside supported range"
        " [8B, any]); a (runtime is disabled); b (model size 7B is outside supported range [1B, 2B])"
    )
    assert select(model("7B"), runtimes[::-1]).problem == found.problem


def test_weights_break_ties_after_priority_and_size() -> None:
    light, heavy = runtime("a", entry(weight=1)), runtime("b", entry(weight=7))
    first = runtime("c", entry(weight=1, priority=2))
    assert order(select(model(), [light, heavy, first])) == ["c", "b", "a"]


H100 = AcceleratorClass("h100", "hopper", 80 * 2**30, 3350, 989, (9, 0), frozenset({"fp8"}), 4.0)
B200 = AcceleratorClass("b200", "blackwell", 180 * 2**30, 8000, 2250, (10, 0), frozenset({"fp8", "fp4"}), 9.0)
L40 = AcceleratorClass("l40", "ada", 48 * 2**30, 864, 181, (8, 9), frozenset(), 1.0)
CLASSES = {one.name: one for one in (H100, B200, L40)}
BIG = Facts(weight_bytes=140 * 2**30, kv_bytes_per_token=320 * 1024, kv_heads=8)


def test_a_runtime_must_list_every_class_that_is_asked_for() -> None:
    lists = runtime("lists", classes=("h100", "l40"))
    found = select(model(), [lists, runtime("none")], wishes=Wishes(classes=("h100",)))
    assert order(found) == ["lists"]
    assert codes(found, "none") == ["AcceleratorClassNotSupported"]
    assert not select(model(), [lists], wishes=Wishes(classes=("h100", "b200"))).accepted


def test_what_does_not_fit_into_memory_is_refused_where_devices_are_known() -> None:
    seen = model(facts=BIG)
    two = runtime("two", classes=("h100",), devices=2)
    four = runtime("four", classes=("h100", "l40"), devices=4)
    found = select(seen, [two, four], classes=CLASSES)
    assert order(found) == ["four"]
    assert found.accepted[0].accelerator == "h100"
    assert codes(found, "two") == ["NoFittingAccelerator"]
    assert "weights take 168.0 GiB of 160.0 GiB on 2 devices: 8.0 GiB too much" in found.verdicts[1].why
    # Without AcceleratorClasses nobody knows.
    assert order(select(seen, [two, four])) == ["four", "two"]


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [("Cheapest", "l40"), ("MostCapable", "b200"), ("BestFit", "b200"), ("FirstAvailable", "h100"), ("", "h100")],
)
def test_policies_choose_among_the_classes_of_a_runtime(policy: str, chosen: str) -> None:
    one = runtime("r", classes=("h100", "b200", "l40"), devices=8)
    found = select(model(facts=Facts(weight_bytes=2**30)), [one], classes=CLASSES, wishes=Wishes(policy=policy))
    assert found.accepted[0].accelerator == chosen


def test_versions_of_architectures_are_compared_as_numbers() -> None:
    wishes = Wishes(constraints=Constraints.of({"minArchitectureVersion": "9.0"}))
    one = runtime("r", classes=("l40", "b200"), devices=8)
    found = select(model(), [one], classes=CLASSES, wishes=wishes)
    assert found.accepted[0].accelerator == "b200"
    found = select(model(), [runtime("r", classes=("l40",), devices=8)], classes=CLASSES, wishes=wishes)
    assert "accelerator class l40 has version 8.9, below 9.0" in found.verdicts[0].why


def test_every_constraint_that_is_broken_is_told() -> None:
    found = Constraints.of(
        {
            "minMemory": 100,
            "maxMemory": "40Gi",
            "minComputePerformanceTFLOPS": 1000,
            "requiredFeatures": ["fp4"],
            "excludedClasses": ["h100"],
            "architectureFamilies": ["ada"],
        }
    )
    assert found is not None
    assert found.breaches(H100) == [
        "has 80 GiB, less than 100",
        "has 80 GiB, more than 40",
        "has 989 TFLOPS, less than 1000",
        "lacks fp4",
        "is excluded",
        "is of family hopper, not of ada",
    ]


def test_an_accelerator_class_is_read_as_far_as_it_can_be() -> None:
    spec = {
        "family": "hopper",
        "capabilities": {
            "memoryGB": "80",
            "computeCapability": "9.0",
            "features": ["fp8"],
            "memoryBandwidthGBps": "3350",
            "performance": {"fp16Tflops": 989},
        },
        "cost": {"perHour": "5", "spotPerHour": "4"},
    }
    assert AcceleratorClass.of({"metadata": {"name": "h100"}, "spec": spec}) == H100
    for odd in (None, [], "x", {"capabilities": [], "cost": 3}, {"capabilities": {"memoryGB": "NaN", "features": 3}}):
        assert AcceleratorClass.of({"metadata": {"name": "h100"}, "spec": odd}) == AcceleratorClass("h100")


def manifest(kind: str, spec: object, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "ome.io/v1beta1", "kind": kind, "metadata": {"name": "x", **metadata}, "spec": spec}


FORMAT = {"modelFormat": {"name": "safetensors"}, "modelFramework": {"name": "transformers"}, "autoSelect": True}


def test_a_runtime_is_read_from_its_manifest() -> None:
    runner = {"image": "i", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    spec = {
        "supportedModelFormats": [{**FORMAT, "priority": 3, "diffusionPipeline": {"className": "FluxPipeline"}}],
        "modelSizeRange": {"min": "600B"},
        "engineConfig": {"leader": {"runner": runner}, "worker": {"size": 1, "runner": runner}},
        "acceleratorRequirements": {"acceleratorClasses": ["h100"]},
        "protocolVersions": ["openAI"],
    }
    found = parse_runtime(manifest("ServingRuntime", spec, annotations={"modelyard.dev/version-comparison": "release"}))
    assert (found.key, found.mode, found.devices, found.classes) == (("default", "x"), "MultiNode", 16, ("h100",))
    assert (found.smallest, found.largest, found.ranged) == (600 * 10**9, None, True)
    assert found.formats[0].diffusion == Diffusion("FluxPipeline")
    assert (found.formats[0].release_only, found.formats[0].priority, found.problem) == (True, 3, "")
    assert parse_runtime(manifest("ClusterServingRuntime", spec)).key == ("", "x")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (None, "spec"),
        ({"supportedModelFormats": "x"}, "supportedModelFormats"),
        ({"supportedModelFormats": [{}]}, "modelFormat: is required"),
        ({"modelSizeRange": {"min": "7x"}}, "spec.modelSizeRange.min: '7x' is no model size"),
        ({"modelSizeRange": {"max": "9" * 10_000}}, "is no model size"),
        ({"supportedModelFormats": [FORMAT] * 501}, "more than 500 supportedModelFormats"),
    ],
)
def test_a_runtime_that_cannot_be_read_is_told_and_harms_no_other(spec: object, problem: str) -> None:
    broken = parse_runtime(manifest("ClusterServingRuntime", spec))
    assert problem in broken.problem
    found = select(model(), [broken, runtime("good")])
    assert order(found) == ["good"]
    assert "RuntimeInvalid" in codes(found, "x")


def test_a_model_is_read_from_its_manifest_and_its_facts() -> None:
    spec = {"storage": {"storageUri": "hf://a/b"}, "modelParameterSize": "7x"}
    seen = parse_model(manifest("BaseModel", spec, namespace="shop"))
    assert (seen.namespace, seen.size, "spec.modelParameterSize: '7x'" in seen.problem) == ("shop", None, True)
    seen = parse_model(manifest("ClusterBaseModel", {**spec, "modelParameterSize": "7B"}), Facts(format="safetensors"))
    assert (seen.namespace, seen.kind.format, seen.facts.weight_bytes) == ("", Library("safetensors"), 14 * 10**9)
    assert parse_model(manifest("BaseModel", {})).problem.startswith("spec.storage: is required")


def test_facts_in_the_status_of_a_model_fill_in_what_its_spec_leaves_empty() -> None:
    bare = manifest("BaseModel", {"storage": {"storageUri": "hf://a/b"}, "modelParameterSize": "8B"})
    found = Facts(architecture="LlamaForCausalLM", format="safetensors", format_version="1.0.0", parameters=7 * 10**9)
    for facts, architecture in (
        (json.loads(found.to_json()), "LlamaForCausalLM"),
        ({"layers": -1, "architecture": "A"}, ""),
    ):
        seen = parse_model({**bare, "status": {"state": "Ready", "detected": facts}})
        assert (seen.kind.architecture, seen.size_text) == (architecture, "8B")


def test_capabilities_under_old_and_new_names_are_known_and_others_told() -> None:
    spec = {"storage": {"storageUri": "hf://a/b"}, "modelCapabilities": ["CHAT", "TEXT_TO_TEXT", "TEXT_RERANK", "FLY"]}
    seen = parse_model(manifest("ClusterBaseModel", spec))
    assert seen.remarks == ("spec.modelCapabilities: FLY: not among the known ones",)


def test_what_a_service_asks_for_is_read_from_it() -> None:
    spec = {
        "engine": {"acceleratorOverride": {"acceleratorClass": "h100"}},
        "decoder": {"acceleratorOverride": {"acceleratorClass": "l40"}},
        "acceleratorSelector": {"acceleratorClass": "h100", "policy": "Cheapest", "constraints": {"minMemory": 40}},
    }
    annotations = {"ome.io/accelerator-class": "b200", "ome.io/deploymentMode": "MultiNode"}
    found = parse_wishes(manifest("InferenceService", spec, annotations=annotations))
    assert found.classes == ("b200", "h100", "l40")
    assert (found.policy, found.mode) == ("Cheapest", "MultiNode")
    assert found.constraints == Constraints(smallest=40 * 2**30)
    assert parse_wishes(manifest("InferenceService", {"engine": 3})) == Wishes()


def test_what_the_published_admission_refuses_is_a_warning() -> None:
    runner = {"image": "i", "env": [{"name": "DEPLOYMENT_MODE", "value": "RawDeployment"}]}
    raw = manifest("ClusterServingRuntime", {"engineConfig": {"worker": {"size": 1, "runner": runner}}})
    lonely = {"name": "DEPLOYMENT_MODE", "value": "MultiNode"}
    multi = manifest("ServingRuntime", {"engineConfig": {"runner": {"image": "i", "env": [lonely]}}})
    assert warnings([parse_runtime(raw), parse_runtime(multi)]) == [
        "clusterservingruntime x: a RawDeployment runtime has no leader and no workers",
        "servingruntime default/x: a multi-node runtime needs a leader and workers, with a size above 0",
    ]
    two = [runtime(name, entry(priority=1), sizes="115B-125B") for name in ("b", "a")]
    assert warnings(two) == [
        "same priority assigned for the model format safetensors in the clusterservingruntimes a and b;"
        " their names decide"
    ]
    assert warnings([two[0], runtime("c", entry(priority=2), sizes="115B-125B")]) == []
    assert warnings([two[0], runtime("c", entry(priority=1), sizes="115B-125B", disabled=True)]) == []
    assert warnings([dataclasses.replace(one, protocols=(p,)) for one, p in zip(two, "ab", strict=True)]) == []
    twice = runtime("r", entry(priority=1), entry(priority=2), classes=("h100", "x", "y"))
    assert warnings([twice], {"h100"}) == [
        "clusterservingruntime r: unknown accelerator classes referenced in AcceleratorRequirements: [x, y]",
        "clusterservingruntime r: different priorities assigned for the model format safetensors: 1 and 2;"
        " the higher one counts",
    ]
    # Two formats may well have two priorities; the legacy name, which is empty, says nothing of them.
    other = entry(LLAMA._replace(format=Library("onnx")), priority=2)
    assert warnings([runtime("r", entry(priority=1), other)]) == []


_words = st.sampled_from(["", "A", "B"])
_libraries = st.builds(
    Library,
    st.sampled_from(["safetensors", "onnx"]),
    st.sampled_from(["", "1.0.0", "1", "2.0.0"]),
    st.sampled_from(["Equal", "GreaterThan", "GreaterThanOrEqual"]),
    st.integers(0, 3),
)
_kinds = st.builds(ModelKind, _libraries, st.none() | _libraries, _words, _words, _words, st.none())
_entries = st.builds(
    entry, _kinds, auto=st.booleans(), priority=st.none() | st.integers(1, 3), weight=st.integers(0, 3)
)
_runtimes = st.lists(
    st.builds(
        runtime,
        st.sampled_from("abcdefgh"),
        _entries,
        _entries,
        sizes=st.sampled_from(["", "1B-2B", "1B-9B", "-5B", "3B-"]),
        namespace=st.sampled_from(["", "shop", "other"]),
        disabled=st.booleans(),
        classes=st.sampled_from([(), ("h100",), ("l40", "none")]),
        devices=st.integers(0, 8),
    ),
    max_size=12,
    unique_by=lambda one: one.key,
)
_models = st.builds(model, st.sampled_from(["", "1B", "4B"]), _kinds, disabled=st.booleans())


@settings(max_examples=200, deadline=None)
@given(
    seen=_models,
    runtimes=_runtimes,
    shuffled=st.randoms(use_true_random=False),
    named=st.sampled_from(["", "", "a", "z"]),
    current=st.none() | st.just(("", "a")),
    classes=st.none() | st.just(CLASSES),
)
def test_a_ranking_is_total_and_the_same_for_every_order_of_its_input(
    seen: ModelView, runtimes: list[Runtime], shuffled: Any, named: str, current: Any, classes: Any
) -> None:
    found = select(seen, runtimes, named=named, current=current, classes=classes)
    again = list(runtimes)
    shuffled.shuffle(again)
    assert select(seen, again, named=named, current=current, classes=classes) == found
    assert {v.runtime.key for v in found.verdicts} == {r.key for r in runtimes if r.namespace in ("", "shop")}
    for verdict in found.verdicts:
        assert verdict.accepted or all(reason.code and reason.message for reason in verdict.reasons)
    assert all(not verdict.accepted for verdict in found.verdicts[len(found.accepted) :])
    assert (found.chosen is None) is (found.problem is not None)
    if found.chosen is not None:
        assert found.chosen.accepted
        if not named and current is None:
            assert found.chosen == found.verdicts[0]
            without = [one for one in runtimes if one != found.chosen.runtime]
            assert [v for v in found.verdicts if v != found.chosen] == list(
                select(seen, without, classes=classes).verdicts
            )


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["7B", "8", "80Gi", "1e999", "x\x1b"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "modelFormat",
                    "modelFramework",
                    "name",
                    "version",
                    "supportedModelFormats",
                    "modelSizeRange",
                    "min",
                    "max",
                    "engineConfig",
                    "runner",
                    "leader",
                    "worker",
                    "size",
                    "resources",
                    "limits",
                    "requests",
                    "nvidia.com/gpu",
                    "env",
                    "diffusionPipeline",
                    "additionalComponents",
                    "vae",
                    "acceleratorRequirements",
                    "acceleratorClasses",
                    "capabilities",
                    "memoryGB",
                    "features",
                    "performance",
                    "fp16Tflops",
                    "cost",
                    "perHour",
                    "storage",
                    "storageUri",
                    "modelParameterSize",
                    "modelCapabilities",
                    "acceleratorSelector",
                    "constraints",
                    "minMemory",
                    "decoder",
                    "engine",
                    "acceleratorOverride",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
_OK: dict[str, Any] = {
    "ServingRuntime": {"supportedModelFormats": [FORMAT], "engineConfig": {}, "decoderConfig": {}},
    "BaseModel": {"storage": {"storageUri": "hf://a/b"}, "modelFormat": {"name": "safetensors"}},
    "InferenceService": {"engine": {}, "acceleratorSelector": {}},
    "AcceleratorClass": {"capabilities": {}, "cost": {}},
}


@settings(max_examples=400, deadline=None)
@given(kind=st.sampled_from(sorted(_OK)), odd=_json, runner=_json, metadata=_json)
def test_no_object_does_harm(kind: str, odd: Any, runner: Any, metadata: Any) -> None:
    spec = {**_OK[kind], **(odd if isinstance(odd, dict) else {})}
    for part in ("engineConfig", "engine"):
        if part in spec and isinstance(spec[part], dict):
            spec[part] = {**spec[part], "runner": {"resources": runner, "env": [runner]}}
    annotations = {"ome.io/accelerator-class": runner}
    for body in (
        {"kind": kind, "metadata": metadata, "spec": spec},
        {"kind": kind, "metadata": {"name": "x", "annotations": annotations}, "spec": spec},
        {"kind": kind, "spec": odd},
    ):
        read = parse_runtime(body)
        seen = parse_model(body)
        wishes = parse_wishes(body)
        classes = {one.name: one for one in [AcceleratorClass.of(body)]}
        found = select(dataclasses.replace(seen, namespace="default"), [read], wishes=wishes, classes=classes)
        assert len(found.verdicts) == 1
        assert all(len(reason.message) < 3000 for reason in found.verdicts[0].reasons)


def sized(size: str, **facts: Any) -> ModelView:
    spec = {"storage": {"storageUri": "hf://a/b"}, "modelParameterSize": size, "modelArchitecture": "LlamaForCausalLM"}
    spec |= {"modelFormat": {"name": "safetensors", "version": "1.0.0"}}
    spec |= {"modelFramework": {"name": "transformers", "version": "4.43.0"}}
    return parse_model(manifest("ClusterBaseModel", spec), Facts(**facts))


RANGED_HIGH, RANGED_LOW, RANGELESS = (
    runtime("a-big", sizes="100B-200B"),
    runtime("middle", sizes="1B-15B"),
    runtime("z-any"),
)


@pytest.mark.parametrize(
    ("size", "facts", "chosen", "code"),
    [
        ("8b", {}, "middle", "SizeOutOfRange"),
        ("8 B", {}, "middle", "SizeOutOfRange"),
        ("8 billion", {}, "middle", "SizeOutOfRange"),
        ("150b", {}, "a-big", ""),
        ("nonsense", {"parameters": 8_030_261_248}, "middle", "SizeOutOfRange"),
        ("nonsense", {}, "z-any", "ModelSizeInvalid"),
        ("8", {}, "z-any", "ModelSizeInvalid"),
        ("16GB", {}, "z-any", "ModelSizeInvalid"),
    ],
)
def test_a_mistyped_size_chooses_no_runtime_by_name(size: str, facts: dict[str, Any], chosen: str, code: str) -> None:
    ranking = select(sized(size, **facts), [RANGED_HIGH, RANGED_LOW, RANGELESS], namespace="shop")
    assert ranking.chosen is not None
    assert ranking.chosen.runtime.name == chosen
    assert codes(ranking, "a-big") == ([code] if code else [])
    assert ranking.model.remarks or ranking.model.problem
    alone = select(sized(size, **facts), [RANGED_HIGH], namespace="shop")
    assert (alone.chosen is None) == bool(code)


def test_a_range_that_is_mistyped_is_corrected_with_a_remark() -> None:
    found = parse_runtime(manifest("ClusterServingRuntime", {"modelSizeRange": {"min": "0", "max": "15b"}}))
    assert (found.largest, found.problem) == (parse_size("15B"), "")
    assert found.remarks == ("spec.modelSizeRange.max: '15b' is read as 15B; write 15B",)
