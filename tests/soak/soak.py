"""Soak test: ``make soak MINUTES=15 SEED=7``.

A fleet serves the demonstration's traffic while parts of everything are killed, stopped and restarted, one after the
other in an order that the seed gives. Throughout, the API server's audit log is checked for a single writer and for
replicas within their bounds; at the end, that every request is accounted for, no status is lost and no process is left.
The recovery time is that from the fault to the next tick that sees an edit. Exit code 0: no violation.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
import yaml
from rich.console import Console
from rich.table import Table

from deployments.demo.run import TRACE
from deployments.demo.scenario import CONTROLLER_NAMESPACE, VARIANTS, Scenario
from deployments.stack import PrefectStack
from modelyard.autoscaling.fleet.kinds import BINDINGS, VARIANTS as VARIANT_AUTOSCALINGS
from modelyard.cluster import Cluster, ClusterError, Holder, NotFound
from modelyard.local.load import ReadyPods
from modelyard.local.settings import Component
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import CONFIG_MAPS, DEPLOYMENTS, LEASES, PODS
from modelyard.traffic.clients.replay import Replay, ReplaySettings, RequestResult
from modelyard.traffic.traces.latency import Ending
from modelyard.traffic.traces.trace import read_trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from scaled_fleet import MODEL, NAMESPACE, NAMESPACES, running

LEASE = "modelyard-autoscale"
OURS = {"deployments", "variantautoscalings", "autoscalingpolicybindings", "autoscalingpolicies"}
HEAL_LIMIT = 180.0
"""Seconds after which a fault counts as not healed."""
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Request",
            "verbs": ["create", "update", "patch", "delete"],
            "resources": [{"group": group} for group in ("apps", "llmd.ai", "registry.volcano.sh", LEASES.group)],
        },
        {"level": "None"},
    ],
}

console = Console(width=None if sys.stdout.isatty() else 130)


class Audit:
    """Checks of the API server's audit log as it grows: writes, and violations.

    ``bounds``: (least, most) replicas by (namespace, name) of the Deployment.
    """

    def __init__(self, path: Path, bounds: Mapping[tuple[str, str], tuple[int, int]]) -> None:
        self.writes = self.scalings = self.writers = 0
        self.violations: list[str] = []
        self._path = path
        self._bounds = bounds
        self._place = 0
        self._holder = ""

    def read(self) -> None:
        """Check what has been logged since the last time."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as log:
            log.seek(self._place)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._place += len(line)
                self._check(json.loads(line))

    def _check(self, event: Mapping[str, Any]) -> None:
        agent = re.fullmatch(r"modelyard \((.+)\)", event.get("userAgent", ""))
        done = (event.get("responseStatus") or {}).get("code", 500) < 300
        if agent is None or not done or agent[1] == str(Holder.here()):
            return
        target, spec = event["objectRef"], (event.get("requestObject") or {}).get("spec") or {}
        if target["resource"] == "leases":
            if target.get("name", LEASE) == LEASE and "holderIdentity" in spec:
                self.writers += spec["holderIdentity"] not in (self._holder, "", None)
                self._holder = spec["holderIdentity"] or ""
            return
        if target["resource"] not in OURS:
            return
        self.writes += 1
        name = f"{target['namespace']}/{target['name']}"
        write = f"{event['verb']} of {target['resource']} {name} at {event['stageTimestamp']}"
        if not self._holder.startswith(f"{agent[1]}_"):
            self.violations.append(f"{write} by {agent[1]}, but the Lease is with {self._holder or 'nobody'}")
        if target["resource"] == "deployments" and "replicas" in spec:
            self.scalings += 1
            least, most = self._bounds.get((target["namespace"], target["name"]), (0, 0))
            if not least <= spec["replicas"] <= most:
                self.violations.append(f"{write}: {spec['replicas']} replicas, the bounds are {least} to {most}")


