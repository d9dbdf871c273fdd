"""What is told of an onboarding: how far its steps are, what it found out, what that cost, what holds under load. Pure.

Where it is compared, a target of a percentile is that of the requests' TTFT; else both targets are those of the means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import yaml

from modelyard.objects import Key, counted
from modelyard.onboarding.planning import objects
from modelyard.onboarding.planning.choose import Assessed
from modelyard.onboarding.planning.levels import certainty
from modelyard.onboarding.planning.progress import OnboardMemory, OnboardStanding, outcome
from modelyard.onboarding.request import OnboardRequest
from modelyard.reconcile.plans import ObjectResult, ResultState
from modelyard.traffic.traces import Results

COLUMNS = ("RUNTIME", "ACCELERATOR", "REQ/S EACH", "TTFT", "ITL", "REPLICAS", "COST/H", "PER 1M TOKENS", "WHY NOT")
MOST_FAILED = 0.01
"""Share of a check's requests that may fail."""


def row(one: Assessed) -> tuple[str, ...]:
    """A candidate as cells; what is not known is a dash."""
    named = one.candidate.runtime, f"{one.candidate.accelerator}:{one.candidate.count}"
    if one.problem:
        return *named, *("-" * 6), one.problem
    return (
        *named,
        f"{one.rate:.3g}",
        f"{one.ttft:.4g}ms",
        f"{one.itl:.3g}ms",
        str(one.replicas),
        f"{one.cost:g}",
        f"{one.per_million:.3g}",
        one.doubt,
    )


def table(assessed: Sequence[Assessed]) -> list[str]:
    """All candidates as lines, in columns."""
    rows = [COLUMNS, *map(row, assessed)]
    widths = [max(map(len, column)) for column in zip(*(one[:-1] for one in rows), strict=True)]
    padded = ([*map(str.ljust, one[:-1], widths), one[-1]] for one in rows)
    return ["  ".join(one).rstrip() for one in padded]


# What it cost


def spent(asked: OnboardRequest, memory: OnboardMemory) -> tuple[float, float]:
    """Replica-minutes of probes, and what they cost."""
    minutes = cost = 0.0
    for one in asked.candidates:
        began, ended = memory.probed.get(one.runtime, (0.0, 0.0))
        minutes += (ended - began) / 60
        cost += (ended - began) / 3600 * one.cost
    return minutes, cost


# What holds


@dataclass(frozen=True, slots=True)
class LoadCheck:
    """The expected load on the chosen service, simulated or real: what its clients saw. Latencies in ms."""

    what: str
    rate: float
    replicas: int
    seconds: float
    requests: int
    failed: int
    ttft: float
    itl: float
    problem: str = ""

    def __str__(self) -> str:
        load = f"{self.rate:.3g} requests/s on {counted(self.replicas, 'replica')} for {self.seconds:.0f} s"
        seen = f"TTFT {self.ttft:.4g} ms, ITL {self.itl:.4g} ms"
        held = self.problem or "within the target"
        return f"{self.what}: {load}: {self.requests} requests, {self.failed} failed, {seen}: {held}"


def load_check(
    what: str, asked: OnboardRequest, rate: float, replicas: int, seconds: float, results: Results
) -> LoadCheck:
    """What was seen, against the target."""
    answered = results.answered
    ttft, itl = results.ttft[answered] * 1000, results.itl[answered] * 1000
    itl = itl[~np.isnan(itl)]
    first = float("nan")
    if len(ttft):
        first = float(ttft.mean() if asked.percentile is None else np.percentile(ttft, asked.percentile))
    between = float(itl.mean()) if len(itl) else 0.0
    failed = int(len(answered) - answered.sum())
    problems = []
    if failed > MOST_FAILED * len(answered) or not len(ttft):
        problems.append(f"{failed} of {counted(len(answered), 'request')} failed")
    name = "TTFT" if asked.percentile is None else f"TTFT p{asked.percentile:g}"
    for called, value, target in ((name, first, asked.ttft), ("ITL", between, asked.itl)):
        if target is not None and value > target:
            problems.append(f"{called} {value:.4g} ms is above the target of {target:g} ms")
    return LoadCheck(what, rate, replicas, seconds, len(answered), failed, first, between, "; ".join(problems))


# All of it


def conclusion(here: OnboardStanding, checks: Sequence[LoadCheck]) -> str:
    """In a sentence."""
    verdict = here.steps.verdict
    if here.steps.problem or verdict is None or verdict.chosen is None:
        return here.steps.problem or f"not finished; it waits for {', '.join(here.steps.awaits) or 'what comes next'}"
    missed = [str(one) for one in checks if one.problem]
    url = (here.found.there.get(("InferenceService", here.asked.name), {}).get("status") or {}).get("url")
    return "; ".join([outcome(verdict), f"it answers at {url}", *missed])


def onboarding_result(key: Key, standing: OnboardStanding | None, checks: Sequence[LoadCheck]) -> ObjectResult:
    """Return the result of an onboarding at the end of a run; without ``standing`` its ConfigMap is gone."""
    if standing is None:
        return ObjectResult(ResultState.FAILED, f"ConfigMap {key}, which stands for the onboarding, was deleted")
    state = ResultState.DONE if standing.steps.done else ResultState.PENDING
    if standing.steps.done and (standing.steps.problem or any(check.problem for check in checks)):
        state = ResultState.FAILED
    return ObjectResult(state, conclusion(standing, checks))


def markdown(here: OnboardStanding, checks: Sequence[LoadCheck]) -> str:
    """The report. Texts of others are in code, where nothing is markup."""
    asked, verdict = here.asked, here.steps.verdict
    target = ", ".join(f"{name} {value:g} ms" for name, value in (("TTFT", asked.ttft), ("ITL", asked.itl)) if value)
    lines = [f"# Onboarding of {asked.name}", "", f"{_code(asked.uri)}: {target}; {asked.rate:g} requests/s of "]
    lines[-1] += f"{asked.prompt_tokens} + {asked.output_tokens} tokens"
    lines += ["", _code(conclusion(here, checks)), ""]
    if verdict is not None:
        lines += ["## Candidates", "", _line(COLUMNS), _line(["---"] * len(COLUMNS))]
        lines += [_line([_code(cell) if cell else "" for cell in row(one)]) for one in verdict.assessed]
        known = {runtime: certainty(asked, runs) for runtime, runs in here.found.runs.items()}
        lines += ["", *(f"- {_code(runtime)}: {said}" for runtime, said in known.items() if said), ""]
    minutes, cost = spent(asked, here.memory)
    lines += [f"To find out took {minutes:.1f} replica-minutes, which cost {cost:.3g}.", ""]
    lines += [f"- {one}" for one in checks]
    if verdict is not None and verdict.chosen is not None:
        made = [objects.base_model(asked), *objects.chosen(asked, verdict.chosen, here.found.served or "")]
        text = yaml.safe_dump_all(made, sort_keys=False, allow_unicode=True)
        lines += ["", "## What was made", "", "```yaml", text.rstrip(), "```"]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _code(text: str) -> str:
    return "`" + " ".join(text.replace("`", "'").replace("|", "/").split()) + "`"
