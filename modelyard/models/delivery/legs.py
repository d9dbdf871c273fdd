"""One node's part in the delivery of a model: from what is there to what is to be made, marked and awaited. Pure.

A node is asked to bring, check or remove the files by one Job at a time. What a Job said at its end goes into the
node's report, then the Job goes. So reports say how far everything is, and a Job that is lost is made again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from modelyard.backoff import Backoff
from modelyard.models.delivery.jobs import Goal
from modelyard.models.delivery.running import JobOutcome, ModelJob, ModelPod
from modelyard.models.delivery.world import Delivered, ModelNode, ReportEntry, StoredModel, TransferProgress, has_files
from modelyard.models.storage import CONFIG_MAP, DeliverySettings, FetchError, overlap, parse
from modelyard.objects import JOBS, Key, amount
from modelyard.reconcile.plans import Child, HandOver, Presence, Store

GRACE = 300.0
"""Seconds for which failures that may pass by themselves are not told as such."""
RETRIES = Backoff(10.0, longest=60.0)
"""Delays between attempts within the grace period."""
RETRIES_OF_FAILED = Backoff(60.0, longest=3600.0)
"""Delays between attempts at what is reported as failed."""
_BROKEN = re.compile(r"exit code [12]\b")
"""Ends of a program that could not report: options it does not know, or a module that cannot be loaded."""
_SETTINGS = f"ConfigMap {CONFIG_MAP}"
STARTING = 60.0
"""Seconds for which a run waits for a Job's pod to start or end; a longer wait is for a node, a quota or an image."""
GONE_AFTER = 600.0
"""Seconds after which a node that is not ready holds up nobody's deletion."""

PERSON = frozenset(("SecretNotFound", "SecretForbidden", "ClaimNotFound"))
"""Reasons of a model that waits for a person."""

READY, UPDATING, FAILED = "Ready", "Updating", "Failed"
"""Values of a node's label and of the status in its report, as published."""


class NodeStage(StrEnum):
    """How far a node is."""

    READY = "Ready"
    ACTIVE = "Active"
    WAITING = "Waiting"
    FAILED = "Failed"
    REMOVING = "Removing"
    GONE = "Gone"


@dataclass(frozen=True, slots=True)
class Leg:
    """One node's part: how far it is, and what follows. ``label`` and ``entry`` are what the node should say of the
    model (``None``: nothing). ``starts``: it would begin a Job that takes a turn at the source. ``awaits`` is what a
    run stays for, ``needs`` are the Secrets that it depends on.
    """

    node: str
    stage: NodeStage
    reason: str
    message: str
    label: str | None = None
    entry: ReportEntry | None = None
    apply: tuple[Mapping[str, Any], ...] = ()
    hand_over: tuple[HandOver, ...] = ()
    delete: tuple[Child, ...] = ()
    awaits: tuple[str, ...] = ()
    needs: tuple[Key, ...] = ()
    due: float | None = None
    starts: bool = False
    job: ModelJob | None = None
    pod: ModelPod | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """What a node looks like to a model: what it says of it, the Jobs there, and what pods have mounted."""

    name: str
    node: ModelNode | None
    label: str | None
    entry: ReportEntry | None
    jobs: tuple[ModelJob, ...] = ()
    pods: Mapping[str, ModelPod] = field(default_factory=dict)
    """The pod of each Job, by the Job's uid."""
    users: tuple[ModelPod, ...] = ()
    progress: TransferProgress | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What a model asks of its nodes."""

    model: StoredModel
    goal: Goal
    settings: DeliverySettings
    home: str
    lacks: str = ""
    """What its Jobs are to mount and could not."""
    secrets: Store[Presence] | None = None
    """Presence of the Secrets that were looked up; ``None``: nobody looks them up."""

    def presence(self, secret: Key) -> Presence | None:
        return self.secrets.get(secret) if self.secrets is not None else None


def outcome_of(job: ModelJob, pod: ModelPod | None) -> JobOutcome:
    """What a Job that has ended says; one whose pod is gone or was killed has no words of its own."""
    if pod is not None and (found := JobOutcome.read(pod.report)) is not None:
        return found
    if job.reason == "DeadlineExceeded":
        text = f"the Job did not end within its time; the next one continues; deliveryDeadline in {_SETTINGS} limits it"
        return JobOutcome(outcome="Failed", reason=job.reason, message=text, retryable=True)
    if pod is None:
        return JobOutcome(
            outcome="Failed", reason="PodLost", message="its pod is gone, and what it said", retryable=True
        )
    text = f"{pod.waiting}: {pod.message}" if pod.message else job.message
    if _BROKEN.match(pod.message):
        text += f"; the program in the image of the Jobs is broken or another version: check image in {_SETTINGS}"
        return JobOutcome(outcome="Failed", reason="ProgramFailed", message=text)
    return JobOutcome(outcome="Failed", reason=pod.waiting or job.reason or "PodFailed", message=text, retryable=True)


def failure(done: Delivered, said: JobOutcome, ended: float, node: str, uid: str) -> tuple[Delivered, bool]:
    """What to remember of a failure, and whether it is told as one: not while it may pass by itself, at first."""
    since = done.failing if done.failures else ended
    failed = not said.retryable or ended - since >= GRACE or done.failed > 0
    backoff, failures = (RETRIES_OF_FAILED, done.failed) if failed else (RETRIES, done.failures)
    seed = hashlib.sha256(f"{uid} {node} {done.failures}".encode()).digest()[0]
    pause = max(backoff.delay(failures + 1, 0.9 + 0.2 * seed / 255), said.retry_after or 0.0)
    update = {
        "failures": done.failures + 1,
        "failed": done.failed + failed,
        "failing": since,
        "next": ended + pause,
        "reason": said.reason or "Failed",
        "message": said.message or "",
    }
    return done.model_copy(update=update), failed


def fetched(uri: str) -> bool:
    """Whether files were brought for this URI, which has been read before."""
    try:
        return has_files(parse(uri))
    except FetchError:
        return False


def users(site: Site, path: str) -> list[ModelPod]:
    """Pods of the node that have the files mounted."""
    return [pod for pod in site.users if any(overlap(mount, path) for mount in pod.mounts)]


def in_use(site: Site, root: str) -> tuple[str, ...]:
    """Paths below the root that pods have mounted, each since the first of them."""
    since: dict[str, str] = {}
    for pod in site.users:
        for mount in pod.mounts:
            if overlap(mount, root):
                since[mount] = min(since.get(mount, pod.started), pod.started)
    return tuple(f"{path}@{start}" if start else path for path, start in sorted(since.items()))


def told(progress: TransferProgress) -> str:
    """A transfer in words."""
    again = f"; tried again: {progress.trouble}" if progress.trouble else ""
    if progress.total_bytes <= 0:
        return f"the source is asked what there is{again}"
    share = f" ({progress.completed_bytes * 100 // progress.total_bytes} %)"
    speed = f", {progress.speed_bytes_per_sec / 1e6:.1f} MB/s" if progress.speed_bytes_per_sec else ""
    return f"{amount(progress.completed_bytes)} of {amount(progress.total_bytes)}{share}{speed}{again}"


def gone(job: ModelJob) -> Child:
    """A Job that is to go, with its pod and its Secret. It is there until its pod, which may still write, has ended."""
    return Child(JOBS, job.key, job.uid, earlier=job.task.uid)
