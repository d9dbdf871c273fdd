"""One tick's decision: a picture of the fleet in, a record per variant out. Pure: no clock, no network, no randomness.

The same function serves the live loop, ``modelyard plan``, replay and the tests. It only puts the stages in order; what
each of them does is in its own module: ``select``, ``saturation_config`` and ``zero_config``, ``attribution``,
``analysis``, ``targets`` and ``published``, ``enforcement``, ``limiter``, ``bounds``, ``records``.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from modelyard.autoscaling import health
from modelyard.autoscaling.accelerators import ACCELERATOR_LABEL, UNRESOLVED, product_of, short_name
from modelyard.autoscaling.analysis import Analysis, analyse_published, analyse_repaired
from modelyard.autoscaling.attribution import attribute
from modelyard.autoscaling.config_maps import ObjectNotice, look_alikes
from modelyard.autoscaling.decision import Action, DecisionRecord, Notice, Step, TickDecision
from modelyard.autoscaling.enforcement import enforce, wake_times
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.limiter import limit
from modelyard.autoscaling.published import VariantNumbers, targets_g2
from modelyard.autoscaling.records import make_record
from modelyard.autoscaling.saturation_config import SaturationConfigs
from modelyard.autoscaling.select import Selection, leave_out_surge, select
from modelyard.autoscaling.settings import Compatibility, FleetSettings
from modelyard.autoscaling.state import Group, State
from modelyard.autoscaling.targets import set_targets
from modelyard.autoscaling.zero_config import ZeroConfigs


def decide(fleet: Fleet, settings: FleetSettings) -> TickDecision:
    """Decide for every variant of this controller. Never raises for one model's sake: see ``TickDecision.errors``."""
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
    zero = ZeroConfigs(fleet.config_maps, settings)
    dropped = attribute(fleet, selection.active, fleet.now - settings.stale_after)
    _resolve_accelerators(fleet, selection)
    groups = _group(selection.active)
    backlogs = _backlogs(fleet, groups)
    errors: list[str] = []
    for group in groups:
        try:
            group.config = saturation.resolve(group.namespace, group.model_id)
            group.zero = zero.resolve(group.namespace, group.model_id)
            _decide_group(group, fleet, settings, backlogs.get(group.model_id, 0.0))
        except Exception as error:  # one model's failure must never stop another model
            errors.append(_fail(group, error))
    decided = [state for state in selection.active if state.decided]
    published = settings.compatibility is Compatibility.PUBLISHED
    if saturation.limiter:
        try:
            problem = limit(fleet, selection.active, settings, published)
            if problem is not None:
                errors.append(problem)
        except Exception as error:  # without the limiter decisions pass unlimited, as with a failed node list
            errors.append(f"GPU limiter failed, targets are not limited: {type(error).__name__}: {error}")
    for state in decided:
        if state.bounds.upper is not None or state.bounds.lower:
            _clamp(state)
    notices: list[ObjectNotice] = [*saturation.notices, *zero.notices]
    notices += look_alikes(fleet.config_maps, settings, {state.variant.key.namespace for state in selection.states})
    records = _records(selection, fleet.now, errors)
    return TickDecision(fleet.now, tuple(records), tuple(notices), tuple(errors), dropped)


def _records(selection: Selection, now: float, errors: list[str]) -> list[DecisionRecord]:
    records: list[DecisionRecord] = []
    for state in selection.states:
        try:
            records.append(make_record(state, now))
        except Exception as error:  # one variant's failure must never stop another
            errors.append(f"VariantAutoscaling {state.variant.key}: no record: {type(error).__name__}: {error}")
    return records


def _group(active: list[State]) -> list[Group]:
    groups: dict[tuple[str, str], Group] = {}
    for state in active:
        key = (state.variant.key.namespace, state.variant.model_id)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(*key)
        group.states.append(state)
    for group in groups.values():
        group.published = all(state.published for state in group.states)
        if not group.published and any(state.published for state in group.states):
            text = f"{group.name} mixes compatibility modes: all its variants are decided in repaired mode"
            for state in group.states:
                if state.published:
                    state.published = False
                    leave_out_surge(state)
                    state.pending = max(0, (state.current or 0) - (state.ready or 0))
                    state.notices = (*state.notices, Notice("InvalidConfiguration", text, "Warning"))
    return list(groups.values())


def _backlogs(fleet: Fleet, groups: list[Group]) -> dict[str, float]:
    """Gateway queue by model. It knows no namespaces: it counts only where one namespace serves the model."""
    if not fleet.signals.gateway_queue:
        return {}
    serving: dict[str, int] = {}
    for group in groups:
        serving[group.model_id] = serving.get(group.model_id, 0) + 1
    return {m: queue for m, queue in fleet.signals.gateway_queue.items() if queue > 0 and serving.get(m) == 1}


