"""What runs for models and what uses them, as plain values: Jobs, their reports, and pods. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import Field, ValidationError

from modelyard.models.delivery import names
from modelyard.models.delivery.world import Noted, Object, Text
from modelyard.objects import LONGEST_PROBLEM, Key, condition, cut, epoch, key_of, printable, required_terms, texts
from modelyard.reconcile.plans import MISSING

MODEL = "modelyard.dev/model"
"""Label of what is made for a model."""
WORK = "modelyard.dev/work"
"""Annotation of such a Job: what it is to do, as JSON."""

_MOST_REPORT = 8192


class JobOutcome(Noted):
    """What a Job says at its end: the contract of ``modelyard node``."""

    outcome: Text
    reason: Text | None = None
    message: Text | None = None
    retryable: bool = False
    retry_after: float | None = Field(None, ge=0, le=86_400, allow_inf_nan=False)
    revision: Text | None = None
    bytes: int | None = Field(None, ge=0)
    files: int | None = Field(None, ge=0)
    seconds: float | None = Field(None, ge=0, allow_inf_nan=False)
    fetched_bytes: int | None = Field(None, ge=0)
    from_store: bool | None = None
    weights: Text = ""
    manifest_sha256: Text | None = None
    facts: dict[str, Any] = Field(default_factory=dict)
    facts_error: Text | None = None

    @classmethod
    def read(cls, text: str) -> JobOutcome | None:
        if len(text) > _MOST_REPORT:
            return None
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None


class Task(Noted):
    """What a Job does, as an annotation of it says: ``purpose`` is fetch, check or remove."""

    purpose: Text
    node: Text
    uid: Text
    fingerprint: Text = ""
    attempt: int = 0
    source: Text = ""
    namespace: Text = ""
    root: Text = ""
    path: Text = ""
    verify: float = 0
    nudge: Text = ""


@dataclass(frozen=True, slots=True)
class ModelJob:
    """A Job for a model. ``state`` is Active, Complete or Failed; ``ended`` when (epoch seconds)."""

    key: Key
    uid: str
    model: str
    task: Task
    state: str
    reason: str
    message: str
    created: float
    ended: float
    deleting: bool
    missing: str
    """The Secret that it was to be handed and that was not there."""


class JobEnd(NamedTuple):
    """How a Job stands: Active, Complete or Failed, why, and since when (epoch seconds)."""

    state: str
    reason: str
    message: str
    at: float


def job_end(obj: Object) -> JobEnd:
    """How a Job as the API sends it stands."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    ended: Object = next((c for c in conditions if c["type"] in ("Complete", "Failed") and c["status"] == "True"), {})
    message = _problem(ended.get("message") or "")
    return JobEnd(
        ended.get("type", "Active"), ended.get("reason") or "", message, epoch(ended.get("lastTransitionTime"))
    )


def job(obj: Object) -> ModelJob | None:
    """A Job as the API sends it; ``None`` for one that is not for a model."""
    metadata = obj["metadata"]
    try:
        task = Task.model_validate_json(texts(metadata.get("annotations")).get(WORK, ""))
    except ValidationError:
        return None
    end = job_end(obj)
    return ModelJob(
        key_of(obj),
        metadata["uid"],
        texts(metadata.get("labels")).get(MODEL, ""),
        task,
        end.state,
        end.reason,
        end.message,
        epoch(metadata.get("creationTimestamp")),
        end.at,
        bool(metadata.get("deletionTimestamp")),
        cut(texts(metadata.get("annotations")).get(MISSING, ""), LONGEST_PROBLEM),
    )


@dataclass(frozen=True, slots=True)
class ModelPod:
    """A pod, as far as models are concerned: that of a Job of ours, one that waits for a model, one that uses files.

    ``waiting`` and ``message`` say why its container does not run, or how it ended without a word of its own.
    """

    key: Key
    uid: str
    node: str
    job: str
    phase: str
    report: str
    waiting: str
    message: str
    labels: tuple[str, ...]
    mounts: tuple[str, ...]
    started: str
    created: float


def pod(obj: Object) -> ModelPod | None:
    """A pod as the API sends it; ``None`` for one that has nothing to do with models."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    phase = status.get("phase") or "Pending"
    ours = MODEL in texts(metadata.get("labels"))
    owners = [owner["uid"] for owner in metadata.get("ownerReferences") or () if owner.get("kind") == "Job"] or [""]
    waits = () if ours or phase != "Pending" or spec.get("nodeName") else tuple(sorted(_model_labels(spec)))
    live = not ours and phase in ("Pending", "Running") and spec.get("nodeName")
    volumes = spec.get("volumes") or () if live else ()
    paths = tuple(sorted({str(one["hostPath"].get("path")) for one in volumes if one.get("hostPath")}))
    if not (ours or waits or paths):
        return None
    said, waiting, message = container_words(status) if ours else ("", "", "")
    return ModelPod(
        key_of(obj),
        metadata.get("uid", ""),
        spec.get("nodeName") or "",
        owners[0] if ours else "",
        phase,
        said,
        waiting,
        message,
        waits,
        paths,
        str(status.get("startTime") or metadata.get("creationTimestamp") or ""),
        epoch(metadata.get("creationTimestamp")),
    )


def _problem(text: object) -> str:
    return cut(printable(str(text)), LONGEST_PROBLEM)


def container_words(status: Object) -> tuple[str, str, str]:
    """What the only container said at its end, or else why it waits or how it ended."""
    for one in status.get("containerStatuses") or ():
        state = one.get("state") or {}
        if ended := state.get("terminated"):
            words = str(ended.get("message") or "")
            how = f"exit code {ended.get('exitCode')}: {words}" if words else f"exit code {ended.get('exitCode')}"
            return words, str(ended.get("reason") or "Error"), _problem(how)
        if waiting := state.get("waiting"):
            return "", str(waiting.get("reason") or ""), _problem(waiting.get("message") or "")
    scheduled = condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return "", str(scheduled.get("reason") or "Unschedulable"), _problem(scheduled.get("message") or "")
    if status.get("phase") == "Failed":
        return "", str(status.get("reason") or "PodFailed"), _problem(status.get("message") or "")
    return "", "", ""


def _model_labels(spec: Object) -> set[str]:
    keys = set(texts(spec.get("nodeSelector")))
    for term in required_terms((spec.get("affinity") or {}).get("nodeAffinity")):
        keys |= {str(one.get("key")) for one in term.get("matchExpressions") or ()}
    return {key for key in keys if key.startswith(names.PREFIX)}
