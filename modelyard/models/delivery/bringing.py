"""One node's part where a model's files are to be: fetched, marked, checked, tried again. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from modelyard.models.delivery import jobs
from modelyard.models.delivery.clearing import tidy
from modelyard.models.delivery.jobs import CHECK, FETCH, REMOVE
from modelyard.models.delivery.legs import (
    FAILED,
    READY,
    STARTING,
    UPDATING,
    Leg,
    NodeStage,
    Site,
    Wish,
    failure,
    fetched,
    gone,
    in_use,
    outcome_of,
    told,
)
from modelyard.models.delivery.running import ModelJob, Task
from modelyard.models.delivery.world import Delivered, ReportEntry, has_files
from modelyard.models.detection import Facts, fill
from modelyard.models.storage import LocalFolder
from modelyard.objects import Key
from modelyard.reconcile.plans import HandOver, Presence
from modelyard.resources.ome import BaseModelSpec

SOON = 30.0
"""Seconds for which a run stays for the next attempt."""


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
        # What is asked for is told in whole seconds: in the second in which the fetching ended it was asked for after.
        if done.verified < model.verify and int(done.finished) <= model.verify:
            start = _start(wish, site, CHECK, done, "Checking", "its files are checked against their manifest")
            return replace(start, stage=NodeStage.READY, label=READY, entry=site.entry, delete=stale)
        return tidy(leg, wish, site, left, now) if left else leg
    leg = Leg(
        node.name, NodeStage.WAITING, "Queued", "waits for its turn at the source", delete=stale, entry=site.entry
    )
    said = replace(leg, label=UPDATING if site.label else None)

    if not goal.fetches:
        ready = _entry(wish, READY, replace_done(done, wish, reason="Vendor", left=left))
        told = site.label == READY and site.entry == ready
        if told and left:
            return tidy(replace(leg, label=READY), wish, site, left, now)
        stage = NodeStage.READY if told else NodeStage.ACTIVE
        return replace(leg, stage=stage, reason="Vendor", message="brought by its vendor", label=READY, entry=ready)
    if job is not None and job.state != "Active":
        return _ended(wish, said, job, site, done, now)
    if not node.ready and job is None:
        return replace(said, reason="NodeNotReady", message="the node is not ready", entry=_updating(entry, wish, done))
    if job is not None:
        active = _active(said, job, site, wish, done, now)
        if job.task.purpose == CHECK:
            return replace(active, stage=NodeStage.READY, label=READY, entry=site.entry)
        return active
    if current and not nudged and done.failures and now < done.next and entry is not None:
        failed = entry.status == FAILED
        stage = NodeStage.FAILED if failed else NodeStage.ACTIVE
        wait = replace(said, stage=stage, reason=done.reason or "Failed", message=done.message, due=done.next)
        # What may pass in a moment is waited for; later attempts are another run's.
        soon = ("another attempt",) if not failed and done.next - now <= SOON else ()
        return replace(wait, label=FAILED if failed else UPDATING, awaits=soon)
    if stale:  # a Job for what was wanted before may still write: first it has to be gone
        said = replace(said, entry=_updating(entry, wish, done))
        why = "what was wanted before is being stopped"
        return replace(said, reason="Stopping", message=why, awaits=("Jobs to stop",))
    if any(other.deleting for other in site.jobs):
        return replace(said, reason="Stopping", message="a Job is being stopped", awaits=("Jobs to stop",))
    if wish.lacks:
        return replace(said, reason="CABundleNotFound", message=wish.lacks, entry=_updating(entry, wish, done))
    if (waiting := _without_secret(said, wish, _updating(entry, wish, done))) is not None:
        return waiting
    before = done if current else Delivered(left=left)
    start = _start(wish, site, FETCH, before, "Starting", "its Job is created next")
    return replace(start, delete=stale)


def _without_secret(said: Leg, wish: Wish, entry: ReportEntry | None) -> Leg | None:
    """The part of a node that waits for the model's Secret: nothing is made; ``None``: it waits for none."""
    secret = jobs.secret_of(wish.model, wish.home)
    presence = wish.presence(secret) if secret is not None else None
    if secret is None or presence in (None, Presence.PRESENT):
        return None
    reason, message = _of_secret(secret, presence)
    return replace(said, reason=reason, message=message, entry=entry, needs=(secret,))


def _of_secret(secret: Key, presence: Presence) -> tuple[str, str]:
    if presence is Presence.ABSENT:
        return "SecretNotFound", f"Secret {secret} does not exist: create it, or correct spec.storage.key"
    if presence is Presence.FORBIDDEN:
        grant = "let its ServiceAccount get this Secret, or correct spec.storage.key"
        return "SecretForbidden", f"Secret {secret} may not be read by Modelyard: {grant}"
    return "Queued", f"Secret {secret} is looked up next"


def _left(done: Delivered, wish: Wish) -> tuple[str, ...]:
    if wish.goal.claim is not None:  # What is known of a claim stands where tenants write.
        return ()
    uri = wish.model.uri
    looked_at = isinstance(uri, LocalFolder) and done.path == wish.goal.path  # the very files that were fetched
    roots = dict.fromkeys((*done.left, done.root) if fetched(done.uri) and not looked_at else done.left)
    if uri is not None and has_files(uri):
        roots.pop(wish.goal.root, None)
    return tuple(roots)[:8]


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


