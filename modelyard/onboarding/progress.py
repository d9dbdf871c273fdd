"""The steps of an onboarding, and how far each of them is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from modelyard.onboarding import objects
from modelyard.onboarding.choose import CandidateChoice
from modelyard.onboarding.levels import certainty
from modelyard.onboarding.plan import Findings, Name, NextSteps, added, benchmarks, condition, name_of, ready
from modelyard.onboarding.request import MOST_CANDIDATES, OnboardRequest, ServingCandidate
from modelyard.reconcile.memory import Seconds
from modelyard.reconcile.plan import PlanStep, StepId, StepPhase

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


def outcome(verdict: CandidateChoice) -> str:
    """Return what was chosen, in a sentence; or why nothing was."""
    if verdict.chosen is None:
        return verdict.problem
    best = verdict.chosen
    return f"chosen: {best.candidate.runtime}, replicas: {best.replicas}, for {best.cost:g} an hour"


def step_of(asked: OnboardRequest, name: Name) -> StepId:
    """Return the step that makes an object of the onboarding."""
    kind, called = name
    for candidate in asked.candidates:
        if kind == "InferenceService" and called == objects.probe_name(asked, candidate):
            return StepId(ROLL_OUT, candidate.runtime)
        if kind == "BenchmarkJob" and any(name_of(job)[1] == called for job in benchmarks(asked, candidate)):
            return StepId(MEASURE, candidate.runtime)
    return DELIVER if kind == "BaseModel" else SERVE


def object_of(here: OnboardStanding, step: StepId) -> Mapping[str, Any] | None:
    """Return the existing object that the work of a step is about."""
    asked, there = here.asked, here.found.there
    candidate = next((one for one in asked.candidates if one.runtime == step.item), None)
    if step == DELIVER:
        return there.get(("BaseModel", asked.name))
    if step == SERVE:
        return there.get(("InferenceService", asked.name))
    if candidate is None:
        return None
    if step.name == ROLL_OUT:
        return there.get(("InferenceService", objects.probe_name(asked, candidate)))
    jobs = [there[name] for job in benchmarks(asked, candidate) if (name := name_of(job)) in there]
    return next((job for job in jobs if (job.get("status") or {}).get("state") not in ("Completed", "Failed")), None)


def step_phases(here: OnboardStanding) -> dict[StepId, PlanStep]:
    """Return every step that there is so far, in order."""
    asked, found, steps = here.asked, here.found, here.steps
    model = found.there.get(("BaseModel", asked.name), {})
    delivered = (model.get("status") or {}).get("state") == "Ready"
    message = str(condition(model, "Ready").get("message") or "")
    failed = steps.problem and not delivered
    phase = StepPhase.DONE if delivered else StepPhase.FAILED if failed else StepPhase.ACTIVE
    phases = {DELIVER: PlanStep(phase, steps.problem if failed else message)}
    runtimes = ", ".join(candidate.runtime for candidate in asked.candidates)
    blocked = PlanStep(StepPhase.BLOCKED)
    phases[SELECT] = blocked
    if delivered:
        selected = PlanStep(StepPhase.DONE, f"candidates: {runtimes}")
        phases[SELECT] = selected if runtimes else PlanStep(StepPhase.FAILED, steps.problem)
    reasons = {one.candidate.runtime: one.problem for one in steps.verdict.assessed} if steps.verdict else {}
    reasons = {**reasons, **found.refused, **found.given_up, **steps.given_up}
    for candidate in asked.candidates if delivered else ():
        phases |= _candidate(here, candidate, reasons)
    verdict, service = steps.verdict, found.there.get(("InferenceService", asked.name))
    phases[COMPARE] = phases[SERVE] = blocked
    if verdict is not None:
        phase = StepPhase.DONE if verdict.chosen is not None else StepPhase.FAILED
        phases[COMPARE] = PlanStep(phase, outcome(verdict))
    if verdict is not None and verdict.chosen is not None:
        url = ((service or {}).get("status") or {}).get("url")
        is_ready = service is not None and ready(service)
        text = f"ready at {url}" if is_ready else str(condition(service or {}, "Ready").get("message") or "")
        done = StepPhase.DONE if steps.done else StepPhase.ACTIVE
        phases[SERVE] = PlanStep(StepPhase.FAILED, steps.problem) if steps.problem else PlanStep(done, text)
    return phases


def _candidate(
    here: OnboardStanding, candidate: ServingCandidate, reasons: Mapping[str, str]
) -> dict[StepId, PlanStep]:
    found, name = here.found, objects.probe_name(here.asked, candidate)
    ids = [StepId(step, candidate.runtime) for step in (ROLL_OUT, MEASURE, REMOVE)]
    service, job = (found.there.get((kind, name)) for kind in ("InferenceService", "BenchmarkJob"))
    status = (job or {}).get("status") or {}
    details = str(status.get("details") or "").partition("\n")[0]
    runs = found.runs.get(candidate.runtime)
    done, blocked = PlanStep(StepPhase.DONE), PlanStep(StepPhase.BLOCKED)
    # What could not be measured is known before all are compared, what cannot reach the target is not.
    why = "" if runs is not None else reasons.get(candidate.runtime, "")
    if status.get("state") == "Failed":
        why = str(status.get("failureMessage") or "the benchmark failed")
    failed = PlanStep(StepPhase.FAILED, why)
    is_over = runs is not None or bool(why)
    gone = blocked if not is_over else done if service is None else PlanStep(StepPhase.ACTIVE)

    def phases(*steps: PlanStep) -> dict[StepId, PlanStep]:
        return dict(zip(ids, steps, strict=True))

    if job is None and why:
        return phases(failed, blocked, gone)
    if job is None and service is not None and ready(service):
        return phases(done, PlanStep(StepPhase.ACTIVE), blocked)
    if job is None:
        text = str(condition(service, "Ready").get("message") or "") if service is not None else ""
        return phases(PlanStep(StepPhase.ACTIVE, text), blocked, blocked)
    if why:
        return phases(done, failed, gone)
    if runs is None:
        return phases(done, PlanStep(StepPhase.ACTIVE, details or str(status.get("state") or "")), blocked)
    begun, due = added(here.asked, found, candidate)
    known = certainty(here.asked, runs)
    if begun or due is not None:
        return phases(done, PlanStep(StepPhase.ACTIVE, known), blocked)
    return phases(done, PlanStep(StepPhase.DONE, "; ".join(filter(None, (details, known)))), gone)
