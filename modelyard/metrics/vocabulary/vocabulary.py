"""What inference engines call what we want to know: one table per engine, and the rules that read them.

Prometheus queries, pods' pages and the simulated engine all read these tables. A new engine is one more ``Engine`` in
``ENGINES``. Names and buckets: vLLM (V1 engine, 0.11 and later, and older names), SGLang, TensorRT-LLM's
``trtllm-serve`` (1.3; shown under ``/prometheus/metrics``) and Text Generation Inference (3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import cached_property
from typing import Final, NamedTuple

MODELS_PATH: Final = "/v1/models"
"""Path of the models that an engine serves, in the OpenAI API."""
HEALTH_PATH: Final = "/health"


class Signal(Enum):
    """What a metric says, in our words; the value explains it."""

    RUNNING = "Requests in the running batch."
    WAITING = "Requests in the waiting queue."
    KV_USE = "Share of the KV cache in use; 1 is all of it."
    KV_TOKENS = "KV cache capacity in tokens."
    KV_CONFIG = "Configuration of the KV cache, in labels."
    KV_BLOCKS = "KV cache capacity in blocks."
    KV_BLOCK_SIZE = "Tokens of a block of the KV cache."
    FINISHED = "Requests that ended."
    PROMPT_TOKENS = "Prompt tokens processed."
    OUTPUT_TOKENS = "Tokens generated."
    PREFIX_LOOKUPS = "Tokens looked up in the prefix cache."
    PREFIX_HITS = "Tokens found in the prefix cache."
    PREFIX_HIT_RATE = "Share of the tokens looked up that the prefix cache had."
    REQUEST_PROMPT_TOKENS = "Prompt tokens of a request."
    REQUEST_OUTPUT_TOKENS = "Generated tokens of a request."
    TTFT = "Time to first token, queueing included."
    ITL = "Time between two tokens of a request."
    # From here on only shown by the simulated engine.
    TPOT = "Mean time per output token of a request."
    E2E = "Time from arrival to the last token."
    QUEUE_TIME = "Time in the waiting queue."
    INFERENCE_TIME = "Time in the running batch."
    PREFILL_TIME = "Time in prefill."
    DECODE_TIME = "Time in decode."
    STAGE_TIMES = "Time of a request in each stage."
    REQUEST_LONGEST = "Longest generation of a request."
    REQUEST_MAX_TOKENS = "The max_tokens parameter of a request."
    REQUEST_N = "The n parameter of a request."
    STEP_TOKENS = "Tokens processed in one engine step."
    TOKENS_BY_MODE = "Tokens processed, by mode."
    WAITING_REASONS = "Waiting requests by the reason why they wait."
    ABORTED = "Requests aborted."
    PREEMPTIONS = "Preemptions of running requests."
    RETRACTED = "Requests taken out of the batch and waiting again."
    KV_USED_TOKENS = "KV cache tokens in use."
    THROUGHPUT = "Generated tokens per second."
    BATCH_USE = "Share of the batch limit in use."
    SLEEP = "1 for the engine's present sleep state."
    DISAGGREGATED = "A queue of disaggregated serving: empty."


class Kind(StrEnum):
    """The type a family is declared with."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Join(Enum):
    """How the values of several series of a pod, or of several pods, become one."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"


class Unit(Enum):
    """What a metric counts in. The value is how much of our unit (fractions, seconds) one of it is, and how to join."""

    COUNT = (1.0, Join.SUM)
    FRACTION = (1.0, Join.MEAN)
    PERCENT = (0.01, Join.MEAN)
    SECONDS = (1.0, Join.MAX)
    MILLISECONDS = (0.001, Join.MAX)


@dataclass(frozen=True)
class Family:
    """One metric family: ``name`` is that of its samples (with ``_total`` where the engine shows it so), ``former``
    are older names for the same, newest first.

    ``split`` is a label with one series for each of its values, ``labels`` are constant ones, ``factors`` those whose
    product is the size of the KV cache, ``size`` the label that has it outright in newer releases. ``total`` is the
    label and the value of the series that is the sum of its sisters. ``buckets`` is in the family's unit; ``None``: 1,
    2, 5 ... up to the longest request. ``optional``: engines show it only when told to.
    """

    signal: Signal
    name: str
    kind: Kind = Kind.GAUGE
    unit: Unit = Unit.COUNT
    former: tuple[str, ...] = ()
    split: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    factors: tuple[str, ...] = ()
    size: str = ""
    total: tuple[str, str] | None = None
    buckets: tuple[float, ...] | None = ()
    model: bool = True
    """Whether the model's label is on it."""
    optional: bool = False

    @property
    def scale(self) -> float:
        """One of the family's unit in ours."""
        return float(self.unit.value[0])

    @property
    def base(self) -> str:
        """The name of the family: a counter's without ``_total``."""
        return self.name.removesuffix("_total") if self.kind is Kind.COUNTER else self.name

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every name its samples may have. With ``_`` too: some client libraries write a colon so in OpenMetrics."""
        names = (self.name, *self.former)
        return tuple(dict.fromkeys((*names, *(name.replace(":", "_") for name in names))))


class Ratio(NamedTuple):
    """Two counters; the growth of the first by that of the second, times ``scale``, is a mean or a share."""

    top: str
    bottom: str
    scale: float = 1.0


_PARTS: Final[Mapping[Signal, tuple[tuple[Signal, Signal], ...]]] = {
    Signal.REQUEST_PROMPT_TOKENS: ((Signal.PROMPT_TOKENS, Signal.FINISHED),),
    Signal.REQUEST_OUTPUT_TOKENS: ((Signal.OUTPUT_TOKENS, Signal.FINISHED),),
    Signal.PREFIX_HIT_RATE: (
        (Signal.PREFIX_HITS, Signal.PREFIX_LOOKUPS),
        (Signal.PREFIX_HITS, Signal.PROMPT_TOKENS),
    ),
}
"""The counters that give a mean or a share where no histogram does: the first pair that an engine has."""


@dataclass(frozen=True, eq=False)
class Engine:
    """The families of one engine.

    ``model`` is the label that names the model (empty: the engine has none, and scraping must add ``model_name``),
    ``rank`` that of a data-parallel rank, each of which has requests and a KV cache of its own: values add up over it.
    ``shards`` are the labels of tensor- and pipeline-parallel ranks, which share both and repeat each other's values.
    ``repeats`` are other labels whose series repeat one value or are parts of the largest. ``labels`` are on every
    series.
    """

    name: str
    families: tuple[Family, ...]
    model: str = "model_name"
    rank: str = ""
    shards: tuple[str, ...] = ()
    repeats: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def of(self) -> Mapping[Signal, Family]:
        """The family that gives each signal."""
        return {family.signal: family for family in reversed(self.families)}

    @cached_property
    def by_name(self) -> Mapping[str, Family]:
        """The family of each metric name."""
        return {name: family for family in reversed(self.families) for name in family.names}

    @cached_property
    def joins(self) -> Mapping[str, Join]:
        """How the values of each metric join, by name."""
        return {name: family.unit.value[1] for family in self.families for name in (family.base, *family.names)}

    def ratios(self, signal: Signal) -> Iterator[Ratio]:
        """What gives the mean of a histogram, or a share. The older names of two counters belong together in order."""
        family = self.of.get(signal)
        if family is not None and family.kind is Kind.HISTOGRAM:
            yield from (Ratio(f"{name}_sum", f"{name}_count", family.scale) for name in family.names)
            if not family.optional:
                return
        for top, bottom in _PARTS.get(signal, ()):
            if top in self.of and bottom in self.of:
                yield from map(Ratio, self.of[top].names, self.of[bottom].names)
                return


def join_of(name: str) -> Join | None:
    """How the values of an engine's metric join; ``None``: no engine has it."""
    return next((joins[name] for engine in ENGINES.values() if name in (joins := engine.joins)), None)


