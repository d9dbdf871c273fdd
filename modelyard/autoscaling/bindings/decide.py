"""The decision about one AutoscalingPolicyBinding, and about all of them. Pure: no clock, no network.

``total`` finds the numbers, ``problems`` the obstacles, ``story`` the words; here the stages are put in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from modelyard.autoscaling.bindings import roles, story
from modelyard.autoscaling.bindings.limits import limit_notices, within_owner_limits
from modelyard.autoscaling.bindings.problems import INVALID, Problem, conflicts, problem_of
from modelyard.autoscaling.bindings.recommend import deciding
from modelyard.autoscaling.bindings.shares import most_blocks, parse_choice
from modelyard.autoscaling.bindings.total import BindingDemand, BindingStrategy, TotalDecision
from modelyard.autoscaling.configuration import (
    ACTUATION,
    COMPATIBILITY,
    Compatibility,
    Handling,
    Mode,
    fleet_handling,
    handling_of,
)
from modelyard.autoscaling.decisions import (
    BEYOND,
    METRICS_AVAILABLE,
    NO_FACTS,
    READY,
    SEARCHES,
    SHARE,
    Action,
    BindingDecision,
    Bounds,
    ConditionValue,
    Decision,
    DecisionFacts,
    Identity,
    Now,
    Reason,
    Record,
    Step,
    Target,
    TickContext,
    Why,
    Writes,
    refusal,
    waiting_since,
)
from modelyard.autoscaling.fleet import BINDINGS, BindingView, TargetView
from modelyard.autoscaling.memory import BindingMemory
from modelyard.fairness import WorkBudget, WorkRequest, grant_work
from modelyard.objects import Condition, Key, Notice
from modelyard.reconcile.plans import Subject

CONFLICT = "TargetConflict"
UNMEASURED = "MetricsUnavailable"
UNITS_OF_A_TARGET, UNITS_OF_A_BLOCK, UNITS_OF_A_PAIR = 2_000, 10, 40
"""Work of a target as such, of a block of instances, and of two targets that are compared with one another."""


Strategies = Callable[[Compatibility], BindingStrategy]


def decide_bindings(
    views: Iterable[BindingView], tick: TickContext, strategies: Strategies
) -> tuple[tuple[BindingDecision, ...], tuple[str, ...]]:
    """Decisions in the order of ``views``, and failures. Two bindings on one target: only the older one scales.

    A binding that fails gets no decision. One beyond its namespace's share of the work waits and comes first next time.
    """
    views = tuple(map(within_owner_limits, views))
    lost = conflicts(views)
    requests = [WorkRequest(view.key.namespace, _units(view), waiting_since(view.conditions, READY)) for view in views]
    efforts: defaultdict[str, WorkBudget] = defaultdict(lambda: WorkBudget(SEARCHES))
    assessed: dict[Key, AssessedBinding] = {}
    errors: list[str] = []

    def failed(key: Key, error: Exception) -> None:
        assessed.pop(key, None)
        text = f"deciding failed: {type(error).__name__}: {error}; replicas are kept"
        errors.append(f"AutoscalingPolicyBinding {key}: {text}")

    for view, request, granted in zip(views, requests, grant_work(requests, SHARE), strict=True):
        if view.key in lost and view.problem is None:
            view = replace(view, problem=lost[view.key], problem_reason=CONFLICT)
        elif not granted and view.problem is None:
            view = replace(view, problem=refusal(request), problem_reason=BEYOND)
        try:
            assessed[view.key] = assess_binding(view, tick, strategies, efforts[view.key.namespace])
        except Exception as error:  # one binding's failure must never stop another
            failed(view.key, error)
    changes = roles.kept(views, {key: each.records[0] for key, each in assessed.items() if each.records})
    decisions: list[BindingDecision] = []
    for key, each in list(assessed.items()):
        try:
            decisions.append(conclude_binding(each, tick.now, changes.get(key)))
        except Exception as error:
            failed(key, error)
    return tuple(decisions), tuple(errors)


def _units(view: BindingView) -> float:
    units = UNITS_OF_A_TARGET * len(view.targets)
    if view.optimizer:
        # Once for each instance that turns out to have to stay.
        rounds = 1 + sum(target.minimum == 0 for target in view.targets)
        ordered = sum(most_blocks(max(0, t.maximum - t.minimum), view.expansion_percent) for t in view.targets)
        units += rounds * (UNITS_OF_A_BLOCK * ordered + UNITS_OF_A_PAIR * len(view.targets) ** 2)
    return units


@dataclass(frozen=True, slots=True)
class AssessedBinding:
    """A binding's own result: ``total`` with a record of each target, or the ``problem`` that forbids it."""

    view: BindingView
    how: Handling
    notices: tuple[Notice, ...]
    memory: BindingMemory
    problem: Problem | None
    total: TotalDecision
    metrics: ConditionValue | None
    records: tuple[Record, ...]


