"""Carry out the decisions about bindings: memory, then status, then the workloads.

The order is that of variants, and harmless to be killed in: memory first, so that a window or a panic begun is known
to a successor; then what was decided, for people; the workloads last. A workload that somebody else moved meanwhile is
left alone. Each binding is on its own; one that fails is reported and tried again by the next tick.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modelyard.autoscaling.bindings.memory import ANNOTATION, render_memory
from modelyard.autoscaling.bindings.view import BindingView
from modelyard.autoscaling.decision import BindingDecision, Record
from modelyard.autoscaling.kinds import BINDINGS, POLICIES
from modelyard.autoscaling.live.actuate import Fence, is_gone, resource_of
from modelyard.autoscaling.live.bindings.objects import PolicySpec
from modelyard.autoscaling.live.bindings.state import PolicyState
from modelyard.autoscaling.live.bindings.status import needs_write, policy_status, status_patch
from modelyard.cluster import Cluster, ClusterError, Conflict, Invalid, NotFound
from modelyard.objects import Key, WorkloadId

log = logging.getLogger(__name__)

CONCURRENCY = 16


@dataclass
class BindingOutcome:
    """What became of a tick's decisions about bindings."""

    scaled: dict[tuple[Key, WorkloadId], tuple[int, int]] = field(default_factory=dict)
    """(binding, workload): (replicas before, replicas written)"""
    written: int = 0
    """status writes"""
    skipped: dict[Key, str] = field(default_factory=dict)
    errors: dict[Key, str] = field(default_factory=dict)

    def summary(self) -> Mapping[str, Any]:
        """Counts for the task's result."""
        return {
            "scaled": len(self.scaled),
            "statusWrites": self.written,
            "skipped": {str(key): why for key, why in sorted(self.skipped.items())[:20]},
            "errors": {str(key): why for key, why in sorted(self.errors.items())[:20]},
        }


async def actuate_bindings(
    cluster: Cluster,
    views: Sequence[BindingView],
    decisions: Sequence[BindingDecision],
    fence: Fence,
    refresh: float,
    state: PolicyState,
    *,
    now: float,
) -> BindingOutcome:
    """Write what changed, and what the policies mean to their statuses. Raises ``NotTheWriter`` if the fence says so.

    ``now`` is the time decided at, ``refresh`` the seconds a status may lag behind where only texts changed.
    """
    outcome = BindingOutcome()
    by_key = {view.key: view for view in views}
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(decision: BindingDecision) -> None:
        view = by_key[decision.key]
        async with gate:
            fence.check()
            try:
                due = needs_write(decision, view, now, refresh, state.told.get(view.key))
                await _CarryOut(cluster, view, decision, fence, outcome, now).run(due, state.told)
            except ClusterError as error:
                outcome.errors[view.key] = str(error)
                log.warning("AutoscalingPolicyBinding %s: %s", view.key, error)

    async def explain(policy: PolicySpec) -> None:
        async with gate:
            await _explain(cluster, policy, fence, outcome, now)

    tasks = [asyncio.create_task(one(decision)) for decision in decisions]
    tasks += [asyncio.create_task(explain(p)) for p in state.listed_policies if policy_status(p, now) is not None]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    for key in state.told.keys() - by_key.keys():
        del state.told[key]
    return outcome


async def _explain(cluster: Cluster, policy: PolicySpec, fence: Fence, outcome: BindingOutcome, now: float) -> None:
    """Write a policy's status: nothing depends on it, so that a failure is only logged."""

    def change(current: dict[str, Any]) -> dict[str, Any] | None:
        fence.check()
        if current["metadata"]["uid"] != policy.uid or current["metadata"].get("generation") != policy.generation:
            return None
        return policy_status(replace(policy, status=current.get("status") or {}), now)

    try:
        if await cluster.update_status(POLICIES, policy.key.name, policy.key.namespace, change, timeout=fence.check()):
            outcome.written += 1
    except ClusterError as error:
        log.warning("AutoscalingPolicy %s: what it means could not be written to its status: %s", policy.key, error)


