"""What a BenchmarkJob's plan looks at, as plain values: BenchmarkJobs, the Jobs of runs, their pods, engines. Pure.

Nothing here raises: what cannot be read is kept with what is wrong with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from modelyard.benchmarks.records import MeasuredRun, MeasurementReport
from modelyard.models.delivery import JobEnd, container_words, job_end
from modelyard.objects import (
    LONGEST_PROBLEM,
    TERMINATION_MESSAGE_BYTES,
    Key,
    ResourceType,
    condition,
    controller_of,
    cut,
    epoch,
    key_of,
    mapping,
    printable,
    stored_status,
    texts,
)
from modelyard.reconcile.plans import CLAIM, FAILED, Count, OfSubject, Seconds, Subject, parse_memory
from modelyard.resources import BenchmarkJob
from modelyard.resources.ome import BenchmarkJobSpec
from modelyard.workloads.rendering import Refused, names, read_resource, served_name

Object = Mapping[str, Any]

BENCHMARK_JOBS = ResourceType.of_resource(BenchmarkJob)
RE_RUN: Final = "modelyard.dev/re-run"
"""Annotation: another value measures anew; after a failure, only what has not been measured."""
TOKENIZER: Final = "modelyard.dev/tokenizer"
"""Annotation: a folder in the pod or a hub's id. Default: the model's files; of a direct endpoint, the model's name."""
PROBE_OF: Final = "modelyard.dev/probe-of"
"""Annotation: the InferenceService to copy where the one to measure no longer exists."""
MEMORY: Final = "modelyard.dev/benchmark"
"""Annotation: what has been measured so far."""
PUBLISHED_FINALIZER: Final = "benchmarkjob.finalizers"
"""That of the described system: nothing needs it, Jobs go with their owner."""
LABEL, TARGET, WORK = "modelyard.dev/benchmark", "modelyard.dev/benchmark-target", "modelyard.dev/benchmark-run"
"""Labels of a run's Job (the uid of its BenchmarkJob; what it measures, as a hash), and its annotation: which run."""
MOST_RUNS: Final = 100
"""Runs of one BenchmarkJob: what they measured is kept with the object."""

Text = Annotated[str, Field(max_length=LONGEST_PROBLEM)]


class Waits(Exception):
    """It cannot be measured yet; ``reason`` is the condition's, the message says what it waits for."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Noted(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Failing(_Noted):
    """How often the run that is due has failed in a row, how at last, and when it is tried again."""

    attempts: Annotated[int, Field(ge=0, le=1000)] = 0
    next: Seconds = 0
    reason: Text = ""
    message: Text = ""


class Memory(_Noted):
    """What is kept of a series of runs with the object: what was asked for when it began, and what was measured.

    ``service`` is the state of the service that all runs have in common; ``anew`` counts how often it changed so that
    all was begun anew. ``ended`` is when there was nothing left to do, in vain where there is a ``failed``.
    """

    asked: dict[str, Any] = Field(default_factory=dict)
    tokenizer: Text = ""
    generation: Count = 0
    re_run: Annotated[str, Field(max_length=100)] = ""
    service: Text = ""
    anew: Annotated[int, Field(ge=0, le=1000)] = 0
    began: Seconds = 0
    ended: Seconds = 0
    results: Text = ""
    runs: Annotated[tuple[MeasuredRun, ...], Field(max_length=MOST_RUNS)] = ()
    failing: Failing = Failing()
    failed: Text = ""


@dataclass(frozen=True, slots=True)
class StoredBenchmark(OfSubject):
    """A BenchmarkJob; ``problem`` says why there is no ``spec``. ``asked`` is the spec as it is written."""

    subject: Subject
    spec: BenchmarkJobSpec | None
    asked: Mapping[str, Any]
    problem: Refused | None
    status: Mapping[str, Any]
    memory: Memory
    damaged: str | None
    re_run: str
    probe_of: str
    tokenizer: str
    failed_before: bool
    finalizers: tuple[str, ...]


def benchmark(obj: Object) -> StoredBenchmark:
    """A BenchmarkJob as the API sends it."""
    metadata = obj["metadata"]
    annotations = texts(metadata.get("annotations"))
    spec, problem = read_spec(obj.get("spec"), metadata["name"])
    memory, damaged = parse_memory(Memory, MEMORY, annotations.get(MEMORY))
    return StoredBenchmark(
        Subject.of(BENCHMARK_JOBS, obj),
        spec,
        mapping(obj.get("spec")),
        problem,
        stored_status(obj),
        memory,
        damaged,
        annotations.get(RE_RUN, "")[:100],
        annotations.get(PROBE_OF, "")[:253],
        annotations.get(TOKENIZER, "")[:LONGEST_PROBLEM],
        FAILED in annotations,
        tuple(metadata.get("finalizers") or ()),
    )


def read_spec(spec: Any, name: str) -> tuple[BenchmarkJobSpec | None, Refused | None]:
    """What a spec says, or what is wrong with it."""
    found = read_resource(BenchmarkJob, {"metadata": {"name": name}, "spec": spec})
    return (None, found) if isinstance(found, Refused) else (found.spec, None)


def wish(obj: Object) -> object:
    """What of a BenchmarkJob a person controls."""
    metadata = obj["metadata"]
    kept = {n: v for n, v in texts(metadata.get("annotations")).items() if n not in (CLAIM, FAILED, MEMORY)}
    return metadata.get("generation"), metadata.get("deletionTimestamp"), kept


class Work(_Noted):
    """Which run a Job is of: of which series, which attempt, and the state of the service when it was made."""

    series: Text
    scenario: Text
    concurrency: int
    attempt: int = 0
    service: Text = ""

    @property
    def text(self) -> str:
        """As an annotation."""
        return json.dumps(self.model_dump(), sort_keys=True)


@dataclass(frozen=True, slots=True)
class RunJob:
    """A run's Job. ``owner`` is the uid of its controller."""

    key: Key
    uid: str
    owner: str
    target: str
    work: Work
    end: JobEnd
    created: float
    deleting: bool

    @property
    def active(self) -> bool:
        """Whether it may put a load on something."""
        return self.end.state == "Active"


