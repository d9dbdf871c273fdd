"""What the engines of a large fleet say: their series for Prometheus, and their own pages for policy bindings.

Used by ``tick.py``. One metric source stands for all pods, with counters that grow; the pages come from a process of
its own that answers on every loopback address, each pod having one.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import urllib3
from aiohttp import web
from fleet_fixture import MetricSource

from modelyard.metrics.vocabulary.vocabulary import VLLM, Kind, Signal

PROMPT, OUTPUT = 512, 256
HISTOGRAMS = tuple(family.name for family in VLLM.families if family.kind is Kind.HISTOGRAM)[:11]
BUCKETS = VLLM.of[Signal.TTFT].buckets[:20]
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


def name(signal: Signal) -> str:
    return VLLM.of[signal].name


def histogram(signal: Signal, total: str, count: str) -> dict[str, object]:
    return {f"{name(signal)}_sum": total, f"{name(signal)}_count": count}


def pod_address(number: int) -> str:
    """A loopback address for each pod."""
    number += 1
    return f"127.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


class FleetSource(MetricSource):
    """The series for each pod, those that a tick asks Prometheus for, with counters that grow steadily."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = time.time()
        self._parts: list[tuple[Engine, str]] = []

    def add(self, namespace: str, pods: Iterable[tuple[str, str, Engine]]) -> None:
        """Pods as (name, model, state)."""
        texts: dict[Engine, list[str]] = {}
        for pod, model, engine in pods:
            labels = f'{{namespace="{namespace}",pod="{pod}",model_name="{model}",engine="0"}}'
            info = VLLM.of[Signal.KV_CONFIG]
            sizes = ",".join(f'{label}="{size}"' for label, size in zip(info.factors, ("25000", "16"), strict=True))
            values: dict[str, object] = {
                name(Signal.KV_USE): engine.kv,
                name(Signal.WAITING): engine.waiting,
                name(Signal.RUNNING): 20,
                name(Signal.FINISHED): "$DONE",
                **histogram(Signal.REQUEST_PROMPT_TOKENS, "$PROMPT", "$DONE"),
                **histogram(Signal.REQUEST_OUTPUT_TOKENS, "$OUTPUT", "$DONE"),
                **histogram(Signal.TTFT, "$TTFT", "$DONE"),
                **histogram(Signal.ITL, "$ITL", "$OUTPUT"),
                name(Signal.PREFIX_LOOKUPS): "$PROMPT",
                name(Signal.PREFIX_HITS): 0,
            }
            texts.setdefault(engine, []).append(
                "".join(f"{metric}{labels} {value}\n" for metric, value in values.items())
                + f'{info.name}{{namespace="{namespace}",pod="{pod}",engine="0",{sizes}}} 1\n'
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
    gauges = {Signal.RUNNING: 20.0, Signal.WAITING: engine.waiting, Signal.KV_USE: engine.kv}
    for metric, value in ((name(signal), value) for signal, value in gauges.items()):
        lines += [f"# HELP {metric} {metric}.", f"# TYPE {metric} gauge", f"{metric}{{{series_labels}}} {value}"]
    for metric in HISTOGRAMS:
        lines += [f"# HELP {metric} Histogram of {metric}.", f"# TYPE {metric} histogram"]
        lines += [f'{metric}_bucket{{{series_labels},le="{bound}"}} 1000.0' for bound in (*BUCKETS, "+Inf")]
        lines += [f"{metric}_count{{{series_labels}}} 1000.0", f"{metric}_sum{{{series_labels}}} 12345.6"]
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
                urllib3.request("GET", f"http://127.0.0.1:{self.port}/metrics", timeout=1, retries=False)
                return self
            except urllib3.exceptions.HTTPError:
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
