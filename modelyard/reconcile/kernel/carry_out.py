"""Carry plans out: the one place that writes, in the one order, so that a kill at any line is harmless.

Memory first: at worst a delay starts again (where that would harm, a plan asks for ``status_first``). Then what was
decided, then what it takes: a successor finds the intent, sees the cluster lagging and finishes the move; the reverse
order would make it undo one. Each plan is on its own; one that fails is reported and tried again by the next look.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from modelyard.cluster import WRITE_ATTEMPTS, AlreadyExists, Cluster, ClusterError, Conflict, Invalid, NotFound, Object
from modelyard.fairness import interleave
from modelyard.objects import (
    LONGEST_MESSAGE,
    LONGEST_NAME,
    SECRETS,
    Key,
    ResourceType,
    WorkloadId,
    controller_of,
    counted,
    cut,
    printable,
    removal_of_added_entries,
)
from modelyard.reconcile.kernel.fence import Fence, NotTheWriter
from modelyard.reconcile.plans import (
    CLAIM,
    FAILED,
    MISSING,
    OWNER,
    WHOLE_MAPS,
    Child,
    HandOver,
    Mark,
    Plan,
    Ref,
    Scale,
    Subject,
    status as statuses,
)

log = logging.getLogger(__name__)

CONCURRENCY = 16
MOST_PLANS = 500
"""Plans of one namespace that are carried out at a time. What is left is still to be written at the next look."""
MOST_DEEDS = 100
"""Marks of one plan that are carried out at a time, and deletions; the rest follows at the next look.

A tenant can forge any number of children, and a tick, or a run that objects share, waits for all of its plans.
"""


@dataclass
class Outcome:
    """What became of plans, by the objects they were about."""

    scaled: dict[tuple[Ref, WorkloadId], tuple[int, int]] = field(default_factory=dict)
    """(object, workload): (replicas before, replicas written)"""
    written: set[Ref] = field(default_factory=set)
    """objects whose status was written"""
    skipped: dict[Ref, str] = field(default_factory=dict)
    """what was left because the world had moved on"""
    errors: dict[Ref, str] = field(default_factory=dict)


async def carry_out(cluster: Cluster, plans: Iterable[Plan], fence: Fence) -> Outcome:
    """Write what the plans ask for, each namespace in its turn, what scales first.

    Raises ``NotTheWriter`` as soon as the fence says so, and nothing else.
    """
    outcome = Outcome()
    gate = asyncio.Semaphore(CONCURRENCY)
    urgent = sorted((plan for plan in plans if plan.writes), key=lambda plan: not plan.scales)
    due, beyond = interleave(urgent, lambda plan: plan.subject.key.namespace, MOST_PLANS)
    for namespace, count in Counter(plan.subject.key.namespace for plan in beyond).items():
        log.warning(
            "%s: %d writes are beyond its share of %d; they wait", namespace or "the cluster", count, MOST_PLANS
        )

    async def one(plan: Plan) -> None:
        async with gate:
            fence.check()
            await _CarryOut(cluster, plan, fence, outcome).run()

    tasks = [asyncio.create_task(one(plan)) for plan in due]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return outcome


async def note_failure(cluster: Cluster, plan: Plan, why: str, fence: Fence) -> None:
    """Keep with the plan's object what could not be done for it. Raises ``NotTheWriter``."""
    if plan.noted:
        await _CarryOut(cluster, plan, fence, Outcome()).note_failure(why)


def is_gone(error: ClusterError) -> bool:
    """Whether a write that names the object's uid failed because that object is not there any more.

    A new object of the same name is a conflict to some API servers and an invalid change of the uid to others.
    """
    if isinstance(error, Invalid):
        return any(cause.field == "metadata.uid" for cause in error.causes)
    return isinstance(error, NotFound | Conflict)


class _Stop(Exception):
    """The rest of this plan is not to be carried out; why has been noted."""


