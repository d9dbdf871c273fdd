"""Prefect as Modelyard needs it here: server, deployments, automations, worker; for demos also a local cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.schedules import IntervalSchedule

from deployments.child import run_command
from deployments.profile import PREFECT_FILE, WORKER_PROFILE, environment
from deployments.server import PrefectServer
from deployments.worker import PrefectWorker
from modelyard.cluster import Cluster, ClusterSettings, install_crds
from modelyard.local import LocalStack, StackSettings
from modelyard.objects import NAMESPACES
from modelyard.resources import KINDS, crd

BOOTSTRAP_TIMEOUT = 400.0
PLANNED_WITHIN = 8.0
"""Seconds within which the server plans the first run of a schedule; of one that it plans later the moment is over."""


class PrefectStack:
    """A server on a free port with its data in ``home``, what ``prefect_file`` declares deployed on it, and a worker.

    ``worker_env`` has what the flow runs need: KUBECONFIG and the like. ``say`` reports progress, a line at a time.
    """

    def __init__(
        self, home: Path, *, prefect_file: Path, worker_env: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self.server = PrefectServer(home)
        self.worker = PrefectWorker(self.server.api_url, home, extra=worker_env)
        self._prefect_file = prefect_file
        self._say = say

    async def start(self) -> None:
        """Deploy once the launched server answers, and start the worker. Raises ``ChildFailed``."""
        await asyncio.to_thread(self.server.wait)
        self._say(f"Prefect server: {self.server.ui_url} (for this machine only, and everybody on it: no password)")
        # A process of its own: Prefect binds its settings to the process, and the caller may be using another server.
        known = {
            "PREFECT_HOME": str(self.server.home),
            "PREFECT_API_URL": self.server.api_url,
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            "DO_NOT_TRACK": "1",
        }
        await run_command(
            *(sys.executable, "-m", "deployments.command", "bootstrap", "--prefect-file", str(self._prefect_file)),
            env=environment(WORKER_PROFILE, known),
            say=self._say,
            timeout=BOOTSTRAP_TIMEOUT,
        )
        await asyncio.to_thread(self.worker.start)
        self._say("Prefect worker: polling")

    def stop(self) -> None:
        """Stop the worker and its runs, then the server; safe to call twice."""
        try:
            self.worker.stop()
        finally:
            self.server.stop()


@contextlib.asynccontextmanager
async def beside_a_cluster(
    out: Path, settings: StackSettings, namespaces: Iterable[str], say: Callable[[str], None]
) -> AsyncIterator[tuple[LocalStack, PrefectStack, Cluster]]:
    """A local cluster with our kinds and these namespaces, which KUBECONFIG names, and a Prefect server on its way.

    ``PrefectStack.start`` deploys ``out/prefect.yaml``. All is stopped at the end, however it comes.
    """
    stack = LocalStack(settings, name="demo", directory=out / "cluster")
    known = {"KUBECONFIG": str(stack.kubeconfig)}
    prefect = PrefectStack(out / "prefect", prefect_file=out / "prefect.yaml", worker_env=known, say=say)
    async with contextlib.AsyncExitStack() as cleanup:
        cleanup.push_async_callback(asyncio.to_thread, prefect.stop)
        await asyncio.to_thread(prefect.server.launch)  # it needs ten seconds, in which the cluster starts
        cleanup.push_async_callback(asyncio.to_thread, stack.stop)
        await asyncio.to_thread(stack.start, say)
        os.environ |= known
        cluster = await cleanup.enter_async_context(Cluster.connect(ClusterSettings(kubeconfig=stack.kubeconfig)))
        await install_crds(cluster, [crd(kind) for kind in KINDS.values()])
        say("custom resource definitions installed")
        for name in namespaces:
            await cluster.create(NAMESPACES, {"metadata": {"name": name}})
        yield stack, prefect, cluster
        say("stopping")


def write_prefect_file(
    path: Path,
    name: str,
    parameters: Mapping[str, Any],
    every: float,
    after: float,
    others: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """The project's prefect.yaml, in which one deployment alone has an active schedule, and runs with ``parameters``.

    ``every`` so many seconds, first ``after`` so many. Every other deployment is there for its button, or until it is
    scheduled; ``others`` has parameters of some.
    """
    declared = yaml.safe_load(PREFECT_FILE.read_text(encoding="utf-8"))
    first = datetime.now(UTC) + timedelta(seconds=after)
    for item in declared["deployments"]:
        schedules = item.get("schedules", [])
        if item["name"] == name:
            interval = {"interval": every, "anchor_date": first.isoformat(timespec="seconds")}
            item["parameters"], item["schedules"] = dict(parameters), [{**schedules[0], **interval}]
            continue
        item["schedules"] = [{**schedule, "active": False} for schedule in schedules]
        if item["entrypoint"] == f"flows.{name}.{name}":
            item["parameters"] = {**parameters, **item["parameters"]}
        item["parameters"] = {**item["parameters"], **(others or {}).get(item["name"], {})}
    path.write_text(yaml.safe_dump(declared, sort_keys=False), encoding="utf-8")


async def schedule(api_url: str, deployment: str, every: float) -> None:
    """Have a deployment (``FLOW/NAME``) whose schedule is not active run every so many seconds, as soon as can be."""
    async with PrefectClient(api_url) as client:
        found = await client.read_deployment_by_name(deployment)
        soon = datetime.now(UTC) + timedelta(seconds=PLANNED_WITHIN)
        interval = IntervalSchedule(interval=timedelta(seconds=every), anchor_date=soon, timezone="UTC")
        await client.update_deployment_schedule(found.id, found.schedules[0].id, active=True, schedule=interval)
