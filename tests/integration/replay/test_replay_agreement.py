"""The simulator against the live engine process: the same short trace through real HTTP, in compressed time.

What the live side adds is wall time on the way (connections, scheduling), which compression multiplies: it is allowed
for once in TTFT, and spread over the tokens of an answer in ITL.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable

import numpy as np
import pytest

from modelyard.engine.config import EngineConfig
from modelyard.objects import Key
from modelyard.replay.backtest.simulate import simulate
from modelyard.replay.policies.base import Fixed
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulation.variants import VariantSpec
from modelyard.traffic.clients.replay import Replay, ReplaySettings
from modelyard.traffic.router import Endpoint
from modelyard.traffic.traces.latency import Ending
from modelyard.traffic.traces.trace import Trace

pytestmark = pytest.mark.integration

COMPRESSION = 6.0
WALL = 0.03
"""Seconds of wall time that a request may lose on its way on a busy machine."""
OPTIONS = {"alpha": 40.0, "beta": 2.0, "gamma": 60.0, "delta": 0.4, "max_num_seqs": 12, "kv_cache_tokens": 40_000}


def traffic(rate: float, seconds: float) -> Trace:
    chance = np.random.default_rng(11)
    at = np.sort(chance.uniform(0, seconds, int(rate * seconds)))
    prompt = chance.integers(50, 1500, len(at))
    output = chance.integers(20, 120, len(at))
    return Trace(at, prompt.astype(np.int64), output.astype(np.int64), seconds)


def summed(text: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE))


@pytest.mark.timing_sensitive(
    "wall time on the way of a request, which compression multiplies, counts against the simulator"
)
@pytest.mark.parametrize(("replicas", "rate"), [(1, 1.4), (1, 2.6), (2, 3.5)], ids=["light", "queueing", "two"])
async def test_percentiles_agree(start_live_engine: Callable[..., str], replicas: int, rate: float) -> None:
    trace = traffic(rate, 60.0)
    flags = [part for name, value in OPTIONS.items() for part in (f"--{name.replace('_', '-')}", f"{value:g}")]
    urls = [start_live_engine("--time-compression", str(COMPRESSION), *flags) for _ in range(replicas)]
    endpoints = [Endpoint(f"pod-{number}", url) for number, url in enumerate(urls)]

    async def source() -> list[Endpoint]:
        return endpoints

    live = Replay(trace, source, ReplaySettings("m", COMPRESSION))
    results = await live.run()
    assert all(result.ending is Ending.OK for result in results)

    variant = VariantSpec(Key("chat", "m"), "m", EngineConfig(**OPTIONS), initial=replicas)  # type: ignore[arg-type]
    run = simulate(trace, [variant], Fixed(), SimulationSettings(pre_roll=0))
    assert run.results.answered.all()

    # Prompts as the live engine counted them.
    counted = np.array([result.prompt_tokens for result in sorted(results, key=lambda r: r.index)])
    assert counted == pytest.approx(trace.prompt, rel=0.02, abs=12)
    ttft = np.array([result.ttft for result in results], dtype=np.float64)
    itl = np.array([result.itl for result in results], dtype=np.float64)
    for share in (50, 90, 95):
        simulated = float(np.percentile(run.results.itl, share))
        late = WALL * COMPRESSION / (float(np.mean(trace.output)) - 1)
        tolerance = late + (0.05 if replicas == 1 else 0.1) * simulated
        assert float(np.percentile(itl, share)) == pytest.approx(simulated, abs=tolerance)
        simulated = float(np.percentile(run.results.ttft, share))
        difference = float(np.percentile(ttft, share)) - simulated
        # Where requests queue, small delays add up.
        assert -0.1 * simulated <= difference <= 0.1 * simulated + WALL * COMPRESSION, (share, simulated, difference)

    # What the engines themselves counted, without the way.
    texts = [urllib.request.urlopen(f"{url}/metrics").read().decode() for url in urls]  # noqa: ASYNC210
    name = "vllm:inter_token_latency_seconds"
    total = sum(summed(text, f"{name}_sum") for text in texts)
    count = sum(summed(text, f"{name}_count") for text in texts)
    stats = [pod.core.stats.itl for pod in run.pods]
    assert count == sum(one.count for one in stats)
    assert total / count == pytest.approx(sum(one.total for one in stats) / count, rel=0.03)
