"""The life of a ModelRoute and of a ModelServer: nothing is made for them, their statuses tell what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modelyard.objects import Condition, Key, Notice, ResourceType
from modelyard.objects.kinds import PODS
from modelyard.reconcile.plan import Plan, Status, Subject, World
from modelyard.routing import status
from modelyard.routing.objects import ROUTES, SERVERS, Route, Server, Stored


@dataclass(frozen=True)
class RouteStatus:
    """ModelRoutes: accepted, references resolved, conflicted."""

    name: str = "route-status"
    about: ResourceType = ROUTES
    kinds: tuple[ResourceType, ...] = (ROUTES, SERVERS)

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        """The status the route should have."""
        route: Route | None = world[ROUTES].get(key)
        if route is None or route.deleting:
            return None
        missing = [name for name in route.servers if world[SERVERS].get(Key(key.namespace, name)) is None]
        first = {name: status.winner(name, world[ROUTES].by("name", name)) for name in route.names}
        ahead = {name: other for name, other in first.items() if other is not None and other.key != key}
        return _tell(ROUTES, route, status.of_route(route, missing, ahead), {})


@dataclass(frozen=True)
class ServerStatus:
    """ModelServers: whether pods are there to serve, and how many."""

    name: str = "server-status"
    about: ResourceType = SERVERS
    kinds: tuple[ResourceType, ...] = (SERVERS, PODS)

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        """The status the server should have."""
        server: Server | None = world[SERVERS].get(key)
        if server is None or server.deleting:
            return None
        if server.problem is not None:
            return _tell(SERVERS, server, status.of_server(server, status.Counts(0)), dict.fromkeys(_COUNTS))
        label, value = min(server.labels.items())
        found = status.counts(server, world[PODS].by("label", (key.namespace, label, value)))
        return _tell(SERVERS, server, status.of_server(server, found), dict(zip(_COUNTS, found, strict=True)))


_COUNTS = ("readyPods", "prefillPods", "decodePods", "completeGroups")
_OF_ROUTES = frozenset({status.ACCEPTED, status.RESOLVED_REFS, status.CONFLICTED})
_OF_SERVERS = frozenset({status.READY})


def _tell(kind: ResourceType, stored: Stored, findings: Sequence[status.Finding], counts: Mapping[str, Any]) -> Plan:
    """A plan with the status as it should be, or with none where it says so already."""
    ours = _OF_ROUTES if kind == ROUTES else _OF_SERVERS
    subject = Subject(kind, stored.key, stored.uid, stored.generation, stored.resource_version)
    wanted = tuple(Condition(f.type, str(f.status), f.reason, f.message, stored.generation) for f in findings)
    fields = {"observedGeneration": stored.generation, **counts}
    told = {condition.type: condition for condition in stored.conditions if condition.type in ours}
    known = all(stored.fields.get(name) == value for name, value in fields.items())
    if known and {one.type: _said(one) for one in wanted} == {name: _said(one) for name, one in told.items()}:
        return Plan(subject)
    return Plan(
        subject,
        reason=wanted[0].reason,
        message=wanted[0].message,
        status=Status(fields, wanted, transient=ours),
        notices=tuple(
            Notice(c.reason, c.message, "Warning" if _bad(c) else "Normal")
            for c in wanted
            if _news(told.get(c.type), c)
        ),
    )


def _news(before: Condition | None, now: Condition) -> bool:
    """Whether people should hear of it: that all is well from the start is no news."""
    return _bad(now) if before is None else (before.status, before.reason) != (now.status, now.reason)


def _said(condition: Condition) -> tuple[str, str, str, int | None]:
    return condition.status, condition.reason, condition.message, condition.observed_generation


def _bad(condition: Condition) -> bool:
    return (condition.status == "True") is (condition.type == status.CONFLICTED)