def repeated_labels(name: str) -> tuple[str, ...]:
    """Return the labels by which series of this metric repeat one value: those of the ranks of a parallel engine."""
    for engine in ENGINES.values():
        if name.startswith((f"{engine.name}:", f"{engine.name}_")):
            return (*engine.shards, *engine.repeats)
    return ()


def ranks() -> tuple[str, ...]:
    """Return the labels of data-parallel ranks of all engines."""
    return tuple(dict.fromkeys(engine.rank for engine in ENGINES.values() if engine.rank))


def names_of(*signals: Signal) -> tuple[str, ...]:
    """The names of these signals, of all engines."""
    found = (engine.of.get(signal) for engine in ENGINES.values() for signal in signals)
    return tuple(name for family in found if family is not None for name in family.names)


def _counter(signal: Signal, name: str, *, former: tuple[str, ...] = (), split: str = "", **labels: str) -> Family:
    return Family(signal, name, Kind.COUNTER, former=former, split=split, labels=labels)


def _share(signal: Signal, name: str, *former: str) -> Family:
    return Family(signal, name, unit=Unit.FRACTION, former=former)


def _times(
    signal: Signal, name: str, buckets: tuple[float, ...] = (), *, former: tuple[str, ...] = (), split: str = ""
) -> Family:
    return Family(signal, name, Kind.HISTOGRAM, Unit.SECONDS, former, split, buckets=buckets)


