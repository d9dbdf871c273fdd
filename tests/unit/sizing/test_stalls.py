"""How many requests miss because prompts stall their decoding: against the exact sum and the simulator."""

from __future__ import annotations

import math

import numpy as np
import pytest
from examples import few
from hypothesis import given, strategies as st

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.sizing.stalls import SPREAD, Sizes, Speed, evened, missed, per_request, sizes_of
from modelyard.engine.config import PROFILES
from modelyard.objects import Key
from modelyard.replay.backtest.report import summarize
from modelyard.replay.backtest.simulate import simulate
from modelyard.replay.policies.parse import make, split
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulation.variants import VariantSpec
from modelyard.traffic.traces.latency import SLO
from modelyard.traffic.traces.trace import Trace

L40S = Speed(22.6, 0.18, 25.0, 0.105, 2000.0, 60.0)
LOADS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])


def one(tokens: float) -> Sizes:
    return Sizes(np.array([tokens]), np.array([1.0]))


@pytest.mark.parametrize(("prompt", "output"), [(500, 20), (2000, 100), (4000, 400)])
def test_of_equal_requests_it_is_borels_sum(prompt: int, output: int) -> None:
    """A busy period of equal jobs: c / (c + j s) · Poisson(j; λ (c + j s)) over the j prompts that still fit in."""
    engine = L40S._replace(ttft=0.0)
    busy = per_request(engine, prompt, output)
    assert busy is not None
    for load, found in zip(LOADS, missed(engine, one(prompt), one(output), LOADS), strict=True):
        rate = load / busy / 1000
        batch = rate * output * engine.alpha / (1 - rate * (engine.delta * prompt + engine.beta * output))
        work, stall = (output - 1) * (engine.alpha + engine.beta * max(1.0, batch)), engine.delta * prompt
        fit = math.floor(((output - 1) * engine.itl - work) / stall)
        ends = (work + j * stall for j in range(fit + 1))
        exact = 1 - sum(
            work / end * math.exp(j * math.log(rate * end) - rate * end - math.lgamma(j + 1))
            for j, end in enumerate(ends)
        )
        assert 0.8 * exact - 0.003 <= found <= 2.5 * exact + 0.003, "cells make it more where few prompts are too many"


sizes = st.lists(st.tuples(st.floats(1, 20_000), st.floats(0.01, 1)), min_size=1, max_size=12).map(
    lambda pairs: Sizes(np.array([t for t, _ in pairs]), np.array([s for _, s in pairs]) / sum(s for _, s in pairs))
)


@few
@given(sizes, sizes, st.floats(23, 500), st.floats(30, 1e4))
def test_it_is_a_share_that_rises_with_the_load(prompts: Sizes, outputs: Sizes, itl: float, ttft: float) -> None:
    found = missed(L40S._replace(itl=itl, ttft=ttft), prompts, outputs, np.linspace(0.01, 1, 12))
    assert (found >= 0).all()
    assert (found <= 1).all()
    assert (np.diff(found) >= 0).all()


def test_long_prompts_few_tokens_and_a_strict_percentile_make_more_misses() -> None:
    prompts, outputs = (sizes_of((), mean) for mean in (1155.0, 211.0))
    usual = missed(L40S, prompts, outputs, LOADS)
    short = missed(L40S, prompts, sizes_of((), 30.0), LOADS)
    assert (short[:3] > usual[:3]).all(), "answers of a few tokens miss by a single prompt beside them"
    assert (missed(L40S, sizes_of((), 3000.0), outputs, LOADS) >= usual).all()
    assert (missed(L40S, prompts, outputs, LOADS, (1.0, 0.2)) <= usual).all()
    assert missed(L40S._replace(itl=20.0), prompts, outputs, LOADS).tolist() == [1.0] * 5, (
        "not even one alone is within"
    )


def test_sizes_of_a_histogram_have_its_shares_and_its_mean() -> None:
    buckets = ((100.0, 0.5), (1000.0, 0.25), (math.inf, 0.25))
    found = sizes_of(buckets, 700.0)
    assert found.mean == pytest.approx(700.0)
    assert found.shares.sum() == pytest.approx(1.0)
    assert found.shares[np.argsort(found.tokens)][:3].sum() == pytest.approx(0.5)
    assert len(found.merged(4).tokens) <= 4
    assert found.merged(4).mean == pytest.approx(700.0)
    assert sizes_of((), 90.0).mean == pytest.approx(90.0)
    assert len(sizes_of((), 90.0).tokens) == len(SPREAD.tokens)
    assert (np.diff(evened(np.arange(1.0, 50.0))) < 0).all()


@pytest.mark.parametrize(("replicas", "load"), [(1, 0.6), (2, 0.65), (4, 0.75)])
def test_the_simulated_engine_agrees(replicas: int, load: float) -> None:
    """Random arrivals of exponential sizes on warm replicas, two hundred minutes of them together."""
    chance = np.random.default_rng(3)
    busy = per_request(L40S, 1000.0, 200.0)
    assert busy is not None
    count = 20_000
    at = np.cumsum(chance.exponential(busy / (load * replicas), count))
    prompt, output = (np.maximum(2, chance.exponential(mean, count)).astype(np.int64) for mean in (1000, 200))
    trace = Trace(at, prompt, output, float(at[-1]) + 1)
    spec = VariantSpec(Key("chat", "v"), "m", PROFILES["l40s"], replicas, 120.0, cost=1.0)
    (policy,) = split(f"fixed:{replicas}")
    run = simulate(trace, (spec,), make(policy, [], FleetSettings()), SimulationSettings(warm_up=300.0))
    seen = 1 - summarize(run, SLO(ttft=2.0, itl=0.06)).attainment
    quantiles = (np.arange(40) + 0.5) / 40
    drawn = Sizes(-np.log(1 - quantiles), np.full(40, 1 / 40))
    prompts, outputs = (Sizes(drawn.tokens * mean / drawn.mean, drawn.shares) for mean in (1000.0, 200.0))
    thought = float(missed(L40S, prompts, outputs, np.array([load * float(evened(np.array(float(replicas))))]))[0])
    assert seen / 2.5 <= thought <= 2.5 * seen
