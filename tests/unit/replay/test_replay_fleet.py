"""The simulated fleet: nothing is lost, nothing happens before its cause, equal seeds give equal results."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from replay_fleets import ENGINE, KEY, Script, poisson, spec, trace_of

from modelyard.replay.backtest.simulate import Run, simulate
from modelyard.replay.policies.base import Fixed
from modelyard.replay.settings import SimulationSettings
from modelyard.traffic.router import Routing
from modelyard.traffic.traces.latency import Ending

QUICK = SimulationSettings(pre_roll=60)


def check(run: Run) -> None:
    """The invariants of every replay."""
    r = run.results
    answered = r.answered
    # Conservation: every request has one ending, and the engines finished exactly those that were answered.
    finished = sum(sum(pod.core.stats.finished.values()) for pod in run.pods)
    assert finished == int(answered.sum())
    assert not np.isnan(r.end[answered]).any()
    assert np.isnan(r.end[~answered]).all()
    tokens = sum(pod.core.stats.generation_tokens.total for pod in run.pods)
    assert tokens == r.output[answered].sum()
    # No time travel: arrival, first token, end, in this order, on a pod that was ready and not yet ended.
    assert (r.first[answered] > r.at[answered]).all()
    assert (r.end[answered] >= r.first[answered]).all()
    for number in np.flatnonzero(answered):
        pod = run.pods[r.pod[number]]
        assert pod.ready_at <= r.first[number]
        assert math.isnan(pod.ended) or r.end[number] <= pod.ended
        assert math.isnan(pod.removed_at) or r.at[number] <= pod.removed_at
    for pod in run.pods:
        assert pod.outstanding == len(pod.inflight)
        if not math.isnan(pod.ready_at):
            assert pod.ready_at - pod.created == pytest.approx(pod.variant.startup)
        if not math.isnan(pod.removed_at) and not math.isnan(pod.ended):
            assert pod.removed_at <= pod.ended <= pod.removed_at + pod.variant.grace + 1e-9
    # A mean can be no longer than the longest gap.
    several = answered & (r.output > 1)
    assert (r.itl_max[several] >= r.itl[several] - 1e-9).all()
    assert sum(pod.outstanding for pod in run.pods) <= int((r.ending == Ending.UNFINISHED).sum())


@given(
    rows=st.lists(
        st.tuples(st.floats(0, 120, allow_nan=False), st.integers(1, 3000), st.integers(1, 300)),
        min_size=1,
        max_size=60,
    ),
    steps=st.lists(st.tuples(st.floats(0, 130), st.integers(0, 4)), max_size=6),
    initial=st.integers(0, 3),
    grace=st.sampled_from([0.0, 2.0, 60.0]),
    startup=st.sampled_from([0.0, 7.5, 40.0]),
    routing=st.sampled_from(list(Routing)),
    queue_limit=st.sampled_from([1.0, 30.0, 400.0]),
    jitter=st.sampled_from([0.0, 0.2]),
    cache=st.sampled_from([4096, 16_000]),
)
def test_invariants_hold_whatever_happens(
    rows: list[tuple[float, int, int]],
    steps: list[tuple[float, int]],
    initial: int,
    grace: float,
    startup: float,
    routing: Routing,
    queue_limit: float,
    jitter: float,
    cache: int,
) -> None:
    engine = replace(ENGINE, jitter=jitter, kv_cache_tokens=cache)
    variants = [spec(engine=engine, initial=initial, grace=grace, startup=startup), spec("other", engine=engine)]
    chosen = replace(QUICK, routing=routing, queue_limit=queue_limit)
    check(simulate(trace_of(rows), variants, Script(*sorted(steps)), chosen))


def test_equal_seeds_give_equal_results() -> None:
    traffic = poisson(8, 300)
    engine = replace(ENGINE, jitter=0.3)

    def run(seed: int) -> Run:
        chosen = replace(QUICK, routing=Routing.RANDOM, seed=seed)
        return simulate(traffic, [spec(engine=engine)], Script((50, 4), (200, 2)), chosen)

    one, two, other = run(1), run(1), run(2)
    assert np.array_equal(one.results.end, two.results.end, equal_nan=True)
    assert np.array_equal(one.results.itl_max, two.results.itl_max, equal_nan=True)
    assert one.actions == two.actions
    assert not np.array_equal(one.results.end, other.results.end, equal_nan=True)


def test_one_request_alone_takes_what_the_engine_model_says() -> None:
    run = simulate(trace_of([(5.0, 100, 11)], 60), [spec()], Fixed(), QUICK)
    ttft = (ENGINE.gamma + ENGINE.delta * 100) / 1000
    itl = (ENGINE.alpha + ENGINE.beta) / 1000
    assert run.results.ttft[0] == pytest.approx(ttft)
    assert run.results.itl[0] == pytest.approx(itl)
    assert run.results.itl_max[0] == pytest.approx(itl)
    assert run.results.end[0] == pytest.approx(5 + ttft + 10 * itl)


def test_the_longest_gap_is_where_another_prompt_was_computed() -> None:
    # The second request's prompt of 2,000 tokens takes 200 ms, in which the first one gets no token.
    run = simulate(trace_of([(0.0, 10, 100), (0.5, 2000, 2)], 60), [spec()], Fixed(), QUICK)
    assert run.results.itl_max[0] == pytest.approx((ENGINE.alpha + ENGINE.beta) / 1000 + 0.2)
    assert run.results.itl_max[1] == pytest.approx((ENGINE.alpha + 2 * ENGINE.beta) / 1000)


def test_requests_wait_for_the_first_replica_and_are_rejected_after_the_limit() -> None:
    variants = [spec(initial=0, startup=20)]
    traffic = trace_of([(1.0, 10, 5), (12.0, 10, 5), (40.0, 10, 5)], 60)
    run = simulate(traffic, variants, Script((5, 1)), replace(QUICK, queue_limit=15, actuation_delay=0))
    assert list(run.results.ending) == [Ending.NO_ENDPOINT, Ending.OK, Ending.OK]
    assert list(run.results.waited) == [True, True, False]
    # Scaled at 5, ready at 25.
    assert run.results.first[1] == pytest.approx(25 + (ENGINE.gamma + ENGINE.delta * 10) / 1000)
    check(run)


def test_a_removed_replica_finishes_what_it_has_within_its_grace() -> None:
    traffic = trace_of([(0.0, 10, 500), (0.0, 10, 5000)], 120)
    run = simulate(traffic, [spec(initial=2, grace=20)], Script((2, 0)), replace(QUICK, actuation_delay=0))
    assert sorted(run.results.ending) == [Ending.OK, Ending.BROKEN]
    assert sorted(round(pod.ended, 1) for pod in run.pods) == [5.3, 22.0]
    check(run)


def test_the_youngest_and_the_not_ready_go_first() -> None:
    traffic = trace_of([(0.0, 10, 5)], 100)
    steps = Script((10, 3), (45, 4), (50, 2), (60, 1))
    run = simulate(traffic, [spec(initial=1, startup=30)], steps, replace(QUICK, actuation_delay=0))
    ended = {pod.name: pod.ended for pod in run.pods}
    # 0 from before, 1 and 2 ready at 40, 3 would have been ready at 75.
    assert ended["llama-3"] == 50
    assert {ended["llama-1"], ended["llama-2"]} == {50, 60}
    assert math.isnan(ended["llama-0"])
    assert [(a.at, a.before, a.after) for a in run.actions] == [(10, 1, 3), (45, 3, 4), (50, 4, 2), (60, 2, 1)]


def test_replica_time_is_counted_from_creation_to_end_within_the_trace() -> None:
    traffic = trace_of([(0.0, 10, 5)], 100)
    steps = Script((10, 3), (60, 1))
    run = simulate(traffic, [spec(initial=1, startup=30)], steps, replace(QUICK, actuation_delay=0))
    assert run.replica_seconds(KEY) == pytest.approx(100 + 2 * 50)
    assert run.replicas() == ([0.0, 10, 60], [1, 3, 1])
    assert run.replicas(ready=True) == ([0.0, 40, 60], [1, 3, 1])


def test_a_request_that_never_fits_is_refused_and_counted() -> None:
    run = simulate(trace_of([(0.0, 20_000, 5), (1.0, 10, 5)], 10), [spec()], Fixed(), QUICK)
    assert list(run.results.ending) == [Ending.REJECTED, Ending.OK]


def test_least_outstanding_avoids_the_busy_replica() -> None:
    # One request keeps a replica busy for 50 s; short ones that come one at a time go to the other.
    rows = [(0.0, 10, 4000), *((1.0 + i, 10, 5) for i in range(20))]
    run = simulate(trace_of(rows, 60), [spec(initial=2)], Fixed(), QUICK)
    assert len(set(run.results.pod[1:])) == 1
    assert run.results.pod[0] not in run.results.pod[1:]
    spread = simulate(trace_of(rows, 60), [spec(initial=2)], Fixed(), replace(QUICK, routing=Routing.ROUND_ROBIN))
    assert abs(int((spread.results.pod == 0).sum()) - int((spread.results.pod == 1).sum())) <= 1


def test_each_model_has_its_own_replicas() -> None:
    both = trace_of([(0.0, 10, 5), (1.0, 10, 5), (2.0, 10, 5)], 10)
    named = replace(both, model=np.array([0, 1, 0]), models=("a", "b"))
    run = simulate(named, [spec("one", model="a"), spec("two", model="b")], Fixed(), QUICK)
    served = [run.pods[number].variant.model for number in run.results.pod]
    assert served == ["a", "b", "a"]
    with pytest.raises(ValueError, match="--columns model=NAME"):
        simulate(both, [spec("one", model="a"), spec("two", model="b")], Fixed(), QUICK)
    with pytest.raises(ValueError, match="requests for b, which no variant serves; served: a"):
        simulate(named, [spec("one", model="a")], Fixed(), QUICK)


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(ValueError, match="no requests"):
        simulate(replace(poisson(1, 10), at=np.empty(0)), [spec()], Fixed(), QUICK)
