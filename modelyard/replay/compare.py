"""Several policies on the same traffic and fleet, with the bound that none of them can beat. Called by the command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from modelyard.autoscaling.settings import FleetSettings
from modelyard.loop.manifests import Manifest
from modelyard.replay.policies.parse import CLAIRVOYANT, PolicyText, factory
from modelyard.replay.report import Summary, summarize
from modelyard.replay.settings import SLO, SimulationSettings
from modelyard.replay.simulate import Run, simulate
from modelyard.replay.trace import Trace
from modelyard.replay.variants import VariantSpec


@dataclass(slots=True)
class Comparison:
    """One run and one summary per policy, in the order given, and what is to be said about all of them."""

    runs: list[Run] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def compare(
    trace: Trace,
    variants: Sequence[VariantSpec],
    wanted: Sequence[PolicyText],
    manifests: Sequence[Manifest],
    fleet_settings: FleetSettings,
    slo: SLO,
    settings: SimulationSettings,
    begin: Callable[[str], Callable[[float], None]],
) -> Comparison:
    """Replay every policy. ``begin`` is told each one's name and gives what is told the simulated time.

    Raises ``PolicyInputError`` before anything runs, ``ValueError`` when trace and fleet do not fit.
    """
    factories = [
        (text, factory(text, manifests, fleet_settings, settings.gateway_metrics))
        for text in wanted
        if text.kind != CLAIRVOYANT
    ]
    comparison = Comparison()
    for text, make in factories:
        run = simulate(trace, variants, make(), settings, begin(str(text)))
        comparison.runs.append(run)
        comparison.summaries.append(summarize(run, slo))
    return comparison
