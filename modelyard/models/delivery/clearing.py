"""One node's part where files of a model are to go: all of them, or what it has left in another root. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from modelyard.models.delivery import jobs
from modelyard.models.delivery.jobs import REMOVE
from modelyard.models.delivery.legs import (
    GONE_AFTER,
    GRACE,
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
    users,
)
from modelyard.models.delivery.running import Task
from modelyard.models.delivery.world import Delivered, ReportEntry


def remove(wish: Wish, site: Site, now: float) -> Leg:
    """The part of a node that is not to have the model (any more). A node that is gone holds up nothing.

    A run creates the Job that removes the files, and does not stay for it: the reconcile shift does the rest.
    """
    model, node = wish.model, site.node
    leg = Leg(site.name, NodeStage.GONE, "Removed", "")
    alive = tuple(job for job in site.jobs if not job.deleting)
    if node is None:
        return replace(leg, delete=tuple(map(gone, alive)))
    done = site.entry.delivered if site.entry is not None else Delivered()
    roots = (*done.left, done.root) if done.root and fetched(done.uri) else done.left
    job = next((one for one in alive if one.task.purpose == REMOVE and one.task.root in roots[:1]), None)
    stale = tuple(gone(one) for one in alive if one is not job)
    kept = model.retain or site.entry is None or not roots
    leg = replace(leg, stage=NodeStage.REMOVING, reason="Removing", message="its files are removed", entry=site.entry)
    lost = not node.ready and now - node.since > GONE_AFTER
    if stale or (not lost and any(one.deleting for one in site.jobs)):
        return replace(leg, delete=stale)
    if kept:
        reason, delete = "Retained" if model.retain else "Removed", (gone(job),) if job is not None else ()
        return replace(leg, stage=NodeStage.GONE, reason=reason, message="", entry=None, delete=delete)
    if lost and job is None:
        why = f"the node has not been ready for {GONE_AFTER / 60:.0f} minutes: its files are left there"
        return replace(leg, stage=NodeStage.GONE, reason="NodeGone", message=why, entry=None)
    if job is not None and job.state == "Active":
        if lost:
            return replace(leg, delete=(gone(job),))
        return replace(leg, job=job, pod=site.pods.get(job.uid))
    if job is not None:
        said = outcome_of(job, site.pods.get(job.uid))
        if said.outcome == "Removed" and len(roots) > 1:
            rest = done.model_copy(update={"left": done.left[1:]})
            entry = (site.entry or ReportEntry()).model_copy(update={"delivered": rest, "status": UPDATING})
            return replace(leg, entry=entry, delete=(gone(job),))
        if said.outcome == "Removed":
            return replace(leg, stage=NodeStage.GONE, reason="Removed", message="", entry=None, delete=(gone(job),))
        before = done if done.fingerprint == REMOVE else done.model_copy(update={"failures": 0, "failed": 0})
        after, _ = failure(before, said, job.ended or now, site.name, model.subject.uid)
        after = after.model_copy(update={"fingerprint": REMOVE})
        entry = (site.entry or ReportEntry()).model_copy(update={"delivered": after, "status": UPDATING})
        return replace(
            leg, reason=after.reason, message=after.message, entry=entry, delete=(gone(job),), due=after.next
        )
    if not node.ready:
        return replace(leg, reason="NodeNotReady", message="the node is not ready", due=node.since + GONE_AFTER + 1)
    if having := users(site, done.path):
        first = having[0]
        return replace(leg, reason="InUse", message=f"pod {first.key} has them mounted; they are removed when it ends")
    # The pause after a failed fetch holds up no removal.
    if done.fingerprint == REMOVE and now < done.next:
        return replace(leg, reason=done.reason, message=done.message, due=done.next)
    return replace(leg, apply=(_removal(wish, site, roots[0], done),))


def stand_aside(leg: Leg) -> Leg:
    """A part that would begin to remove files while too many others of its namespace do."""
    message = "waits until other removals of its namespace have ended"
    return replace(leg, apply=(), hand_over=(), reason="Queued", message=message)


def tidy(leg: Leg, wish: Wish, site: Site, left: tuple[str, ...], now: float) -> Leg:
    """A node that has what it is to have: what the model has left elsewhere goes, once no pod has it mounted."""
    leg = replace(leg, stage=NodeStage.READY, reason="Delivered", message="")
    assert site.entry is not None
    entry = site.entry.model_copy(update={"delivered": site.entry.delivered.model_copy(update={"left": left})})
    ours = [one for one in site.jobs if one.task.purpose == REMOVE and one.task.root in left]
    job = next((one for one in ours if not one.deleting), None)
    if job is None and not ours:
        return replace(leg, apply=(_removal(wish, site, left[0], site.entry.delivered),), entry=entry)
    if job is None or job.state == "Active":
        return replace(leg, entry=entry)
    if outcome_of(job, site.pods.get(job.uid)).outcome == "Removed":
        rest = tuple(root for root in left if root != job.task.root)
        entry = entry.model_copy(update={"delivered": entry.delivered.model_copy(update={"left": rest})})
        return replace(leg, delete=(*leg.delete, gone(job)), entry=entry)
    again = (job.ended or now) + GRACE  # a pod has it mounted, say
    return replace(leg, delete=(*leg.delete, gone(job)) if now >= again else leg.delete, due=again, entry=entry)


def _removal(wish: Wish, site: Site, root: str, done: Delivered) -> Mapping[str, Any]:
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
    return jobs.make(model, wish.goal, task, wish.settings, wish.home, site.node, in_use(site, root)).manifest
