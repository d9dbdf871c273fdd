"""Look-ups of Secrets, of which a plan needs to know whether they exist before it goes on.

Secrets of tenants may be read one by one and not listed or watched, so the reconcile shift asks for those that plans
need (``Plan.needs``), by name, and for their metadata alone. Every namespace has its share of the requests, and an
answer holds for a while: one that is missing is asked for again every ``RETRY`` seconds, so that what waits for it goes
on soon after somebody has created it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from modelyard.cluster import Cluster, ClusterError, Forbidden, Invalid, UnknownKind
from modelyard.fairness import interleave
from modelyard.objects import SECRETS, Key
from modelyard.reconcile.plans import Presence

MOST_LOOK_UPS = 100
"""Secrets looked up at a time, and of one namespace a fifth of them."""
RETRY = 5.0
"""Seconds after which a Secret that is missing is looked up again."""
TRUST = 60.0
"""Seconds for which a Secret that exists is not looked up again."""


class _Answer(NamedTuple):
    presence: Presence
    at: float


class SecretLookUps:
    """Presence of Secrets by key; a ``reconcile.plan.Store`` that holds what was asked for."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._answers: dict[Key, _Answer] = {}
        self.errors: Mapping[str, Exception] = {}
        """None: a Secret that cannot be asked for keeps its answer."""

    def get(self, key: Key) -> Presence:
        """The answer for this Secret; ``UNKNOWN`` until it was looked up."""
        answer = self._answers.get(key)
        return answer.presence if answer is not None else Presence.UNKNOWN

    def all(self) -> tuple[Presence, ...]:
        """Every answer, in key order."""
        return tuple(self._answers[key].presence for key in sorted(self._answers))

    def by(self, index: str, value: object) -> tuple[Presence, ...]:
        """Nothing: Secrets are known by their keys only."""
        return ()

    async def refresh(self, keys: Iterable[Key]) -> set[Key]:
        """Look up those of these Secrets whose answers are missing or old, and forget all others; the changed ones.

        What cannot be asked now keeps its answer.
        """
        wanted, now = set(keys), self._clock()
        self._answers = {key: answer for key, answer in self._answers.items() if key in wanted}
        due = sorted((key for key in wanted if self._is_due(key, now)), key=self._age)
        ordered, _ = interleave(due, lambda key: key.namespace, MOST_LOOK_UPS // 5)
        chosen = ordered[:MOST_LOOK_UPS]
        answers = await asyncio.gather(*map(self._look_up, chosen))
        changed = set()
        for key, presence in zip(chosen, answers, strict=True):
            if presence is None:
                continue
            if presence is not self.get(key):
                changed.add(key)
            self._answers[key] = _Answer(presence, now)
        return changed

    def _is_due(self, key: Key, now: float) -> bool:
        answer = self._answers.get(key)
        if answer is None:
            return True
        return now >= answer.at + (TRUST if answer.presence is Presence.PRESENT else RETRY)

    def _age(self, key: Key) -> tuple[float, Key]:
        answer = self._answers.get(key)
        return (answer.at if answer is not None else float("-inf")), key

    async def _look_up(self, key: Key) -> Presence | None:
        try:
            exists = await self._cluster.exists(SECRETS, key.name, key.namespace)
        except Forbidden:
            return Presence.FORBIDDEN
        except (Invalid, UnknownKind):  # no name that a Secret could have
            return Presence.ABSENT
        except ClusterError:
            return None
        return Presence.PRESENT if exists else Presence.ABSENT
