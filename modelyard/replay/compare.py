"""Several policies on the same traffic and fleet, with the bound that none of them can beat."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from modelyard.autoscaling.offline.manifests import Manifest
from modelyard.autoscaling.settings import FleetSettings
from modelyard.objects import Node
from modelyard.replay.clairvoyant import Bound, Clairvoyant
from modelyard.replay.policies.parse import CLAIRVOYANT, PolicyText, factory
from modelyard.replay.report import Summary, summarize
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulate import Run, simulate
from modelyard.replay.variants import VariantSpec
from modelyard.traffic.latency import SLO
from modelyard.traffic.trace import Trace


@dataclass(slots=True)
class Comparison:
    """One run and one summary per policy, in the order given, and what is to be said about all of them."""

    runs: list[Run] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    bound: Bound | None = None
    """At the SLO's attainment, when it was asked for."""


def compare(
    trace: Trace,
    variants: Sequence[VariantSpec],
    wanted: Sequence[PolicyText],
    manifests: Sequence[Manifest],
    fleet_settings: FleetSettings,
    slo: SLO,
    settings: SimulationSettings,
    begin: Callable[[str], Callable[[float], None]],
    nodes: Sequence[Node] = (),
) -> Comparison:
    """Replay every policy. ``begin`` is told each one's name and gives what is told the simulated time.

    Raises ``PolicyInputError`` before anything runs, ``SimulationError`` when trace and fleet do not fit.
    """
    factories = [
        (text, factory(text, manifests, fleet_settings, settings.gateway_metrics))
        for text in wanted
        if text.kind != CLAIRVOYANT
    ]
    comparison = Comparison()
    for text, make in factories:
        run = simulate(trace, variants, make(), settings, begin(str(text)), nodes)
        comparison.runs.append(run)
        comparison.summaries.append(summarize(run, slo))
    if len(factories) < len(wanted):
        _add_bounds(comparison, Clairvoyant(trace, variants, slo), slo)
    return comparison


def _add_bounds(comparison: Comparison, clairvoyant: Clairvoyant, slo: SLO) -> None:
    """To every policy the bound at the attainment it reached; in a remark the one at the SLO's."""
    comparison.summaries = [
        dataclasses.replace(summary, bound=clairvoyant.bound(summary.attainment).cost)
        for summary in comparison.summaries
    ]
    least = clairvoyant.bound(slo.attainment)
    comparison.bound = least
    share = f"{slo.attainment:.4g} of the requests"
    if math.isinf(least.cost):
        text = f"no policy can have {share} within the targets: on these engines {least.attainable:.4g} is the most"
    else:
        text = (
            f"no policy can have {share} within the targets for less than {least.replica_hours:.2f} replica-hours or a "
            f"cost of {least.cost:.2f}; × BOUND is a policy's cost over the least possible at the attainment it reached"
        )
    comparison.remarks.append(f"clairvoyant: {text}")
