"""A load against one simulated engine in virtual time: a benchmark's closed loop, in which so many requests are always
in flight, or random arrivals at a rate. Pure."""

from __future__ import annotations

import math
import random
from collections import deque
from typing import NamedTuple

import numpy as np

from modelyard.autoscaling.sizing import FloatArray, Point
from modelyard.engine import EngineConfig, EngineCore, EventKind, Request

ROUNDS = 8
"""Requests of each of those in flight, where it is not known how many there were."""


class PredictedPoint(NamedTuple):
    """Percentiles in ms, named as those of ``Point``."""

    ttft_p50: float
    ttft_p95: float
    itl_p50: float
    itl_p95: float


class ServedRequest(NamedTuple):
    """One request in ms: its TTFT and ITL, and how often each has alpha, beta, gamma and delta in it."""

    ttft: float
    itl: float
    in_ttft: tuple[float, float, float, float]
    in_itl: tuple[float, float, float, float]


def closed_loop(config: EngineConfig, point: Point, seed: int = 0) -> PredictedPoint:
    """Percentiles of the point's load: as one request ends, the next begins."""
    served = serve(config, point, seed)
    times = [one.ttft for one in served], [one.itl for one in served]
    return PredictedPoint(*(float(np.percentile(one, part)) for one in times for part in (50, 95)))


def serve(config: EngineConfig, point: Point, seed: int = 0, rate: float | None = None) -> list[ServedRequest]:
    """The requests of a load in the order in which they end. With a ``rate`` (per second) they come at random, and
    how many are in flight is not given."""
    core, chance = EngineCore(config, seed=seed), random.Random(seed)
    flying = max(1, round(point.concurrency))
    count = max(flying, round(point.requests or flying * ROUNDS))
    found: list[ServedRequest] = []
    left = count
    arriving: deque[Request] = deque()
    # What was computed when a request entered the queue, and when it had its first token.
    entered: dict[int, FloatArray] = {}
    first: dict[int, FloatArray] = {}

    def begin() -> None:
        nonlocal left
        if left:
            left -= 1
            prompt = _length(chance, point.prompt_tokens, point.prompt_spread)
            arriving.append(core.submit(prompt, _length(chance, point.output_tokens, point.output_spread)))

    following = math.inf if rate is None else 0.0
    for _ in range(flying if rate is None else 0):
        begin()
    while len(found) < count:
        entry = arriving[0].eligible_at if arriving else math.inf
        at = min(entry, core.next_result_time(), following)
        for kind, request, _ in core.advance(at):
            if kind is EventKind.FIRST_TOKEN:
                first[request.number] = np.array(core.computed())
            if kind is EventKind.FINISHED:
                found.append(
                    _served(request, entered.pop(request.number), first.pop(request.number), np.array(core.computed()))
                )
                if rate is None:
                    begin()
        if at == entry:
            entered[arriving.popleft().number] = np.array(core.computed())
        if rate is not None and at == following:
            begin()
            following = at + chance.expovariate(rate) if left else math.inf
    return found


def _length(chance: random.Random, mean: float, spread: float | None) -> int:
    return max(1, round(mean if spread is None else min(max(chance.gauss(mean, spread), 1), 2 * mean)))


def _served(request: Request, entered: FloatArray, first: FloatArray, end: FloatArray) -> ServedRequest:
    steps = max(1, request.output_tokens - 1)
    before, after = (first - entered).tolist(), ((end - first) / steps).tolist()
    return ServedRequest(
        1000 * (request.first_token_at - request.arrived_at),
        1000 * (request.finished_at - request.first_token_at) / steps,
        (before[0], before[1], 1.0, before[2]),
        (after[0], after[1], 0.0, after[2]),
    )
