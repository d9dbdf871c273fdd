"""The strategy where latency targets are aimed at: a forecast, combined with what saturation says of the same pods.

Both ask for replicas; ``arbitration.arbitrate`` decides per variant: the larger wins upwards, downwards both must
agree. Without a known load saturation alone decides; without either the replicas are kept. Source: WVA SLO reference,
"Candidate allocations"; WVA saturation reference, "Hybrid mode".
"""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.conditions import Story
from modelyard.autoscaling.decision import Step
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.arbitration import arbitrate
from modelyard.autoscaling.variants.health import HINT, other_name
from modelyard.autoscaling.variants.shortage import LAST_REPLICA
from modelyard.autoscaling.variants.slo.targets import GroupProposal, propose
from modelyard.autoscaling.variants.slo.work import GroupWork, VariantWork
from modelyard.autoscaling.variants.state import Group, State, work_of
from modelyard.autoscaling.variants.strategy import Moment, Strategy, Verdict
from modelyard.autoscaling.variants.transition import give_up, observe_transition
from modelyard.autoscaling.variants.wake import REASON as WOKEN
from modelyard.metrics.values import Signals

BLIND = 2.5
"""Scale-down delays that saturation alone waits before it takes replicas from a model with targets."""

FOUND: Story = ("True", "MetricsFound", "the load and the request sizes of the model are known")


class SLOStrategy:
    """Sizes a group by its load, and lets ``reactive`` (the saturation form) veto and add."""

    def __init__(self, reactive: Strategy) -> None:
        self._reactive = reactive

    def propose(self, group: Group, running: Sequence[State], tick: Moment) -> Verdict:
        """Set the targets of all states of the group."""
        settings, now = tick.settings, tick.fleet.now
        work = group.slo
        assert work is not None
        verdict = self._reactive.propose(group, running, tick)
        if any(state.reason == WOKEN for state in group.states):
            # Nothing serves and requests wait: there is no load to divide yet, and who was woken stays so.
            return verdict
        blind = bool(verdict.problem or verdict.invalid)
        if work.load is None:
            return self._saturation_alone(group, work, verdict, tick)
        if blind:
            for state in group.states:
                observe_transition(state, settings, now)
                state.target, state.reason, state.message = state.base, "", ""
        safe = None if blind else verdict.scale_down_safe
        if work.sizes is None and not work.idle:
            text = (
                f"request sizes are not known (fewer than {settings.min_completions} requests finished in "
                f"{settings.load_window:.0f} s, and none remembered): the forecast holds still"
            )
            base = {state.name: state.base for state in group.states}
            proposal = GroupProposal(base, "RequestSizesUnknown", text)
            metrics: Story = ("False", "MetricsMissing", text)
            for state in group.states:
                state.updates.pop("relax_since", None)
        else:
            proposal = propose(group, settings, now, safe)
            work.forecast = True
            metrics = FOUND
        for state in group.states:
            self._combine(state, work, proposal, verdict, blind, safe, settings)
            state.metrics = metrics
        return Verdict(group.states, scale_down_safe=safe, evidence=verdict.evidence)

    def _combine(
        self,
        state: State,
        shared: GroupWork,
        proposal: GroupProposal,
        verdict: Verdict,
        blind: bool,
        safe: bool | None,
        settings: FleetSettings,
    ) -> None:
        group_text = proposal.why
        wanted = proposal.replicas.get(state.name, state.base)
        reactive = state.base if blind or state.target is None else state.target
        said, reason_said = state.message, state.reason
        result = arbitrate(state.base, reactive, wanted, safe)
        work = work_of(state)
        if result.overridden:
            work.override = result.why
        if not blind:
            state.steps = (*state.steps, Step("saturation", state.base, reactive, reason_said))
        state.steps = (*state.steps, Step("forecast", state.base, wanted, f"{proposal.reason}: {group_text}"))
        if reactive != wanted or result.overridden:
            state.steps = (*state.steps, Step("arbitration", wanted, result.target, result.why))
        state.propose(result.target)
        follows_saturation = result.target == reactive != wanted and not result.overridden
        state.reason = reason_said if follows_saturation else proposal.reason
        if result.overridden and not work.problem:
            state.reason = "ScaleDownBlocked"
        parts = [load_text(shared), sizing_text(work), group_text]
        if group_text == LAST_REPLICA:
            parts = [group_text, load_text(shared)]
        if blind:
            why = verdict.problem[2] if verdict.problem else verdict.invalid
            parts.append(f"without saturation: {why}")
        elif follows_saturation or result.overridden or work.override:
            parts.append(f"{result.why if follows_saturation or result.overridden else work.override} ({said})")
        else:
            parts.append(f"saturation: {reason_said}")
        state.message = "; ".join(filter(None, parts))
        state.optimization = None
        if state.timed_out_from is not None:
            give_up(state, settings)

    def _saturation_alone(self, group: Group, work: GroupWork, verdict: Verdict, tick: Moment) -> Verdict:
        text = missing_load(group, tick.fleet.signals, tick.fleet.now, tick.settings)
        story = text or ("False", "MetricsMissing", work.load_problem)
        if verdict.problem or verdict.invalid:
            return Verdict(problem=story if not verdict.invalid else None, invalid=verdict.invalid)
        _hold_unseen(group, tick)
        for state in verdict.decided:
            state.metrics = story
            state.message = f"{work.load_problem}: saturation alone decides; {state.message}"
            if state.optimization is None:
                state.optimization = ("True", "SaturationOnlyMode", state.message)
        return verdict


