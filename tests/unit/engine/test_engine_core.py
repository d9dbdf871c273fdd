"""The engine core against closed forms and worked examples."""

import math

import pytest

from modelyard.engine.config import PROFILES, EngineConfig
from modelyard.engine.core import EngineCore, Rejected
from modelyard.engine.request import EventKind, Request, RequestState


def config(**changes):
    values = {"alpha": 10, "beta": 2, "gamma": 20, "delta": 0.05, "max_num_seqs": 64, "kv_cache_tokens": 100_000}
    return EngineConfig(**(values | changes))


def run_out(core: EngineCore):
    events = []
    while (at := core.next_event_time()) < math.inf:
        events += core.advance(at)
    return events


def itl(request: Request) -> float:
    return (request.finished_at - request.first_token_at) / (request.output_tokens - 1)


@pytest.mark.parametrize(
    ("prompt", "output", "ttft", "gap"),
    # Worked by hand: TTFT = 20 + 0.05 * prompt, ITL = 10 + 2 (milliseconds).
    [(100, 11, 0.025, 0.012), (1, 2, 0.02005, 0.012), (2048, 50, 0.1224, 0.012), (9000, 3, 0.470, 0.012)],
)
def test_one_request_alone_follows_the_formulas(prompt, output, ttft, gap):
    core = EngineCore(config())
    request = core.submit(prompt, output)
    run_out(core)
    assert request.state is RequestState.FINISHED
    assert request.first_token_at == pytest.approx(ttft)
    assert itl(request) == pytest.approx(gap)
    assert request.finished_at == pytest.approx(ttft + (output - 1) * gap)


@pytest.mark.parametrize("n", [2, 8, 20])
def test_n_equal_requests_prefill_and_decode_as_the_reference_says(n):
    core = EngineCore(config())
    requests = [core.submit(100, 11) for _ in range(n)]
    run_out(core)
    # All prompts fit one step: TTFT = gamma + delta * tokens * n, ITL = alpha + beta * n.
    assert [r.first_token_at for r in requests] == pytest.approx([0.020 + 0.05e-3 * 100 * n] * n)
    assert [itl(r) for r in requests] == pytest.approx([0.010 + 0.002 * n] * n)


def test_a_prompt_beyond_the_budget_is_computed_in_chunks_between_decode_steps():
    core = EngineCore(config(max_num_batched_tokens=64, max_num_seqs=8))
    core.submit(10, 100)
    core.advance(0.05)
    second = core.submit(200, 2)
    run_out(core)
    # The first decodes in every step and takes one token of its budget: 63 + 63 + 63 + 11 prompt tokens.
    # The step in progress at 0.07 (arrival + gamma) began at 0.0205 + 4 * 0.012 and ends at 0.0805.
    assert second.scheduled_at == pytest.approx(0.0805)
    assert second.first_token_at == pytest.approx(0.0805 + 4 * 0.012 + 200 * 0.05e-3)


def test_waiting_requests_enter_when_the_batch_has_a_place():
    core = EngineCore(config(max_num_seqs=2))
    requests = [core.submit(10, 5 + 5 * i) for i in range(4)]
    core.advance(0.021)
    assert (core.num_running, core.num_waiting) == (2, 2)
    run_out(core)
    assert requests[2].scheduled_at == requests[0].finished_at
    assert requests[3].scheduled_at == requests[1].finished_at


def test_requests_in_the_front_end_are_neither_waiting_nor_running():
    core = EngineCore(config(gamma=100))
    request = core.submit(10, 5)
    core.advance(0.05)
    assert (core.num_running, core.num_waiting, request.state) == (0, 0, RequestState.ARRIVING)
    core.advance(0.1)
    assert core.num_running == 1


def test_a_saturated_engine_has_a_full_batch_and_a_growing_queue():
    core = EngineCore(config(max_num_seqs=4))
    waits, queues = [], []
    requests = []
    for second in range(1, 31):
        core.advance(float(second))
        requests += [core.submit(100, 50) for _ in range(10)]
        core.advance(second + 0.5)
        queues.append(core.num_waiting)
        assert core.num_running == 4
    run_out(core)
    waits = [r.first_token_at - r.arrived_at for r in requests]
    assert queues == sorted(queues)
    assert queues[-1] > 100
    assert waits[-1] > 5 * waits[40]
    assert all(r.state is RequestState.FINISHED for r in requests)


def test_the_youngest_is_preempted_when_the_cache_is_full_and_all_complete():
    core = EngineCore(config(kv_cache_tokens=8 * 16, max_num_seqs=4))
    # Four blocks each at the end: three of them do not fit eight blocks.
    requests = [core.submit(20, 40) for _ in range(3)]
    events = run_out(core)
    preempted = [e.request for e in events if e.kind is EventKind.PREEMPTED]
    assert preempted
    assert requests[0] not in preempted, "the oldest is never preempted"
    assert preempted[0] is requests[2], "the youngest goes first"
    assert core.stats.preemptions_total == len(preempted) == sum(r.preemptions for r in requests)
    assert all(r.state is RequestState.FINISHED and r.tokens == 40 for r in requests)
    assert core.stats.generation_tokens_total == 120
    assert core.kv_used_blocks == 0


