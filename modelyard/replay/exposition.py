"""What a simulated pod's metrics endpoint would show of what a policy asks for.

Names, types, labels and buckets are those of vLLM, as the engine that runs as a process exposes them
(``modelyard.engine.metrics``); only what is asked for is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from modelyard.engine.core import EngineCore
from modelyard.engine.stats import Histogram
from modelyard.engine.vocabulary import VLLM_HISTOGRAMS
from modelyard.metrics.pages import Page, PageSample

_GAUGES: Final[Mapping[str, Callable[[EngineCore], float]]] = {
    "vllm:num_requests_running": lambda core: core.num_running,
    "vllm:num_requests_waiting": lambda core: core.num_waiting,
    "vllm:kv_cache_usage_perc": lambda core: core.kv_usage,
}
_COUNTERS: Final[Mapping[str, Callable[[EngineCore], float]]] = {
    "vllm:prompt_tokens": lambda core: core.stats.prompt_tokens_total,
    "vllm:generation_tokens": lambda core: core.stats.generation_tokens_total,
    "vllm:num_preemptions": lambda core: core.stats.preemptions_total,
    "vllm:prefix_cache_queries": lambda core: core.stats.prefix_queries_total,
    "vllm:prefix_cache_hits": lambda core: core.stats.prefix_hits_total,
}
_HISTOGRAMS: Final = {name: attribute for attribute, (name, _) in VLLM_HISTOGRAMS.items()}
_SUCCESS: Final = "vllm:request_success"
KNOWN: Final = (*_GAUGES, *_COUNTERS, _SUCCESS, *_HISTOGRAMS)
"""The families a replay has; a policy on any other finds it missing, as on an engine without it."""


def is_known(name: str) -> bool:
    """Whether a policy's metric is among them; a counter may be named with or without ``_total``."""
    return name in KNOWN or name.removesuffix("_total") in (*_COUNTERS, _SUCCESS)


def page(core: EngineCore, names: Iterable[str], at: float) -> Page:
    """The families ``names`` of an engine as a page read ``at`` (epoch seconds); one it does not have is left out."""
    samples: list[PageSample] = []
    for name in sorted(set(names)):
        stem = name.removesuffix("_total")
        if name in _GAUGES:
            samples.append(PageSample(name, {}, float(_GAUGES[name](core)), "gauge"))
        elif name in _HISTOGRAMS:
            samples += _histogram(name, getattr(core.stats, _HISTOGRAMS[name]))
        elif stem in _COUNTERS:
            samples.append(PageSample(f"{stem}_total", {}, float(_COUNTERS[stem](core)), "counter"))
        elif stem == _SUCCESS:
            for reason, count in core.stats.finished.items():
                samples.append(PageSample(f"{stem}_total", {"finished_reason": reason}, float(count), "counter"))
    return Page(samples=samples, at=at)


def _histogram(name: str, histogram: Histogram) -> Iterable[PageSample]:
    for bound, count in histogram.cumulative():
        le = "+Inf" if bound == float("inf") else str(bound)
        yield PageSample(f"{name}_bucket", {"le": le}, float(count), "histogram")
    yield PageSample(f"{name}_count", {}, float(histogram.count), "histogram")
    yield PageSample(f"{name}_sum", {}, histogram.total, "histogram")
