"""The start of an onboarding: the ConfigMap that stands for it, the right to work on it, another try of what failed."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain

from modelyard.benchmarks.jobs import BENCHMARK_JOBS, RE_RUN
from modelyard.cluster import AlreadyExists, Cluster, Forbidden, Object
from modelyard.models.delivery import BASE_MODELS, NUDGE, claim
from modelyard.models.storage import ClaimFolder, parse
from modelyard.objects import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, ResourceType
from modelyard.onboarding.planning import MEMORY, OnboardMemory, name_of, objects, objects_of_steps
from modelyard.onboarding.request import OnboardRequest
from modelyard.reconcile.kernel import take
from modelyard.reconcile.plans import parse_memory, render_memory
from modelyard.workloads.roll_out import INFERENCE_SERVICES


class OnboardRefused(Exception):
    """There is another onboarding of this name, or something else in its place; the message says what to do."""


async def check_results(cluster: Cluster, asked: OnboardRequest) -> None:
    """Refuse an onboarding whose results could not be stored, before it makes anything. Raises ``OnboardRefused``."""
    place = parse(asked.results)
    if not isinstance(place, ClaimFolder):
        return
    name = f"PersistentVolumeClaim {asked.namespace}/{place.claim}"
    with suppress(Forbidden):
        selector = f"metadata.name={place.claim}"
        stored = list(await cluster.list(PERSISTENT_VOLUME_CLAIMS, asked.namespace, field_selector=selector))
        if not stored:
            raise OnboardRefused(f"results: {name} not found; create it, or name another place")
        if claim(stored[0]).read_only:
            raise OnboardRefused(f"results: {name} can only be read; name one with ReadWriteMany or ReadWriteOnce")


async def take_over(cluster: Cluster, asked: OnboardRequest, run: str) -> bool:
    """Let a run work on the onboarding from now on; return whether it is new. Raises ``OnboardRefused``."""
    await check_results(cluster, asked)
    ours, key, new = objects.order(asked), objects.order_key(asked), True
    try:
        current = await cluster.create(CONFIG_MAPS, ours)
    except AlreadyExists:
        current, new = await cluster.get(CONFIG_MAPS, key.name, key.namespace), False
    if problem := objects.conflict(asked, current, ours):
        raise OnboardRefused(problem)
    await take(cluster, current, CONFIG_MAPS, run, {})
    return new


async def retry_failed(cluster: Cluster, asked: OnboardRequest, attempt: str) -> list[tuple[ResourceType, Object]]:
    """Try what failed again: the model's delivery, benchmarks, and candidates that were given up.

    ``attempt`` tells one request for it from the others. Returns the objects of the onboarding's steps that were there:
    anybody may give others its label.
    """
    key = objects.order_key(asked)
    stored = await cluster.get(CONFIG_MAPS, key.name, key.namespace)
    memory, _ = parse_memory(OnboardMemory, MEMORY, (stored["metadata"].get("annotations") or {}).get(MEMORY))
    if memory.given_up:
        kept = render_memory(memory.model_copy(update={"given_up": {}}))
        body = {"metadata": {"annotations": {MEMORY: kept}}}
        await cluster.merge_patch(CONFIG_MAPS, key.name, body, key.namespace)
    with_candidates = asked.model_copy(update={"candidates": asked.candidates or memory.candidates})
    names = {*chain(*objects_of_steps(with_candidates).values())}
    made = []
    for kind, annotation in ((BASE_MODELS, NUDGE), (INFERENCE_SERVICES, None), (BENCHMARK_JOBS, RE_RUN)):
        for obj in await cluster.list(kind, asked.namespace, f"{objects.LABEL}={asked.name}"):
            if name_of(obj) not in names or objects.conflict(asked, obj, obj):
                continue
            made.append((kind, obj))
            if annotation is not None and (obj.get("status") or {}).get("state") == "Failed":
                body = {"metadata": {"uid": obj["metadata"]["uid"], "annotations": {annotation: attempt}}}
                await cluster.merge_patch(kind, obj["metadata"]["name"], body, asked.namespace)
    return made
