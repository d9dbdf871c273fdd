"""Run the demonstration from nothing to the verdict.

Starts a local cluster, Prefect and the exporter. Act 0 brings a model from a bucket to a service of the right size.
Then replays the same real traffic through that service and through two copies of one model on two accelerators, each
scaled another way; lets the deployed, scheduled flow scale them; tells what happened. Exit code 0 only if all that act
0 claims is true, every copy really scaled both ways, and what was seen may be believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from deployments.child import Child
from deployments.demo import onboarding, picture, story
from deployments.demo.manifests import autoscaling, deployment, flow_parameters
from deployments.demo.publish import publish
from deployments.demo.scenario import CONTROLLER_NAMESPACE, MODEL, Copy, Form, Scenario
from deployments.demo.stage import DemonstrationFailed, Show
from deployments.demo.story import Played
from deployments.demo.truth import LATE, Truth
from deployments.demo.watch import BINDINGS, Gap, Moment, Sample, sample
from deployments.profile import ROOT, free_port
from deployments.stack import PrefectStack, beside_a_cluster, schedule, write_prefect_file
from modelyard.autoscaling.kinds import VARIANTS
from modelyard.autoscaling.live import observe
from modelyard.cluster import DEPLOYMENTS, Cluster
from modelyard.local.load import ReadyPods
from modelyard.local.settings import StackSettings, default_nodes
from modelyard.local.stack import LocalStack
from modelyard.metrics.client import Prometheus, PrometheusSettings
from modelyard.traffic.latency import percentile
from modelyard.traffic.replay import Replay, ReplaySettings
from modelyard.traffic.router import Endpoint
from modelyard.traffic.trace import Trace, read_trace

TRACE = ROOT / "benchmarks" / "data" / "azure-llm-inference-2023-conversation.csv"
FIRST_RUN_AFTER = 24
"""Seconds from the bootstrap to the first scheduled run: deploying and starting a worker takes about that long."""
RATE_WINDOW = 5.0
"""Wall seconds over which the shown load is averaged."""
SIZED = "a replica takes"
"""What a decision says that knows load and profile."""
RECENT = 200
"""Requests of which it is said meanwhile how late they were sent."""

Begin = Callable[[LocalStack, PrefectStack, Cluster], Awaitable[None]]

console = Console(width=None if sys.stdout.isatty() else 100)


def say(text: str) -> None:
    """Progress, with the seconds since the start."""
    console.print(f"[dim]{time.monotonic() - STARTED:6.1f} s[/]  {text}", highlight=False)


STARTED = time.monotonic()


def main(scenario: Scenario, out: Path, *, runs_wanted: int, keep: bool, write: bool) -> int:
    """Run, print. 0: scaled as was to be shown in every run; 1: not, or too many runs are void, or something failed.

    Of several runs one that is void is made again, at most half as many as are wanted.
    """
    out = out.resolve()
    good: list[list[Played]] = []
    number, void = 0, 0
    try:
        while len(good) + void == number < runs_wanted + runs_wanted // 2 and len(good) < runs_wanted:
            number += 1
            folder = out if runs_wanted == 1 else out / f"run-{number}"
            run = asyncio.run(demonstrate(scenario, folder, keep=keep))
            void += any(one.truth.void for one in run)
            if run and all(one.good for one in run):
                good.append(run)
                shown = folder
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    except DemonstrationFailed as error:
        console.print(f"[bold red]✗[/] {escape(str(error))}")
        return 1
    done = len(good) == runs_wanted
    if write and done:
        publish(good, scenario, shown)
    if good and runs_wanted > 1:
        rest = f"; {void} void, made again" if void else ""
        console.print(f"\nMedian, least and greatest of {len(good)} runs{rest}:\n")
        console.print(story.markdown(story.comparison(good, scenario)), soft_wrap=True, markup=False, highlight=False)
    return 0 if done else 1


async def demonstrate(scenario: Scenario, out: Path, keep: bool) -> list[Played]:
    """The whole demonstration, once: every copy after it."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    trace = read_trace(TRACE).stretch(scenario.start_minute, scenario.minutes)
    if scenario.rate != 1:
        trace = trace.scaled(rate=scenario.rate)
    say(
        f"replaying minutes {scenario.start_minute:g} to {scenario.start_minute + scenario.minutes:g} of a real trace: "
        f"{len(trace)} requests, {scenario.compression:g} times faster than life"
    )
    show, served = Show(), dict[str, Copy]()
    begin = partial(onboarding.onboarded, show, scenario, trace, out, served)
    async with running(scenario, out, begin) as (stack, prefect, cluster, prometheus):
        if not show.true:
            return []
        scenario = replace(scenario, copies=tuple(served.get(copy.namespace, copy) for copy in scenario.copies))
        say(
            f"beside it: KUBECONFIG={stack.kubeconfig} {Path(sys.executable).with_name('modelyard')} plan -n shop "
            f"--prometheus {stack.prometheus_url} --time-compression {scenario.compression:g}"
        )
        played = await play(scenario, trace, cluster, prometheus)
        for one in played:
            conclude(scenario, one)
        if not all(sized(show, one) for one in played if one.copy.service):
            return []
        console.print()
        heading, *rows = story.comparison([played], scenario)
        console.print(story.figures("The same traffic, scaled three ways", heading, rows))
        console.print("slo is the service, on the accelerator that was chosen; the others have both.")
        console.print()
        for act, copies in groupby(played, key=lambda one: one.copy.act):
            path = out / f"act-{act}.png"
            picture.draw(list(copies), scenario, path)
            console.print(f"[bold]Picture[/]     {path}")
        console.print(f"[bold]Prefect UI[/]  {prefect.server.ui_url}   (flow autoscale, its shifts, ticks and tables)")
        console.print(f"[bold]Prometheus[/]  {stack.prometheus_url}/graph")
        console.print(
            f"[bold]Cluster[/]     export KUBECONFIG={stack.kubeconfig}; kubectl get va,autoscalingpolicybindings -A"
        )
        if keep:
            console.print("\nEverything keeps running. Ctrl-C ends it.")
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        else:
            console.print("\nEverything is being stopped now; `make demo KEEP=1` leaves it running.")
    return played


