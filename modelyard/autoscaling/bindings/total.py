"""The numbers of one binding's decision: what the metrics ask of all targets together, and each target's share.

One target is the simplest case of several. Source: Kthena autoscaler reference, "Optimizer (heterogeneous) mode".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, fsum
from typing import NamedTuple, Protocol

from modelyard.autoscaling.bindings import zero
from modelyard.autoscaling.bindings.behaviour import Correction, Corrector, correct, remembered
from modelyard.autoscaling.bindings.names import is_ratio
from modelyard.autoscaling.bindings.recommend import Recommendation, recommend
from modelyard.autoscaling.bindings.shares import Candidate, Choice, exact_shares, greedy_shares
from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.decisions import Explanation, Reason, Step, Strategy, TickContext
from modelyard.autoscaling.fleet import BindingView, PolicyView, TargetView
from modelyard.autoscaling.memory import BindingMemory
from modelyard.fairness import WorkBudget

_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class TotalDecision:
    """What came out: replicas per target (``str(workload)``), ``None`` when nothing is to be changed."""

    recommendation: Recommendation
    memory: BindingMemory
    replicas: Mapping[str, int] | None = None
    correction: Correction | None = None
    woken: bool = False
    steps: tuple[Step, ...] = ()
    held: Mapping[str, Explanation] = field(default_factory=dict)
    """Targets whose last instance stays, and why."""
    current: int = 0
    """The total the decision started from, instances of missing targets included."""
    ratio: Explanation | None = None


class BindingDemand(NamedTuple):
    """The targets of a binding with their policy and memory. ``effort`` bounds the search for the exact shares."""

    view: BindingView
    policy: PolicyView
    choice: Choice
    memory: BindingMemory
    effort: WorkBudget | None = None


class BindingStrategy(Strategy[BindingDemand, TotalDecision], Protocol):
    """Decides about a binding's targets. ``histograms_from_start``: a first look counts all that was ever taken in."""

    histograms_from_start: bool


class TargetMetrics:
    """Holds the metrics of a policy at their targets. The documented algorithm overrides what it does otherwise."""

    histograms_from_start = False
    corrector = Corrector

    def propose(self, demand: BindingDemand, tick: TickContext) -> TotalDecision:
        """Decide on the targets that could be read. A target that could not keeps what it had when it last could."""
        return _decide_total(demand, tick.settings, tick.now, self)

    def recommend(self, metered: Metered) -> Recommendation:
        return metered.recommend([(target, list(target.instances)) for target in metered.targets], doubts=True)

    def may_sleep(self, targets: Sequence[TargetView]) -> list[TargetView]:
        """Return the targets whose last instance waits until it is idle."""
        return [target for target in targets if target.minimum == 0]

    def wake(self, metered: Metered, advice: Recommendation) -> int | None:
        """Return the replicas pending demand wakes targets at zero to, past all limits; ``None``: nothing does."""
        known, minimum = metered.targets, metered.minimum
        demands = [target.demand for target in known if target.demand is not None]
        demand = fsum(demands) if demands else None
        if advice.replicas and advice.bounded != "minimum":
            demand = max(demand or 0.0, float(advice.replicas))
        wakes = known and metered.current <= 0 and demand is not None and demand > 0
        return max(1, minimum) if wakes else None


class Metered(NamedTuple):
    """The targets that could be read, counted together; ``weight`` is by target name."""

    targets: Sequence[TargetView]
    weight: Mapping[str, float]
    policy: PolicyView
    current: int
    minimum: int
    maximum: int
    weighted: bool

    def recommend(
        self, measured: Sequence[tuple[TargetView, Sequence[Mapping[str, float]]]], *, doubts: bool
    ) -> Recommendation:
        weights = [self.weight[target.name] for target, instances in measured for _ in instances]
        return recommend(
            self.current,
            self.minimum,
            self.maximum,
            self.policy.tolerance_percent / 100,
            self.policy.targets,
            [values for _, instances in measured for values in instances],
            unready=fsum(target.unready * self.weight[target.name] for target in self.targets),
            external=combine_external(self.targets),
            weights=weights if self.weighted else None,
            unknown=frozenset().union(*(target.unknown for target in self.targets)),
            doubts=doubts,
        )


