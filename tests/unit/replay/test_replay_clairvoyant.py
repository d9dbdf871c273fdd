"""The lower bound: never above what a policy paid at its attainment, and not trivially below it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from examples import few
from hypothesis import given, strategies as st
from replay_fleets import ENGINE, Script, poisson, spec, trace_of

from modelyard.engine.config import EngineConfig
from modelyard.replay.backtest.clairvoyant import Clairvoyant, Programme
from modelyard.replay.backtest.report import summarize
from modelyard.replay.backtest.simulate import simulate
from modelyard.replay.policies.base import Fixed, Policy
from modelyard.replay.policies.horizontal import HPAPolicy, KEDAPolicy
from modelyard.replay.settings import SimulationSettings
from modelyard.traffic.traces.latency import SLO
from modelyard.traffic.traces.trace import Trace

QUICK = SimulationSettings(pre_roll=60)


def never_beaten(trace: Trace, policy: Policy, slo: SLO, *variants: object) -> None:
    fleet = list(variants) or [spec(startup=30)]
    run = simulate(trace, fleet, policy, QUICK)  # type: ignore[arg-type]
    paid = summarize(run, slo)
    bound = Clairvoyant(trace, fleet, slo).bound(paid.attainment)  # type: ignore[arg-type]
    assert bound.attainable >= paid.attainment - 1e-12
    assert bound.replica_hours <= paid.replica_hours + 1e-9
    assert bound.cost <= paid.cost + 1e-9


@pytest.mark.parametrize("policy", [Fixed(1), Fixed(2), Fixed(4), HPAPolicy("queue", 1), KEDAPolicy("running", 8)])
@pytest.mark.parametrize("slo", [SLO(1.0, 0.02), SLO(0.3, 0.014), SLO(5.0, 0.1)])
@pytest.mark.parametrize("rate", [3.0, 30.0])
def test_no_policy_is_below_the_bound(policy: Policy, slo: SLO, rate: float) -> None:
    if not isinstance(policy, Fixed):
        policy = type(policy)(policy.metric, policy.target)  # type: ignore[attr-defined, call-arg]
    never_beaten(poisson(rate, 150, seed=int(rate)), policy, slo)


@few
@given(
    rows=st.lists(st.tuples(st.floats(0, 200), st.integers(1, 2000), st.integers(1, 200)), min_size=1, max_size=80),
    steps=st.lists(st.tuples(st.floats(0, 200), st.integers(0, 3)), max_size=6),
    initial=st.integers(0, 3),
    startup=st.sampled_from([0.0, 3.0, 30.0, 90.0]),
    ttft=st.floats(0.05, 5.0),
    itl=st.floats(0.011, 0.1),
)
def test_no_timetable_is_below_the_bound(
    rows: list[tuple[float, int, int]],
    steps: list[tuple[float, int]],
    initial: int,
    startup: float,
    ttft: float,
    itl: float,
) -> None:
    variant = spec(initial=initial, startup=startup)
    never_beaten(trace_of(rows, 240.0), Script(*sorted(steps)), SLO(ttft, itl), variant)


def test_two_variants_are_mixed_at_least_cost() -> None:
    fast = spec("fast", engine=replace(ENGINE, alpha=5, beta=0.2), cost=40.0)
    slow = spec("slow", cost=10.0)
    traffic = poisson(20, 240, seed=4)
    for replicas in (1, 2):
        never_beaten(traffic, Fixed(replicas), SLO(1.0, 0.02), fast, slow)
    both = Clairvoyant(traffic, [fast, slow], SLO(1.0, 0.02)).bound(0.99)
    runs = (simulate(traffic, [replace(slow, initial=number)], Fixed(), QUICK) for number in range(1, 10))
    alone = next(paid for paid in (summarize(run, SLO(1.0, 0.02)) for run in runs) if paid.attainment >= 0.99)
    assert both.cost <= alone.cost + 1e-9
    assert both.replica_hours <= alone.replica_hours + 1e-9


def test_the_bound_is_tight_for_a_server_that_is_always_full() -> None:
    # Batch 1, so that work is exactly service time; 95 % of the time is needed, whatever the policy.
    engine = EngineConfig(alpha=10, beta=0, gamma=0, delta=0, max_num_seqs=1, kv_cache_tokens=10_000)
    rows = [(float(second), 1, 96) for second in range(600)]
    traffic = trace_of(rows, 605.0)
    bound = Clairvoyant(traffic, [spec(engine=engine)], SLO(1.0, 0.02)).bound(1.0)
    run = simulate(traffic, [spec(engine=engine)], Fixed(1), QUICK)
    paid = summarize(run, SLO(1.0, 0.02))
    assert paid.attainment == 1.0
    assert 0.93 * paid.replica_hours <= bound.replica_hours <= paid.replica_hours


def test_start_up_is_paid() -> None:
    # Two bursts, long after each other, each of which needs two replicas for a minute.
    engine = EngineConfig(alpha=10, beta=0, gamma=0, delta=0, max_num_seqs=1, kv_cache_tokens=10_000)
    rows = [(begin + second / 2, 1, 96) for begin in (0.0, 3000.0) for second in range(120)]
    traffic = trace_of(rows, 3600.0)
    costs = [
        Clairvoyant(traffic, [spec(engine=engine, startup=startup)], SLO(5.0, 0.02)).bound(1.0).replica_hours
        for startup in (0.0, 60.0, 300.0)
    ]
    assert costs[0] == pytest.approx(2 * 114 / 3600, rel=0.02), "with free starts only the work is paid"
    assert costs[0] < costs[1] < costs[2]


def test_it_falls_with_the_attainment_asked_for() -> None:
    bound = Clairvoyant(poisson(20, 240, seed=1), [spec()], SLO(1.0, 0.02))
    hours = [bound.bound(share).replica_hours for share in (1.0, 0.9, 0.5, 0.01)]
    assert hours == sorted(hours, reverse=True)
    assert hours[-1] < 0.1 * hours[0]


def test_targets_that_no_engine_can_meet() -> None:
    traffic = trace_of([(0.0, 100, 10), (1.0, 5000, 10), (2.0, 100, 1), (3.0, 100, 5)], 10)
    # 5,000 prompt tokens take half a second.
    slow = Clairvoyant(traffic, [spec()], SLO(0.3, 0.02)).bound(1.0)
    assert math.isinf(slow.cost)
    assert slow.attainable == 0.75
    assert math.isfinite(Clairvoyant(traffic, [spec()], SLO(0.3, 0.02)).bound(0.75).cost)
    # No step is shorter than 10.5 ms: only the request of a single token can be within.
    fast = Clairvoyant(traffic, [spec()], SLO(1.0, 0.01)).bound(0.5)
    assert fast.attainable == 0.25
    assert math.isinf(fast.replica_hours)


def test_a_programme_is_minimised_and_what_has_no_solution_is_infinite() -> None:
    programme = Programme()
    x, y = programme.column(3.0), programme.column(2.0, upper=4.0)
    programme.row(10.0, math.inf, [(x, 1.0), (y, 1.0)])
    assert programme.solve() == pytest.approx(3 * 6 + 2 * 4)
    whole = Programme()
    n = whole.column(1.0, whole=True)
    row = whole.row(2.5, math.inf, [])
    whole.entry(row, n, 1.0)
    assert whole.solve() == pytest.approx(3)
    programme.row(-math.inf, 3.0, [(x, 1.0), (y, 1.0)])
    assert math.isinf(programme.solve())
