"""The life of a ModelRoute and of a ModelServer: nothing is made for them, their statuses tell what is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from modelyard.objects import PODS, Condition, Key, Notice, pod
from modelyard.reconcile.plans import (
    Plan,
    Status,
    Want,
    World,
    settings_wanted,
    status_plan,
    wish_of,
    with_spec_warning,
)
from modelyard.routing import findings
from modelyard.routing.configuration import read_configuration
from modelyard.routing.model_names import MOST_NAMES, HeldNames, bindings_wanted, records_wanted
from modelyard.routing.objects import ROUTES, SERVERS, Fault, Route, Server, Stored, labels_of, route, server
from modelyard.routing.table import routes_served

ROUTES_WANTED = Want(ROUTES, route, indexes={"name": lambda route: route.claims}, wish=wish_of())
SERVERS_WANTED = Want(SERVERS, server, wish=wish_of())
PODS_WANTED = Want(PODS, pod, cached=True, indexes={"label": labels_of}, use="routing")


CONFIGURATIONS: Final = "router-configurations"
_KEY: Final = "routerConfiguration"


def router_redis(data: Mapping[str, str]) -> findings.RouterRedis:
    """Return the Redis servers that a ConfigMap has for routers."""
    if (text := data.get(_KEY)) is None:
        return findings.RouterRedis(problem=f"has no key {_KEY}")
    try:
        return findings.RouterRedis(read_configuration(text).redis.servers)
    except ValueError:
        # The error may quote credentials of the file, and tenants read what is said on their routes.
        return findings.RouterRedis(problem="cannot be read; a router's log has the reason")


class RouteStatus:
    """ModelRoutes: accepted, references resolved, conflicted, limits shared.

    ``home`` is the controller's namespace, which may have the configuration of the routers.
    """

    name = "route-status"
    about = ROUTES

    def __init__(self, home: str) -> None:
        self._configuration = Key(home, findings.ROUTER_CONFIGURATION)
        self._held = HeldNames()
        self.wants: tuple[Want[Any], ...] = (
            ROUTES_WANTED,
            SERVERS_WANTED,
            records_wanted(home),
            bindings_wanted(home),
            settings_wanted(home, findings.ROUTER_CONFIGURATION, router_redis, CONFIGURATIONS),
        )

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        """The status the route should have."""
        here: Route | None = world[ROUTES].get(key)
        if here is None or here.subject.deleting:
            return None
        missing = [name for name in here.servers if world[SERVERS].get(Key(key.namespace, name)) is None]
        self._held.follow(world)
        checked = (self._conflict(here, name, world[ROUTES].by("name", name)) for name in sorted(here.names))
        conflicts = [conflict for conflict in checked if conflict is not None]
        redis: findings.RouterRedis | None = world[CONFIGURATIONS].get(self._configuration)
        return _tell(here, findings.of_route(here, missing, conflicts, redis), {}, now)

    def _conflict(self, route: Route, name: str, claims: Iterable[Route]) -> Fault | None:
        held, own = self._held, route.key.namespace
        routes = sorted(claims, key=lambda claim: (claim.created, claim.key))
        holder = held.holder(name, held.orders(routes))
        usable = [claim for claim in routes if name in claim.names]
        tried = routes_served(name, usable, holder).routes
        if holder == own:
            first = tried[0]
            return None if first.key == route.key else findings.own_conflict(route, name, first)
        bound = held.bindings.namespaces(name)
        if bound is not None and own not in bound:
            return findings.reserved(name, bound)
        if not holder:
            return findings.not_recorded(name, own, MOST_NAMES)
        theirs = [*tried, *(claim for claim in routes if claim.key.namespace == holder)]
        return findings.held_elsewhere(name, holder, theirs[0].key if theirs else None)


class ServerStatus:
    """ModelServers: whether pods are there to serve, and how many."""

    name = "server-status"
    about = SERVERS
    wants = (SERVERS_WANTED, PODS_WANTED)

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        """The status the server should have."""
        here: Server | None = world[SERVERS].get(key)
        if here is None or here.subject.deleting:
            return None
        if here.problem is not None:
            return _tell(here, findings.of_server(here, findings.Counts(0)), dict.fromkeys(_COUNTS), now)
        label, value = min(here.labels.items())
        found = findings.counts(here, world[PODS].by("label", (key.namespace, label, value)))
        return _tell(here, findings.of_server(here, found), dict(zip(_COUNTS, found, strict=True)), now)


_COUNTS = ("readyPods", "prefillPods", "decodePods", "completeGroups")
_OF_ROUTES = frozenset({findings.ACCEPTED, findings.RESOLVED_REFS, findings.CONFLICTED, findings.LIMIT_SHARED})
_OF_SERVERS = frozenset({findings.READY})


def _tell(stored: Stored, said: Sequence[findings.Finding], counts: Mapping[str, Any], now: float) -> Plan:
    ours = _OF_ROUTES if stored.subject.kind == ROUTES else _OF_SERVERS
    subject = stored.subject
    wanted = tuple(
        Condition(f.type, "Unknown" if f.status is None else str(f.status), f.reason, f.message, subject.generation)
        for f in said
    )
    status = Status({"observedGeneration": subject.generation, **counts}, wanted, transient=ours)

    def news(before: Mapping[str, tuple[str, str]]) -> Iterable[Notice]:
        for c in wanted:
            # That all is well from the start is no news.
            if before[c.type] != (c.status, c.reason) if c.type in before else _bad(c):
                yield Notice(c.reason, c.message, "Warning" if _bad(c) else "Normal")

    return with_spec_warning(status_plan(subject, wanted[0], status, stored.status, now, news), stored.status)


def _bad(condition: Condition) -> bool:
    return condition.status == ("True" if condition.type == findings.CONFLICTED else "False")
