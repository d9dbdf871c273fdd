"""Fleets in SLO form for tests: a load and a few variants in, a complete ``Fleet`` out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from builders import CONTROLLER, MODEL, NOW, Serving, make_fleet, records
from decisions import Told

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.fleet.fleet import Fleet, SLOSpec, Variant
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.metrics.vocabulary.values import ModelLoad, PodPerformance, Signals
from modelyard.objects import Key

COSTS = Key(CONTROLLER, "accelerator-unit-costs")
CLASSES = Key(CONTROLLER, "service-classes-config")

P = (7.5, 0.05, 12.0, 0.002)
"""Profile P of the reference: 18.751 requests/s (1125.06 a minute) within 500/10 ms at 512 + 256 tokens, batch 96."""

H100, L40S = P, (19.0, 0.18, 40.0, 0.006)
RATE_P = 1125.060 / 60

PROMPT, OUTPUT = 512.0, 256.0
CALM = (0.2, 0.0)
"""KV use and waiting requests of a pod that saturation has nothing to say about."""

INSTANT = FleetSettings(scale_down_delay=0, max_step_down=100, headroom=False)
STILL = FleetSettings(headroom=False)
PUBLISHED = FleetSettings(compatibility="published")


def premium(
    itl: object = 10, ttft: object = 500, model: str = MODEL, name: str = "Premium", priority: object = 1
) -> str:
    return f"name: {name}\npriority: {priority}\ndata:\n- {{model: {model}, slo-tpot: {itl}, slo-ttft: {ttft}}}\n"


@dataclass
class SLO:
    """One variant in SLO form. ``replicas`` pods report ``calm`` signals."""

    name: str = "v1"
    replicas: int = 1
    profile: Sequence[object] = P
    accelerator: str = "H100"
    count: int = 1
    batch: int = 96
    class_name: str = "service-classes-config"
    class_key: str = "premium.yaml"
    model: str = MODEL
    load: tuple[float | None, float | None] | None = CALM
    running: float = 1.0
    ttft: float | None = None
    itl: float | None = None
    completed: float | None = 100.0
    prompt: float | None = PROMPT
    output: float | None = OUTPUT
    serving: Mapping[str, Any] = field(default_factory=dict)
    variant: Mapping[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> Serving:
        load = () if self.load is None else (self.load,) * self.replicas
        fields = {"desired": self.replicas, "accelerator": None, "current": self.replicas, "load": load}
        return Serving(
            self.name,
            model=self.model,
            running=self.running,
            gpus=self.count,
            variant={"form": "slo", "slo": self.spec, **self.variant},
            **{**fields, **self.serving},
        )

    @property
    def spec(self) -> SLOSpec:
        alpha, beta, gamma, delta = (str(value) for value in self.profile)
        return SLOSpec(
            f"{self.model}-{self.accelerator}-{self.count}",
            self.accelerator,
            self.count,
            self.class_name,
            self.class_key,
            {"alpha": alpha, "beta": beta},
            {"gamma": gamma, "delta": delta},
            self.batch,
        )

    def performance(self) -> list[PodPerformance]:
        base = self.base
        return [
            PodPerformance(
                base.namespace,
                pod.key.name,
                self.model,
                completed=self.completed,
                prompt_tokens=self.prompt,
                output_tokens=self.output,
                ttft=self.ttft,
                itl=self.itl,
                steady_prompt=self.prompt,
                steady_output=self.output,
                steady_ttft=self.ttft,
                steady_itl=self.itl,
            )
            for pod in base.pods()
            if pod.ready
        ]


def slo_fleet(
    *variants: SLO,
    load: float | None = 5.0,
    history: tuple[tuple[float, float], ...] = ((NOW - 300, 5.0),),
    classes: Mapping[str, str] | None = None,
    costs: Mapping[str, str] | None = None,
    others: Iterable[Serving] = (),
    loads: Mapping[tuple[str, str], ModelLoad] | None = None,
    signals: Mapping[str, Any] | None = None,
    config_maps: Mapping[Key, Mapping[str, str]] | None = None,
    **fields: Any,
) -> Fleet:
    """A fleet; ``load`` is requests per second of every model (``None``: not known)."""
    maps = {
        COSTS: {"H100": '{"cost": "100"}', "L40S": '{"cost": "32"}', "A100": '{"cost": 40}'}
        if costs is None
        else costs,
        CLASSES: {"premium.yaml": premium()} if classes is None else classes,
        **(config_maps or {}),
    }
    known = {(v.base.namespace, v.model): ModelLoad(load, history) for v in variants} if load is not None else {}
    measured = {
        "loads": known if loads is None else loads,
        "performance": tuple(found for v in variants for found in v.performance()),
        **(signals or {}),
    }
    return make_fleet(*(v.base for v in variants), *others, config_maps=maps, signals=measured, **fields)


def run_slo(*variants: SLO, settings: FleetSettings = INSTANT, **fields: Any) -> dict[str, Told]:
    return records(decide(slo_fleet(*variants, **fields), settings))


def one_slo(*variants: SLO, settings: FleetSettings = INSTANT, **fields: Any) -> Told:
    return run_slo(*variants, settings=settings, **fields)[variants[0].name]


def targets(found: Mapping[str, Told]) -> dict[str, int | None]:
    return {name: record.target.replicas for name, record in found.items()}


def carry_on(fleet: Fleet, found: Mapping[str, Told], later: float) -> Fleet:
    """The same fleet some seconds later, with everything remembered and status written, workloads unmoved."""

    def next_variant(variant: Variant) -> Variant:
        record = found[variant.key.name]
        return replace(
            variant,
            memory=record.memory,
            status_replicas=record.target.replicas,
            last_run=fleet.now,
            conditions=record.conditions,
        )

    signals: Signals = replace(
        fleet.signals, pods=tuple(replace(p, sampled_at=fleet.now + later - 5) for p in fleet.signals.pods)
    )
    return replace(
        fleet, now=fleet.now + later, variants=tuple(next_variant(v) for v in fleet.variants), signals=signals
    )
