"""What an onboarding does next, by what is there: killed anywhere, it goes on and measures nothing twice. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from modelyard.benchmarks.records import MeasuredRun
from modelyard.models.delivery import PERSON
from modelyard.objects import condition, epoch, few
from modelyard.onboarding.planning import objects
from modelyard.onboarding.planning.choose import CandidateChoice, choose
from modelyard.onboarding.planning.levels import first_levels, more_levels, next_level
from modelyard.onboarding.request import OnboardRequest, ServingCandidate

Name = tuple[str, str]
"""Kind and name of an object of the onboarding's namespace."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What there is: objects by kind and name, and by runtime the runs measured and why a candidate was given up.

    ``refused`` says of runtimes why they cannot serve the model, ``served`` by which name the service's engine has it
    (``None``: there is no engine yet), ``now`` (epoch seconds) what the time is. ``failed`` says of objects why the run
    that worked on them has failed for good.
    """

    there: Mapping[Name, Mapping[str, Any]] = field(default_factory=dict)
    runs: Mapping[str, Sequence[MeasuredRun]] = field(default_factory=dict)
    given_up: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    served: str | None = ""
    now: float = 0.0
    failed: Mapping[Name, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NextSteps:
    """Objects to apply and to remove, and what is awaited; with none of these it is over, for good or by a problem.

    ``given_up`` has the candidates that were waited for too long, with the reason: that is to be kept.
    """

    apply: tuple[objects.Document, ...] = ()
    remove: tuple[Name, ...] = ()
    awaits: tuple[str, ...] = ()
    verdict: CandidateChoice | None = None
    problem: str = ""
    given_up: Mapping[str, str] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.apply or self.remove or self.awaits)


def next_steps(asked: OnboardRequest, found: Findings) -> NextSteps:
    """The steps that can be taken now, those of all candidates side by side."""
    model = objects.base_model(asked)
    probes = [objects.probe(asked, one) for one in asked.candidates]
    measuring = [benchmarks(asked, one) for one in asked.candidates]
    names = Counter(name_of(job)[1] for job in chain(*measuring))
    if twice := next((name for name, times in names.items() if times > 1), ""):
        return NextSteps(
            problem=f"two runtimes would have a BenchmarkJob {twice}: give candidates, with one of them alone"
        )
    if problem := _conflict(asked, found, (model, *probes, *chain(*measuring))):
        return NextSteps(problem=problem)
    stored, failed = found.there.get(name_of(model)), found.failed.get(name_of(model))
    if stored is None:
        return NextSteps(problem=f"BaseModel {asked.name}: {failed}") if failed else NextSteps(apply=(model,))
    state = (stored.get("status") or {}).get("state")
    if state == "Failed":
        return NextSteps(problem=f"BaseModel {asked.name} cannot be delivered; `modelyard models why` says why")
    if state != "Ready":
        ready_now = condition_of(stored, "Ready")
        if ready_now.get("reason") in PERSON:
            why = ready_now.get("message") or ready_now["reason"]
            return NextSteps(problem=f"BaseModel {asked.name} waits: {why}; then start the onboarding again")
        if failed:
            return NextSteps(problem=f"BaseModel {asked.name}: {failed}")
        return NextSteps(awaits=(f"BaseModel {asked.name}: its files",))
    if not asked.candidates:
        why = "; ".join(few([f"{name}: {text}" for name, text in found.refused.items()])) or "there is no runtime"
        return NextSteps(problem=f"no runtime serves the model on an accelerator that has a price: {why}")
    apply: list[objects.Document] = []
    remove: list[Name] = []
    awaits: list[str] = []
    late = dict(found.given_up)
    out = dict(found.given_up)
    for one, service, (job, *_) in zip(asked.candidates, probes, measuring, strict=True):
        running, measured = found.there.get(name_of(service)), found.there.get(name_of(job))
        status = (measured or {}).get("status") or {}
        if status.get("state") == "Failed":
            out.setdefault(one.runtime, f"benchmark failed: {status.get('failureMessage') or 'no reason given'}")
        elif running is None and measured is None and one.runtime in found.refused:
            out.setdefault(one.runtime, found.refused[one.runtime])
        elif one.runtime not in found.runs and (why := _hopeless(asked, found, service, job)):
            late[one.runtime] = out[one.runtime] = out.get(one.runtime, why)
        if one.runtime in out:
            remove += [name_of(service)] if running is not None else []
        elif one.runtime in found.runs:
            begun, due = added(asked, found, one)
            apply += [due] if due is not None else []
            awaits += [f"BenchmarkJob {begun}: its results"] if begun else []
            remove += [name_of(service)] if running is not None and not begun and due is None else []
        elif status.get("state") == "Completed":
            awaits.append(f"BenchmarkJob {name_of(job)[1]}: its results")
        elif running is None:
            apply.append(service)
        elif not ready(running):
            awaits.append(f"InferenceService {name_of(service)[1]}: ready")
        elif measured is None:
            apply.append(job)
        else:
            awaits.append(f"BenchmarkJob {name_of(job)[1]}: {status.get('state') or 'begun'}")
    if apply or remove or awaits:
        return NextSteps(tuple(apply), tuple(remove), tuple(awaits), given_up=late)
    verdict = choose(asked, found.runs, out)
    if verdict.chosen is None:
        return NextSteps(verdict=verdict, problem=verdict.problem, given_up=late)
    return _written(asked, found, verdict, late)


def benchmarks(asked: OnboardRequest, one: ServingCandidate) -> list[objects.Document]:
    """A candidate's first BenchmarkJob, and all that may be added to it."""
    more = [objects.benchmark(asked, one, [level], added=True) for level in more_levels(asked)]
    return [objects.benchmark(asked, one, first_levels(asked)), *more]