@dataclass
class _CarryOut:
    """The writes of one binding."""

    cluster: Cluster
    view: BindingView
    decision: BindingDecision
    fence: Fence
    outcome: BindingOutcome
    now: float

    async def run(self, due: bool, told: dict[Key, float]) -> None:
        current: dict[str, Any] | None = None
        if self.decision.memory != self.view.memory:
            current = await self._remember()
            if current is None:
                return
        writes = [record for record in self.decision.records if record.writes.scale is not None]
        if due:
            if not await self._write_status(current):
                return
            told[self.view.key] = self.now
        elif writes and not await self._still_wanted(current):
            return
        for record in writes:
            try:
                await self._scale(record)
            except ClusterError as error:  # the other targets' shares are still right
                self._note(self.outcome.errors, str(error))
                log.warning("AutoscalingPolicyBinding %s: %s", self.view.key, error)

    def _note(self, kept: dict[Key, str], why: str) -> None:
        kept[self.view.key] = f"{kept[self.view.key]}; {why}" if self.view.key in kept else why

    def _skip(self, why: str) -> None:
        self._note(self.outcome.skipped, why)

    def _superseded(self, current: Mapping[str, Any]) -> str | None:
        metadata = current["metadata"]
        if metadata["uid"] != self.decision.subject.uid:
            return "replaced by a new object of the same name"
        if int(metadata.get("generation") or 0) != self.decision.subject.generation:
            return "its spec was edited meanwhile"
        if metadata.get("deletionTimestamp"):
            return "it is being deleted"
        return None

    def _drop(self, why: str) -> None:
        self._skip(f"decision dropped: {why}; the next tick decides anew")

    async def _remember(self) -> dict[str, Any] | None:
        """Keep the memory with the binding; the object as it is then, ``None`` when it is not there any more."""
        key = self.view.key
        text = render_memory(self.decision.memory)
        body = {"metadata": {"uid": self.view.uid, "annotations": {ANNOTATION: text if text != "{}" else None}}}
        try:
            return await self.cluster.merge_patch(BINDINGS, key.name, body, key.namespace, timeout=self.fence.check())
        except (NotFound, Conflict, Invalid) as error:
            if not is_gone(error):
                raise
            self._skip(f"deleted or replaced meanwhile ({error.reason})")
            return None

    async def _still_wanted(self, current: dict[str, Any] | None) -> bool:
        """Whether the binding is still the one decided on; its status, which would have shown, needs no write now."""
        key = self.view.key
        try:
            current = current or await self.cluster.get(BINDINGS, key.name, key.namespace, timeout=self.fence.check())
        except NotFound:
            self._drop("it was deleted")
            return False
        if why := self._superseded(current):
            self._drop(why)
        return why is None

    async def _write_status(self, current: dict[str, Any] | None) -> bool:
        """Whether the decision still holds and is now on record. ``current`` is the object if it has just been read."""
        key, superseded = self.view.key, list[str]()

        def change(current: dict[str, Any]) -> dict[str, Any] | None:
            self.fence.check()
            if why := self._superseded(current):
                superseded.append(why)
                return None
            return status_patch(self.decision, current.get("status") or {}, self.now)

        try:
            await self.cluster.update_status(
                BINDINGS, key.name, key.namespace, change, current=current, timeout=self.fence.check()
            )
        except NotFound:
            superseded.append("it was deleted")
        except Conflict as error:
            # The status only tells people; the decision itself is safe with the memory, so it need not wait.
            log.warning("AutoscalingPolicyBinding %s: its status is being rewritten constantly: %s", key, error)
            return await self._still_wanted(None)
        if superseded:
            self._drop(superseded[0])
            return False
        self.outcome.written += 1
        return True

    async def _scale(self, record: Record) -> None:
        replicas, workload = record.writes.scale, record.now.workload
        assert replicas is not None
        assert workload is not None
        target = next(one for one in self.view.targets if one.workload == workload)
        name, namespace = workload.name, workload.namespace
        try:
            kind = await resource_of(self.cluster, workload)
            scale = await self.cluster.read_scale(kind, name, namespace, timeout=self.fence.check())
            if scale.replicas == replicas:
                return
            if scale.replicas != target.current:
                self._skip(
                    f"{workload} went from {target.current} to {scale.replicas} replicas meanwhile; "
                    "the next tick decides anew"
                )
                return
            await self.cluster.write_scale(
                kind,
                name,
                namespace,
                replicas,
                resource_version=scale.resource_version,
                timeout=self.fence.check(),
            )
        except NotFound:
            self._skip(f"{workload} was deleted meanwhile")
            return
        except Conflict:
            self._skip(f"{workload} was changed meanwhile; the next tick decides anew")
            return
        self.outcome.scaled[self.view.key, workload] = (scale.replicas, replicas)