def assess_binding(
    view: BindingView, tick: TickContext, strategies: Strategies, effort: WorkBudget | None = None
) -> AssessedBinding:
    """Return the binding's result by its own metrics and history. ``effort`` bounds the search for exact shares."""
    chosen = {key: view.annotations[key] for key in (ACTUATION, COMPATIBILITY) if key in view.annotations}
    how = handling_of(chosen, fleet_handling(tick.settings))
    notices = list(how.notices)
    if view.memory_problem is not None:
        notices.append(Notice("StateUnreadable", view.memory_problem, "Warning"))
    notices += limit_notices(view)
    memory = _about(view, view.memory.not_after(tick.now))
    problem, policy = problem_of(view), view.policy
    if view.deleting:
        problem = Problem("Deleting", "the binding is being deleted: replicas are kept")
    elif problem is not None:
        notices.append(Notice(problem.reason, problem.text, "Warning"))
    total, metrics = TotalDecision(story.NOTHING_KNOWN, memory), None
    if problem is not None:
        text = f"{problem.text}; replicas are kept"
        records = tuple(
            _record(view, target, how, target.current, False, problem.reason, text, publish=False)
            for target in view.targets
        )
    else:
        assert policy is not None
        choice = parse_choice(view.annotations, [target.name for target in view.targets])
        notices += [Notice(INVALID, text, "Warning") for text in choice.problems]
        if any(target.current is not None for target in view.targets):
            total = strategies(how.compatibility).propose(BindingDemand(view, policy, choice, memory, effort), tick)
        metrics = story.metrics_story(view, policy.targets)
        records = _target_records(view, total, how, metrics)
    return AssessedBinding(view, how, tuple(notices), memory, problem, total, metrics, records)


def conclude_binding(assessed: AssessedBinding, now: float, change: roles.RatioChange | None = None) -> BindingDecision:
    """Return the decision; ``change`` is what the ratio to another role makes of it."""
    view, memory, total, records = assessed.view, assessed.memory, assessed.total, assessed.records
    notices, metrics = list(assessed.notices), assessed.metrics
    if assessed.problem is not None:
        text = assessed.problem.text
        conditions = story.of_outcome(view, False, text, None, now)
        return _decision(view, records, conditions, notices, _followed(view, memory, {}, now), text)
    readable = [target for target in view.targets if target.current is not None]
    is_wrong = change is not None and change.why.reason is Reason.RATIO_INVALID and bool(readable)
    if readable and change is not None:
        total = roles.applied(total, change, memory, readable[0])
        records = _target_records(view, total, assessed.how, metrics)
        if is_wrong:
            notices.append(Notice(change.why.code, str(change.why), "Warning"))
    unmeasured = metrics is not None and metrics.reason == UNMEASURED
    if metrics is not None and unmeasured:
        notices.append(Notice(UNMEASURED, str(metrics.message), "Warning"))
    for target in view.targets:
        if target.current is None:
            why = story.missing(target)
            notices.append(Notice(why.code, str(why), "Warning"))
    until = total.memory.panic_until
    panic = total.correction.panic if total.correction is not None else until is not None and now <= until
    message = story.overall(view, total, records)
    # Rates and percentiles take a second look, which a process that has just started has not had yet.
    before = any(c.type == METRICS_AVAILABLE and c.reason == UNMEASURED for c in view.conditions)
    failing = unmeasured and before and total.replicas is None
    conditions = story.of_outcome(view, bool(readable) and not failing and not is_wrong, message, metrics, now)
    asked = {
        str(record.now.workload): record.target.replicas
        for record in records
        if record.target.decided and record.target.replicas is not None
    }
    return _decision(view, records, conditions, notices, _followed(view, total.memory, asked, now), message, panic)


def _target_records(
    view: BindingView, total: TotalDecision, how: Handling, metrics: ConditionValue | None
) -> tuple[Record, ...]:
    return tuple(_target_record(view, target, total, how, metrics) for target in view.targets)