class AddedBenchmark(NamedTuple):
    """The name of the BenchmarkJob that is under way, or the one that is to be made."""

    begun: str = ""
    due: objects.Document | None = None


def added(asked: OnboardRequest, found: Findings, one: ServingCandidate) -> AddedBenchmark:
    """What is still measured of a candidate whose first benchmark is done; nothing without its probe.

    An added one that fails, or is waited for too long, is left out: there are figures without it.
    """
    service = found.there.get(("InferenceService", objects.probe_name(asked, one)))
    if service is None or service["metadata"].get("deletionTimestamp"):
        return AddedBenchmark()
    _, *jobs = benchmarks(asked, one)
    tried = set()
    for level, job in zip(more_levels(asked), jobs, strict=True):
        if (there := found.there.get(name_of(job))) is not None:
            tried.add(level)
            over = (there.get("status") or {}).get("state") in ("Completed", "Failed")
            if not over and not found.failed.get(name_of(job)) and not _too_long(asked, found.now, service, there):
                return AddedBenchmark(name_of(job)[1])
    due = next_level(asked, found.runs[one.runtime], tried)
    return AddedBenchmark(due=None if due is None else objects.benchmark(asked, one, [due], added=True))


def _conflict(asked: OnboardRequest, found: Findings, documents: Iterable[objects.Document]) -> str:
    known = ((found.there.get(name_of(ours)), ours) for ours in documents)
    return next(filter(None, (objects.conflict(asked, dict(there), ours) for there, ours in known if there)), "")


def _written(asked: OnboardRequest, found: Findings, verdict: CandidateChoice, late: Mapping[str, str]) -> NextSteps:
    assert verdict.chosen is not None
    final = objects.chosen(asked, verdict.chosen, found.served or "")
    if problem := _conflict(asked, found, final):
        return NextSteps(verdict=verdict, problem=problem, given_up=late)
    service, *others = final
    running, failed = found.there.get(name_of(service)), found.failed.get(name_of(service))
    if running is None and not failed:
        return NextSteps(apply=(service,), verdict=verdict, given_up=late)
    if running is not None and ready(running):
        # Only what runs says by which name its model is known to the autoscaler.
        missing = tuple(one for one in others if name_of(one) not in found.there)
        if missing and found.served is None:
            return NextSteps(awaits=(f"InferenceService {asked.name}: its pod",), verdict=verdict, given_up=late)
        return NextSteps(apply=missing, verdict=verdict, given_up=late)
    if why := failed or _too_long(asked, found.now, running, None):
        return NextSteps(verdict=verdict, problem=f"InferenceService {asked.name}: {why}", given_up=late)
    return NextSteps(awaits=(f"InferenceService {asked.name}: ready",), verdict=verdict, given_up=late)


def _hopeless(asked: OnboardRequest, findings: Findings, service: objects.Document, job: objects.Document) -> str:
    failed = findings.failed.get(name_of(service)) or findings.failed.get(name_of(job))
    running, measured = findings.there.get(name_of(service)), findings.there.get(name_of(job))
    return failed or _too_long(asked, findings.now, running, measured)


def _too_long(
    asked: OnboardRequest, now: float, service: Mapping[str, Any] | None, job: Mapping[str, Any] | None
) -> str:
    if job is not None:
        # Runs may be made anew where something came between; twice their time is enough.
        minutes = asked.patience + 2 * asked.minutes * len((job.get("spec") or {}).get("numConcurrency") or ())
        state = (job.get("status") or {}).get("state") or "not begun"
        return f"not measured within {minutes} minutes: it is {state}" if _older(job, now, minutes) else ""
    if service is None or ready(service) or not _older(service, now, asked.patience):
        return ""
    told = condition_of(service, "Ready")
    why = ": ".join(filter(None, (told.get("reason"), told.get("message"))))
    return f"not ready within {asked.patience} minutes" + (f": {why}" if why else "")


def _older(there: Mapping[str, Any], now: float, minutes: float) -> bool:
    created = epoch((there.get("metadata") or {}).get("creationTimestamp"))
    return 0 < created < now - 60 * minutes


def name_of(document: Mapping[str, Any]) -> Name:
    """Kind and name."""
    return document["kind"], document["metadata"]["name"]


def condition_of(there: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition of an object's status; empty where it has none of this type."""
    return condition(there.get("status") or {}, kind)


def ready(there: Mapping[str, Any]) -> bool:
    """Whether an InferenceService says that it is."""
    return condition_of(there, "Ready").get("status") == "True"