def run_job(obj: Object) -> RunJob | None:
    """A Job as the API sends it; ``None`` for one that is of no run."""
    metadata = obj["metadata"]
    try:
        work = Work.model_validate_json(texts(metadata.get("annotations")).get(WORK, ""))
    except ValidationError:
        return None
    owner = controller_of(obj)
    return RunJob(
        key_of(obj),
        metadata["uid"],
        owner.uid if owner is not None else "",
        texts(metadata.get("labels")).get(TARGET, ""),
        work,
        job_end(obj),
        epoch(metadata.get("creationTimestamp")),
        bool(metadata.get("deletionTimestamp")),
    )


@dataclass(frozen=True, slots=True)
class RunPod:
    """The pod of a run: what it said at its end, or else why it does not run."""

    key: Key
    job: str
    phase: str
    said: str
    reason: str
    message: str
    created: float

    @property
    def report(self) -> MeasurementReport | None:
        """What was measured, or why nothing was; ``None`` where nothing can be read."""
        if len(self.said.encode()) > TERMINATION_MESSAGE_BYTES:
            return None
        try:
            return MeasurementReport.model_validate_json(self.said)
        except ValidationError:
            return None


def run_pod(obj: Object) -> RunPod:
    """A pod as the API sends it."""
    status, owner = obj.get("status") or {}, controller_of(obj)
    said, reason, message = container_words(status)
    phase, created = status.get("phase") or "Pending", epoch(obj["metadata"].get("creationTimestamp"))
    return RunPod(key_of(obj), owner.uid if owner is not None else "", phase, said, reason, message, created)


@dataclass(frozen=True, slots=True)
class EnginePod:
    """A pod of a service: ``life`` changes when its containers start anew; ``model`` is what its engine serves."""

    key: Key
    service: str
    component: str
    ready: bool
    life: str
    model: str


def engine_pod(obj: Object) -> EnginePod | None:
    """A pod as the API sends it; ``None`` for one that is going, or over."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    if metadata.get("deletionTimestamp") or status.get("phase") in ("Failed", "Succeeded"):
        return None
    labels = texts(metadata.get("labels"))
    ready = condition(status, "Ready").get("status") == "True"
    restarts = sum(int(one.get("restartCount") or 0) for one in status.get("containerStatuses") or ())
    component = labels.get(names.COMPONENT, "")
    model = next(filter(None, map(served_name, spec.get("containers") or ())), "")
    life = f"{metadata.get('uid')}/{restarts}"
    return EnginePod(key_of(obj), labels.get(names.SERVICE, ""), component, ready, life, model)


def words(text: str) -> str:
    """A text of others, on one line and cut."""
    return cut(printable(text), LONGEST_PROBLEM)


def digest(*parts: object) -> str:
    """A few letters that stand for these."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]
