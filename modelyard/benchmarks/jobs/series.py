"""A series of runs: which have been measured, which is due, what spoilt one. Pure.

What a run has measured is kept with the object, so that nothing is measured twice. A run is worth something only if the
service stayed as it was; and no two loads go to one target at a time, whoever asked for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from modelyard.backoff import Backoff
from modelyard.benchmarks.jobs import probe
from modelyard.benchmarks.jobs.render import job, measurement
from modelyard.benchmarks.jobs.settings import BenchmarkSettings
from modelyard.benchmarks.jobs.storage import DatasetPlace, ResultPlace, dataset, results
from modelyard.benchmarks.jobs.story import Here
from modelyard.benchmarks.jobs.targets import BenchmarkTarget, Load, loads, target
from modelyard.benchmarks.jobs.world import (
    Failing,
    Memory,
    RunJob,
    RunPod,
    StoredBenchmark,
    Waits,
    Work,
    digest,
    read_spec,
    words,
)
from modelyard.benchmarks.records import IMPLAUSIBLE, MeasuredRun, MeasurementReport
from modelyard.models.delivery import STARTING
from modelyard.models.storage import DeliverySettings
from modelyard.objects import JOBS, NAMESPACES, Key, Namespace
from modelyard.reconcile.plans import Child, World, refusal
from modelyard.resources.ome import BenchmarkJobSpec
from modelyard.workloads.rendering import Body, Refusal, Refused, canonical
from modelyard.workloads.roll_out import INFERENCE_SERVICES

RUN_PODS: Final = "pods of runs"
MOST_ATTEMPTS: Final = 5
"""Times that one run is tried."""
MOST_ANEW: Final = 3
"""Times that all runs are made anew since the service is not what it was."""
RETRIES = Backoff(30.0, longest=600.0)
"""Delays between two attempts."""
SAYING: Final = 30.0
"""Seconds after a Job's end for which its pod's report may be on its way here."""
LARGEST_SPEC: Final = 16 * 1024
"""Characters of a spec: what was asked for when it began is kept with the object."""

Chosen = tuple[BenchmarkSettings, DeliverySettings, str | None]
"""What administrators have set, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class RunDeeds:
    """What is to be done for a BenchmarkJob, what a run stays for, and when to look again."""

    apply: tuple[Body, ...] = ()
    delete: tuple[Child, ...] = ()
    awaits: tuple[str, ...] = ()
    due: float | None = None


