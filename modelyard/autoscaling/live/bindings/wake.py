"""Notice between two ticks that somebody waits for a binding's workload at zero, as ``loop.wake`` does for variants.

What is asked is what a tick would ask: the binding's wake expression and the metrics it takes from Prometheus. Nothing
is handed to the tick, which asks again; here it is only called earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from modelyard.autoscaling.bindings.view import BindingView
from modelyard.autoscaling.live.bindings.objects import BindingSpec
from modelyard.autoscaling.live.bindings.sources import Answers
from modelyard.autoscaling.live.polling import INTERVAL, Poller
from modelyard.autoscaling.live.wake_sources import ReadFailed, Reading
from modelyard.metrics.client import Prometheus, PrometheusError
from modelyard.objects import Key

LIMIT = 100
"""Distinct expressions followed between ticks; those beyond are asked in ticks only."""


class NumberReader:
    """One expression that gives one number, for all the bindings that use it."""

    def __init__(self, prometheus: Prometheus, query: str) -> None:
        self._prometheus = prometheus
        self._query = query

    async def read(self, models: Mapping[Key, str]) -> Reading:
        """The number, for each of the bindings."""
        answers = Answers(self._prometheus)
        await answers.ask([self._query])
        found = answers.of(self._query)
        if isinstance(found, str):
            raise ReadFailed(found)
        return dict.fromkeys(models, found)


class BindingWakes(Poller):
    """``follow`` after every look at the bindings, then ``wait`` until the next."""

    def __init__(self, prometheus: Prometheus | PrometheusError, interval: float = INTERVAL) -> None:
        super().__init__(interval)
        self._prometheus = prometheus

    def follow(self, bindings: Iterable[BindingSpec], views: Sequence[BindingView]) -> None:
        """From now on watch those of these bindings that are at zero; what this look saw is known to its tick."""
        specs = {spec.view.key: spec for spec in bindings}
        known, self._sources = self._sources, {}
        if isinstance(self._prometheus, PrometheusError):
            return
        prometheus = self._prometheus
        owners: dict[str, set[Key]] = {}
        for view in views:
            if _asleep(view) and view.key in specs:
                for query in _questions(specs[view.key], view):
                    owners.setdefault(query, set()).add(view.key)
        for query, keys in sorted(owners.items())[:LIMIT]:
            self._want(known, query, partial(NumberReader, prometheus, query), keys)
        seen = {view.key for view in views if any(_wanted(target.demand, target.external) for target in view.targets)}
        for source in self._sources.values():
            source.told |= seen & source.keys


def _asleep(view: BindingView) -> bool:
    """Whether the binding is at zero altogether, and would be decided on."""
    usable = view.problem is None and view.policy is not None and not view.deleting
    replicas = [target.current for target in view.targets if target.current is not None]
    return usable and bool(replicas) and not any(replicas)


def _questions(spec: BindingSpec, view: BindingView) -> Iterable[str]:
    if spec.wake_query:
        yield spec.wake_query
    assert view.policy is not None
    for queries in spec.sources.values():
        yield from (query for metric, query in queries.items() if metric in view.policy.targets)


def _wanted(demand: float | None, external: Mapping[str, float]) -> bool:
    return (demand or 0.0) > 0 or any(value > 0 for value in external.values())
