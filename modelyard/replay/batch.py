"""One policy at one rate: the unit in which replays are spread over processes.

Everything that goes in and out can be pickled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from modelyard.replay.clairvoyant import Clairvoyant
from modelyard.replay.policies.parse import PolicyText, factory
from modelyard.replay.report import Summary, Timeline, summarize, timeline
from modelyard.replay.scenario import Scenario
from modelyard.replay.simulate import simulate


class Batch:
    """What to replay. ``bound``: also the least cost at the attainment reached. Deliberately no dataclass: runners
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


class BatchResult:
    """How it went: the row, and minute by minute."""

    def __init__(self, rate: float, summary: Summary, line: Timeline) -> None:
        self.rate = rate
        self.summary = summary
        self.line = line


def replay(batch: Batch, progress: Callable[[float], None] | None = None) -> BatchResult:
    """Replay it. ``progress`` is told the share done (0 to 1) now and then.

    Raises ``PolicyInputError`` and ``SimulationError``.
    """
    scenario, world = batch.scenario, batch.scenario.world
    make = factory(batch.policy, world.manifests, world.fleet_settings, scenario.settings.gateway_metrics)
    trace = scenario.at_rate(batch.rate)
    whole = max(trace.duration, 1.0)

    def hear(now: float) -> None:
        if progress is not None:
            progress(min(1.0, now / whole))

    run = simulate(trace, world.variants, make(), scenario.settings, hear, world.nodes)
    summary = summarize(run, scenario.slo)
    if batch.bound:
        bound = Clairvoyant(trace, world.variants, scenario.slo).bound(summary.attainment)
        summary = dataclasses.replace(summary, bound=bound.cost)
    return BatchResult(batch.rate, summary, timeline(run, scenario.slo))
