"""What the demonstrations of models and services share: where they play, how they show what they do, how they end.

A local cluster of two nodes with GPUs and one without, Prefect with everything deployed, two small sources of models.
An ``Act`` does there what a user would, and checks what it is told. Exit code 0 only if every claim is true.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.markup import escape

from deployments.demo.scenario import CONTROLLER_NAMESPACE
from deployments.demo.sources import Sources, small_model
from deployments.profile import ROOT
from deployments.stack import PrefectStack, beside_a_cluster, write_prefect_file
from modelyard.cluster import CONFIG_MAPS, Cluster
from modelyard.local.binaries.obtain import ensure, locate
from modelyard.local.settings import CONTROL_PLANE, Component, NodeGroup, StackSettings
from modelyard.local.stack import LocalStack
from modelyard.models.settings import CONFIG_MAP, KEY

GPU_NODES, OTHER_NODES = ["l40s-0", "l40s-1"], ["cpu-0"]
LLAMA, MISTRAL = "tiny-llama", "tiny-mistral"
MOST_COLUMNS = 100
RECORDED = 60
"""Seconds for which to wait until Prefect has recorded how a run ended."""


class DemonstrationFailed(RuntimeError):
    """A command has failed, or what was waited for has not come; the message says which, and what there was instead."""


class Show:
    """What is shown on the terminal: progress, commands with what they print, claims. ``true``: all claims so far."""

    def __init__(self) -> None:
        self.true = True
        self._begun = time.monotonic()
        self.console = Console(width=None if sys.stdout.isatty() else MOST_COLUMNS, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Progress, with the seconds since the start."""
        self.console.print(f"[dim]{time.monotonic() - self._begun:6.1f} s[/]  {text}")

    async def run(self, *words: str) -> str:
        """Run a command that a user could type, and show what it prints."""
        printed = ""
        try:
            return (printed := await self.call(*words))
        except DemonstrationFailed as error:
            printed = str(error)
            raise
        finally:
            self.console.print(f"\n$ {shlex.join(words)}", style="bold", markup=False)
            self.console.print("\n".join(map(str.rstrip, printed.splitlines())), markup=False)

    async def live(self, *words: str) -> str:
        """The same for one that takes its time: each line as it comes, with what it tells beside its output."""
        lines = [f"\n$ {shlex.join(words[:3])}"]
        for word in words[3:]:
            starts = word.startswith("-") and len(lines[-1]) > MOST_COLUMNS - 50
            lines[-1] += " \\" if starts else f" {shlex.quote(word)}"
            lines += [f"    {word}"] if starts else []
        self.console.print("\n".join(lines), style="bold", markup=False)
        program, env = self._program(words)
        process = await asyncio.create_subprocess_exec(
            *program, env=env, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        printed = []
        try:
            assert process.stdout is not None
            async for raw in process.stdout:
                printed.append(raw.decode(errors="replace").rstrip())
                self.console.print(printed[-1], markup=False)
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code:
            raise DemonstrationFailed(f"`{shlex.join(words[:3])} ...` has ended with {code}")
        return "\n".join(printed)

    def _program(self, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        first, *others = words
        own = [sys.executable, "-m", "deployments.command"]
        program = own if first == "modelyard" else [str(ensure([first], self.say)[first])]
        return [*program, *others], {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "150"}

    async def call(self, *words: str) -> str:
        """Run a command; what it prints. Raises ``DemonstrationFailed``."""
        program, env = self._program(words)
        done = await asyncio.to_thread(
            subprocess.run, program, env=env, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise DemonstrationFailed(
                f"`{shlex.join(words)}` has ended with {done.returncode}: {done.stdout}{done.stderr}"
            )
        return str(done.stdout)

    def claim(self, text: str, true: bool) -> None:
        """Say something of which somebody has looked whether it is true."""
        self.console.print(f"{'[green]✓[/]' if true else '[bold red]✗ not true:[/]'} {escape(text)}")
        self.true = self.true and true


@dataclass(frozen=True)
class Stage:
    """Where an act plays. ``flows``: wait for it before anything that needs a flow."""

    stack: LocalStack
    prefect: PrefectStack
    cluster: Cluster
    sources: Sources
    show: Show
    flows: Awaitable[None]


class Act(NamedTuple):
    """``play`` does and checks it; ``after`` is what one could type then, where all is left running."""

    target: str
    play: Callable[[Stage], Awaitable[None]]
    after: Callable[[Stage], Sequence[str]]


def main(acts: Sequence[Act], out: Path, *, keep: bool) -> int:
    """Play, print. 0: every claim is true; 1: one is not, or something failed."""
    try:
        return asyncio.run(_demonstrate(acts, out.resolve(), keep=keep))
    except KeyboardInterrupt:
        print("stopped")
        return 130
    except asyncio.CancelledError:  # SIGTERM
        return 143


async def _demonstrate(acts: Sequence[Act], out: Path, *, keep: bool) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    show = Show()
    async with _stage(out, show) as stage:
        try:
            for act in acts:
                await act.play(stage)
        except DemonstrationFailed as error:
            show.claim(str(error), False)
        _end(stage, acts[-1], keep)
        if keep:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
    return 0 if show.true else 1


@contextlib.asynccontextmanager
async def _stage(out: Path, show: Show) -> AsyncIterator[Stage]:
    """All of it, from nothing; stopped at the end, however it comes."""
    nodes = [
        # Room for one pod of eight accelerators each, wherever the smaller pods are: two such pods are on two nodes.
        NodeGroup(name="l40s", count=len(GPU_NODES), product="NVIDIA-L40S-48GB", gpus=12, gpu_memory_mib=46068),
        NodeGroup(name="cpu", count=len(OTHER_NODES), gpus=0),
    ]
    settings = StackSettings(components=[*CONTROL_PLANE, Component.AGENT], nodes=nodes)
    repositories = {f"demo/{LLAMA}": small_model("llama", "LlamaForCausalLM", 1)}
    buckets = {"models": {f"{MISTRAL}/{k}": v for k, v in small_model("mistral", "MistralForCausalLM", 2).items()}}
    async with (
        Sources(repositories, buckets) as sources,
        beside_a_cluster(out, settings, [CONTROLLER_NAMESPACE], show.say) as (stack, prefect, cluster),
    ):
        show.say(f"a hub and an S3 bucket, each with a model of 20 MB: {sources.url}")
        await cluster.create(CONFIG_MAPS, allowed(sources))
        shift = {"interval_seconds": 2, "shift_seconds": 1800}
        write_prefect_file(out / "prefect.yaml", "reconcile", shift, every=900, after=15)
        flows = asyncio.create_task(asyncio.to_thread(prefect.start))
        try:
            yield Stage(stack, prefect, cluster, sources, show, flows)
        finally:
            flows.cancel()


def allowed(sources: Sources) -> dict[str, Any]:
    """What an administrator allows: the hub that hf:// means, and the address that s3:// may be read at."""
    data = {"hubEndpoint": sources.url, "endpoints": [sources.url.removeprefix("http://")]}
    text = yaml.safe_dump({**data, "cpu": "100m", "memory": "256Mi"}, sort_keys=False)
    return {"metadata": {"name": CONFIG_MAP, "namespace": CONTROLLER_NAMESPACE}, "data": {KEY: text}}


def kubectl() -> str:
    """As one would type it."""
    return "kubectl" if shutil.which("kubectl") else str(locate("kubectl"))


def _end(stage: Stage, act: Act, keep: bool) -> None:
    """What to do next, where all is left running."""
    print_ = stage.show.console.print
    if not keep:
        print_(f"\nEverything is being stopped now; `make {act.target} KEEP=1` leaves it running.")
        return
    print_(f"\n[bold]Prefect UI[/]  {stage.prefect.server.ui_url}   (flows deliver, reconcile, roll-out)")
    print_(f"[bold]Cluster[/]     export KUBECONFIG={stage.stack.kubeconfig} CURL_HOME={stage.stack.paths.root}")
    print_("[bold]Next[/]")
    for line in act.after(stage):
        print_(f"  {line}", markup=False)
    print_("Everything keeps running. Ctrl-C ends it.")
