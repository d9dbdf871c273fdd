"""Carry out a tick's decisions: memory, then intent (status), then the workload.

The order is what makes a kill at any line harmless. Memory first: at worst a delay starts again (but see ``adopts``).
Intent before the workload: a successor finds the intent, sees the workload lagging and finishes the move; the reverse
order would make it undo one. Each variant is on its own; one that fails is reported and tried again by the next tick.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from modelyard.autoscaling.decision import Record, TickDecision, VariantDecision
from modelyard.autoscaling.fleet import Fleet, Variant
from modelyard.autoscaling.kinds import VARIANTS
from modelyard.autoscaling.live.prediction import ANNOTATION as PREDICTION
from modelyard.autoscaling.live.prediction import prediction_text
from modelyard.autoscaling.live.status import allocation_body, needs_write, status_patch
from modelyard.autoscaling.variants.memory import ANNOTATION, VariantMemory, render_memory
from modelyard.cluster import Cluster, ClusterError, Conflict, Invalid, NotFound, ResourceType
from modelyard.objects import Key, WorkloadId

log = logging.getLogger(__name__)

CONCURRENCY = 16


class NotTheWriter(Exception):
    """The Lease was lost in the middle of a tick: stop writing at once."""


class Fence:
    """How long this process may go on writing: asked before every write, and the bound on how long one may take.

    ``remaining`` gives the seconds for which the Lease is certain (infinite without one). A request that outlived the
    Lease could otherwise put an old decision over the next writer's.
    """

    def __init__(self, remaining: Callable[[], float] = lambda: math.inf) -> None:
        self._remaining = remaining

    def check(self) -> float | None:
        """Seconds the next write may take (``None``: the usual). Raises ``NotTheWriter``."""
        left = self._remaining()
        if left <= 0:
            raise NotTheWriter
        return None if math.isinf(left) else left


@dataclass
class Outcome:
    """What became of a tick's decisions. Keys are variants."""

    scaled: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """variant: (replicas before, replicas written)"""
    written: int = 0
    """status writes"""
    skipped: dict[Key, str] = field(default_factory=dict)
    errors: dict[Key, str] = field(default_factory=dict)


async def actuate(
    cluster: Cluster,
    fleet: Fleet,
    decision: TickDecision,
    fence: Fence,
    refresh: float,
) -> Outcome:
    """Write what changed. Raises ``NotTheWriter`` as soon as the fence says so."""
    outcome = Outcome()
    variants = {variant.key: variant for variant in fleet.variants}
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(decision: VariantDecision) -> None:
        variant = variants[decision.key]
        async with gate:
            fence.check()
            try:
                await _carry_out(cluster, fleet, variant, decision, fence, refresh, outcome)
            except ClusterError as error:
                outcome.errors[decision.key] = str(error)
                log.warning("%s: %s", decision.key, error)

    todo = [each for each in decision.variants if _has_work(each, variants[each.key], fleet.now, refresh)]
    tasks = [asyncio.create_task(one(each)) for each in todo]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return outcome


def _has_work(decision: VariantDecision, variant: Variant, now: float, refresh: float) -> bool:
    return (
        decision.record.writes.scale is not None
        or bool(_annotations(decision, variant, to_remember(decision)))
        or needs_write(decision, variant, now, refresh)
    )


def _annotations(decision: VariantDecision, variant: Variant, memory: VariantMemory) -> dict[str, str | None]:
    """What of ours in the annotations has to change; ``None`` removes one."""
    changed: dict[str, str | None] = {}
    if memory != variant.memory:
        text = render_memory(memory)
        changed[ANNOTATION] = text if text != "{}" else None
    prediction = prediction_text(decision.record, variant.annotations)
    if prediction != variant.annotations.get(PREDICTION):
        changed[PREDICTION] = prediction
    return changed


def to_remember(decision: VariantDecision) -> VariantMemory:
    """The memory to keep; it also tells the exporter whether this variant may have a gauge."""
    if decision.memory.hidden is not decision.record.writes.publish:
        return decision.memory
    return decision.memory.model_copy(update={"hidden": not decision.record.writes.publish})


async def _carry_out(
    cluster: Cluster,
    fleet: Fleet,
    variant: Variant,
    decision: VariantDecision,
    fence: Fence,
    refresh: float,
    outcome: Outcome,
) -> None:
    memory = to_remember(decision)
    status_due = needs_write(decision, variant, fleet.now, refresh)
    # The memory says whose desired count the status holds. A new workload's must not be remembered before the old
    # one's count is gone from the status: a kill in between would have a successor carry out the old count on it.
    adopts = variant.memory.workload_uid not in ("", memory.workload_uid)
    current: dict[str, Any] | None = None
    if adopts and status_due and not await _write_status(cluster, variant, decision, None, fleet.now, fence, outcome):
        return
    if annotations := _annotations(decision, variant, memory):
        current = await _remember(cluster, variant, annotations, fence, outcome)
        if current is None:
            return
    if (
        status_due
        and not adopts
        and not await _write_status(cluster, variant, decision, current, fleet.now, fence, outcome)
    ):
        return
    record = decision.record
    if record.writes.scale is not None and record.now.workload is not None:
        await _scale(cluster, fleet, record, record.now.workload, fence, outcome)


