"""What ``/metrics`` of a real engine process says, against tables written from the engines' published metrics."""

import asyncio

import pytest

pytestmark = pytest.mark.integration

TTFT = [
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
]  # fmt: skip
TOKEN = [.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]  # fmt: skip
REQUEST = [.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]  # fmt: skip
COUNTS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
ITERATION = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]

COMMON = {"model_name", "engine"}
# sample name -> (type, further labels)
VLLM = {
    "vllm:num_requests_running": ("gauge", set()),
    "vllm:num_requests_waiting": ("gauge", set()),
    "vllm:num_requests_waiting_by_reason": ("gauge", {"reason"}),
    "vllm:kv_cache_usage_perc": ("gauge", set()),
    "vllm:engine_sleep_state": ("gauge", {"sleep_state"}),
    "vllm:prompt_tokens_total": ("counter", set()),
    "vllm:generation_tokens_total": ("counter", set()),
    "vllm:request_success_total": ("counter", {"finished_reason"}),
    "vllm:num_preemptions_total": ("counter", set()),
    "vllm:prefix_cache_queries_total": ("counter", set()),
    "vllm:prefix_cache_hits_total": ("counter", set()),
}
VLLM_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": TTFT,
    "vllm:inter_token_latency_seconds": TOKEN,
    "vllm:request_time_per_output_token_seconds": TOKEN,
    "vllm:e2e_request_latency_seconds": REQUEST,
    "vllm:request_queue_time_seconds": REQUEST,
    "vllm:request_prefill_time_seconds": REQUEST,
    "vllm:request_decode_time_seconds": REQUEST,
    "vllm:request_inference_time_seconds": REQUEST,
    "vllm:request_prompt_tokens": COUNTS,
    "vllm:request_generation_tokens": COUNTS,
    "vllm:request_params_max_tokens": COUNTS,
    "vllm:request_max_num_generation_tokens": COUNTS,
    "vllm:request_params_n": [1, 2, 5, 10, 20],
    "vllm:iteration_tokens_total": ITERATION,
}
SGLANG_COMMON = {"model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank"}
SGLANG_TTFT = [.1, .2, .4, .6, .8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400]  # fmt: skip
SGLANG_TOKEN = [
    .002, .004, .006, .008, .01, .015, .02, .025, .03, .035, .04, .06, .08, .1, .2, .4, .6, .8, 1, 2, 4, 6, 8,
]  # fmt: skip
SGLANG = {
    **dict.fromkeys(
        (
            "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage", "sglang:num_used_tokens",
            "sglang:max_total_num_tokens", "sglang:gen_throughput", "sglang:cache_hit_rate", "sglang:utilization",
            "sglang:num_retracted_reqs", "sglang:num_prefill_prealloc_queue_reqs",
            "sglang:num_prefill_inflight_queue_reqs", "sglang:num_decode_prealloc_queue_reqs",
            "sglang:num_decode_transfer_queue_reqs",
        ),
        ("gauge", set()),
    ),
    "sglang:cache_config_info": ("gauge", {"page_size", "num_pages"}),
    "sglang:prompt_tokens_total": ("counter", set()),
    "sglang:generation_tokens_total": ("counter", set()),
    "sglang:cached_tokens_total": ("counter", {"cache_source"}),
    "sglang:num_requests_total": ("counter", set()),
    "sglang:num_aborted_requests_total": ("counter", set()),
    "sglang:realtime_tokens_total": ("counter", {"mode"}),
}  # fmt: skip


def body(prompt, output):
    return {
        "model": "m",
        "messages": [{"role": "user", "content": "tok " * prompt}],
        "max_tokens": output,
        "ignore_eos": True,
    }


async def ask(session, engine, prompt, output):
    async with session.post(f"{engine.url}/v1/chat/completions", json=body(prompt, output)) as response:
        assert response.status == 200
        await response.read()


def check_samples(scrape, table, common):
    kinds = {sample.name: family.type for family in scrape.families.values() for sample in family.samples}
    for name, (kind, labels) in table.items():
        assert kinds.get(name) == kind, name
        found = [dict(pairs) for (sample, pairs) in scrape.values if sample == name]
        assert found, name
        assert all(set(sample) == common | labels for sample in found), name


def bounds(scrape, name):
    assert scrape.families[name].type == "histogram"
    return [float(s.labels["le"]) for s in scrape.families[name].samples if s.name == f"{name}_bucket"]


async def test_vllm_names_types_labels_and_buckets(start_engine):
    scrape = await start_engine("--max-model-len", "8192").metrics()
    check_samples(scrape, VLLM, COMMON)
    for name, expected in VLLM_HISTOGRAMS.items():
        assert bounds(scrape, name) == [*expected, float("inf")], name
        labels = [dict(pairs) for (sample, pairs) in scrape.values if sample == f"{name}_count"]
        assert labels == [{"model_name": "m", "engine": "0"}], name
    reasons = {dict(p)["finished_reason"] for (name, p) in scrape.values if name == "vllm:request_success_total"}
    assert reasons == {"stop", "length", "abort", "error"}
    assert all(name.startswith("vllm:") for name in scrape.families)


