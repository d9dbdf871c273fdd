"""The engine's ``/metrics`` in the words of vLLM (V1 engine) or of SGLang: names, types, labels and buckets.

**Durations are virtual seconds**: what the simulated hardware would have reported. Rates, which Prometheus derives
from its own clock, are therefore ``time_compression`` times higher than the simulated hardware's.

Every label set exists from the start, at zero. LoRA series are absent, as on a real engine that runs without LoRA.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from modelyard.engine.config import EngineConfig
from modelyard.engine.core import EngineCore
from modelyard.engine.stats import Histogram
from modelyard.engine.vocabulary import SGLANG_HISTOGRAMS, VLLM_HISTOGRAMS


class VllmCollector(Collector):
    """vLLM's families for one engine. ``model`` is the first served model name."""

    def __init__(self, core: EngineCore, model: str) -> None:
        self._core = core
        self._labels = {"model_name": model, "engine": "0"}
        self._cache_config = _cache_config_labels(core.config)

    def collect(self) -> Iterator[Metric]:
        """The families with their values now."""
        core, stats, labels = self._core, self._core.stats, self._labels
        yield _gauge("vllm:num_requests_running", "Requests in the running batch.", labels, core.num_running)
        yield _gauge("vllm:num_requests_waiting", "Requests in the waiting queue.", labels, core.num_waiting)
        by_reason = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason",
            "Waiting requests by the reason why they wait.",
            labels=(*labels, "reason"),
        )
        by_reason.add_metric((*labels.values(), "capacity"), core.num_waiting)
        by_reason.add_metric((*labels.values(), "deferred"), 0)
        yield by_reason
        yield _gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use; 1 is all of it.", labels, core.kv_usage)
        # The real engine's info metric has no model_name either.
        yield _gauge("vllm:cache_config_info", "Configuration of the KV cache.", self._cache_config, 1)
        sleep = GaugeMetricFamily(
            "vllm:engine_sleep_state", "1 for the engine's present sleep state.", labels=(*labels, "sleep_state")
        )
        for state in ("awake", "weights_offloaded", "discard_all"):
            sleep.add_metric((*labels.values(), state), float(state == "awake"))
        yield sleep
        for name, text, value in (
            ("vllm:prompt_tokens", "Prompt tokens processed.", stats.prompt_tokens_total),
            ("vllm:generation_tokens", "Tokens generated.", stats.generation_tokens_total),
            ("vllm:num_preemptions", "Preemptions of running requests.", stats.preemptions_total),
            ("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", stats.prefix_queries_total),
            ("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", stats.prefix_hits_total),
        ):
            yield _counter(name, text, labels, value)
        success = CounterMetricFamily(
            "vllm:request_success", "Requests that ended, by reason.", labels=(*labels, "finished_reason")
        )
        for reason, count in stats.finished.items():
            success.add_metric((*labels.values(), reason), count)
        yield success
        for attribute, (name, text) in VLLM_HISTOGRAMS.items():
            yield _histogram(name, text, labels, getattr(stats, attribute))


