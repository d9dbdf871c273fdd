"""Performance parameters from benchmark runs: robust lines through latencies at several loads, and how far they are to
be believed.

WVA SLO reference, "By benchmark". With two runs of one prompt length the lines are the documented two-point formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from modelyard.autoscaling.sizing.profiles import FloatArray

CLEAR = 0.25
"""A latency that falls with the load by less than this share is noise on a constant; more is an error."""
POOR = 0.15
"""Residuals above this share of the latency call the straight line into question."""
LIKE = 0.1
"""Prompts whose lengths differ by at most this share are of one length."""
LONG_PREFILL = 100.0
"""Decode steps that a prefill at full batch may last before the two are unlikely to come from one engine."""
FULL = 0.98
"""The usable batch is the smallest measured one that has this share of the highest throughput."""
EXACT = 1e-6
"""Share of a latency below which nothing is an error: nothing counts for so much that the rest counts for nothing."""
ACCURATE = 0.02
"""Share by which an ordinary mean TTFT may be off; where luck makes it more, it counts less."""
ROUNDS, SETTLED = 16, 2e-3
"""How often parameters are found again, and the share of a latency below which they have settled."""
_HUBER = 1.345
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class Point(NamedTuple):
    """One run: requests in flight, mean tokens of a prompt and of an output, mean TTFT and ITL, their percentiles
    where they are known, how many requests it had, and the standard deviation of their tokens where they differed;
    latencies in ms."""

    concurrency: float
    prompt_tokens: float
    output_tokens: float
    ttft: float
    itl: float
    ttft_p50: float | None = None
    ttft_p95: float | None = None
    itl_p50: float | None = None
    itl_p95: float | None = None
    requests: float | None = None
    prompt_spread: float | None = None
    output_spread: float | None = None


class RunWork(NamedTuple):
    """What a run's latencies are made of: how often its mean TTFT, and its mean ITL, has each of alpha, beta, gamma,
    delta in it. ``luck`` is the share by which the mean TTFT differs from one such run to the next."""

    ttft: tuple[float, ...]
    itl: tuple[float, ...]
    luck: float = 0.0


Model = Callable[[Sequence[float], Point], RunWork]


def reference(_: Sequence[float], point: Point) -> RunWork:
    """The model that replicas are sized by: TTFT = gamma + delta * prompt_tokens * n, ITL = alpha + beta * n."""
    return RunWork((0, 0, 1, point.prompt_tokens * point.concurrency), (1, point.concurrency, 0, 0))


class FitError(ValueError):
    """The measurements do not determine the parameters; the message says what to measure instead."""


class Parameter(NamedTuple):
    """An estimate and its 95 % confidence interval, in ms per the parameter's unit; NaN without data to judge by."""

    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


class Line(NamedTuple):
    """Intercept and slope of a latency, and the share of its variation that they explain."""

    intercept: Parameter
    slope: Parameter
    r_squared: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted parameters: ITL = alpha + beta * n and TTFT = gamma + delta * prompt_tokens * n, in ms.

    ``points`` is what was measured, and the range in which the parameters hold. ``usable_batch`` is the smallest
    measured concurrency with nearly the highest throughput. ``kv_tokens`` and ``startup`` (seconds) are passed on where
    they are known. ``warnings`` are for people.
    """

    alpha: Parameter
    beta: Parameter
    gamma: Parameter
    delta: Parameter
    itl: Line
    ttft: Line
    points: tuple[Point, ...]
    usable_batch: int
    kv_tokens: int | None = None
    startup: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Lowest and highest measured concurrency, prompt and output length."""
        columns = zip(Point._fields[:3], zip(*self.points, strict=True), strict=False)
        return {name: (min(column), max(column)) for name, column in columns}


def fit(
    points: Iterable[Point],
    *,
    max_batch: int | None = None,
    one_length: bool = False,
    model: Model = reference,
    kv_tokens: int | None = None,
    startup: float | None = None,
) -> Fit:
    """Robust lines through the points at most ``max_batch`` in flight (the engine's limit: beyond it requests queue).

    Residuals count as shares of the latency, outliers by Huber's weights. All parameters are at least 0: one that noise
    makes slightly negative becomes 0 and the other is fitted again. ``one_length`` accepts prompts of one length, as
    the documented formulas do; the parameters hold for that length only. Raises FitError for values that are not
    positive numbers, designs that cannot tell the parameters apart, or a latency that clearly falls with the load.
    """
    runs = tuple(points)
    for run in runs:
        check(run)
    runs = tuple(run for run in runs if max_batch is None or run.concurrency <= max_batch)
    warnings: list[str] = []
    _check_design(runs, one_length, warnings.append)
    batch, prompt, output, ttft, itl = np.array([run[:5] for run in runs], dtype=np.float64).T
    _check_rising("ITL", batch, prompt, itl)
    _check_rising("TTFT", batch, prompt, ttft)
    steps, first = _lines(runs, itl, ttft, model, warnings.append)
    alpha, beta, gamma, delta = steps.intercept, steps.slope, first.intercept, first.slope
    numbers = alpha.estimate, beta.estimate, gamma.estimate, delta.estimate
    if model is reference:
        warnings.extend(implausible(*numbers, max_batch=int(batch.max()), prompt_tokens=float(np.median(prompt))))
    usable = _usable(batch, batch * output / (ttft + np.maximum(output - 1, 0) * itl))
    return Fit(alpha, beta, gamma, delta, steps, first, runs, usable, kv_tokens, startup, tuple(warnings))


