"""Everything a replay needs besides policy and rate, from files or from a history.

A ``Scenario`` is plain data: it can be handed to another process.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.offline import Manifest, Snapshot, fleet_from_files, read_manifests
from modelyard.metrics.prometheus import Prometheus, PrometheusSettings
from modelyard.objects import Node, bare
from modelyard.replay.backtest.history import read_history, requested_past, trace_of
from modelyard.replay.policies import remarks
from modelyard.replay.request import ReplayRequest
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulation import VariantSpec, variants_of
from modelyard.traffic import Copies
from modelyard.traffic.traces import SLO, Trace, parse_columns, read_trace


@dataclass(frozen=True, slots=True)
class ReplayedFleet:
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


def read_fleet(
    files: Sequence[Path],
    settings: FleetSettings | None = None,
    beside: Sequence[Path] = (),
    *,
    startup: float = 120.0,
    profile: str | None = None,
    engine: Mapping[str, float] | None = None,
) -> ReplayedFleet:
    """The fleet of manifest files (``-`` is standard input).

    ``beside`` are files that may lie among the manifests without being any. Raises ``PlanInputError`` and
    ``VariantInputError``.
    """
    settings = settings or FleetSettings()
    manifests = read_manifests(files, beside)
    fleet = fleet_from_files(manifests, Snapshot(), 0.0, settings)
    variants = variants_of(fleet, manifests, startup=startup, profile=profile, engine=engine)
    warnings = [
        f"{spec.key}: engine {', '.join(spec.sources)}; choose with --profile or --engine"
        for spec in variants
        if any("assumed" in source for source in spec.sources)
    ]
    warnings += remarks(fleet.bindings, manifests)
    return ReplayedFleet(tuple(manifests), tuple(variants), tuple(fleet.nodes), settings, tuple(warnings))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fleet, its traffic at rate 1, what users expect, the simulation's settings, and what more requests are."""

    fleet: ReplayedFleet
    trace: Trace
    slo: SLO
    settings: SimulationSettings
    copies: Copies = Copies.INDEPENDENT

    def at_rate(self, rate: float) -> Trace:
        """The traffic at so many times the requests."""
        return self.trace.scaled(rate=rate, seed=self.settings.seed, copies=self.copies)

    def context(self, source: str, trace: Trace) -> dict[str, Any]:
        """What a report says about it all besides the policies."""
        return {
            "trace": {"file": source, "requests": len(trace), "seconds": trace.duration, "rate": trace.rate},
            "variants": [
                {"variant": str(s.key), "model": s.model, "engine": ", ".join(s.sources), "startup": s.startup}
                for s in self.fleet.variants
            ],
            "seed": self.settings.seed,
        }


async def read_scenario(request: ReplayRequest, beside: Sequence[Path] = ()) -> tuple[Scenario, str, list[str]]:
    """Fleet and traffic, where the traffic comes from, and warnings. Raises errors that say what to correct."""
    fleet = await asyncio.to_thread(_fleet, request, beside)
    warnings = list(fleet.warnings)
    if request.trace is not None:
        source = str(request.trace)
        trace = await asyncio.to_thread(read_trace, request.trace, parse_columns(request.columns))
    else:
        source = " ".join(filter(None, (bare(request.prometheus_url), f"{request.namespace}/{request.model}")))
        trace, filled = await _past_traffic(request, fleet.models)
        warnings += filled
    if request.start or request.minutes is not None:
        trace = trace.stretch(request.start, request.minutes)
    if request.diurnal is not None:
        trace = trace.over_days(request.diurnal, seed=request.seed, copies=request.copies)
    trace = trace.scaled(prompt=request.prompt_scale, output=request.output_scale)
    settings = SimulationSettings(
        routing=request.routing,
        queue_limit=request.queue_limit,
        scrape_interval=request.scrape,
        startup_spread=request.startup_spread,
        warm_up=request.warm_up,
        seed=request.seed,
    )
    slo = SLO(request.slo_ttft, request.slo_itl, request.attainment)
    return Scenario(fleet, trace, slo, settings, request.copies), source, warnings


def _fleet(request: ReplayRequest, beside: Sequence[Path]) -> ReplayedFleet:
    with tempfile.TemporaryDirectory(prefix="modelyard-replay-") as folder:
        files = list(request.manifests)
        if request.manifest_text.strip():
            files.append(Path(folder) / "manifest_text.yaml")
            files[-1].write_text(request.manifest_text, encoding="utf-8")
        return read_fleet(
            files, request.fleet, beside, startup=request.startup, profile=request.profile, engine=request.engine
        )


async def _past_traffic(request: ReplayRequest, models: Sequence[str]) -> tuple[Trace, list[str]]:
    """The traffic that a Prometheus remembers, and what had to be filled in. A fleet of one model serves it whatever
    the name. How to authenticate is read from the environment.
    """
    # A range of the past takes longer than the small queries of a tick.
    settings = PrometheusSettings(timeout=60).at(request.prometheus_url)
    past = requested_past(request, time.time())
    async with Prometheus(settings) as prometheus:
        history = await read_history(prometheus, past)
    trace, remarks = trace_of(history, past, request.seed)
    if len(models) == 1 and models[0] != request.model:
        remarks.append(f"the requests were for model {request.model}; here {models[0]} serves them")
        trace = dataclasses.replace(trace, model=None, models=())
    return trace, remarks
