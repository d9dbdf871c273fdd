"""The share of requests that miss their latency targets, by load: prompts stall the requests that decode beside them.

With chunked prefill each prompt lengthens the steps of all who decode. A request of *o* tokens decodes for
c = (o - 1)(α + β d) and meets its ITL target T where this, and the prompts that come before it is done, take no longer
than (o - 1) T: it misses where the busy period of an M/G/1 queue that begins with the work c is longer. By Takács'
ballot theorem the period ends at t with probability c/t · P(prompts that came within t take t - c), and the right side
is a compound Poisson distribution, taken by its Fourier transform. TTFT is missed where the prompts before a request's
own (Pollaczek and Khinchine) and its own take too long.

Several replicas even out what one meets: a replica of n is as one of two at ``evened(n)`` times the load. That factor
was fitted to simulated engines; everything else follows from profile, targets and sizes.

Sources: L. Takács, Combinatorial Methods in the Theory of Stochastic Processes (1967), section on busy periods;
L. Kleinrock, Queueing Systems, volume 1 (1975), 5.6.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CELLS: Final = 24
"""Into which the time that a request has to spare is divided."""
OUTPUTS: Final = 6
"""Lengths of answers that are told apart."""
CHUNK: Final = 2048
"""Prompt tokens of a step, as engines are set unless told otherwise."""
_TILT: Final = 0.87
"""Keeps what runs over the end of a Fourier transform from coming in again at its beginning."""
_THIRDS: Final = np.array([[1 / 6], [1 / 2], [5 / 6]])
_CELL: Final = np.arange(CELLS + 1)[:, None]
_TILTS: Final = _TILT**_CELL


_WEIGHTS: Final = np.where((_CELL.T == 0) | (_CELL.T == CELLS), 1, 2) / (2 * CELLS)
_BACK: Final[Floats] = (np.exp(-1j * math.pi * _CELL * _CELL.T / CELLS) * _WEIGHTS / _TILTS).view(np.float64)
"""What the transform of each cell's own distribution is multiplied with for the chance of that cell: cells by waves,
the real and the imaginary part of each as numbers of their own."""


class Speed(NamedTuple):
    """One replica's speed in ms, as in its profile, and its targets in ms (0: none)."""

    alpha: float
    beta: float
    gamma: float
    delta: float
    ttft: float
    itl: float


class Sizes(NamedTuple):
    """Tokens that requests have, and the share of the requests that each stands for."""

    tokens: Floats
    shares: Floats

    @property
    def mean(self) -> float:
        return float(self.tokens @ self.shares)

    def merged(self, groups: int) -> Sizes:
        if len(self.tokens) <= groups:
            return self
        order = np.argsort(self.tokens)
        tokens, shares = self.tokens[order], self.shares[order]
        place = np.minimum((np.cumsum(shares) - shares / 2) * groups, groups - 1).astype(np.int64)
        share: Floats = np.bincount(place, shares, groups).astype(np.float64)
        kept = share > 0
        return Sizes(np.bincount(place, shares * tokens, groups)[kept] / share[kept], share[kept])


SPREAD: Final = Sizes(np.array([0.05, 0.2, 0.45, 0.9, 1.8, 3.9]), np.array([0.1, 0.2, 0.25, 0.25, 0.15, 0.05]))
"""Of sizes of which only the mean is known, in means: chat requests are about exponential."""


def sizes_of(buckets: tuple[tuple[float, float], ...], mean: float) -> Sizes:
    """Sizes by histogram buckets, (upper bound, share), three to a bucket, with this mean; else ``SPREAD``."""
    if not buckets:
        return Sizes(SPREAD.tokens * mean / SPREAD.mean, SPREAD.shares)
    upper, shares = np.array(buckets).T
    upper = np.minimum(upper, 2e6)
    lower = np.ones_like(upper)
    lower[1:] = np.maximum(1.0, upper[:-1])
    upper = np.maximum(np.where(upper >= 2e6, 2 * lower, upper), lower)
    there = shares > 0
    tokens = (lower * (upper / lower) ** _THIRDS)[:, there].ravel()
    shares = np.concatenate([shares[there] / (3 * shares.sum())] * 3)
    return Sizes(tokens * mean / float(tokens @ shares), shares)


def per_request(engine: Speed, prompt: float, output: float) -> float | None:
    """The engines that one request per second of these mean sizes keeps busy: at a load of 1 the mean ITL is at its
    target for ever. ``None`` where not even one request could be within it."""
    if engine.itl <= 0:  # decoding is not limited by a target: it takes its own time
        return max((engine.delta * prompt + (engine.beta + engine.alpha / 64) * output) / 1000, 1e-9)
    if engine.itl <= engine.alpha:
        return None
    stretch = engine.itl / (engine.itl - engine.alpha)
    return max(stretch * (engine.delta * prompt + engine.beta * output) / 1000, 1e-9)