class Soak:
    """The system under test and its recoveries so far, in seconds by fault."""

    def __init__(
        self, stack: LocalStack, prefect: PrefectStack, cluster: Cluster, audit: Audit, chance: random.Random
    ) -> None:
        self.stack, self.prefect, self.cluster, self.audit, self.chance = stack, prefect, cluster, audit, chance
        self.healed: defaultdict[str, list[float]] = defaultdict(list)
        self.killed: set[str] = set()
        """Pods whose engine was killed: the requests in flight are lost."""
        self.results: list[RequestResult] = []
        self.sent = 0
        self.begun = 0.0
        """Start of the fault in progress."""
        self.endpoints = [ReadyPods(namespace) for namespace in NAMESPACES]
        self._price = 100

    async def traffic(self, endpoints: ReadyPods, scenario: Scenario, over: asyncio.Event) -> None:
        """Serve the trace again and again."""
        trace = read_trace(TRACE).stretch(scenario.start_minute, scenario.minutes).scaled(rate=scenario.rate)
        while not over.is_set():
            replay = Replay(trace, endpoints.current, ReplaySettings(MODEL, scenario.compression))
            tasks = asyncio.create_task(replay.run()), asyncio.create_task(over.wait())
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await cancelled(tasks)
            self.sent += replay.sent
            self.results += replay.results

    async def suffer(self, name: str) -> None:
        """Cause one fault, and measure the time until a tick sees an edit made after it."""
        self.begun = time.monotonic()
        console.print(f"[dim]{time.strftime('%H:%M:%S')}[/]  {name}", highlight=False)
        await FAULTS[name](self)
        try:
            async with asyncio.timeout(HEAL_LIMIT):
                await self._edit_seen()
        except TimeoutError:
            self.audit.violations.append(f"{name}: not healed within {HEAL_LIMIT:.0f} s")
        else:
            self.healed[name].append(time.monotonic() - self.begun)

    async def _edit_seen(self) -> None:
        """Edit a variant, and wait until a tick has published a condition of that generation."""
        self._price += 1
        body: dict[str, Any] = {"spec": {"variantCost": f"{self._price / 10:g}"}}
        generation = 0
        while True:
            with contextlib.suppress(ClusterError):
                if not generation:
                    edited = await self.cluster.merge_patch(VARIANT_AUTOSCALINGS, "llama-h100", body, NAMESPACE)
                    generation = edited["metadata"]["generation"]
                if observed(await self.cluster.get(VARIANT_AUTOSCALINGS, "llama-h100", NAMESPACE)) >= generation:
                    return
            self.audit.read()
            await asyncio.sleep(0.2)

    async def writer(self) -> psutil.Process | None:
        """Return the process that holds the Lease."""
        with contextlib.suppress(ClusterError, psutil.NoSuchProcess):
            lease = await self.cluster.get(LEASES, LEASE, CONTROLLER_NAMESPACE)
            holder = Holder.read(lease["spec"].get("holderIdentity") or "")
            return psutil.Process(holder.pid) if holder is not None else None
        return None

    def signal_component(self, component: Component, number: signal.Signals) -> None:
        """Send a signal to a part of the local cluster, unless it is being restarted."""
        process = self.stack.state.components[component].process if self.stack.state is not None else None
        if process is not None and process.alive():
            os.kill(process.pid, number)

    async def conclude(self) -> None:
        """Check that nothing is lost, and that statuses and replicas are as they should be."""
        violations = self.audit.violations
        for kind in (VARIANT_AUTOSCALINGS, BINDINGS):
            for obj in (await self.cluster.list(kind)).items:
                name = f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
                if observed(obj) != obj["metadata"]["generation"]:
                    violations.append(f"{kind.kind} {name}: its status is not that of its generation")
        for namespace in NAMESPACES:
            for variant in VARIANTS:
                spec = (await self.cluster.get(DEPLOYMENTS, variant.name, namespace))["spec"]
                if not 1 <= spec["replicas"] <= variant.max_replicas:
                    violations.append(f"{namespace}/{variant.name} ended at {spec['replicas']} replicas")
        if self.sent != len(self.results):
            violations.append(f"{self.sent} requests were sent, {len(self.results)} are accounted for")
        violations += [
            f"request {result.index} to {result.pod}: {result.ending.name}, {result.error}"
            for result in self.results
            if result.ending not in (Ending.OK, Ending.UNFINISHED) and result.pod not in self.killed
        ]

    def report(self, seed: int) -> None:
        """Print the recovery time by fault, the totals and the violations."""
        table = Table("fault", "times", "healed after: median", "longest", title="Seconds to the next tick")
        for name, seconds in sorted(self.healed.items()):
            table.add_row(name, str(len(seconds)), f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}")
        endings = Counter(result.ending.name for result in self.results)
        requests = ", ".join(f"{count} {name}" for name, count in endings.most_common())
        audit, faults = self.audit, sum(map(len, self.healed.values()))
        console.print(table)
        console.print(
            f"seed {seed}: {faults} faults, {audit.writes} writes by {audit.writers} writers one after another,"
        )
        console.print(f"{audit.scalings} scalings; {self.sent} requests: {requests}")
        console.print("\n".join([f"{len(audit.violations)} violations", *audit.violations[:50]]), highlight=False)