def implausible(
    alpha: float, beta: float, gamma: float, delta: float, max_batch: int, prompt_tokens: float
) -> tuple[str, ...]:
    """Return suspicions for people: mixed sources predict seconds of prefill beside milliseconds of decode."""
    prefill = gamma + delta * prompt_tokens * max_batch
    decode = alpha + beta * max_batch
    found = []
    if prefill > LONG_PREFILL * decode:
        found.append(
            f"a prefill of {prompt_tokens:g} tokens at batch {max_batch} would take {prefill:.0f} ms, as long as "
            f"{prefill / decode if decode > 0 else math.inf:.0f} decode steps: were gamma and delta measured on the "
            "same engine as alpha and beta?"
        )
    if alpha + beta <= 0:
        found.append("alpha and beta are both 0: decoding would take no time")
    return tuple(found)


def check(run: Point) -> None:
    """Raises FitError for a run that cannot be one."""
    for name, value in run._asdict().items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise FitError(f"run with concurrency {run.concurrency}: {name} is {value}; it must be above 0")
    if run.concurrency < 1:
        raise FitError(f"run with concurrency {run.concurrency}: at least 1 request must be in flight")


def _check_design(runs: tuple[Point, ...], one_length: bool, warn: Callable[[str], None]) -> None:
    different = len({run.concurrency for run in runs})
    if different < 2:
        raise FitError(
            f"{different} different concurrency level(s), which cannot tell alpha from beta: measure at least 1 and "
            "the batch limit (which must be 2 or more), better also a quarter and half of it"
        )
    shortest, longest = (best(run.prompt_tokens for run in runs) for best in (min, max))
    if longest - shortest <= LIKE * longest:
        missing = f"a run with prompts of {longest / 4:.0f} or {longest * 4:.0f} tokens is missing"
        if not one_length:
            same = f"all prompts have about {longest:.0f} tokens"
            raise FitError(f"{same}, so delta holds for no other length: {missing}")
        warn(f"gamma and delta hold for prompts of about {longest:.0f} tokens only: {missing}")
    if different < 4:
        warn(f"{different} concurrency levels cannot show whether the lines are straight; measure 4")


def _check_rising(what: str, batch: FloatArray, prompt: FloatArray, latency: FloatArray) -> None:
    """The median change over all pairs of like length must be no clear fall: one outlier refuses nothing."""
    order = np.argsort(batch, kind="stable")
    batch, prompt, latency = batch[order], prompt[order], latency[order]
    low, high = np.triu_indices(len(batch), 1)
    like = np.abs(prompt[low] - prompt[high]) <= LIKE * np.maximum(prompt[low], prompt[high])
    like &= batch[low] < batch[high]
    low, high = low[like], high[like]
    if not like.any():
        return
    fall = float(np.median((latency[low] - latency[high]) / np.maximum(latency[low], latency[high])))
    if fall > CLEAR:
        check_runs = "check that runs had equal lengths and were not cached or cut off"
        falls = f"{what} falls by {fall:.0%} with the concurrency in most pairs of runs"
        raise FitError(f"{falls}; more load cannot make an engine faster: {check_runs}")


def _usable(batch: FloatArray, throughput: FloatArray) -> int:
    typical = {one: float(np.median(throughput[batch == one])) for one in sorted(set(batch.tolist()))}
    best = max(typical.values())
    return int(next(one for one, value in typical.items() if value >= FULL * best))


