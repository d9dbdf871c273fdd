"""The simulator against closed forms: M/M/1, M/M/c, and a random split of a Poisson stream.

The engine is made to be such a server: a step of twenty milliseconds whatever the batch, prompts that cost nothing, and
a number of tokens that is exponential with a mean of fifty. Tolerances are four standard deviations of the mean of so
many customers, from the asymptotic variance of an M/M/1 queue's waiting times.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from replay_fleets import spec

from modelyard.engine.config import EngineConfig
from modelyard.replay.backtest.simulate import Run, simulate
from modelyard.replay.policies.base import Fixed
from modelyard.replay.settings import SimulationSettings
from modelyard.traffic.router import Routing
from modelyard.traffic.traces.trace import Trace

CUSTOMERS = 8_000
SERVICE = 1.0
"""Mean service time, seconds."""
STEP = 0.02


def server(places: int) -> EngineConfig:
    return EngineConfig(
        alpha=1000 * STEP, beta=0.0, gamma=0.0, delta=0.0, max_num_seqs=places, kv_cache_tokens=10_000_000
    )


def traffic(rate: float, first_token: int = 1) -> Trace:
    """``first_token``: a token that costs no time, which is so when no other request is in the batch."""
    customers = CUSTOMERS
    chance = np.random.default_rng(7)
    at = np.cumsum(chance.exponential(1 / rate, customers))
    tokens = first_token + np.maximum(1, np.rint(chance.exponential(SERVICE / STEP, customers))).astype(np.int64)
    return Trace(at, np.ones(customers, dtype=np.int64), tokens, float(at[-1]))


def sojourn(run: Run) -> float:
    return float((run.results.end - run.results.at).mean())


def waiting(run: Run) -> float:
    return float(run.results.ttft.mean())


def deviation(load: float, customers: int) -> float:
    """Standard deviation of the mean waiting time over ``customers`` of an M/M/1 queue, in service times."""
    variance = load * (2 + 5 * load - 4 * load**2 + load**3) / (1 - load) ** 4
    return math.sqrt(variance / customers)


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_one_server(load: float) -> None:
    run = simulate(traffic(load / SERVICE), [spec(engine=server(1))], Fixed(), SimulationSettings(pre_roll=0))
    tolerance = 4 * deviation(load, CUSTOMERS)
    assert waiting(run) == pytest.approx(load / (1 - load), abs=tolerance)
    assert sojourn(run) == pytest.approx(1 / (1 - load), abs=tolerance + 4 / math.sqrt(CUSTOMERS))


@pytest.mark.parametrize(("places", "load"), [(2, 0.6), (4, 0.75), (16, 0.85)])
def test_several_servers_with_one_queue(places: int, load: float) -> None:
    rate = places * load / SERVICE
    run = simulate(traffic(rate, first_token=0), [spec(engine=server(places))], Fixed(), SimulationSettings(pre_roll=0))
    offered = places * load
    last = offered**places / math.factorial(places) / (1 - load)
    delayed = last / (sum(offered**n / math.factorial(n) for n in range(places)) + last)
    expected = delayed / (places / SERVICE - rate)
    # Those that wait behave like customers of an M/M/1 queue that is `places` times faster. On top of its wait, a
    # request's first token takes what is left of the step under way and the next one.
    own = 1.5 * STEP
    assert waiting(run) - own == pytest.approx(expected, abs=4 * deviation(load, CUSTOMERS) / places + STEP / 2)
    # Waits that are shorter than a step or two cannot be told from none.
    waited = float((run.results.ttft > 2 * STEP + 1e-9).mean())
    short = math.exp(-2 * STEP * (places / SERVICE - rate))
    assert short * delayed - 0.03 <= waited <= delayed + 0.03


def test_a_random_split_makes_independent_queues() -> None:
    load, replicas = 0.5, 4
    run = simulate(
        traffic(replicas * load / SERVICE),
        [spec(engine=server(1), initial=replicas)],
        Fixed(),
        SimulationSettings(pre_roll=0, routing=Routing.RANDOM, seed=3),
    )
    assert waiting(run) == pytest.approx(load / (1 - load), abs=4 * deviation(load, CUSTOMERS))
    least = simulate(
        traffic(replicas * load / SERVICE),
        [spec(engine=server(1), initial=replicas)],
        Fixed(),
        SimulationSettings(pre_roll=0, routing=Routing.LEAST_OUTSTANDING),
    )
    # Joining the shortest queue is between the split and one common queue.
    assert 0.087 < waiting(least) < 0.5 * waiting(run)
