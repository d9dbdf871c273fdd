"""Models onto nodes: one of a hub, one of an S3 bucket, onto two of three nodes, by the deployed flows.

Asks for two models as a user would; shows their progress and checks what it tells: on the nodes' disks, in the cluster
and in Prefect.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    TaskRunFilter,
    TaskRunFilterName,
)

from deployments.demo.sources import Files
from deployments.demo.stage import GPU_NODES, LLAMA, MISTRAL, OTHER_NODES, RECORDED, Act, Stage, kubectl
from modelyard.cluster import Object
from modelyard.models.names import CLUSTER_BASE_MODELS

SELECTOR = "nvidia.com/gpu.present=true"
SHARES = (0.3, 0.7, 1.0)
"""So much of each file is served until somebody has seen that progress, then the next."""
LONGEST = 600.0
"""Seconds until the models must be there; on an idle machine it is half a minute."""


@dataclass
class Wanted:
    """A model that is asked for: where it is, what its source has, and the shares (in percent) that were seen."""

    name: str
    uri: str
    files: Files
    seen: list[int] = field(default_factory=list)
    spec: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether every node has it, and its spec says what it is."""
        told = {one["type"]: one["status"] for one in self.status.get("conditions") or ()}
        return told.get("AllNodesReady") == "True" and "modelArchitecture" in self.spec

    def look(self, obj: Object) -> bool:
        """Take note of how it is; whether it is farther than before."""
        self.spec, self.status = obj["spec"], obj.get("status") or {}
        shares = [one["percent"] for one in (self.status.get("delivery") or {}).get("nodes") or () if "percent" in one]
        now = min(shares, default=0)
        if 0 < now < 100 and now > max(self.seen, default=0):
            self.seen.append(now)
            return True
        return False


async def play(stage: Stage) -> None:
    """Ask for two models, wait until they are there, and check it."""
    sources = stage.sources
    wanted = [
        Wanted(LLAMA, f"hf://demo/{LLAMA}", sources.repositories[f"demo/{LLAMA}"]),
        Wanted(MISTRAL, f"s3://models/{MISTRAL}", sources.in_bucket("models", MISTRAL)),
    ]
    sources.allow(SHARES[0])
    for one in wanted:
        more = ["--parameter", f"endpoint={sources.url}"] if one.uri.startswith("s3:") else []
        await stage.show.run("modelyard", "models", "add", one.uri, "--node-selector", SELECTOR, *more)
    await stage.flows
    await until_ready(wanted, stage)
    await check(wanted, stage)


async def until_ready(wanted: Sequence[Wanted], stage: Stage) -> None:
    """Wait until the models are on their nodes, or have failed; tell whenever both are farther."""
    stage.show.say("waiting for the shift of the flow reconcile, which starts the flow deliver")
    deadline, looks = time.monotonic() + LONGEST, 0
    while not all(one.ready for one in wanted) and time.monotonic() < deadline:
        for one in wanted:
            one.look(await stage.cluster.get(CLUSTER_BASE_MODELS, one.name))
        if min(len(one.seen) for one in wanted) > looks:
            looks += 1
            await stage.show.run("modelyard", "models")
            stage.sources.allow(SHARES[min(looks, len(SHARES) - 1)])
        if any(one.status.get("state") == "Failed" for one in wanted):
            break
        await asyncio.sleep(0.5)


async def check(wanted: Sequence[Wanted], stage: Stage) -> None:
    """Tell how it ended, and whether each word of it is true."""
    show = stage.show
    told = await show.run("kubectl", "get", "clusterbasemodels")
    await show.run("modelyard", "models", "why", wanted[0].name)
    for one in wanted:
        ready = one.status.get("nodesReady")
        line = next((line for line in told.splitlines() if line.startswith(f"{one.name} ")), "")
        shown = ready == GPU_NODES and " Ready " in line
        show.claim(f"{one.name} is Ready on {' and '.join(GPU_NODES)}, and kubectl says so", shown)
        size = sum(map(len, one.files.values())) / 1e6
        text = f"its {len(one.files)} files ({size:.1f} MB) are on their disks as the source has them, on no other"
        show.claim(text, only_there(stage, one))
        text = f"its progress was seen: {', '.join(f'{share} %' for share in one.seen)}"
        show.claim(text, len(one.seen) >= len(SHARES) - 1)
        show.claim(*await recorded(one, stage))


async def recorded(one: Wanted, stage: Stage) -> tuple[str, bool]:
    """What Prefect has of a delivery: the run, a task for each node, a row for each in its table; whether it is so."""
    names, server = [f"fetch {one.name} on {node}" for node in GPU_NODES], stage.prefect.server
    async with PrefectClient(server.api_url) as client:
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
                    where = f"{server.ui_url}/runs/flow-run/{run.id}"
                    text = f"Prefect has the run '{run.name}', with a task and a row for each node: {where}"
                    return text, told == GPU_NODES
            await asyncio.sleep(1)
    return f"Prefect has a run with the tasks {', '.join(names)}", False


def after(stage: Stage) -> list[str]:
    """What to try, where all is left running."""
    return [
        f"{kubectl()} describe clusterbasemodel {LLAMA}     # conditions, what was found in the files, Events",
        f"{kubectl()} label node {OTHER_NODES[0]} {SELECTOR}    # a third node: the files come there, too",
        f"{Path(sys.executable).with_name('modelyard')} models",
        f"{kubectl()} delete clusterbasemodel {LLAMA}       # its files go, also from the disks",
        f"ls -R {stage.stack.paths.files / 'nodes'} | head",
    ]


def only_there(stage: Stage, one: Wanted) -> bool:
    """Whether a model's files are on the disks of its nodes, byte for byte, and none is on another."""

    def found(node: str) -> dict[str, bytes]:
        folder = stage.stack.paths.files / "nodes" / node / "mnt/models/_cluster" / one.name
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    return all(found(node) == one.files for node in GPU_NODES) and not any(map(found, OTHER_NODES))


ACT = Act("demo-models", play, after)
