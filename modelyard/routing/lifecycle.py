"""The life of a ModelRoute and of a ModelServer: nothing is made for them, their statuses tell what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modelyard.objects import Condition, Key, Notice, ResourceType
from modelyard.objects.kinds import PODS
from modelyard.objects.parse import conditions
from modelyard.reconcile.plan import Plan, Status, World
from modelyard.reconcile.status import is_due
from modelyard.routing import findings
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
        if route is None or route.subject.deleting:
            return None
        missing = [name for name in route.servers if world[SERVERS].get(Key(key.namespace, name)) is None]
        first = {name: findings.winner(name, world[ROUTES].by("name", name)) for name in route.names}
        ahead = {name: other for name, other in first.items() if other is not None and other.key != key}
        return _tell(route, findings.of_route(route, missing, ahead), {}, now)


@dataclass(frozen=True)
class ServerStatus:
    """ModelServers: whether pods are there to serve, and how many."""

    name: str = "server-status"
    about: ResourceType = SERVERS
    kinds: tuple[ResourceType, ...] = (SERVERS, PODS)

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        """The status the server should have."""
        server: Server | None = world[SERVERS].get(key)
        if server is None or server.subject.deleting:
            return None
        if server.problem is not None:
            return _tell(server, findings.of_server(server, findings.Counts(0)), dict.fromkeys(_COUNTS), now)
        label, value = min(server.labels.items())
        found = findings.counts(server, world[PODS].by("label", (key.namespace, label, value)))
        return _tell(server, findings.of_server(server, found), dict(zip(_COUNTS, found, strict=True)), now)


_COUNTS = ("readyPods", "prefillPods", "decodePods", "completeGroups")
_OF_ROUTES = frozenset({findings.ACCEPTED, findings.RESOLVED_REFS, findings.CONFLICTED})
_OF_SERVERS = frozenset({findings.READY})


def _tell(stored: Stored, said: Sequence[findings.Finding], counts: Mapping[str, Any], now: float) -> Plan:
    """A plan with the status as it should be, or with none where it says so already."""
    ours = _OF_ROUTES if stored.subject.kind == ROUTES else _OF_SERVERS
    subject = stored.subject
    wanted = tuple(Condition(f.type, str(f.status), f.reason, f.message, subject.generation) for f in said)
    status = Status({"observedGeneration": subject.generation, **counts}, wanted, transient=ours)
    if not is_due(status, stored.status, now, 0.0):
        return Plan(subject)
    told = {condition.type: condition for condition in conditions(stored.status["conditions"])}
    return Plan(
        subject,
        reason=wanted[0].reason,
        message=wanted[0].message,
        status=status,
        notices=tuple(
            Notice(c.reason, c.message, "Warning" if _bad(c) else "Normal")
            for c in wanted
            if _is_news(told.get(c.type), c)
        ),
    )


def _is_news(before: Condition | None, after: Condition) -> bool:
    """Whether people should hear of it: that all is well from the start is no news."""
    return _bad(after) if before is None else (before.status, before.reason) != (after.status, after.reason)


def _bad(condition: Condition) -> bool:
    return (condition.status == "True") is (condition.type == findings.CONFLICTED)