def observed(obj: Mapping[str, Any]) -> int:
    """Return the latest generation that the conditions of an object are about."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return max((condition.get("observedGeneration", 0) for condition in conditions), default=0)


async def cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


Fault = Callable[[Soak], Awaitable[None]]
FAULTS: dict[str, Fault] = {}


def fault(name: str) -> Callable[[Fault], Fault]:
    """Register a fault under its name."""
    return lambda function: FAULTS.setdefault(name, function)


@fault("the writer is killed")
async def kill_writer(soak: Soak) -> None:
    """As when its host dies."""
    if (process := await soak.writer()) is not None:
        process.kill()


@fault("Prefect's server is killed")
async def restart_server(soak: Soak) -> None:
    """It is started again within five seconds."""
    soak.prefect.server.kill()
    await asyncio.sleep(soak.chance.uniform(0, 5))
    await asyncio.to_thread(soak.prefect.server.start)


@fault("the writer is killed after Prefect's server came back")
async def kill_writer_after_server(soak: Soak) -> None:
    """The writer's events from before the restart are lost."""
    await restart_server(soak)
    soak.begun = time.monotonic()
    await kill_writer(soak)


@fault("the writer stands still for 20 s")
async def stop_writer(soak: Soak) -> None:
    """As when a host hangs and comes back, long after its Lease has expired."""
    if (process := await soak.writer()) is not None:
        process.suspend()
        await asyncio.sleep(20)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


@fault("the worker is killed with its runs")
async def restart_worker(soak: Soak) -> None:
    """It is started again within five seconds."""
    soak.prefect.worker.kill()
    await asyncio.sleep(soak.chance.uniform(0, 5))
    await asyncio.to_thread(soak.prefect.worker.start)


@fault("Prometheus hangs for 12 s")
async def hang_prometheus(soak: Soak) -> None:
    """It accepts connections and does not answer."""
    soak.signal_component(Component.PROMETHEUS, signal.SIGSTOP)
    await asyncio.sleep(12)
    soak.signal_component(Component.PROMETHEUS, signal.SIGCONT)


@fault("an engine is killed")
async def kill_engine(soak: Soak) -> None:
    """Its requests in flight are lost."""
    ready = [endpoint for endpoints in soak.endpoints for endpoint in await endpoints.current()]
    if not ready:
        return
    chosen = soak.chance.choice(ready)
    soak.killed.add(chosen.pod)
    address = chosen.url.removeprefix("http://").split(":")[0]
    for connection in psutil.net_connections("tcp4"):
        listens = connection.status == psutil.CONN_LISTEN and connection.laddr[:1] == (address,)
        if listens and connection.pid:
            os.kill(connection.pid, signal.SIGKILL)


@fault("two pods are deleted")
async def delete_pods(soak: Soak) -> None:
    """Each has its grace period: no request may be lost."""
    pods = (await soak.cluster.list(PODS, NAMESPACE)).items
    for pod in soak.chance.sample(pods, min(2, len(pods))):
        with contextlib.suppress(NotFound):
            await soak.cluster.delete(PODS, pod["metadata"]["name"], NAMESPACE)


