"""What a loop process keeps about bindings between ticks. Nothing here decides anything; losing it costs little.

After a restart the first tick has no earlier snapshot of counters and histograms: a rate or a 95th percentile over the
last minute is missing for that tick, and missing means that replicas are kept. Everything else is read anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from modelyard.autoscaling.live.bindings import objects
from modelyard.autoscaling.live.bindings.objects import BindingSpec, PolicySpec
from modelyard.autoscaling.live.bindings.values import Histories
from modelyard.metrics.scrape import Scraper
from modelyard.objects import WorkloadId

log = logging.getLogger(__name__)

T = TypeVar("T")


class Parsed(Generic[T]):
    """Parsed objects by uid and resourceVersion, so that an unchanged fleet is not parsed every tick.

    An object in a form that its schema should have refused (a CRD that is not ours) is left out and told once: it must
    not stop all the others.
    """

    def __init__(self, parse: Callable[[Mapping[str, Any]], T]) -> None:
        self._parse = parse
        self._known: dict[str, tuple[str, T | None]] = {}

    def all(self, items: Iterable[Mapping[str, Any]]) -> tuple[T, ...]:
        """Parse, reusing what has not changed; forgets what is gone."""
        fresh: dict[str, tuple[str, T | None]] = {}
        for item in items:
            uid, version = item["metadata"]["uid"], item["metadata"]["resourceVersion"]
            known = self._known.get(uid)
            fresh[uid] = known if known and known[0] == version else (version, self._read(item))
        self._known = fresh
        return tuple(one for _, one in fresh.values() if one is not None)

    def _read(self, item: Mapping[str, Any]) -> T | None:
        try:
            return self._parse(item)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            name = f"{item['metadata'].get('namespace', '')}/{item['metadata'].get('name', '')}"
            log.error("%s %s is left alone, it cannot be read: %r", item.get("kind") or "object", name, error)
            return None


class PolicyState:
    """The scraper's connections, snapshots of counters and histograms, parsed objects, learnt start-up times.

    ``async with PolicyState() as state``: closes the connections. ``listed_policies`` what the last tick read.
    """

    def __init__(self, scraper: Scraper | None = None) -> None:
        self.scraper = scraper or Scraper()
        self.bindings: Parsed[BindingSpec] = Parsed(objects.binding)
        self.policies: Parsed[PolicySpec] = Parsed(objects.policy)
        self.histories = Histories()
        self.startup: dict[WorkloadId, float] = {}
        self.listed_policies: tuple[PolicySpec, ...] = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.scraper.close()
