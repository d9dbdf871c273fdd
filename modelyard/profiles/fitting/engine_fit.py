"""The engine behind a benchmark's runs, found by replaying their loads; what it would have measured; and the profile by
which replicas are sized for requests of a length. Pure.

Engines compute prompts in chunks between decode steps. So the prompts of others show as longer gaps between tokens, and
which of them are computed together is luck: the straight lines of the reference model (``sizing.fit``) do not describe
that, the simulated engine does. A request's latencies there are sums of whole steps, and so linear in the parameters;
how many steps, is found by simulation, and the parameters by regression, in turns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from modelyard.autoscaling.sizing import Fit, FitError, Point, RunWork, check, fit
from modelyard.engine import EngineConfig
from modelyard.profiles.fitting.closed_loop import ROUNDS, PredictedPoint, closed_loop, serve

TOKENS = 2048
"""Tokens that an engine computes in one step (``--max-num-batched-tokens``), unless something else is said."""
JITTER = 0.1
"""By how much steps differ. Without it equal requests would march in step for ever, as they do on no real engine."""
TIMES = 4
"""How often a load is replayed: which requests come to be computed together is luck."""
SHARES = (0.1, 0.3, 0.5, 0.7, 0.85, 0.95)
"""Rates, as shares of the highest, at which an engine is looked at to size by."""
REQUESTS, FEWEST_REQUESTS = 600, 32
"""Requests for which an engine is looked at at each rate: fewer of long answers, which take as many steps."""
WATCHED_TOKENS = 6e5
"""Output tokens of the requests at one rate."""
MOST_ROUNDS = 16
"""Requests of each of those in flight of which more would tell nothing new."""
MOST_STEPS, MOST_REQUESTS = 3e5, 1e5
"""Of engines for one replay of all loads: with all replays at most some minutes."""
CROWD = 1000
"""Requests in flight beside which one more takes twice as long to replay."""
_LEAST = 1e-6


class PredictedRange(NamedTuple):
    """The lowest and the highest of a run's percentiles when its load is replayed several times."""

    low: PredictedPoint
    high: PredictedPoint

    def off(self, name: str, measured: float) -> float:
        """How far the nearest prediction is from what was measured, as a share of that; 0 within the range."""
        low, high = (getattr(one, name) for one in self)
        return float(min(max(measured, low), high) / measured - 1)


def fit_engine(
    points: Iterable[Point],
    *,
    tokens: int = TOKENS,
    max_batch: int | None = None,
    most_steps: float = MOST_STEPS,
    **how: Any,
) -> Fit:
    """``fit``, with all that it refuses, of an engine that computes prompts in chunks: the parameters with which a
    simulated one has the measured means under the same loads. ``how`` as for ``fit``. Refuses what would take too long
    to replay."""
    runs = []
    for one in points:
        check(one)
        few = one.requests and min(one.requests, MOST_ROUNDS * one.concurrency)
        if max_batch is None or one.concurrency <= max_batch:
            runs.append(one._replace(requests=few))
    _check_effort(runs, tokens, most_steps)
    return fit(runs, model=lambda parameters, point: _work(parameters, point, tokens), **how)


def predicted(found: Fit, point: Point, tokens: int = TOKENS) -> PredictedRange:
    """What an engine of these parameters measures under a point's load, time and again."""
    config = engine(found, max(one.concurrency for one in (*found.points, point)), [point], tokens)
    times = np.array([closed_loop(config, point, seed) for seed in range(2 * TIMES)])
    return PredictedRange(PredictedPoint(*times.min(axis=0)), PredictedPoint(*times.max(axis=0)))


