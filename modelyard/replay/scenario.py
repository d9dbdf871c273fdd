"""Everything a replay needs besides policy and rate, from files or from a history.

A ``Scenario`` is plain data: it can be handed to another process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelyard.autoscaling.offline.files import one_document
from modelyard.autoscaling.offline.fleet import fleet_from_files
from modelyard.autoscaling.offline.manifests import Manifest, read_manifests
from modelyard.autoscaling.offline.snapshot import Snapshot
from modelyard.autoscaling.settings import FleetSettings
from modelyard.metrics.client import Prometheus, PrometheusSettings
from modelyard.objects import Node
from modelyard.replay.history import HistoryRequest, read_history, trace_of
from modelyard.replay.policies.bindings import remarks
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.variants import VariantSpec, variants_of
from modelyard.traffic.latency import SLO
from modelyard.traffic.trace import Trace


@dataclass(frozen=True, slots=True)
class World:
    """The fleet that is replayed, from manifests. ``warnings`` are for people."""

    manifests: tuple[Manifest, ...]
    variants: tuple[VariantSpec, ...]
    nodes: tuple[Node, ...]
    fleet_settings: FleetSettings
    warnings: tuple[str, ...] = ()

    @property
    def models(self) -> list[str]:
        """What the variants serve."""
        return sorted({spec.model for spec in self.variants})


def read_world(
    files: Sequence[Path],
    fleet_settings: Path | FleetSettings | None = None,
    beside: Sequence[Path] = (),
    *,
    startup: float = 120.0,
    profile: str | None = None,
    engine: Mapping[str, float] | None = None,
) -> World:
    """The world of manifest files (``-`` is standard input) and fleet settings (a YAML file, or as they are).

    ``beside`` are files that may lie among the manifests without being any. Raises ``PlanInputError`` and
    ``VariantInputError``.
    """
    besides = [*beside, *([fleet_settings] if isinstance(fleet_settings, Path) else [])]
    settings = (
        one_document(fleet_settings, FleetSettings, "give fleet settings with --fleet-settings")
        if isinstance(fleet_settings, Path)
        else fleet_settings or FleetSettings()
    )
    manifests = read_manifests(files, besides)
    fleet = fleet_from_files(manifests, Snapshot(), 0.0, settings)
    variants = variants_of(fleet, manifests, startup=startup, profile=profile, engine=engine)
    warnings = [
        f"{spec.key}: engine {', '.join(spec.sources)}; choose with --profile or --engine"
        for spec in variants
        if any("assumed" in source for source in spec.sources)
    ]
    warnings += remarks(fleet.bindings, manifests)
    return World(tuple(manifests), tuple(variants), tuple(fleet.nodes), settings, tuple(warnings))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A world, its traffic at rate 1, what users expect, and the simulation's settings."""

    world: World
    trace: Trace
    slo: SLO
    settings: SimulationSettings

    def at_rate(self, rate: float) -> Trace:
        """The traffic at so many times the requests."""
        return self.trace.scaled(rate=rate, seed=self.settings.seed)

    def context(self, source: str, trace: Trace) -> dict[str, Any]:
        """What a report says about it all besides the policies."""
        return {
            "trace": {"file": source, "requests": len(trace), "seconds": trace.duration, "rate": trace.rate},
            "variants": [
                {"variant": str(s.key), "model": s.model, "engine": ", ".join(s.sources), "startup": s.startup}
                for s in self.world.variants
            ],
            "seed": self.settings.seed,
        }


def shaped(
    trace: Trace,
    *,
    start: float = 0.0,
    minutes: float | None = None,
    diurnal: float | None = None,
    prompt: float = 1.0,
    output: float = 1.0,
    seed: int = 0,
) -> Trace:
    """A part of the traffic, repeated over days, with heavier requests. Raises ``TraceInputError``."""
    if start or minutes is not None:
        trace = trace.stretch(start, minutes)
    if diurnal is not None:
        trace = trace.over_days(diurnal, seed=seed)
    return trace.scaled(prompt=prompt, output=output)


async def trace_from_history(
    url: str, request: HistoryRequest, models: Sequence[str], seed: int
) -> tuple[Trace, list[str]]:
    """The traffic that a Prometheus remembers, and what had to be filled in. A fleet of one model serves it whatever
    the name. ``url`` empty: ``PROMETHEUS_BASE_URL``; how to authenticate is read from the environment.

    Raises ``PrometheusError`` and ``TraceInputError``.
    """
    # A range of the past takes longer than the small queries of a tick.
    settings = PrometheusSettings(timeout=60)
    async with Prometheus(settings.model_copy(update={"base_url": url}) if url else settings) as prometheus:
        history = await read_history(prometheus, request)
    trace, remarks = trace_of(history, request, seed)
    if len(models) == 1 and models[0] != request.model:
        remarks.append(f"the requests were for model {request.model}; here {models[0]} serves them")
        trace = dataclasses.replace(trace, model=None, models=())
    return trace, remarks