def _sizes(signal: Signal, name: str, buckets: tuple[float, ...] | None = None, *, optional: bool = False) -> Family:
    return Family(signal, name, Kind.HISTOGRAM, buckets=buckets, optional=optional)


_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip

VLLM: Final = Engine(
    "vllm",
    (
        Family(Signal.RUNNING, "vllm:num_requests_running"),
        Family(Signal.WAITING, "vllm:num_requests_waiting"),
        Family(Signal.WAITING_REASONS, "vllm:num_requests_waiting_by_reason", split="reason"),
        _share(Signal.KV_USE, "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        # The real engine's info metric has no model_name either.
        Family(
            Signal.KV_CONFIG,
            "vllm:cache_config_info",
            model=False,
            factors=("num_gpu_blocks", "block_size"),
            size="kv_cache_size_tokens",
            labels={
                "cache_dtype": "auto",
                "enable_prefix_caching": "True",
                "gpu_memory_utilization": "0.9",
                "is_attention_free": "False",
                "kv_cache_memory_bytes": "None",
                "num_cpu_blocks": "None",
                "num_gpu_blocks_override": "None",
                "sliding_window": "None",
                "swap_space": "4",
            },
        ),
        Family(Signal.SLEEP, "vllm:engine_sleep_state", split="sleep_state"),
        _counter(Signal.PROMPT_TOKENS, "vllm:prompt_tokens_total"),
        _counter(Signal.OUTPUT_TOKENS, "vllm:generation_tokens_total"),
        _counter(Signal.PREEMPTIONS, "vllm:num_preemptions_total"),
        _counter(
            Signal.PREFIX_LOOKUPS, "vllm:prefix_cache_queries_total", former=("vllm:gpu_prefix_cache_queries_total",)
        ),
        _counter(Signal.PREFIX_HITS, "vllm:prefix_cache_hits_total", former=("vllm:gpu_prefix_cache_hits_total",)),
        _counter(Signal.FINISHED, "vllm:request_success_total", split="finished_reason"),
        _times(Signal.TTFT, "vllm:time_to_first_token_seconds", _TTFT),
        # Both names were exposed side by side for some releases: the newer one wins.
        _times(Signal.ITL, "vllm:inter_token_latency_seconds", _TOKEN, former=("vllm:time_per_output_token_seconds",)),
        _times(Signal.TPOT, "vllm:request_time_per_output_token_seconds", _TOKEN),
        _times(Signal.E2E, "vllm:e2e_request_latency_seconds", _REQUEST),
        _times(Signal.QUEUE_TIME, "vllm:request_queue_time_seconds", _REQUEST),
        _times(Signal.INFERENCE_TIME, "vllm:request_inference_time_seconds", _REQUEST),
        _times(Signal.PREFILL_TIME, "vllm:request_prefill_time_seconds", _REQUEST),
        _times(Signal.DECODE_TIME, "vllm:request_decode_time_seconds", _REQUEST),
        _sizes(Signal.REQUEST_PROMPT_TOKENS, "vllm:request_prompt_tokens"),
        _sizes(Signal.REQUEST_OUTPUT_TOKENS, "vllm:request_generation_tokens"),
        _sizes(Signal.REQUEST_LONGEST, "vllm:request_max_num_generation_tokens"),
        _sizes(Signal.REQUEST_MAX_TOKENS, "vllm:request_params_max_tokens"),
        _sizes(Signal.REQUEST_N, "vllm:request_params_n", (1.0, 2.0, 5.0, 10.0, 20.0)),
        _sizes(
            Signal.STEP_TOKENS,
            "vllm:iteration_tokens_total",
            (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0),
        ),
    ),
    rank="engine",
    labels={"engine": "0"},
)

_SGLANG_TTFT = (
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0,
)  # fmt: skip
_SGLANG_TOKEN = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0,
    2.0, 4.0, 6.0, 8.0,
)  # fmt: skip
_SGLANG_QUEUE = (
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0, 1200.0, 1400.0, 1600.0,
    1800.0, 2000.0, 2500.0, 3000.0,
)  # fmt: skip

