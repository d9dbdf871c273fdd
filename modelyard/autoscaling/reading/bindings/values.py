"""From the pages of a tick to one map of metric values per instance.

What the numbers mean is decided by ``autoscaling.bindings.samples``; here they are put together by pod and instance,
and the earlier looks at each pod, which rates and percentiles need, are kept from tick to tick.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from modelyard.autoscaling.bindings import PodHistory, joined, pod_values
from modelyard.autoscaling.reading.bindings.pods import Instance
from modelyard.metrics.vocabulary import Page, Scrape, Signal, names_of


def demand_metrics() -> tuple[str, ...]:
    """Requests in an engine, running and waiting: what must be none before the last instance goes."""
    return names_of(Signal.RUNNING, Signal.WAITING)


class Reading(NamedTuple):
    """What the instances of one target say.

    ``demand`` is ``None`` when an instance could not be read (unless others already have some), or when no engine
    shows such a metric: then ``tells_demand`` is false.
    """

    instances: tuple[Mapping[str, float], ...]
    demand: float | None
    tells_demand: bool
    errors: tuple[str, ...]
    unknown: frozenset[str] = frozenset()
    """Metrics that an instance has or may have and that could not be read; one it shows not at all is none of them."""


class _Values(NamedTuple):
    values: Mapping[str, float]
    problems: Mapping[str, str]
    shown: frozenset[str]
    """Names that are on the page, readable or not."""
    absent: frozenset[str] = frozenset()
    times: frozenset[str] = frozenset()


class Measured:
    """The values of every page of a tick."""

    def __init__(self, pages: Mapping[Scrape, _Values | str]) -> None:
        self._pages = pages

    def read(self, instances: Sequence[Instance], port: int, uri: str, metrics: Sequence[str]) -> Reading:
        """The ``metrics`` of these instances, a map for each: what could not be read is left out, with the reason."""
        maps: list[Mapping[str, float]] = []
        lacking: dict[tuple[str, str], list[str]] = defaultdict(list)
        errors: list[str] = []
        unknown: set[str] = set()
        demand, unread, tells = 0.0, False, False
        shows_demand = demand_metrics()
        for instance in instances:
            values: list[dict[str, float]] = []
            times: set[str] = set()
            if not instance.endpoints:
                unread = True
                unknown.update(metrics)
            for endpoint in instance.endpoints:
                page = self._pages.get(Scrape(endpoint, port, uri), "not scraped")
                if isinstance(page, str):
                    values.append({})
                    unread = True
                    unknown.update(metrics)
                    if page != "not scraped":
                        errors.append(f"pod {endpoint.name}: {page}")
                    continue
                values.append({name: value for name, value in page.values.items() if name in metrics})
                times |= page.times
                for metric in metrics:
                    if metric in page.problems:
                        unknown.update({metric} - page.absent)
                        lacking[metric, page.problems[metric]].append(endpoint.name)
                load = [page.values[name] for name in shows_demand if name in page.values]
                # A page without them, of an engine of another kind, only says nothing; NaN in one says "not known".
                unread = unread or any(name in page.problems and name in page.shown for name in shows_demand)
                tells = tells or bool(load)
                demand += max(0.0, sum(load))
            maps.append(joined(values, times))
        errors += [_lack(metric, why, pods, len(instances)) for (metric, why), pods in lacking.items()]
        known = demand if tells and (demand > 0 or not unread) else None
        return Reading(tuple(maps), known, tells or unread, tuple(errors), frozenset(unknown))


def _lack(metric: str, why: str, pods: Sequence[str], count: int) -> str:
    who = f"pod {pods[0]}" if len(pods) == 1 else f"{len(pods)} pods of {count} instances, first {pods[0]}"
    return f"metric {metric} {why} ({who})"


class Histories:
    """Earlier looks at each pod. A process that starts anew has none: rates and percentiles need a second look."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int, str], PodHistory] = {}

    def measure(
        self, wanted: Mapping[Scrape, Iterable[str]], pages: Mapping[Scrape, Page | str], from_start: Collection[Scrape]
    ) -> Measured:
        """The values of each page; pods that are gone are forgotten. ``from_start``: a first histogram counts whole."""
        results: dict[Scrape, _Values | str] = {}
        fresh: dict[tuple[str, int, str], PodHistory] = {}
        for scrape, page in pages.items():
            key = scrape.endpoint.uid, scrape.port, scrape.uri
            history = fresh[key] = self._of.get(key, PodHistory())
            if isinstance(page, str):
                results[scrape] = page
                continue
            values = pod_values(
                wanted[scrape], page.samples, history, scrape.endpoint.start, page.at, from_start=scrape in from_start
            )
            shown = frozenset((*(sample.name for sample in page.samples), *page.problems))
            problems = {**values.problems, **page.problems}
            absent = values.absent - page.problems.keys()
            results[scrape] = _Values(values.values, problems, shown, absent, values.times)
            fresh[key] = values.history
        self._of = fresh
        return Measured(results)
