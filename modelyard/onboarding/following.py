"""An onboarding as somebody follows it: what stands for it, the right to work on it, and what was seen of it last."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from modelyard.cluster import CONFIG_MAPS, AlreadyExists, Cluster, Forbidden
from modelyard.models.uri import ClaimFolder, parse
from modelyard.models.world import claim
from modelyard.objects.kinds import PERSISTENT_VOLUME_CLAIMS
from modelyard.onboarding import objects
from modelyard.onboarding.lifecycle import Onboarding, OnboardStanding
from modelyard.onboarding.request import OnboardRequest
from modelyard.reconcile.following import Followed, take


@dataclass(eq=False)
class OnboardRun:
    """An onboarding as a run follows it."""

    cluster: Cluster
    asked: OnboardRequest
    seen: Followed[OnboardStanding] = field(default_factory=Followed)
    lifecycle: Onboarding = field(init=False)

    def __post_init__(self) -> None:
        """The lifecycle leaves here what it looked at."""
        self.lifecycle = Onboarding(self.asked, self.seen)

    @property
    def here(self) -> OnboardStanding | None:
        """What was seen last."""
        return self.seen.get(self.lifecycle.key)


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
    ours, key, new = objects.order(on.asked), on.lifecycle.key, True
    try:
        current = await on.cluster.create(CONFIG_MAPS, ours)
    except AlreadyExists:
        current, new = await on.cluster.get(CONFIG_MAPS, key.name, key.namespace), False
    if problem := objects.conflict(on.asked, current, ours):
        raise OnboardRefused(problem)
    await take(on.cluster, current, CONFIG_MAPS, run, {})
    return new
