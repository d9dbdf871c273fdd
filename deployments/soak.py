"""A soak that anybody can run: ``make soak MINUTES=15 SEED=7``.

The demonstration's fleet serves its traffic while parts of everything are killed, stopped and restarted, one after the
other in an order that the seed gives. What must hold whatever happens is checked all along from the API server's audit
log: one writer, replicas within their bounds, every request accounted for; and at the end: no status lost, no process
left. The time to heal is that from the fault to the next tick that sees an edit. Exit code 0: no violation.
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
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
import yaml
from rich.console import Console
from rich.table import Table

from deployments.demo.observations import BINDINGS
from deployments.demo.run import TRACE, running
from deployments.demo.scenario import CONTROLLER_NAMESPACE, MODEL, NAMESPACE, PAIRS, Scenario
from deployments.stack import PrefectStack
from modelyard.autoscaling.kinds import VARIANTS
from modelyard.cluster import CONFIG_MAPS, DEPLOYMENTS, LEASES, PODS, Cluster, ClusterError, Holder, NotFound
from modelyard.local.load import ReadyPods
from modelyard.local.settings import Component
from modelyard.local.stack import LocalStack
from modelyard.traffic.latency import Ending
from modelyard.traffic.replay import Replay, ReplaySettings, RequestResult
from modelyard.traffic.trace import read_trace

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
    """The API server's audit log as it grows: who wrote what, and what of it was not allowed.

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
        about, body = event["objectRef"], event.get("requestObject") or {}
        spec = body.get("spec") or {}
        if about["resource"] == "leases":
            if about.get("name", LEASE) == LEASE and "holderIdentity" in spec:
                self.writers += spec["holderIdentity"] != self._holder and bool(spec["holderIdentity"])
                self._holder = spec["holderIdentity"] or ""
            return
        if about["resource"] not in OURS:
            return
        self.writes += 1
        what = (
            f"{event['verb']} of {about['resource']} {about['namespace']}/{about['name']} at {event['stageTimestamp']}"
        )
        if not self._holder.startswith(f"{agent[1]}_"):
            self.violations.append(f"{what} by {agent[1]}, but the Lease is with {self._holder or 'nobody'}")
        if about["resource"] == "deployments" and "replicas" in spec:
            self.scalings += 1
            least, most = self._bounds.get((about["namespace"], about["name"]), (0, 0))
            if not least <= spec["replicas"] <= most:
                self.violations.append(f"{what}: {spec['replicas']} replicas, the bounds are {least} to {most}")