@contextlib.asynccontextmanager
async def running(
    scenario: Scenario, out: Path, begin: Begin | None = None, **cluster_settings: Any
) -> AsyncIterator[tuple[LocalStack, PrefectStack, Cluster, Prometheus]]:
    """Cluster, engines, exporter and Prefect, all up and scheduled; stopped at the end, however it comes.

    ``begin`` starts Prefect and uses it for something else, before the autoscaler is scheduled.
    """
    exporter_port = free_port()
    nodes = [
        group.model_copy(update={"count": group.count * len(scenario.copies)})
        for group in default_nodes()
        if any(group.product == variant.product for variant in scenario.variants)
    ]
    own = [copy for copy in scenario.copies if not copy.service]
    if len(own) < len(scenario.copies):
        nodes += onboarding.nodes(scenario)
    settings = StackSettings(
        scrape_interval="1s",
        backoff_scale=0.1,
        scrape_targets=[f"127.0.0.1:{exporter_port}"],
        nodes=nodes,
        **cluster_settings,
    )
    async with contextlib.AsyncExitStack() as cleanup:
        spaces = (*(copy.namespace for copy in own), CONTROLLER_NAMESPACE)
        ground = beside_a_cluster(out, settings, spaces, say)
        stack, prefect, cluster = await cleanup.enter_async_context(ground)
        for copy in own:
            for variant in scenario.variants:
                await cluster.apply(deployment(variant, copy, scenario))
        await served(cluster, scenario)
        for copy in own:
            for manifest in autoscaling(copy, scenario):
                await cluster.apply(manifest)
        names = ", ".join(f"{v.name} ({v.accelerator}, cost {v.cost})" for v in scenario.variants)
        say(f"one model on two accelerators: {names}")
        for copy in scenario.copies:
            say(f"act {copy.act}, namespace {copy.namespace}: {copy.title}")

        exporter = Child(
            "the exporter",
            ["-m", "modelyard.cli.main", "exporter", "--port", str(exporter_port)],
            env=os.environ,
            log=out / "exporter.log",
        )
        exporter.start()
        cleanup.callback(exporter.stop, 5.0)
        await asyncio.to_thread(prefect.server.wait)
        given, every = flow_parameters(scenario, stack.prometheus_url), scenario.shift_seconds / 2
        if begin is None:
            write_prefect_file(out / "prefect.yaml", "autoscale", given, every, FIRST_RUN_AFTER)
            await asyncio.to_thread(prefect.start)
        else:
            shift = {"interval_seconds": 3, "shift_seconds": 1800}
            write_prefect_file(out / "prefect.yaml", "reconcile", shift, 900, FIRST_RUN_AFTER, {"autoscale": given})
            await begin(stack, prefect, cluster)
            await schedule(prefect.server.api_url, "autoscale/autoscale", every)
        prometheus = await cleanup.enter_async_context(Prometheus(PrometheusSettings(base_url=stack.prometheus_url)))
        await decided(cluster, scenario)
        yield stack, prefect, cluster, prometheus


