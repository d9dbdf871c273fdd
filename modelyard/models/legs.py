"""One node's part in the delivery of a model: from what is there to what is to be made, marked and awaited. Pure.

A node is asked to bring, check or remove the files by one Job at a time. What a Job said at its end goes into the
node's report, then the Job goes. So reports say how far everything is, and a Job that is lost is made again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from modelyard.models import jobs
from modelyard.models.detection import Facts, fill
from modelyard.models.errors import FetchError
from modelyard.models.jobs import CHECK, FETCH, REMOVE, Goal
from modelyard.models.settings import DeliverySettings
from modelyard.models.uri import LocalFolder, parse
from modelyard.models.world import (
    Delivered,
    JobOutcome,
    ModelJob,
    ModelNode,
    ModelPod,
    ReportEntry,
    StoredModel,
    Task,
    TransferProgress,
    has_files,
)
from modelyard.objects.documents import amount
from modelyard.objects.kinds import JOBS
from modelyard.reconcile.plan import Child, HandOver
from modelyard.resources.ome.models import BaseModelSpec

GRACE = 300.0
"""Seconds for which failures that may pass by themselves are not told as such."""
FIRST_RETRY, LONGEST_RETRY = 10.0, 60.0
"""Seconds between attempts meanwhile: doubled from the first to the longest."""
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0
"""Seconds between attempts at what has failed."""
GONE_AFTER = 600.0
"""Seconds after which a node that is not ready holds up nobody's deletion."""

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
    model (``None``: nothing). ``starts``: it would begin a Job that takes a turn at the source.
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


def deliver(wish: Wish, site: Site, now: float) -> Leg:
    """The part of a node that is to have the model."""
    model, goal, node = wish.model, wish.goal, site.node
    assert node is not None
    uid, nudge = model.subject.uid, model.nudge
    entry = site.entry if site.entry is not None and site.entry.delivered.uid == uid else None
    done = entry.delivered if entry is not None else Delivered()
    current = done.fingerprint == goal.fingerprint and done.root == goal.root
    nudged = nudge != done.nudge and nudge != ""
    ours = [job for job in site.jobs if job.task.uid == uid and job.task.fingerprint == goal.fingerprint]
    job = next((job for job in ours if job.task.purpose in (FETCH, CHECK) and not job.deleting), None)
    left = _left(done, wish)
    stale = tuple(
        gone(other)
        for other in site.jobs
        if other is not job and not other.deleting and not (other.task.purpose == REMOVE and other.task.root in left)
    )
    has_it = goal.fetches and current and entry is not None and entry.status == READY
    if has_it and not nudged and job is None:  # nearly all of a fleet, each time: nothing is made that is not needed
        leg = Leg(node.name, NodeStage.READY, "Delivered", "", READY, site.entry, delete=stale)
        if not node.ready:
            return replace(leg, stage=NodeStage.WAITING, reason="NodeNotReady", message="the node is not ready")
        if site.label != READY and goal.claim is None:
            return replace(leg, stage=NodeStage.ACTIVE, reason="Marking", message="its label is set")
        if max(done.verified, done.finished) < model.verify:
            start = _start(wish, site, CHECK, done, "Checking", "its files are checked against their manifest")
            return replace(start, stage=NodeStage.READY, label=READY, entry=site.entry, delete=stale)
        return _tidy(leg, wish, site, left, now) if left else leg
    leg = Leg(
        node.name, NodeStage.WAITING, "Queued", "waits for its turn at the source", delete=stale, entry=site.entry
    )
    said = replace(leg, label=UPDATING if site.label else None)

    if not goal.fetches:
        ready = _entry(wish, READY, replace_done(done, wish, reason="Vendor", left=left))
        told = site.label == READY and site.entry == ready
        if told and left:
            return _tidy(replace(leg, label=READY), wish, site, left, now)
        stage = NodeStage.READY if told else NodeStage.ACTIVE
        return replace(leg, stage=stage, reason="Vendor", message="brought by its vendor", label=READY, entry=ready)
    if job is not None and job.state != "Active":
        return _ended(wish, said, job, site, done, now)
    if not node.ready and job is None:
        return replace(said, reason="NodeNotReady", message="the node is not ready", entry=_updating(entry, wish, done))
    if job is not None:
        active = _active(said, job, site, wish, done)
        if job.task.purpose == CHECK:
            return replace(active, stage=NodeStage.READY, label=READY, entry=site.entry)
        return active
    if current and not nudged and done.failures and now < done.next and entry is not None:
        failed = entry.status == FAILED
        stage = NodeStage.FAILED if failed else NodeStage.ACTIVE
        wait = replace(said, stage=stage, reason=done.reason or "Failed", message=done.message, due=done.next)
        # What may pass soon is waited for; for what has failed somebody comes back.
        soon = () if failed else ("another attempt",)
        return replace(wait, label=FAILED if failed else UPDATING, awaits=soon)
    if stale:  # a Job for what was wanted before may still write: first it has to be gone
        halt = replace(
            said, reason="Stopping", message="what was wanted before is being stopped", awaits=("Jobs to stop",)
        )
        return replace(halt, entry=_updating(entry, wish, done))
    if any(other.deleting for other in site.jobs):
        return replace(said, reason="Stopping", message="a Job is being stopped", awaits=("Jobs to stop",))
    before = done if current else Delivered(left=left)
    start = _start(wish, site, FETCH, before, "Starting", "a Job is made for it")
    return replace(start, delete=stale)


