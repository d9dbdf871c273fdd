"""The steps of an onboarding, and how far each of them is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from modelyard.onboarding.planning import objects
from modelyard.onboarding.planning.choose import Assessed, CandidateChoice
from modelyard.onboarding.planning.levels import certainty
from modelyard.onboarding.planning.plan import (
    Findings,
    Name,
    NextSteps,
    added,
    benchmarks,
    condition_of,
    name_of,
    ready,
)
from modelyard.onboarding.request import MOST_CANDIDATES, OnboardRequest, ServingCandidate
from modelyard.reconcile.plans import PlanStep, Seconds, StepId, StepPhase

Text = Annotated[str, Field(max_length=2000)]

DELIVER, SELECT, COMPARE, SERVE = map(StepId, ("deliver", "select", "compare", "serve"))
ROLL_OUT, MEASURE, REMOVE = "roll out", "measure", "remove"
"""Names of the steps of each candidate, in order; their item is its runtime."""


class OnboardMemory(BaseModel):
    """``candidates`` are all that fitted when they were selected; by runtime, ``given_up`` says why a candidate is out
    and ``probed`` from when until when (epoch seconds) its probe was there."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    candidates: Annotated[tuple[ServingCandidate, ...], Field(max_length=MOST_CANDIDATES)] = ()
    given_up: Annotated[dict[str, Text], Field(max_length=MOST_CANDIDATES)] = Field(default_factory=dict)
    probed: Annotated[dict[str, tuple[Seconds, Seconds]], Field(max_length=MOST_CANDIDATES)] = Field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True)
class OnboardStanding:
    """An onboarding as it was seen: ``asked`` with its candidates, what there is, and what comes next."""

    asked: OnboardRequest
    found: Findings
    steps: NextSteps
    memory: OnboardMemory

    @property
    def is_served(self) -> bool:
        """Return whether the service is there."""
        return self.steps.done and not self.steps.problem

    @property
    def chosen(self) -> Assessed:
        """Return the chosen candidate, of an onboarding whose service is there."""
        assert self.steps.verdict is not None
        assert self.steps.verdict.chosen is not None
        return self.steps.verdict.chosen


def outcome(verdict: CandidateChoice) -> str:
    """Return what was chosen, in a sentence; or why nothing was."""
    if verdict.chosen is None:
        return verdict.problem
    best = verdict.chosen
    return f"chosen: {best.candidate.runtime}, replicas: {best.replicas}, for {best.cost:g} an hour"


def objects_of_steps(asked: OnboardRequest) -> dict[StepId, list[Name]]:
    """Return the objects that each step makes and follows, by kind and name."""
    names = {DELIVER: [("BaseModel", asked.name)]}
    for candidate in asked.candidates:
        names[StepId(ROLL_OUT, candidate.runtime)] = [("InferenceService", objects.probe_name(asked, candidate))]
        names[StepId(MEASURE, candidate.runtime)] = [name_of(job) for job in benchmarks(asked, candidate)]
    return {**names, SERVE: [("InferenceService", asked.name)]}


def object_of(here: OnboardStanding, step: StepId) -> Mapping[str, Any] | None:
    """Return the existing object that the work of a step is about: the one that is not measured yet."""
    names = objects_of_steps(here.asked).get(step, ())
    existing = [here.found.there[name] for name in names if name in here.found.there]
    if step.name == MEASURE:
        existing = [job for job in existing if (job.get("status") or {}).get("state") not in ("Completed", "Failed")]
    return next(iter(existing), None)


def step_phases(here: OnboardStanding) -> dict[StepId, PlanStep]:
    """Return every step that there is so far, in order."""
    asked, found, steps = here.asked, here.found, here.steps
    model = found.there.get(("BaseModel", asked.name), {})
    message = str(condition_of(model, "Ready").get("message") or "")
    blocked = PlanStep(StepPhase.BLOCKED)
    if (model.get("status") or {}).get("state") != "Ready":
        deliver = PlanStep(StepPhase.FAILED if steps.problem else StepPhase.ACTIVE, steps.problem or message)
        return {DELIVER: deliver, SELECT: blocked, COMPARE: blocked, SERVE: blocked}
    runtimes = ", ".join(candidate.runtime for candidate in asked.candidates)
    selected = PlanStep(StepPhase.DONE, f"candidates: {runtimes}")
    phases = {
        DELIVER: PlanStep(StepPhase.DONE, message),
        SELECT: selected if runtimes else PlanStep(StepPhase.FAILED, steps.problem),
    }
    reasons = {one.candidate.runtime: one.problem for one in steps.verdict.assessed} if steps.verdict else {}
    reasons = {**reasons, **found.refused, **found.given_up, **steps.given_up}
    for candidate in asked.candidates:
        phases |= _candidate(here, candidate, reasons)
    verdict, service = steps.verdict, found.there.get(("InferenceService", asked.name))
    phases[COMPARE] = phases[SERVE] = blocked
    if verdict is not None:
        phase = StepPhase.DONE if verdict.chosen is not None else StepPhase.FAILED
        phases[COMPARE] = PlanStep(phase, outcome(verdict))
    if verdict is not None and verdict.chosen is not None:
        url = ((service or {}).get("status") or {}).get("url")
        is_ready = service is not None and ready(service)
        text = f"ready at {url}" if is_ready else str(condition_of(service or {}, "Ready").get("message") or "")
        done = StepPhase.DONE if steps.done else StepPhase.ACTIVE
        phases[SERVE] = PlanStep(StepPhase.FAILED, steps.problem) if steps.problem else PlanStep(done, text)
    return phases


def _candidate(
    here: OnboardStanding, candidate: ServingCandidate, reasons: Mapping[str, str]
) -> dict[StepId, PlanStep]:
    found, name = here.found, objects.probe_name(here.asked, candidate)
    service, job = (found.there.get((kind, name)) for kind in ("InferenceService", "BenchmarkJob"))
    status = (job or {}).get("status") or {}
    details = str(status.get("details") or "").partition("\n")[0]
    runs = found.runs.get(candidate.runtime)
    # What could not be measured is known before all are compared, what cannot reach the target is not.
    why = "" if runs is not None else reasons.get(candidate.runtime, "")
    if status.get("state") == "Failed":
        why = str(status.get("failureMessage") or "the benchmark failed")
    roll_out, measure = PlanStep(StepPhase.DONE), PlanStep(StepPhase.BLOCKED)
    if job is None and why:
        roll_out = PlanStep(StepPhase.FAILED, why)
    elif job is None and (service is None or not ready(service)):
        roll_out = PlanStep(StepPhase.ACTIVE, str(condition_of(service or {}, "Ready").get("message") or ""))
    elif why:
        measure = PlanStep(StepPhase.FAILED, why)
    elif runs is None:
        measure = PlanStep(StepPhase.ACTIVE, details or str(status.get("state") or ""))
    else:
        certain, more = certainty(here.asked, runs), added(here.asked, found, candidate)
        is_measuring = more.begun or more.due is not None
        text = certain if is_measuring else "; ".join(filter(None, (details, certain)))
        measure = PlanStep(StepPhase.ACTIVE if is_measuring else StepPhase.DONE, text)
    is_over = why or measure.phase is StepPhase.DONE
    gone = StepPhase.BLOCKED if not is_over else StepPhase.DONE if service is None else StepPhase.ACTIVE
    steps = {ROLL_OUT: roll_out, MEASURE: measure, REMOVE: PlanStep(gone)}
    return {StepId(step, candidate.runtime): state for step, state in steps.items()}
