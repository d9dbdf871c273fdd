"""Models onto nodes: one of a hub, one of an S3 bucket, onto two of three nodes, by the deployed flows.

Starts a local cluster, Prefect and two small sources; asks for two models as a user would; shows their progress and
checks what it tells: on the nodes' disks, in the cluster and in Prefect. Exit code 0 only if every claim is true.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    TaskRunFilter,
    TaskRunFilterName,
)
from rich.console import Console

from deployments.demo.scenario import CONTROLLER_NAMESPACE
from deployments.demo.sources import Files, Sources, small_model
from deployments.profile import ROOT
from deployments.stack import PrefectStack, beside_a_cluster, write_prefect_file
from modelyard.cluster import CONFIG_MAPS, Cluster
from modelyard.local.binaries.obtain import ensure, locate
from modelyard.local.settings import CONTROL_PLANE, Component, NodeGroup, StackSettings
from modelyard.local.stack import LocalStack
from modelyard.models.names import CLUSTER_BASE_MODELS
from modelyard.models.settings import CONFIG_MAP, KEY

GPU_NODES, OTHER_NODES = ["l40s-0", "l40s-1"], ["cpu-0"]
SELECTOR = "nvidia.com/gpu.present=true"
PACE = 600_000
"""Bytes a second of all sources together, until somebody has seen progress."""
LOOKS = 2
"""So many different shares of each model are to be seen before it is done."""
RECORDED = 60
"""Seconds for which to wait until Prefect has recorded how a run ended."""
LONGEST = 600.0
"""Seconds until the models must be there; on an idle machine it is a minute."""


@dataclass
class Wanted:
    """A model that is asked for: where it is, what its source has, and the shares (in percent) that were seen."""

    name: str
    uri: str
    files: Files
    seen: list[int] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether every node has it."""
        told = {one["type"]: one["status"] for one in self.status.get("conditions") or ()}
        return told.get("AllNodesReady") == "True"

    def look(self, status: dict[str, Any]) -> bool:
        """Take note of its status; whether it is farther than before."""
        self.status = status
        shares = [one["percent"] for one in (status.get("delivery") or {}).get("nodes") or () if "percent" in one]
        now = min(shares, default=0)
        if 0 < now < 100 and now > max(self.seen, default=0):
            self.seen.append(now)
            return True
        return False


class CommandFailed(RuntimeError):
    """A command that was shown has failed; what it said was shown, too."""


class Show:
    """What is shown on the terminal: progress, and commands with what they print."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self.console = Console(width=None if sys.stdout.isatty() else 150, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Progress, with the seconds since the start."""
        self.console.print(f"[dim]{time.monotonic() - self._begun:6.1f} s[/]  {text}")

    async def run(self, *words: str) -> str:
        """Run a command that a user could type, and show what it prints."""
        self.console.print(f"\n[bold]$ {shlex.join(words)}[/]")
        first, *others = words
        own = [sys.executable, "-m", "deployments.command"]
        program = own if first == "modelyard" else [str(ensure([first], self.say)[first])]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "150"}
        done = await asyncio.to_thread(
            subprocess.run, [*program, *others], env=env, capture_output=True, text=True, check=False
        )
        self.console.print("\n".join(map(str.rstrip, (done.stdout + done.stderr).splitlines())), markup=False)
        if done.returncode:
            raise CommandFailed(f"`{shlex.join(words)}` has ended with {done.returncode}")
        return str(done.stdout)

    def claim(self, text: str, true: bool) -> bool:
        """Say something of which somebody has looked whether it is true."""
        self.console.print(f"[green]✓[/] {text}" if true else f"[bold red]✗ not true:[/] {text}")
        return true


def main(out: Path, *, keep: bool) -> int:
    """Run, print. 0: every claim is true; 1: one is not, or something failed."""
    try:
        return asyncio.run(demonstrate(out.resolve(), keep=keep))
    except KeyboardInterrupt:
        print("stopped")
        return 130
    except asyncio.CancelledError:  # SIGTERM
        return 143


async def demonstrate(out: Path, *, keep: bool) -> int:
    """The whole demonstration."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    show = Show()
    wanted = [
        Wanted("tiny-llama", "hf://demo/tiny-llama", small_model("llama", "LlamaForCausalLM", 1)),
        Wanted("tiny-mistral", "s3://models/tiny-mistral", small_model("mistral", "MistralForCausalLM", 2)),
    ]
    objects = {f"tiny-mistral/{name}": body for name, body in wanted[1].files.items()}
    nodes = [
        NodeGroup(name="l40s", count=2, product="NVIDIA-L40S-48GB", gpus=8, gpu_memory_mib=46068),
        NodeGroup(name="cpu", count=1, gpus=0),
    ]
    settings = StackSettings(components=[*CONTROL_PLANE, Component.AGENT], nodes=nodes)
    async with (
        Sources({"demo/tiny-llama": wanted[0].files}, {"models": objects}, PACE) as sources,
        beside_a_cluster(out, settings, [CONTROLLER_NAMESPACE], show.say) as (stack, prefect, cluster),
    ):
        show.say(f"a hub and an S3 bucket: {sources.url}, {PACE / 1e6:g} MB/s until their progress was seen")
        await cluster.create(CONFIG_MAPS, delivery_settings(sources))
        shift = {"interval_seconds": 2, "shift_seconds": 1800}
        write_prefect_file(out / "prefect.yaml", "reconcile", shift, every=900, after=15)
        await asyncio.to_thread(prefect.start)
        for one in wanted:
            await show.run(*ask(one, sources))
        await until_ready(wanted, cluster, sources, show)
        true = await check(wanted, stack, prefect, show)
        end(prefect, stack, show, keep)
        if keep:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
    return 0 if true else 1


def delivery_settings(sources: Sources) -> dict[str, Any]:
    """What an administrator allows: the hub that hf:// means, and the address that s3:// may be read at."""
    data = {"hubEndpoint": sources.url, "endpoints": [sources.url.removeprefix("http://")]}
    text = yaml.safe_dump({**data, "cpu": "100m", "memory": "256Mi"}, sort_keys=False)
    return {"metadata": {"name": CONFIG_MAP, "namespace": CONTROLLER_NAMESPACE}, "data": {KEY: text}}


