"""Runs the stages in front of a strategy by hand, so that one part of a decision can be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from builders import CONTROLLER, MODEL, NOW, Serving, make_fleet
from modelyard.autoscaling.rules import DOCUMENTED, RULES
from modelyard.autoscaling.variants.state import Group, State

from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.select import select
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.analysis import analyse_repaired
from modelyard.autoscaling.variants.attribution import attribute, by_pod
from modelyard.autoscaling.variants.saturation_config import SaturationConfigs
from modelyard.autoscaling.variants.targets import set_targets
from modelyard.autoscaling.variants.tokens.analysis import Queue, TokenAnalysis, analyse_tokens
from modelyard.autoscaling.variants.zero_config import ZeroConfigs
from modelyard.metrics.values import ModelLoad, PodPerformance

TOKENS = {"default": "analyzerName: saturation"}
assert CONTROLLER


def make_group(fleet: Fleet, settings: FleetSettings, published: bool = False) -> Group:
    """The one model of the fleet, ready to be decided."""
    selection = select(fleet, settings)
    attribute(fleet, selection.active, fleet.now - settings.stale_after)
    first = selection.active[0].variant
    group = Group(first.key.namespace, first.model_id)
    group.states = selection.active
    group.rules = DOCUMENTED if published else RULES
    group.config = SaturationConfigs(fleet.config_maps, settings).resolve(group.namespace, group.model_id)
    group.zero = ZeroConfigs(fleet.config_maps, settings).resolve(group.namespace, group.model_id)
    for state in group.states:
        state.limits = group.config.thresholds
        state.accelerator = state.variant.labels.get("inference.optimization/acceleratorName")
    return group


def performance_of(
    fleet: Fleet, total: int | None = 16_000, prompt: float | None = 100.0, output: float | None = 100.0
) -> tuple[PodPerformance, ...]:
    """Every reporting pod with the same cache and the same requests."""
    return tuple(
        PodPerformance(
            s.namespace, s.pod, s.model, kv_tokens=total, prompt_tokens=prompt, output_tokens=output, completed=10
        )
        for s in fleet.signals.pods
    )


def analyse(
    group: Group, performance: Sequence[PodPerformance], settings: FleetSettings, backlog: float = 0.0
) -> TokenAnalysis:
    assert group.config.tokens is not None
    return analyse_tokens(
        group.states, by_pod(performance), group.config.thresholds, group.config.tokens, settings, NOW, Queue(backlog)
    )


def tokens_decide(
    *serving: Serving,
    settings: FleetSettings,
    performance: Sequence[PodPerformance] | None = None,
    backlog: float = 0.0,
    load: ModelLoad | None = None,
    **fields: object,
) -> dict[str, State]:
    """States by name after the repaired token analysis and the targets."""
    fleet = make_fleet(*serving, **{"config": TOKENS, **fields})  # type: ignore[arg-type]
    group = make_group(fleet, settings)
    analysis = analyse(group, performance_of(fleet) if performance is None else performance, settings, backlog)
    set_targets(group, analysis, settings, NOW, load)
    for state in group.states:
        if state.name in analysis.compute_limits:
            state.updates["compute_limits"] = analysis.compute_limits[state.name]
    return {state.name: state for state in group.states}


def percentages_decide(
    *serving: Serving, settings: FleetSettings, load: ModelLoad | None = None, backlog: float = 0.0, **fields: object
) -> dict[str, State]:
    """States by name after the repaired percentage analysis and the targets."""
    fleet = make_fleet(*serving, **fields)  # type: ignore[arg-type]
    group = make_group(fleet, settings)
    analysis = analyse_repaired(group.states, group.config.thresholds, settings, NOW, backlog)
    set_targets(group, analysis, settings, NOW, load)
    return {state.name: state for state in group.states}


def rising(start: float = 10.0, per_second: float = 0.04, until: float = NOW) -> ModelLoad:
    """A load that rose in a straight line for five minutes."""
    history = tuple((until - 300 + i * 15.0, start + per_second * i * 15.0) for i in range(21))
    return ModelLoad(history[-1][1], history)


def with_args(serving: Serving, *arguments: str) -> Serving:
    """The variant with an engine command line."""
    return replace(serving, workload={**serving.workload, "engine_args": arguments})


__all__ = ["MODEL", "NOW"]