def _left(done: Delivered, wish: Wish) -> tuple[str, ...]:
    """Roots where files of the model are that it does not have there any more."""
    if wish.goal.claim is not None:  # What is known of a claim stands where tenants write.
        return ()
    uri = wish.model.uri
    looked_at = isinstance(uri, LocalFolder) and done.path == wish.goal.path  # the very files that were fetched
    roots = dict.fromkeys((*done.left, done.root) if _fetched(done.uri) and not looked_at else done.left)
    if uri is not None and has_files(uri):
        roots.pop(wish.goal.root, None)
    return tuple(roots)[:8]


def _tidy(leg: Leg, wish: Wish, site: Site, left: tuple[str, ...], now: float) -> Leg:
    """A node that has what it is to have: what the model has left elsewhere goes, once no pod has it mounted."""
    leg = replace(leg, stage=NodeStage.READY, reason="Delivered", message="")
    assert site.entry is not None
    entry = site.entry.model_copy(update={"delivered": site.entry.delivered.model_copy(update={"left": left})})
    ours = [one for one in site.jobs if one.task.purpose == REMOVE and one.task.root in left]
    job = next((one for one in ours if not one.deleting), None)
    if job is None and not ours:
        made = _removal(wish, site, left[0], site.entry.delivered)
        return replace(leg, apply=(made.manifest,), awaits=("what it has left elsewhere",), entry=entry)
    if job is None or job.state == "Active":
        return replace(leg, awaits=("what it has left elsewhere",), entry=entry)
    if _said(job, site.pods.get(job.uid)).outcome == "Removed":
        rest = tuple(root for root in left if root != job.task.root)
        entry = entry.model_copy(update={"delivered": entry.delivered.model_copy(update={"left": rest})})
        return replace(leg, delete=(*leg.delete, gone(job)), entry=entry)
    again = (job.ended or now) + GRACE  # a pod has it mounted, say
    return replace(leg, delete=(*leg.delete, gone(job)) if now >= again else leg.delete, due=again, entry=entry)


def _removal(wish: Wish, site: Site, root: str, done: Delivered) -> jobs.Made:
    """The Job that removes what the model has below a root."""
    model = wish.model
    task = Task(
        purpose=REMOVE,
        node=site.name,
        uid=model.subject.uid,
        attempt=done.failures,
        namespace=model.key.namespace,
        root=root,
        path=done.path,
    )
    return jobs.make(model, wish.goal, task, wish.settings, wish.home, site.node, _in_use(site, root))


def no_room(site: Site) -> Leg:
    """The part of a node whose report is full: nothing is begun that could not be written down."""
    stale = tuple(gone(one) for one in site.jobs if not one.deleting)
    why = "the node's report (a ConfigMap) is full: delete models, or send fewer of them to this node"
    return Leg(site.name, NodeStage.FAILED, "ReportFull", why, delete=stale)


