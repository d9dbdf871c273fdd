"""What follows for the status of a route or a server from the routes, servers and pods there are. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from modelyard.objects import Key, Pod, cut, shown
from modelyard.resources import MINDIE
from modelyard.routing.model_names import BINDINGS
from modelyard.routing.objects import DECODE, PREFILL, Fault, Route, Server, role_of, serves
from modelyard.routing.sharing import redis_url

ACCEPTED, RESOLVED_REFS, CONFLICTED, READY = "Accepted", "ResolvedRefs", "Conflicted", "Ready"
LIMIT_SHARED = "RateLimitShared"
NAME_IN_USE, NAME_RESERVED, TOO_MANY_NAMES = "ModelNameInUse", "ModelNameReserved", "TooManyModelNames"
ROUTER_CONFIGURATION: Final = "modelyard-router"
"""ConfigMap of the controller's namespace with the configuration of the routers in the key ``routerConfiguration``."""
_MOST_NAMED = 3
_LONGEST_ADDRESS = 260


class Finding(NamedTuple):
    """One condition as it should be; ``status`` is ``None`` for Unknown."""

    type: str
    status: bool | None
    reason: str
    message: str


class RouterRedis(NamedTuple):
    """The Redis servers of the routers' configuration: URLs by address, or why it cannot be read."""

    servers: Mapping[str, str] = {}
    problem: str = ""


def of_route(
    route: Route, missing: Sequence[str], conflicts: Sequence[Fault] = (), redis: RouterRedis | None = None
) -> tuple[Finding, ...]:
    """Return the conditions of a route.

    ``missing`` are the ModelServers that it names and that are not there, ``conflicts`` the names whose requests go
    elsewhere. ``redis`` is ``None`` where the routers' configuration is not in a ConfigMap.
    """
    if route.problem is not None:
        return (Finding(ACCEPTED, False, *route.problem),)
    return (
        Finding(ACCEPTED, True, "Accepted", "every rule can be followed"),
        Finding(RESOLVED_REFS, False, "ModelServerNotFound", f"not in this namespace: {_some(missing)}")
        if missing
        else Finding(RESOLVED_REFS, True, "ResolvedRefs", "every ModelServer that is named is there"),
        Finding(CONFLICTED, True, conflicts[0].reason, _some([conflict.message for conflict in conflicts]))
        if conflicts
        else Finding(CONFLICTED, False, "NoConflicts", "no other route comes first for any of its names"),
        *_shared_limit(route, redis),
    )


def _shared_limit(route: Route, redis: RouterRedis | None) -> Iterator[Finding]:
    if not route.redis:
        return
    field, address = "spec.rateLimit.global.redis.address", cut(route.redis, _LONGEST_ADDRESS)
    if route.budget is None:
        limits = "set inputTokensPerUnit or outputTokensPerUnit, or remove rateLimit"
        text = f"{field} {address} is not used: the route has no limit to share; {limits}"
        yield Finding(LIMIT_SHARED, False, "NoLimit", text)
    elif redis_url(route.key, route.redis, redis.servers if redis is not None else {}) is not None:
        yield Finding(LIMIT_SHARED, True, "Shared", f"all replicas of the router count in the Redis at {address}")
    elif redis is not None and redis.problem:
        text = f"{field} {address}: ConfigMap {ROUTER_CONFIGURATION}, which lists what is accepted, {redis.problem}"
        yield Finding(LIMIT_SHARED, None, "ConfigurationInvalid", text)
    else:
        text = (
            f"{field} {address} is not used, and each replica of the router counts alone: it is neither a Service of"
            f" namespace {route.key.namespace} nor in redis.servers of ConfigMap {ROUTER_CONFIGURATION}"
            f"{'' if redis is not None else ', which does not exist'}; name such a Service as"
            f" NAME.{route.key.namespace}.svc:PORT, or have an administrator list the address"
        )
        yield Finding(LIMIT_SHARED, False, "AddressNotAccepted", text)


def own_conflict(route: Route, name: str, first: Route) -> Fault:
    """Another route of the namespace comes first."""
    if first.model == name != route.model:
        text = f"{shown(name)} is the model of {first.key}, so that it is never taken for an adapter of this route"
    else:
        text = f"{shown(name)} belongs to {first.key}, which is older and comes first"
    return Fault(NAME_IN_USE, f"{text}; choose another name, or delete one of the two routes")


def held_elsewhere(name: str, holder: str, first: Key | None) -> Fault:
    """Another namespace has had the name for longer; ``first`` is its route, where that is known."""
    by = str(first) if first is not None else f"namespace {holder}"
    remedy = "choose another name, or have an administrator bind this one to your namespace"
    return Fault(NAME_IN_USE, f"{shown(name)} is held by {by}, which gets all requests for it; {remedy}")


def reserved(name: str, bound: Iterable[str]) -> Fault:
    """An administrator has bound the name to other namespaces."""
    spaces = _some(sorted(bound))
    text = f"{shown(name)} is bound by an administrator to namespace {spaces}"
    return Fault(NAME_RESERVED, f"{text}; choose another name, or have ConfigMap {BINDINGS} changed")


def not_recorded(name: str, namespace: str, most: int) -> Fault:
    """The namespace has as many names as are recorded."""
    text = f"{shown(name)} is not served: namespace {namespace} has {most} names, the limit; remove some of its routes"
    return Fault(TOO_MANY_NAMES, text)


class Counts(NamedTuple):
    """Ready pods of a server; all but the first ``None`` where prefill and decode are not apart."""

    ready: int
    prefill: int | None = None
    decode: int | None = None
    complete: int | None = None


def counts(server: Server, pods: Iterable[Pod]) -> Counts:
    """How many of the pods that the server selects can serve: they run, are ready, and are not being deleted."""
    serving = [pod for pod in pods if serves(server, pod)]
    if server.groups is None:
        return Counts(len(serving))
    roles = Counter(role_of(server, pod) for pod in serving)
    prefill, decode = ({group: n for (group, role), n in roles.items() if role == name} for name in (PREFILL, DECODE))
    return Counts(len(serving), sum(prefill.values()), sum(decode.values()), len(prefill.keys() & decode.keys()))


def of_server(server: Server, found: Counts) -> tuple[Finding, ...]:
    """What to say of a server whose pods are ``found``."""
    if server.problem is not None:
        return (Finding(READY, False, *server.problem),)
    if not found.ready:
        return (Finding(READY, False, "NoReadyPods", "no pod that the selector takes is running and ready"),)
    if found.complete == 0:
        text = f"no group has both: {found.prefill} prefill and {found.decode} decode pods are ready in groups"
        return (Finding(READY, False, "NoCompletePDGroup", text),)
    text = f"{found.ready} pods are ready" if found.ready > 1 else "1 pod is ready"
    if found.complete is not None:
        text += f", complete groups: {found.complete}"
    if server.engine == MINDIE:
        text += "; the engine is MindIE, whose metrics are not read"
    return (Finding(READY, True, "EndpointsReady", text),)


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMED
    return "; ".join(texts[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
