"""What the engines of a large fleet say: their series for Prometheus, and their own pages for policy bindings.

Used by ``tick.py``. One metric source stands for all pods, with counters that grow; the pages come from a process of
its own that answers on every loopback address, each pod having one.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from fleet_fixture import MetricSource

PROMPT, OUTPUT = 512, 256
BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
)  # fmt: skip
HISTOGRAMS = (
    "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds",
    "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens",
    "request_generation_tokens", "iteration_tokens_total",
)  # fmt: skip
KEEP_ALIVE = 5.0
"""Seconds a served connection stays open, as uvicorn's do: every tick has to connect anew."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The state of every engine of an object; ``per_second`` are requests finished, ``ttft`` and ``itl`` seconds."""

    kv: float = 0.5
    waiting: float = 0.0
    per_second: float = 1.0
    ttft: float = 0.12
    itl: float = 0.012


def pod_address(number: int) -> str:
    """A loopback address for each pod."""
    number += 1
    return f"127.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


class FleetSource(MetricSource):
    """Fifteen series for each pod, those that a tick asks Prometheus for, with counters that grow steadily."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = time.time()
        self._parts: list[tuple[Engine, str]] = []

    def add(self, namespace: str, pods: Iterable[tuple[str, str, Engine]]) -> None:
        """Pods as (name, model, state)."""
        texts: dict[Engine, list[str]] = {}
        for pod, model, engine in pods:
            labels = f'{{namespace="{namespace}",pod="{pod}",model_name="{model}",engine="0"}}'
            texts.setdefault(engine, []).append(
                f"vllm:kv_cache_usage_perc{labels} {engine.kv}\n"
                f"vllm:num_requests_waiting{labels} {engine.waiting}\n"
                f"vllm:num_requests_running{labels} 20\n"
                f'vllm:cache_config_info{{namespace="{namespace}",pod="{pod}",engine="0",block_size="16",'
                f'num_gpu_blocks="25000"}} 1\n'
                f"vllm:request_success_total{labels} $DONE\n"
                f"vllm:request_prompt_tokens_sum{labels} $PROMPT\nvllm:request_prompt_tokens_count{labels} $DONE\n"
                f"vllm:request_generation_tokens_sum{labels} $OUTPUT\n"
                f"vllm:request_generation_tokens_count{labels} $DONE\n"
                f"vllm:time_to_first_token_seconds_sum{labels} $TTFT\n"
                f"vllm:time_to_first_token_seconds_count{labels} $DONE\n"
                f"vllm:inter_token_latency_seconds_sum{labels} $ITL\n"
                f"vllm:inter_token_latency_seconds_count{labels} $OUTPUT\n"
                f"vllm:prefix_cache_queries_total{labels} $PROMPT\nvllm:prefix_cache_hits_total{labels} 0\n"
            )
        self._parts = [*self._parts, *((engine, "".join(lines)) for engine, lines in texts.items())]

    def render(self) -> str:
        return "".join(self._filled(engine, text) for engine, text in self._parts)

    def _filled(self, engine: Engine, text: str) -> str:
        done = engine.per_second * (time.time() - self._begun)
        values = {
            "$DONE": done,
            "$PROMPT": done * PROMPT,
            "$OUTPUT": done * OUTPUT,
            "$TTFT": done * engine.ttft,
            "$ITL": done * OUTPUT * engine.itl,
        }
        for name, value in values.items():
            text = text.replace(name, f"{value:.3f}")
        return text


def page(engine: Engine, series_labels: str = 'engine="0",model_name="meta/llama-3.1-8b-instruct"') -> str:
    """A page of an engine as a policy binding reads it, of the size and make of vLLM's."""
    lines = []
    for name, value in (
        ("num_requests_running", 20.0),
        ("num_requests_waiting", engine.waiting),
        ("kv_cache_usage_perc", engine.kv),
    ):
        lines += [f"# HELP vllm:{name} {name}.", f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{series_labels}}} {value}"]
    for name in HISTOGRAMS:
        lines += [f"# HELP vllm:{name} Histogram of {name}.", f"# TYPE vllm:{name} histogram"]
        lines += [f'vllm:{name}_bucket{{{series_labels},le="{bound}"}} 1000.0' for bound in (*BUCKETS, "+Inf")]
        lines += [f"vllm:{name}_count{{{series_labels}}} 1000.0", f"vllm:{name}_sum{{{series_labels}}} 12345.6"]
    return "\n".join(lines) + "\n"


class PageServer:
    """The pages of all pods, from a process of its own. ``with PageServer(port, folder): ...``

    ``folder`` is only there to know the process by: see ``cpu``.
    """

    def __init__(self, port: int, folder: str) -> None:
        self.port, self.folder = port, folder

    def __enter__(self) -> PageServer:
        folder = Path(__file__).resolve().parents[1]
        support = folder.parent / "tests" / "support"
        code = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(support)!r}]; "
        code += f"from tick_fleet.engines import serve; serve({self.port})"
        self._process = subprocess.Popen([sys.executable, "-c", code, self.folder])
        for _ in range(200):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=1):
                    return self
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("the server of the engines' pages did not start")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def serve(port: int, waiting: float = 10.0) -> None:
    """Answer on every address until terminated."""
    body = page(Engine(waiting=waiting)).encode()

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    web.run_app(
        application, host="0.0.0.0", port=port, access_log=None, print=None, keepalive_timeout=KEEP_ALIVE, backlog=4096
    )
