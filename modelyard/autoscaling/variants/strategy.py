"""What decides about the variants of one model: a small interface, with the percentages of the saturation form.

``decide`` asks ``Strategy.propose`` once per group and tick. A strategy sets target, reason and message of the states
it decides on; whatever it leaves alone keeps what it had. Strategies are combined (``slo.strategy`` asks the
saturation one first), so they say what they found as a ``Verdict``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from modelyard.autoscaling.conditions import Story
from modelyard.autoscaling.decision import Evidence
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants import health
from modelyard.autoscaling.variants.analysis import analyse_repaired
from modelyard.autoscaling.variants.assessment import Assessment
from modelyard.autoscaling.variants.state import Group, State
from modelyard.autoscaling.variants.targets import set_targets
from modelyard.metrics.values import Signals


@dataclass(frozen=True, slots=True)
class Moment:
    """Inputs shared by the decisions about every group of a tick.

    ``backlog`` is the gateway queue of the group's model in requests, ``backlog_bytes`` the size of their bodies.
    """

    fleet: Fleet
    settings: FleetSettings
    backlog: float = 0.0
    backlog_bytes: float = 0.0


class Verdict(NamedTuple):
    """What a strategy found. ``problem`` is why it could not decide, as the condition ``MetricsAvailable``;
    ``invalid`` what is wrong with the configuration it needs.

    ``scale_down_safe`` is ``None`` when there was no analysis.
    """

    decided: Sequence[State] = ()
    problem: Story | None = None
    invalid: str = ""
    scale_down_safe: bool | None = None
    evidence: Evidence | None = None


class Strategy(Protocol):
    """Decides about the variants of one model."""

    def propose(self, group: Group, running: Sequence[State], tick: Moment) -> Verdict:
        """Set the targets of the group's states; ``running`` are those whose workload is not at zero."""


class Idle(Protocol):
    """Whether a model that has completed no request for its window may go to zero."""

    def __call__(self, group: Group, states: Sequence[State], signals: Signals, now: float) -> tuple[str | None, str]:
        """Why not (``None``: it may), and what is then known of it."""


class Wake(Protocol):
    """Starts what is at zero when somebody waits for it; ``backlog`` is the gateway's queue."""

    def __call__(self, group: Group, signals: Signals, backlog: float, settings: FleetSettings, now: float) -> None:
        """Set the targets of variants at zero that have to start now."""


class Course(NamedTuple):
    """How one group is decided, chosen once. ``wake`` ``None``: the strategy itself decides about variants at zero."""

    strategy: Strategy
    wake: Wake | None
    idle: Idle


class Checked:
    """A strategy that rests on thresholds and on the signals of pods: it is only asked when there are both.

    ``strict``: thresholds that make scaling endless or impossible are as bad as ones that cannot be read.
    """

    def __init__(self, strategy: Strategy, strict: bool = True) -> None:
        self._strategy = strategy
        self._strict = strict

    def propose(self, group: Group, running: Sequence[State], tick: Moment) -> Verdict:
        """The strategy's verdict, or why it was not asked."""
        config = group.config
        problems = config.errors + config.unsafe if self._strict else config.errors
        if problems:
            return Verdict(invalid="; ".join(problems))
        problem = health.metrics_problem(group, running, tick.fleet.signals, tick.fleet.now, tick.settings.stale_after)
        return Verdict(problem=problem) if problem is not None else self._strategy.propose(group, running, tick)


class Percentages:
    """The saturation form's percentage analysis, repaired."""

    def propose(self, group: Group, running: Sequence[State], tick: Moment) -> Verdict:
        """Every state of the group gets a target: variants at zero may be woken."""
        limits = group.config.thresholds
        return assessed(group, analyse_repaired(running, limits, tick.settings, tick.fleet.now, tick.backlog), tick)


def assessed(group: Group, analysis: Assessment, tick: Moment) -> Verdict:
    """Targets of all states of the group by the common rules, and what the analysis wants remembered."""
    load = tick.fleet.signals.loads.get((group.namespace, group.model_id))
    set_targets(group, analysis, tick.settings, tick.fleet.now, load)
    for state in group.states:
        if state.name in analysis.stuck_pods:
            state.updates["stuck_since"], state.updates["stuck_waiting"] = analysis.stuck_pods[state.name]
    return Verdict(group.states, scale_down_safe=analysis.scale_down_safe, evidence=analysis.evidence())