SGLANG: Final = Engine(
    "sglang",
    (
        Family(Signal.RUNNING, "sglang:num_running_reqs"),
        Family(Signal.WAITING, "sglang:num_queue_reqs"),
        Family(Signal.RETRACTED, "sglang:num_retracted_reqs"),
        _share(Signal.KV_USE, "sglang:token_usage"),
        Family(Signal.KV_USED_TOKENS, "sglang:num_used_tokens"),
        Family(Signal.KV_TOKENS, "sglang:max_total_num_tokens"),
        Family(Signal.KV_CONFIG, "sglang:cache_config_info", factors=("num_pages", "page_size")),
        Family(Signal.THROUGHPUT, "sglang:gen_throughput"),
        _share(Signal.PREFIX_HIT_RATE, "sglang:cache_hit_rate"),
        _share(Signal.BATCH_USE, "sglang:utilization"),
        Family(Signal.DISAGGREGATED, "sglang:num_prefill_prealloc_queue_reqs"),
        Family(Signal.DISAGGREGATED, "sglang:num_prefill_inflight_queue_reqs"),
        Family(Signal.DISAGGREGATED, "sglang:num_decode_prealloc_queue_reqs"),
        Family(Signal.DISAGGREGATED, "sglang:num_decode_transfer_queue_reqs"),
        _counter(Signal.PROMPT_TOKENS, "sglang:prompt_tokens_total"),
        _counter(Signal.OUTPUT_TOKENS, "sglang:generation_tokens_total"),
        Family(
            Signal.PREFIX_HITS,
            "sglang:cached_tokens_total",
            Kind.COUNTER,
            labels={"cache_source": "device"},
            total=("cache_source", "total"),
        ),
        _counter(Signal.FINISHED, "sglang:num_requests_total"),
        _counter(Signal.ABORTED, "sglang:num_aborted_requests_total"),
        _counter(Signal.TOKENS_BY_MODE, "sglang:realtime_tokens_total", split="mode"),
        _times(Signal.TTFT, "sglang:time_to_first_token_seconds", _SGLANG_TTFT),
        _times(
            Signal.ITL,
            "sglang:inter_token_latency_seconds",
            _SGLANG_TOKEN,
            former=("sglang:time_per_output_token_seconds",),
        ),
        _times(Signal.E2E, "sglang:e2e_request_latency_seconds", (*_SGLANG_TTFT, 600.0, 1200.0, 1800.0, 2400.0)),
        _times(Signal.QUEUE_TIME, "sglang:queue_time_seconds", _SGLANG_QUEUE),
        _times(Signal.STAGE_TIMES, "sglang:per_stage_req_latency_seconds", _SGLANG_QUEUE, split="stage"),
        _sizes(Signal.REQUEST_PROMPT_TOKENS, "sglang:prompt_tokens_histogram", optional=True),
        _sizes(Signal.REQUEST_OUTPUT_TOKENS, "sglang:generation_tokens_histogram", optional=True),
    ),
    rank="dp_rank",
    shards=("tp_rank", "pp_rank"),
    repeats=("moe_ep_rank", "priority"),
    labels={"engine_type": "unified", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"},
)

TENSORRT_LLM: Final = Engine(
    "tensorrt-llm",
    (
        Family(Signal.RUNNING, "trtllm_num_requests_running"),
        Family(Signal.WAITING, "trtllm_num_requests_waiting"),
        _share(Signal.KV_USE, "trtllm_kv_cache_utilization"),
        Family(Signal.KV_BLOCKS, "trtllm_kv_cache_max_blocks"),
        Family(Signal.KV_BLOCK_SIZE, "trtllm_kv_cache_tokens_per_block"),
        _counter(Signal.FINISHED, "trtllm_request_success_total", split="finished_reason"),
        _counter(Signal.PROMPT_TOKENS, "trtllm_prompt_tokens_total"),
        _counter(Signal.OUTPUT_TOKENS, "trtllm_generation_tokens_total"),
        _counter(Signal.PREFIX_HITS, "trtllm_prompt_cached_tokens_total"),
        _times(Signal.TTFT, "trtllm_time_to_first_token_seconds", _TTFT),
        _times(Signal.ITL, "trtllm_time_per_output_token_seconds", _TOKEN),
        _times(Signal.E2E, "trtllm_e2e_request_latency_seconds", _REQUEST),
        _times(Signal.QUEUE_TIME, "trtllm_request_queue_time_seconds", _REQUEST),
        _times(Signal.INFERENCE_TIME, "trtllm_request_inference_time_seconds", _REQUEST),
        _times(Signal.DECODE_TIME, "trtllm_request_decode_time_seconds", _REQUEST),
    ),
    labels={"engine_type": "trtllm"},
)

# Says nothing of its KV cache, nor of the time to first token, and names no model.
TGI: Final = Engine(
    "tgi",
    (
        Family(Signal.RUNNING, "tgi_batch_current_size"),
        Family(Signal.WAITING, "tgi_queue_size"),
        _counter(Signal.FINISHED, "tgi_request_success"),
        _sizes(Signal.REQUEST_PROMPT_TOKENS, "tgi_request_input_length"),
        _sizes(Signal.REQUEST_OUTPUT_TOKENS, "tgi_request_generated_tokens"),
        _sizes(Signal.REQUEST_MAX_TOKENS, "tgi_request_max_new_tokens"),
        _times(Signal.ITL, "tgi_request_mean_time_per_token_duration"),
        _times(Signal.E2E, "tgi_request_duration"),
        _times(Signal.QUEUE_TIME, "tgi_request_queue_duration"),
        _times(Signal.INFERENCE_TIME, "tgi_request_inference_duration"),
    ),
    model="",
)

ENGINES: Final[dict[str, Engine]] = {engine.name: engine for engine in (VLLM, SGLANG, TENSORRT_LLM, TGI)}
"""The engines whose metrics are read, by name."""
