"""How each engine is run: its command, flags, port, what tells that it is well and idle. Pure.

Source: Kthena Model controller reference, "From a backend to pods".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from modelyard.metrics.vocabulary import ENGINES, HEALTH_PATH, Signal

SIMULATED: Final = "modelyard.dev/"
"""Images whose own entrypoint is an engine that takes vLLM's or SGLang's options."""


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """One engine. ``health`` is a path (``None``: only its port is known); ``busy`` are gauges of work in progress.

    ``server`` is what a ModelServer calls it, ``negatable`` are switches that can be on by default.
    """

    name: str
    server: str
    port: int
    command: tuple[str, ...] = ()
    model_flag: str = "model"
    always: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    health: str | None = HEALTH_PATH
    busy: tuple[str, ...] = ()
    negatable: frozenset[str] = frozenset()
    lora_flag: str = ""
    tensor_parallel: tuple[str, ...] = ()
    """The flag for tensor-parallel ranks, and its other spellings."""
    multiplying: tuple[tuple[str, ...], ...] = ()
    """Flags (each with its spellings) whose values multiply the accelerators per tensor-parallel rank."""
    shared_by: Mapping[str, str] = field(default_factory=dict)
    """The switch, by flag, under which its ranks share the tensor-parallel ones instead."""
    environment: Mapping[str, str] = field(default_factory=dict)
    image: str = ""


def _busy(engine: str) -> tuple[str, ...]:
    return tuple(ENGINES[engine].of[signal].names[0] for signal in (Signal.RUNNING, Signal.WAITING))


VLLM: Final = ServingEngine(
    "vllm",
    "vLLM",
    8000,
    ("python3", "-m", "vllm.entrypoints.openai.api_server"),
    busy=_busy("vllm"),
    negatable=frozenset(("async-scheduling", "enable-chunked-prefill", "enable-prefix-caching")),
    lora_flag="lora-modules",
    tensor_parallel=("tensor-parallel-size", "tp"),
    multiplying=(
        ("pipeline-parallel-size", "pp"),
        ("data-parallel-size", "dp"),
        ("prefill-context-parallel-size", "pcp"),
    ),
    environment={"VLLM_USE_V1": "1"},
    image="vllm/vllm-openai:v0.11.0",
)
SGLANG: Final = ServingEngine(
    "sglang",
    "SGLang",
    30000,
    ("python3", "-m", "sglang.launch_server"),
    model_flag="model-path",
    always={"host": ("0.0.0.0",), "enable-metrics": ()},
    busy=_busy("sglang"),
    lora_flag="lora-paths",
    tensor_parallel=("tp-size", "tensor-parallel-size", "tp"),
    multiplying=(("pp-size", "pipeline-parallel-size", "pp"), ("dp-size", "data-parallel-size", "dp")),
    shared_by={"dp-size": "enable-dp-attention"},
    image="lmsysorg/sglang:v0.5.9",
)
MINDIE: Final = ServingEngine("mindie", "vLLM", 1025, health=None)
"""Run by its image's own entrypoint. A ModelServer can name vLLM or SGLang only; an annotation names MindIE."""

OF: Final[Mapping[str, ServingEngine]] = {
    "vLLM": VLLM,
    "vLLMDisaggregated": VLLM,
    "SGLang": SGLANG,
    "MindIE": MINDIE,
    "MindIEDisaggregated": MINDIE,
}

RAY_SCRIPT: Final = "/vllm-workspace/examples/online_serving/multi-node-serving.sh"
"""In vLLM's images: makes a Ray cluster of the pods of a group."""
RENDEZVOUS: Final = 20000
"""Port on which the pods of an SGLang group find each other."""

DRAIN_SECONDS: Final = 240
GRACE_SECONDS: Final = 300
_DRAIN: Final = """\
import time, urllib.request
end = time.time() + {seconds}
time.sleep(5)
while time.time() < end:
    try:
        page = urllib.request.urlopen("http://127.0.0.1:{port}{path}", timeout=2).read().decode()
        busy = sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith({gauges}))
    except Exception:
        break
    if not busy:
        break
    time.sleep(1)
"""


def drain(engine: ServingEngine, port: int, path: str) -> str:
    """A program that lets routers notice, then ends when no request is left, the engine is gone or time is up."""
    return _DRAIN.format(seconds=DRAIN_SECONDS, port=port, path=path, gauges=engine.busy)
