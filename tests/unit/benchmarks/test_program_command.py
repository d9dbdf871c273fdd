"""The command line and the variables of genai-bench, by version: what is in them, in which order, and what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modelyard.benchmarks.records.program import (
    WORDS,
    MeasureError,
    command,
    environment,
    request_parameters,
    secrets,
    without,
    words,
)
from modelyard.benchmarks.records.values import MeasuredServer, Measurement, Output

HOME = Path("/scratch")


def asked(**changes: Any) -> Measurement:
    given: dict[str, Any] = {
        "reference": "chat/nightly",
        "service": "chat/llama",
        "backend": "openai",
        "url": "http://llama.chat.svc:8080",
        "model": "llama",
        "tokenizer": "/models/llama",
        "task": "text-to-text",
        "scenario": "D(100,100)",
        "concurrency": 4,
        "minutes": 30,
        "requests": 300,
        "output": Output(uri="s3://bench", folder="nightly"),
    }
    return Measurement(**{**given, **changes})


def options(version: str = "0.0.5", **changes: Any) -> dict[str, str]:
    """The options with their values; every one has one."""
    first, *rest = command(asked(**changes), version, HOME)
    assert first == "benchmark"
    assert all(name.startswith("--") for name in rest[::2])
    assert len(set(rest[::2])) == len(rest) // 2
    return dict(zip(rest[::2], rest[1::2], strict=True))


def test_the_program_is_told_all_that_it_would_ask_for_in_its_order() -> None:
    assert list(options().items())[:11] == [
        ("--api-backend", "openai"),
        ("--api-base", "http://llama.chat.svc:8080"),
        ("--api-key", "modelyard"),
        ("--api-model-name", "llama"),
        ("--task", "text-to-text"),
        ("--iteration-type", "num_concurrency"),
        ("--max-time-per-run", "30"),
        ("--max-requests-per-run", "300"),
        ("--model-tokenizer", "/models/llama"),
        ("--traffic-scenario", "D(100,100)"),
        ("--num-concurrency", "4"),
    ]
    assert not {"--upload-results", "--storage-bucket", "--additional-request-params"} & options().keys()


@pytest.mark.parametrize(
    ("version", "task", "meant"),
    [
        ("0.0.1", "image-to-text", "image-to-text"),
        ("0.0.2", "image-to-text", "image-text-to-text"),
        ("0.0.5", "image-to-text", "image-text-to-text"),
        ("0.1", "image-to-embeddings", "image-to-embeddings"),
        ("0.0.5.post1", "text-to-text", "text-to-text"),
    ],
)
def test_tasks_are_called_as_the_version_calls_them(version: str, task: str, meant: str) -> None:
    assert options(version, task=task)["--task"] == meant


def test_embeddings_are_measured_by_batch_size() -> None:
    given = options(task="text-to-embeddings", scenario="E(64)", concurrency=8)
    assert (given["--iteration-type"], given["--batch-size"]) == ("batch_size", "8")
    assert "--num-concurrency" not in given


@pytest.mark.parametrize(
    ("version", "backend", "meant"),
    [
        ("0.0.5", "openAI", "openai"),
        ("0.0.5", "vLLM", "vllm"),
        ("0.0.5", "SGLang", "sglang"),
        ("0.0.1", "vllm", "openai"),
        ("0.0.1", "cohere", "cohere"),
        ("0.0.5", "oci-cohere", "oci-cohere"),
    ],
)
def test_back_ends_are_those_of_the_version(version: str, backend: str, meant: str) -> None:
    given = options(version, backend=backend)
    assert given["--api-backend"] == meant
    assert ("--api-key" in given) == (meant in ("openai", "vllm", "sglang")), "the others warn about one"


@pytest.mark.parametrize(
    ("backend", "ignore", "meant"),
    [
        ("vllm", "false", "openai"),
        ("sglang", "false", "openai"),
        ("openai", "false", "openai"),
        ("openai", "true", "vllm"),
        ("sglang", "true", "sglang"),
    ],
)
def test_nobody_is_asked_whether_the_end_of_a_text_is_ignored(backend: str, ignore: str, meant: str) -> None:
    given = options(backend=backend, request_parameters={"ignore_eos": ignore, "top_p": "0.9"})
    assert given["--api-backend"] == meant
    assert given["--additional-request-params"] == '{"top_p": 0.9}'


@pytest.mark.parametrize(("ours", "its"), [("A100", "A100-80G"), ("H100", "H100"), ("L40S", None), (None, None)])
def test_a_gpu_that_the_program_does_not_know_is_left_out(ours: str | None, its: str | None) -> None:
    given = options(server=MeasuredServer(engine="vLLM", version="0.9", gpu_type=ours, gpu_count=8))
    assert given.get("--server-gpu-type") == its
    assert (given["--server-engine"], given["--server-version"], given["--server-gpu-count"]) == ("vLLM", "0.9", "8")
    assert "--server-engine" not in options(server=MeasuredServer(engine="TensorRT"))


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_program_appends_the_version_of_the_api_itself(url: str) -> None:
    assert options(url=url)["--api-base"] == "http://h:1"


def test_request_parameters_have_types() -> None:
    given = {"temperature": "0.7", "top_k": "5", "echo": "true", "stop": "END", "seed": '"7"', "x": "NaN"}
    assert request_parameters(given) == {
        "temperature": 0.7,
        "top_k": 5,
        "echo": True,
        "stop": "END",
        "seed": "7",
        "x": "NaN",
    }


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"request_parameters": {"stream": "false"}}, "additionalRequestParams.stream"),
        ({"request_parameters": {"messages": "[]"}}, "additionalRequestParams.messages"),
        ({"request_parameters": {"temperature": "hot"}}, "additionalRequestParams.temperature"),
        ({"request_parameters": {"temperature": "1e999"}}, "additionalRequestParams.temperature"),
        ({"request_parameters": {"ignore_eos": "maybe"}}, "write true or false"),
        ({"task": "text-to-speech"}, "text-to-embeddings"),
        ({"backend": "openInference-v2"}, "gcp-vertex"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_can(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(MeasureError, match=says) as refused:
        command(asked(**changes), "0.0.5", HOME)
    assert (refused.value.reason, refused.value.retryable) == ("MeasurementInvalid", False)


@pytest.mark.parametrize("version", ["", "next", "0.0.0"])
def test_a_version_that_nobody_knows_is_refused(version: str) -> None:
    with pytest.raises(MeasureError, match="no version that is known"):
        words(version)
    assert words("9.9") is WORDS[max(WORDS)]


SECRETS = {
    "MODEL_API_KEY": "model-secret",
    "HF_TOKEN": "hub-secret",
    "AWS_SECRET_ACCESS_KEY": "store-secret",
    "AZURE_STORAGE_ACCOUNT_KEY": "blob-secret",
}


def test_the_program_has_the_endpoint_s_key_and_no_other_secret_and_none_is_an_argument() -> None:
    environ = {**SECRETS, "PATH": "/bin", "HOME": "/root", "SSL_CERT_FILE": "/ca", "PREFECT_API_URL": "http://p"}
    found = environment(environ, asked(), HOME)
    assert {name for name in found if found[name] in SECRETS.values()} == {"MODEL_API_KEY"}
    assert (found["HF_HUB_OFFLINE"], found["ENABLE_UI"], found["HOME"]) == ("1", "false", "/scratch")
    assert found["REQUESTS_CA_BUNDLE"] == "/ca", "which is what the program's client reads"
    assert "PREFECT_API_URL" not in found
    assert not set(command(asked(), "0.0.5", HOME)) & set(SECRETS.values())


def test_a_hub_is_asked_only_for_what_is_there() -> None:
    found = environment(SECRETS, asked(tokenizer="meta-llama/Llama-3.1-8B"), HOME)
    assert found["HF_TOKEN"] == "hub-secret"
    assert "HF_HUB_OFFLINE" not in found
    assert environment({"HUGGINGFACE_API_KEY": "other"}, asked(dataset="a/b"), HOME)["HF_TOKEN"] == "other"
    for name in ("../models", "a/b/c", "-x", "a b"):
        with pytest.raises(MeasureError, match="neither an absolute path nor a hub's id"):
            environment({}, asked(tokenizer=name), HOME)


def test_secrets_are_struck_out_whole() -> None:
    hidden = secrets({"A_KEY": "secret", "B_TOKEN": "secret-longer", "C_KEY": "short", "PATH": "/usr/bin"})
    assert hidden == ("secret-longer", "secret")
    assert without("secret-longer, secret and short", hidden) == "***, *** and short"
