"""What an onboarding chooses against the best of all mixes, and what one costs on this machine.

    python benchmarks/onboarding.py [--cases 30] [--live]

Of each case two or three simulated engines of random speed and price are measured as an onboarding measures them, in a
closed loop at its four levels. What it chooses is compared with the cheapest of all mixes of their replicas that holds
the targets in the simulator, found by trying them all in order of cost. ``--live``: one onboarding from a bucket on the
local cluster, by the flow, with shortened benchmarks: wall time by step, Prefect task runs, calls to the API server.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from modelyard.benchmarks.records.values import LatencySpread, MeasuredRun
from modelyard.engine.config import EngineConfig
from modelyard.objects import Key
from modelyard.onboarding.planning.choose import choose
from modelyard.onboarding.planning.report import load_check
from modelyard.onboarding.request import OnboardRequest
from modelyard.profiles.fitting.closed_loop import Point, closed_loop
from modelyard.replay.backtest.simulate import simulate
from modelyard.replay.backtest.steady import steady_load
from modelyard.replay.policies.base import Fixed
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulation.variants import VariantSpec

REQUESTS = 2000
NAMES = ("large", "middle", "small")
ACCELERATORS = ("H100", "A100", "L40S")


def spread(ms: float) -> LatencySpread:
    """As if all were the same."""
    return LatencySpread(mean=ms / 1000, p50=ms / 1000, p90=ms / 1000, p95=ms / 1000, p99=ms / 1000)


def measured(engine: EngineConfig, asked: OnboardRequest) -> list[MeasuredRun]:
    """The runs of a closed loop; of what the engine does the median stands for the mean."""
    runs = []
    for level in asked.levels:
        seen = closed_loop(engine, Point(level, asked.prompt_tokens, asked.output_tokens, 1.0, 1.0))
        latency = (seen.ttft_p50 + (asked.output_tokens - 1) * seen.itl_p50) / 1000
        seconds = 100 * latency / level
        runs.append(
            MeasuredRun(
                scenario=f"D({asked.prompt_tokens},{asked.output_tokens})",
                concurrency=level,
                started="",
                seconds=seconds,
                requests=100,
                failed=0,
                requests_rate=100 / seconds,
                output_rate=100 * asked.output_tokens / seconds,
                prompt_tokens=asked.prompt_tokens,
                output_tokens=asked.output_tokens,
                latency=spread(1000 * latency),
                ttft=spread(seen.ttft_p50),
                itl=spread(seen.itl_p50),
            )
        )
    return runs


def case(number: int) -> tuple[OnboardRequest, dict[str, EngineConfig]]:
    """Random engines, each slower and cheaper than the one before it, and a load for some of them."""
    chance = random.Random(number)
    alpha, delta, price = chance.uniform(6, 12), chance.uniform(0.02, 0.05), chance.uniform(6, 12)
    engines, candidates = {}, []
    for name, accelerator in list(zip(NAMES, ACCELERATORS, strict=True))[: chance.choice((2, 3))]:
        engines[name] = EngineConfig(
            alpha, alpha * chance.uniform(0.01, 0.03), alpha * 2, delta, max_num_seqs=32, kv_cache_tokens=200_000
        )
        candidates.append({"runtime": name, "accelerator": accelerator, "price": round(price, 2)})
        slower = chance.uniform(1.3, 2.2)
        alpha, delta, price = alpha * slower, delta * slower, price / slower * chance.uniform(0.75, 1.25)
    asked = OnboardRequest.model_validate(
        {
            "uri": "hf://a/b",
            "name": "a",
            "candidates": candidates,
            "ttft": chance.choice((500, 1000, 2000)),
            "itl": chance.choice((20, 30, 50)),
            "rate": round(math.exp(chance.uniform(math.log(2), math.log(40))), 2),
            "prompt_tokens": chance.choice((200, 500, 1000)),
            "output_tokens": chance.choice((50, 100, 200)),
            "results": "pvc://a/b",
            "levels": (1, 8, 16, 32),
        }
    )
    return asked, engines


def holds(asked: OnboardRequest, engines: dict[str, EngineConfig], mix: dict[str, int]) -> bool:
    """Whether so many replicas hold the targets."""
    trace = steady_load(asked.rate, asked.prompt_tokens, asked.output_tokens, REQUESTS / asked.rate)
    specs = [VariantSpec(Key("", name), "", engines[name], initial=count) for name, count in mix.items() if count]
    results = simulate(trace, specs, Fixed(), SimulationSettings(pre_roll=0.0)).results
    return not load_check("", asked, asked.rate, 1, trace.duration, results).problem


def mixes(asked: OnboardRequest, below: float) -> Iterator[tuple[float, dict[str, int]]]:
    """All that cost no more, the cheapest first."""
    prices = {one.runtime: one.cost for one in asked.candidates}
    counts = itertools.product(*(range(int(below / price + 1e-9) + 1) for price in prices.values()))
    found = [dict(zip(prices, one, strict=True)) for one in counts]
    costed = [(sum(prices[name] * count for name, count in mix.items()), mix) for mix in found if any(mix.values())]
    return iter(sorted((one for one in costed if one[0] <= below + 1e-9), key=lambda one: one[0]))


def compare(cases: int) -> None:
    """Print the ratios."""
    alone, mixed, missed, none = [], [], 0, 0
    for number in range(cases):
        asked, engines = case(number)
        best = choose(asked, {name: measured(engine, asked) for name, engine in engines.items()}).chosen
        if best is None:
            none += 1
            continue
        if not holds(asked, engines, {best.candidate.runtime: best.replicas}):
            missed += 1
            continue
        least: dict[bool, float] = {}
        for cost, mix in mixes(asked, best.cost):
            pure = sum(count > 0 for count in mix.values()) == 1
            if (not least or (pure and True not in least)) and holds(asked, engines, mix):
                least.setdefault(False, cost)
                if pure:
                    least.setdefault(True, cost)
            if True in least:
                break
        mixed.append(best.cost / least[False])
        alone.append(best.cost / least[True])
    print(f"{cases} cases: in {none} no candidate reaches the target, in {missed} what was chosen misses it")
    for name, ratios in (("mix of candidates", mixed), ("candidate alone", alone)):
        found = np.array(ratios)
        shares = f"median {np.median(found):.3f}, mean {found.mean():.3f}, worst {found.max():.2f}"
        print(
            f"cost of what was chosen / of the cheapest {name}: {shares}; at most 1.05 in {(found <= 1.05).mean():.0%}"
        )


async def live(out: Path) -> None:
    """One onboarding, as ``make demo`` begins, by the flow in this process."""
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterFlowRunId
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from deployments.demo.onboarding import nodes, prerequisites, request
    from deployments.demo.run import TRACE
    from deployments.demo.scenario import CONTROLLER_NAMESPACE, NAMESPACE, Scenario
    from deployments.demo.sources import MISTRAL, Sources, allowed
    from deployments.stack import beside_a_cluster, write_prefect_file
    from flows.forms import arguments
    from flows.onboard import onboard
    from flows.parameters import OnboardParameters
    from modelyard.cluster.transport import ApiRequest, Transport
    from modelyard.local.settings import CONTROL_PLANE, Component, StackSettings
    from modelyard.objects.kinds import CONFIG_MAPS
    from modelyard.traffic.traces.trace import read_trace

    scenario = Scenario()
    trace = read_trace(TRACE).stretch(scenario.start_minute, scenario.minutes)
    settings = StackSettings(components=[*CONTROL_PLANE, Component.AGENT], nodes=nodes())
    async with (
        Sources() as sources,
        beside_a_cluster(out, settings, [CONTROLLER_NAMESPACE], print) as (_, prefect, cluster),
    ):
        await cluster.create(CONFIG_MAPS, allowed(sources))
        shift = {"interval_seconds": 3, "shift_seconds": 1800}
        write_prefect_file(out / "prefect.yaml", "reconcile", shift, every=900, after=15)
        await prefect.start()
        for manifest in prerequisites(scenario):
            await cluster.apply(manifest)
        calls: Counter[str] = Counter()
        send = Transport.send

        async def counted(transport: Transport, request: ApiRequest) -> bytes:
            calls[request.method] += 1
            return await send(transport, request)

        Transport.send = counted  # type: ignore[method-assign]
        given = OnboardParameters.model_validate(request(f"s3://models/{MISTRAL}", sources.url, scenario, trace))
        with temporary_settings({PREFECT_API_URL: prefect.server.api_url}):
            state: Any = await onboard(**arguments(given), return_state=True)
        print(f"\n{state.name}: {state.message} (namespace {NAMESPACE})\n")
        async with PrefectClient(prefect.server.api_url) as client:
            await asyncio.sleep(10)  # the server records what it is told a while later
            chosen = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[state.state_details.flow_run_id]))
            runs = await client.read_task_runs(task_run_filter=chosen, limit=200)
        for run in sorted(runs, key=lambda one: str(one.start_time)):
            print(f"| {run.name} | {run.total_run_time.total_seconds():.1f} s |")
        said = ", ".join(f"{method} {count}" for method, count in calls.most_common())
        print(f"\n{len(runs)} task runs; {calls.total()} calls to the API server by the flow: {said}")


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=30, help="random cases of the comparison; 0: none")
    parser.add_argument("--live", action="store_true", help="one onboarding on the local cluster")
    given = parser.parse_args()
    if given.cases:
        compare(given.cases)
    if given.live:
        os.environ["DO_NOT_TRACK"] = "1"
        with tempfile.TemporaryDirectory(prefix="modelyard-onboarding-") as out:
            asyncio.run(live(Path(out)))


if __name__ == "__main__":
    main()