def _target_record(
    view: BindingView, target: TargetView, total: TotalDecision, how: Handling, metrics: ConditionValue | None
) -> Record:
    if target.current is None:
        why = story.missing(target)
        return _record(view, target, how, None, False, why.code, str(why))
    key = str(target.workload)
    if total.replicas is None:
        reason, message = story.of_skip(target, metrics, total.recommendation)
        decided = reason == "AtZero"
        # Somebody else may still be on the way to what was asked for last.
        wanted = story.desired_before(view, target) if how.mode is Mode.SIGNAL and not decided else None
        kept = target.current if wanted is None else min(max(wanted, target.minimum), target.maximum)
        return _record(view, target, how, kept, decided, reason, message)
    replicas = total.replicas[key]
    reason, message = story.of_target(view, target, total, replicas)
    steps = story.steps(view, target, total, replicas)
    return _record(view, target, how, replicas, True, reason, message, steps, facts=_facts(total))


def _facts(total: TotalDecision) -> DecisionFacts:
    if not total.recommendation.proposals:
        return DecisionFacts()
    best = deciding(total.recommendation.proposals)
    unit = f"{best.metric} per instance"
    return DecisionFacts(unit, best.ratio * best.target, per_replica=best.target, required=best.replicas)


def _record(
    view: BindingView,
    target: TargetView,
    how: Handling,
    replicas: int | None,
    decided: bool,
    reason: str,
    message: str,
    steps: tuple[Step, ...] | None = None,
    publish: bool = True,
    facts: DecisionFacts = NO_FACTS,
) -> Record:
    """``steps`` ``None``: no write."""
    writes = steps is not None and how.mode is Mode.DIRECT and replicas != target.current
    return Record(
        identity=Identity(
            subject=_subject(view),
            form="optimizer" if view.optimizer else "policy",
            model_id=target.name,
            variant_id=target.name,
        ),
        now=Now(
            workload=target.workload,
            current=target.current,
            ready=target.ready,
            reporting=sum(1 for instance in target.instances if instance),
            desired=story.desired_before(view, target),
            cost=target.cost,
            gpus=target.gpus,
        ),
        target=Target(replicas=replicas, action=Action.of(replicas, target.current), decided=decided),
        why=Why(reason=reason, message=message, facts=facts, steps=steps or ()),
        bounds=Bounds(target.minimum, target.maximum, target.minimum_from, target.maximum_from),
        writes=Writes(mode=how.mode, scale=replicas if writes else None, publish=publish and replicas is not None),
    )


def _subject(view: BindingView) -> Subject:
    subject = Subject(BINDINGS, view.key, view.uid, view.generation, view.resource_version)
    return subject._replace(ignored=view.ignored)


def _about(view: BindingView, memory: BindingMemory) -> BindingMemory:
    """Windows are fresh when the binding now scales something else than before."""
    if not view.targets:
        return memory
    if not view.optimizer and view.targets[0].current is None:
        return memory  # which workload a reference means is known only once it can be read
    subject = "optimizer" if view.optimizer else str(view.targets[0].workload)
    if memory.subject == subject:
        return memory
    if not memory.subject:
        return memory.model_copy(update={"subject": subject})
    return BindingMemory(subject=subject, scaled_at=memory.scaled_at)


def _followed(view: BindingView, memory: BindingMemory, wanted: Mapping[str, int], now: float) -> BindingMemory:
    asked, scaled_at, seen = {}, {}, {}
    for target in view.targets:
        key, current = str(target.workload), target.current
        if key in memory.scaled_at:
            scaled_at[key] = memory.scaled_at[key]
        if current is None:
            if key in memory.asked:
                asked[key] = memory.asked[key]
            if key in memory.seen:
                seen[key] = memory.seen[key]
            continue
        if view.optimizer:
            seen[key] = current
        before = memory.asked.get(key)
        if before is not None and before[1] == current:
            scaled_at[key] = before[0]
            before = None
        want = wanted.get(key)
        if want is not None and want != current:
            asked[key] = before if before is not None and before[1] == want else (now, want)
        elif want is None and before is not None:
            asked[key] = before
    changes: dict[str, object] = {}
    for name, value in (("asked", asked), ("scaled_at", scaled_at), ("seen", seen)):
        if value != getattr(memory, name):
            changes[name] = value
    idle = {key: since for key, since in memory.idle_since.items() if key in {str(t.workload) for t in view.targets}}
    if idle != memory.idle_since:
        changes["idle_since"] = idle
    return memory.model_copy(update=changes) if changes else memory


def _decision(
    view: BindingView,
    records: tuple[Record, ...],
    conditions: tuple[Condition, ...],
    notices: list[Notice],
    memory: BindingMemory,
    message: str,
    panic: bool = False,
) -> BindingDecision:
    return Decision(
        subject=_subject(view),
        records=records,
        memory=memory,
        conditions=conditions,
        notices=tuple(notices),
        message=message,
        panic=panic,
    )