def sizing_profile(
    found: Fit,
    prompt_tokens: float | None = None,
    output_tokens: float | None = None,
    *,
    max_batch: int | None = None,
    tokens: int = TOKENS,
) -> Fit:
    """The profile by which replicas of an engine are sized for requests of a mean length, by default that of its runs.

    The queueing model charges a prompt with all the prompts beside it, at once; an engine spreads them over its steps.
    So the engine is watched under random arrivals, and the model's lines are laid through its latencies over the
    requests in flight. ``max_batch`` is the engine's limit, by default the usable batch; of neither more than was
    measured, or than the cache holds. Raises ``FitError`` where the
    engine cannot be watched at several loads.
    """
    prompts, outputs = (float(np.mean([one[part] for one in found.points])) for part in (1, 2))
    prompt_tokens, output_tokens = prompt_tokens or prompts, output_tokens or outputs
    batch = min(max_batch or found.usable_batch, math.ceil(found.ranges["concurrency"][1]))
    if found.kv_tokens:
        batch = max(1, min(batch, int(found.kv_tokens / (prompt_tokens + output_tokens))))
    point = Point(batch, prompt_tokens, output_tokens, 1, 1, prompt_spread=prompt_tokens / 4)
    point = point._replace(output_spread=output_tokens / 4)
    _check_effort([point], tokens)
    config = engine(found, batch, [point], tokens)
    full = serve(config, point)
    highest = batch / float(np.mean([_seconds(one.ttft, one.itl, output_tokens) for one in full]))
    watched = []
    requests = int(min(REQUESTS, max(FEWEST_REQUESTS, WATCHED_TOKENS / output_tokens)))
    for share in SHARES:
        served = serve(config, point._replace(concurrency=1, requests=requests), rate=share * highest)[requests // 10 :]
        ttft, itl = (float(np.mean([one[part] for one in served])) for part in (0, 1))
        flying = share * highest * _seconds(ttft, itl, output_tokens)
        if flying <= batch and ttft > 0 and itl > 0:
            watched.append(Point(max(1.0, flying), prompt_tokens, output_tokens, ttft, itl))
    if len(watched) < 2:
        raise FitError(
            f"requests of {prompt_tokens:g} + {output_tokens:g} tokens leave an engine of batch {batch} idle"
        )
    return fit(watched, one_length=True, kv_tokens=found.kv_tokens, startup=found.startup)


class FittedProfile(NamedTuple):
    """The engine that would have measured a benchmark's runs, and the profile by which replicas of it are sized."""

    engine: Fit
    profile: Fit


def fit_profile(
    points: Iterable[Point],
    prompt_tokens: float | None = None,
    output_tokens: float | None = None,
    *,
    max_batch: int | None = None,
    tokens: int = TOKENS,
    **how: Any,
) -> FittedProfile:
    """Fit the profile for requests of a mean length, by default that of the runs.

    The one way for ``modelyard profile fit``, onboardings, and profiles that live latencies have left. ``how`` as for
    ``fit_engine``, which says what is refused.
    """
    engine = fit_engine(points, tokens=tokens, max_batch=max_batch, **how)
    profile = sizing_profile(engine, prompt_tokens, output_tokens, max_batch=max_batch, tokens=tokens)
    return FittedProfile(engine, profile)


def _check_effort(points: Iterable[Point], tokens: int, most_steps: float = MOST_STEPS) -> None:
    steps = requests = 0.0
    for point in points:
        rounds = max(1, (point.requests or ROUNDS * point.concurrency) / max(point.concurrency, 1))
        steps += rounds * (point.output_tokens + point.concurrency * (1 + point.prompt_tokens / tokens))
        requests += rounds * point.concurrency * (1 + point.concurrency / CROWD)
    for what, effort, most in (("steps", steps, most_steps), ("requests", requests, MOST_REQUESTS)):
        if not effort <= most:
            raise FitError(
                f"replaying the loads would take {effort:.3g} {what} of an engine, more than {most:.0e}: leave out the "
                "runs with the longest prompts and answers at the highest concurrency"
            )


def engine(found: Fit, batch: float, points: Sequence[Point], tokens: int = TOKENS) -> EngineConfig:
    """The simulated engine that a fit describes, with places for a batch; without known cache it never lacks any."""
    parameters = found.alpha, found.beta, found.gamma, found.delta
    return _engine([one.estimate for one in parameters], batch, points, tokens, found.kv_tokens)


def _engine(
    parameters: Sequence[float], batch: float, points: Sequence[Point], tokens: int, kv_tokens: int | None
) -> EngineConfig:
    alpha, beta, gamma, delta = parameters
    # Lengths are at most twice their mean.
    context = 2 * max(math.ceil(point.prompt_tokens) + math.ceil(point.output_tokens) for point in points) + 16
    places = math.ceil(batch)
    return EngineConfig(
        max(alpha, _LEAST),
        beta,
        gamma,
        delta,
        max_num_seqs=places,
        max_num_batched_tokens=max(tokens, places),
        kv_cache_tokens=max(kv_tokens or places * context, context),
        jitter=JITTER,
    )


def _work(parameters: Sequence[float], point: Point, tokens: int) -> RunWork:
    config = _engine(parameters, point.concurrency, [point], tokens, None)
    times = [serve(config, point, seed) for seed in range(TIMES)]
    means = [[np.mean([one[part] for one in served], axis=0) for part in (2, 3)] for served in times]
    ttft, itl = np.mean(means, axis=0)
    each = [float(np.dot(parameters, one[0])) for one in means]
    return RunWork(tuple(ttft), tuple(itl), float(np.std(each)) / max(float(np.mean(each)), _LEAST))


def _seconds(ttft: float, itl: float, output_tokens: float) -> float:
    return (ttft + max(output_tokens - 1, 0) * itl) / 1000
