"""Candidates compared by what they measured: the cheapest that serves the load within the target. Pure.

What one replica carries and how many there must be is said by the code that autoscales afterwards: for the mean by the
queueing model and the profile, for the share of requests that autoscaling aims at by default by the engine itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf

import numpy as np

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.fleet import NAMES
from modelyard.autoscaling.mixing import Demand, Option, cover
from modelyard.autoscaling.sizing import (
    NEAREST,
    Fit,
    FitError,
    Point,
    Profiles,
    Speed,
    Targets,
    analyse,
    fit,
    per_request,
    size,
    sizes_of,
    ttft_percentile,
)
from modelyard.autoscaling.variants import MOST, holding_of, needed
from modelyard.autoscaling.variants.slo import HOPELESS
from modelyard.benchmarks.records import MeasuredRun
from modelyard.onboarding.request import OnboardRequest, ServingCandidate
from modelyard.profiles.fitting import FittedProfile, fit_profile

MOST_STEPS = 4e4
"""Of engines for one replay of a candidate's runs: seconds of work, a minute at most. More leave it unknown."""


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """A fitted profile in ms; ``max_batch`` is the highest level measured: nothing is said of what lies above.

    ``measured`` is when the last run began. ``fit`` has the engine that would have measured so, and the profile by
    which replicas of it are sized; where no such engine is found, the profile is straight lines through the latencies.
    """

    alpha: float
    beta: float
    gamma: float
    delta: float
    max_batch: int
    warnings: tuple[str, ...] = ()
    fit: FittedProfile | None = None
    measured: str = ""

    @property
    def engine(self) -> tuple[float, float, float, float] | None:
        """The parameters of the engine, where one is found that would have measured so."""
        if self.fit is None:
            return None
        engine = self.fit.engine
        return engine.alpha.estimate, engine.beta.estimate, engine.gamma.estimate, engine.delta.estimate


def fitted(runs: Sequence[MeasuredRun], compression: float = 1.0) -> Fit:
    """Fit straight lines through the latencies of one replica's runs, by which the levels to measure are planned.

    Each second of the runs is ``compression`` seconds of real time. Raises ``FitError`` where they determine no line.
    """
    try:
        return fit(_points(runs, compression), one_length=True)
    except np.linalg.LinAlgError as error:  # numbers that nobody could measure
        raise FitError(f"no lines go through the runs: {error}") from error


def _points(runs: Sequence[MeasuredRun], compression: float) -> tuple[Point, ...]:
    if not runs:
        raise FitError("nothing was measured")
    points = []
    for run in runs:
        if run.ttft is None or run.itl is None:
            raise FitError(f"{run.scenario} at {run.concurrency} streamed no tokens")
        if run.unusable:
            raise FitError(f"{run.scenario} at {run.concurrency}: {run.unusable}")
        ttft, itl = (one.mean * 1000 * compression for one in (run.ttft, run.itl))
        answered = run.requests - run.failed or None
        points.append(Point(run.concurrency, run.prompt_tokens, run.output_tokens, ttft, itl, requests=answered))
    return tuple(points)


@lru_cache(maxsize=64)
def _fitted_profile(
    points: tuple[Point, ...], prompt_tokens: float | None, output_tokens: float | None, batch: int
) -> tuple[FittedProfile | None, tuple[str, ...]]:
    """Cached, because every look at an onboarding needs it, and the replay of the runs takes a second or more."""
    try:
        fitted_profile = fit_profile(
            points, prompt_tokens, output_tokens, max_batch=batch, most_steps=MOST_STEPS, one_length=True
        )
    except (ArithmeticError, LookupError, ValueError) as error:  # a report may say anything
        return None, (f"the engine behind it is not known: {error}",)
    estimates = [getattr(fit, name).estimate for fit in fitted_profile for name in NAMES]
    if not (min(estimates[0], estimates[4]) > 0 and max(estimates) < inf):
        return None, ("the engine behind it is not known: its runs do not determine the time of a step",)
    return fitted_profile, fitted_profile.engine.warnings


def engine_speed(
    runs: Sequence[MeasuredRun],
    compression: float = 1.0,
    prompt_tokens: float | None = None,
    output_tokens: float | None = None,
) -> EngineSpeed:
    """Return the profile for requests of these mean lengths (default: those of the runs). Raises ``FitError`` as
    ``fitted``, and where no replica could be sized by it."""
    lines = fitted(runs, compression)
    batch = max(run.concurrency for run in runs)
    fit, fit_warnings = _fitted_profile(_points(runs, compression), prompt_tokens, output_tokens, batch)
    profile = lines if fit is None else fit.profile
    alpha, beta, gamma, delta = (getattr(profile, name).estimate for name in NAMES)
    if round(alpha, 6) <= 0:
        raise FitError("alpha is 0: measure at more levels, and at lower ones")
    started = max(run.started for run in runs)
    warnings = tuple(dict.fromkeys((*lines.warnings, *fit_warnings)))
    return EngineSpeed(alpha, beta, gamma, delta, batch, warnings, fit, started)


