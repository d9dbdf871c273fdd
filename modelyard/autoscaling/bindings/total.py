"""The numbers of one binding's decision: what the metrics ask of all targets together, and each target's share.

One target is the simplest case of several. Source: Kthena autoscaler reference, "Optimizer (heterogeneous) mode".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, fsum

from modelyard.autoscaling.bindings import zero
from modelyard.autoscaling.bindings.behaviour import Correction, correct, remembered
from modelyard.autoscaling.bindings.names import is_ratio
from modelyard.autoscaling.bindings.recommend import Recommendation, recommend
from modelyard.autoscaling.bindings.shares import Candidate, Choice, exact_shares, greedy_shares
from modelyard.autoscaling.decision import Step
from modelyard.autoscaling.memory.bindings import BindingMemory
from modelyard.autoscaling.mixing import Effort
from modelyard.autoscaling.rules import RULES, Rules
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.view import BindingView, PolicyView, TargetView

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
    """What happened to the total."""
    held: Mapping[str, str] = field(default_factory=dict)
    """Targets whose last instance stays, and why."""
    current: int = 0
    """The total the decision started from, instances of missing targets included."""
    ratio: str = ""
    """What the other role's replicas changed, in words."""


def decide_total(
    view: BindingView,
    policy: PolicyView,
    choice: Choice,
    memory: BindingMemory,
    settings: FleetSettings,
    now: float,
    rules: Rules = RULES,
    effort: Effort | None = None,
) -> TotalDecision:
    """Decide on the targets that could be read. A target that could not keeps what it had when it last could.

    ``effort`` bounds the search for the exact shares.
    """
    known = [target for target in view.targets if target.current is not None]
    lost = [target for target in view.targets if target.current is None]
    weight = {target.name: choice.capacities.get(target.name, 1.0) if choice.exact else 1.0 for target in view.targets}
    carried = fsum(weight[target.name] * (target.current or 0) for target in known)
    kept = _whole(fsum(weight[target.name] * memory.seen.get(str(target.workload), target.minimum) for target in lost))
    current = _whole(carried)
    minimum = _whole(fsum(weight[target.name] * target.minimum for target in known))
    maximum = _whole(fsum(weight[target.name] * target.maximum for target in known))
    advice = _recommendation(known, weight, policy, current, minimum, maximum, choice.exact, rules)
    wake = _wake(known, advice, current, minimum) if rules.guards_zero else None
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
        rules=rules,
    )
    total = correction.replicas - kept
    steps = [Step("recommendation", current + kept, recommended + kept, advice.why), *correction.steps]
    woken = wake is not None and recommended > 0
    if wake is not None and total < wake:
        steps.append(Step("wake-up", total + kept, wake + kept, "pending demand passes all limits"))
        total = wake
    last = [t for t in known if t.minimum == 0] if rules.guards_zero else []
    held: dict[str, str] = {}
    while True:
        replicas = _shared(view, known, weight, choice, total, carried, current, settings, held, effort)
        if lost:
            replicas = {
                key: max(share, min(target.current or 0, target.maximum))
                for (key, share), target in zip(replicas.items(), known, strict=True)
            }
        idle: dict[str, float] = {}
        blocked: dict[str, str] = {}
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


def _recommendation(
    known: Sequence[TargetView],
    weight: Mapping[str, float],
    policy: PolicyView,
    current: int,
    minimum: int,
    maximum: int,
    weighted: bool,
    rules: Rules,
) -> Recommendation:
    instances: list[Mapping[str, float]] = []
    weights: list[float] = []
    for target in known:
        measured = list(target.instances) if rules.instance_by_instance else [_summed(target.instances)]
        instances += measured
        weights += [weight[target.name]] * len(measured)
    return recommend(
        current,
        minimum,
        maximum,
        policy.tolerance_percent / 100,
        policy.targets,
        instances,
        unready=fsum(target.unready * weight[target.name] for target in known),
        external=combine_external(known),
        weights=weights if weighted and rules.instance_by_instance else None,
        unknown=frozenset().union(*(target.unknown for target in known)),
        doubts=rules.doubts,
    )


def _summed(instances: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """All instances of a target as if they were one."""
    total: dict[str, float] = {}
    for values in instances:
        for name, value in values.items():
            total[name] = total.get(name, 0.0) + value
    return total


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


def _wake(known: Sequence[TargetView], advice: Recommendation, current: int, minimum: int) -> int | None:
    """The replicas pending demand wakes targets at zero to, past all limits; ``None`` when nothing wakes them."""
    demands = [target.demand for target in known if target.demand is not None]
    demand = fsum(demands) if demands else None
    if advice.replicas and advice.bounded != "minimum":
        demand = max(demand or 0.0, float(advice.replicas))
    return max(1, minimum) if known and current <= 0 and demand is not None and demand > 0 else None


def _idle(known: Sequence[TargetView], memory: BindingMemory, found: dict[str, float], now: float) -> BindingMemory:
    """Memory of a tick without a decision: idleness is followed all the same."""
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
    effort: Effort | None,
) -> dict[str, int]:
    """Replicas by target; the ``held`` ones keep at least one instance of the total."""
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
