"""What holds for the engine core whatever is thrown at it."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from modelyard.engine.config import EngineConfig
from modelyard.engine.core import EngineCore, Rejected
from modelyard.engine.request import EventKind, RequestState

configs = st.builds(
    EngineConfig,
    alpha=st.floats(0.1, 30),
    beta=st.floats(0, 2),
    gamma=st.sampled_from([0.0, 5.0, 300.0]),
    delta=st.sampled_from([0.0, 0.01, 1.0]),
    max_num_seqs=st.integers(1, 12),
    kv_cache_tokens=st.integers(64, 600),
    block_size=st.sampled_from([1, 4, 16]),
    max_num_batched_tokens=st.integers(12, 300),
    max_waiting=st.sampled_from([None, None, 3]),
    prefix_hit_ratio=st.sampled_from([0.0, 0.6]),
    jitter=st.sampled_from([0.0, 0.0, 0.2]),
)
configs = st.tuples(configs, st.sampled_from([0, 1, 3])).map(
    lambda drawn: (
        replace(drawn[0], prefix_segment=drawn[1] * drawn[0].block_size, prefix_hit_ratio=0.0) if drawn[1] else drawn[0]
    )
)
# (seconds since the one before, prompt, output, cancel one of the unfinished before it)
arrivals = st.lists(
    st.tuples(
        st.floats(0, 0.2), st.integers(1, 200), st.integers(1, 120), st.one_of(st.none(), st.none(), st.integers(0, 50))
    ),
    max_size=40,
)


def check_invariants(core):
    running = list(core.running)
    assert len(running) <= core.config.max_num_seqs
    assert 0 <= core.kv_used_blocks <= core.config.num_blocks
    held = Counter(name for r in running for name in r.held)
    shared = core.config.prefix_segment // core.config.block_size * sum(count - 1 for count in held.values())
    assert core.kv_used_blocks == sum(core.held_blocks(r) for r in running) - shared
    waiting = [r.number for r in core.waiting]
    assert waiting == sorted(waiting), "the queue keeps the order of arrival"
    if running and waiting:
        assert max(r.number for r in running) < waiting[0], "nobody overtakes"


def family(prompt):
    """Segments of one of three kinds of prompts that begin alike."""
    return [(prompt % 3, index) for index in range(prompt)]


def drive(config, plan, *, stops=1, seed=0):
    """Run a plan; returns (core, accepted requests, events, number rejected). ``stops``: advances per arrival."""
    core = EngineCore(config, seed=seed)
    accepted, events, rejected = [], [], 0
    now = 0.0
    for gap, prompt, output, victim in plan:
        for stop in range(1, stops + 1):
            events += core.advance(now + gap if stop == stops else max(core.clock, now + gap * (stop - 0.5) / stops))
            check_invariants(core)
        now = core.clock
        if victim is not None and accepted:
            core.cancel(accepted[victim % len(accepted)])
            check_invariants(core)
        try:
            accepted.append(core.submit(prompt, output, prefix=family(prompt)))
        except Rejected:
            rejected += 1
    while (at := core.next_event_time()) < math.inf:
        assert at >= core.clock
        assert core.next_result_time() >= at
        events += core.advance(at)
        check_invariants(core)
    return core, accepted, events, rejected


@given(configs, arrivals)
def test_every_request_is_served_exactly_once_or_rejected_or_aborted(config, plan):
    core, accepted, events, rejected = drive(config, plan)
    finished = [e.request for e in events if e.kind is EventKind.FINISHED]
    assert len(finished) == len(set(finished))
    aborted = [r for r in accepted if r.state is RequestState.ABORTED]
    assert set(finished) | set(aborted) == set(accepted)
    assert len(accepted) + rejected == len(plan)
    assert core.num_running == core.num_waiting == core.kv_used_blocks == 0
    assert core.next_event_time() == math.inf
    assert core.stats.finished == {"stop": 0, "length": len(finished), "abort": len(aborted), "error": 0}


@given(configs, arrivals)
def test_tokens_are_exact_and_times_in_order(config, plan):
    core, accepted, events, _ = drive(config, plan)
    times = [e.at for e in events]
    assert times == sorted(times)
    for request in accepted:
        if request.state is RequestState.FINISHED:
            assert core.generated(request) == request.output_tokens
            assert request.arrived_at <= request.eligible_at <= request.scheduled_at
            assert request.scheduled_at <= request.first_token_at <= request.finished_at
    first = [r for r in accepted if not math.isnan(r.first_token_at)]
    assert core.stats.generation_tokens_total == sum(r.tokens for r in accepted)
    assert core.stats.itl.count == core.stats.generation_tokens_total - len(first)
    assert core.stats.prompt_tokens_total == sum(r.prompt_tokens for r in first)
    assert core.stats.preemptions_total == sum(r.preemptions for r in accepted)
    starts = [r.scheduled_at for r in accepted if not math.isnan(r.scheduled_at)]
    assert starts == sorted(starts), "first come, first scheduled"


def outcome(run):
    core, accepted, events, rejected = run
    times = [(r.state, r.scheduled_at, r.first_token_at, r.finished_at, r.preemptions, r.tokens) for r in accepted]
    seen = [(e.kind, e.request.number, e.at) for e in events]
    return repr(times), seen, rejected, core.stats.finished


@given(configs, arrivals, st.integers(0, 5))
def test_equal_seeds_give_equal_results_however_finely_time_advances(config, plan, seed):
    # Without cancellations, whose moments would differ by rounding.
    plan = [(gap, prompt, output, None) for gap, prompt, output, _ in plan]
    once = outcome(drive(config, plan, seed=seed))
    assert once == outcome(drive(config, plan, seed=seed))
    assert once == outcome(drive(config, plan, seed=seed, stops=4))
    assert once == outcome(drive_in_one_go(config, plan, seed))


def drive_in_one_go(config, plan, seed):
    """The same plan, everything after the last arrival in a single advance."""
    core = EngineCore(config, seed=seed)
    accepted, events, rejected = [], [], 0
    now = 0.0
    for gap, prompt, output, _ in plan:
        now += gap
        events += core.advance(now)
        try:
            accepted.append(core.submit(prompt, output, prefix=family(prompt)))
        except Rejected:
            rejected += 1
    events += core.advance(now + 10_000)
    return core, accepted, events, rejected


@given(st.integers(1, 30), st.integers(1, 300), st.integers(2, 60))
def test_equal_requests_decode_at_alpha_plus_beta_n(n, prompt, output):
    config = EngineConfig(
        alpha=8, beta=0.5, gamma=10, delta=0.02, max_num_seqs=32, max_num_batched_tokens=9000, kv_cache_tokens=100_000
    )
    core = EngineCore(config)
    requests = [core.submit(prompt, output) for _ in range(n)]
    core.advance(1000.0)
    for request in requests:
        assert request.first_token_at == pytest.approx((10 + 0.02 * prompt * n) / 1000)
        assert request.finished_at - request.first_token_at == pytest.approx((output - 1) * (8 + 0.5 * n) / 1000)