def ask(one: Wanted, sources: Sources) -> list[str]:
    """The command that asks for a model."""
    more = ["--parameter", f"endpoint={sources.url}"] if one.uri.startswith("s3:") else []
    return ["modelyard", "models", "add", one.uri, "--node-selector", SELECTOR, *more]


async def until_ready(wanted: Sequence[Wanted], cluster: Cluster, sources: Sources, show: Show) -> None:
    """Wait until the models are on their nodes, or have failed; tell whenever one is farther."""
    show.say("waiting for the shift of the flow reconcile, which starts the flow deliver")
    deadline = time.monotonic() + LONGEST
    while not all(one.ready for one in wanted) and time.monotonic() < deadline:
        moved = [one.look((await cluster.get(CLUSTER_BASE_MODELS, one.name)).get("status") or {}) for one in wanted]
        if any(moved):
            await show.run("modelyard", "models")
        if all(len(one.seen) >= LOOKS for one in wanted):
            sources.pace = None
        if any(one.status.get("state") == "Failed" for one in wanted):
            break
        await asyncio.sleep(0.5)


async def check(wanted: Sequence[Wanted], stack: LocalStack, prefect: PrefectStack, show: Show) -> bool:
    """Tell how it ended, and whether each word of it is true."""
    told = await show.run("kubectl", "get", "clusterbasemodels")
    await show.run("modelyard", "models", "why", wanted[0].name)
    true = []
    for one in wanted:
        ready = one.status.get("nodesReady")
        line = next((line for line in told.splitlines() if line.startswith(f"{one.name} ")), "")
        shown = ready == GPU_NODES and " Ready " in line
        true.append(show.claim(f"{one.name} is Ready on {' and '.join(GPU_NODES)}, and kubectl says so", shown))
        size = sum(map(len, one.files.values())) / 1e6
        text = f"its {len(one.files)} files ({size:.1f} MB) are on their disks as the source has them, on no other"
        true.append(show.claim(text, only_there(stack, one)))
        text = f"its progress was seen: {', '.join(f'{share} %' for share in one.seen)}"
        true.append(show.claim(text, len(one.seen) >= LOOKS))
        true.append(show.claim(*await recorded(one, prefect)))
    return all(true)


async def recorded(one: Wanted, prefect: PrefectStack) -> tuple[str, bool]:
    """What Prefect has of a delivery: the run, a task for each node, a row for each in its table; whether it is so."""
    names = [f"fetch {one.name} on {node}" for node in GPU_NODES]
    async with PrefectClient(prefect.server.api_url) as client:
        for _ in range(RECORDED):
            named = TaskRunFilter(name=TaskRunFilterName(any_=names))
            tasks = {task.name: task for task in await client.read_task_runs(task_run_filter=named)}
            runs = {task.flow_run_id for task in tasks.values()}
            done = [task.state_name == "Completed" for task in tasks.values()]
            if len(runs) == 1 and all(done) and len(done) == len(names):
                run = await client.read_flow_run(runs.pop())  # type: ignore[arg-type]
                of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]))
                tables = [found.data for found in await client.read_artifacts(artifact_filter=of_run)]
                rows = [row for data in tables if isinstance(data, str) for row in json.loads(data)]
                if run.state_name == "Completed":
                    told = sorted(row["node"] for row in rows if row["model"] == one.name)
                    where = f"{prefect.server.ui_url}/runs/flow-run/{run.id}"
                    text = f"Prefect has the run '{run.name}', with a task and a row for each node: {where}"
                    return text, told == GPU_NODES
            await asyncio.sleep(1)
    return f"Prefect has a run with the tasks {', '.join(names)}", False


def end(prefect: PrefectStack, stack: LocalStack, show: Show, keep: bool) -> None:
    """What to do next, where all is left running."""
    print_ = show.console.print
    if not keep:
        print_("\nEverything is being stopped now; `make demo-models KEEP=1` leaves it running.")
        return
    kubectl = "kubectl" if shutil.which("kubectl") else str(locate("kubectl"))
    print_(f"\n[bold]Prefect UI[/]  {prefect.server.ui_url}   (flows deliver and reconcile)")
    print_(f"[bold]Cluster[/]     export KUBECONFIG={stack.kubeconfig}")
    print_("[bold]Next[/]")
    for line in (
        f"{kubectl} describe clusterbasemodel tiny-llama     # conditions, what was found in the files, Events",
        f"{kubectl} label node cpu-0 {SELECTOR}    # a third node: the files come there, too",
        f"{Path(sys.executable).with_name('modelyard')} models",
        f"{kubectl} delete clusterbasemodel tiny-llama       # its files go, also from the disks",
        f"ls -R {stack.paths.files / 'nodes'} | head",
    ):
        print_(f"  {line}")
    print_("Everything keeps running. Ctrl-C ends it.")


def only_there(stack: LocalStack, one: Wanted) -> bool:
    """Whether a model's files are on the disks of its nodes, byte for byte, and none is on another."""

    def found(node: str) -> dict[str, bytes]:
        folder = stack.paths.files / "nodes" / node / "mnt/models/_cluster" / one.name
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    return all(found(node) == one.files for node in GPU_NODES) and not any(map(found, OTHER_NODES))
