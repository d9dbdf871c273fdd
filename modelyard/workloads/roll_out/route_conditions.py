"""Conditions of the routes to each component of an InferenceService, and of its older form, the predictor. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from modelyard.objects import SERVICES, Condition, condition
from modelyard.resources import InferenceService
from modelyard.workloads.rendering import migrates, names
from modelyard.workloads.roll_out.component_revisions import component_workloads, knative_service
from modelyard.workloads.roll_out.rollout_state import Standing
from modelyard.workloads.roll_out.standing import COMPONENTS, ComponentStanding, stand

ROUTES: Final = "RoutesReady"
PREDICTOR: Final = "predictor"
_KINDS: Final = ("Engine", "Decoder", "Router", "Predictor")
COMPONENT_CONDITIONS: Final = frozenset(
    f"{kind}{aspect}" for kind in _KINDS for aspect in ("Ready", "RouteReady", "ConfigurationReady")
)
"""Types of the conditions that a service has of its components."""


def route_conditions(state: Standing, latest: Condition) -> list[Condition]:
    """Return ``EngineRouteReady`` and its like, of Knative ``EngineConfigurationReady`` as well.

    ``latest`` says why a route that does not exist is not made.
    """
    conditions = []
    for kind in COMPONENTS:
        if (component := state.states.get(kind)) is None:
            continue
        knative = knative_service(component, component_workloads(state, kind))
        if knative is None:
            conditions.append(_route(state, component, latest))
        else:
            for aspect, source in (("RouteReady", "RoutesReady"), ("ConfigurationReady", "ConfigurationsReady")):
                conditions.append(_copied(f"{kind.capitalize()}{aspect}", knative, source))
    return conditions


def roll_up(ingress: Condition, conditions: Iterable[Condition]) -> Condition:
    """Return ``RoutesReady``: False where any route is, else Unknown where any is, else True."""
    routes = [ingress, *(condition for condition in conditions if condition.type.endswith("RouteReady"))]
    order = ("False", "Unknown", "True")
    worst = min(routes, key=lambda route: order.index(route.status) if route.status in order else 1)
    return Condition(ROUTES, worst.status, worst.reason, worst.message)


def predictor_state(state: Standing) -> ComponentStanding | None:
    """Return the state of the older form's Deployment, which serves until the engine is ready; ``None``: it is gone."""
    resource, key = state.service.resource, state.service.key
    if not isinstance(resource, InferenceService) or not migrates(resource):
        return None
    children = (child for child in state.there.values() if child.component == PREDICTOR and child.key == key)
    mine = [child for child in children if child.kind.kind == "Deployment" and child.owner == state.service.subject.uid]
    return stand(PREDICTOR, "", mine, (), 1) if mine else None


def predictor_condition(state: Standing, conditions: Mapping[str, Condition]) -> Condition | None:
    """Return ``PredictorReady`` of a service in the older form: it serves by its old Deployment, then by the engine."""
    resource, engine = state.service.resource, conditions.get("EngineReady")
    if not isinstance(resource, InferenceService) or not migrates(resource) or engine is None:
        return None
    old = predictor_state(state)
    if engine.status != "True" and old is not None and old.ready:
        message = "the Deployment of the older form serves until the engine is ready"
        return Condition("PredictorReady", "True", "PodsReady", message)
    return Condition("PredictorReady", engine.status, engine.reason, engine.message)


def _route(state: Standing, component: ComponentStanding, latest: Condition) -> Condition:
    kind, name = component.kind, names.component(state.service.key.name, component.kind)
    type_, uid = f"{kind.capitalize()}RouteReady", state.service.subject.uid
    exists = any(
        child.kind == SERVICES and child.key.name == name and child.owner == uid for child in state.there.values()
    )
    if not component.ready:
        return Condition(type_, "False", "ComponentNotReady", component.message)
    if not exists:
        if latest.status != "True":
            return Condition(type_, "False", latest.reason, latest.message)
        message = f"Service {name} does not exist, or is not of this service"
        return Condition(type_, "False", "ServiceMissing", message)
    return Condition(type_, "True", "RoutesMade", f"Service {name} leads to the pods of the {kind}")


def _copied(type_: str, body: Mapping[str, Any], source: str) -> Condition:
    source_condition = condition(body.get("status") or {}, source)
    reason, message = str(source_condition.get("reason") or source), str(source_condition.get("message") or "")
    missing = f"Knative has not reported {source} yet"
    return Condition(
        type_, str(source_condition.get("status") or "Unknown"), reason, message if source_condition else missing
    )