def test_a_preempted_request_computes_prompt_and_generated_tokens_again():
    core = EngineCore(config(kv_cache_tokens=4 * 16, max_num_seqs=2, gamma=0))
    old, young = core.submit(16, 30), core.submit(16, 30)
    run_out(core)
    # Both hold two blocks after their first decode step; at 33 stored tokens the old one needs its third block.
    assert (old.preemptions, young.preemptions) == (0, 1)
    assert young.last_token_at == pytest.approx(32 * 0.05e-3 + 16 * 0.014)
    # 16 + 17 tokens are computed again when the old one has left its blocks.
    again = 33 * 0.05e-3
    rest = 30 - 18
    assert young.finished_at == pytest.approx(old.finished_at + again + rest * 0.012)


def test_the_head_of_the_queue_is_not_overtaken_when_it_does_not_fit():
    core = EngineCore(config(kv_cache_tokens=1600, max_num_seqs=8))
    running = core.submit(1000, 50)
    core.advance(0.2)
    big, small = core.submit(800, 5), core.submit(10, 5)
    core.advance(0.3)
    assert (core.num_running, core.num_waiting) == (1, 2)
    run_out(core)
    assert big.scheduled_at == running.finished_at
    assert small.scheduled_at >= big.scheduled_at


@pytest.mark.parametrize("output", [1, 2, 16, 17, 33])
def test_the_cache_holds_prompt_and_generated_tokens_in_whole_blocks(output):
    core = EngineCore(config(gamma=0, delta=1, alpha=1000, beta=0))
    core.submit(31, output)
    core.advance(0.030)
    assert core.kv_used_blocks == 2
    for generated in range(1, output):
        core.advance(0.031 + generated - 0.5)
        assert core.kv_used_blocks == math.ceil((31 + generated) / 16)
    run_out(core)
    assert core.kv_used_blocks == 0


def test_what_can_never_fit_is_rejected():
    core = EngineCore(config(max_model_len=100))
    with pytest.raises(Rejected, match=r"maximum context length is 100 tokens.*needs 101") as caught:
        core.submit(91, 10)
    assert not caught.value.retryable
    assert core.submit(90, 10).output_tokens == 10


@pytest.mark.parametrize("limit", [0, 2])
def test_a_full_queue_rejects(limit):
    core = EngineCore(config(max_num_seqs=3, max_waiting=limit))
    for _ in range(3 + limit):
        core.submit(10, 50)
    with pytest.raises(Rejected, match="queue is full") as caught:
        core.submit(10, 50)
    assert caught.value.retryable
    core.advance(0.1)
    with pytest.raises(Rejected, match="queue is full"):
        core.submit(10, 50)
    run_out(core)
    assert core.submit(10, 50).state is RequestState.ARRIVING


def test_cancelling_frees_cache_and_place_at_once():
    core = EngineCore(config(max_num_seqs=1))
    running, waiting = core.submit(100, 50), core.submit(100, 50)
    arriving_soon = 0.1
    core.advance(arriving_soon)
    arriving = core.submit(100, 50)
    assert [r.state for r in (running, waiting, arriving)] == [
        RequestState.DECODE,
        RequestState.WAITING,
        RequestState.ARRIVING,
    ]
    for request in (arriving, waiting, running):
        assert core.cancel(request)
        assert not core.cancel(request)
    assert core.kv_used_blocks == core.num_running == core.num_waiting == 0
    assert not core.advance(core.clock + 100)
    assert core.stats.finished["abort"] == 3
    again = core.submit(10, 3)
    run_out(core)
    assert again.state is RequestState.FINISHED


def test_cancelling_during_prefill_wastes_the_step_only():
    core = EngineCore(config(gamma=0))
    request, other = core.submit(1000, 10), core.submit(1000, 10)
    core.advance(0.01)
    core.cancel(request)
    run_out(core)
    assert other.first_token_at == pytest.approx(0.1)
    assert itl(other) == pytest.approx(0.012)
    assert core.kv_used_blocks == 0


def test_time_does_not_go_back():
    core = EngineCore(config())
    core.advance(5.0)
    for bad in (4.9, math.nan, math.inf):
        with pytest.raises(ValueError, match="cannot advance"):
            core.advance(bad)


def test_the_prefix_cache_saves_prefill_time_but_no_cache():
    core = EngineCore(config(gamma=0, prefix_hit_ratio=0.5))
    request = core.submit(320, 2)
    core.advance(0.001)
    assert core.kv_used_blocks == 20
    run_out(core)
    assert request.cached_tokens == 160
    assert request.first_token_at == pytest.approx(160 * 0.05e-3)
    assert (core.stats.prefix_queries_total, core.stats.prefix_hits_total) == (320, 160)


