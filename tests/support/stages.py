"""Runs the stages in front of a strategy by hand, so that one part of a decision can be looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from builders import MODEL, NOW, Serving, make_fleet

from modelyard.autoscaling.configuration.settings import Compatibility, FleetSettings
from modelyard.autoscaling.fleet.fleet import Fleet, Variant
from modelyard.autoscaling.pipeline.strategies import entries
from modelyard.autoscaling.variants.analysis import analyse_repaired
from modelyard.autoscaling.variants.attribution import by_pod, with_groups
from modelyard.autoscaling.variants.demand import Group, ModelDemand
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.observe import observe
from modelyard.autoscaling.variants.proposal import Proposed
from modelyard.autoscaling.variants.saturation_config import SaturationConfigs
from modelyard.autoscaling.variants.targets import propose_targets
from modelyard.autoscaling.variants.tokens.analysis import Queue, TokenAnalysis, analyse_tokens
from modelyard.autoscaling.variants.zero_config import ZeroConfigs
from modelyard.metrics.vocabulary.values import ModelLoad, PodPerformance

TOKENS = {"default": "analyzerName: saturation"}


class Result(NamedTuple):
    """The proposal for one variant."""

    seen: Observation
    proposed: Proposed

    @property
    def target(self) -> int:
        assert self.proposed.replicas is not None
        return self.proposed.replicas

    @property
    def reason(self) -> str:
        return self.proposed.reason

    @property
    def message(self) -> str:
        return str(self.proposed.why)

    @property
    def learnt(self) -> Mapping[str, object]:
        return self.proposed.learnt

    @property
    def variant(self) -> Variant:
        return self.seen.variant


def results(demand: ModelDemand, proposed: Mapping[str, Proposed]) -> dict[str, Result]:
    return {seen.name: Result(seen, proposed[seen.name]) for seen in demand.variants if seen.name in proposed}


def make_demand(
    fleet: Fleet, settings: FleetSettings, published: bool = False, load: ModelLoad | None = None, backlog: float = 0.0
) -> ModelDemand:
    """The one model of the fleet, ready to be decided."""
    active = observe(fleet, settings).active
    mode = Compatibility.PUBLISHED if published else Compatibility.REPAIRED
    namespace, model = active[0].key.namespace, active[0].variant.model_id
    config = SaturationConfigs(fleet.config_maps, settings).resolve(namespace, model)
    return ModelDemand(
        Group(namespace, model, tuple(active), mode),
        tuple(seen for seen in active if seen.spec > 0),
        config,
        ZeroConfigs(fleet.config_maps, settings).resolve(namespace, model),
        entries()[mode, config.analyzer],
        load=load,
        backlog=backlog,
        performances=with_groups(fleet.signals.performance, active),
    )


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
    demand: ModelDemand, performance: Sequence[PodPerformance], settings: FleetSettings, backlog: float = 0.0
) -> TokenAnalysis:
    config = demand.config
    assert config.tokens is not None
    return analyse_tokens(
        demand.variants, by_pod(performance), config.thresholds, config.tokens, settings, NOW, Queue(backlog)
    )


def tokens_decide(
    *serving: Serving,
    settings: FleetSettings,
    performance: Sequence[PodPerformance] | None = None,
    backlog: float = 0.0,
    load: ModelLoad | None = None,
    **fields: object,
) -> dict[str, Result]:
    """Return what the repaired token analysis and the rules for targets propose, by name."""
    fleet = make_fleet(*serving, **{"config": TOKENS, **fields})  # type: ignore[arg-type]
    demand = make_demand(fleet, settings, load=load)
    analysis = analyse(demand, performance_of(fleet) if performance is None else performance, settings, backlog)
    return results(demand, propose_targets(demand, analysis, settings, NOW).variants)


def percentages_decide(
    *serving: Serving, settings: FleetSettings, load: ModelLoad | None = None, backlog: float = 0.0, **fields: object
) -> dict[str, Result]:
    """Return what the repaired percentage analysis and the rules for targets propose, by name."""
    fleet = make_fleet(*serving, **fields)  # type: ignore[arg-type]
    demand = make_demand(fleet, settings, load=load)
    analysis = analyse_repaired(demand.variants, demand.config.thresholds, settings, NOW, backlog)
    return results(demand, propose_targets(demand, analysis, settings, NOW).variants)


def rising(start: float = 10.0, per_second: float = 0.04, until: float = NOW) -> ModelLoad:
    """A load that rose in a straight line for five minutes."""
    history = tuple((until - 300 + i * 15.0, start + per_second * i * 15.0) for i in range(21))
    return ModelLoad(history[-1][1], history)


def with_args(serving: Serving, *arguments: str) -> Serving:
    """The variant with an engine command line."""
    return replace(serving, workload={**serving.workload, "engine_args": arguments})


__all__ = ["MODEL", "NOW"]