def evened(replicas: Floats) -> Floats:
    """What a replica among so many seems to have of its load."""
    return np.asarray(0.82 + 0.28 * replicas**-0.85)


def missed(
    engine: Speed, prompts: Sizes, outputs: Sizes, loads: Floats, counts: tuple[float, float] = (1.0, 1.0)
) -> Floats:
    """The share of requests that miss a target on one of two replicas, by the load of each in engines (0 to 1).
    ``counts``: what a request counts for that misses its TTFT, and one that misses its ITL."""
    busy = per_request(engine, prompts.mean, outputs.mean)
    if busy is None:
        return np.ones_like(loads)
    rate = loads / busy / 1000
    rest = 1 - rate * (engine.delta * prompts.mean + engine.beta * outputs.mean)
    step = engine.alpha + engine.beta * np.maximum(1.0, rate * outputs.mean * engine.alpha / np.maximum(rest, 1e-3))
    late = _late(engine, prompts, rate, step) if engine.ttft > 0 else np.zeros_like(loads)
    slow = _slow(engine, prompts, outputs.merged(OUTPUTS), rate, step) if engine.itl > 0 else np.zeros_like(loads)
    return np.asarray(np.maximum.accumulate(1 - (1 - counts[0] * late) * (1 - counts[1] * slow)))


def _slow(engine: Speed, prompts: Sizes, outputs: Sizes, rate: Floats, step: Floats) -> Floats:
    """By the first passage of each length of answer."""
    several = outputs.tokens > 1
    tokens = outputs.tokens[several, None] - 1
    work = tokens * step
    width = np.maximum(tokens * engine.itl - work, 1e-9) / CELLS
    wave = _wave(prompts, (engine.delta / width).ravel())
    # What came within the work, and within a cell, for each length and load.
    came, more = (np.exp((rate * time).ravel()[:, None] * wave) for time in (work, width))
    chance = np.empty((CELLS + 1, len(wave)))
    for cell, back in enumerate(_BACK):
        chance[cell] = came.view(np.float64) @ back
        came *= more
    done = (work / (work + _CELL[:, None] * width) * chance.reshape(CELLS + 1, *work.shape)).sum(axis=0)
    return np.asarray(outputs.shares[several] @ np.where(width > 1e-9, np.clip(1 - done, 0, 1), 1.0))


def _wave(sizes: Sizes, scale: Floats) -> NDArray[np.complex128]:
    """The transform of sizes in cells, less 1; what does not fit is left out, since it always stalls too long."""
    place = np.minimum(scale[:, None] * sizes.tokens, CELLS + 2.0)
    low = np.minimum(place.astype(np.int64), CELLS + 1)
    part = np.minimum(place - low, 1.0)
    row = low + (CELLS + 3) * np.arange(len(scale))[:, None]
    count = len(scale) * (CELLS + 3)
    pmf = np.bincount(row.ravel(), (sizes.shares * (1 - part)).ravel(), count)
    pmf += np.bincount((row + 1).ravel(), (sizes.shares * part).ravel(), count)
    tilted = pmf.reshape(len(scale), CELLS + 3)[:, : CELLS + 1] * _TILTS.T
    return np.asarray(np.fft.rfft(tilted, 2 * CELLS, axis=1) - 1)


def _late(engine: Speed, prompts: Sizes, rate: Floats, step: Floats) -> Floats:
    """By the wait before a request, and its own prompt."""
    own = engine.delta * prompts.tokens + step[:, None] * prompts.tokens / CHUNK
    use = np.minimum(rate * (own @ prompts.shares), 0.999)
    width = engine.ttft / CELLS
    # The rest of a prompt that is being computed: a cell is met by all prompts that are longer.
    edges = width * np.arange(int(min(4 * CELLS, own.max() / width + 1)) + 1)
    beyond = own[:, :, None] - edges
    beyond = prompts.shares @ np.maximum(beyond, 0, out=beyond)
    rest = beyond[:, :-1] - beyond[:, 1:]
    rest /= np.maximum(rest.sum(axis=1, keepdims=True), 1e-12)
    wave = np.fft.rfft(rest, 8 * CELLS, axis=1)
    waiting = np.fft.irfft((1 - use)[:, None] / (1 - use[:, None] * wave), 8 * CELLS, axis=1)
    within = np.concatenate([np.zeros((len(rate), 1)), np.cumsum(waiting[:, : CELLS + 1], axis=1)], axis=1)
    place = np.clip((engine.ttft - engine.gamma - own) / width + 1, 0, CELLS + 1)
    low = np.minimum(place.astype(np.int64), CELLS)
    part = place - low
    cell = low + within.shape[1] * np.arange(len(rate))[:, None]
    at = within.take(cell) * (1 - part) + within.take(cell + 1) * part
    return np.asarray(np.clip(1 - at @ prompts.shares, 0, 1))
