"""Candidates compared by what they measured: the cheapest that serves the load within the target. Pure.

What one replica carries and how many there must be is said by the code that autoscales afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from modelyard.autoscaling.mixing.covering import cover
from modelyard.autoscaling.mixing.model import Demand, Option
from modelyard.autoscaling.sizing.answers import Sizing, Targets
from modelyard.autoscaling.sizing.fit import Fit, FitError, Point, fit
from modelyard.autoscaling.sizing.profiles import Profiles
from modelyard.autoscaling.sizing.sizes import size
from modelyard.autoscaling.sizing.within import NEAREST
from modelyard.benchmarks.values import MeasuredRun
from modelyard.onboarding.request import OnboardRequest, ServingCandidate


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """A fitted profile in ms; ``max_batch`` is the highest level measured: nothing is said of what lies above."""

    alpha: float
    beta: float
    gamma: float
    delta: float
    max_batch: int
    warnings: tuple[str, ...] = ()


def fitted(runs: Sequence[MeasuredRun], compression: float = 1.0) -> Fit:
    """The parameters of one replica by its runs, of which each second is ``compression`` seconds of life.

    Raises ``FitError`` where they do not determine it.
    """
    if not runs:
        raise FitError("nothing was measured")
    points = []
    for run in runs:
        if run.ttft is None or run.itl is None:
            raise FitError(f"{run.scenario} at {run.concurrency} streamed no tokens")
        lengths = run.prompt_tokens, run.output_tokens
        latencies = (one.mean * 1000 * compression for one in (run.ttft, run.itl))
        points.append(Point(run.concurrency, *lengths, *latencies))
    return fit(points, one_length=True)


def engine_speed(runs: Sequence[MeasuredRun], compression: float = 1.0) -> EngineSpeed:
    """The profile that is written. Raises ``FitError`` as ``fitted``, and where nothing could be sized with it."""
    found = fitted(runs, compression)
    alpha, beta, gamma, delta = (one.estimate for one in (found.alpha, found.beta, found.gamma, found.delta))
    if round(alpha, 6) <= 0:
        raise FitError("alpha is 0: measure at more levels, and at lower ones")
    batch = max(run.concurrency for run in runs)
    return EngineSpeed(alpha, beta, gamma, delta, batch, found.warnings)


@dataclass(frozen=True, slots=True)
class Assessed:
    """A candidate and what is to be said of it.

    ``rate`` is what one replica carries within the target (requests/s), ``ttft`` and ``itl`` what is predicted there
    (ms), ``replicas`` how many the load needs, at least those that are always kept, ``cost`` theirs for an hour,
    ``per_million`` that of a million output tokens of a replica that is used to ``rate``. With a ``problem`` it cannot
    be chosen; ``nearest`` is then the closest (TTFT, ITL) in ms that it can reach, where the target is what it fails.
    """

    candidate: ServingCandidate
    speed: EngineSpeed | None = None
    rate: float = 0.0
    ttft: float = inf
    itl: float = inf
    replicas: int = 0
    cost: float = inf
    per_million: float = inf
    problem: str = ""
    nearest: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class CandidateChoice:
    """All candidates, the cheapest first; the one ``chosen``, or why there is none."""

    assessed: tuple[Assessed, ...]
    chosen: Assessed | None = None
    problem: str = ""


def choose(
    asked: OnboardRequest, measured: Mapping[str, Sequence[MeasuredRun]], out: Mapping[str, str] | None = None
) -> CandidateChoice:
    """The verdict by the runs of each candidate (by runtime); ``out`` says why candidates have none."""
    known = out or {}
    each = [
        Assessed(one, problem=known[one.runtime])
        if one.runtime in known
        else _assess(asked, one, measured.get(one.runtime, ()))
        for one in asked.candidates
    ]
    each.sort(key=lambda one: (bool(one.problem), one.cost, one.per_million, one.candidate.runtime))
    best = each[0]
    if best.problem:
        return CandidateChoice(tuple(each), problem=_unreachable(asked, each))
    if asked.budget is not None and best.cost > asked.budget:
        text = f"the budget of {asked.budget:g} an hour is too small: {best.replicas} of {best.candidate.runtime}, the"
        return CandidateChoice(
            tuple(each), problem=f"{text} cheapest that carries the load, cost {best.cost:g} an hour"
        )
    return CandidateChoice(tuple(each), best)


def _assess(asked: OnboardRequest, one: ServingCandidate, runs: Sequence[MeasuredRun]) -> Assessed:
    try:
        speed = engine_speed(runs, asked.time_compression)
    except FitError as error:
        return Assessed(one, problem=f"no profile: {error}")
    found = _sized(asked, speed, asked.ttft or 0.0, asked.itl or 0.0)
    if not bool(found.feasible[0]):
        best = float(found.best_ttft[0]), float(found.best_itl[0])
        near = _near(asked.ttft, best[0]), _near(asked.itl, best[1])
        text = f"the target cannot be reached ({found.binding[0]}): at best TTFT {best[0]:.4g} ms, ITL {best[1]:.4g} ms"
        return Assessed(one, speed, problem=text, nearest=near)
    rate = float(found.rate[0])
    least = asked.min_replicas or 0
    need = Demand(asked.name, 1, asked.rate, (Option(one.runtime, rate, one.cost, one.accelerator, one.count, least),))
    share = cover(need)
    tokens = rate * asked.output_tokens * 3600
    return Assessed(
        candidate=one,
        speed=speed,
        rate=rate,
        ttft=float(found.ttft[0]),
        itl=float(found.itl[0]),
        replicas=share.replicas[one.runtime],
        cost=share.cost,
        per_million=one.cost / tokens * 1e6,
    )


def _sized(asked: OnboardRequest, speed: EngineSpeed, ttft: float, itl: float) -> Sizing:
    row = (speed.alpha, speed.beta, speed.gamma, speed.delta, speed.max_batch, asked.prompt_tokens, asked.output_tokens)
    return size(Profiles.of([row]), Targets.each(1, ttft=ttft, itl=itl), percentile=asked.percentile)


def _near(target: float | None, best: float) -> float:
    """What is a little above the best, where the target is not; 0 for no target."""
    return 0.0 if target is None else max(target, NEAREST * best)


def _unreachable(asked: OnboardRequest, each: Sequence[Assessed]) -> str:
    """Why none can be chosen, and the nearest target that can be reached."""

    def stretch(one: Assessed) -> float:
        ratios = zip(one.nearest or (), (asked.ttft, asked.itl), strict=False)
        return max((near / target for near, target in ratios if target), default=inf)

    nearest = min((one for one in each if one.nearest), key=stretch, default=None)
    said = "; ".join(f"{one.candidate.runtime}: {one.problem}" for one in each)
    if nearest is None or nearest.nearest is None:
        return f"no candidate can serve the model: {said}"
    named = zip(("TTFT", "ITL"), nearest.nearest, strict=True)
    words = ", ".join(f"{name} {value:.4g} ms" for name, value in named if value)
    return f"no candidate reaches the target; the nearest is {words}, with {nearest.candidate.runtime}. {said}"