def test_prompts_that_begin_alike_share_blocks_and_compute_the_rest():
    core = EngineCore(config(gamma=0, prefix_segment=32, kv_cache_tokens=320))
    first = core.submit(100, 2, prefix="abc")
    core.advance(0.0051)  # it decodes
    again = core.submit(100, 2, prefix="abc")
    other = core.submit(70, 2, prefix="ax")
    core.advance(0.0171)
    assert [r.cached_tokens for r in (first, again, other)] == [0, 96, 32]
    assert core.num_running == 2
    assert core.kv_used_blocks == 7 + 5 - 2
    run_out(core)
    assert core.kv_used_blocks == 0
    whole = core.submit(96, 1, prefix="abc")
    run_out(core)
    assert whole.cached_tokens == 95  # the last one is always computed
    # Of 20 blocks it needs 19: no segment of two fits beside them.
    core.submit(290, 2, prefix="qrstuvwxy")
    run_out(core)
    found = [core.submit(100, 1, prefix=prefix) for prefix in ("abc", "ax")]
    run_out(core)
    assert [r.cached_tokens for r in found] == [0, 0]
    assert core.stats.prefix_hits_total == 96 + 32 + 95


def test_jitter_changes_single_steps_not_the_mean():
    core = EngineCore(config(jitter=0.2), seed=3)
    request = core.submit(10, 4000)
    run_out(core)
    assert itl(request) == pytest.approx(0.012, rel=0.02)
    assert itl(request) != pytest.approx(0.012, rel=1e-9)


def test_statistics_agree_with_the_requests():
    core = EngineCore(config(max_num_seqs=3))
    requests = []
    for i in range(20):
        core.advance(i * 0.1)
        requests.append(core.submit(50 + i, 5 + i))
    run_out(core)
    stats = core.stats
    assert stats.ttft.count == stats.e2e.count == stats.finished["length"] == 20
    assert stats.prompt_tokens_total == stats.prompt_tokens.total == sum(r.prompt_tokens for r in requests)
    assert stats.generation_tokens_total == stats.generation_tokens.total == sum(r.output_tokens for r in requests)
    assert stats.itl.count == stats.generation_tokens_total - 20
    assert stats.ttft.total / stats.ttft.count == pytest.approx(
        sum(r.first_token_at - r.arrived_at for r in requests) / 20
    )
    assert stats.itl.total == pytest.approx(stats.decode.total)
    assert stats.inference.total == pytest.approx(stats.prefill.total + stats.decode.total)
    assert stats.e2e.total == pytest.approx(20 * 0.020 + stats.queue.total + stats.inference.total)
    assert stats.iteration_tokens.total == stats.prompt_tokens_total + stats.itl.count


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": -1}, "alpha must be"),
        ({"delta": math.nan}, "delta must be"),
        ({"alpha": 0, "beta": 0}, "alpha \\+ beta"),
        ({"max_num_seqs": 0}, "max_num_seqs must be >= 1"),
        ({"max_num_batched_tokens": 63}, "max_num_batched_tokens \\(63\\) must be >= max_num_seqs \\(64\\)"),
        ({"kv_cache_tokens": 15}, "kv_cache_tokens"),
        ({"max_model_len": 100_001}, "max_model_len"),
        ({"max_waiting": -1}, "max_waiting"),
        ({"prefix_hit_ratio": 1.5}, "prefix_hit_ratio"),
        ({"prefix_segment": 40}, "prefix_segment"),
        ({"prefix_segment": 32, "prefix_hit_ratio": 0.5}, "prefix_hit_ratio"),
    ],
)
def test_a_wrong_configuration_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_profiles_serve_the_longest_request_they_promise(name):
    profile = PROFILES[name]
    core = EngineCore(profile)
    request = core.submit(profile.context_limit - 10, 10)
    run_out(core)
    assert request.state is RequestState.FINISHED


def test_throughput_in_steady_state_is_that_of_the_reference_model():
    # mu(N) = N / (gamma + delta*in*N + (out-1)*(alpha+beta*N)) with a full batch; example of the queueing model's
    # realistic profile: 29.56 requests/s. Requests start at different times, so that prefill and decode interleave.
    engine = EngineConfig(
        alpha=7.5,
        beta=0.05,
        gamma=0,
        delta=0.002,
        max_num_seqs=96,
        kv_cache_tokens=1_000_000,
        max_num_batched_tokens=8192,
    )
    core = EngineCore(engine)
    for i in range(3000):
        core.submit(512, 200 + (i * 37) % 113)
    core.advance(20.0)
    before = core.stats.generation_tokens_total
    core.advance(60.0)
    rate = (core.stats.generation_tokens_total - before) / 40
    mean_out = 200 + 56
    expected = 96 * mean_out / (0.002e-3 * 512 * 96 + (mean_out - 1) * (7.5e-3 + 0.05e-3 * 96))
    assert rate == pytest.approx(expected, rel=0.03)
