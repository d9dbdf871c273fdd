"""The main demonstration: from an empty machine to a model that is onboarded and scaled under real traffic.

Starts a local cluster and Prefect. Part 1 onboards a model. Part 2 replays real traffic through the service while the
deployed, scheduled flow scales it. The pace follows the machine (``pace``). The exit code is 0 when every functional
claim holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.markup import escape

from deployments.demo import pace, report
from deployments.demo.console import DemoConsole, kubectl, run_script, wait_until
from deployments.demo.observations import Sample, ScaledWorkload, changes, sample
from deployments.demo.onboarding import OnboardedService, nodes, onboard_service
from deployments.demo.report import Outcome
from deployments.demo.scenario import CONTROLLER_NAMESPACE, NAMESPACE, SERVICE, Scenario
from deployments.profile import ROOT
from deployments.stack import beside_a_cluster, schedule, write_prefect_file
from modelyard.autoscaling.fleet import VARIANTS
from modelyard.cluster import Cluster
from modelyard.local import StackSettings
from modelyard.metrics.prometheus import Prometheus, PrometheusSettings
from modelyard.objects import cut
from modelyard.traffic import Endpoint
from modelyard.traffic.clients import Replay, ReplaySettings
from modelyard.traffic.traces import Trace, read_trace
from modelyard.workloads.rendering import SERVICE as SERVICE_LABEL

TRACE = ROOT / "benchmarks" / "data" / "azure-llm-inference-2023-conversation.csv"
WORKLOAD = ScaledWorkload(NAMESPACE, f"{SERVICE}-engine", f"{SERVICE_LABEL}={SERVICE}", SERVICE)
PROGRESS_EVERY = 15.0
"""Wall seconds between progress lines."""


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
    settings = StackSettings(scrape_interval="1s", backoff_scale=0.1, nodes=nodes())
    async with (
        beside_a_cluster(out, settings, [CONTROLLER_NAMESPACE], console.say) as (stack, prefect, cluster),
        Prometheus(PrometheusSettings(base_url=stack.prometheus_url)) as prometheus,
    ):
        shift = {"interval_seconds": 3, "shift_seconds": 1800}
        autoscale = scenario.flow_parameters(stack.prometheus_url, NAMESPACE)
        write_prefect_file(out / "prefect.yaml", "reconcile", shift, 900, 30, {"autoscale": autoscale})
        await prefect.start()
        os.environ["PREFECT_API_URL"] = prefect.server.api_url

        console.heading("Part 1 of 2: onboard a model")
        service = await onboard_service(console, scenario, trace, out, cluster)

        console.heading("Part 2 of 2: scale it under real traffic")
        await schedule(prefect.server.api_url, "autoscale/autoscale", scenario.shift_seconds / 2)
        console.say("Waiting for the first scheduled run of the flow autoscale.")
        await wait_until("the flow autoscale has decided", partial(_decision, cluster), bool)
        console.say(
            f"The service receives {scenario.minutes:g} minutes of a recorded production trace ({len(trace):,} "
            f"requests) from minute {scenario.start_minute:g} on, then {scenario.quiet_minutes:g} quiet minutes."
        )
        outcome = await play(scenario, service, trace, cluster, prometheus, console)
        conclude(console, scenario, service, outcome, len(trace))
        report.draw(outcome, scenario.longest_gap, out / "traffic.png")
        console.print(f"[bold]Chart[/]       {out / 'traffic.png'}")
        console.print(f"[bold]Prefect UI[/]  {prefect.server.ui_url}   (flow autoscale: runs, ticks, decision tables)")
        modelyard = Path(sys.executable).with_name("modelyard")
        yield [
            f"export KUBECONFIG={stack.kubeconfig}",
            f"{kubectl()} -n {NAMESPACE} get isvc,va -o wide",
            f"{modelyard} plan -n {NAMESPACE} --prometheus {stack.prometheus_url} --time-compression "
            f"{scenario.compression:g} --load 2x",
            f"open {prefect.server.ui_url} and {stack.prometheus_url}/graph",
        ]


async def _decision(cluster: Cluster) -> object:
    return ((await cluster.get(VARIANTS, SERVICE, NAMESPACE)).get("status") or {}).get("desiredOptimizedAlloc")


class Traffic:
    """The traffic in progress, and what was observed of the service so far."""

    def __init__(self, scenario: Scenario, service: OnboardedService, trace: Trace, tempo: pace.Pace) -> None:
        self.samples: list[Sample] = []
        self._compression, self._begun = scenario.compression, time.monotonic()
        self._endpoint = Endpoint(SERVICE, service.url, service.variant.name)
        self._sent: deque[tuple[float, int]] = deque(maxlen=6)
        settings = ReplaySettings(SERVICE, scenario.compression, ejection_time=0.05)
        self.replay = Replay(trace, self._endpoints, settings, admits=tempo.admits)

    async def _endpoints(self) -> list[Endpoint]:
        return [self._endpoint]

    def minute(self) -> float:
        return (time.monotonic() - self._begun) * self._compression / 60

    def load(self) -> float:
        """Return the requests per second of the last samples."""
        self._sent.append((60 * self.minute(), self.replay.sent))
        (early, before), (late, after) = self._sent[0], self._sent[-1]
        return (after - before) / (late - early) if late > early else 0.0


async def play(
    scenario: Scenario,
    service: OnboardedService,
    trace: Trace,
    cluster: Cluster,
    prometheus: Prometheus,
    console: DemoConsole,
) -> Outcome:
    """Send the traffic to the service, then stay quiet; return the outcome."""
    tempo = pace.Pace(scenario.compression)
    traffic = Traffic(scenario, service, trace, tempo)
    work = (
        tempo.adjust(),
        sample(cluster, prometheus, WORKLOAD, traffic.minute, traffic.load, traffic.samples),
        narrate(traffic, scenario, service, tempo, console),
    )
    tasks = [asyncio.create_task(each) for each in work]
    try:
        results = await traffic.replay.run()
        console.say(f"Traffic is over: {len(results):,} requests sent.")
        await asyncio.sleep(scenario.quiet_minutes * 60 / scenario.compression)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Outcome(traffic.samples, results)


async def narrate(
    traffic: Traffic, scenario: Scenario, service: OnboardedService, tempo: pace.Pace, console: DemoConsole
) -> None:
    """Print each scaling decision with its reason, and a progress line now and then."""
    printed, share, at = 0, 1.0, time.monotonic()
    while True:
        await asyncio.sleep(0.5)
        decided = changes(traffic.samples)
        for before, after in decided[printed:]:
            arrow = "[green]▲[/]" if after.desired > before.desired else "[yellow]▼[/]"
            count = f"{service.variant.accelerator} {before.desired} -> {after.desired}"
            console.say(f"{arrow} {count}. {escape(cut(after.why, 220))}")
        printed = len(decided)
        if time.monotonic() - at > PROGRESS_EVERY:
            at = time.monotonic()
            last = traffic.samples[-1] if traffic.samples else None
            state = f"{last.load:.1f} req/s on {last.ready}/{last.created} replicas ready" if last else "not observed"
            whole = scenario.minutes + scenario.quiet_minutes
            console.say(f"[dim]Minute {traffic.minute():.0f} of {whole:g}: {state}[/]")
            if tempo.share != share:
                share = tempo.share
                busy = f"[yellow]The machine is busy: sending {share:.0%} of the traffic for now.[/]"
                console.say(busy if share < 1 else "The machine keeps up again: sending all traffic.")


def conclude(
    console: DemoConsole, scenario: Scenario, service: OnboardedService, outcome: Outcome, planned: int
) -> None:
    """Print decisions, cost, latencies and lateness; check the functional claims."""
    console.print()
    console.print(report.decision_table(outcome.samples))
    for claim, passed in report.checks(outcome):
        console.check(claim, passed)
    console.print()
    console.print(report.describe_result(outcome, service.variant, scenario))
    lateness = pace.Lateness.of(outcome.results, planned)
    console.print(str(lateness) if lateness.kept_up else f"[bold yellow]{lateness}[/]")
    console.print("Seconds and minutes are simulated time. Costs are replica-hours times the variant's cost.")
