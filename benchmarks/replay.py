"""How fast a replay is: the shipped hour of traffic, at its own rate and at ten times it, on one core.

    python benchmarks/replay.py [--rates 1 10] [--policies fixed:8,default]

Prints the seconds of each replay, how many times faster than the traffic it is, and the ratio to a reference in this
file, measured in the same run: the same engines and requests with every engine advanced at every arrival and event-free
routing by turns, no policy, no metrics, no per-request results - what the engines alone cost.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.offline.fleet import fleet_from_files
from modelyard.autoscaling.offline.manifests import read_manifests
from modelyard.autoscaling.offline.snapshot import Snapshot
from modelyard.engine.config import PROFILES
from modelyard.engine.core import EngineCore
from modelyard.objects import Key
from modelyard.replay.backtest.report import summarize
from modelyard.replay.backtest.simulate import simulate
from modelyard.replay.policies.base import Fixed
from modelyard.replay.policies.parse import make, split
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulation.variants import VariantSpec, variants_of
from modelyard.traffic.traces.latency import SLO
from modelyard.traffic.traces.trace import Trace, read_trace

ROOT = Path(__file__).resolve().parent.parent
TRACE = ROOT / "benchmarks/data/azure-llm-inference-2023-conversation.csv"
MANIFESTS = ROOT / "config/samples/plan/manifests.yaml"
REPLICAS_PER_RATE = 1.0


def bare(trace: Trace, replicas: int) -> float:
    """Seconds of the reference."""
    begin = time.perf_counter()
    cores = [EngineCore(PROFILES["h100"]) for _ in range(replicas)]
    rows = zip(trace.at.tolist(), trace.prompt.tolist(), trace.output.tolist(), strict=True)
    for number, (at, prompt, output) in enumerate(rows):
        for core in cores:
            core.advance(at)
        cores[number % replicas].submit(prompt, output)
    for core in cores:
        core.advance(trace.duration + 600)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=None)
    parser.add_argument("--policies", default="default,published,hpa:kv=0.6")
    options = parser.parse_args()
    manifests = read_manifests([MANIFESTS])
    variants = variants_of(fleet_from_files(manifests, Snapshot(), 0.0), manifests)
    recorded = read_trace(TRACE)
    for rate in options.rates or [1.0, 10.0]:
        trace = recorded.scaled(rate=rate)
        replicas = max(2, round(rate * REPLICAS_PER_RATE))
        reference = bare(trace, replicas)
        print(f"rate x {rate:g}: {len(trace):,} requests in {trace.duration / 3600:.2f} h")
        print(f"  {'engines alone':<20} {reference:6.2f} s  {trace.duration / reference:8.0f} x real time")
        same = VariantSpec(Key("chat", "m"), "m", PROFILES["h100"], initial=replicas)
        begin = time.perf_counter()
        simulate(trace, [same], Fixed(), SimulationSettings())
        _say("fixed, same engines", time.perf_counter() - begin, reference, trace, "")
        for text in split(options.policies):
            policy = make(text, manifests, FleetSettings())
            begin = time.perf_counter()
            run = simulate(trace, variants, policy)
            seconds = time.perf_counter() - begin
            row = summarize(run, SLO())
            _say(str(text), seconds, reference, trace, f"peak {row.peak_replicas}, {row.attainment:.2%} within the SLO")


def _say(name: str, seconds: float, reference: float, trace: Trace, more: str) -> None:
    speed = trace.duration / seconds
    print(f"  {name:<20} {seconds:6.2f} s  {speed:8.0f} x real time  ratio {seconds / reference:5.2f}  {more}")


if __name__ == "__main__":
    main()
