"""ModelRoutes and ModelServers as the kinds of a cluster that runs an inference gateway, as far as those can say the
same: an InferencePool for each server, an HTTPRoute for each route. What they cannot say is a remark, or refused where
requests would go elsewhere. Pure. Source: kthena-routing, 21.3; the Gateway API and its Inference Extension.

The gateway has to copy the body's model into the header ``X-Gateway-Model-Name``, as body-based routing does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from modelyard.objects import Key, shown
from modelyard.routing.objects import Route, RoutingRule, Server, TextTest
from modelyard.routing.table import RouteTable, holds

MODEL_HEADER = "X-Gateway-Model-Name"
_POOLS = "inference.networking.k8s.io"
_REWRITES = "inference.networking.x-k8s.io/v1alpha2"
_MATCHES, _RULES = 64, 16
"""What an HTTPRoute holds: matches of a rule, rules."""

Object = dict[str, Any]


class Gateway(NamedTuple):
    """Where routes attach, and which Service picks endpoints. ``rewrites``: whether the picker leaves the model's name
    in the body as it is, so that an InferenceModelRewrite has to say what engines know; that of this project does not.
    """

    name: str
    namespace: str = ""
    picker: str = "modelyard-router"
    picker_port: int = 9002
    rewrites: bool = False


class GatewayObjects(NamedTuple):
    """The objects, and what they do not say: (kind and name, why)."""

    objects: tuple[Object, ...]
    remarks: tuple[tuple[str, str], ...]


class Inexpressible(Exception):
    """Requests would go elsewhere than the route says."""


def render(
    routes: Sequence[Route], servers: Mapping[Key, Server], gateway: Gateway, table: RouteTable | None = None
) -> GatewayObjects:
    """What these routes and servers are there. A route that cannot be said is left out, with a remark.

    ``table`` says which namespace holds which name; without it the one with the oldest of these routes does.
    """
    table = table or RouteTable.of(routes)
    objects: list[Object] = []
    remarks: list[tuple[str, str]] = []
    for server in sorted(servers.values(), key=lambda one: one.key):
        name = f"ModelServer {server.key}"
        if server.problem is not None:
            remarks.append((name, f"left out: {server.problem.message}"))
            continue
        objects.append(_pool(server, gateway))
        remarks += [(name, why) for why in _of_server(server)]
    for route in sorted(routes, key=lambda one: one.key):
        name = f"ModelRoute {route.key}"
        try:
            made, said = _route(route, servers, gateway, table)
        except Inexpressible as why:
            remarks.append((name, f"left out: {why}"))
            continue
        objects += made
        remarks += [(name, why) for why in said]
    if gateway.rewrites:
        objects += _rewrites(routes, servers)
    return GatewayObjects(tuple(objects), tuple(remarks))


def _object(api: str, kind: str, key: Key, spec: Object) -> Object:
    return {
        "apiVersion": api, "kind": kind, "metadata": {"name": key.name, "namespace": key.namespace}, "spec": spec
    }  # fmt: skip


def _pool(server: Server, gateway: Gateway) -> Object:
    picker = {"name": gateway.picker, "port": {"number": gateway.picker_port}, "failureMode": "FailClose"}
    spec = {
        "selector": {"matchLabels": dict(server.labels)},
        "targetPorts": [{"number": server.port}],
        "endpointPickerRef": picker,
    }
    return _object(f"{_POOLS}/v1", "InferencePool", server.key, spec)


def _of_server(server: Server) -> Iterator[str]:
    if server.scheme == "https":
        yield "workloadPort.protocol https: a pool has none; say it in a BackendTLSPolicy"
    if server.retry is not None:
        yield "trafficPolicy.retry: the gateway's own retries hold"


def _route(
    route: Route, servers: Mapping[Key, Server], gateway: Gateway, table: RouteTable
) -> tuple[list[Object], list[str]]:
    if route.problem is not None:
        raise Inexpressible(route.problem.message)
    if not route.names:
        raise Inexpressible("it is being deleted")
    held = [name for name in route.names if route in table.tried(name).routes]
    said = [
        f"the name {shown(name)} is left out: other routes get its requests" for name in route.names if name not in held
    ]
    if not held:
        raise Inexpressible("other routes get the requests for all of its names; modelyard route explain says which")
    rules = []
    for index, rule in enumerate(route.rules):
        where = f"rules[{index}]"
        names = [one for one in held if rule.model in (None, one)]
        if not names:
            said.append(f"{where} is left out: it is for a model that the route does not name")
            continue
        for later in route.rules[index + 1 :]:
            if _overtakes(later, rule):
                raise Inexpressible(
                    f"{where} comes before a more specific rule that takes some of its requests, and an HTTPRoute "
                    "would prefer that one: put the more specific rule first"
                )
        if rule.path is not None and rule.path.exact is None and rule.path.prefix not in (None, "", "/"):
            said.append(f"{where}: the prefix {rule.path.prefix!r} takes whole segments there")
        matches = [_match(name, rule, where) for name in names]
        kind = {"group": _POOLS, "kind": "InferencePool"}
        backends = [{**kind, "name": one.server, "weight": one.weight} for one in rule.targets]
        keys = [Key(route.key.namespace, one.server) for one in rule.targets]
        said += [f"{where}: there is no ModelServer {key.name}" for key in keys if key not in servers]
        timeout = {servers[key].timeout for key in keys if key in servers}
        more: Object = {}
        if len(timeout) == 1 and (seconds := next(iter(timeout))):
            more["timeouts"] = {"backendRequest": f"{max(1, round(seconds * 1000))}ms"}
        elif len(timeout) > 1:
            said.append(f"{where}: its targets have different trafficPolicy.timeout, and a rule has one: it has none")
        for start in range(0, len(matches), _MATCHES):
            rules.append({"matches": matches[start : start + _MATCHES], "backendRefs": backends, **more})
    if not rules or len(rules) > _RULES:
        raise Inexpressible(f"an HTTPRoute holds 1 to {_RULES} rules, not {len(rules)}: split the route")
    if route.budget is not None:
        said.append("rateLimit: the picker counts it; the gateway by itself does not")
    parent = {"name": gateway.name, **({"namespace": gateway.namespace} if gateway.namespace else {})}
    spec = {"parentRefs": [parent], "rules": rules}
    return [_object("gateway.networking.k8s.io/v1", "HTTPRoute", route.key, spec)], said


def _match(model: str, rule: RoutingRule, where: str) -> Object:
    headers = [{"type": "Exact", "name": MODEL_HEADER, "value": model}]
    for name, test in rule.headers:
        if holds(test, ""):
            raise Inexpressible(f"{where}: the test of the header {name!r} also takes requests without it")
        headers.append(_header(name, test))
    found: Object = {"headers": headers}
    if rule.path is not None and rule.path != TextTest():
        found["path"] = _path(rule.path)
    return found


def _header(name: str, test: TextTest) -> Object:
    if test.exact is not None:
        return {"type": "Exact", "name": name, "value": test.exact}
    pattern = f"^{_quoted(test.prefix)}.*" if test.prefix is not None else _anywhere(test.regex or "")
    return {"type": "RegularExpression", "name": name, "value": pattern}


def _path(test: TextTest) -> Object:
    if test.exact is not None:
        return {"type": "Exact", "value": test.exact}
    if test.prefix is not None:
        return {"type": "PathPrefix", "value": test.prefix.rstrip("/") or "/"}
    return {"type": "RegularExpression", "value": _anywhere(test.regex or "")}


def _anywhere(pattern: str) -> str:
    """Found somewhere, where a gateway wants the whole text to match."""
    return f".*(?:{pattern}).*"


def _quoted(text: str) -> str:
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)


def _rank(rule: RoutingRule) -> tuple[int, int, int]:
    """What an HTTPRoute prefers, more of it first: an exact path, a longer prefix (no test is ``/``), more headers."""
    path = rule.path or TextTest()
    return int(path.exact is not None), len(path.exact or path.prefix or "/"), len(rule.headers)


def _overtakes(later: RoutingRule, earlier: RoutingRule) -> bool:
    if earlier.model is not None and later.model is not None and earlier.model != later.model:
        return False
    mine, theirs = dict(earlier.headers), dict(later.headers)
    both = [(mine[name].exact, theirs[name].exact) for name in mine.keys() & theirs.keys()]
    if any(None not in pair and pair[0] != pair[1] for pair in both):
        return False
    one, other = (rule.path or TextTest() for rule in (earlier, later))
    if one.regex is not None or other.regex is not None:
        # What a gateway prefers then is its own affair, but that no test of the path comes last.
        return one != other and other != TextTest()
    if one.exact is not None or other.exact is not None:
        apart = not (other.exact or one.exact or "").startswith(one.prefix or other.prefix or "")
        apart = apart or (one.exact is not None and other.exact is not None and one.exact != other.exact)
    else:
        prefixes = sorted((one.prefix or "", other.prefix or ""))
        apart = not prefixes[1].startswith(prefixes[0])
    return not apart and _rank(later) > _rank(earlier)


def _rewrites(routes: Sequence[Route], servers: Mapping[Key, Server]) -> Iterator[Object]:
    """For each server with a name of its own for the model, what clients call it; names of adapters stay."""
    for server in sorted(servers.values(), key=lambda one: one.key):
        if not server.model or server.problem is not None:
            continue
        asked = sorted(
            {
                r.model
                for r in routes
                if r.model and r.key.namespace == server.key.namespace and server.key.name in r.servers
            }
            - {server.model}
        )
        if asked:
            rules = [
                {
                    "matches": [{"model": {"type": "Exact", "value": name}}],
                    "targets": [{"modelRewrite": server.model}],
                }
                for name in asked
            ]
            spec = {"poolRef": {"group": _POOLS, "kind": "InferencePool", "name": server.key.name}, "rules": rules}
            yield _object(_REWRITES, "InferenceModelRewrite", server.key, spec)
