"""What an engine counts about itself: token and request counters and the latency histograms.

A few additions per step, none per token. All times are virtual seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from modelyard.engine.request import Request

FINISHED_REASONS: Final = ("stop", "length", "abort", "error")


class Histogram:
    """A Prometheus histogram that can take many equal observations at once.

    ``bounds`` are the upper bounds in rising order, without +Inf. A value equal to a bound belongs to that bucket.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add ``count`` observations of ``value``."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """(upper bound, observations up to it), the last bound being infinity."""
        running = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            yield bound, running


class EngineStats:
    """Counters since the engine started, and histograms of latencies (seconds) and of numbers of tokens.

    ``buckets`` maps the histograms' attribute names to bucket bounds (``metrics`` has each engine's lists). A name that
    is left out gets no bounds, so that only its sum and count are kept, which is all that a simulation needs.
    """

    def __init__(self, buckets: Mapping[str, Sequence[float]] | None = None) -> None:
        bounds = buckets or {}
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0
        self.preemptions_total = 0
        self.prefix_queries_total = 0
        self.prefix_hits_total = 0
        self.finished: dict[str, int] = dict.fromkeys(FINISHED_REASONS, 0)
        self.ttft = Histogram(bounds.get("ttft", ()))
        self.itl = Histogram(bounds.get("itl", ()))
        self.tpot = Histogram(bounds.get("tpot", ()))
        self.e2e = Histogram(bounds.get("e2e", ()))
        self.queue = Histogram(bounds.get("queue", ()))
        self.inference = Histogram(bounds.get("inference", ()))
        self.prefill = Histogram(bounds.get("prefill", ()))
        self.decode = Histogram(bounds.get("decode", ()))
        self.prompt_tokens = Histogram(bounds.get("prompt_tokens", ()))
        self.generation_tokens = Histogram(bounds.get("generation_tokens", ()))
        self.max_tokens = Histogram(bounds.get("max_tokens", ()))
        self.max_generation_tokens = Histogram(bounds.get("max_generation_tokens", ()))
        self.n = Histogram(bounds.get("n", ()))
        self.iteration_tokens = Histogram(bounds.get("iteration_tokens", ()))

    def record_finish(self, request: Request, reason: str) -> None:
        """Count a completed request and observe its phases (real engines do so at the end of the request)."""
        self.finished[reason] += 1
        self.e2e.observe(request.finished_at - request.arrived_at)
        self.queue.observe(request.scheduled_at - request.eligible_at)
        self.prefill.observe(request.first_token_at - request.scheduled_at)
        self.decode.observe(request.finished_at - request.first_token_at)
        self.inference.observe(request.finished_at - request.scheduled_at)
        if request.output_tokens > 1:
            self.tpot.observe((request.finished_at - request.first_token_at) / (request.output_tokens - 1))
        self.prompt_tokens.observe(request.prompt_tokens)
        self.generation_tokens.observe(request.output_tokens)
        self.max_tokens.observe(request.max_tokens)
        self.max_generation_tokens.observe(request.output_tokens)
        self.n.observe(1)
