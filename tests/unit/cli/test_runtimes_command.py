"""``modelyard runtimes explain`` from files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Done, modelyard

FORMAT = {"modelFormat": {"name": "safetensors", "version": "1.0.0"}, "modelFramework": {"name": "transformers"}}
LLAMA = {**FORMAT, "modelArchitecture": "LlamaForCausalLM"}


def manifest(kind: str, name: str, spec: Any, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "ome.io/v1beta1", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def model(kind: str = "ClusterBaseModel", size: str = "8B", **metadata: Any) -> dict[str, Any]:
    spec = {**LLAMA, "modelParameterSize": size, "storage": {"storageUri": "hf://a/b"}}
    return manifest(kind, "llama", spec, **metadata)


def runtime(name: str, kind: str = "ClusterServingRuntime", **spec: Any) -> dict[str, Any]:
    namespace = {"namespace": "shop"} if kind == "ServingRuntime" else {}
    return manifest(kind, name, {"supportedModelFormats": [{**LLAMA, "autoSelect": True}], **spec}, **namespace)


def explain(folder: Path, objects: list[dict[str, Any]], *arguments: object) -> Done:
    path = folder / "all.yaml"
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    return modelyard("runtimes", "explain", "llama", "-f", path, *arguments)


def test_the_table_has_a_line_with_every_reason_for_every_runtime(tmp_path: Path) -> None:
    done = explain(
        tmp_path,
        [
            model(),
            runtime("large", modelSizeRange={"min": "10B", "max": "20B"}, disabled=True),
            runtime("small", modelSizeRange={"max": "10B"}),
            runtime("any"),
        ],
    )
    assert done.code == 0, done.err
    assert [" ".join(line.split()) for line in done.out.splitlines()] == [
        "Model llama: safetensors:1.0.0:LlamaForCausalLM:transformers, 8B",
        "RANK RUNTIME VERDICT PRIORITY WHY",
        "1 small chosen 1",
        "2 any fits 1",
        "- large rejected - runtime is disabled; model size 8B is outside supported range [10B, 20B]",
    ]


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_get_the_same(tmp_path: Path, form: str, read: Any) -> None:
    objects = [model(), runtime("good"), runtime("own", "ServingRuntime"), runtime("off", disabled=True)]
    done = explain(tmp_path, objects, "-n", "shop", "-o", form)
    found = read(done.out)
    assert found["chosen"] == {"name": "own", "namespace": "shop"}
    assert [(one["rank"], one["name"], one["verdict"]) for one in found["runtimes"]] == [
        (1, "own", "chosen"),
        (2, "good", "fits"),
        (None, "off", "rejected"),
    ]
    assert found["runtimes"][2]["reasons"] == [{"code": "RuntimeDisabled", "message": "runtime is disabled"}]
    # Those of a namespace are nobody else's.
    assert read(explain(tmp_path, objects, "-o", form).out)["chosen"] == {"name": "good", "namespace": None}


def test_no_runtime_is_a_reason_and_an_exit_code(tmp_path: Path) -> None:
    done = explain(tmp_path, [model(), runtime("off", disabled=True)])
    assert done.code == 1
    assert "NoSupportingRuntime: no runtime found to support model llama with format safetensors" in done.out
    assert explain(tmp_path, [model()]).code == 1


def test_a_model_of_the_namespace_comes_before_one_of_the_cluster(tmp_path: Path) -> None:
    objects = [model(size="70B"), model("BaseModel", "8B", namespace="shop"), runtime("any")]
    assert "Model shop/llama: " in explain(tmp_path, objects, "-n", "shop").out
    assert "Model llama: " in explain(tmp_path, objects).out


def test_what_a_service_asks_for_can_be_tried(tmp_path: Path) -> None:
    shy = runtime("shy", supportedModelFormats=[LLAMA])
    objects = [model(), runtime("good"), shy]
    done = explain(tmp_path, objects, "--runtime", "shy")
    assert ["2", "shy", "chosen", "1"] in [line.split() for line in done.out.splitlines()]
    done = explain(tmp_path, objects, "--runtime", "none")
    assert (done.code, "RuntimeNotFound: runtime none not found" in done.out) == (1, True)
    done = explain(tmp_path, [model(), runtime("off", modelSizeRange={"min": "9B"})], "--runtime", "off")
    assert done.out.count("outside supported range") == 1, "the table has it already"
    assert "RuntimeNotSupported: runtime off does not support model llama" in done.out
    done = explain(tmp_path, objects, "--mode", "MultiNode")
    assert "deployment mode RawDeployment is not the requested MultiNode" in done.out
    done = explain(tmp_path, objects, "--mode", "Fast")
    assert done.code == 2
    assert "write one of RawDeployment, MultiNode, PDDisaggregated" in done.err


def test_a_folder_of_files_fills_in_what_the_spec_leaves_empty(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "num_hidden_layers": 32,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    bare = manifest("ClusterBaseModel", "llama", {"storage": {"storageUri": "hf://a/b"}})
    assert "MetadataPending" in explain(tmp_path, [bare, runtime("any")]).out
    done = explain(tmp_path, [bare, runtime("any")], "--model-files", tmp_path)
    assert done.code == 0, done.out
    assert "warning: the configuration says too little" in done.out
    assert "is no folder" in explain(tmp_path, [bare], "--model-files", tmp_path / "none").err


def test_accelerator_classes_in_the_files_are_looked_at(tmp_path: Path) -> None:
    gpus = {"runner": {"name": "e", "image": "e", "resources": {"limits": {"nvidia.com/gpu": 1}}}}
    one = runtime("one", acceleratorRequirements={"acceleratorClasses": ["small", "gone"]}, engineConfig=gpus)
    small = manifest("AcceleratorClass", "small", {"capabilities": {"memoryGB": "16"}})
    done = explain(tmp_path, [model(), one, small])
    assert "accelerator class small weights take 17.9 GiB of 16.0 GiB on 1 device: 1.9 GiB too much" in done.out
    assert "warning: clusterservingruntime one: unknown accelerator classes" in done.out
    assert explain(tmp_path, [model(), one]).code == 0


def test_what_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    done = explain(tmp_path, [runtime("any"), manifest("ClusterBaseModel", "qwen", {})])
    assert (done.code, done.out) == (1, "")
    assert "model llama is not in these files" in done.err
    assert "(there: qwen)" in done.err


def test_what_tenants_write_moves_no_cursor(tmp_path: Path) -> None:
    odd = runtime("odd", supportedModelFormats=[{**LLAMA, "modelArchitecture": "\x1b[2J\u202e[red]A"}])
    done = explain(tmp_path, [model(), odd, manifest("ClusterServingRuntime", "broken", {"x\x1b": 1})])
    assert "\x1b" not in done.out + done.err
    assert "[red]A" in done.out
    assert "ClusterServingRuntime broken: spec.x\\x1b: unknown field" in done.out


def test_what_is_mistyped_in_the_spec_is_corrected_or_refused_and_told(tmp_path: Path) -> None:
    ranges = [
        runtime("a-large", modelSizeRange={"min": "100B", "max": "200B"}),
        runtime("small", modelSizeRange={"min": "1B", "max": "15b"}),
    ]
    mistyped = model(size="8b")
    mistyped["spec"]["storage"]["parameters"] = {"revison": "v1"}
    done = explain(tmp_path, [mistyped, *ranges])
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0].endswith(", 8B")
    assert lines[2].startswith("1 small chosen")
    assert "warning: spec.modelParameterSize: '8b' is read as 8B; write 8B" in lines
    assert "warning: spec.storage.parameters: unknown key 'revison' has no effect; did you mean 'revision'?" in lines
    assert "warning: clusterservingruntime small: spec.modelSizeRange.max: '15b' is read as 15B; write 15B" in lines
    refused = explain(tmp_path, [model(size="8x7B"), *ranges])
    assert refused.code == 1
    assert "write all parameters of the experts together, such as 46.7B" in refused.out
    assert "chosen" not in refused.out
