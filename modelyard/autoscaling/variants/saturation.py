"""The strategies of the saturation form, and what is common to all strategies of variants."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.decisions import Explanation, Reason, TickContext
from modelyard.autoscaling.variants import health
from modelyard.autoscaling.variants.analysis import analyse_repaired
from modelyard.autoscaling.variants.demand import ModelDemand, VariantStrategy
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.proposal import Origin, Proposal, Proposed, keep
from modelyard.autoscaling.variants.saturation_config import TokenThresholds
from modelyard.autoscaling.variants.targets import propose_targets
from modelyard.autoscaling.variants.tokens import Queue, analyse_tokens
from modelyard.autoscaling.variants.wake import REASON, at_zero, wake, wake_time
from modelyard.metrics.vocabulary import Signals

Wake = Callable[[ModelDemand, Signals, FleetSettings, float], Mapping[str, Proposed]]


class Checked:
    """Asks its strategy only with thresholds and pod signals. ``strict``: unworkable thresholds count as unreadable."""

    def __init__(self, strategy: VariantStrategy, strict: bool = True) -> None:
        self._strategy = strategy
        self._strict = strict

    def propose(self, demand: ModelDemand, tick: TickContext) -> Proposal:
        config = demand.config
        problems = config.errors + config.unsafe if self._strict else config.errors
        if problems:
            return Proposal(invalid=Explanation(Reason.INVALID, problem="; ".join(problems)))
        problem = health.metrics_problem(demand, demand.running, tick.signals, tick.now, tick.settings.stale_after)
        return Proposal(problem=problem) if problem is not None else self._strategy.propose(demand, tick)


class Percentages:
    """The saturation form's percentage analysis, repaired."""

    def propose(self, demand: ModelDemand, tick: TickContext) -> Proposal:
        analysis = analyse_repaired(demand.running, demand.config.thresholds, tick.settings, tick.now, demand.backlog)
        return propose_targets(demand, analysis, tick.settings, tick.now)


class Tokens:
    """The token analyzer, repaired, with the common rules for targets."""

    def propose(self, demand: ModelDemand, tick: TickContext) -> Proposal:
        config, settings = demand.config, tick.settings
        tokens, queue = config.tokens or TokenThresholds(), Queue(demand.backlog, demand.backlog_bytes)
        variants, performances = demand.variants, demand.performances
        analysis = analyse_tokens(variants, performances, config.thresholds, tokens, settings, tick.now, queue)
        return propose_targets(demand, analysis, settings, tick.now)


class WithZero:
    """A strategy, with proposals for the variants at zero by ``wake`` (without it, by the strategy itself).

    ``waking`` decides about the others of a model that is being woken (``None``: the strategy).
    """

    def __init__(
        self, strategy: VariantStrategy, waking: VariantStrategy | None = None, wake: Wake | None = wake
    ) -> None:
        self._strategy = strategy
        self._waking = waking or strategy
        self._wake = wake

    def propose(self, demand: ModelDemand, tick: TickContext) -> Proposal:
        now = tick.now
        if self._wake is None:
            asleep: Mapping[str, Proposed] = {seen.name: at_zero(seen) for seen in demand.variants if seen.spec == 0}
        else:
            asleep = self._wake(demand, tick.signals, tick.settings, now)
            if not demand.running and not (demand.config.errors or demand.config.unsafe):
                return _with_wake_times(demand, Proposal(asleep, settled=True), now)
        is_woken = any(proposed.reason == REASON for proposed in asleep.values())
        strategy = self._waking if is_woken else self._strategy
        return _with_wake_times(demand, _complete(demand, strategy.propose(demand, tick), asleep), now)


def _complete(demand: ModelDemand, proposal: Proposal, asleep: Mapping[str, Proposed]) -> Proposal:
    """Variants without a proposal get one that repeats why there is none."""
    if proposal.invalid is not None:
        kept = {seen.name: _measured(seen, keep(seen, proposal.invalid)) for seen in demand.variants}
        for name, zero in asleep.items():
            kept[name] = kept[name]._replace(steps=zero.steps, learnt=zero.learnt)
        return Proposal(kept, invalid=proposal.invalid, settled=True)
    if (problem := proposal.problem) is not None:
        why = problem.message if isinstance(problem.message, Explanation) else Explanation(Reason.KEPT)
        kept = {
            seen.name: keep(
                seen, why, Explanation(Reason.KEPT), optimization="MetricsUnavailable", reason=problem.reason
            )._replace(metrics=problem)
            for seen in demand.running
        }
        return Proposal({**asleep, **kept}, problem=problem, settled=True)
    if len(demand.running) == len(demand.variants) == len(proposal.variants):
        return proposal
    complete = {**asleep, **proposal.variants}
    for seen in demand.variants:
        proposed = complete[seen.name]
        if seen.spec > 0 or proposed.origin is Origin.ASLEEP:
            continue
        if proposed.decided and not proposed.replicas:
            zero = at_zero(seen)
            proposed = proposed._replace(
                replicas=zero.replicas, reason=zero.reason, why=zero.why, metrics=zero.metrics, origin=Origin.ZERO
            )
        complete[seen.name] = _measured(seen, proposed)
    return proposal._replace(variants=complete)


def _measured(seen: Observation, proposed: Proposed) -> Proposed:
    if seen.spec > 0 or proposed.metrics is not None:
        return proposed
    return proposed._replace(metrics=health.AT_ZERO)


def _with_wake_times(demand: ModelDemand, proposal: Proposal, now: float) -> Proposal:
    times = {seen.name: time for seen in demand.variants if (time := wake_time(seen, now))}
    if not times:
        return proposal
    variants = {
        name: proposed._replace(learnt={**times[name], **proposed.learnt}) if name in times else proposed
        for name, proposed in proposal.variants.items()
    }
    return proposal._replace(variants=variants)
