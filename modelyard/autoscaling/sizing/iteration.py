"""The three-parameter model: time of one engine iteration, from which prefill, decode and the chain follow.

WVA SLO reference, "Online". ``gamma`` here is a cost per token of context, not the prefill time of ``Profiles``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from modelyard.autoscaling.sizing.chain import HIGHEST
from modelyard.autoscaling.sizing.profiles import QUEUE_PER_BATCH, FloatArray
from modelyard.autoscaling.sizing.states import Chain

PINNED_GAMMA = 5e-5
"""ms per token of context: the guess that stands in where one observation cannot determine three parameters."""
_FLOOR = 1e-9


class Parameters(NamedTuple):
    """alpha (ms per iteration), beta (ms per token computed), gamma (ms per token of context)."""

    alpha: float
    beta: float
    gamma: float


class Predicted(NamedTuple):
    """Means in ms, arrays of shape (n,); NaN where the load is above what the parameters can carry."""

    ttft: FloatArray
    itl: FloatArray
    wait: FloatArray
    in_service: FloatArray


def predict(
    parameters: FloatArray, rate: float, max_batch: int, prompt_tokens: float, output_tokens: float
) -> Predicted:
    """TTFT and ITL for several parameter sets, shape (n, 3), at one load (requests per second) and request size."""
    alpha, beta, gamma = np.asarray(parameters, dtype=np.float64).T
    each, context = _per_request(beta, gamma, prompt_tokens, output_tokens)
    prompted = 1.0 if prompt_tokens > 0 else 0.0
    prefill_base = prompted * (alpha + (beta + gamma) * prompt_tokens)
    prefill_slope = prompted * each
    base = prefill_base + output_tokens * (alpha + beta + gamma * context)
    slope = prefill_slope + output_tokens * each
    with np.errstate(divide="ignore", invalid="ignore"):
        highest = HIGHEST * max_batch / (base + slope * max_batch)
        covered = (base + slope > 0) & (base + slope * max_batch > 0) & (rate > 0) & (rate / 1000.0 <= highest)
    result = Predicted(*(np.full(len(alpha), np.nan) for _ in Predicted._fields))
    rows = np.flatnonzero(covered)
    if len(rows):
        batch = np.full(len(rows), max_batch, dtype=np.int64)
        chain = Chain(base[rows], slope[rows], batch, QUEUE_PER_BATCH * batch)
        found = chain.at(np.full(len(rows), rate / 1000.0))
        service = found.in_service / (found.rate * (1.0 - found.loss))
        prefill = prefill_base[rows] + prefill_slope[rows] * found.in_service
        itl = (service - prefill) / output_tokens
        for values, new in zip(result, (found.wait + prefill + itl, itl, found.wait, found.in_service), strict=True):
            values[rows] = new
    return result


def equivalent(
    estimate: tuple[float, ...], prompt_tokens: float, output_tokens: float
) -> tuple[float, float, float, float]:
    """The (alpha, beta, gamma, delta) of ``Profiles`` that serve requests of this size as the three parameters do.

    Service times are equal at every batch, so capacity is too; ITL and TTFT differ by less than one request's share
    of an iteration. The first token, which this model decodes, becomes part of prefill. Without a prompt there is no
    prefill to put it in and the decode steps carry it.
    """
    alpha, beta, gamma = estimate[:3]
    added, context = _per_request(np.array([beta]), np.array([gamma]), prompt_tokens, output_tokens)
    each = float(added[0])
    decode = alpha + beta + gamma * context
    if prompt_tokens > 0:
        prefill = alpha + (beta + gamma) * prompt_tokens
        return decode, each, prefill + decode, 2.0 * each / prompt_tokens
    stretch = output_tokens / (output_tokens - 1.0) if output_tokens > 1 else 1.0
    return decode * stretch, each * stretch, 0.0, 0.0


def from_profile(
    alpha: float, beta: float, gamma: float, delta: float, prompt_tokens: float, output_tokens: float
) -> Parameters:
    """Three parameters near a benchmarked profile, to start the estimator from.

    The context cost is pinned at most at half of what a concurrent request adds to a step; the rest follows from the
    profile's decode line. ``gamma`` and ``delta`` only enter where decode leaves the split open (no beta).
    """
    context = prompt_tokens + output_tokens / 2.0
    computed = (prompt_tokens + output_tokens) / (output_tokens + 1.0)
    cost = min(PINNED_GAMMA, 0.5 * beta / context) if context > 0 else 0.0
    work = (beta - cost * context) / computed if computed > 0 else 0.0
    if beta <= 0 and prompt_tokens > 0:
        work = max(gamma + delta * prompt_tokens - 2.0 * alpha, 0.0) / prompt_tokens
    start = alpha - work - cost * context
    return _above_zero(start if start > 0 else 0.9 * alpha, work, cost)


def from_batch(
    rate: float, max_batch: int, ttft: float, itl: float, prompt_tokens: float, output_tokens: float
) -> Parameters:
    """Three parameters from one observation (requests/s, ms) of a busy engine, taken to queue nothing.

    The batch is what Little's law says; the prompt's own time is what TTFT has beyond two iterations. Where that
    leaves nothing for the iteration itself, half of it is taken to depend on the batch.
    """
    batch = min(rate * (ttft + output_tokens * itl) / 1000.0, 0.9 * max_batch)
    context = prompt_tokens + output_tokens / 2.0
    gamma = min(PINNED_GAMMA, 0.1 * itl / (context * (batch + 1.0)))
    beta = max((ttft - 2.0 * itl) / prompt_tokens - gamma, 0.0) if prompt_tokens > 0 else 0.0
    computed = (prompt_tokens + output_tokens) / (output_tokens + 1.0) * batch + 1.0
    alpha = itl - beta * computed - gamma * context * (batch + 1.0)
    if alpha < 0.1 * itl:
        alpha, beta = 0.5 * itl, (0.5 * itl - gamma * context * (batch + 1.0)) / computed
    return _above_zero(alpha, beta, gamma)


def _above_zero(*values: float) -> Parameters:
    return Parameters(*(max(value, _FLOOR) for value in values))


def _per_request(
    beta: FloatArray, gamma: FloatArray, prompt_tokens: float, output_tokens: float
) -> tuple[FloatArray, float]:
    """Time that each concurrent request adds to an iteration (ms), and its mean context in tokens."""
    context = prompt_tokens + output_tokens / 2.0
    return beta * (prompt_tokens + output_tokens) / (output_tokens + 1.0) + gamma * context, context
