"""An onboarding as somebody follows it: what stands for it, the right to work on it, and what was seen of it last."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from modelyard.benchmarks.world import BENCHMARK_JOBS, RE_RUN
from modelyard.cluster import CONFIG_MAPS, AlreadyExists, Cluster, Forbidden
from modelyard.models.names import BASE_MODELS
from modelyard.models.uri import ClaimFolder, parse
from modelyard.models.world import NUDGE, claim
from modelyard.objects import Key
from modelyard.objects.kinds import PERSISTENT_VOLUME_CLAIMS
from modelyard.onboarding import objects
from modelyard.onboarding.lifecycle import MEMORY, Onboarding
from modelyard.onboarding.progress import OnboardMemory, OnboardStanding
from modelyard.onboarding.request import OnboardRequest
from modelyard.reconcile.following import Followed, take
from modelyard.reconcile.memory import parse_memory, render_memory


@dataclass(eq=False)
class OnboardRun:
    """An onboarding as a run follows it."""

    cluster: Cluster
    asked: OnboardRequest
    seen: Followed[OnboardStanding] = field(default_factory=Followed)
    lifecycle: Onboarding = field(init=False)

    def __post_init__(self) -> None:
        """The lifecycle leaves here what it looked at."""
        self.lifecycle = Onboarding(self.seen)

    @property
    def key(self) -> Key:
        """Of the ConfigMap that stands for it."""
        return Key(self.asked.namespace, objects.order_name(self.asked))

    @property
    def here(self) -> OnboardStanding | None:
        """What was seen last."""
        return self.seen.get(self.key)


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
        stored = next(
            iter(await cluster.list(PERSISTENT_VOLUME_CLAIMS, asked.namespace, field_selector=selector)), None
        )
        if stored is None:
            raise OnboardRefused(f"results: {name} not found; create it, or name another place")
        if claim(stored).read_only:
            raise OnboardRefused(f"results: {name} can only be read; name one with ReadWriteMany or ReadWriteOnce")


async def take_over(on: OnboardRun, run: str) -> bool:
    """Whether it is new. Raises ``OnboardRefused``."""
    await check_results(on.cluster, on.asked)
    ours, key, new = objects.order(on.asked), on.key, True
    try:
        current = await on.cluster.create(CONFIG_MAPS, ours)
    except AlreadyExists:
        current, new = await on.cluster.get(CONFIG_MAPS, key.name, key.namespace), False
    if problem := objects.conflict(on.asked, current, ours):
        raise OnboardRefused(problem)
    await take(on.cluster, current, CONFIG_MAPS, run, {})
    return new


async def retry_failed(on: OnboardRun, attempt: str) -> None:
    """Try what failed again: the model's delivery, benchmarks, and candidates that were given up.

    ``attempt`` tells one request for it from the others.
    """
    cluster, asked = on.cluster, on.asked
    stored = await cluster.get(CONFIG_MAPS, on.key.name, on.key.namespace)
    memory, _ = parse_memory(OnboardMemory, MEMORY, (stored["metadata"].get("annotations") or {}).get(MEMORY))
    if memory.given_up:
        kept = render_memory(memory.model_copy(update={"given_up": {}}))
        body = {"metadata": {"annotations": {MEMORY: kept}}}
        await cluster.merge_patch(CONFIG_MAPS, on.key.name, body, on.key.namespace)
    for kind, annotation in ((BASE_MODELS, NUDGE), (BENCHMARK_JOBS, RE_RUN)):
        for obj in await cluster.list(kind, asked.namespace, f"{objects.LABEL}={asked.name}"):
            if (obj.get("status") or {}).get("state") == "Failed":
                body = {"metadata": {"uid": obj["metadata"]["uid"], "annotations": {annotation: attempt}}}
                await cluster.merge_patch(kind, obj["metadata"]["name"], body, asked.namespace)
