"""One tick's decision: a picture of the fleet in, a record per variant out. Pure: no clock, no network, no randomness.

The same function serves the live loop, ``modelyard plan``, replay and the tests. It only puts the stages in order;
what each of them does is in its own module: ``select``, ``saturation_config`` and ``zero_config``, ``attribution``,
``strategy`` (and what it calls: ``analysis``, ``targets``, ``published``, and ``slo``), ``enforcement``, ``limiter``,
``bounds``, ``records``.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from modelyard.autoscaling.accelerators import ACCELERATOR_LABEL, UNRESOLVED, product_of, short_name
from modelyard.autoscaling.bindings.claims import settled
from modelyard.autoscaling.bindings.decide import decide_bindings
from modelyard.autoscaling.bounds import required_minimum
from modelyard.autoscaling.budget import SEARCHES, TRIALS
from modelyard.autoscaling.config_maps import ObjectNotice, look_alikes
from modelyard.autoscaling.decision import Step, TickDecision, VariantDecision
from modelyard.autoscaling.fleet import Fleet, shared_models
from modelyard.autoscaling.limiter import ByNode, Counting, limit
from modelyard.autoscaling.mixing import Effort
from modelyard.autoscaling.published import slo as published_slo
from modelyard.autoscaling.published import zero
from modelyard.autoscaling.published.limiter import ByTotal
from modelyard.autoscaling.published.percentages import PublishedPercentages
from modelyard.autoscaling.published.tokens import PublishedTokens
from modelyard.autoscaling.rules import DOCUMENTED, RULES
from modelyard.autoscaling.select import Selected, leave_out_surge, select
from modelyard.autoscaling.settings import Compatibility, FleetSettings
from modelyard.autoscaling.variants import health
from modelyard.autoscaling.variants.attribution import attribute, by_pod
from modelyard.autoscaling.variants.enforcement import enforce, proven_idle, wake_times
from modelyard.autoscaling.variants.records import make_record
from modelyard.autoscaling.variants.saturation_config import SaturationConfigs
from modelyard.autoscaling.variants.shortage import AT_MAXIMUM, at_maximum, cannot_scale
from modelyard.autoscaling.variants.slo.capacity import share_capacity
from modelyard.autoscaling.variants.slo.prepare import FORECASTING, measure_groups, read_variants
from modelyard.autoscaling.variants.slo.strategy import SLOStrategy
from modelyard.autoscaling.variants.slo.work import GroupWork
from modelyard.autoscaling.variants.state import Group, State, work_of
from modelyard.autoscaling.variants.strategy import Checked, Course, Moment, Percentages
from modelyard.autoscaling.variants.tokens.strategy import Tokens
from modelyard.autoscaling.variants.wake import wake
from modelyard.autoscaling.variants.zero_config import ZeroConfigs
from modelyard.metrics.values import queued_for
from modelyard.objects import Notice


def decide(fleet: Fleet, settings: FleetSettings) -> TickDecision:
    """Decide for every variant and policy binding of this controller.

    Never raises for one model's or binding's sake: see ``TickDecision.errors``.
    """
    with _collector_paused():
        return _decide(fleet, settings)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A tick builds and drops nothing: letting the cycle collector walk the whole fleet meanwhile costs a third."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _decide(fleet: Fleet, settings: FleetSettings) -> TickDecision:
    selection = select(fleet, settings)
    saturation = SaturationConfigs(fleet.config_maps, settings)
    zeros = ZeroConfigs(fleet.config_maps, settings)
    dropped = attribute(fleet, selection.active, fleet.now - settings.stale_after)
    performances = by_pod(fleet.signals.performance)
    slo_notices = read_variants(fleet, selection.states, performances, settings)
    _resolve_accelerators(fleet, selection)
    groups = _group(selection.active)
    has_queues = fleet.signals.gateway_queue or fleet.signals.gateway_bytes
    shared = shared_models(fleet.variants) if has_queues else frozenset[str]()
    errors: list[str] = []
    forecast = [group for group in groups if group.slo is not None]
    parts = [
        (published_slo.FORECASTING, [group for group in forecast if group.rules is DOCUMENTED]),
        (FORECASTING, [group for group in forecast if group.rules is not DOCUMENTED]),
    ]
    failed = dict(measure_groups(parts, groups, performances, fleet, settings)) if forecast else {}
    errors += _let_go(forecast, failed)
    courses = _Courses(fleet, selection.active)
    for group in groups:
        try:
            if group in failed:
                raise RuntimeError(failed[group])
            group.config = saturation.resolve(group.namespace, group.model_id)
            group.zero = zeros.resolve(group.namespace, group.model_id)
            place = group.namespace, group.model_id, group.model_id in shared
            backlog = fleet.signals.queued(*place) or 0.0
            tick = Moment(fleet, settings, backlog, queued_for(fleet.signals.gateway_bytes, *place) or 0.0)
            _decide_group(group, courses.of(group), tick)
        except Exception as error:  # one model's failure must never stop another model
            errors.append(_fail(group, error))
    for state in selection.active:
        if state.decided and (state.bounds.upper is not None or state.bounds.lower):
            _bound(state)
    if saturation.limiter:
        try:
            share_capacity(fleet, groups, selection.active, settings)
        except Exception as error:  # the limiter below still keeps what is promised within what there is
            errors.append(f"allocation of scarce accelerators failed: {type(error).__name__}: {error}")
    if saturation.limiter or saturation.quotas:
        try:
            count: Counting | None = None
            if saturation.limiter:
                count = ByTotal if settings.compatibility is Compatibility.PUBLISHED else ByNode
            problem = limit(fleet, selection.active, settings, count, saturation.quotas)
            if problem is not None:
                errors.append(problem)
        except Exception as error:  # without the limiter decisions pass unlimited, as with a failed node list
            errors.append(f"GPU limiter failed, targets are not limited: {type(error).__name__}: {error}")
    try:
        for forecasting, mine in parts:
            forecasting.look_ahead(mine, settings)
    except Exception as error:  # only explanations are missing then
        errors.append(f"predictions failed: {type(error).__name__}: {error}")
    notices: list[ObjectNotice] = [*saturation.notices, *zeros.notices, *slo_notices]
    notices += look_alikes(fleet.config_maps, settings, {state.variant.key.namespace for state in selection.states})
    limiting = saturation.limiter or bool(saturation.quotas)
    variants = _decisions(selection, groups, fleet.now, limiting, errors)
    bindings, binding_errors = decide_bindings(settled(fleet.bindings, fleet, settings), settings, fleet.now)
    return TickDecision(
        now=fleet.now,
        decisions=(*variants, *bindings),
        notices=tuple(notices),
        errors=(*errors, *binding_errors),
        unattributed_signals=dropped,
    )


def _decisions(
    selection: Selected, groups: Sequence[Group], now: float, limiter: bool, errors: list[str]
) -> list[VariantDecision]:
    decisions: list[VariantDecision] = []
    alternatives = {
        id(state): group.slo.alternatives
        for group in groups
        if group.slo is not None and group.slo.alternatives
        for state in group.states
    }
    for state in selection.states:
        try:
            decisions.append(make_record(state, now, limiter, alternatives.get(id(state), ())))
        except Exception as error:  # one variant's failure must never stop another
            errors.append(f"VariantAutoscaling {state.variant.key}: no record: {type(error).__name__}: {error}")
    return decisions


def _group(active: list[State]) -> list[Group]:
    """Variants of one model that are decided together. Those with latency targets by service class; one whose profile
    or class cannot be used is left to saturation, with those that have no targets."""
    groups: dict[tuple[str, str, str, bool], Group] = {}
    _together(active)
    efforts: defaultdict[str, Effort] = defaultdict(lambda: Effort(SEARCHES))
    trials: defaultdict[str, Effort] = defaultdict(lambda: Effort(TRIALS))
    for state in active:
        variant = state.variant
        namespace, model = variant.key.namespace, variant.model_id
        work, documented = state.slo, state.rules is DOCUMENTED
        service = work.service if work is not None and (not work.problem or documented) else None
        if work is not None and service is None and documented:
            state.keep("OptimizationFailed", f"{work.problem}; replicas are kept")
            continue
        # Who has no profile is not sized together with who has one: where nothing can be aimed at, each goes its way.
        key = (namespace, model, service.name if service is not None else "", service is None or variant.slo is None)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(namespace, model)
            if service is not None:
                group.slo, group.effort, group.trials = GroupWork(service), efforts[namespace], trials[namespace]
        group.states.append(state)
    for group in groups.values():
        documented_ones = [state for state in group.states if state.rules is DOCUMENTED]
        if len(documented_ones) == len(group.states):
            group.rules = DOCUMENTED
        elif documented_ones:
            text = f"{group.name} mixes compatibility modes: all its variants are decided in repaired mode"
            for state in documented_ones:
                state.rules = RULES
                leave_out_surge(state)
                state.pending = max(0, (state.current or 0) - (state.ready or 0))
                state.notices = (*state.notices, Notice("InvalidConfiguration", text, "Warning"))
    return list(groups.values())


def _together(active: list[State]) -> None:
    """Variants of one model in saturation form aim at latency targets together: once all engines' speeds are learnt and
    no other of the model is left to saturation."""
    missing = {(s.variant.key.namespace, s.variant.model_id) for s in active if s.slo is None or s.slo.problem}
    for state in active:
        if (
            state.slo is not None
            and state.slo.spec is None
            and (state.variant.key.namespace, state.variant.model_id) in missing
        ):
            state.slo.problem = state.slo.problem or "aims at latency targets once all its model's variants are learnt"


def _let_go(groups: Sequence[Group], failed: dict[Group, str]) -> list[str]:
    """Have saturation decide alone, as ever, about variants in its form whose targets cannot be aimed at; returns what
    went wrong. One that was aimed with before keeps its caution while only the load is not known."""
    errors: list[str] = []
    for group in groups:
        works = [work_of(state) for state in group.states]
        assert group.slo is not None
        if any(work.spec is not None for work in works) or (group.slo.attaining and group not in failed):
            continue
        if group in failed:
            errors.append(f"{group.name}: latency targets are not aimed at: {failed.pop(group)}")
        elif group.slo.load is None and any(work.memory.rule is not None for work in works):
            continue
        group.slo = None
        for work in works:
            work.alone = True
    return errors


def _resolve_accelerators(fleet: Fleet, selection: Selected) -> None:
    """Label, then workload template, then the node of a running pod, then what status says."""
    nodes = {node.name: node for node in fleet.nodes}
    for state in selection.states:
        slo = state.variant.slo
        name = slo.accelerator if slo is not None else state.variant.labels.get(ACCELERATOR_LABEL)
        if not name and state.workload is not None and (product := product_of(state.workload.node_selector)):
            name = short_name(product)
        if not name:
            for pod in sorted((p for p in state.pods if p.node in nodes), key=lambda p: p.key):
                if product := product_of(nodes[pod.node].labels):
                    name = short_name(product)
                    break
        known = state.variant.status_accelerator
        name = name or (known if known != UNRESOLVED else None)
        state.accelerator_missing = not name
        state.accelerator = name or UNRESOLVED


class _Courses:
    """How each group of a tick is decided. Made per tick: what the pods report is indexed once, when first asked."""

    def __init__(self, fleet: Fleet, states: Sequence[State]) -> None:
        performance = fleet.signals.performance
        percentages, tokens = Checked(Percentages()), Checked(Tokens(performance, states))
        self._live = {
            (False, False): Course(percentages, wake, proven_idle),
            (False, True): Course(tokens, wake, proven_idle),
            (True, False): Course(SLOStrategy(percentages), wake, proven_idle),
            (True, True): Course(SLOStrategy(tokens), wake, proven_idle),
        }
        optimizer = Course(published_slo.PublishedForecast(), None, zero.idle)
        self._documented = {
            (False, False): Course(Checked(PublishedPercentages(), strict=False), zero.wake_all, zero.idle),
            (False, True): Course(
                Checked(PublishedTokens(performance, states), strict=False), zero.wake_all, zero.idle
            ),
            (True, False): optimizer,
            (True, True): optimizer,
        }

    def of(self, group: Group) -> Course:
        courses = self._documented if group.rules is DOCUMENTED else self._live
        return courses[group.slo is not None, group.config.tokens is not None]


def _decide_group(group: Group, course: Course, tick: Moment) -> None:
    now = tick.fleet.now
    running: list[State] = []
    for state in group.states:
        state.limits = group.config.thresholds
        state.shrink_delay = tick.settings.scale_down_delay
        state.steps = (group.config.step,)
        wake_times(state, now)
        if state.spec > 0:
            running.append(state)
        else:
            _at_zero(state)
    if course.wake is not None:
        course.wake(group, tick.fleet.signals, tick.backlog, tick.settings, now)
        if not running and not (group.config.errors or group.config.unsafe):
            return
    verdict = course.strategy.propose(group, running, tick)
    if verdict.invalid:
        for state in group.states:
            state.keep("InvalidConfiguration", verdict.invalid)
        return
    if verdict.problem is not None:
        for state in running:
            state.keep(verdict.problem[1], f"{verdict.problem[2]}; replicas are kept", "MetricsUnavailable")
            state.metrics = verdict.problem
        return
    for state in verdict.decided:
        state.decided = True
        state.evidence = verdict.evidence
        if state.spec == 0 and not state.target:
            _at_zero(state)
            continue
        state.steps = (*state.steps, Step("targets", state.current, state.target, state.reason))
    if course.wake is not None:
        up = [s for s in verdict.decided if s.spec > 0 or s.target]
        enforce(group, up, tick.fleet.signals, now, course.idle)


def _at_zero(state: State) -> None:
    """What stands unless the model's targets wake the variant: publish that it is at zero."""
    state.decided = True
    state.metrics = health.AT_ZERO
    state.propose(0, "AtZero", f"{state.workload_id} is at zero replicas")
    limits = None if state.workload is None else state.workload.limits
    lower, source = required_minimum(state.handling, limits)
    if state.bounds.upper is not None:
        lower = min(lower, state.bounds.upper)
    if lower > 0:
        text = f"the workload is at zero, below its minimum of {lower} ({source})"
        state.propose(lower, "BelowMinimum", text)


def _bound(state: State) -> None:
    """Keep the target within its bounds: once, before GPUs are shared out, so that no minimum overrules those."""
    before, bounds = state.target, state.bounds
    assert before is not None
    after = bounds.clamp(before)
    if after == before or (state.spec == 0 and not before):
        return
    lowered = after < before
    source = bounds.upper_from if lowered else bounds.lower_from
    detail = f"{'lowered' if lowered else 'raised'} from {before} to {after} by {source}"
    if lowered and state.shortage is None and before > (state.current or 0):
        state.shortage = (AT_MAXIMUM, cannot_scale(state, state.current or 0, before, at_maximum(state)))
    if after != state.current:
        reason = "AboveMaximum" if lowered else "BelowMinimum"
    else:
        reason = "AtMaximum" if lowered else "AtMinimum"
    state.fold(Step("bounds", before, after, detail, reason))


def _fail(group: Group, error: Exception) -> str:
    text = f"{group.name}: deciding failed: {type(error).__name__}: {error}"
    for state in group.states:
        state.steps = ()
        state.limited_by = None
        state.updates.clear()
        state.keep("OptimizationFailed", f"{text}; replicas are kept")
    return text