async def served(cluster: Cluster, scenario: Scenario) -> None:
    """Wait until every variant's first engines are ready."""
    async with asyncio.timeout(300):
        while True:
            items = [d for name in scenario.namespaces for d in (await cluster.list(DEPLOYMENTS, name)).items]
            if all((d.get("status") or {}).get("readyReplicas") == d["spec"]["replicas"] for d in items):
                return
            await asyncio.sleep(0.3)


async def decided(cluster: Cluster, scenario: Scenario) -> None:
    """Wait until the scheduled flow has decided for every variant and binding."""
    say("waiting for the first scheduled run of the flow")
    async with asyncio.timeout(300):
        while True:
            waiting = 0
            for copy in scenario.copies:
                if copy.form is Form.POLICY:
                    items = (await cluster.list(BINDINGS, copy.namespace)).items
                    waiting += not items or not all((i.get("status") or {}).get("conditions") for i in items)
                else:
                    known = [observe.variant(item) for item in (await cluster.list(VARIANTS, copy.namespace)).items]
                    due = 1 if copy.service else len(scenario.variants)
                    waiting += len(known) < due or not all(v.last_run for v in known)
            if not waiting:
                break
            await asyncio.sleep(0.5)
    say("the scheduled flow decides; traffic begins")


async def play(scenario: Scenario, trace: Trace, cluster: Cluster, prometheus: Prometheus) -> list[Played]:
    """Replay the traffic through every copy at once, then stay quiet for a while; sample all along."""
    begun = time.monotonic()
    playing = [Playing(scenario, copy, trace, begun) for copy in scenario.copies]
    tasks = [asyncio.create_task(work) for one in playing for work in one.work(cluster, prometheus)]
    tasks.append(asyncio.create_task(narrate(playing, scenario)))
    try:
        results = await asyncio.gather(*(one.replay.run() for one in playing))
        total = sum(map(len, results))
        say(f"traffic is over: {total} requests; quiet for {scenario.quiet_minutes:g} trace minutes")
        await asyncio.sleep(scenario.quiet_minutes * 60 / scenario.compression)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [
        Played(one.copy, one.moments, result, Truth.of(len(trace), result, one.moments, scenario.longest_look))
        for one, result in zip(playing, results, strict=True)
    ]


class Playing:
    """The traffic of one copy under way, and what was sampled of it so far."""

    def __init__(self, scenario: Scenario, copy: Copy, trace: Trace, begun: float) -> None:
        self.copy = copy
        self.moments: list[Moment] = []
        self._scenario = scenario
        self._begun = begun
        self._endpoints = ReadyPods(copy.namespace)
        self._sent: deque[tuple[float, int]] = deque()
        settings = ReplaySettings(model=MODEL, time_compression=scenario.compression)
        if copy.service:
            settings = replace(settings, model=copy.service, ejection_time=0.05)
        self.replay = Replay(trace, self._by_url if copy.service else self._endpoints.current, settings)

    def work(self, cluster: Cluster, prometheus: Prometheus) -> list[Coroutine[Any, Any, None]]:
        """What has to run beside the traffic."""
        sampling = sample(cluster, prometheus, self._scenario, self.copy, self._minute, self._load, self.moments)
        return [sampling] if self.copy.service else [self._endpoints.follow(cluster), sampling]

    async def _by_url(self) -> list[Endpoint]:
        return [Endpoint(self.copy.service, self.copy.url, self.copy.chosen)]

    @property
    def late(self) -> float:
        """How late the latest requests were sent, at the 95th percentile, in seconds of the trace's time."""
        return percentile(np.array([one.late for one in self.replay.results[-RECENT:]], dtype=np.float64), 95)

    @property
    def over(self) -> bool:
        """Whether everything has been sent."""
        return self.replay.sent == len(self.replay.trace)

    def _minute(self) -> float:
        return (time.monotonic() - self._begun) * self._scenario.compression / 60

    def _load(self) -> float:
        now = time.monotonic() - self._begun
        sent = self._sent
        sent.append((now, self.replay.sent))
        while len(sent) > 2 and sent[0][0] < now - RATE_WINDOW:
            sent.popleft()
        (early, before), (late, after) = sent[0], sent[-1]
        return (after - before) / (late - early) / self._scenario.compression if late > early else 0.0