class SglangCollector(Collector):
    """SGLang's families for one engine of one rank. ``model`` is the served model name."""

    def __init__(self, core: EngineCore, model: str) -> None:
        self._core = core
        self._labels = {
            "model_name": model,
            "engine_type": "unified",
            "tp_rank": "0",
            "pp_rank": "0",
            "moe_ep_rank": "0",
        }

    def collect(self) -> Iterator[Metric]:
        """The families with their values now."""
        core, stats, config, labels = self._core, self._core.stats, self._core.config, self._labels
        retracted = sum(1 for request in core.waiting if request.preemptions)
        queries = stats.prefix_queries_total
        running = core.num_running
        throughput = 1000 * running / (config.alpha + config.beta * running) if running else 0
        for name, text, value in (
            ("sglang:num_running_reqs", "Running requests.", core.num_running),
            ("sglang:num_queue_reqs", "Requests in the waiting queue.", core.num_waiting),
            ("sglang:num_retracted_reqs", "Requests taken out of the batch and waiting again.", retracted),
            ("sglang:token_usage", "Share of the KV cache in use.", core.kv_usage),
            ("sglang:num_used_tokens", "KV cache tokens in use.", core.kv_used_blocks * config.block_size),
            ("sglang:max_total_num_tokens", "KV cache capacity in tokens.", config.kv_capacity),
            ("sglang:gen_throughput", "Generated tokens per second.", throughput),
            ("sglang:cache_hit_rate", "Prefix cache hit rate.", stats.prefix_hits_total / queries if queries else 0),
            ("sglang:utilization", "Share of the batch limit in use.", core.num_running / config.max_num_seqs),
            ("sglang:num_prefill_prealloc_queue_reqs", "Disaggregated prefill: preallocation queue.", 0),
            ("sglang:num_prefill_inflight_queue_reqs", "Disaggregated prefill: requests in transfer.", 0),
            ("sglang:num_decode_prealloc_queue_reqs", "Disaggregated decode: preallocation queue.", 0),
            ("sglang:num_decode_transfer_queue_reqs", "Disaggregated decode: requests in transfer.", 0),
        ):
            yield _gauge(name, text, labels, value)
        geometry = {"page_size": str(config.block_size), "num_pages": str(config.num_blocks)}
        yield _gauge("sglang:cache_config_info", "Configuration of the KV cache.", labels | geometry, 1)
        finished = sum(stats.finished.values()) - stats.finished["abort"]
        computed = stats.prompt_tokens_total - stats.prefix_hits_total
        for name, text, more, value in (
            ("sglang:prompt_tokens", "Prompt tokens processed.", {}, stats.prompt_tokens_total),
            ("sglang:generation_tokens", "Tokens generated.", {}, stats.generation_tokens_total),
            ("sglang:cached_tokens", "Prompt tokens found in the cache.", _DEVICE, stats.prefix_hits_total),
            ("sglang:num_requests", "Requests finished.", {}, finished),
            ("sglang:num_aborted_requests", "Requests aborted.", {}, stats.finished["abort"]),
        ):
            yield _counter(name, text, labels | more, value)
        realtime = CounterMetricFamily(
            "sglang:realtime_tokens", "Tokens processed, by mode, as they are.", labels=(*labels, "mode")
        )
        for mode, count in (
            ("prefill_compute", max(0, computed)),
            ("prefill_cache", stats.prefix_hits_total),
            ("decode", stats.generation_tokens_total),
        ):
            realtime.add_metric((*labels.values(), mode), count)
        yield realtime
        for attribute, (name, text) in SGLANG_HISTOGRAMS.items():
            yield _histogram(name, text, labels, getattr(stats, attribute))
        stages = HistogramMetricFamily(
            "sglang:per_stage_req_latency_seconds", "Time of a request in each stage.", labels=(*labels, "stage")
        )
        for stage, histogram in (
            ("prefill_waiting", stats.queue),
            ("prefill_forward", stats.prefill),
            ("decode_forward", stats.decode),
        ):
            stages.add_metric((*labels.values(), stage), _buckets(histogram), histogram.total)
        yield stages


_DEVICE: Final = {"cache_source": "device"}


def _cache_config_labels(config: EngineConfig) -> dict[str, str]:
    """The labels of ``vllm:cache_config_info``: strings, ``None`` where the real engine has none."""
    return {
        "engine": "0",
        "block_size": str(config.block_size),
        "cache_dtype": "auto",
        "enable_prefix_caching": str(config.prefix_hit_ratio > 0),
        "gpu_memory_utilization": "0.9",
        "is_attention_free": "False",
        "kv_cache_memory_bytes": "None",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(config.num_blocks),
        "num_gpu_blocks_override": "None",
        "sliding_window": "None",
        "swap_space": "4",
    }


def _gauge(name: str, text: str, labels: Mapping[str, str], value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), value)
    return family


def _counter(name: str, text: str, labels: Mapping[str, str], value: float) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), value)
    return family


def _histogram(name: str, text: str, labels: Mapping[str, str], histogram: Histogram) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), _buckets(histogram), histogram.total)
    return family


def _buckets(histogram: Histogram) -> Sequence[tuple[str, float]]:
    return [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in histogram.cumulative()]
