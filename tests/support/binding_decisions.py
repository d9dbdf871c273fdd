"""Decisions about policy bindings alone, as a tick makes them."""

from __future__ import annotations

from collections.abc import Iterable

from modelyard.autoscaling.bindings import decide
from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.decision import BindingDecision
from modelyard.autoscaling.decisions.strategy import TickContext
from modelyard.autoscaling.fleet.binding_view import BindingView
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.pipeline.strategies import binding_strategy


def decide_bindings(
    views: Iterable[BindingView], settings: FleetSettings, now: float
) -> tuple[tuple[BindingDecision, ...], tuple[str, ...]]:
    return decide.decide_bindings(views, TickContext(Fleet(now), settings), binding_strategy)


def decide_binding(view: BindingView, settings: FleetSettings, now: float) -> BindingDecision:
    assessed = decide.assess_binding(view, TickContext(Fleet(now), settings), binding_strategy)
    return decide.conclude_binding(assessed, now)