def _decide_total(demand: BindingDemand, settings: FleetSettings, now: float, strategy: TargetMetrics) -> TotalDecision:
    view, policy, choice, memory, effort = demand
    known = [target for target in view.targets if target.current is not None]
    lost = [target for target in view.targets if target.current is None]
    weight = {target.name: choice.capacities.get(target.name, 1.0) if choice.exact else 1.0 for target in view.targets}
    carried = fsum(weight[target.name] * (target.current or 0) for target in known)
    kept = _whole(fsum(weight[target.name] * memory.seen.get(str(target.workload), target.minimum) for target in lost))
    current = _whole(carried)
    minimum = _whole(fsum(weight[target.name] * target.minimum for target in known))
    maximum = _whole(fsum(weight[target.name] * target.maximum for target in known))
    metered = Metered(known, weight, policy, current, minimum, maximum, choice.exact)
    advice = strategy.recommend(metered)
    wake = strategy.wake(metered, advice)
    if advice.replicas is None and wake is None:
        return TotalDecision(advice, _idle(known, memory, {}, now), current=current + kept)
    recommended = max(advice.replicas or 0, wake or 0)
    correction = correct(
        policy.behaviour,
        recommended + kept,
        current + kept,
        minimum + kept,
        maximum + kept,
        memory,
        now,
        settings.tick,
        corrector=strategy.corrector,
    )
    total = correction.replicas - kept
    steps = [Step("recommendation", current + kept, recommended + kept, str(advice.why)), *correction.steps]
    woken = wake is not None and recommended > 0
    if wake is not None and total < wake:
        steps.append(Step("wake-up", total + kept, wake + kept, str(Explanation(Reason.PASSES_LIMITS))))
        total = wake
    last = strategy.may_sleep(known)
    held: dict[str, Explanation] = {}
    while True:
        replicas = _shared(view, known, weight, choice, total, carried, current, settings, held, effort)
        if lost:
            replicas = {
                key: max(share, min(target.current or 0, target.maximum))
                for (key, share), target in zip(replicas.items(), known, strict=True)
            }
        idle: dict[str, float] = {}
        blocked: dict[str, Explanation] = {}
        for target in last:
            key = str(target.workload)
            verdict = zero.last_instance(
                replicas[key] if key not in held else 0,
                target.current or 0,
                target.minimum,
                target.demand,
                memory.idle_since.get(key),
                view.grace_of(target),
                now,
                recommended=0 if view.optimizer else recommended,
            )
            if verdict.idle_since is not None:
                idle[key] = verdict.idle_since
            if verdict.blocked:
                blocked[key] = verdict.blocked
                replicas[key] = max(replicas[key], verdict.replicas)
        # An instance that stays is part of the total: beside it, the total would grow by one in every tick.
        if blocked.keys() <= held.keys() or not view.optimizer:
            held = {**held, **blocked}
            break
        held = {**held, **blocked}
    if held and not choice.exact:
        total = sum(replicas.values())
    memory = remembered(correction, total + kept, now, settings.tick)
    memory = memory if idle == memory.idle_since else memory.model_copy(update={"idle_since": idle})
    return TotalDecision(advice, memory, replicas, correction, woken, tuple(steps), held, current + kept)


def _whole(number: float) -> int:
    return ceil(number * (1 - _SLACK))


def combine_external(targets: Sequence[TargetView]) -> dict[str, float]:
    """Totals measured per target as one per metric: sums; of shares the mean, weighted by replicas if there are any."""
    found: dict[str, list[tuple[float, int]]] = {}
    for target in targets:
        for name, value in target.external.items():
            found.setdefault(name, []).append((value, target.current or 0))
    combined: dict[str, float] = {}
    for name, parts in found.items():
        replicas = sum(count for _, count in parts)
        if not is_ratio(name):
            combined[name] = fsum(value for value, _ in parts)
        elif replicas:
            combined[name] = fsum(value * count for value, count in parts) / replicas
        else:
            combined[name] = fsum(value for value, _ in parts) / len(parts)
    return combined


def _idle(known: Sequence[TargetView], memory: BindingMemory, found: dict[str, float], now: float) -> BindingMemory:
    """Idleness is followed in ticks without a decision too."""
    for target in known:
        key = str(target.workload)
        if target.minimum == 0 and target.current and target.demand is not None and target.demand <= 0:
            found[key] = memory.idle_since.get(key, now)
    return memory if found == memory.idle_since else memory.model_copy(update={"idle_since": found})


def _shared(
    view: BindingView,
    known: Sequence[TargetView],
    weight: Mapping[str, float],
    choice: Choice,
    total: int,
    carried: float,
    current: int,
    settings: FleetSettings,
    held: Collection[str],
    effort: WorkBudget | None,
) -> dict[str, int]:
    """``held`` targets keep at least one instance of the total."""
    if not view.optimizer:
        return {str(known[0].workload): total}
    candidates = [
        Candidate(
            t.name,
            t.cost,
            max(t.minimum, 1) if str(t.workload) in held else t.minimum,
            t.maximum,
            t.current or 0,
            weight[t.name],
        )
        for t in known
    ]
    if choice.exact:
        # Capacities need not add up to whole numbers: an unchanged total means exactly what there is.
        demand = carried if total == current else float(total)
        shares = exact_shares(demand, candidates, settings.transition_penalty, effort)
    else:
        shares = greedy_shares(total, candidates, view.expansion_percent)
    return {str(target.workload): share for target, share in zip(known, shares, strict=True)}
