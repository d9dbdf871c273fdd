"""No run is started for the roll-out of a ModelRoute that is refused or waits for pods."""

from __future__ import annotations

import json
from typing import Any

import pytest
from routing_world import NOW, a_pod, a_route, a_server

from modelyard.objects import Key
from modelyard.reconcile.dispatch import is_due
from modelyard.reconcile.mirror import Store
from modelyard.routing.rolling import WISH
from modelyard.routing.route_roll_out import RouteRollOuts

ROUTES: dict[str, Any] = {
    "InvalidRollOut": "no map",
    "no such server": {"to": "none"},
    "steps that go down": {"to": "new", "steps": [50, 5]},
    "NoReadyPods": {"to": "new"},
}


@pytest.mark.parametrize("name", ROUTES)
def test_a_route_whose_roll_out_is_refused_or_waits_starts_no_run(name: str) -> None:
    wish = ROUTES[name]
    targets = [{"modelServerName": "old", "weight": 100}, {"modelServerName": "new", "weight": 0}]
    route = a_route("route", "llama", rules=[{"name": "all", "targetModels": targets}])
    route["metadata"]["annotations"] = {WISH: wish if isinstance(wish, str) else json.dumps(wish)}
    stores = {want.kind: Store(want) for want in RouteRollOuts.wants}
    for obj in (route, a_server("old", app="old"), a_server("new", app="new"), a_pod("new-1", ready=False, app="new")):
        next(store for kind, store in stores.items() if kind.kind == obj["kind"]).put(obj)
    for lifecycle in (RouteRollOuts("http://prometheus"), RouteRollOuts("http://prometheus", {})):
        plan = lifecycle.plan(Key("shop", "route"), stores, NOW)
        assert plan is not None
        assert not plan.awaits
        assert not is_due(plan, {}, NOW)
        assert plan.status is not None, "the reason is in the status"