def stand_aside(leg: Leg, site: Site) -> Leg:
    """A part that would begin, but whose turn it is not yet: nothing is made, and no old word stands."""
    if leg.stage is NodeStage.READY:
        return replace(leg, apply=(), hand_over=(), awaits=(), reason="Delivered", message="", starts=False)
    entry = site.entry
    if entry is not None and entry.status == READY:
        entry = entry.model_copy(update={"status": UPDATING})
    label = UPDATING if site.label else None
    return Leg(leg.node, NodeStage.WAITING, "Queued", "waits for its turn at the source", label, entry, starts=True)


def remove(wish: Wish, site: Site, now: float) -> Leg:
    """The part of a node that is not to have the model (any more). A node that is gone holds up nothing."""
    model, node = wish.model, site.node
    leg = Leg(site.name, NodeStage.GONE, "Removed", "")
    alive = tuple(job for job in site.jobs if not job.deleting)
    if node is None:
        return replace(leg, delete=tuple(map(gone, alive)))
    done = site.entry.delivered if site.entry is not None else Delivered()
    roots = (*done.left, done.root) if done.root and _fetched(done.uri) else done.left
    job = next((one for one in alive if one.task.purpose == REMOVE and one.task.root in roots[:1]), None)
    stale = tuple(gone(one) for one in alive if one is not job)
    kept = model.retain or site.entry is None or not roots
    leg = replace(leg, stage=NodeStage.REMOVING, reason="Removing", message="its files are removed", entry=site.entry)
    lost = not node.ready and now - node.since > GONE_AFTER
    if stale or (not lost and any(one.deleting for one in site.jobs)):
        return replace(leg, delete=stale, awaits=("Jobs to stop",))
    if kept:
        left = replace(
            leg, stage=NodeStage.GONE, reason="Retained" if model.retain else "Removed", message="", entry=None
        )
        return replace(left, delete=(gone(job),) if job is not None else ())
    if lost and job is None:
        why = f"the node has not been ready for {GONE_AFTER / 60:.0f} minutes: its files are left there"
        return replace(leg, stage=NodeStage.GONE, reason="NodeGone", message=why, entry=None)
    if job is not None and job.state == "Active":
        if lost:
            return replace(leg, delete=(gone(job),), awaits=("Jobs to stop",))
        return replace(leg, awaits=(f"Job {job.key}",), job=job, pod=site.pods.get(job.uid))
    if job is not None:
        said = _said(job, site.pods.get(job.uid))
        if said.outcome == "Removed" and len(roots) > 1:
            rest = done.model_copy(update={"left": done.left[1:]})
            entry = (site.entry or ReportEntry()).model_copy(update={"delivered": rest, "status": UPDATING})
            return replace(leg, entry=entry, delete=(gone(job),), awaits=("its removal",))
        if said.outcome == "Removed":
            return replace(leg, stage=NodeStage.GONE, reason="Removed", message="", entry=None, delete=(gone(job),))
        after, _ = _failure(done, said, job.ended or now, site.name, model.subject.uid)
        entry = (site.entry or ReportEntry()).model_copy(update={"delivered": after, "status": UPDATING})
        return replace(
            leg, reason=after.reason, message=after.message, entry=entry, delete=(gone(job),), due=after.next
        )
    if not node.ready:
        return replace(leg, reason="NodeNotReady", message="the node is not ready", due=node.since + GONE_AFTER + 1)
    if users := _users(site, done.path):
        first = users[0]
        return replace(leg, reason="InUse", message=f"pod {first.key} has them mounted; they are removed when it ends")
    if done.failures and done.reason != "" and now < done.next:
        return replace(leg, reason=done.reason, message=done.message, due=done.next)
    made = _removal(wish, site, roots[0], done)
    return replace(leg, apply=(made.manifest,), awaits=("its removal",))


def replace_done(done: Delivered, wish: Wish, **update: Any) -> Delivered:
    """What is known of a node, now for this content."""
    goal, model = wish.goal, wish.model
    assert model.spec is not None
    identity = {
        "uid": model.subject.uid,
        "fingerprint": goal.fingerprint,
        "uri": model.spec.storage.storage_uri,
        "root": goal.root,
        "path": goal.path,
        "nudge": model.nudge,
    }
    return done.model_copy(update=identity | update)