def _entry(wish: Wish, status: str, done: Delivered) -> ReportEntry:
    config = _published(done) if status == READY else None
    return ReportEntry(name=wish.model.key.name, status=status, config=config, delivered=done)


def _published(done: Delivered) -> dict[str, Any] | None:
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
    progress = site.entry.progress if site.entry is not None and done.fingerprint == goal.fingerprint else None
    size = progress.total_bytes if purpose == FETCH and progress is not None and progress.total_bytes > 0 else None
    made = jobs.make(model, goal, task, wish.settings, wish.home, site.node, in_use(site, goal.root), size)
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
        needs=tuple(given.secret for given in made.hand_over if given.secret is not None),
        starts=True,
    )


def _active(said: Leg, job: ModelJob, site: Site, wish: Wish, done: Delivered, now: float) -> Leg:
    pod = site.pods.get(job.uid)
    status = FAILED if done.failed and done.fingerprint == wish.goal.fingerprint else UPDATING
    entry = site.entry
    if entry is None or done.fingerprint != wish.goal.fingerprint:
        entry = _entry(wish, status, replace_done(Delivered(left=_left(done, wish)), wish, nudge=done.nudge))
    elif site.progress is not None:
        entry = entry.model_copy(update={"progress": site.progress})
    reason, message = "Downloading", told(entry.progress) if entry.progress is not None else "its files are fetched"
    again: tuple[HandOver, ...] = ()
    needs: tuple[Key, ...] = ()
    # What a person or the cluster has to mend may take days: a run that waited for it would keep others from theirs.
    waits = (pod is not None and pod.phase == "Running") or now < job.created + STARTING
    if pod is None or (not pod.node and not pod.waiting):
        reason, message = "Pending", "its Job has no pod on the node yet"
    elif pod.report:  # for people, not as the program wrote it; the Job ends in a moment
        reason, message = "Marking", "its pod has ended, and its result is read next"
    elif pod.waiting and pod.waiting not in ("ContainerCreating", "PodInitializing"):
        reason, message = pod.waiting, pod.message
    elif pod.phase == "Pending":
        reason, message = ("CABundleNotFound", wish.lacks) if wish.lacks else ("Starting", "its pod is being prepared")
    if pod is not None and pod.phase == "Pending":
        for given in jobs.credentials(wish.model, job.task, job.key, wish.home):
            copy = Key(job.key.namespace, given.name)
            needs = (copy,) if given.secret is None else (given.secret, copy)
            presence = wish.presence(given.secret) if given.secret is not None else None
            if presence not in (None, Presence.PRESENT):
                assert given.secret is not None
                (reason, message), waits = _of_secret(given.secret, presence), False
            elif wish.presence(copy) is not Presence.PRESENT:  # the run before may have died before it handed it over
                again = (given,)
                if job.missing and presence is None:
                    reason, message = "SecretNotFound", f"{job.missing}: create it, or correct spec.storage.key"
    return replace(
        said,
        stage=NodeStage.ACTIVE,
        reason=reason,
        message=message,
        label=status,
        entry=entry,
        hand_over=again,
        awaits=(f"Job {job.key}",) if waits else (),
        needs=needs,
        job=job,
        pod=pod,
    )


def _ended(wish: Wish, said: Leg, job: ModelJob, site: Site, done: Delivered, now: float) -> Leg:
    pod = site.pods.get(job.uid)
    outcome, ended = outcome_of(job, pod), job.ended or now
    leg = replace(said, delete=(*said.delete, gone(job)), job=job, pod=pod)
    if outcome.outcome == "Fetched":
        update = outcome.model_dump(exclude={"outcome", "reason", "message", "retryable", "retry_after"})
        update |= {"finished": ended, "verified": 0.0, "nudge": job.task.nudge}
        entry = _entry(wish, READY, replace_done(Delivered(left=_left(done, wish)), wish, **update))
        return replace(
            leg, stage=NodeStage.ACTIVE, reason="Marking", message="it is written down", label=READY, entry=entry
        )
    if job.task.purpose == CHECK:
        is_unmade = outcome.retryable and outcome.reason not in ("Damaged", "Corrupt")  # the check could not be made
        if outcome.outcome == "Verified" or is_unmade:
            entry = _entry(wish, READY, done.model_copy(update={"verified": max(ended, job.task.verify)}))
            return replace(leg, stage=NodeStage.READY, reason="Delivered", message="", label=READY, entry=entry)
        damaged = {"fingerprint": "", "reason": "FilesChanged", "message": outcome.message or "its files have changed"}
        entry = _entry(wish, UPDATING, done.model_copy(update=damaged))
        return replace(leg, reason="FilesChanged", message=str(damaged["message"]), label=UPDATING, entry=entry)
    base = done if done.fingerprint == wish.goal.fingerprint else Delivered(left=_left(done, wish))
    after, failed = failure(base, outcome, ended, site.name, wish.model.subject.uid)
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