def _lines(
    runs: tuple[Point, ...], itl: FloatArray, ttft: FloatArray, model: Model, warn: Callable[[str], None]
) -> tuple[Line, Line]:
    """Those of ITL and TTFT, no parameter below 0, and warnings about what was bent to get there.

    Where the work depends on the parameters, they are found again until they stay. Then the first line is of the whole
    time for each token, TTFT included: how an engine divides it among the two may be luck, the whole is not.
    """
    whole, count = model is not reference, len(runs)
    part_of_ttft = np.array([1 / run.output_tokens for run in runs]) if whole else np.zeros(count)
    latency = np.concatenate((itl + part_of_ttft * (ttft - itl), ttft))
    design, luck = _design([reference((), run) for run in runs], part_of_ttft)
    found, weights, free = _above_zero(design, luck, latency)
    for round_ in range(ROUNDS if whole else 0):
        design, luck = _design([model(found.tolist(), run) for run in runs], part_of_ttft)
        before, (found, weights, free) = found, _above_zero(design, luck, latency)
        # Ever smaller steps: what is made up of whole steps of an engine would jump to and fro.
        found = before + (found - before) * min(1.0, 2 / (round_ + 1))
        if (moved := float((np.abs(design @ (found - before)) / latency).max())) < SETTLED:
            break
        if round_ == ROUNDS - 1 and moved > POOR:
            warn("the parameters did not settle: the engine is not like the one that its runs are held against")
    names = ("alpha", "beta", "gamma", "delta")
    for name, value in zip(names, found, strict=True):
        if name not in [names[index] for index in free]:
            warn(f"{name} was negative and is taken as {value:g}")
    parameters = _intervals(design, latency, weights, found)
    fitted, lines = design @ found, []
    for what, part, two in (("ITL", slice(count), parameters[:2]), ("TTFT", slice(count, None), parameters[2:])):
        measured, residuals = latency[part], (latency - fitted)[part]
        shares = np.abs(residuals) / measured
        if float((shares / np.maximum(1, luck[part])).max()) > POOR:
            line = "what an engine of these parameters would do" if whole else "a straight line"
            warn(f"{what} is up to {shares.max():.0%} off {line}: outliers, or the model does not describe this engine")
        total = float(weights[part] @ (measured - np.average(measured, weights=weights[part])) ** 2)
        explained = 1 - float(weights[part] @ residuals**2) / total if total > 0 else 1.0
        lines.append(Line(two[0], two[1], max(0.0, explained)))
    return lines[0], lines[1]


def _design(works: Sequence[RunWork], part_of_ttft: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rows of ITL first, with how much less accurate each is than an ordinary one."""
    ttft, itl = (np.array([one[index] for one in works], dtype=np.float64) for index in (0, 1))
    luck = np.sqrt(1 + (np.array([one.luck for one in works]) / ACCURATE) ** 2)
    return np.concatenate((itl + part_of_ttft[:, None] * (ttft - itl), ttft)), np.append(np.ones(len(works)), luck)


def _above_zero(design: FloatArray, luck: FloatArray, latency: FloatArray) -> tuple[FloatArray, FloatArray, list[int]]:
    """The weights, and which coefficients are not held at 0."""
    free = list(range(design.shape[1]))
    while True:
        part, weights = _robust(design[:, free], luck, latency)
        if part.min() >= 0:
            found = np.zeros(design.shape[1])
            found[free] = part
            return found, weights, free
        free.pop(int(np.argmin(part * np.abs(design[:, free]).max(axis=0))))


def _robust(design: FloatArray, luck: FloatArray, latency: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Coefficients and the weights they were found with: Huber's, of residuals as shares of the *fitted* latency
    (of the measured one, low measurements would weigh more and pull the line down). The first half of the rows (ITL)
    and the second (TTFT) may be measured with different accuracy."""
    halves = slice(len(latency) // 2), slice(len(latency) // 2, None)
    scale = latency * luck
    trust: FloatArray = np.ones_like(latency)
    found: FloatArray = np.zeros(design.shape[1])
    for _ in range(50):
        weights = trust / scale**2
        root = np.sqrt(weights)
        before, found = found, np.asarray(np.linalg.lstsq(design * root[:, None], latency * root)[0], dtype=np.float64)
        fitted = design @ found
        for half in halves:
            size = np.maximum(fitted[half], 0.05 * float(np.median(latency[half]))) * luck[half]
            share = np.abs(latency[half] - fitted[half]) / size
            typical = max(1.4826 * float(np.median(share)), EXACT)
            scale[half] = size * typical
            trust[half] = np.minimum(1.0, _HUBER * typical / np.maximum(share, 1e-300))
        if np.allclose(found, before, rtol=1e-10, atol=1e-12):
            break
    return found, weights


def _intervals(design: FloatArray, latency: FloatArray, weights: FloatArray, found: FloatArray) -> list[Parameter]:
    """Student's, of the weighted regression; a parameter that was taken as 0 has the width it would have had."""
    count = len(latency) // 2
    left = count - 2
    if left < 1:
        return [Parameter(float(one), math.nan, math.nan) for one in found]
    residuals, weights = weights * (latency - design @ found) ** 2, weights.copy()
    for half in (slice(count), slice(count, None)):
        weights[half] /= max(float(residuals[half].sum()) / left, 1e-30)
    # Scaled: lengths times batches reach millions.
    size = np.maximum(np.sqrt(weights @ design**2), 1e-300)
    inverse = np.linalg.pinv((design / size * weights[:, None]).T @ (design / size))
    wide = student(left) * np.sqrt(np.maximum(np.diag(inverse), 0)) / size
    pairs = zip(found.tolist(), wide.tolist(), strict=True)
    return [Parameter(one, max(0.0, one - half), one + half) for one, half in pairs]


def student(left: int) -> float:
    """The 97.5 % quantile of Student's distribution, within 1 %."""
    return _T95[left - 1] if left <= len(_T95) else 1.96 + 2.5 / left