async def test_vllm_cache_config_has_the_capacity_and_no_model(start_engine):
    scrape = await start_engine("--kv-cache-tokens", "16050").metrics()
    ((labels, value),) = [(dict(p), v) for (name, p), v in scrape.values.items() if name == "vllm:cache_config_info"]
    assert value == 1
    assert int(labels["block_size"]) * int(labels["num_gpu_blocks"]) == 16048
    assert "model_name" not in labels
    assert labels["num_gpu_blocks_override"] == "None"


async def test_sglang_names_types_labels_and_buckets(start_engine, session):
    engine = start_engine("--metrics", "sglang", "--time-compression", "20", "--kv-cache-tokens", "16050")
    await ask(session, engine, 100, 20)
    scrape = await engine.metrics()
    check_samples(scrape, SGLANG, SGLANG_COMMON)
    for name, expected in {
        "sglang:time_to_first_token_seconds": SGLANG_TTFT,
        "sglang:inter_token_latency_seconds": SGLANG_TOKEN,
        "sglang:e2e_request_latency_seconds": [*SGLANG_TTFT, 600, 1200, 1800, 2400],
    }.items():
        assert bounds(scrape, name) == [*expected, float("inf")], name
        assert scrape(f"{name}_count") == (19 if "inter_token" in name else 1)
    queue = bounds(scrape, "sglang:queue_time_seconds")
    assert (queue[0], queue[-2]) == (0, 3000)
    stages = {
        dict(p).get("stage") for (name, p) in scrape.values if name == "sglang:per_stage_req_latency_seconds_count"
    }
    assert {"prefill_waiting", "prefill_forward"} <= stages
    assert scrape("sglang:max_total_num_tokens") == 16048
    assert scrape("sglang:generation_tokens_total") == 20
    assert all(name.startswith("sglang:") for name in scrape.families)


async def test_durations_are_those_of_the_simulated_hardware(start_engine, session):
    # The same numbers whatever the compression: gamma + delta * tokens, and alpha + beta per further token.
    for compression in ("5", "40"):
        engine = start_engine(
            *("--time-compression", compression, "--alpha", "10", "--beta", "2", "--gamma", "20", "--delta", "0.05")
        )
        await ask(session, engine, 100, 41)
        scrape = await engine.metrics()
        assert scrape("vllm:time_to_first_token_seconds_sum") == pytest.approx(0.025)
        assert scrape("vllm:inter_token_latency_seconds_sum") == pytest.approx(40 * 0.012)
        assert scrape("vllm:inter_token_latency_seconds_count") == 40
        assert scrape("vllm:e2e_request_latency_seconds_sum") == pytest.approx(0.025 + 40 * 0.012)
        assert scrape("vllm:request_prompt_tokens_sum") == 100
        assert scrape("vllm:inter_token_latency_seconds_bucket", le="0.01") == 0
        assert scrape("vllm:inter_token_latency_seconds_bucket", le="0.025") == 40


async def test_a_saturated_engine_shows_a_full_batch_and_a_growing_queue(start_engine, session):
    engine = start_engine("--max-num-seqs", "4")
    tasks = []
    queues = []
    for wave in range(1, 4):
        tasks += [asyncio.create_task(ask(session, engine, 50, 1500)) for _ in range(20)]
        submitted = 20 * wave
        scrape = await engine.eventually(
            lambda m, submitted=submitted: (
                m("vllm:num_requests_running") == 4
                and m("vllm:num_requests_waiting") + 4 + m("vllm:request_success_total", finished_reason="length")
                == submitted
            ),
            "a full batch and everything else waiting or done",
        )
        queues.append(scrape("vllm:num_requests_waiting"))
        assert scrape("vllm:num_requests_waiting_by_reason", reason="capacity") == queues[-1]
        assert 0 < scrape("vllm:kv_cache_usage_perc") < 1
    assert queues == sorted(queues)
    assert queues[-1] > 40
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_full_cache_preempts_and_all_complete(start_engine, session):
    engine = start_engine("--kv-cache-tokens", "1600", "--time-compression", "40")
    await asyncio.gather(*(ask(session, engine, 60, 300) for _ in range(12)))
    scrape = await engine.metrics()
    assert scrape("vllm:num_preemptions_total") > 0
    assert scrape("vllm:request_success_total", finished_reason="length") == 12
    assert scrape("vllm:generation_tokens_total") == 3600
    assert scrape("vllm:kv_cache_usage_perc") == 0
