"""Adapters on command lines of vLLM and SGLang: which engine a container starts, and where options must be added."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from modelyard.engine.__main__ import build_parser, server_settings
from modelyard.workloads.rendering.command_line import commands
from modelyard.workloads.rendering.engines import SGLANG, VLLM
from modelyard.workloads.rendering.lora import (
    Adapter,
    adapter_problem,
    loaded,
    loads_itself,
    options,
    served_names,
    started_engine,
    with_adapters,
)
from modelyard.workloads.rendering.request_limits import with_concurrency
from modelyard.workloads.rendering.values import Refusal

FIELD = "spec.model.fineTunedWeights"
TONE, LEGAL = Adapter("tone", "/opt/ml/model"), Adapter("legal", "/opt/ml/adapters/legal", 64)
VLLM_IMAGE, SGLANG_IMAGE = "vllm/vllm-openai:v0.11.0", "lmsysorg/sglang:v0.5.9"


def container(*args: str, image: str = VLLM_IMAGE, command: tuple[str, ...] = (), **env: str) -> dict[str, Any]:
    line: dict[str, Any] = {"name": "engine", "image": image, "args": list(args)}
    if command:
        line["command"] = list(command)
    if env:
        line["env"] = [{"name": name, "value": value} for name, value in env.items()]
    return line


PYTHON = ("python3", "-m", "vllm.entrypoints.openai.api_server")


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        (VLLM, container("--model=/m")),
        (VLLM, container()),
        (VLLM, container("Qwen/Qwen3-8B", "--port=8000")),
        (VLLM, container("$(MODEL_PATH)")),
        (VLLM, container("--model=/m", image="registry.example.com:5000/mirror/vllm-openai@sha256:0123")),
        (VLLM, container(image="a", command=("vllm", "serve", "/m"))),
        (VLLM, container("serve", "/m", image="a", command=("/opt/venv/bin/vllm",))),
        (VLLM, container("--model=/m", image="a", command=PYTHON)),
        (VLLM, container(image="a", command=("tini", "--", *PYTHON))),
        (VLLM, container(image="a", command=("python3", "/app/vllm/entrypoints/openai/api_server.py"))),
        (VLLM, container("ray start && vllm serve /m", image="a", command=("bash", "-c"))),
        (VLLM, container(image="a", command=("/bin/bash", "-e", "-lc", "exec vllm serve /m"))),
        (VLLM, container("--model=/m", image="modelyard.dev/simulated-engine:latest")),
        (SGLANG, container("--model-path=/m", image="modelyard.dev/simulated-engine:latest")),
        (SGLANG, container("python3", "-m", "sglang.launch_server", "--port=1", image=SGLANG_IMAGE)),
        (SGLANG, container("--model-path=/m", image=SGLANG_IMAGE, command=("python3", "-m", "sglang.launch_server"))),
        (SGLANG, container(image="a", command=("sglang", "serve", "--model-path", "/m"))),
        (None, container("--model=/m", image="engine:1")),
        (None, container("--model=/m", command=("/entrypoint.sh",))),
        (None, container("bash", "run.sh")),
        (None, container("/bin/bash", "run.sh")),
        (None, container("--prefill=x", image="modelyard.dev/simulated-router:latest")),
        (None, container(image="a", command=("python3", "-m", "vllm.entrypoints.api_server"))),
        (None, container("echo 'vllm serve /m'", image="a", command=("sh", "-c"))),
        (None, container('vllm serve "/m', image="a", command=("sh", "-c"))),
        (None, container("text-generation-launcher", image="ghcr.io/huggingface/text-generation-inference:3")),
    ],
)
def test_the_engine_that_a_command_line_starts(engine: Any, line: dict[str, Any]) -> None:
    assert started_engine(line) is engine
    if engine is None:
        assert with_adapters(line, [TONE], FIELD) is line


def test_vllm_is_given_what_it_needs_for_several_adapters() -> None:
    line = with_adapters(container("--model=/m", "--port=8080"), [TONE, LEGAL], FIELD)
    added = ["--enable-lora", "--max-loras=2", "--max-lora-rank=64", "--lora-modules"]
    assert line["args"][2:] == [*added, "tone=/opt/ml/model", "legal=/opt/ml/adapters/legal"]


def test_sglang_takes_ranks_and_batches_from_the_adapters() -> None:
    line = with_adapters(container("--model-path=/m", image="modelyard.dev/simulated-engine"), [TONE, LEGAL], FIELD)
    added = ["--enable-lora", "--lora-paths", "tone=/opt/ml/model", "legal=/opt/ml/adapters/legal"]
    assert line["args"][1:] == added


@pytest.mark.parametrize(("rank", "limit"), [(0, ""), (8, ""), (16, ""), (17, "32"), (33, "64"), (300, "320")])
def test_the_largest_rank_is_one_that_vllm_has(rank: int, limit: str) -> None:
    line = with_adapters(container(), [TONE, Adapter("b", "/b", rank)], FIELD)
    assert [word for word in line["args"] if "rank" in word] == ([f"--max-lora-rank={limit}"] if limit else [])


@pytest.mark.parametrize(
    "args",
    [
        ("--enable-lora", "--max-loras=4", "--max-lora-rank", "128"),
        ("--enable_lora", "--max_loras", "4", "--max_lora_rank=128"),
    ],
)
def test_limits_that_the_runtime_sets_stay(args: tuple[str, ...]) -> None:
    line = with_adapters(container(*args), [TONE, LEGAL], FIELD)
    assert line["args"] == [*args, "--lora-modules", "tone=/opt/ml/model", "legal=/opt/ml/adapters/legal"]


@pytest.mark.parametrize(
    ("args", "then"),
    [
        (("--lora-modules", "own=/own", "--port=1"), ("--lora-modules", "tone=/opt/ml/model", "own=/own", "--port=1")),
        (("--lora-modules=own=/own",), ("--lora-modules", "tone=/opt/ml/model", "own=/own")),
        (("--lora_modules", "own=/own"), ("--lora_modules", "tone=/opt/ml/model", "own=/own")),
    ],
)
def test_adapters_of_the_runtime_are_kept(args: tuple[str, ...], then: tuple[str, ...]) -> None:
    """A second flag would replace the first."""
    line = with_adapters(container("--enable-lora", *args), [TONE], FIELD)
    assert line["args"] == ["--enable-lora", *then, "--max-loras=2"]
    assert loaded(line) == {"tone": "/opt/ml/model", "own": "/own"}


def test_an_adapter_that_the_runtime_loads_already_is_not_loaded_twice() -> None:
    line = container("--enable-lora", "--lora-modules", "tone=/opt/ml/model")
    assert with_adapters(line, [TONE], FIELD) == line


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--served-model-name=tone",), "tone is the name by which the engine serves its model"),
        (("--served-model-name", "chat", "tone", "--port=1"), "tone is the name by which the engine serves its model"),
        (("--lora-modules", "tone=/other"), "another adapter by the name tone, from /other"),
        (("--lora-modules", '{"name":"tone","path":"/other"}'), "another adapter by the name tone, from /other"),
    ],
)
def test_a_name_that_means_something_else_is_refused(args: tuple[str, ...], problem: str) -> None:
    with pytest.raises(Refusal) as refusal:
        with_adapters(container(*args), [TONE], FIELD)
    assert refusal.value.refused.reason == "AdapterNameInUse"
    assert problem in refusal.value.refused.problem


STUB = '#!/bin/sh\nprintf "%s\\n" "$0" "$@" >> "$SEEN"; printf "end\\n" >> "$SEEN"\n'


@pytest.mark.parametrize(
    "script",
    [
        "vllm serve /m --port 1",
        "exec vllm serve /m --port 1 2>&1 | cat",
        "vllm serve /m --port 1 > log.txt 2>&1",
        "vllm serve /m \\\n  --port 1 \\\n",
        "true && vllm serve /m --port 1; true # vllm serve /other",
        "echo 'vllm serve'; (vllm serve /m --port 1)",
        "# the engine\nexport A=$(echo 'a b')\nvllm serve \"$M\" --port ${P} # here\n",
        'if [ "$INDEX" = 0 ]; then vllm serve /m --port 1; else vllm serve /m --headless; fi',
        "{ vllm serve /m --port=`echo 1`; } &\nwait",
        "python3 -m vllm.entrypoints.openai.api_server --model=/m --port 1",
        "vllm serve /m --port 1 --lora-modules own=/own --enable-lora",
        "vllm serve /m --enable-lora --lora-modules=own=/own --port 1",
    ],
)
def test_in_a_script_the_engine_gets_the_options_from_a_real_shell(script: str, tmp_path: Path) -> None:
    odd = Adapter("legal", "/with blank/r=64;x")
    line = with_adapters(container(script, image="a", command=("sh", "-c")), [TONE, odd], FIELD)
    for name in ("vllm", "python3"):
        (tmp_path / name).write_text(STUB)
        (tmp_path / name).chmod(0o755)
    seen = tmp_path / "seen"
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SEEN": str(seen), "M": "/m", "P": "1", "INDEX": "0"}
    subprocess.run(["sh", "-c", *line["args"]], env=variables, cwd=tmp_path, check=True, capture_output=True)
    words = [word for word in seen.read_text().split("\n") if word not in ("", "end")]
    assert seen.read_text().count("end") == 1
    expected = {"tone": TONE.path, "legal": odd.path, **({"own": "/own"} if "own" in script else {})}
    assert loaded({"args": words}) == expected
    assert words.count("--enable-lora") == 1
    assert "/m" in "".join(words), "its own options stay"


def test_every_engine_of_a_script_gets_them() -> None:
    script = "if leads; then vllm serve /m; else vllm serve /m --headless; fi"
    line = with_adapters(container(script, image="a", command=("sh", "-c")), [TONE], FIELD)
    added = "--enable-lora --lora-modules tone=/opt/ml/model"
    expected = f"if leads; then vllm serve /m {added}; else vllm serve /m --headless {added}; fi"
    assert line["args"] == [expected]


@pytest.mark.parametrize("engine", [VLLM, SGLANG])
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("tone", "/m"),
        ("a=b", "/m"),
        ("a,b", "/m"),
        ("a b", "/m"),
        ("-a", "/m"),
        ("ä", "/m"),
        ("a", "/r=16/m"),
        ("a", "/m, n"),
        ('"', "/{}"),
    ],
)
def test_any_name_and_path_reaches_the_engine(engine: Any, name: str, path: str) -> None:
    model = f"--{engine.model_flag}=/m"
    words = [model, *with_adapters(container(model), [Adapter(name, path)], FIELD)["args"][1:]]
    modules = options(engine, [Adapter(name, path)])[engine.lora_flag]
    parsed = build_parser().parse_args([model, "--enable-lora", f"--{engine.lora_flag}", *modules])
    assert server_settings(parsed).adapters == {name: path}
    assert loaded({"args": [f"--{engine.lora_flag}", *modules]}) == {name: path}
    assert loaded({"args": words}) == {name: path}
    (module,) = modules
    if not module.startswith("{"):  # By the rule of vLLM's own parser.
        assert module.count("=") == 1
        assert "," not in module
    elif engine is VLLM:
        assert json.loads(module) == {"name": name, "path": path}
    else:
        assert json.loads(module) == {"lora_name": name, "lora_path": path}


@given(st.text(alphabet="ab \n;&|<>()#\"'`$\\{}=-", max_size=40))
def test_scripts_of_any_text_are_read_or_refused(text: str) -> None:
    try:
        line = list(commands(text))
    except ValueError:
        return
    assert all(text[command.start : command.end].strip() for command in line)
    assert [command.end for command in line] == sorted(command.end for command in line)


@given(st.lists(st.text(alphabet='ab=,-{}" ', max_size=8), max_size=6))
def test_command_lines_of_any_words_are_read(words: list[str]) -> None:
    line = {"args": ["--lora-modules", *words]}
    assert all(name for name in loaded(line))
    assert "" not in served_names(line)


@pytest.mark.parametrize(
    ("line", "itself"),
    [
        (container("--lora-modules", "x=$(FINE_TUNED_WEIGHT_PATH)"), True),
        (container("run $FINE_TUNED_WEIGHT_PATH", command=("sh", "-c")), True),
        (container("--model=/m", MODULE="x=$(FINE_TUNED_WEIGHT_PATH)"), True),
        (container("--model=/m", FINE_TUNED_WEIGHT_PATH="/mine"), True),
        (container("--checkpoint=$(TFEW_PATH)"), True),
        (container("--model=/m", OTHER="1"), False),
    ],
)
def test_which_runtimes_load_weights_themselves(line: dict[str, Any], itself: bool) -> None:
    assert loads_itself(line) is itself


@pytest.mark.parametrize(
    ("kind", "rank", "reason"),
    [
        ("lora", 16, ""),
        ("LoRA", 0, ""),
        ("qlora", 512, ""),
        ("adapter", 8, ""),
        ("tfew", 0, "NotAnAdapter"),
        ("distillation", 0, "NotAnAdapter"),
        ("lora", 513, "RankTooLarge"),
    ],
)
def test_which_weights_an_engine_loads_as_adapters(kind: str, rank: int, reason: str) -> None:
    assert adapter_problem(kind, rank)[0] == reason


@pytest.mark.parametrize("part", ["vllm serve;", "\\\n", "1<", "a "])
def test_a_script_as_long_as_an_object_is_not_read(part: str) -> None:
    short, long = (part * (size // len(part)) + ";vllm serve m" for size in (1000, 2**20))
    assert started_engine(container(short, command=("sh", "-c"))) is VLLM
    given = container(long, command=("sh", "-c"))
    assert started_engine(given) is None
    assert with_adapters(given, [TONE], FIELD) is given
    assert with_concurrency(given, 4)[0] is given
