"""A whole tick over 100 and 1,000 objects of 10 pods each, against a real API server and Prometheus.

    python benchmarks/tick.py [--fleets saturation,mixed] [--sizes 100,1000] [--rounds 3]

``saturation``: VariantAutoscalings in saturation form. ``mixed``: half of them, three tenths in SLO form and two tenths
AutoscalingPolicyBindings, whose pods are scraped over HTTP (pages of 29 kB).

Prints, per size: seconds of the first tick (every status is written) and of the quiet ones after it (nothing changes)
by stage; number of PromQL queries; API calls per object and writes, as the API server counts them; CPU seconds of the
loop and of the servers; the load average of the machine; peak memory of the measuring process; and the growth from the
smallest to the largest size as a ratio against linear growth (1.0 = linear, below = better). The reference for the
quiet tick is the plain way in the same run: one GET of each object and of each workload, one after the other. The
ratios of wall time and of CPU time (loop and API server) to it are what two versions are compared by.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from crds import apply_crds
from prometheus_server import PrometheusServer, free_port
from tick_fleet.cpu import server_seconds
from tick_fleet.engines import KEEP_ALIVE, FleetSource, PageServer
from tick_fleet.objects import PODS_PER_OBJECT, SPACE, grow, planned, prepare

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.decision import TickDecision
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.live.settings import ControllerSettings
from modelyard.cluster import Cluster, ClusterSettings
from modelyard.local.binaries.obtain import ensure
from modelyard.local.settings import Component, StackSettings
from modelyard.local.stack import LocalStack
from modelyard.metrics.prometheus.client import Prometheus
from modelyard.objects.kinds import DEPLOYMENTS

FLEETS = ("saturation", "mixed")
SCRAPE_INTERVAL = 15
WARM_UP = 80
"""Seconds from the last pod to the first tick: a load window (60 s) of samples."""
STAGES = ("collect", "decide", "actuate", "report")
READS = {"GET", "LIST", "WATCH"}
REQUESTS = re.compile(r'^apiserver_request_total\{.*verb="([A-Z]+)".*\} (\S+)$', re.MULTILINE)


async def api_calls() -> tuple[float, float]:
    """Requests the API server has answered for anything but watches, and how many of them were writes."""
    kubectl = ensure(["kubectl"], print)["kubectl"]
    process = await asyncio.create_subprocess_exec(
        str(kubectl), "get", "--raw", "/metrics", stdout=asyncio.subprocess.PIPE
    )
    text = (await process.communicate())[0].decode()
    counts = [(verb, float(count)) for verb, count in REQUESTS.findall(text) if verb != "WATCH"]
    return sum(count for _, count in counts), sum(count for verb, count in counts if verb not in READS)


def asked(loop: Controller) -> int:
    """Queries to Prometheus so far."""
    return loop.prometheus.queries if isinstance(loop.prometheus, Prometheus) else 0


async def timed_tick(loop: Controller, folder: str) -> tuple[Fleet, TickDecision, dict[str, Any]]:
    """One tick with the seconds of each stage and what it asked for."""
    calls, writes = await api_calls()
    servers, cpu, queries = server_seconds(folder), time.process_time(), asked(loop)
    marks = [time.perf_counter()]
    fleet = await loop.collect()
    marks.append(time.perf_counter())
    decision = loop.decide(fleet)
    marks.append(time.perf_counter())
    done = await loop.actuate(fleet, decision)
    marks.append(time.perf_counter())
    await loop.report(decision, done)
    marks.append(time.perf_counter())
    cpu = time.process_time() - cpu
    used = {name: seconds - servers[name] for name, seconds in server_seconds(folder).items()}
    calls_after, writes_after = await api_calls()
    stages = {name: marks[n + 1] - marks[n] for n, name in enumerate(STAGES)}
    return (
        fleet,
        decision,
        {
            **stages,
            "seconds": marks[-1] - marks[0],
            "cpu": cpu,
            "servers": used,
            "calls": calls_after - calls,
            "writes": writes_after - writes,
            "queries": asked(loop) - queries,
            "load": os.getloadavg()[0],
        },
    )


async def measure(prometheus_url: str, rounds: int, folder: str) -> dict[str, Any]:
    """In a process of its own: one first tick and several quiet ones."""
    settings = ControllerSettings(prometheus_url=prometheus_url, fleet=FleetSettings(controller_namespace=SPACE))
    async with Controller(settings) as loop, Cluster.connect(ClusterSettings()) as counter:
        fleet, decision, first = await timed_tick(loop, folder)
        quiet = []
        for _ in range(rounds):
            await loop.wait_for_change(0)  # as a shift does: from here on it follows the cluster
            await asyncio.sleep(KEEP_ALIVE + 1)
            fleet, decision, found = await timed_tick(loop, folder)
            quiet.append(found)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        servers, cpu = server_seconds(folder), time.process_time()
        seconds = await _reference(counter, fleet)
        reference = {
            "seconds": seconds,
            "cpu": time.process_time() - cpu,
            "servers": {name: used - servers[name] for name, used in server_seconds(folder).items()},
        }
        return {
            "objects": len(fleet.variants) + len(fleet.bindings),
            "pods": len(fleet.pods),
            "reporting": len(fleet.signals.pods),
            "scraped": sum(len(target.instances) for view in fleet.bindings for target in view.targets),
            "undecided": sum(
                not record.target.decided
                for record in (*decision.records, *(r for binding in decision.bindings for r in binding.records))
            ),
            "problems": [*fleet.signals.partial_errors, *decision.errors][:5],
            "first": first,
            "quiet": quiet,
            "peak_mib": peak,
            "reference": reference,
        }


async def _reference(cluster: Cluster, fleet: Fleet) -> float:
    """Seconds of a GET of everything that is scaled and of its workloads, one after the other."""
    begun = time.perf_counter()
    for one in planned_of(fleet):
        await cluster.get(one.kind, one.name, SPACE)
        for workload in one.workloads:
            await cluster.get(DEPLOYMENTS, workload, SPACE)
    return time.perf_counter() - begun


def planned_of(fleet: Fleet) -> list[Any]:
    """The plan that a fleet was made from."""
    count = len(fleet.variants) + len(fleet.bindings)
    return planned("mixed" if fleet.bindings else "saturation", 0, count)


def run(fleet: str, sizes: list[int], rounds: int) -> None:
    """Grow one fleet through the sizes and measure at each."""
    with tempfile.TemporaryDirectory() as folder:
        source = FleetSource()
        server = PrometheusServer(Path(folder), free_port(), source.address, interval=f"{SCRAPE_INTERVAL}s")
        components = [Component.ETCD, Component.APISERVER]
        stack_settings = StackSettings(components=components)
        with (
            PageServer(free_port(), folder) as pages,
            LocalStack(stack_settings, name="bench", directory=Path(folder) / "cluster") as stack,
        ):
            os.environ["KUBECONFIG"] = str(stack.kubeconfig)
            asyncio.run(_prepare(stack, sizes[-1]))
            server.start()
            results = []
            made = 0
            for size in sizes:
                asyncio.run(_grow(stack, source, fleet, made, size, pages.port))
                made = size
                time.sleep(WARM_UP)
                command = [
                    sys.executable,
                    __file__,
                    "--measure",
                    server.url,
                    "--rounds",
                    str(rounds),
                    "--folder",
                    folder,
                ]
                child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                found = json.loads(child.stdout.splitlines()[-1])
                results.append(found)
                show(found)
            server.kill()
        source.close()
    small, large = results[0], results[-1]
    if small is not large:
        factor = large["objects"] / small["objects"]
        grown = best(large)["seconds"] / best(small)["seconds"]
        print(
            f"  growth of a quiet tick from {small['objects']} to {large['objects']} objects: {grown:.2f} times, "
            f"ratio to linear {grown / factor:.2f}"
        )


async def _prepare(stack: LocalStack, last: int) -> None:
    await apply_crds(stack.kubeconfig)
    async with Cluster.connect(ClusterSettings(kubeconfig=stack.kubeconfig)) as cluster:
        await prepare(cluster, last)


async def _grow(stack: LocalStack, source: FleetSource, fleet: str, start: int, end: int, port: int) -> None:
    objects = planned(fleet, start, end)
    async with Cluster.connect(ClusterSettings(kubeconfig=stack.kubeconfig)) as cluster:
        await grow(cluster, objects, port)
    source.add(SPACE, ((pod, one.model, one.engine) for one in objects for _, pod, _ in one.pods()))


def best(found: dict[str, Any]) -> dict[str, Any]:
    """The fastest quiet tick."""
    quiet: list[dict[str, Any]] = found["quiet"]
    return min(quiet, key=lambda tick: tick["seconds"])


def show(found: dict[str, Any]) -> None:
    """One size's figures."""
    quiet, n = found["quiet"], found["objects"]
    print(
        f"{n} objects, {found['pods']} pods listed, {found['reporting']} reporting to Prometheus, "
        f"{found['scraped']} scraped; {found['undecided']} undecided"
    )
    for problem in found["problems"]:
        print(f"  problem: {problem}")
    for name, t in (("first", found["first"]), *((f"quiet {i}", t) for i, t in enumerate(quiet, 1))):
        stages = ", ".join(f"{stage} {t[stage]:.2f}" for stage in STAGES)
        print(
            f"  {name:7} tick {t['seconds']:6.2f} s ({stages}); {t['queries']:.0f} PromQL queries; "
            f"{t['calls']:.0f} API calls = {t['calls'] / n:.3f} per object, {t['writes']:.0f} of them writes; "
            f"load average {t['load']:.1f}"
        )
        shares = ", ".join(f"{server} {seconds:.2f}" for server, seconds in t["servers"].items())
        print(f"          CPU seconds: {t['cpu'] + sum(t['servers'].values()):.2f} (the loop {t['cpu']:.2f}, {shares})")
    quick, reference = best(found), found["reference"]
    least = min(quiet, key=cpu_of)
    print(
        f"  peak memory {found['peak_mib']:.0f} MiB; reference (a GET per object) {reference['seconds']:.2f} s: "
        f"the best quiet tick is {reference['seconds'] / quick['seconds']:.2f} times as fast"
    )
    print(
        f"  CPU of loop and API server: the cheapest quiet tick {cpu_of(least):.2f} s, the reference "
        f"{cpu_of(reference):.2f} s: {cpu_of(reference) / cpu_of(least):.2f} times as cheap",
        flush=True,
    )


def cpu_of(measured: dict[str, Any]) -> float:
    """CPU seconds of the loop and the API server."""
    return float(measured["cpu"] + measured["servers"]["API server"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", default=",".join(FLEETS))
    parser.add_argument("--sizes", default="100,1000")
    parser.add_argument("--rounds", type=int, default=3, help="quiet ticks per size")
    parser.add_argument("--measure", metavar="PROMETHEUS_URL", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(asyncio.run(measure(given.measure, given.rounds, given.folder))))
        return
    if not re.fullmatch(r"\d+(,\d+)*", given.sizes):
        parser.error("--sizes: numbers separated by commas, for example 100,1000")
    fleets = given.fleets.split(",")
    if unknown := set(fleets) - set(FLEETS):
        parser.error(f"--fleets: {', '.join(sorted(unknown))} unknown; choose from {', '.join(FLEETS)}")
    print(f"cpu: {os.cpu_count()} cores; {PODS_PER_OBJECT} pods per object; seconds of wall time")
    for fleet in fleets:
        print(f"fleet: {fleet}")
        run(fleet, [int(size) for size in given.sizes.split(",")], given.rounds)


if __name__ == "__main__":
    main()
