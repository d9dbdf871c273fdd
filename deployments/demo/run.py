"""The main demonstration: from an empty machine to three fleets scaled under the same real traffic.

Starts a local cluster, Prefect and the exporter. Part 1 onboards a model. Part 2 replays real traffic through the
onboarded service and two pairs of Deployments while the deployed, scheduled flow scales each in its own way. The pace
follows the machine (``pace``). The exit code is 0 when every functional claim holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.markup import escape

from deployments.child import ChildProcess
from deployments.demo import charts, pace, report
from deployments.demo.console import DemoConsole, kubectl, run_script, wait_until
from deployments.demo.manifests import autoscaling, deployment, flow_parameters
from deployments.demo.observations import Moment, Sample, changes, sample, scaler_kind
from deployments.demo.onboarding import nodes as onboarding_nodes, onboard_service
from deployments.demo.report import Outcome
from deployments.demo.scenario import CONTROLLER_NAMESPACE, MODEL, Copy, Form, Scenario
from deployments.profile import ROOT, free_port
from deployments.stack import PrefectStack, beside_a_cluster, schedule, write_prefect_file
from modelyard.cluster import DEPLOYMENTS, Cluster
from modelyard.local.load import ReadyPods
from modelyard.local.settings import StackSettings, default_nodes
from modelyard.local.stack import LocalStack
from modelyard.metrics.client import Prometheus, PrometheusSettings
from modelyard.objects.documents import cut
from modelyard.traffic.replay import Replay, ReplaySettings
from modelyard.traffic.router import Endpoint
from modelyard.traffic.trace import Trace, read_trace

TRACE = ROOT / "benchmarks" / "data" / "azure-llm-inference-2023-conversation.csv"
UNSCHEDULED = 3600.0
"""Seconds until the first run of the autoscaler, unless ``schedule`` starts it before, as soon as there is a fleet."""
PROGRESS_EVERY = 15.0
"""Wall seconds between progress lines."""

Prepare = Callable[[LocalStack, PrefectStack, Cluster], Awaitable[None]]


def main(scenario: Scenario, out: Path, *, adapt: bool, keep: bool) -> int:
    """Run the demonstration; ``adapt`` chooses the compression for this machine. Returns the exit code."""
    return run_script(partial(demonstration, scenario, out.resolve(), adapt), out.resolve(), "demo", keep=keep)


@contextlib.asynccontextmanager
async def demonstration(
    scenario: Scenario, out: Path, adapt: bool, console: DemoConsole
) -> AsyncIterator[Sequence[str]]:
    """Start everything, play both parts, check; yield suggestions for the reader."""
    if adapt:
        free = await asyncio.to_thread(pace.measure_free_cores)
        scenario = replace(scenario, compression=pace.choose_compression(free))
        slower = "" if scenario.compression == pace.FASTEST else f" instead of {pace.FASTEST:g}, so that it can keep up"
        console.say(
            f"This machine has {free:.1f} free processor cores. Simulated time runs {scenario.compression:g} times "
            f"faster than real time{slower}."
        )
    trace = read_trace(TRACE).stretch(scenario.start_minute, scenario.minutes).scaled(rate=scenario.rate)
    services: list[Copy] = []

    async def prepare(stack: LocalStack, prefect: PrefectStack, cluster: Cluster) -> None:
        console.heading("Part 1 of 2: onboard a model")
        os.environ["PREFECT_API_URL"] = prefect.server.api_url
        services.append(await onboard_service(console, scenario, trace, out, cluster))
        console.heading("Part 2 of 2: scale three fleets under the same real traffic")

    async with running(scenario, out, prepare, console.say) as (stack, prefect, cluster, prometheus):
        copies = tuple(services[0] if copy.service else copy for copy in scenario.copies)
        for copy in copies:
            console.say(f"Fleet {copy.label}: {copy.title}.")
        console.say(
            f"Each fleet receives minutes {scenario.start_minute:g} to {scenario.start_minute + scenario.minutes:g} of "
            f"a recorded production trace ({len(trace):,} requests), then {scenario.quiet_minutes:g} quiet minutes."
        )
        outcomes = await play(replace(scenario, copies=copies), trace, cluster, prometheus, console)
        conclude(console, scenario, outcomes, len(trace))
        charts.draw(outcomes, scenario, out / "traffic.png")
        console.print(f"[bold]Chart[/]       {out / 'traffic.png'}")
        console.print(f"[bold]Prefect UI[/]  {prefect.server.ui_url}   (flow autoscale: runs, ticks, decision tables)")
        modelyard = Path(sys.executable).with_name("modelyard")
        yield [
            f"export KUBECONFIG={stack.kubeconfig}",
            f"{kubectl()} get isvc,va,autoscalingpolicybindings -A -o wide",
            f"{modelyard} plan -n shop --prometheus {stack.prometheus_url} --time-compression {scenario.compression:g}"
            " --load 2x",
            f"open {prefect.server.ui_url} and {stack.prometheus_url}/graph",
        ]


@contextlib.asynccontextmanager
async def running(
    scenario: Scenario,
    out: Path,
    prepare: Prepare | None = None,
    say: Callable[[str], None] = print,
    **cluster_settings: Any,
) -> AsyncIterator[tuple[LocalStack, PrefectStack, Cluster, Prometheus]]:
    """Run cluster, engines, exporter and Prefect until the block ends; on entry the scheduled flow has decided once.

    ``prepare`` may use cluster and Prefect before the autoscaler is scheduled; then the flow ``reconcile`` runs, too.
    """
    exporter_port = free_port()
    products = {variant.product for variant in scenario.variants}
    nodes = [
        group.model_copy(update={"count": group.count * len(scenario.copies)})
        for group in default_nodes()
        if group.product in products
    ]
    pairs = [copy for copy in scenario.copies if not copy.service]
    settings = StackSettings(
        scrape_interval="1s",
        backoff_scale=0.1,
        scrape_targets=[f"127.0.0.1:{exporter_port}"],
        nodes=nodes + (onboarding_nodes(scenario) if prepare else []),
        **cluster_settings,
    )
    async with contextlib.AsyncExitStack() as cleanup:
        namespaces = (*(copy.namespace for copy in pairs), CONTROLLER_NAMESPACE)
        stack, prefect, cluster = await cleanup.enter_async_context(beside_a_cluster(out, settings, namespaces, say))
        given, every = flow_parameters(scenario, stack.prometheus_url), scenario.shift_seconds / 2
        if prepare:
            shift = {"interval_seconds": 3, "shift_seconds": 1800}
            write_prefect_file(out / "prefect.yaml", "reconcile", shift, 900, 30, {"autoscale": given})
        else:
            write_prefect_file(out / "prefect.yaml", "autoscale", given, every, UNSCHEDULED)
        start = asyncio.create_task(prefect.start())
        arguments = ["-m", "modelyard.cli.main", "exporter", "--port", str(exporter_port)]
        cleanup.enter_context(ChildProcess("the exporter", arguments, env=os.environ, log=out / "exporter.log"))
        for copy in pairs:
            for variant in scenario.variants:
                await cluster.apply(deployment(variant, copy, scenario))
            for manifest in autoscaling(copy, scenario):
                await cluster.apply(manifest)
        await start
        if prepare:
            await prepare(stack, prefect, cluster)
        await wait_until("every engine is ready", partial(_unready, cluster, scenario), lambda names: not names)
        await schedule(prefect.server.api_url, "autoscale/autoscale", every)
        say("Waiting for the first scheduled run of the flow autoscale.")
        undecided = partial(_undecided, cluster, scenario)
        await wait_until("the flow autoscale has decided for every fleet", undecided, lambda names: not names)
        prometheus = await cleanup.enter_async_context(Prometheus(PrometheusSettings(base_url=stack.prometheus_url)))
        yield stack, prefect, cluster, prometheus


async def _unready(cluster: Cluster, scenario: Scenario) -> list[str]:
    return [
        f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        for namespace in scenario.namespaces
        for item in await cluster.list(DEPLOYMENTS, namespace)
        if (item.get("status") or {}).get("readyReplicas") != item["spec"]["replicas"]
    ]


async def _undecided(cluster: Cluster, scenario: Scenario) -> list[str]:
    waiting = []
    for copy in scenario.copies:
        field = "conditions" if copy.form is Form.POLICY else "desiredOptimizedAlloc"
        scalers = list(await cluster.list(scaler_kind(copy), copy.namespace))
        if not scalers or not all((item.get("status") or {}).get(field) for item in scalers):
            waiting.append(copy.label)
    return waiting


async def play(
    scenario: Scenario, trace: Trace, cluster: Cluster, prometheus: Prometheus, console: DemoConsole
) -> list[Outcome]:
    """Send the traffic to every fleet at once, then stay quiet; return the outcomes."""
    begun, tempo = time.monotonic(), pace.Pace(scenario.compression)
    fleets = [FleetTraffic(scenario, copy, trace, begun, tempo) for copy in scenario.copies]
    work = [tempo.adjust(), narrate(fleets, scenario, tempo, console)]
    work += [each for fleet in fleets for each in fleet.background(cluster, prometheus)]
    tasks = [asyncio.create_task(each) for each in work]
    try:
        results = await asyncio.gather(*(fleet.replay.run() for fleet in fleets))
        console.say(f"Traffic is over: {sum(map(len, results)):,} requests sent.")
        await asyncio.sleep(scenario.quiet_minutes * 60 / scenario.compression)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [Outcome(fleet.copy, fleet.moments, sent) for fleet, sent in zip(fleets, results, strict=True)]


class FleetTraffic:
    """The traffic of one fleet in progress, and what was observed of the fleet so far."""

    def __init__(self, scenario: Scenario, copy: Copy, trace: Trace, begun: float, tempo: pace.Pace) -> None:
        self.copy = copy
        self.moments: list[Moment] = []
        self._scenario = scenario
        self._begun = begun
        self._pods = ReadyPods(copy.namespace)
        self._sent: deque[tuple[float, int]] = deque(maxlen=6)
        settings = ReplaySettings(model=MODEL, time_compression=scenario.compression)
        if copy.service:
            settings = replace(settings, model=copy.service, ejection_time=0.05)
            self._pods.ready[copy.service] = Endpoint(copy.service, copy.url, copy.chosen)
        self.replay = Replay(trace, self._pods.current, settings, admits=tempo.admits)

    def background(self, cluster: Cluster, prometheus: Prometheus) -> list[Coroutine[Any, Any, None]]:
        """Return what must run next to the traffic."""
        sampling = sample(cluster, prometheus, self._scenario, self.copy, self.minute, self._load, self.moments)
        return [sampling] if self.copy.service else [self._pods.follow(cluster), sampling]

    def minute(self) -> float:
        """Return the minute of the trace."""
        return (time.monotonic() - self._begun) * self._scenario.compression / 60

    def _load(self) -> float:
        self._sent.append((60 * self.minute(), self.replay.sent))
        (early, before), (late, after) = self._sent[0], self._sent[-1]
        return (after - before) / (late - early) if late > early else 0.0


async def narrate(fleets: Sequence[FleetTraffic], scenario: Scenario, tempo: pace.Pace, console: DemoConsole) -> None:
    """Print each scaling decision with its reason, and a progress line now and then."""
    accelerators = {variant.name: variant.accelerator for variant in scenario.variants}
    printed, share, at = [0] * len(fleets), 1.0, time.monotonic()
    while True:
        await asyncio.sleep(0.5)
        for number, fleet in enumerate(fleets):
            decided = changes(fleet.moments)
            for _, together in groupby(decided[printed[number] :], key=lambda change: change.minute):
                steps = list(together)
                up = sum(change.after - change.before for change in steps) > 0
                counts = ", ".join(f"{accelerators[step.variant]} {step.before} -> {step.after}" for step in steps)
                reason = escape(cut(steps[0].why, 220))
                console.say(f"{'[green]▲[/]' if up else '[yellow]▼[/]'} {fleet.copy.label}: {counts}. {reason}")
            printed[number] = len(decided)
        if time.monotonic() - at > PROGRESS_EVERY:
            at = time.monotonic()
            states = "; ".join(state(fleet, scenario) for fleet in fleets)
            console.say(
                f"[dim]Minute {fleets[0].minute():.0f} of {scenario.minutes + scenario.quiet_minutes:g}: {states}[/]"
            )
            if tempo.share != share:
                share = tempo.share
                busy = f"[yellow]The machine is busy: sending {share:.0%} of the traffic for now.[/]"
                console.say(busy if share < 1 else "The machine keeps up again: sending all traffic.")


def state(fleet: FleetTraffic, scenario: Scenario) -> str:
    """Describe the fleet's load and replicas in a few words."""
    last = fleet.moments[-1] if fleet.moments else None
    if not isinstance(last, Sample):
        return f"{fleet.copy.label} not observed"
    counts = " + ".join(
        f"{last.ready[variant.name]}/{last.created[variant.name]} {variant.accelerator}"
        for variant in scenario.variants
        if last.created[variant.name]
    )
    return f"{fleet.copy.label} {last.load:.1f} req/s on {counts} ready"


def conclude(console: DemoConsole, scenario: Scenario, outcomes: Sequence[Outcome], planned: int) -> None:
    """Print decisions, comparison and lateness; check the functional claims."""
    for outcome in outcomes:
        console.print()
        console.print(report.decision_table(outcome, scenario))
        for claim, passed in report.checks(outcome):
            console.check(claim, passed)
    console.print()
    console.print(report.comparison(outcomes, scenario))
    results = [result for outcome in outcomes for result in outcome.results]
    lateness = pace.Lateness.of(results, planned * len(outcomes))
    console.print(str(lateness) if lateness.kept_up else f"[bold yellow]{lateness}[/]")
    console.print("Seconds and minutes are simulated time. Costs are replica-hours times the variant's cost.")
