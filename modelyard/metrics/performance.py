"""What every engine did over the load window: request sizes, observed latency, KV-cache size, prefix hits.

Metric names: vLLM V1 and older, SGLang. Source: WVA saturation reference, "Replica signals" and "Token-analyzer
signals"; WVA SLO reference, "Load".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from modelyard.metrics.client import Sample
from modelyard.metrics.queries import FINISHED, METRIC, POD, duration, first_of, namespace_matcher
from modelyard.metrics.values import PodPerformance

PodKey = tuple[str, str, str]
"""(namespace, pod, model)"""

Ratio = tuple[str, str]
"""(numerator, denominator): two counters whose rates are divided."""


def _histogram(*names: str) -> tuple[Ratio, ...]:
    return tuple((f"{name}_sum", f"{name}_count") for name in names)


# SGLang has histograms of token numbers only when asked for them; its two counters give the same means.
PROMPT_TOKENS: tuple[Ratio, ...] = (
    *_histogram("vllm:request_prompt_tokens", "vllm_request_prompt_tokens", "sglang:prompt_tokens_histogram"),
    ("sglang:prompt_tokens_total", "sglang:num_requests_total"),
)
OUTPUT_TOKENS: tuple[Ratio, ...] = (
    *_histogram(
        "vllm:request_generation_tokens", "vllm_request_generation_tokens", "sglang:generation_tokens_histogram"
    ),
    ("sglang:generation_tokens_total", "sglang:num_requests_total"),
)
TTFT = _histogram(
    "vllm:time_to_first_token_seconds", "vllm_time_to_first_token_seconds", "sglang:time_to_first_token_seconds"
)
# Both names were exposed side by side for some releases: the newer one wins.
ITL = _histogram(
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "vllm_inter_token_latency_seconds",
    "vllm_time_per_output_token_seconds",
    "sglang:inter_token_latency_seconds",
    "sglang:time_per_output_token_seconds",
)
PREFIX_HITS: tuple[Ratio, ...] = (
    ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    ("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"),
    ("vllm_prefix_cache_hits_total", "vllm_prefix_cache_queries_total"),
    ("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),
)
CACHE_INFO = ("vllm:cache_config_info", "vllm_cache_config_info")
CACHE_TOKENS = ("sglang:max_total_num_tokens",)

COMPLETED_PURPOSE = "completed requests by pod"
PROMPT_PURPOSE = "prompt tokens by pod"
OUTPUT_PURPOSE = "output tokens by pod"
TTFT_PURPOSE = "time to first token by pod"
ITL_PURPOSE = "inter-token latency by pod"
CACHE_PURPOSE = "KV-cache sizes"
HITS_PURPOSE = "prefix-cache hits by pod"


def performance_queries(
    window: float,
    namespaces: Iterable[str],
    latency_in: Iterable[str] | None = None,
    caches_in: Iterable[str] | None = None,
) -> dict[str, str]:
    """PromQL by purpose; means and counts over ``window`` seconds.

    ``latency_in`` and ``caches_in``: the namespaces whose latencies, or caches, are wanted; ``None``: all of them.
    """
    namespaces = list(namespaces)
    latencies = namespaces if latency_in is None else sorted(set(latency_in))
    caches = namespaces if caches_in is None else sorted(set(caches_in))
    where = namespace_matcher(namespaces)
    span = duration(window)

    def means(ratios: Iterable[Ratio], where: str = where) -> str:
        def rate(metric: str) -> str:
            return f"sum by ({POD}) (rate({metric}{where}[{span}]))"

        return " or ".join(f"{rate(top)} / {rate(bottom)}" for top, bottom in ratios)

    queries = {
        COMPLETED_PURPOSE: first_of(FINISHED, f"sum by ({POD}) (increase({METRIC}{where}[{span}]))"),
        PROMPT_PURPOSE: means(PROMPT_TOKENS),
        OUTPUT_PURPOSE: means(OUTPUT_TOKENS),
    }
    if latencies:
        where = namespace_matcher(latencies)
        queries |= {TTFT_PURPOSE: means(TTFT, where), ITL_PURPOSE: means(ITL, where)}
    if caches:
        where = namespace_matcher(caches)
        # The real info metric has no model_name: it is matched on namespace and pod alone.
        blocks = first_of(
            CACHE_INFO, f"max by (namespace, pod, pod_name, num_gpu_blocks, block_size, engine) ({METRIC}{where})"
        )
        tokens = first_of(CACHE_TOKENS, f"max by (namespace, pod, pod_name) ({METRIC}{where})")
        queries |= {CACHE_PURPOSE: f"{blocks} or {tokens}", HITS_PURPOSE: means(PREFIX_HITS, where)}
    return queries


def read_performance(answers: Mapping[str, list[Sample]], known: Iterable[PodKey] = ()) -> tuple[PodPerformance, ...]:
    """One entry per pod and model that any answer names, or that is ``known`` to serve it from other signals.

    A purpose without an answer (its query failed) leaves its values unknown.
    """
    completed = by_pod(answers.get(COMPLETED_PURPOSE, ()))
    prompt = by_pod(answers.get(PROMPT_PURPOSE, ()))
    output = by_pod(answers.get(OUTPUT_PURPOSE, ()))
    ttft = by_pod(answers.get(TTFT_PURPOSE, ()))
    itl = by_pod(answers.get(ITL_PURPOSE, ()))
    hits = by_pod(answers.get(HITS_PURPOSE, ()))
    caches = cache_sizes(answers.get(CACHE_PURPOSE, ()))
    keys = {*completed, *prompt, *output, *ttft, *itl, *hits, *known}
    return tuple(
        PodPerformance(
            namespace=key[0],
            pod=key[1],
            model=key[2],
            completed=completed.get(key),
            prompt_tokens=prompt.get(key),
            output_tokens=output.get(key),
            ttft=_milliseconds(ttft.get(key)),
            itl=_milliseconds(itl.get(key)),
            kv_tokens=caches.get(key[:2]),
            prefix_hit_rate=_fraction(hits.get(key)),
        )
        for key in sorted(keys)
    )


def by_pod(samples: Iterable[Sample]) -> dict[PodKey, float | None]:
    """Values by namespace, pod and model; series without a pod are left out."""
    values: dict[PodKey, float | None] = {}
    for sample in samples:
        labels = sample.labels
        pod = labels.get("pod") or labels.get("pod_name", "")
        if pod:
            values[labels.get("namespace", ""), pod, labels.get("model_name", "")] = sample.value
    return values


def cache_sizes(samples: Iterable[Sample]) -> dict[tuple[str, str], int]:
    """KV-cache tokens by (namespace, pod): blocks x block size from an info metric's labels, else the value itself.

    The engines of a pod (data parallelism) have a cache each: their sizes add up. A size that an engine does not know
    (yet) is left out.
    """
    engines: dict[tuple[str, str, str], int] = {}
    for sample in samples:
        labels = sample.labels
        pod = labels.get("pod") or labels.get("pod_name", "")
        if "num_gpu_blocks" in labels or "block_size" in labels:
            size = _whole(labels.get("num_gpu_blocks")) * _whole(labels.get("block_size"))
        else:
            size = int(sample.value or 0)
        if pod and size > 0:
            engine = labels.get("namespace", ""), pod, labels.get("engine", "")
            engines[engine] = max(size, engines.get(engine, 0))
    sizes: dict[tuple[str, str], int] = {}
    for (namespace, pod, _), size in engines.items():
        sizes[namespace, pod] = sizes.get((namespace, pod), 0) + size
    return sizes


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _fraction(value: float | None) -> float | None:
    return None if value is None else min(max(value, 0.0), 1.0)
