"""What metrics say, as plain typed values. ``None`` means "not known", never zero.

The fields of ``PodSignal`` and ``PodPerformance`` are the table of what is measured of a pod. Queries and answers,
snapshot files, replays and what-if all go by it: one more value is one more field here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum
from functools import cache
from typing import Any, NamedTuple

from modelyard.metrics.vocabulary.vocabulary import Join, Signal
from modelyard.objects import Key, few


class Allowed(StrEnum):
    """What PromQL of tenants may read: series of its own namespace, any, or nothing at all."""

    OWN = "own"
    ANY = "any"
    NONE = "none"


class Over(Enum):
    """What is taken of the samples of a pod's series. The window is the peak window for a ``PodSignal``, the load
    window for a ``PodPerformance``."""

    NOW = "the newest"
    TIME = "the time of the newest"
    PEAK = "the highest in the window"
    ENGINES = "the number of data-parallel engines that have such a series, where there are several"
    RATE = "growth per second over five windows"
    GROWTH = "growth over the window"
    MEAN = "the mean of a histogram, or a share, over the window"
    STEADY = "the mean of a histogram over five windows"
    CACHE = "the size of the KV cache, by whatever the engine says of it"


class Needed(Enum):
    """Of which namespaces a ``PodPerformance``'s value is asked for."""

    ALWAYS = "of all whose performance is"
    LATENCIES = "where latencies matter"
    SHARES = "where the share of requests within their targets is aimed at"
    CACHES = "where caches matter"


class UnderLoad(Enum):
    """What becomes of a value where more load, or the same on other pods, is imagined."""

    UNKNOWN = "nobody has measured it"
    SAME = "it does not depend on the load"
    SHARED = "it is a part of the load: it grows likewise, and pods have equal parts"
    PLACED = "it follows from the requests that the pod has room for"


@dataclass(frozen=True)
class Measure:
    """Where a value comes from and how it is treated.

    ``purpose`` names its query in errors, ``unit`` says in a snapshot file what the number is. ``join``: how values of
    a pod's data-parallel engines become one. ``scale`` is how many of that unit the vocabulary's is; what lies outside
    0 to ``limit`` is cut off.
    """

    signal: Signal
    over: Over
    purpose: str
    unit: str
    under_load: UnderLoad = UnderLoad.UNKNOWN
    needed: Needed = Needed.ALWAYS
    scale: float = 1.0
    limit: float | None = None
    join: Join = Join.SUM

    def value(self, metric: float | None) -> float | None:
        """What is kept of a metric's value."""
        if metric is None:
            return None
        scaled = metric * self.scale
        return scaled if self.limit is None else min(max(scaled, 0.0), self.limit)


def _measured(*of: Any, **further: Any) -> Any:
    return field(default=None, metadata={"measure": Measure(*of, **further)})


@dataclass(frozen=True, slots=True)
class PodMeasures:
    """What was measured of one pod for one model; each value is ``None`` when missing, NaN or infinite."""

    namespace: str
    pod: str
    model: str

    @classmethod
    @cache
    def measures(cls) -> Mapping[str, Measure]:
        """What the values are, by field."""
        return {found.name: found.metadata["measure"] for found in fields(cls) if found.metadata}


