"""Which ModelServer a request goes to: the routes by model name, their rules, and the draw among targets. Pure.

A ``RouteTable`` never changes; a change of a route makes a new one, so that no request sees half a configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple

import re2
import xxhash

from modelyard.fairness import WorkBudget
from modelyard.objects import Key
from modelyard.routing.objects import Route, RoutingRule, TextTest, WeightedServer

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1 << 20
MATCH_WORK = 1_500_000
"""Limit of what the conditions of all rules cost for one request, in steps of a regular expression: about 10 ms."""
_CONDITION_WORK = 100
"""What a condition costs at least."""


@lru_cache(maxsize=1024)
def _regex(text: str) -> Any:
    try:
        return re2.compile(text.encode(), _OPTIONS)
    except (re2.error, UnicodeEncodeError):
        return None


def holds(test: TextTest, value: str, effort: WorkBudget | None = None) -> bool:
    """Whether a value passes: equal, else a prefix, else RE2 *found* in it; a test of nothing takes any value.

    A pattern that does not compile never matches, nor does what there is no effort left for (``None``: without end).
    Source: kthena-routing, 7.3.
    """
    if effort is not None and not effort.spend(_CONDITION_WORK):
        return False
    if test.exact is not None:
        return value == test.exact
    if test.prefix is not None:
        return value.startswith(test.prefix)
    if test.regex is not None:
        found, text = _regex(test.regex), value.encode("utf-8", "replace")
        if found is None or (effort is not None and not effort.spend(len(text) * found.programsize)):
            return False
        return found.search(text) is not None
    return True


class Asked(NamedTuple):
    """What of a request decides the route: the name as the client sent it, the decoded path without query, and the
    first value of each header by its name in lower case."""

    model: str
    path: str = ""
    headers: Mapping[str, str] = {}
    session: str = ""
    """Requests with the same text are drawn to the same target; empty: every draw is independent."""


def takes(rule: RoutingRule, asked: Asked, effort: WorkBudget | None = None) -> bool:
    """Whether every condition of the rule holds. An absent header counts as empty."""
    return (
        (effort is None or effort.spend(_CONDITION_WORK))
        and (rule.model is None or rule.model == asked.model)
        and (rule.path is None or holds(rule.path, asked.path, effort))
        and all(holds(test, asked.headers.get(name, ""), effort) for name, test in rule.headers)
    )


def at(weights: Sequence[int], point: int) -> int:
    """The index that a point in [0, sum of weights) falls on; a weight of 0 is never hit. Source: 7.4."""
    for index, weight in enumerate(weights):
        point -= weight
        if point < 0:
            return index
    raise ValueError("the point is not below the sum of the weights")


def draw(targets: Sequence[WeightedServer], session: str, random: Random) -> WeightedServer | None:
    """A target by weight, or ``None`` where no weight is above 0."""
    total = sum(target.weight for target in targets)
    if not total:
        return None
    if len(targets) == 1:
        return targets[0]
    point = xxhash.xxh64_intdigest(session) % total if session else random.randrange(total)
    return targets[at([target.weight for target in targets], point)]


class Destination(NamedTuple):
    """Where a request goes, why, and whether its name is that of an adapter."""

    route: Route
    rule: int
    server: Key
    lora: bool
    instead_of: str = ""
    """The server that was drawn first and has no ready pod, if there was one."""


class ServedRoutes(NamedTuple):
    """The routes that are tried for a name, in order, and whether the name is that of an adapter."""

    routes: tuple[Route, ...]
    lora: bool


def routes_served(name: str, claims: Iterable[Route], holder: str) -> ServedRoutes:
    """Return the routes of the namespace ``holder`` that take requests for a name, the oldest first.

    Those with the name as their model come before those that have it as an adapter. Source: kthena-routing, 7.1. Routes
    of other namespaces are never tried: a request that no rule of the holder takes is not handed to another tenant.
    """
    own = [route for route in claims if route.key.namespace == holder]
    models = tuple(route for route in own if route.model == name)
    return ServedRoutes(models or tuple(own), not models)


def oldest(name: str, claims: Sequence[Route]) -> str:
    """Return the namespace of the oldest route with a name."""
    return claims[0].key.namespace


_NOBODY = ServedRoutes((), False)

HolderOf = Callable[[str, Sequence[Route]], str]
"""Namespace that holds a name, of its routes, the oldest first; empty: none of theirs."""


@dataclass(frozen=True, slots=True)
class RouteTable:
    """The routes that can be used under each of their names, oldest first, and those that are tried for it."""

    claims: Mapping[str, tuple[Route, ...]] = field(default_factory=dict)
    served: Mapping[str, ServedRoutes] = field(default_factory=dict)

    @classmethod
    def of(cls, routes: Iterable[Route], holder: HolderOf = oldest) -> RouteTable:
        """The table of these routes. One that cannot be used or is being deleted serves no name."""
        return cls().changed([(None, route) for route in routes], holder)

    def changed(
        self,
        changes: Iterable[tuple[Route | None, Route | None]],
        holder: HolderOf = oldest,
        names: Iterable[str] = (),
    ) -> RouteTable:
        """The table after routes came, changed or went (before, after), and with new holders of ``names``.

        What this one holds stays as it is.
        """
        new: dict[str, dict[Key, Route | None]] = {name: {} for name in names}
        for before, after in changes:
            for route, value in ((before, None), (after, after)):
                for name in route.names if route else ():
                    if route:
                        new.setdefault(name, {})[route.key] = value
        if not new:
            return self
        claims, served = dict(self.claims), dict(self.served)
        for name, edits in new.items():
            kept = [route for route in claims.pop(name, ()) if route.key not in edits]
            routes = tuple(sorted([*kept, *filter(None, edits.values())], key=lambda route: (route.created, route.key)))
            served.pop(name, None)
            if not routes:
                continue
            claims[name] = routes
            tried = routes_served(name, routes, holder(name, routes))
            if tried.routes:
                served[name] = tried
        return RouteTable(claims, served)

    @property
    def names(self) -> list[str]:
        """Every name that requests may ask for, sorted."""
        return sorted(self.served)

    def __contains__(self, name: str) -> bool:
        return name in self.served

    def tried(self, name: str) -> ServedRoutes:
        """The routes that are tried for a name, in order, and whether it is an adapter's."""
        return self.served.get(name, _NOBODY)

    def find(self, asked: Asked, has_pods: Callable[[Key], bool], random: Random) -> Destination | None:
        """Where the request goes: the first rule that takes it, of the oldest route that has one and a target.

        A target without ready pods gives way to one of the same rule that has some. ``None``: nothing takes it.
        """
        routes, lora = self.tried(asked.model)
        effort = WorkBudget(MATCH_WORK)
        for route in routes:
            for number, rule in enumerate(route.rules):
                if not takes(rule, asked, effort):
                    continue
                target = draw(rule.targets, asked.session, random)
                if target is None:
                    break  # no other rule of this route, the next route
                server = Key(route.key.namespace, target.server)
                if len(rule.targets) > 1 and not has_pods(server):
                    ready = [one for one in rule.targets if has_pods(Key(route.key.namespace, one.server))]
                    other = draw(ready, asked.session, random)
                    if other is not None:
                        return Destination(route, number, Key(route.key.namespace, other.server), lora, target.server)
                return Destination(route, number, server, lora)
        return None
