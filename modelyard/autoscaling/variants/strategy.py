"""What decides about the variants of one model: a small interface, with the percentages of the saturation form.

``decide`` asks ``Strategy.propose`` once per group and tick. A strategy sets target, reason and message of the states
it decides on; whatever it leaves alone keeps what it had. Strategies are combined (``slo.strategy`` asks the
saturation one first), so they say what they found as a ``Verdict``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from modelyard.autoscaling.decision import Action, Evidence
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.published.targets import VariantNumbers, documented_targets
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants import health
from modelyard.autoscaling.variants.analysis import Analysis, analyse_published, analyse_repaired
from modelyard.autoscaling.variants.state import Group, State, Story
from modelyard.autoscaling.variants.targets import set_targets


@dataclass(frozen=True, slots=True)
class Tick:
    """What every group of a tick is decided with. ``backlog`` is the gateway queue of the group's model."""

    fleet: Fleet
    settings: FleetSettings
    backlog: float = 0.0


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

    def propose(self, group: Group, running: Sequence[State], tick: Tick) -> Verdict:
        """Set the targets of the group's states; ``running`` are those whose workload is not at zero."""
        ...


class Checked:
    """A strategy that rests on thresholds and on the signals of pods: it is only asked when there are both."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def propose(self, group: Group, running: Sequence[State], tick: Tick) -> Verdict:
        """The strategy's verdict, or why it was not asked."""
        config = group.config
        problems = config.errors if group.published else config.errors + config.unsafe
        if problems:
            return Verdict(invalid="; ".join(problems))
        problem = health.metrics_problem(group, running, tick.fleet.signals, tick.fleet.now, tick.settings.stale_after)
        return Verdict(problem=problem) if problem is not None else self._strategy.propose(group, running, tick)


class Percentages:
    """The saturation form's percentage analysis, repaired."""

    def propose(self, group: Group, running: Sequence[State], tick: Tick) -> Verdict:
        """Every state of the group gets a target: variants at zero may be woken."""
        settings, now = tick.settings, tick.fleet.now
        analysis = analyse_repaired(running, group.config.thresholds, settings, now, tick.backlog)
        load = tick.fleet.signals.loads.get((group.namespace, group.model_id))
        set_targets(group, analysis, settings, now, load)
        for state in group.states:
            if state.name in analysis.stuck_pods:
                state.updates["stuck_since"], state.updates["stuck_waiting"] = analysis.stuck_pods[state.name]
        return Verdict(group.states, scale_down_safe=analysis.scale_down_safe, evidence=analysis.evidence())


class PublishedPercentages:
    """The percentage analysis as documented."""

    def propose(self, group: Group, running: Sequence[State], tick: Tick) -> Verdict:
        """Targets by the documented rule; a variant without a reporting pod gets no decision there."""
        analysis = analyse_published([state.units for state in running], group.config.thresholds)
        decided = _published_targets(running, analysis)
        return Verdict(decided, scale_down_safe=analysis.scale_down_safe, evidence=analysis.evidence())


def _published_targets(running: Sequence[State], analysis: Analysis) -> list[State]:
    """Targets by the documented rule; a variant without a reporting pod gets no decision there."""
    numbers = [
        VariantNumbers(s.name, s.variant.cost, s.current or 0, s.desired or 0, len(s.units), s.pending) for s in running
    ]
    targets = documented_targets(numbers, analysis.scale_up, analysis.scale_down_safe)
    reason = {"ScaleUp": analysis.what_is_short, "ScaleDown": "CapacitySpare"}.get(targets.reason, targets.reason)
    decided: list[State] = []
    for state in running:
        target = targets.replicas.get(state.name)
        if target is None:
            text = "no replica of the variant reports metrics; replicas are kept"
            state.keep("MetricsUnavailable", text)
            state.metrics = ("False", "MetricsUnavailable", text)
            continue
        act = Action.of(target, state.current or 0)
        text = (
            f"saturation-only mode: {act} (target: {target} replicas): {targets.why}; "
            f"spare KV {analysis.spare_kv:.3f}, spare queue {analysis.spare_queue:.1f} "
            f"over {analysis.counted} of {analysis.reporting} replicas"
        )
        state.propose(target, reason, text)
        decided.append(state)
    return decided