@dataclass(frozen=True, slots=True)
class Assessed:
    """A candidate and what is to be said of it.

    ``rate`` is what one replica carries within the target (requests/s), ``ttft`` and ``itl`` what is predicted there
    (ms), ``replicas`` how many the load needs, at least those that are always kept, ``cost`` theirs for an hour,
    ``per_million`` that of a million output tokens of a replica that is used to ``rate``. With a ``problem`` it cannot
    be chosen; ``nearest`` is then the closest (TTFT, ITL) in ms that it can reach, where the target is what it fails.
    With a ``doubt`` it is not known to hold the share of requests within the targets that autoscaling aims at.
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
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class CandidateChoice:
    """All candidates, those within the budget, without doubt, and the cheapest first; the one ``chosen``, or why there
    is none."""

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
    dear = inf if asked.budget is None else asked.budget

    def rank(one: Assessed) -> tuple[bool, bool, bool, float, float, str]:
        price = one.cost, one.per_million, one.candidate.runtime
        return bool(one.problem), one.cost > dear, bool(one.doubt), *price

    each.sort(key=rank)
    best = each[0]
    if best.problem:
        return CandidateChoice(tuple(each), problem=_unreachable(asked, each))
    if asked.budget is not None and best.cost > asked.budget:
        text = f"the budget of {asked.budget:g} an hour is too small: {best.replicas} of {best.candidate.runtime}, the"
        text += f" cheapest that carries the load, cost {best.cost:g} an hour"
        return CandidateChoice(tuple(each), problem=text)
    return CandidateChoice(tuple(each), best)


def _assess(asked: OnboardRequest, one: ServingCandidate, runs: Sequence[MeasuredRun]) -> Assessed:
    try:
        speed = engine_speed(runs, asked.time_compression, asked.prompt_tokens, asked.output_tokens)
    except FitError as error:
        return Assessed(one, problem=f"no profile: {error}")
    targets = Targets.each(1, ttft=asked.ttft or 0.0, itl=asked.itl or 0.0)
    found = size(_profiles(asked, speed), targets, percentile=asked.percentile)
    if not bool(found.feasible[0]):
        best = float(found.best_ttft[0]), float(found.best_itl[0])
        near = _near(asked.ttft, best[0]), _near(asked.itl, best[1])
        text = f"the target cannot be reached ({found.binding[0]}): at best TTFT {best[0]:.4g} ms, ITL {best[1]:.4g} ms"
        return Assessed(one, speed, problem=text, nearest=near)
    rate, ttft, itl = float(found.rate[0]), float(found.ttft[0]), float(found.itl[0])
    replicas, doubt = _holding(asked, speed)
    if replicas > ceil(asked.rate / rate):
        rate = asked.rate / replicas * (1 + 1e-9)
        ttft, itl = _predicted(asked, speed, rate)
    least = asked.min_replicas or 0
    need = Demand(asked.name, 1, asked.rate, (Option(one.runtime, rate, one.cost, one.accelerator, one.count, least),))
    share = cover(need)
    if (count := share.replicas[one.runtime]) > MOST:
        text = f"{count:.4g} replicas carry the load, of which there may be {MOST}: one carries {rate:.3g} requests/s"
        return Assessed(one, speed, problem=text)
    tokens = rate * asked.output_tokens * 3600
    return Assessed(
        candidate=one,
        speed=speed,
        rate=rate,
        ttft=ttft,
        itl=itl,
        replicas=count,
        cost=share.cost,
        per_million=one.cost / tokens * 1e6,
        doubt=doubt,
    )


def _holding(asked: OnboardRequest, speed: EngineSpeed) -> tuple[int, str]:
    """The replicas that keep as many requests within the targets as autoscaling aims at by default, and why they may
    not do so; 0 where it does not aim at that."""
    allowed = min(FleetSettings().allowed)
    if speed.engine is None:
        return 0, f"not known to hold {_percent(1 - allowed)}: its engine is not known"
    engine = Speed(*speed.engine, asked.ttft or 0.0, asked.itl or 0.0)
    prompts, outputs = sizes_of((), asked.prompt_tokens), sizes_of((), asked.output_tokens)
    busy = per_request(engine, prompts.mean, outputs.mean)
    if busy is None:
        return 0, "the target is below what one request alone takes"
    holding = holding_of(engine, prompts, outputs, 1.0)
    idle, may = float(holding.missed[0]), holding.attainable(allowed)
    doubt = f"{_percent(idle)} of the requests miss on idle replicas too" if may > allowed else ""
    if may >= HOPELESS:
        return 0, doubt
    replicas = int(needed(holding.capacities(may), np.array(asked.rate * busy)))
    return (0, f"{MOST} replicas do not hold it") if replicas >= MOST else (replicas, doubt)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _predicted(asked: OnboardRequest, speed: EngineSpeed, rate: float) -> tuple[float, float]:
    profiles = _profiles(asked, speed)
    found = analyse(profiles, rate)
    ttft = found.ttft if asked.percentile is None else ttft_percentile(profiles, rate, asked.percentile)
    return float(ttft[0]), float(found.itl[0])


def _profiles(asked: OnboardRequest, speed: EngineSpeed) -> Profiles:
    row = (speed.alpha, speed.beta, speed.gamma, speed.delta, speed.max_batch, asked.prompt_tokens, asked.output_tokens)
    return Profiles.of([row])


def _near(target: float | None, best: float) -> float:
    """What is a little above the best, where the target is not; 0 for no target."""
    return 0.0 if target is None else max(target, NEAREST * best)


def _unreachable(asked: OnboardRequest, each: Sequence[Assessed]) -> str:
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