def _resolve_accelerators(fleet: Fleet, selection: Selection) -> None:
    """Label, then workload template, then the node of a running pod, then what status says."""
    nodes = {node.name: node for node in fleet.nodes}
    for state in selection.states:
        name = state.variant.labels.get(ACCELERATOR_LABEL)
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


def _decide_group(group: Group, fleet: Fleet, settings: FleetSettings, backlog: float) -> None:
    now = fleet.now
    config = group.config
    problems = config.errors if group.published else config.errors + config.unsafe
    if problems:
        for state in group.states:
            state.keep("InvalidConfiguration", "; ".join(problems))
        return
    running: list[State] = []
    for state in group.states:
        state.limits = config.thresholds
        state.steps = (config.step,)
        wake_times(state, now)
        if state.spec > 0:
            running.append(state)
        else:
            _at_zero(state)
    if not running:
        return
    problem = health.metrics_problem(group, running, fleet.signals, now, settings.stale_after)
    if problem is not None:
        for state in running:
            state.keep(problem[1], f"{problem[2]}; replicas are kept", "MetricsUnavailable")
            state.metrics = problem
        return
    if group.published:
        analysis = analyse_published([state.units for state in running], config.thresholds)
        decided = _published_targets(running, analysis)
    else:
        analysis = analyse_repaired(running, config.thresholds, settings, now, backlog)
        set_targets(group, analysis, settings, now)
        decided = group.states
        for state in decided:
            if state.name in analysis.stuck_pods:
                state.updates["stuck_since"], state.updates["stuck_waiting"] = analysis.stuck_pods[state.name]
    evidence = analysis.evidence()
    for state in decided:
        state.decided = True
        state.evidence = evidence
        if state.spec == 0 and not state.target:
            _at_zero(state)
            continue
        state.steps = (*state.steps, Step("targets", state.current, state.target, state.reason))
        if state.bounds.upper is not None or state.bounds.lower:
            _clamp(state)
    enforce(group, [state for state in decided if state.spec > 0 or state.target], fleet.signals, now)


def _at_zero(state: State) -> None:
    """What stands unless the model's targets wake the variant: publish that it is at zero."""
    state.decided = True
    state.target = 0
    state.reason = "AtZero"
    state.message = f"{state.workload_id} is at zero replicas"
    state.metrics = health.AT_ZERO
    lower = state.policy.lower or 0
    if lower > 0:
        state.target = lower
        state.reason = "BelowMinimum"
        state.message = f"the workload is at zero, below its minimum of {lower} ({state.bounds.lower_from})"


def _published_targets(running: list[State], analysis: Analysis) -> list[State]:
    """Targets by the documented rule; a variant without a reporting pod gets no decision there."""
    numbers = [
        VariantNumbers(s.name, s.variant.cost, s.current or 0, s.desired or 0, len(s.units), s.pending) for s in running
    ]
    targets = targets_g2(numbers, analysis.scale_up, analysis.scale_down_safe)
    reason = {"ScaleUp": analysis.what_is_short, "ScaleDown": "CapacitySpare"}.get(targets.reason, targets.reason)
    decided: list[State] = []
    for state in running:
        target = targets.replicas.get(state.name)
        if target is None:
            text = "no replica of the variant reports metrics; replicas are kept"
            state.keep("MetricsUnavailable", text)
            state.metrics = ("False", "MetricsUnavailable", text)
            continue
        state.target = target
        current = state.current or 0
        act = Action.UP if target > current else Action.DOWN if target < current else Action.NONE
        state.reason = reason
        state.message = (
            f"saturation-only mode: {act} (target: {target} replicas): {targets.why}; "
            f"spare KV {analysis.spare_kv:.3f}, spare queue {analysis.spare_queue:.1f} "
            f"over {analysis.counted} of {analysis.reporting} replicas"
        )
        decided.append(state)
    return decided


def _clamp(state: State) -> None:
    """Keep the target within its bounds; the minimum does not overrule the limiter, there are no GPUs for it."""
    before, bounds = state.target, state.bounds
    assert before is not None
    if state.spec == 0 and not before:
        return
    after = bounds.clamp(before)
    if after == before or (after > before and state.limited_by is not None):
        return
    lowered = after < before
    source = bounds.upper_from if lowered else bounds.lower_from
    detail = f"{'lowered' if lowered else 'raised'} from {before} to {after} by {source}"
    state.steps = (*state.steps, Step("clamp", before, after, detail))
    state.target = after
    state.message = f"{detail}; {state.message}"
    if after != state.current:
        state.reason = "AboveMaximum" if lowered else "BelowMinimum"
    else:
        state.reason = "AtMaximum" if lowered else "AtMinimum"


def _fail(group: Group, error: Exception) -> str:
    text = f"{group.name}: deciding failed: {type(error).__name__}: {error}"
    for state in group.states:
        state.steps = ()
        state.limited_by = None
        state.updates.clear()
        state.keep("OptimizationFailed", f"{text}; replicas are kept")
    return text
