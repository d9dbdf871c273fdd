"""Claims: how a run gets the right to work on objects, and what it requests of them when it does.

An object that a person or a parent run names is taken over from whichever run has it. A scheduled flow leaves an object
to the run that works on it, which sees the request and carries it out; so does a run that begins again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prefect import get_run_logger, task
from prefect.client.orchestration import get_client

from modelyard.cluster import NotFound, Object
from modelyard.objects import Key
from modelyard.reconcile.kernel import take
from modelyard.reconcile.plans import CLAIM, Claim, is_free
from tasks.reconcile import BY_ID, read_fates
from tasks.registry import REGISTRY
from tasks.stage import BRIEF
from tasks.steps import OpenRun, RunRef, open_run


class NoSuchObject(ValueError):
    """No object has this name; the message names it."""


@task(name="claim", task_run_name="claim {key.label}", **BRIEF)
async def claim(ref: RunRef, key: Key, attempt: int, marks: Mapping[str, str | None] | None = None) -> None:
    """Give the run the right to work on the object; ``marks`` are annotations that request something of it.

    ``attempt`` counts the times that the run has begun: from the second on, it leaves the object to another run that
    works on it, and one that is gone unless it was started by hand. Raises ``NoSuchObject``.
    """
    async with open_run(ref) as run:
        kind, current = run.view.lifecycle.about, await run.read(key)
        if attempt > 1 and (reason := await reason_to_leave(run, ref, current)):
            get_run_logger().info("Leaving %s: %s", key, reason)
            return
        if current is None:
            where = f"in namespace {key.namespace}" if key.namespace else "at cluster scope"
            raise NoSuchObject(f"there is no {kind.kind} {key.name} {where}")
        await take(run.view.cluster, current, kind, ref.run, {**retry_marks(ref, current, attempt), **(marks or {})})


async def reason_to_leave(run: OpenRun, ref: RunRef, obj: Object | None) -> str:
    """Return why a run that begins again does not claim the object (``None``: gone); empty: it claims it, or fails."""
    if obj is None:
        return "" if ref.run.startswith(BY_ID) else "it was deleted"
    text = _claim_of(obj)
    before = Claim.read(text)
    if before is None or before.run == ref.run:
        return ""
    async with get_client() as client:
        fates = await read_fates(client, {before.run})
    return "" if is_free(text, fates, run.view.cluster.now()) else f"{before.run} works on it"


def _claim_of(obj: Object) -> str:
    return (obj["metadata"].get("annotations") or {}).get(CLAIM) or ""


def retry_marks(ref: RunRef, obj: Object, attempt: int) -> dict[str, str | None]:
    """Return the annotation that requests another attempt at what has failed for an object; none where nothing has."""
    status, name = obj.get("status") or {}, REGISTRY[ref.lifecycle].retry
    failed = status.get("state") == "Failed" or status.get("nodesFailed")
    return {name: request_id(ref, attempt)} if name and failed else {}


def request_id(ref: RunRef, attempt: int) -> str:
    """Return what tells the requests of one attempt of a run from all others."""
    return f"{ref.run.rpartition('/')[2]}-{attempt}"


async def claim_free(run: OpenRun, ref: RunRef, requests: Iterable[tuple[Object, Mapping[str, str]]]) -> list[Key]:
    """Annotate objects with requests, and claim those that no other run works on; return the keys of these."""
    cluster, kind, log = run.view.cluster, run.view.lifecycle.about, get_run_logger()
    some = [(obj, marks, _claim_of(obj)) for obj, marks in requests]
    runs = {claim.run for _, _, text in some if (claim := Claim.read(text)) is not None}
    async with get_client() as client:
        fates = await read_fates(client, runs)
    claimed = []
    for obj, marks, text in some:
        key, before = Key(obj["metadata"].get("namespace", ""), obj["metadata"]["name"]), Claim.read(text)
        try:
            if is_free(text, fates, cluster.now()) or (before is not None and before.run == ref.run):
                await take(cluster, obj, kind, ref.run, marks)
                claimed.append(key)
            else:
                log.info("Leaving %s %s to the run that works on it", kind.kind, key)
                body = {"metadata": {"uid": obj["metadata"]["uid"], "annotations": dict(marks)}}
                await cluster.merge_patch(kind, key.name, body, key.namespace or None)
        except NotFound:
            log.info("Skipping %s %s: it was deleted", kind.kind, key)
    return claimed
