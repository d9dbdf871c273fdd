"""Fields of a Model's backends that have no effect because of others."""

from __future__ import annotations

from typing import Any

import pytest
from kthena_models import a_backend, a_model, a_worker

from modelyard.resources import Model
from modelyard.resources.field_effects import ineffective, warning

ELSEWHERE = {"valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
ON_NODES = {"cacheURI": "hostpath:///mnt/models/shop"}
READ = ("RUNTIME_PORT", "RUNTIME_URL", "RUNTIME_METRICS_PATH", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")


def paths(*backends: Any) -> list[str]:
    return [field.path for field in ineffective(Model, a_model(*backends))]


def with_variable(name: Any, source: dict[str, Any], **more: Any) -> dict[str, Any]:
    return a_backend(env=[{"name": "OTHER", **source}, {"name": name, **source}], **more)


@pytest.mark.parametrize("name", READ)
def test_a_variable_that_is_read_needs_a_value_that_is_written_out(name: str) -> None:
    assert paths(with_variable(name, ELSEWHERE)) == ["spec.backends[0].env[1].valueFrom"]
    assert name in warning(Model, a_model(with_variable(name, ELSEWHERE)))
    assert paths(with_variable(name, {"value": "9100"})) == []


@pytest.mark.parametrize(
    ("uri", "name"), [("hf://a/b", "HF_ENDPOINT"), ("s3://bucket/b", "ENDPOINT"), ("s3://bucket/b", "AWS_ENDPOINT_URL")]
)
def test_an_endpoint_is_read_for_a_delivery_to_nodes_only(uri: str, name: str) -> None:
    assert paths(with_variable(name, ELSEWHERE, modelURI=uri, **ON_NODES)) == ["spec.backends[0].env[1].valueFrom"]
    assert paths(with_variable(name, ELSEWHERE, modelURI=uri)) == []
    other = "hf://a/b" if uri.startswith("s3") else "s3://bucket/b"
    assert paths(with_variable(name, ELSEWHERE, modelURI=other, **ON_NODES)) == []


def test_roles_of_a_disaggregated_backend_are_single_pods() -> None:
    workers = [a_worker("prefill", pods=1), a_worker("decode", pods=2)]
    apart = a_backend("vLLMDisaggregated", "split", workers)
    assert paths(a_backend(workers=[a_worker(pods=4)]), apart) == ["spec.backends[1].workers[1].pods"]


@pytest.mark.parametrize("backends", [None, 7, [None], [{"env": 3, "workers": {}}], [{"env": [{"name": []}, 1]}]])
def test_odd_backends_have_an_answer(backends: Any) -> None:
    obj = {"kind": "Model", "spec": {"backends": backends}}
    assert all(field.reason for field in ineffective(Model, obj))