def _hold_unseen(group: Group, tick: Moment) -> None:
    """Saturation knows nothing of latency targets: what it would give up while the load is not known waits longer."""
    if not any(state.target is not None and state.target < state.base for state in group.states):
        return
    now, delay = tick.fleet.now, BLIND * tick.settings.scale_down_delay
    known = [state.memory.relax_since for state in group.states]
    since = now if None in known else max(time for time in known if time is not None)
    if now - since >= delay:
        return
    for state in group.states:
        state.updates["relax_since"] = since
        state.propose(max(state.target or 0, state.base))
        state.reason = "ScaleDownDelayed"
        state.message = (
            f"could shrink, but without a known load only after {delay:.0f} s without a break; {state.message}"
        )


def missing_load(group: Group, signals: Signals, now: float, settings: FleetSettings) -> Story | None:
    """Why the load is not known, as the condition ``MetricsAvailable``; ``None`` when there is nothing special."""
    if signals.error is not None:
        return ("False", "PrometheusError", f"Prometheus could not be read: {signals.error}")
    if not any(state.units for state in group.states) and (text := other_name(group.states)) is not None:
        return ("False", "MetricsUnavailable", text)
    seen = signals.last_seen.get((group.namespace, group.model_id))
    if seen is not None and now - seen > settings.stale_after:
        text = f"newest metrics of {group.name} are {now - seen:.0f} s old, older than {settings.stale_after:.0f} s"
        return ("False", "MetricsStale", text)
    if problems := signals.problems(group.namespace):
        return ("False", "PrometheusError", f"no load of {group.name}: {'; '.join(problems)}")
    if group.slo is not None and group.slo.load is None:
        return ("False", "MetricsMissing", f"{group.slo.load_problem}: {HINT}")
    return None


def sizing_text(work: VariantWork) -> str:
    """What one replica can take, and why not more."""
    if not work.known or work.service is None:
        return ""
    service = work.service
    targets = " and ".join(
        f"{name} {value:g} ms" for name, value in (("TTFT", service.ttft), ("ITL", service.itl)) if value > 0
    )
    within = f" within {targets} ({service.name})" if targets else f" ({service.name}: no latency target)"
    if work.attains:
        return f"a replica takes {work.rate:.4g}/s{within} for {work.attains}"
    if work.feasible is False or work.eased:
        cannot = "only an almost idle one could meet" if work.eased else "cannot be met"
        return f"a replica takes {work.rate:.4g}/s at the nearest target worth it{within}, which {cannot}"
    return (
        f"a replica takes {work.rate:.4g}/s{within}: {work.binding} binds at {work.sized_utilisation:.0%} utilisation"
    )


def load_text(work: GroupWork) -> str:
    """The load a group was sized for."""
    if work.load is None:
        return ""
    text = "no load" if work.idle else f"{work.load:.4g} requests/s"
    if work.sizes is not None and not work.idle:
        remembered = "" if work.sizes.measured else ", remembered"
        text += f" of {work.sizes.prompt:.0f} + {work.sizes.output:.0f} tokens{remembered}"
    if work.trend:
        text += f" ({work.trend})"
    return text