class Soak:
    """What the faults act upon, and what is known so far."""

    def __init__(
        self, stack: LocalStack, prefect: PrefectStack, cluster: Cluster, audit: Audit, chance: random.Random
    ) -> None:
        self.stack, self.prefect, self.cluster, self.audit, self.chance = stack, prefect, cluster, audit, chance
        self.healed: defaultdict[str, list[float]] = defaultdict(list)
        self.killed: set[str] = set()
        """Pods whose engine was killed: what they were answering is lost."""
        self.results: list[RequestResult] = []
        self.sent = 0
        self.begun = 0.0
        """When the fault under way began."""
        self.endpoints = [ReadyPods(copy.namespace) for copy in PAIRS]
        self._price = 100

    async def traffic(self, endpoints: ReadyPods, scenario: Scenario, over: asyncio.Event) -> None:
        """Serve the trace again and again."""
        trace = read_trace(TRACE).stretch(scenario.start_minute, scenario.minutes).scaled(rate=scenario.rate)
        while not over.is_set():
            replay = Replay(trace, endpoints.current, ReplaySettings(MODEL, scenario.compression))
            serving, ending = asyncio.create_task(replay.run()), asyncio.create_task(over.wait())
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
            for task in (serving, ending):
                task.cancel()
            await asyncio.gather(serving, ending, return_exceptions=True)
            self.sent += replay.sent
            self.results += replay.results

    async def suffer(self, name: str) -> None:
        """One fault, and the time until a tick sees an edit made after it."""
        self.begun = time.monotonic()
        console.print(f"[dim]{time.strftime('%H:%M:%S')}[/]  {name}", highlight=False)
        await FAULTS[name](self)
        try:
            async with asyncio.timeout(HEAL_LIMIT):
                await self._seen()
        except TimeoutError:
            self.audit.violations.append(f"{name}: not healed within {HEAL_LIMIT:.0f} s")
            return
        self.healed[name].append(time.monotonic() - self.begun)

    async def _seen(self) -> None:
        """Edit a variant, and wait until a tick has told of that very generation."""
        self._price += 1
        body: dict[str, Any] = {"spec": {"variantCost": f"{self._price / 10:g}"}}
        wanted = 0
        while True:
            with contextlib.suppress(ClusterError):
                if not wanted:
                    edited = await self.cluster.merge_patch(VARIANTS, "llama-h100", body, NAMESPACE)
                    wanted = edited["metadata"]["generation"]
                variant = await self.cluster.get(VARIANTS, "llama-h100", NAMESPACE)
                told = (variant.get("status") or {}).get("conditions") or ()
                if any(one.get("observedGeneration", 0) >= wanted for one in told):
                    return
            self.audit.read()
            await asyncio.sleep(0.2)

    # Faults

    async def writer(self) -> psutil.Process | None:
        """The process that holds the Lease."""
        with contextlib.suppress(ClusterError, psutil.NoSuchProcess):
            lease = await self.cluster.get(LEASES, LEASE, CONTROLLER_NAMESPACE)
            holder = Holder.read(lease["spec"].get("holderIdentity") or "")
            return psutil.Process(holder.pid) if holder is not None else None
        return None

    async def writer_killed(self) -> None:
        """As a host dies."""
        if (process := await self.writer()) is not None:
            process.kill()

    async def writer_stopped(self) -> None:
        """As a host that hangs and comes back, long after its Lease has expired."""
        if (process := await self.writer()) is not None:
            process.suspend()
            await asyncio.sleep(20)
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    async def server_restarted(self) -> None:
        """Prefect's server dies and comes back."""
        self.prefect.server.kill()
        await asyncio.sleep(self.chance.uniform(0, 5))
        await asyncio.to_thread(self.prefect.server.start)

    async def writer_killed_after_server(self) -> None:
        """Its events from before the restart are lost."""
        await self.server_restarted()
        self.begun = time.monotonic()
        await self.writer_killed()

    async def worker_killed(self) -> None:
        """With all its runs."""
        self.prefect.worker.kill()
        await asyncio.sleep(self.chance.uniform(0, 5))
        await asyncio.to_thread(self.prefect.worker.start)

    def component(self, component: Component) -> int:
        """Its process; 0 while it is being restarted."""
        state = self.stack.state
        process = state.components[component].process if state is not None else None
        return process.pid if process is not None and process.alive() else 0

    async def prometheus_hangs(self) -> None:
        """It takes connections and says nothing."""
        if pid := self.component(Component.PROMETHEUS):
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(12)
            os.kill(pid, signal.SIGCONT)

    async def engine_killed(self) -> None:
        """Without a word; what it was answering is lost."""
        ready = [one for endpoints in self.endpoints for one in await endpoints.current()]
        if not ready:
            return
        chosen = self.chance.choice(ready)
        self.killed.add(chosen.pod)
        address = chosen.url.removeprefix("http://").split(":")[0]
        for connection in psutil.net_connections("tcp4"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr[:1] == (address,)
            if listens and connection.pid:
                os.kill(connection.pid, signal.SIGKILL)

    async def pods_deleted(self) -> None:
        """Several at once, each in its time: not one request may be lost."""
        pods = (await self.cluster.list(PODS, NAMESPACE)).items
        for pod in self.chance.sample(pods, min(2, len(pods))):
            with contextlib.suppress(NotFound):
                await self.cluster.delete(PODS, pod["metadata"]["name"], NAMESPACE)

    async def lease_deleted(self) -> None:
        """By somebody who tidies up."""
        with contextlib.suppress(NotFound):
            await self.cluster.delete(LEASES, LEASE, CONTROLLER_NAMESPACE)

    async def tenant_attacks(self) -> None:
        """With documents and annotations that no reader should survive."""
        text = self.chance.choice(
            ["[" * 3000, "a: &a [1]\nb: [*a, *a]", f"k: {'9' * 5000}", "!!python/name:os.system", "\x00"]
        )
        body = {"metadata": {"name": "wva-saturation-scaling-config"}, "data": {"default": text.replace("\x00", "\\0")}}
        with contextlib.suppress(ClusterError):
            await self.cluster.delete(CONFIG_MAPS, "wva-saturation-scaling-config", NAMESPACE)
        await self.cluster.create(CONFIG_MAPS, body, NAMESPACE)
        edit = {
            "metadata": {
                "annotations": {"modelyard.dev/wake-query": "(" * 2000, "modelyard.dev/min-replicas": "9" * 4000}
            }
        }
        await self.cluster.merge_patch(VARIANTS, "llama-l40s", edit, NAMESPACE)

    # At the end

    async def conclude(self, scenario: Scenario) -> None:
        """Nothing may be lost, and what is wanted is what there is."""
        for kind in (VARIANTS, BINDINGS):
            for one in (await self.cluster.list(kind)).items:
                name = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
                told = (one.get("status") or {}).get("conditions") or ()
                if not any(c.get("observedGeneration") == one["metadata"]["generation"] for c in told):
                    self.audit.violations.append(f"{kind.kind} {name}: its status is not that of its generation")
        for copy in scenario.copies:
            for variant in scenario.variants:
                spec = (await self.cluster.get(DEPLOYMENTS, variant.name, copy.namespace))["spec"]
                if not 1 <= spec["replicas"] <= variant.max_replicas:
                    self.audit.violations.append(
                        f"{copy.namespace}/{variant.name} ended at {spec['replicas']} replicas"
                    )
        if self.sent != len(self.results):
            self.audit.violations.append(f"{self.sent} requests were sent, {len(self.results)} are accounted for")
        for result in self.results:
            if result.ending not in (Ending.OK, Ending.UNFINISHED) and result.pod not in self.killed:
                self.audit.violations.append(
                    f"request {result.index} to {result.pod}: {result.ending.name}, {result.error}"
                )

    def report(self) -> Table:
        """The time to heal by fault."""
        table = Table("fault", "times", "healed after: median", "longest", title="Seconds to the next tick")
        for name, seconds in sorted(self.healed.items()):
            table.add_row(name, str(len(seconds)), f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}")
        return table


def _kill(component: Component) -> Callable[[Soak], Awaitable[None]]:
    async def kill(soak: Soak) -> None:
        if pid := soak.component(component):
            os.kill(pid, signal.SIGKILL)

    return kill


FAULTS: Mapping[str, Callable[[Soak], Awaitable[None]]] = {
    "the writer is killed": Soak.writer_killed,
    "the writer is killed after Prefect's server came back": Soak.writer_killed_after_server,
    "the writer stands still for 20 s": Soak.writer_stopped,
    "Prefect's server is killed": Soak.server_restarted,
    "the worker is killed with its runs": Soak.worker_killed,
    "Prometheus hangs for 12 s": Soak.prometheus_hangs,
    "an engine is killed": Soak.engine_killed,
    "two pods are deleted": Soak.pods_deleted,
    "the Lease is deleted": Soak.lease_deleted,
    "a tenant attacks": Soak.tenant_attacks,
    **{f"{component} is killed": _kill(component) for component in Component},
}


async def soak(minutes: float, seed: int, rate: float, out: Path) -> int:
    """Run it; 0 when nothing that must hold was violated."""
    chance = random.Random(seed)
    scenario = Scenario(rate=rate)
    out.mkdir(parents=True, exist_ok=True)
    policy, log = out / "audit-policy.yaml", out / "audit.log"
    policy.write_text(yaml.safe_dump(AUDIT_POLICY), encoding="utf-8")
    log.unlink(missing_ok=True)
    bounds = {(c.namespace, v.name): (1, v.max_replicas) for c in scenario.copies for v in scenario.variants}
    audit = Audit(log, bounds)
    flags = [f"--audit-policy-file={policy}", f"--audit-log-path={log}"]
    async with running(scenario, out, extra_args={Component.APISERVER: flags}) as (stack, prefect, cluster, _):
        over = asyncio.Event()
        one = Soak(stack, prefect, cluster, audit, chance)
        one.endpoints = [ReadyPods(copy.namespace) for copy in scenario.copies]
        follow = [asyncio.create_task(endpoints.follow(cluster)) for endpoints in one.endpoints]
        serving = [asyncio.create_task(one.traffic(endpoints, scenario, over)) for endpoints in one.endpoints]
        deadline = time.monotonic() + minutes * 60
        bag: list[str] = []
        # What the loop has to be quickest at comes most often.
        order = [*FAULTS, "the writer is killed", "the writer is killed"]
        while time.monotonic() < deadline:
            bag = bag or chance.sample(order, len(order))
            await one.suffer(bag.pop())
            await asyncio.sleep(chance.uniform(0, 4))
        over.set()
        await asyncio.gather(*serving)
        for task in follow:
            task.cancel()
        await asyncio.gather(*follow, return_exceptions=True)
        await one.suffer("a tenant attacks")
        audit.read()
        await one.conclude(scenario)
    above = [psutil.Process(), *psutil.Process().parents()]
    for process in psutil.process_iter(["cmdline"]):
        if process not in above and str(out) in " ".join(process.info["cmdline"] or []):
            audit.violations.append(f"left behind: {process}")
    console.print(one.report())
    endings = Counter(result.ending.name for result in one.results)
    requests = ", ".join(f"{count} {name}" for name, count in endings.most_common())
    faults = sum(map(len, one.healed.values()))
    console.print(
        f"seed {seed}: {faults} faults, {audit.writes} writes by {audit.writers} writers one after the other, "
    )
    console.print(f"{audit.scalings} scalings; {one.sent} requests: {requests}")
    console.print(f"{len(audit.violations)} violations")
    for violation in audit.violations[:50]:
        console.print(f"  {violation}", highlight=False)
    return 1 if audit.violations or not audit.writes else 0


def main(
    minutes: float = 15.0,
    seed: int = 7,
    rate: Annotated[float, typer.Option(help="Scale the request rate of the trace.")] = 0.5,
    out: Annotated[Path, typer.Option(help="Folder for logs and the audit log.")] = Path("out/soak"),
) -> None:
    """Kill everything in turn, and see whether what must hold does."""
    raise typer.Exit(asyncio.run(soak(minutes, seed, rate, out.resolve())))


if __name__ == "__main__":  # not among the commands of modelyard: it needs what comes with the tests
    typer.run(main)
