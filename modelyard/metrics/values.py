"""What metrics say, as plain typed values. ``None`` means "not known", never zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from modelyard.objects import Key


@dataclass(frozen=True, slots=True)
class PodSignal:
    """The saturation signals of one pod for one model.

    ``kv`` is KV-cache use as a fraction (peak over the window, may exceed nothing but 1); ``waiting`` requests in the
    queue (same peak); ``running`` requests in the batch now; ``completed_rate`` finished requests per second over
    five minutes. Each is ``None`` when missing, NaN or infinite. ``sampled_at`` is the newest sample's time.
    """

    namespace: str
    pod: str
    model: str
    kv: float | None = None
    waiting: float | None = None
    running: float | None = None
    completed_rate: float | None = None
    sampled_at: float | None = None


MEASURED = tuple(field.name for field in fields(PodSignal) if field.default is None)
"""The fields of ``PodSignal`` that are numbers."""


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """Offered load of one model in one namespace, whoever serves it.

    ``arrivals`` is requests per second now: completions plus the growth of running and waiting, so that it keeps
    rising when the engines are saturated. ``history`` is the same over the last minutes, (time, requests per second),
    oldest first; it may be empty.
    """

    arrivals: float | None
    history: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PodPerformance:
    """What one pod's engine did for one model over the load window. ``None`` when missing, NaN or infinite.

    ``completed`` is requests finished in the window (a count); ``prompt_tokens`` and ``output_tokens`` are means per
    finished request; ``ttft`` and ``itl`` are observed means in milliseconds; ``kv_tokens`` is the size of the KV
    cache in tokens; ``prefix_hit_rate`` a fraction.
    """

    namespace: str
    pod: str
    model: str
    completed: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    ttft: float | None = None
    itl: float | None = None
    kv_tokens: int | None = None
    prefix_hit_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Signals:
    """Everything Prometheus said in one tick.

    ``request_counts`` maps (namespace, model, retention seconds) to finished requests over that retention; a missing
    key means unknown, never zero. ``last_seen`` maps (namespace, model) to the newest sample time of any engine metric
    and is what tells "stale" from "missing". ``gateway_queue`` maps model to requests queued at the gateway.
    ``error`` says why Prometheus could not be read at all; ``partial_errors`` names single queries that failed.
    """

    pods: tuple[PodSignal, ...] = ()
    request_counts: Mapping[tuple[str, str, int], float] = field(default_factory=dict)
    last_seen: Mapping[tuple[str, str], float] = field(default_factory=dict)
    gateway_queue: Mapping[str, float] = field(default_factory=dict)
    loads: Mapping[tuple[str, str], ModelLoad] = field(default_factory=dict)
    performance: tuple[PodPerformance, ...] = ()
    wake: Mapping[Key, float] = field(default_factory=dict)
    error: str | None = None
    partial_errors: tuple[str, ...] = ()
