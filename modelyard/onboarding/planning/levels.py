"""How many requests at a time a candidate is measured with: the levels that were asked for; or few at first, and then
one more after the other while the figures are not certain. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from modelyard.autoscaling.sizing import FitError, PlannedRun, doubt, next_run, promised
from modelyard.benchmarks.records import MeasuredRun
from modelyard.onboarding.planning.choose import fitted
from modelyard.onboarding.request import OnboardRequest


def first_levels(asked: OnboardRequest) -> tuple[int, ...]:
    """Those of a candidate's first benchmark: what was asked for, or 1, a quarter and half of the highest, and that."""
    most = asked.max_level
    return asked.levels or tuple(dict.fromkeys((1, max(1, most // 4), most // 2, most)))


def more_levels(asked: OnboardRequest) -> tuple[int, ...]:
    """Those that may be added, one benchmark for each: powers of two and, between these, one and a half times as many.
    None where levels were asked for."""
    if asked.levels:
        return ()
    first = first_levels(asked)
    between = {share << power >> 1 for power in range(1, asked.max_level.bit_length()) for share in (2, 3)}
    return tuple(level for level in sorted(between) if level < asked.max_level and level not in first)


def next_level(asked: OnboardRequest, runs: Sequence[MeasuredRun], tried: Collection[int]) -> int | None:
    """The level that narrows the least certain parameter; ``None`` when all are certain, or all that is left to measure
    would not make them so: it costs accelerators, and a replica is no less known after it."""
    left = [PlannedRun(level, asked.prompt_tokens) for level in more_levels(asked) if level not in tried]
    try:
        found = fitted(runs)
    except FitError:  # said of the candidate when all are compared
        return None
    if not left or asked.precision < max(promised(found, left).values()) < math.inf:
        return None
    best = next_run(found, left, asked.precision)
    return None if best is None else best.concurrency


def certainty(asked: OnboardRequest, runs: Sequence[MeasuredRun]) -> str:
    """How certain the figures are, in words; empty where there are none."""
    try:
        shares = doubt(fitted(runs))
    except FitError:
        return ""
    worst = max(shares, key=lambda name: shares[name])
    at = f"measured at {', '.join(str(one) for one in sorted(run.concurrency for run in runs))}"
    if math.isinf(shares[worst]):
        return f"{at}: too few levels to say how certain that is"
    of = "ITL" if worst in ("alpha", "beta") else "TTFT"
    said = f"{at}: least certain is {worst}, ±{shares[worst]:.3f} of {of}"
    if asked.levels or shares[worst] <= asked.precision:
        return said
    more = next_level(asked, runs, {run.concurrency for run in runs})
    after = f"next is {more}" if more is not None else "more levels would not reach it"
    return f"{said}, and {asked.precision:.3g} was asked for: {after}"
