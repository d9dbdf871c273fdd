"""The PromQL of one tick: a constant number of queries for the whole fleet, grouped by namespace, model and pod.

Model names never enter a query (they come back as labels), so no model name needs escaping; namespaces do. Signal
names and semantics: WVA saturation reference, "Replica signals"; engine metric names: vLLM V1 and older, SGLang.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

POD = "namespace, model_name, pod, pod_name"

# With `_` too: some releases of the Python client library write the colon as `_` in OpenMetrics.
KV_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "vllm_kv_cache_usage_perc", "sglang:token_usage")
WAITING = ("vllm:num_requests_waiting", "vllm_num_requests_waiting", "sglang:num_queue_reqs")
RUNNING = ("vllm:num_requests_running", "vllm_num_requests_running", "sglang:num_running_reqs")
FINISHED = ("vllm:request_success_total", "vllm_request_success_total", "sglang:num_requests_total")
GATEWAY_QUEUE = "inference_extension_flow_control_queue_size"


def duration(seconds: float) -> str:
    """A PromQL duration in the largest unit that divides it exactly; below one second (or zero) ``1s``.

    >>> duration(600), duration(3600), duration(172800), duration(5400), duration(0.2), duration(7.5)
    ('10m', '1h', '2d', '90m', '1s', '7500ms')
    """
    if seconds < 1:
        return "1s"
    milliseconds = round(seconds * 1000)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def quoted(value: str) -> str:
    """A PromQL string literal: backslash doubled, then quote escaped, newline as ``\\n``."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def namespace_matcher(namespaces: Iterable[str]) -> str:
    """``{namespace=~"a|b"}``, or nothing for the whole cluster."""
    names = sorted(set(namespaces))
    if not names:
        return ""
    return "{namespace=~" + quoted("|".join(re.escape(name) for name in names)) + "}"


METRIC = "$metric"


def first_of(metrics: Iterable[str], template: str) -> str:
    """``template`` for every metric, so that each series is taken under the first name it is exposed with."""
    return " or ".join(template.replace(METRIC, metric) for metric in metrics)


@dataclass(frozen=True, slots=True)
class FleetQueries:
    """The texts of one tick's queries."""

    kv: str
    waiting: str
    running: str
    finished_rate: str
    sampled_at: str
    gateway_queue: str

    @classmethod
    def build(cls, peak_window: float, namespaces: Iterable[str] = ()) -> FleetQueries:
        """Queries for these namespaces (none: all), with peaks over ``peak_window`` seconds."""
        where = namespace_matcher(namespaces)
        window = duration(peak_window)
        rate_window = duration(5 * peak_window)
        # A window's peak skips NaN; an engine that says NaN now is missing, whatever it said before in the window.
        peak = f"max by ({POD}) (max_over_time({METRIC}{where}[{window}]) unless ({METRIC}{where} != {METRIC}{where}))"
        return cls(
            kv=first_of(KV_USE, peak),
            waiting=first_of(WAITING, peak),
            running=first_of(RUNNING, f"sum by ({POD}) ({METRIC}{where})"),
            finished_rate=first_of(FINISHED, f"sum by ({POD}) (rate({METRIC}{where}[{rate_window}]))"),
            sampled_at=first_of(RUNNING, f"max by ({POD}) (timestamp({METRIC}{where}))"),
            gateway_queue=f"sum by (target_model_name, model_name) ({GATEWAY_QUEUE})",
        )


def finished_over(retention_seconds: int, namespaces: Iterable[str] = ()) -> str:
    """Requests finished over the retention, by namespace and model; only of models observed since before it began.

    A Prometheus that has just started, or lost scrapes, would else report nothing finished for a busy model.
    """
    where = namespace_matcher(namespaces)
    window = duration(retention_seconds)
    counted = first_of(FINISHED, f"sum by (namespace, model_name) (increase({METRIC}{where}[{window}]))")
    before = first_of(RUNNING, f"max by (namespace, model_name) (max_over_time({METRIC}{where}[5m] offset {window}))")
    return f"({counted}) and on (namespace, model_name) ({before})"


def seen_over(seconds: float, namespaces: Iterable[str] = ()) -> str:
    """Newest sample time of each model's engines, looking further back than an instant query does."""
    where = namespace_matcher(namespaces)
    inner = first_of(RUNNING, f"max by (namespace, model_name) (timestamp({METRIC}{where}))")
    return f"max_over_time(({inner})[{duration(seconds)}:{duration(max(seconds / 60, 1))}])"


def offered_load(window: float, namespaces: Iterable[str] = ()) -> str:
    """Requests per second that arrive, by namespace and model: completions plus the growth of running and waiting.

    Completions alone level off at what the engines can do; requests that pile up are arrivals too. All in one query:
    whichever part is missing (no counter before an engine's first completion) is left out of the sum, a part that is
    NaN likewise, and a queue that drains faster than requests come in gives 0. Growth is taken per series, so that
    requests lost with a pod that went away are not counted as negative arrivals. Source: WVA SLO reference, "Load".
    """
    where = namespace_matcher(namespaces)
    span = duration(window)
    seconds = max(window, 1.0)

    def part(name: str, metrics: Iterable[str], each: str) -> str:
        inner = first_of(metrics, f"sum by ({POD}) (({each}) > -Inf < Inf)")
        return f'label_replace({inner}, "part", "{name}", "", "")'

    grown = f"delta({METRIC}{where}[{span}]) / {seconds:g}"
    parts = (
        part("finished", FINISHED, f"rate({METRIC}{where}[{span}])"),
        part("running", RUNNING, grown),
        part("waiting", WAITING, grown),
    )
    return f"clamp_min(sum by (namespace, model_name) ({' or '.join(parts)}), 0)"