class BenchmarkLook:
    """One look at one BenchmarkJob."""

    def __init__(self, one: StoredBenchmark, world: World, now: float, chosen: Chosen) -> None:
        self.one, self.world, self.now, self.key = one, world, now, one.key
        self.settings, self.delivery, self.wrong = chosen
        self.memory = one.memory
        self.here = Here(one, one.memory)
        self.target: BenchmarkTarget | None = None
        self.delete: list[Child] = []

    def result(self) -> tuple[Here, RunDeeds]:
        """What is there, with what is remembered from now on, and what is to be done."""
        deeds = self._deeds()
        return replace(self.here, memory=self.memory), deeds

    def _deeds(self) -> RunDeeds:
        self._begin()
        spec, problem = self._spec()
        self._note(changed=self._changed())
        if spec is None:
            return self._refused(problem)
        try:
            wanted = loads(spec)
            self._note(loads=tuple(wanted), minutes=spec.max_time_per_iteration)
            if self.memory.ended:
                self._cleared()
                return RunDeeds(delete=tuple(self.delete))
            began = datetime.fromtimestamp(self.memory.began or self.now, UTC).strftime("%Y%m%d-%H%M%S")
            where = results(spec, self.key, began, self.delivery, self.world)
            data = dataset(spec, self.key, self.delivery, self.world)
            found = target(spec, self.tokenizer, self.key, self.settings, self.delivery, self.world)
        except Refusal as refusal:
            return self._refused(refusal.refused)
        except Waits as waits:
            return self._made(waits) or self._waits(waits.reason, str(waits))
        if self.wrong is not None:
            self._note("SettingsInvalid", self.wrong)
            return RunDeeds()
        self.target = found
        self._stays()
        return self._next(spec, wanted, found, where, data)

    def _note(self, reason: str = "", message: str = "", **facts: Any) -> None:
        self.here = replace(self.here, reason=reason, message=message, **facts)

    # What it is about

    def _begin(self) -> None:
        memory, one = self.memory, self.one
        if not memory.began or one.re_run == memory.re_run:
            if memory.failed and memory.ended and self._changed():
                self.memory = Memory(re_run=one.re_run)
            elif not memory.began:
                self.memory = memory.model_copy(update={"re_run": one.re_run})
            return
        if memory.failed and not self._changed():  # what was measured is worth as much as before
            kept = {"failed": "", "ended": 0.0, "failing": Failing(), "anew": 0}
            self.memory = memory.model_copy(update={**kept, "re_run": one.re_run})
        else:
            self.memory = Memory(re_run=one.re_run)

    def _changed(self) -> bool:
        memory, one = self.memory, self.one
        if not memory.began:
            return False
        return canonical(memory.asked) != canonical(one.asked) or memory.tokenizer != one.tokenizer

    def _spec(self) -> tuple[BenchmarkJobSpec | None, Refused | None]:
        if self.memory.began:
            return read_spec(self.memory.asked, self.key.name)
        if len(canonical(self.one.asked)) > LARGEST_SPEC:
            problem, remedy = f"is longer than {LARGEST_SPEC} characters", "leave out of podOverride what is not needed"
            return None, Refused("InvalidSpec", "spec", problem, remedy)
        return self.one.spec, self.one.problem

    @property
    def tokenizer(self) -> str:
        """What names it beside the spec."""
        return self.memory.tokenizer if self.memory.began else self.one.tokenizer

    def _refused(self, problem: Refused | None) -> RunDeeds:
        problem = problem or Refused("InvalidSpec", "spec", "cannot be read", "correct it")
        gone = [_child(one) for one in self._jobs() if one.active and not one.deleting]
        if self.memory.began and not self.memory.ended:
            self.memory = self.memory.model_copy(update={"failed": words(f"{problem}"), "ended": self.now})
        self._note(problem.reason, str(problem), refused=True)
        return RunDeeds(delete=tuple(gone))

    def _waits(self, reason: str, message: str) -> RunDeeds:
        """A run that is under way while its service is not what it was is given up, and so is one that just ended."""
        for one in self._jobs():
            if not one.deleting:
                if one.work.series == self._series():
                    self._failed(one, reason, f"during the run: {message}", again=True)
                self.delete.append(_child(one))
        self._note(reason, message)
        return RunDeeds(delete=tuple(self.delete), due=self.memory.failing.next or None)

    def _made(self, waits: Waits) -> RunDeeds | None:
        """``None`` where no service is to be created, or waited for."""
        key = probe.measured_service(self.one)
        if key is None:
            return None
        if waits.reason == "ServiceNotFound" and self.world[INFERENCE_SERVICES].get(key) is None:
            body = probe.render(self.one, key, self.world, self.now)
            if body is None:
                return None
            made = f"InferenceService {key} is created for the measurement: a copy of {self.one.probe_of}, one replica"
            self._note("ServiceNotReady", made)
            return RunDeeds(apply=(body,))
        service = probe.made_service(self.one, self.world)
        since = probe.made_since(service, self.one) if service is not None else None
        if since is None or self.memory.began:
            return None
        if self.now < since + probe.READY_WITHIN:
            return replace(self._waits(waits.reason, str(waits)), due=since + probe.READY_WITHIN)
        why = words(f"{waits.reason}: not ready within {probe.READY_WITHIN / 60:.0f} minutes: {waits}")
        self.memory = self._begun().model_copy(update={"failed": why, "ended": self.now})
        return RunDeeds(delete=tuple(self.delete))

    def _begun(self) -> Memory:
        one = self.one
        begun = {"asked": dict(one.asked), "tokenizer": one.tokenizer, "began": float(int(self.now))}
        return self.memory.model_copy(update=begun | {"generation": one.subject.generation})

    # Runs

    def _jobs(self) -> list[RunJob]:
        found = self.world[JOBS].by("owner", self.one.subject.uid)
        return [one for one in found if one.key.namespace == self.key.namespace]

    def _series(self) -> str:
        memory = self.memory
        return digest(canonical(memory.asked), memory.tokenizer, memory.re_run, memory.anew, memory.began)

    def _measured(self) -> set[Load]:
        return {Load(one.scenario, one.concurrency) for one in self.memory.runs}

    def _cleared(self) -> None:
        """Nothing is left to do: Jobs go but for that of the run that has failed, whose log tells more."""
        done, series = self._measured(), self._series()
        for one in self._jobs():
            last = one.work.series == series and one.work.attempt == self.memory.failing.attempts - 1
            failed = self.memory.failed and Load(one.work.scenario, one.work.concurrency) not in done
            if not one.deleting and (one.active or not (failed and last)):
                self.delete.append(_child(one))

    def _stays(self) -> None:
        """All runs are of one state of the service: where it is another one, all is begun anew."""
        memory, now = self.memory, self.target.standing if self.target is not None else ""
        if memory.service == now or not memory.began:
            return
        if not memory.runs:
            self.memory = memory.model_copy(update={"service": now})
        elif memory.anew >= MOST_ANEW:
            said = f"ServiceChanged: {MOST_ANEW + 1} times, from {memory.service} to {now}"
            why = words(f"{said}; measure it when it is at rest")
            self.memory = memory.model_copy(update={"failed": why, "ended": self.now})
        else:
            fresh = {"runs": (), "service": now, "anew": memory.anew + 1, "failing": Failing()}
            self.memory = memory.model_copy(update=fresh)

    def _next(
        self, spec: BenchmarkJobSpec, wanted: list[Load], found: BenchmarkTarget, where: ResultPlace, data: DatasetPlace
    ) -> RunDeeds:
        series = self._series()
        active: RunJob | None = None
        leaving, silent = False, False
        for one in self._jobs():
            mine = one.work.series == series and not self.memory.ended
            leaving = leaving or one.deleting
            if one.deleting:
                continue
            if mine and one.active and Load(one.work.scenario, one.work.concurrency) not in self._measured():
                if one.work.service != self._state():
                    self._failed(one, "ServiceChanged", self._what_changed(one), again=True)
                elif not self._another_is_first(one) and active is None:
                    active = one
                    continue
            elif mine and not one.active and one.work.attempt >= self.memory.failing.attempts:
                pod = self._pod(one)
                if (pod is None or not pod.said) and self.now < one.end.at + SAYING and one.end.state == "Complete":
                    silent = True
                    continue
                self._ended(one, pod)
            self.delete.append(_child(one))
        left = [one for one in wanted if one not in self._measured()]
        if not left and not self.memory.ended:
            self.memory = self.memory.model_copy(update={"ended": self.now})
        if self.memory.ended:
            kept = {one.key for one in self._jobs()} if self.memory.failed else set()
            self.delete = [one for one in self.delete if one.key not in kept]
            self._cleared()
            return RunDeeds(delete=tuple({one.key: one for one in self.delete}.values()))
        self._note(target=found, load=left[0])
        deeds = RunDeeds(delete=tuple(self.delete))
        if active is not None:
            pod = self._pod(active)
            trouble = f": {pod.reason}: {pod.message}" if pod is not None and pod.reason else ""
            phase = pod.phase if pod is not None else "Pending"
            said = f"the pod of {left[0]} begins" if phase == "Pending" else f"{left[0]} is being measured"
            self._note("Measuring", f"{said}{trouble}", job=active)
            begins = phase != "Pending" or self.now < active.created + STARTING
            return replace(deeds, awaits=(f"run {left[0]}",) if begins else ())
        failing = self.memory.failing
        if failing.attempts and failing.next > self.now:
            message = f"{left[0]} failed {failing.attempts} times, and is tried again: {failing.message}"
            self._note(failing.reason, message)
            return replace(deeds, due=failing.next)
        if leaving or silent or self.delete:
            self._note("Measuring", "the run before is ending")
            # Only for a while: a pod may be stuck on a node that is gone.
            ends = (max(one.created, one.end.at) + STARTING for one in self._jobs() if one.deleting)
            return replace(deeds, awaits=("the run before",) if all(self.now < end for end in ends) else ())
        if (other := next(iter(self._others(found)), None)) is not None:
            message = f"another benchmark puts a load on it: Job {other.key}; two would spoil each other"
            self._note("WaitsForTurn", message)
            return deeds
        work = Work(
            series=series,
            scenario=left[0].scenario,
            concurrency=left[0].concurrency,
            attempt=failing.attempts,
            service=self._state(),
        )
        space: Namespace = self.world[NAMESPACES].get(Key("", self.key.namespace)) or Namespace(self.key.namespace)
        asked = measurement(spec, self.key, left[0], found, where, data)
        try:
            made = job(self.one.subject, spec, work, asked, found, where, data, self.settings, space)
        except Refusal as refusal:
            return self._refused(refusal.refused)
        self._note("Measuring", f"{left[0]} is next")
        if not self.memory.began:
            # What a series is called depends on when it began, which is remembered before anything is made.
            self.memory = self._begun().model_copy(update={"service": found.standing})
            return RunDeeds(awaits=(f"run {left[0]}",))
        return RunDeeds(apply=(made,), awaits=(f"run {left[0]}",))

    def _state(self) -> str:
        return f"{self.target.standing} {self.target.life}".strip() if self.target is not None else ""

    def _what_changed(self, one: RunJob) -> str:
        before, now = one.work.service.rpartition(" ")[0], self.target.standing if self.target is not None else ""
        what = f"the service changed from {before} to {now}" if before != now else "pods of the service began anew"
        return f"{what} during the run: what was measured is refused"

    def _pod(self, one: RunJob) -> RunPod | None:
        """The Job's pod: the one that has said something, or the newest. One in another namespace is a forgery."""
        pods = [pod for pod in self.world[RUN_PODS].by("job", one.uid) if pod.key.namespace == one.key.namespace]
        return max(pods, key=lambda pod: (bool(pod.said), pod.created), default=None)

    def _ended(self, one: RunJob, pod: RunPod | None) -> None:
        report = pod.report if pod is not None else None
        if report is None:
            why = (pod.message or pod.reason if pod is not None else "") or one.end.message or "its pod is gone"
            self._failed(one, "NoReport", f"it ended without a report: {words(why)}", again=True)
        elif report.outcome != "Measured" or report.run is None:
            reason = report.reason or "Failed"
            self._failed(one, words(reason), words(report.message), again=report.retryable)
        elif (report.run.scenario, report.run.concurrency) != (one.work.scenario, one.work.concurrency):
            self._failed(one, "NoReport", "its report is of another run", again=True)
        elif report.run.spoilt:
            self._failed(one, "TooManyErrors", report.run.spoilt, again=False)
        elif report.run.implausible:
            self._failed(one, IMPLAUSIBLE, report.run.implausible, again=False)
        elif one.work.service != self._state():
            self._failed(one, "ServiceChanged", self._what_changed(one), again=True)
        else:
            self._keep(report, report.run)

    def _keep(self, report: MeasurementReport, run: MeasuredRun) -> None:
        if Load(run.scenario, run.concurrency) in self._measured():
            return
        update = {
            "runs": (*self.memory.runs, _slim(run)),
            "failing": Failing(),
            "results": words(report.results) or self.memory.results,
        }
        self.memory = self.memory.model_copy(update=update)

    def _failed(self, one: RunJob, reason: str, message: str, *, again: bool) -> None:
        before = self.memory.failing
        if one.work.attempt < before.attempts or self.memory.ended:
            return
        attempts = before.attempts + 1
        failing = Failing(
            attempts=attempts, next=self.now + RETRIES.delay(attempts), reason=reason[:100], message=words(message)
        )
        self.memory = self.memory.model_copy(update={"failing": failing})
        if not again or attempts >= MOST_ATTEMPTS:
            load = Load(one.work.scenario, one.work.concurrency)
            tried = f", {attempts} times" if attempts > 1 else ""
            said = words(f"{load} failed{tried}: {reason}: {message}")
            self.memory = self.memory.model_copy(update={"failed": said, "ended": self.now})

    # Turns

    def _others(self, found: BenchmarkTarget) -> list[RunJob]:
        place, mine = found.service.partition("/")[0], self.key.namespace
        spaces = {one.name: one for one in self.world[NAMESPACES].all()}

        def counts(theirs: str) -> bool:
            # Anybody may make a Job that looks like one: it counts only where it could load the target. The target's
            # own namespace waits for none of its guests, whose Jobs may never end.
            return theirs == mine or (mine != place and refusal(theirs, place, spaces) is None)

        jobs: Iterable[RunJob] = self.world[JOBS].by("target", found.key)
        return [one for one in jobs if one.active and one.owner != self.one.subject.uid and counts(one.key.namespace)]

    def _another_is_first(self, mine: RunJob) -> bool:
        """Return whether this run gives way: to an earlier one, or as a guest to the target's own namespace."""
        assert self.target is not None
        place = self.target.service.partition("/")[0]

        def order(one: RunJob) -> tuple[bool, float, str]:
            return one.key.namespace != place, one.created, one.uid

        return any(order(one) < order(mine) for one in self._others(self.target))


def _child(one: RunJob) -> Child:
    return Child(JOBS, one.key, one.uid)


def _slim(run: MeasuredRun) -> MeasuredRun:
    """The run with numbers as exact as they are meant: what is kept of many has to fit."""
    body = run.model_dump()

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.5g}")
        return {name: rounded(one) for name, one in value.items()} if isinstance(value, dict) else value

    return MeasuredRun.model_validate(rounded(body) | {"started": run.started[:40]})