def _entry(wish: Wish, status: str, done: Delivered, progress: TransferProgress | None = None) -> ReportEntry:
    config = _published(done) if status == READY else None
    return ReportEntry(name=wish.model.key.name, status=status, config=config, progress=progress, delivered=done)


def _published(done: Delivered) -> dict[str, Any] | None:
    """What was found, under the published names."""
    try:
        found = fill(
            BaseModelSpec.model_validate({"storage": {"storageUri": done.uri}}), Facts.model_validate(done.facts)
        )
    except ValueError:
        return None
    config = found.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"storage"})
    if "modelConfiguration" in config:
        config["decodedModelConfiguration"] = config.pop("modelConfiguration")
    if done.revision:
        config["artifact"] = {"sha": done.revision, "parentPath": {}, "childrenPaths": []}
    return config or None


def _updating(entry: ReportEntry | None, wish: Wish, done: Delivered) -> ReportEntry | None:
    """What is not Ready any more does not say so."""
    if entry is None or entry.status != READY or done.fingerprint == wish.goal.fingerprint:
        return entry
    return entry.model_copy(update={"status": UPDATING})


def _start(wish: Wish, site: Site, purpose: str, done: Delivered, reason: str, message: str) -> Leg:
    model, goal = wish.model, wish.goal
    assert site.node is not None
    task = Task(
        purpose=purpose,
        node=site.name,
        uid=model.subject.uid,
        fingerprint=goal.fingerprint,
        attempt=done.failures,
        source=model.source,
        namespace=model.key.namespace,
        root=goal.root,
        path=goal.path,
        verify=model.verify,
        nudge=model.nudge,
    )
    made = jobs.make(model, goal, task, wish.settings, wish.home, site.node, _in_use(site, goal.root))
    status = UPDATING if not done.failed else FAILED
    entry = _entry(wish, status, replace_done(done, wish, nudge=done.nudge))
    return Leg(
        site.name,
        NodeStage.ACTIVE,
        reason,
        message,
        status,
        entry,
        (made.manifest,),
        made.hand_over,
        awaits=(f"Job on {site.name}",),
        starts=True,
    )


def _active(said: Leg, job: ModelJob, site: Site, wish: Wish, done: Delivered) -> Leg:
    """A Job is there and has not ended."""
    pod = site.pods.get(job.uid)
    status = FAILED if done.failed and done.fingerprint == wish.goal.fingerprint else UPDATING
    entry = site.entry
    if entry is None or done.fingerprint != wish.goal.fingerprint:
        entry = _entry(wish, status, replace_done(Delivered(left=_left(done, wish)), wish, nudge=done.nudge))
    elif site.progress is not None:
        entry = entry.model_copy(update={"progress": site.progress})
    reason, message = "Downloading", told(entry.progress) if entry.progress is not None else "its files are fetched"
    again: tuple[HandOver, ...] = ()
    if pod is None or (not pod.node and not pod.waiting):
        reason, message = "Pending", "its Job has no pod on the node yet"
    elif pod.waiting and pod.waiting not in ("ContainerCreating", "PodInitializing"):
        reason, message = pod.waiting, pod.message
    if pod is not None and pod.phase == "Pending":
        again = jobs.credentials(wish.model, job.task, job.key, wish.home)
        if job.missing and again:
            reason, message = "SecretNotFound", f"{job.missing}: create it, or correct spec.storage.key"
    return replace(
        said,
        stage=NodeStage.ACTIVE,
        reason=reason,
        message=message,
        label=status,
        entry=entry,
        hand_over=again,
        awaits=(f"Job {job.key}",),
        job=job,
        pod=pod,
    )


