"""Policies side by side on the same traffic and fleet, with the bound that none of them can beat.

A ``Batch`` is one policy at one rate, the unit in which replays are spread over processes: everything that goes in and
out of it can be pickled.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from modelyard.replay.backtest.clairvoyant import Bound, Clairvoyant
from modelyard.replay.backtest.report import Summary, Timeline, summarize, timeline
from modelyard.replay.backtest.scenario import Scenario
from modelyard.replay.backtest.simulate import simulate
from modelyard.replay.policies import CLAIRVOYANT, Policy, PolicyText, make
from modelyard.traffic.traces import Trace


class Batch:
    """What to replay. ``bound``: also the least cost, if the SLO was held. Deliberately no dataclass: runners
    must not walk into it."""

    def __init__(self, scenario: Scenario, policy: PolicyText, rate: float, bound: bool = False) -> None:
        self.scenario = scenario
        self.policy = policy
        self.rate = rate
        self.bound = bound

    @property
    def name(self) -> str:
        """The policy and its rate, for people."""
        return f"{self.policy} ×{self.rate:g}"

    def make(self) -> Policy:
        """The policy, anew. Raises ``PolicyInputError``."""
        return make(self.policy, self.scenario.fleet.manifests, self.scenario.fleet.fleet_settings)


class BatchResult:
    """How it went: the row, and minute by minute."""

    def __init__(self, summary: Summary, line: Timeline) -> None:
        self.summary = summary
        self.line = line


def batches(scenario: Scenario, policies: Sequence[PolicyText], rates: Sequence[float]) -> list[Batch]:
    """Every policy at every rate, with the bound when it is among the policies."""
    bound = any(policy.kind == CLAIRVOYANT for policy in policies)
    return [Batch(scenario, policy, rate, bound) for rate in rates for policy in policies if policy.kind != CLAIRVOYANT]


def replay(batch: Batch, progress: Callable[[float], None] | None = None) -> BatchResult:
    """Replay it. ``progress`` is told the share done (0 to 1) now and then.

    Raises ``PolicyInputError`` and ``SimulationError``.
    """
    scenario, fleet = batch.scenario, batch.scenario.fleet
    policy = batch.make()
    trace = scenario.at_rate(batch.rate)
    whole = max(trace.duration, 1.0)

    def hear(now: float) -> None:
        if progress is not None:
            progress(min(1.0, now / whole))

    run = simulate(trace, fleet.variants, policy, scenario.settings, hear, fleet.nodes)
    summary = dataclasses.replace(summarize(run, scenario.slo), rate=batch.rate)
    if batch.bound and summary.attainment >= scenario.slo.attainment:
        summary = dataclasses.replace(summary, bound=_bound(scenario, trace).cost)
    return BatchResult(summary, timeline(run, scenario.slo))


def _bound(scenario: Scenario, trace: Trace) -> Bound:
    counted = trace.since(scenario.settings.warm_up)
    return Clairvoyant(counted, scenario.fleet.variants, scenario.slo).bound(scenario.slo.attainment)


def least(scenario: Scenario, rate: float) -> tuple[Bound, str]:
    """The least that any policy could pay at the SLO's attainment, and that in words."""
    slo = scenario.slo
    bound = _bound(scenario, scenario.at_rate(rate))
    share = f"{slo.attainment:.4g} of the requests"
    if math.isinf(bound.cost):
        text = f"no policy can have {share} within the targets: on these engines {bound.attainable:.4g} is the most"
    else:
        text = (
            f"no policy can have {share} within the targets for less than {bound.replica_hours:.2f} replica-hours or a "
            f"cost of {bound.cost:.2f}; × BOUND is the cost of a policy that held it over that"
        )
    return bound, f"clairvoyant: {text}"
