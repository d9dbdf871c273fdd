"""Runs for the roll-out of a ModelRoute: none while it is refused or waits, one after another while it measures."""

from __future__ import annotations

import json
from typing import Any

import pytest
from routing_world import NOW, a_pod, a_route, a_server

from modelyard.objects import Key
from modelyard.reconcile.kernel.mirror import Store
from modelyard.reconcile.plans.dispatch import fingerprint, is_due
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


def test_a_step_that_is_measured_for_a_day_is_measured_by_one_run_after_another() -> None:
    targets = [{"modelServerName": "old", "weight": 100}, {"modelServerName": "new", "weight": 0}]
    route = a_route("route", "llama", rules=[{"name": "all", "targetModels": targets}])
    route["metadata"]["annotations"] = {WISH: json.dumps({"to": "new", "stepMinutes": 1440})}
    stores = {want.kind: Store(want) for want in RouteRollOuts.wants}
    objects = (a_server("old", app="old"), a_server("new", app="new"), a_pod("new-1", app="new"), a_pod("o", app="old"))
    for obj in (route, *objects):
        next(store for kind, store in stores.items() if kind.kind == obj["kind"]).put(obj)
    key, shift = Key("shop", "route"), RouteRollOuts("http://prometheus")
    first = shift.plan(key, stores, NOW)
    assert first is not None
    begun = json.loads(json.dumps(route))
    begun["metadata"]["annotations"] |= first.annotations
    begun["spec"] |= first.fill["spec"]
    next(store for kind, store in stores.items() if kind.kind == "ModelRoute").put(begun)
    works = [fingerprint(plan) for at in (1, 599, 601) if (plan := shift.plan(key, stores, NOW + at)) is not None]
    assert works[0] == works[1] != works[2], "a run of the same part pauses, that of the next part starts at once"