def _ended(wish: Wish, said: Leg, job: ModelJob, site: Site, done: Delivered, now: float) -> Leg:
    """A Job has ended: what it said is written down, then it goes."""
    pod = site.pods.get(job.uid)
    outcome, ended = _said(job, pod), job.ended or now
    leg = replace(said, delete=(*said.delete, gone(job)), job=job, pod=pod)
    if outcome.outcome == "Fetched":
        kept = {"revision", "manifest_sha256", "bytes", "files", "seconds", "fetched_bytes", "from_store", "facts"}
        update = {name: getattr(outcome, name) for name in (*kept, "facts_error")}
        update |= {"finished": ended, "verified": 0.0, "nudge": job.task.nudge}
        entry = _entry(wish, READY, replace_done(Delivered(left=_left(done, wish)), wish, **update))
        return replace(
            leg, stage=NodeStage.ACTIVE, reason="Marking", message="it is written down", label=READY, entry=entry
        )
    if outcome.outcome == "Verified" and job.task.purpose == CHECK:
        entry = _entry(wish, READY, done.model_copy(update={"verified": max(ended, job.task.verify)}))
        return replace(leg, stage=NodeStage.READY, reason="Delivered", message="", label=READY, entry=entry)
    if job.task.purpose == CHECK:
        if outcome.retryable and outcome.reason not in ("Damaged", "Corrupt"):  # the check itself could not be made
            entry = _entry(wish, READY, done.model_copy(update={"verified": max(ended, job.task.verify)}))
            return replace(leg, stage=NodeStage.READY, reason="Delivered", message="", label=READY, entry=entry)
        damaged = {"fingerprint": "", "reason": "FilesChanged", "message": outcome.message or "its files have changed"}
        entry = _entry(wish, UPDATING, done.model_copy(update=damaged))
        return replace(leg, reason="FilesChanged", message=str(damaged["message"]), label=UPDATING, entry=entry)
    base = done if done.fingerprint == wish.goal.fingerprint else Delivered(left=_left(done, wish))
    after, failed = _failure(base, outcome, ended, site.name, wish.model.subject.uid)
    after = replace_done(after, wish, nudge=job.task.nudge)
    status = FAILED if failed else UPDATING
    return replace(
        leg,
        stage=NodeStage.FAILED if failed else NodeStage.ACTIVE,
        reason=after.reason,
        message=after.message,
        label=status,
        entry=_entry(wish, status, after),
        due=after.next,
    )


def _said(job: ModelJob, pod: ModelPod | None) -> JobOutcome:
    """What a Job that has ended says; one whose pod is gone or was killed has no words of its own."""
    if pod is not None and (found := JobOutcome.read(pod.report)) is not None:
        return found
    if pod is None:
        return JobOutcome(
            outcome="Failed", reason="PodLost", message="its pod is gone, and what it said", retryable=True
        )
    text = f"{pod.waiting}: {pod.message}" if pod.message else job.message
    return JobOutcome(outcome="Failed", reason=pod.waiting or job.reason or "PodFailed", message=text, retryable=True)


def _failure(done: Delivered, said: JobOutcome, ended: float, node: str, uid: str) -> tuple[Delivered, bool]:
    """What to remember of a failure, and whether it is told as one: not while it may pass by itself, at first."""
    since = done.failing if done.failures else ended
    failed = not said.retryable or ended - since >= GRACE or done.failed > 0
    if failed:
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(done.failed, 10))
    else:
        pause = min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** min(done.failures, 10))
    seed = hashlib.sha256(f"{uid} {node} {done.failures}".encode()).digest()[0]
    pause = max(pause * (0.9 + 0.2 * seed / 255), said.retry_after or 0.0)
    update = {
        "failures": done.failures + 1,
        "failed": done.failed + failed,
        "failing": since,
        "next": ended + pause,
        "reason": said.reason or "Failed",
        "message": said.message or "",
    }
    return done.model_copy(update=update), failed


def _fetched(uri: str) -> bool:
    """Whether files were brought for this URI, which has been read before."""
    try:
        return has_files(parse(uri))
    except FetchError:
        return False


def _users(site: Site, path: str) -> list[ModelPod]:
    """Pods of the node that have the files mounted."""
    return [pod for pod in site.users if any(_overlaps(mount, path) for mount in pod.mounts)]


def _overlaps(mount: str, path: str) -> bool:
    mount = mount.rstrip("/")
    return path == mount or path.startswith(f"{mount}/") or mount.startswith(f"{path}/")


def _in_use(site: Site, root: str) -> tuple[str, ...]:
    """Paths below the root that pods have mounted, each since the first of them."""
    since: dict[str, str] = {}
    for pod in site.users:
        for mount in pod.mounts:
            if _overlaps(mount, root):
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
    return Child(JOBS, job.key, job.uid)


def sum_of(legs: Iterable[Leg], stage: NodeStage) -> int:
    """How many parts are so far."""
    return sum(leg.stage is stage for leg in legs)
