"""What a router knows of the cluster: the routes, and of each ModelServer the pods that are ready. Pure.

``RoutedFleet.update`` takes the objects as they are and works out anew what changed. What a request reads of it is
replaced as a whole and never edited, so that no request sees half a configuration; what is known of a pod (requests on
their way, what its engine told) stays with the pod as long as its process does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from modelyard.objects import Key, Pod
from modelyard.routing.model_names import HeldNames, NameBindings, NameHolder, NameRecord, Order, claim_order, digest
from modelyard.routing.objects import DECODE, PREFILL, Route, Server, role_of, serves
from modelyard.routing.schedule import RoutedPod
from modelyard.routing.table import RouteTable


@dataclass(frozen=True, slots=True)
class ServerPods:
    """A ModelServer and its ready pods: all that serve, and of those with disaggregated serving who does what."""

    server: Server
    pods: tuple[RoutedPod, ...] = ()
    prefill: tuple[RoutedPod, ...] = ()
    decode: tuple[RoutedPod, ...] = ()

    @property
    def serving(self) -> tuple[RoutedPod, ...]:
        """The pods that can answer a request."""
        return self.pods if self.server.groups is None else self.decode


class FleetChange(NamedTuple):
    """What an update changed. ``routes``: (before, after) of each, in key order; ``gone``: pods that are bound to a
    server no more, or whose process is another; ``served``: servers that have ready pods now and had none."""

    routes: tuple[tuple[Route | None, Route | None], ...] = ()
    gone: tuple[tuple[Key, RoutedPod], ...] = ()
    served: frozenset[Key] = frozenset()
    closed: frozenset[str] = frozenset()
    """Names that no request may ask for any more."""


class NameSources(NamedTuple):
    """Records and bindings of model names, as they are listed."""

    records: Sequence[NameRecord] = ()
    bindings: Sequence[NameBindings] = ()


class RoutedFleet:
    """The routes and backends now."""

    def __init__(self) -> None:
        self.table = RouteTable()
        self.backends: Mapping[Key, ServerPods] = {}
        self._routes: dict[Key, Route] = {}
        self.held = HeldNames()
        self._listed: Sequence[Route] = ()
        self._claims: dict[str, dict[str, _Claim]] = {}
        self._digests: dict[str, str] = {}
        self._batch = 0
        self._seen: dict[str, tuple[Sequence[Server], Sequence[Pod]]] = {}

    @property
    def size(self) -> tuple[int, int]:
        """Names that are served, and servers."""
        return len(self.table.names), len(self.backends)

    @property
    def routes(self) -> Mapping[Key, Route]:
        """The ModelRoutes."""
        return self._routes

    def has_pods(self, server: Key) -> bool:
        """Whether a ModelServer has a ready pod that can answer."""
        found = self.backends.get(server)
        return found is not None and bool(found.serving)

    def update(
        self,
        routes: Sequence[Route],
        servers: Callable[[str], Sequence[Server]],
        pods: Callable[[str], Sequence[Pod]],
        namespaces: Sequence[str],
        names: NameSources | None = None,
    ) -> FleetChange:
        """Take what there is. ``servers`` and ``pods`` are by namespace; ``namespaces`` are those with servers.

        ``names`` says which namespace holds which name; ``None``: as the last time.

        A sequence that is the very same as the last time holds nothing new, and costs nothing.
        """
        rerouted = self._reroute(routes, names)
        backends = dict(self.backends)
        gone: list[tuple[Key, RoutedPod]] = []
        served: set[Key] = set()
        for namespace in {*namespaces, *self._seen}:
            now = servers(namespace), pods(namespace)
            before = self._seen.get(namespace)
            if before is not None and now[0] is before[0] and now[1] is before[1]:
                continue
            if now[0]:
                self._seen[namespace] = now
            else:
                self._seen.pop(namespace, None)
            labelled: dict[tuple[str, str], list[Pod]] = {}
            for pod in now[1]:
                for label in pod.labels.items():
                    labelled.setdefault(label, []).append(pod)
            there = {
                one.key: _bind(one, _some(one, labelled), backends.get(one.key))
                for one in now[0]
                if not one.subject.deleting
            }
            for key in [one.key for one in (before[0] if before else ())]:
                old, new = backends.pop(key, None), there.get(key)
                kept = set(map(id, new.pods)) if new else set()
                gone += [(key, pod) for pod in (old.pods if old else ()) if id(pod) not in kept]
            for key, new in there.items():
                if new.serving and not self.has_pods(key):
                    served.add(key)
                backends[key] = new
        self.backends = backends
        return rerouted._replace(gone=tuple(gone), served=frozenset(served))

    def holding(self, name: str) -> NameHolder:
        """Describe who holds a name, for people."""
        claims = self._claims.get(name, {})
        holder = self.held.holder(name, {space: claim.order for space, claim in claims.items()})
        since = self.held.since(name).get(holder, "")
        return NameHolder(holder, since, self.held.bindings.namespaces(name), tuple(sorted(claims.keys() - {holder})))

    def _reroute(self, routes: Sequence[Route], names: NameSources | None) -> FleetChange:
        differing = self.held.update(*names) if names is not None else frozenset[str]()
        old, now = self._routes, self._routes
        if routes is not self._listed:
            now = {route.key: route for route in routes}
        differ = [] if now is old else [key for key in {*old, *now} if old.get(key) is not now.get(key)]
        changed = [(old.get(key), now.get(key)) for key in sorted(differ)]
        self._listed, self._routes = routes, now
        touched = self._claim(changed)
        if differing is None:
            touched.update(self._claims)
        else:
            touched.update(self._digests[text] for text in differing if text in self._digests)
        before = self.table
        self.table = before.changed(changed, self._holder, touched)
        closed = frozenset(name for name in touched if name in before and name not in self.table)
        return FleetChange(tuple(changed), closed=closed)

    def _holder(self, name: str, _: Sequence[Route]) -> str:
        return self.held.holder(name, {space: claim.order for space, claim in self._claims.get(name, {}).items()})

    def _claim(self, changed: Sequence[tuple[Route | None, Route | None]]) -> set[str]:
        """Return the names with changes. A namespace that moves one between its routes within a look keeps it."""
        touched: set[str] = set()
        self._batch += bool(changed)
        for _, after in changed:
            for name in after.claims if after else ():
                assert after is not None
                order = claim_order(after, imported=self.held.imported(after.key.namespace), batch=self._batch)
                spaces = self._claims.setdefault(name, {})
                claim = spaces.setdefault(after.key.namespace, _Claim(order))
                claim.order = min(claim.order, order)
                claim.routes.add(after.key)
                self._digests[digest(name)] = name
                touched.add(name)
        for before, after in changed:
            for name in before.claims if before else ():
                touched.add(name)
                if before is None or (after is not None and name in after.claims):
                    continue
                spaces = self._claims[name]
                spaces[before.key.namespace].routes.discard(before.key)
                if not spaces[before.key.namespace].routes:
                    del spaces[before.key.namespace]
                if not spaces:
                    del self._claims[name], self._digests[digest(name)]
        return touched


@dataclass(slots=True)
class _Claim:
    """The routes of a namespace with a name, and the place of the namespace among those that came with it."""

    order: Order
    routes: set[Key] = field(default_factory=set)


def _some(server: Server, labelled: Mapping[tuple[str, str], Sequence[Pod]]) -> Sequence[Pod]:
    """The fewest pods among which all of the server are: those with one of its labels."""
    return min((labelled.get(label, ()) for label in server.labels.items()), key=len, default=())


def _bind(server: Server, pods: Sequence[Pod], before: ServerPods | None) -> ServerPods:
    """The backend of a server among these pods of its namespace; a pod that is known stays the one it was."""
    if server.problem is not None:
        return ServerPods(server)
    known = {one.identity: one for one in before.pods} if before else {}
    bound: list[RoutedPod] = []
    by_role: dict[str, list[RoutedPod]] = {PREFILL: [], DECODE: [], "": []}
    for pod in pods:
        if not (serves(server, pod) and pod.ip):
            continue
        group, role = role_of(server, pod)
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        url = f"{server.scheme}://{host}:{server.port}"
        identity = f"{pod.uid} {pod.started} {url} {group}"
        found = known.get(identity)
        if found is None:
            found = RoutedPod(pod.key, url, group, identity=identity)
        bound.append(found)
        by_role[role].append(found)
    return ServerPods(server, tuple(bound), tuple(by_role[PREFILL]), tuple(by_role[DECODE]))
