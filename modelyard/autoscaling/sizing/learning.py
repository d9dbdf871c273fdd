"""An engine's speed from what it does in service: its α, β and δ where nobody wrote a profile.

An engine that decodes d requests and prefills p prompt tokens per millisecond takes t = α + β d + δ p t for a step, the
mean ITL. δ follows from the mean TTFT, which is a prompt's own time, the step it waits for, and the prompts before it
(Pollaczek and Khinchine); then t (1 - δ p) = α + β d is a straight line, fitted by least squares to what was seen at
different loads. One load alone cannot tell α from β: ``SLOPE`` then stands in, with the weight of one observation.

Pure: what is known goes in and comes out as plain numbers, which are kept with the resource.
Source: Kleinrock, Queueing Systems, volume 1 (1975), 5.6, for the waiting time; the line is the profile's own model.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from modelyard.autoscaling.sizing.stalls import CHUNK, Sizes

SLOPE: Final = 0.007
"""β / α where it cannot be seen: a request's share of a step is about that of published profiles (0.006 to 0.02)."""
LEAST: Final = 4
"""Observations before anybody is told."""
MOST: Final = 24
"""Observations that are remembered: each new one then takes the place of a share of the old."""
ANOTHER: Final = 1.6
"""A step that takes so many times what is known, or that part of it, is another engine's. Once it may be chance: what
is known then counts for no more than ``LEAST``. The second time in a row it is forgotten, and this counts so much."""
OVERHEAD: Final = 15.0
"""ms of a first token that no engine computes: tokenizer, scheduler, network. A guess; the rest counts as prefill."""
HIGHEST: Final = 1e7
"""What no engine reaches: tokens, requests per second, milliseconds; nor its inverse."""
MOST_BATCH: Final = 65_536
MOST_BUSY: Final = 0.9
"""Share of the time in prefill beyond which nothing is learnt."""
_HALVINGS: Final = 30


class SpeedObservation(NamedTuple):
    """A replica's minutes: requests/s, mean prompt and output tokens, mean TTFT and ITL in ms, all above 0."""

    rate: float
    prompt: float
    output: float
    ttft: float
    itl: float


class LearntSpeed(NamedTuple):
    """Sums over what was seen: how many, d, d², the step without prompts (ms), that times d, and δ (ms)."""

    seen: float = 0.0
    batch: float = 0.0
    squares: float = 0.0
    step: float = 0.0
    product: float = 0.0
    delta: float = 0.0

    @property
    def line(self) -> tuple[float, float]:
        """α and β, both at least 0."""
        n, b, bb, y, by, _ = self
        # One more observation says β = SLOPE α, at the batch that is usual.
        weight = bb / n
        n, b, bb = n + weight * SLOPE**2, b - weight * SLOPE, bb + weight
        spread = n * bb - b * b
        beta = max((n * by - b * y) / spread, 0.0) if spread > 0 else 0.0
        return max((y - b * beta) / n, 0.05 * self.step / self.seen), beta

    @property
    def speed(self) -> tuple[float, float, float, float] | None:
        """α, β, γ and δ as in a profile; ``None`` while too little was seen."""
        if self.seen < LEAST or not self.line[0] > 0:
            return None
        return (*self.line, OVERHEAD, self.delta / self.seen)


def observe(known: LearntSpeed, seen: SpeedObservation, prompts: Sizes) -> LearntSpeed:
    """Return the sums after one more observation, if an engine could show it; of ``prompts`` only the spread counts."""
    plausible = all(1 / HIGHEST < value < HIGHEST for value in seen)
    if not plausible or seen.rate * seen.output * seen.itl > 1000 * MOST_BATCH:
        return known
    rate = seen.rate / 1000
    delta = _delta(seen, rate, prompts)
    if delta is None or delta > HIGHEST:
        return known
    mean = (known.delta + delta) / (known.seen + 1)
    batch = rate * seen.output * seen.itl
    weight = 1.0
    if known.seen:
        alpha, beta = known.line
        thought = (alpha + beta * batch) / (1 - min(rate * mean * seen.prompt, MOST_BUSY))
        if not thought / ANOTHER < seen.itl < thought * ANOTHER:
            if known.seen > LEAST:
                return LearntSpeed(float(LEAST), *(LEAST / known.seen * value for value in known[1:]))
            # Whoever was told a speed is told one: nothing would be aimed at until the other is learnt.
            weight = float(LEAST) if known.seen >= LEAST else 1.0
            known, mean = LearntSpeed(), delta
    step = seen.itl * (1 - min(rate * mean * seen.prompt, MOST_BUSY))
    kept = min(1.0, (MOST - 1) / max(known.seen, 1.0))
    new = (1.0, batch, batch**2, step, step * batch, delta)
    return LearntSpeed(*(kept * old + weight * value for old, value in zip(known, new, strict=True)))


def _delta(seen: SpeedObservation, rate: float, prompts: Sizes) -> float | None:
    """δ in ms per prompt token, by the TTFT that it gives; ``None`` where so much prefill explains nothing."""
    tokens = prompts.tokens * (seen.prompt / prompts.mean)
    chunks = np.maximum(1.0, tokens / CHUNK)

    def ttft(delta: float) -> float:
        step = seen.itl * (1 - rate * delta * seen.prompt)
        own = delta * tokens + step * chunks
        first, second = float(own @ prompts.shares), float(own**2 @ prompts.shares)
        use = min(rate * float((delta * tokens) @ prompts.shares), 0.99)
        return OVERHEAD + first + step / 2 + use / (1 - use) * second / (2 * first)

    low, high = 0.0, MOST_BUSY / (rate * seen.prompt)
    if ttft(low) >= seen.ttft:
        return 0.0
    if ttft(high) <= seen.ttft:
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if ttft(middle) < seen.ttft else (low, middle)
    return low