async def _remember(
    cluster: Cluster, variant: Variant, annotations: Mapping[str, str | None], fence: Fence, outcome: Outcome
) -> dict[str, Any] | None:
    """Keep memory and prediction with the resource; the object as it is then, ``None`` when it is gone."""
    body = {"metadata": {"uid": variant.uid, "annotations": dict(annotations)}}
    try:
        return await cluster.merge_patch(VARIANTS, variant.key.name, body, variant.key.namespace, timeout=fence.check())
    except (NotFound, Conflict, Invalid) as error:
        if not is_gone(error):
            raise
        outcome.skipped[variant.key] = f"deleted or replaced meanwhile ({error.reason})"
        return None


def is_gone(error: ClusterError) -> bool:
    """Whether a write that names the object's uid failed because that object is not there any more.

    A new object of the same name is a conflict to some API servers and an invalid change of the uid to others.
    """
    return not isinstance(error, Invalid) or any(cause.field == "metadata.uid" for cause in error.causes)


async def _write_status(
    cluster: Cluster,
    variant: Variant,
    decision: VariantDecision,
    current: dict[str, Any] | None,
    now: float,
    fence: Fence,
    outcome: Outcome,
) -> bool:
    """Whether the decision still holds and is now on record. ``current`` is the object if it has just been read."""
    superseded: list[str] = []

    def change(current: dict[str, Any]) -> dict[str, Any] | None:
        fence.check()
        metadata = current["metadata"]
        if metadata["uid"] != decision.subject.uid:
            superseded.append("replaced by a new object of the same name")
        elif int(metadata.get("generation") or 0) != decision.subject.generation:
            superseded.append("its spec was edited meanwhile")
        elif metadata.get("deletionTimestamp"):
            superseded.append("it is being deleted")
        else:
            return status_patch(decision, (current.get("status") or {}).get("conditions") or [], now)
        return None

    name, namespace = variant.key.name, variant.key.namespace
    try:
        await cluster.update_status(VARIANTS, name, namespace, change, current=current, timeout=fence.check())
    except NotFound:
        superseded.append("it was deleted")
    except Conflict:
        # Somebody writes this status faster than we can read it. The allocation is ours alone, so it may be written
        # without a resource version; the conditions, which are shared, wait for a quieter moment.
        log.warning("%s: status is being rewritten constantly; writing the allocation alone", variant.key)
        body = {"metadata": {"uid": decision.subject.uid}, "status": allocation_body(decision.record, now)}
        try:
            await cluster.merge_patch(VARIANTS, name, body, namespace, subresource="status", timeout=fence.check())
        except (NotFound, Conflict):
            superseded.append("deleted or replaced by a new object of the same name")
    if superseded:
        outcome.skipped[variant.key] = f"decision dropped: {superseded[0]}; the next tick decides anew"
        return False
    outcome.written += 1
    return True


async def _scale(
    cluster: Cluster, fleet: Fleet, record: Record, workload: WorkloadId, fence: Fence, outcome: Outcome
) -> None:
    assert record.writes.scale is not None
    kind = await resource_of(cluster, workload)
    seen = fleet.workloads[workload].spec_replicas
    name, namespace = workload.name, workload.namespace
    try:
        scale = await cluster.read_scale(kind, name, namespace, timeout=fence.check())
        if scale.replicas == record.writes.scale:
            return
        if scale.replicas != (1 if seen is None else seen):
            outcome.skipped[record.identity.key] = (
                f"{workload} went from {seen} to {scale.replicas} replicas meanwhile; the next tick decides anew"
            )
            return
        await cluster.write_scale(
            kind, name, namespace, record.writes.scale, resource_version=scale.resource_version, timeout=fence.check()
        )
    except NotFound:
        outcome.skipped[record.identity.key] = f"{workload} was deleted meanwhile"
        return
    except Conflict:
        outcome.skipped[record.identity.key] = f"{workload} was changed meanwhile; the next tick decides anew"
        return
    outcome.scaled[record.identity.key] = (scale.replicas, record.writes.scale)


async def resource_of(cluster: Cluster, workload: WorkloadId) -> ResourceType:
    """The API resource of a workload, by discovery."""
    return await cluster.resolve(f"{workload.group}/v1" if workload.group else "v1", workload.kind)


def summary(outcome: Outcome) -> Mapping[str, Any]:
    """Counts for the task's result."""
    return {
        "scaled": len(outcome.scaled),
        "statusWrites": outcome.written,
        "skipped": {str(key): why for key, why in sorted(outcome.skipped.items())[:20]},
        "errors": {str(key): why for key, why in sorted(outcome.errors.items())[:20]},
    }
