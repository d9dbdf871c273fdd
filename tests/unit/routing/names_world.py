"""Routes whose names are recorded as the reconcile shift does it, and routers that follow them: all in memory."""

from __future__ import annotations

from random import Random
from typing import Any

from routing_world import HOME, NOW, a_route, metadata

from modelyard.objects import Key, ResourceType
from modelyard.reconcile.kernel.mirror import Store
from modelyard.reconcile.plans.plan import Plan, World
from modelyard.routing.fleet import NameSources, RoutedFleet
from modelyard.routing.lifecycle import RouteStatus
from modelyard.routing.model_names import BINDINGS, RECORDS, bindings_wanted, records_wanted
from modelyard.routing.name_records import NameRecords
from modelyard.routing.objects import ROUTES, route
from modelyard.routing.table import Asked


class Names:
    """Routes and ConfigMaps. ``tick`` is one of the controller; a router sees the objects when it is asked to look."""

    def __init__(self) -> None:
        self.routes: dict[Key, dict[str, Any]] = {}
        self.config_maps: dict[str, dict[str, Any]] = {}
        self.now = NOW
        self.revision = 100
        self.controller = NameRecords(HOME)
        self.statuses = RouteStatus(HOME)

    def put(
        self, name: str, model: str | None, *adapters: str, namespace: str = "shop", age: int = 0, **spec: Any
    ) -> None:
        """Create a route, or edit its spec; ``age`` (minutes) is that of a new one."""
        key = Key(namespace, name)
        made = a_route(name, model, namespace=namespace, age=age, adapters=adapters, **spec)
        self.revision += 1
        if old := self.routes.get(key):
            about = old["metadata"]
            made["metadata"] = {**about, "generation": about["generation"] + 1}
        made["metadata"]["resourceVersion"] = str(self.revision)
        self.routes[key] = made

    def annotate(self, name: str, namespace: str, **fields: Any) -> None:
        """Write what a tenant may write besides the spec."""
        about = self.routes[Key(namespace, name)]
        about["metadata"] = {**about["metadata"], "annotations": fields, "labels": fields}
        about["status"] = {"conditions": [{"type": "Conflicted", "status": "False", "reason": "Mine"}]}

    def remove(self, name: str, namespace: str = "shop") -> None:
        del self.routes[Key(namespace, name)]

    def bind(self, **patterns: str) -> None:
        """Write the administrator's ConfigMap."""
        about = {**metadata(BINDINGS, HOME, 0), "resourceVersion": str(self.revision)}
        self.config_maps[BINDINGS] = {"kind": "ConfigMap", "metadata": about, "data": patterns}

    def world(self) -> World:
        stores: dict[ResourceType | str, Store[Any]] = {}
        for want in self.statuses.wants:
            store: Store[Any] = Store(want)
            stores[want.called or want.kind] = store
            if want.kind == ROUTES:
                for obj in self.routes.values():
                    store.put(obj)
        for name, obj in self.config_maps.items():
            stores[BINDINGS if name == BINDINGS else RECORDS].put(obj)
        assert not any(store.problems for store in stores.values())
        return stores

    def plans(self, *only: str) -> list[Plan]:
        """The writes of a tick; ``only`` of these namespaces."""
        world = self.world()
        keys = [key for key in self.controller.keys(world) if not only or key.namespace in only]
        plans = [self.controller.plan(key, world, self.now) for key in keys]
        return [plan for plan in plans if plan is not None and plan.writes]

    def tick(self, *only: str, seconds: float = 5.0) -> int:
        """Write the records until nothing is left to write; the number of writes."""
        self.now += seconds
        count = 0
        while plans := self.plans(*only):
            assert count < 1000
            for plan in plans:
                self._carry_out(plan)
            count += len(plans)
        return count

    def _carry_out(self, plan: Plan) -> None:
        for mark in plan.marks:
            assert mark.key.namespace == HOME
            config_map = self.config_maps.setdefault(mark.key.name, {**mark.create, "data": {}})
            about = config_map["metadata"]
            data = {**config_map["data"], **{name: text for name, text in mark.data.items() if text is not None}}
            self.config_maps[mark.key.name] = {**config_map, "metadata": {**about, "uid": "u"}, "data": data}
        if plan.annotations:
            config_map = self.config_maps[plan.subject.key.name]
            about = {**config_map["metadata"], "annotations": plan.annotations}
            self.config_maps[plan.subject.key.name] = {**config_map, "metadata": about}

    def restart(self) -> None:
        """Nothing that was in a process is left."""
        self.controller, self.statuses = NameRecords(HOME), RouteStatus(HOME)

    def conflicts(self, name: str, namespace: str = "shop") -> tuple[str, str]:
        """Reason and message of the condition Conflicted of a route."""
        key = Key(namespace, name)
        about = self.routes[key]
        self.routes[key] = {name: value for name, value in about.items() if name != "status"}
        plan = self.statuses.plan(key, self.world(), self.now)
        self.routes[key] = about
        assert plan is not None
        assert plan.status is not None
        (conflict,) = [each for each in plan.status.conditions if each.type == "Conflicted"]
        return conflict.reason, conflict.message

    @property
    def record(self) -> dict[str, str]:
        """The texts of the records, by namespace."""
        return {
            name.removeprefix(f"{RECORDS}."): obj["data"]["names"]
            for name, obj in self.config_maps.items()
            if name.startswith(f"{RECORDS}.")
        }


class Router:
    """A router process. Without ``reads`` it may not read the records, or there is no controller."""

    def __init__(self, names: Names, reads: bool = True) -> None:
        self.fleet = RoutedFleet()
        self._names, self._reads = names, reads
        self._parsed: dict[str, tuple[Any, Any]] = {}
        self.look()

    def _parse(self, kind: str, obj: Any, parse: Any) -> Any:
        key = f"{kind} {obj['metadata'].get('namespace')}/{obj['metadata']['name']}"
        if key not in self._parsed or self._parsed[key][0] is not obj:
            self._parsed[key] = obj, parse(obj)
        return self._parsed[key][1]

    def look(self) -> Router:
        """See the cluster as it is now."""
        routes = tuple(self._parse("ModelRoute", obj, route) for obj in self._names.routes.values())
        records, bindings = [], []
        for name, obj in self._names.config_maps.items():
            want, listed = (bindings_wanted, bindings) if name == BINDINGS else (records_wanted, records)
            listed.append(self._parse("ConfigMap", obj, want(HOME).parse))
        sources = NameSources(tuple(records), tuple(bindings)) if self._reads else None
        self.closed = self.fleet.update(routes, lambda _: (), lambda _: (), (), sources).closed
        return self

    def asks(self, model: str) -> str:
        """The namespace that a request for a model goes to; empty: 404."""
        destination = self.fleet.table.find(Asked(model), lambda _: True, Random(0))
        return destination.route.key.namespace if destination is not None else ""