@dataclass(frozen=True, slots=True)
class PodSignal(PodMeasures):
    """The saturation signals of one pod for one model. ``kv`` may exceed nothing but 1.

    Of a pod with several data-parallel ``engines`` (``None``: one), ``kv`` is that of the fullest; requests add up.
    """

    kv: float | None = _measured(
        Signal.KV_USE, Over.PEAK, "KV-cache use", "a fraction: 0.75 for 75 %", UnderLoad.PLACED, join=Join.MAX
    )
    waiting: float | None = _measured(
        Signal.WAITING, Over.PEAK, "waiting requests", "requests in the queue", UnderLoad.PLACED
    )
    running: float | None = _measured(
        Signal.RUNNING, Over.NOW, "running requests", "requests in the batch", UnderLoad.PLACED
    )
    completed_rate: float | None = _measured(
        Signal.FINISHED, Over.RATE, "finished requests", "finished requests per second", UnderLoad.SHARED
    )
    sampled_at: float | None = _measured(
        Signal.RUNNING, Over.TIME, "sample times", "time of the newest sample; default: `at`", UnderLoad.SAME
    )
    engines: float | None = _measured(
        Signal.WAITING, Over.ENGINES, "data-parallel engines", "data-parallel engines of the pod; default: 1",
        UnderLoad.SAME,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PodPerformance(PodMeasures):
    """What one pod's engine did for one model over the load window."""

    completed: float | None = _measured(
        Signal.FINISHED, Over.GROWTH, "completed requests", "requests finished", UnderLoad.SHARED
    )
    prompt_tokens: float | None = _measured(
        Signal.REQUEST_PROMPT_TOKENS, Over.MEAN, "prompt tokens", "mean prompt tokens of a request", UnderLoad.SAME
    )
    output_tokens: float | None = _measured(
        Signal.REQUEST_OUTPUT_TOKENS, Over.MEAN, "output tokens", "mean output tokens of a request", UnderLoad.SAME
    )
    ttft: float | None = _measured(
        Signal.TTFT, Over.MEAN, "time to first token", "mean in milliseconds", needed=Needed.LATENCIES, scale=1000
    )
    itl: float | None = _measured(
        Signal.ITL, Over.MEAN, "inter-token latency", "mean in milliseconds", needed=Needed.LATENCIES, scale=1000
    )
    steady_prompt: float | None = _measured(
        Signal.REQUEST_PROMPT_TOKENS, Over.STEADY, "prompt tokens over five windows", "mean prompt tokens of a request",
        UnderLoad.SAME, Needed.SHARES,
    )  # fmt: skip
    steady_output: float | None = _measured(
        Signal.REQUEST_OUTPUT_TOKENS, Over.STEADY, "output tokens over five windows", "mean output tokens of a request",
        UnderLoad.SAME, Needed.SHARES,
    )  # fmt: skip
    steady_ttft: float | None = _measured(
        Signal.TTFT, Over.STEADY, "time to first token over five windows", "mean in milliseconds",
        needed=Needed.SHARES, scale=1000,
    )  # fmt: skip
    steady_itl: float | None = _measured(
        Signal.ITL, Over.STEADY, "inter-token latency over five windows", "mean in milliseconds",
        needed=Needed.SHARES, scale=1000,
    )  # fmt: skip
    kv_tokens: int | None = _measured(
        Signal.KV_TOKENS, Over.CACHE, "KV-cache sizes", "tokens", UnderLoad.SAME, Needed.CACHES
    )
    prefix_hit_rate: float | None = _measured(
        Signal.PREFIX_HIT_RATE, Over.MEAN, "prefix-cache hits", "a fraction", UnderLoad.SAME, Needed.CACHES, limit=1
    )
    mean_kv: float | None = _measured(
        Signal.KV_USE, Over.PEAK, "KV-cache use, mean of engines", "a fraction, mean of the pod's engines",
        needed=Needed.CACHES, limit=1, join=Join.MEAN,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """Offered load of one model in one namespace, whoever serves it.

    ``arrivals`` is requests per second now: completions plus the growth of running and waiting, so that it keeps
    rising when the engines are saturated. ``history`` is the same over the last minutes, (time, requests per second),
    oldest first; it may be empty. ``sizes`` is (time, prompt, output), the mean tokens of the requests that finished in
    the window before, where any did.
    """

    arrivals: float | None
    history: tuple[tuple[float, float], ...] = ()
    sizes: tuple[tuple[float, float, float], ...] = ()


Buckets = tuple[tuple[float, float], ...]
"""A histogram: (upper bound, share of what was observed), in rising order; the last bound may be infinite."""


class SizeBuckets(NamedTuple):
    """Tokens of a model's requests, as its engines' histograms have them; empty where they have none."""

    prompt: Buckets = ()
    output: Buckets = ()


@dataclass(frozen=True, slots=True)
class Signals:
    """Everything Prometheus said in one tick.

    ``request_counts`` maps (namespace, model, retention seconds) to finished requests over that retention; a missing
    key means unknown, never zero. ``last_seen`` maps (namespace, model) to the newest sample time of any engine metric
    and is what tells "stale" from "missing". ``gateway_queue`` maps (namespace, model) to requests queued at
    gateways, with the namespace "" for gateways that serve all of them; ``gateway_bytes`` to the size of their bodies.
    ``error`` says why Prometheus could not be read at all; ``partial_errors`` names single queries for all that failed,
    ``errors_in`` what was asked for one namespace alone and failed. ``gateway_unknown``: the query for gateways' queues
    was among them.
    """

    pods: tuple[PodSignal, ...] = ()
    request_counts: Mapping[tuple[str, str, int], float] = field(default_factory=dict)
    last_seen: Mapping[tuple[str, str], float] = field(default_factory=dict)
    gateway_queue: Mapping[tuple[str, str], float] = field(default_factory=dict)
    gateway_bytes: Mapping[tuple[str, str], float] = field(default_factory=dict)
    loads: Mapping[tuple[str, str], ModelLoad] = field(default_factory=dict)
    performance: tuple[PodPerformance, ...] = ()
    sizes: Mapping[tuple[str, str], SizeBuckets] = field(default_factory=dict)
    wake: Mapping[Key, float] = field(default_factory=dict)
    error: str | None = None
    partial_errors: tuple[str, ...] = ()
    errors_in: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gateway_unknown: bool = False

    def problems(self, namespace: str) -> list[str]:
        """What failed and matters to a namespace, no more of it than anybody reads."""
        return few((*self.partial_errors, *self.errors_in.get(namespace, ())))

    def queued(self, namespace: str, model: str, is_shared: bool = False) -> float | None:
        """Return ``queued_for`` of the requests in ``gateway_queue``."""
        return queued_for(self.gateway_queue, namespace, model, is_shared)


def queued_for(
    queues: Mapping[tuple[str, str], float], namespace: str, model: str, is_shared: bool = False
) -> float | None:
    """Return what waits at gateways for a model of a namespace; ``None``: none is known.

    ``queues`` is by namespace and model. What gateways of all namespaces hold (namespace ``""``) counts unless several
    namespaces serve the model (``is_shared``): then nobody knows whose it is.
    """
    places = ((namespace, model),) if is_shared else ((namespace, model), ("", model))
    counts = [max(0.0, queues[place]) for place in places if place in queues]
    return sum(counts) if counts else None


class ServedRequests(NamedTuple):
    """What pods have served over a time: requests that ended, those of them that failed, and the mean time to first
    token in seconds (``None``: not known)."""

    requests: float = 0.0
    failed: float = 0.0
    ttft: float | None = None

    @classmethod
    def of(cls, parts: Iterable[ServedRequests]) -> ServedRequests:
        """Of several pods; a mean counts by its requests."""
        parts = list(parts)
        timed = [(one.ttft, one.requests) for one in parts if one.ttft is not None and one.requests > 0]
        count = sum(requests for _, requests in timed)
        ttft = sum(value * requests for value, requests in timed) / count if count else None
        return cls(sum(one.requests for one in parts), sum(one.failed for one in parts), ttft)


class RoutedRequests(NamedTuple):
    """What a router sent somewhere over a time: requests that ended, those of them that failed, and the time to first
    token in seconds that 95 % of the streams were within (``None``: not known)."""

    requests: float = 0.0
    failed: float = 0.0
    ttft: float | None = None


def with_errors(
    errors_in: Mapping[str, tuple[str, ...]], more: Iterable[tuple[str, str]]
) -> Mapping[str, tuple[str, ...]]:
    """The errors by namespace, with more of them, each given with its namespace."""
    found = {space: list(texts) for space, texts in errors_in.items()}
    for space, text in more:
        found.setdefault(space, []).append(text)
    return {space: tuple(texts) for space, texts in found.items()}