@dataclass
class _CarryOut:
    """The writes of one plan. ``current`` is the object as it was last seen, if it was."""

    cluster: Cluster
    plan: Plan
    fence: Fence
    outcome: Outcome
    current: Object | None = None

    @property
    def subject(self) -> Subject:
        return self.plan.subject

    async def run(self) -> None:
        plan = self.plan
        first, second = (self._publish, self._remember) if plan.status_first else (self._remember, self._publish)
        try:
            if plan.finalizer:
                await self._finalize(True)
            await first()
            await second()
            if plan.acts and self.subject.uid:
                await self._still_wanted()
            if plan.fill:
                await self._fill()
            marks, deleted = plan.marks[:MOST_DEEDS], plan.delete[:MOST_DEEDS]
            for mark in marks:
                await self._mark(mark)
            for manifest in plan.apply:
                await self._apply(manifest)
            for hand_over in plan.hand_over:
                await self._hand_over(hand_over)
            for child in deleted:
                await self._delete(child)
            for scale in plan.scales:
                try:
                    await self._scale(scale)
                except ClusterError as error:  # the other workloads' shares are still right
                    self._fail(str(error))
            if left := len(plan.marks) + len(plan.delete) - len(marks) - len(deleted):
                self._skip(f"{counted(left, 'mark or deletion', 'marks and deletions')} follow at the next look")
            elif plan.finalizer is False:
                await self._finalize(False)
        except _Stop:
            pass
        except ClusterError as error:
            self._fail(str(error))
        except NotTheWriter:
            raise
        except Exception as error:  # one object's failure is never another's
            self._fail(f"{type(error).__name__}: {error}")
            log.exception("%s", self.subject.ref)
        if self.plan.noted and (why := self.outcome.errors.get(self.subject.ref)):
            await self.note_failure(why)

    async def note_failure(self, text: str) -> None:
        why, subject = cut(printable(text), LONGEST_MESSAGE), self.subject
        if why == subject.failed:
            return
        note = {"metadata": {"uid": subject.uid, "annotations": {FAILED: f"{subject.generation} {why}"}}}
        try:
            await self._patch(note)
        except ClusterError as error:  # then it is in the log only
            log.warning("%s: %s", subject.ref, error)

    def _fail(self, why: str) -> None:
        self._note(self.outcome.errors, why)
        log.warning("%s: %s", self.subject.ref, why)

    def _skip(self, why: str) -> None:
        self._note(self.outcome.skipped, why)

    def _note(self, kept: dict[Ref, str], why: str) -> None:
        ref = self.subject.ref
        kept[ref] = f"{kept[ref]}; {why}" if ref in kept else why

    def _drop(self, why: str) -> _Stop:
        self._skip(f"decision dropped: {why}; the next tick decides anew")
        return _Stop()

    def _superseded(self, current: Object) -> str | None:
        metadata = current["metadata"]
        if metadata["uid"] != self.subject.uid:
            return "replaced by a new object of the same name"
        if metadata.get("deletionTimestamp") and not self.subject.deleting:
            return "it is being deleted"
        if int(metadata.get("generation") or 0) != self.subject.generation:
            return "its spec was edited meanwhile"
        return None

    async def _may_write(self) -> float | None:
        """Asked at the last moment before each write: the seconds it may take. Raises ``NotTheWriter``."""
        await self.fence.confirm()
        return self.fence.check()

    # The subject

    async def _patch(self, body: Mapping[str, Any], subresource: str | None = None) -> Object:
        kind, key = self.subject.kind, self.subject.key
        return await self.cluster.merge_patch(
            kind, key.name, dict(body), key.namespace or None, subresource, timeout=await self._may_write()
        )

    async def _read(self, kind: ResourceType, key: Key) -> Object:
        return await self.cluster.get(kind, key.name, key.namespace or None, timeout=self.fence.check())

    async def _remember(self) -> None:
        if not self.plan.annotations:
            return
        metadata: dict[str, Any] = {"uid": self.subject.uid, "annotations": dict(self.plan.annotations)}
        if self.plan.exact:
            metadata["resourceVersion"] = self.subject.resource_version
        try:
            self.current = await self._patch({"metadata": metadata})
        except (NotFound, Conflict, Invalid) as error:
            if not is_gone(error):
                raise
            self._skip(f"deleted or replaced meanwhile ({error.reason})")
            raise _Stop from None

    async def _publish(self) -> None:
        status, subject = self.plan.status, self.subject
        if status is None:
            return
        superseded: list[str] = []

        def change(current: Object) -> Object | None:
            self.fence.check()
            if not self.fence.covers(current):
                raise NotTheWriter
            if why := self._superseded(current):
                superseded.append(why)
                return None
            told = current.get("status") or {}
            body = statuses.patch(status, told, self.cluster.now())
            return body if statuses.changes(body, told) else None  # another writer may have said it meanwhile

        try:
            self.current = await self.cluster.update_status(
                subject.kind,
                subject.key.name,
                subject.key.namespace or None,
                change,
                current=self.current,
                timeout=await self._may_write(),
            )
        except NotFound:
            raise self._drop("it was deleted") from None
        except Conflict:
            # Somebody writes this status faster than we can read it. What is ours alone may be written without a
            # resource version; the conditions, which are shared, wait for a quieter moment.
            self.current = None
            log.warning("%s: its status is being rewritten constantly", subject.ref)
            if not status.alone:
                if self.plan.status_first:
                    raise
                return
            try:
                self.current = await self._patch({"metadata": {"uid": subject.uid}, "status": status.alone}, "status")
            except (NotFound, Conflict, Invalid) as error:
                if not is_gone(error):
                    raise
                raise self._drop("deleted or replaced by a new object of the same name") from None
        if superseded:
            raise self._drop(superseded[0])
        self.outcome.written.add(subject.ref)

    async def _still_wanted(self) -> Object:
        """Go on only if the object is still the one decided on; no earlier write need have shown it."""
        try:
            self.current = self.current or await self._read(self.subject.kind, self.subject.key)
        except NotFound:
            raise self._drop("it was deleted") from None
        if why := self._superseded(self.current):
            raise self._drop(why)
        return self.current

    async def _finalize(self, wanted: bool) -> None:
        """Set our finalizer or take it off; the others' stay."""
        for attempt in range(1, WRITE_ATTEMPTS + 1):
            self.current = None
            metadata = (await self._still_wanted())["metadata"]
            ours = self.plan.finalizer_name
            others = [name for name in metadata.get("finalizers") or () if name != ours]
            body = {
                "resourceVersion": metadata["resourceVersion"],
                "finalizers": [*others, ours] if wanted else others,
            }
            try:
                self.current = await self._patch({"metadata": body})
                return
            except Conflict:
                if attempt == WRITE_ATTEMPTS:
                    raise

    async def _fill(self) -> None:
        """Write into the object itself, unless anybody has changed it."""
        version = (await self._still_wanted())["metadata"]["resourceVersion"]
        with suppress(Conflict):  # then there is another look
            body = {"metadata": {"uid": self.subject.uid, "resourceVersion": version}, **self.plan.fill}
            self.current = await self._patch(body)
            # What was written is ours: the rest of the plan still holds.
            generation = int(self.current["metadata"].get("generation") or 0)
            self.plan = replace(self.plan, subject=self.subject._replace(generation=generation))

    # What many share

    async def _mark(self, mark: Mark) -> None:
        kind, (namespace, name) = mark.kind, mark.key
        patch: dict[str, Any] = {"metadata": {"labels": dict(mark.labels)}} if mark.labels else {}
        patch |= {"data": dict(mark.data)} if mark.data else {}
        if mark.uid:
            version = {"resourceVersion": mark.version} if mark.exact else {}
            patch["metadata"] = {**patch.get("metadata", {}), "uid": mark.uid, **version}
        elif mark.create:
            data = {key: value for key, value in mark.data.items() if value is not None}
            try:
                body = {**mark.create, "data": data}
                await self.cluster.create(kind, body, namespace or None, timeout=await self._may_write())
                return
            except AlreadyExists:
                if mark.exact:
                    # It was not listed. With its labels it is: the next look reads it, and decides by what it says.
                    log.warning("%s was not listed; setting its labels", kind.describe(namespace, name))
                    patch = {"metadata": {"labels": dict(mark.labels)}}
        try:
            await self.cluster.merge_patch(kind, name, patch, namespace or None, timeout=await self._may_write())
        except (NotFound, Conflict, Invalid) as error:
            if not is_gone(error):
                raise  # else there is nothing left to mark

    # What it owns

    async def _own(
        self, kind: ResourceType, key: Key, through: tuple[ResourceType, Key] | None = None, earlier: str = ""
    ) -> Object | None:
        """The object of this name, ``None`` when there is none. Raises ``_Stop`` when it is somebody else's."""
        mine = self.subject.uid
        if through is not None:
            between = await self._own(*through)
            if between is None:
                return None
            mine = between["metadata"]["uid"]
        if self._is_outside(key.namespace) and key.namespace not in self.plan.homes:
            self._fail(f"{kind.describe(key.namespace, key.name)} would be outside its namespace; left alone")
            raise _Stop
        try:
            found = await self._read(kind, key)
        except NotFound:
            return None
        # Any other owner than the controller is a matter of garbage collection.
        controller = controller_of(found)
        owner, owners = controller.uid if controller else "", {mine}
        if self._is_outside(key.namespace):
            owner, owners = (found["metadata"].get("labels") or {}).get(OWNER, ""), {mine, earlier}
        if not owner or owner not in owners:
            of = f" (it is of {controller.kind} {cut(controller.name, LONGEST_NAME)})" if controller else ""
            self._fail(f"{kind.describe(key.namespace, key.name)} is there and does not belong to it{of}; left alone")
            raise _Stop
        return found

    def _is_outside(self, namespace: str) -> bool:
        return self.subject.key.namespace not in ("", namespace)

    async def _apply(self, manifest: Mapping[str, Any]) -> None:
        """Make a child be as its manifest says. What is there under its name must be the subject's already."""
        metadata = dict(manifest["metadata"])
        if why := self.plan.rules.refusal(manifest):
            self._fail(f"{manifest.get('kind')} {metadata['name']} is not written: {why}")
            raise _Stop
        kind = await self.cluster.resolve(manifest["apiVersion"], manifest["kind"])
        found = await self._own(kind, Key(metadata.get("namespace") or "", metadata["name"]))
        owner = self.subject.reference
        owner.pop("namespace", None)
        if self._is_outside(metadata.get("namespace") or ""):
            metadata["labels"] = {**(metadata.get("labels") or {}), OWNER: self.subject.uid}
        else:
            metadata.setdefault("ownerReferences", [{**owner, "controller": True, "blockOwnerDeletion": True}])
        if found is not None:
            metadata["uid"] = found["metadata"]["uid"]
            if CLAIM in (metadata.get("annotations") or {}):  # of its creation: whoever works on it now goes on
                claim = (found["metadata"].get("annotations") or {}).get(CLAIM)
                metadata["annotations"] = {**metadata["annotations"], CLAIM: claim or metadata["annotations"][CLAIM]}
            if foreign := removal_of_added_entries(found, manifest, WHOLE_MAPS):
                foreign["metadata"] = {"uid": metadata["uid"]}
                place, limit = metadata.get("namespace"), await self._may_write()
                await self.cluster.merge_patch(kind, metadata["name"], foreign, place, timeout=limit)
        # One that somebody made a moment ago is not taken over: without ``force`` their fields conflict.
        await self.cluster.apply(
            {**manifest, "metadata": metadata}, force=found is not None, timeout=await self._may_write()
        )

    async def _hand_over(self, given: HandOver) -> None:
        """Give a child its copy of a Secret. Only what is the subject's own to read is copied."""
        owner = await self._own(given.owner, given.owner_key)
        if owner is None:
            return
        data: Mapping[str, str] = {}
        if given.secret is not None:
            if given.secret.namespace not in ({self.subject.key.namespace} - {""} or self.plan.homes):
                self._fail(f"Secret {given.secret} is not its own to read; left alone")
                return
            try:
                data = (await self._read(SECRETS, given.secret)).get("data") or {}
            except NotFound:
                missing = f"Secret {given.secret} does not exist"
                self._skip(missing)
                if (owner["metadata"].get("annotations") or {}).get(MISSING) != missing:
                    note = {"metadata": {"uid": owner["metadata"]["uid"], "annotations": {MISSING: missing}}}
                    place, limit = given.owner_key.namespace or None, await self._may_write()
                    await self.cluster.merge_patch(given.owner, given.owner_key.name, note, place, timeout=limit)
                return
        reference = {"apiVersion": given.owner.api_version, "kind": given.owner.kind, "name": given.owner_key.name}
        reference["uid"] = owner["metadata"]["uid"]
        metadata = {"name": given.name, "namespace": given.owner_key.namespace, "ownerReferences": [reference]}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
        if given.extra:
            body["stringData"] = dict(given.extra)
        with suppress(AlreadyExists):
            await self.cluster.create(SECRETS, body, timeout=await self._may_write())

    async def _delete(self, child: Child) -> None:
        found = await self._own(child.kind, child.key, child.through, child.earlier)
        if found is None or found["metadata"]["uid"] != child.uid:
            return
        try:
            await self.cluster.delete(
                child.kind,
                child.key.name,
                child.key.namespace or None,
                propagation="Foreground",
                uid=child.uid,
                timeout=await self._may_write(),
            )
        except Conflict:
            log.info("%s is gone already", child.kind.describe(child.key.namespace, child.key.name))

    # Workloads

    async def _scale(self, scale: Scale) -> None:
        workload, wanted = scale.workload, scale.replicas
        kind = await self.cluster.resolve(workload.api_version, workload.kind)
        name, namespace = workload.name, workload.namespace
        for attempt in range(1, WRITE_ATTEMPTS + 1):
            try:
                found = await self.cluster.read_scale(kind, name, namespace, timeout=self.fence.check())
                if found.replicas == wanted:
                    return
                if found.replicas != scale.seen:
                    self._skip(
                        f"{workload} went from {scale.seen} to {counted(found.replicas, 'replica')} meanwhile; "
                        "the next tick decides anew"
                    )
                    return
                version = found.resource_version
                await self.cluster.write_scale(
                    kind, name, namespace, wanted, resource_version=version, timeout=await self._may_write()
                )
            except NotFound:
                self._skip(f"{workload} was deleted meanwhile")
                return
            except Conflict:
                # Mostly its controller that writes its status; whether the replicas moved is looked at again.
                if attempt == WRITE_ATTEMPTS:
                    self._skip(f"{workload} is being changed constantly; the next tick decides anew")
            else:
                self.outcome.scaled[self.subject.ref, workload] = (found.replicas, wanted)
                return