async def narrate(playing: list[Playing], scenario: Scenario) -> None:
    """A line whenever a desired count changes, and every ten seconds."""
    shown: dict[tuple[str, str], int] = {}
    at = 0.0
    while True:
        await asyncio.sleep(0.5)
        for one in playing:
            last = one.moments[-1] if one.moments else None
            if not isinstance(last, Sample):
                continue
            for variant in scenario.variants:
                known = one.copy.form, variant.name
                before, now = shown.get(known), last.desired[variant.name]
                if before is not None and now != before:
                    arrow = "[green]▲[/]" if now > before else "[yellow]▼[/]"
                    why = last.why.get(variant.name) or next(iter(last.why.values()), "")
                    say(f"{arrow} {one.copy.form}: {variant.accelerator} {before} → {now}   {why}")
                    at = time.monotonic()
                shown[known] = now
        if time.monotonic() - at > 10 and all(one.moments for one in playing):
            at = time.monotonic()
            say(f"minute {playing[0].moments[-1].minute:4.1f}: " + "; ".join(_state(one, scenario) for one in playing))
            late = max((one.late for one in playing if not one.over), default=0.0)
            if late > LATE:
                say(f"[yellow]the machine is too busy for honest latencies:[/] requests are sent {late:.2f} s late")


def _state(one: Playing, scenario: Scenario) -> str:
    last = one.moments[-1]
    load = f"{last.load:.1f}/s " if one.copy.act == 1 else ""
    if isinstance(last, Gap):
        return f"{one.copy.form} {load}not seen"
    counts = " ".join(f"{v.accelerator} {last.ready[v.name]}/{last.created[v.name]}" for v in scenario.variants)
    kv = "-" if last.kv is None else f"{last.kv:.2f}"
    queue = "-" if last.waiting is None else f"{last.waiting:.0f}"
    return f"{one.copy.form} {load}{counts} KV {kv} queue {queue}"


def sized(show: Show, played: Played) -> bool:
    """Claim that the profile of a service is what it was scaled by."""
    true = any(SIZED in why for look in played.samples for why in look.why.values())
    show.claim(f"the autoscaler saw the load of {played.copy.service}, and sized it by its profile", true)
    return true


def conclude(scenario: Scenario, played: Played) -> None:
    """Print what happened to one copy, and whether it is what was to be shown."""
    samples, results = played.samples, played.results
    console.print()
    console.rule(f"Act {played.copy.act}: {played.copy.title}", align="left")
    console.print(story.table(samples, scenario))
    console.print(story.latencies(results))
    columns = ("variant", "replica-minutes", "cost per replica-hour", "cost", "always at the peak")
    bill = story.figures("What it cost", columns)
    used = story.replica_minutes(played.moments, scenario)
    minutes = played.truth.minutes - played.truth.unseen
    total = total_peak = 0.0
    for variant in scenario.variants:
        peak = max((s.created[variant.name] for s in samples), default=0) * minutes
        cost, at_peak = (amount / 60 * float(variant.cost) for amount in (used[variant.name], peak))
        total, total_peak = total + cost, total_peak + at_peak
        bill.add_row(variant.name, f"{used[variant.name]:.1f}", variant.cost, f"{cost:.2f}", f"{at_peak:.2f}")
    bill.add_row("all", f"{sum(used.values()):.1f}", "", f"{total:.2f}", f"{total_peak:.2f}")
    console.print(bill)
    for finding in played.truth.findings:
        console.print(f"[bold red]Void:[/] {finding.text}" if finding.void else f"[yellow]Note:[/] {finding.text}")
    console.print(f"Traffic: {played.truth.text}.")
    verdict = played.verdict
    if played.truth.void:
        console.print(
            "[bold red]This run shows nothing.[/] Repeat it on a quieter machine, or with a lower --compression."
        )
        return
    said = f"[bold {'green' if verdict.good else 'red'}]{verdict.words}[/]"
    counts = (
        f"{verdict.ups} times up, {verdict.downs} times down, peak {verdict.peak} replicas, {verdict.last} at the end."
    )
    console.print(f"{said}: {counts}" + ("" if verdict.good else " The logs are below the output folder."))