@fault("the Lease is deleted")
async def delete_lease(soak: Soak) -> None:
    """By an administrator who tidies up."""
    with contextlib.suppress(NotFound):
        await soak.cluster.delete(LEASES, LEASE, CONTROLLER_NAMESPACE)


@fault("a tenant attacks")
async def attack(soak: Soak) -> None:
    """With documents and annotations that must break no reader."""
    config = "wva-saturation-scaling-config"
    text = soak.chance.choice(
        ["[" * 3000, "a: &a [1]\nb: [*a, *a]", f"k: {'9' * 5000}", "!!python/name:os.system", "\\0"]
    )
    with contextlib.suppress(ClusterError):
        await soak.cluster.delete(CONFIG_MAPS, config, NAMESPACE)
    await soak.cluster.create(CONFIG_MAPS, {"metadata": {"name": config}, "data": {"default": text}}, NAMESPACE)
    annotations = {"modelyard.dev/wake-query": "(" * 2000, "modelyard.dev/min-replicas": "9" * 4000}
    await soak.cluster.merge_patch(
        VARIANT_AUTOSCALINGS, "llama-l40s", {"metadata": {"annotations": annotations}}, NAMESPACE
    )


async def kill_component(component: Component, soak: Soak) -> None:
    """Its supervisor starts it again."""
    soak.signal_component(component, signal.SIGKILL)


FAULTS |= {f"{component} is killed": partial(kill_component, component) for component in Component}


async def run(minutes: float, seed: int, rate: float, out: Path) -> int:
    """Run the soak; return 0 when there was no violation."""
    chance, scenario = random.Random(seed), Scenario(rate=rate)
    out.mkdir(parents=True, exist_ok=True)
    policy, log = out / "audit-policy.yaml", out / "audit.log"
    policy.write_text(yaml.safe_dump(AUDIT_POLICY), encoding="utf-8")
    log.unlink(missing_ok=True)
    audit = Audit(log, {(namespace, v.name): (1, v.max_replicas) for namespace in NAMESPACES for v in VARIANTS})
    flags = [f"--audit-policy-file={policy}", f"--audit-log-path={log}"]
    async with running(scenario, out, extra_args={Component.APISERVER: flags}) as (stack, prefect, cluster):
        over, soak = asyncio.Event(), Soak(stack, prefect, cluster, audit, chance)
        following = [asyncio.create_task(endpoints.follow(cluster)) for endpoints in soak.endpoints]
        serving = [asyncio.create_task(soak.traffic(endpoints, scenario, over)) for endpoints in soak.endpoints]
        deadline = time.monotonic() + minutes * 60
        # The most urgent recovery is measured most often.
        order, bag = [*FAULTS, "the writer is killed", "the writer is killed"], list[str]()
        while time.monotonic() < deadline:
            bag = bag or chance.sample(order, len(order))
            await soak.suffer(bag.pop())
            await asyncio.sleep(chance.uniform(0, 4))
        over.set()
        await asyncio.gather(*serving)
        await cancelled(following)
        await soak.suffer("a tenant attacks")
        audit.read()
        await soak.conclude()
    own = [psutil.Process(), *psutil.Process().parents()]
    for process in psutil.process_iter(["cmdline"]):
        if process not in own and str(out) in " ".join(process.info["cmdline"] or []):
            audit.violations.append(f"left behind: {process}")
    soak.report(seed)
    return 1 if audit.violations or not audit.writes else 0


def main(
    minutes: float = 15.0,
    seed: int = 7,
    rate: Annotated[float, typer.Option(help="Factor of the trace's request rate.")] = 0.5,
    out: Annotated[Path, typer.Option(help="Folder for logs and the audit log.")] = Path("out/soak"),
) -> None:
    """Kill every part in turn, and check that the system recovers."""
    raise typer.Exit(asyncio.run(run(minutes, seed, rate, out.resolve())))


if __name__ == "__main__":
    typer.run(main)
