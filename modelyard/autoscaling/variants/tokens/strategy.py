"""The token analyzer as a strategy of ``decide``: chosen by ``analyzerName: saturation`` of the saturation ConfigMap.

One of these is made per tick, so that what the pods report is indexed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from modelyard.autoscaling.decision import Action, Evidence
from modelyard.autoscaling.published.tokens import (
    ModelTokens,
    VariantInput,
    analyse_tokens_published,
    optimize_published,
)
from modelyard.autoscaling.variants.saturation_config import TokenThresholds
from modelyard.autoscaling.variants.state import Group, State
from modelyard.autoscaling.variants.strategy import Tick, Verdict
from modelyard.autoscaling.variants.targets import set_targets
from modelyard.autoscaling.variants.tokens.analysis import analyse_tokens
from modelyard.autoscaling.variants.tokens.capacity import Replica, tokens_in_use
from modelyard.autoscaling.variants.tokens.knowledge import Performance, arguments_of, by_pod
from modelyard.metrics.values import PodPerformance


class _WithPerformance:
    def __init__(self, performance: Sequence[PodPerformance]) -> None:
        self._reported = performance

    @cached_property
    def _performance(self) -> Performance:
        return by_pod(self._reported)


class Tokens(_WithPerformance):
    """The repaired token analysis with the common rules for targets."""

    def propose(self, group: Group, running: Sequence[State], tick: Tick) -> Verdict:
        """Every state of the group gets a target: variants at zero may be woken."""
        settings, now, config = tick.settings, tick.fleet.now, group.config
        thresholds = config.tokens or TokenThresholds()
        performance = self._performance
        analysis = analyse_tokens(group.states, performance, config.thresholds, thresholds, settings, now, tick.backlog)
        load = tick.fleet.signals.loads.get((group.namespace, group.model_id))
        set_targets(group, analysis, settings, now, load)
        for state in group.states:
            if state.name in analysis.stuck_pods:
                state.updates["stuck_since"], state.updates["stuck_waiting"] = analysis.stuck_pods[state.name]
            if state.name in analysis.compute_limits:
                state.updates["compute_limits"] = analysis.compute_limits[state.name]
        return Verdict(group.states, scale_down_safe=analysis.scale_down_safe, evidence=analysis.evidence())


class PublishedTokens(_WithPerformance):
    """The token analysis and the cost-aware optimizer as documented."""

    def propose(self, group: Group, running: Sequence[State], tick: Tick) -> Verdict:
        """Targets at once, without transitions or limits; a variant without metrics that is chosen is dropped."""
        config = group.config
        inputs = [self._input(state) for state in running]
        model = analyse_tokens_published(inputs, config.thresholds, config.tokens or TokenThresholds())
        if not any(a.replicas for a in model.variants):
            text = "the KV cache size of no replica is known: the token analysis cannot decide; replicas are kept"
            for state in running:
                state.keep("MetricsUnavailable", text)
            return Verdict(problem=("False", "MetricsUnavailable", text))
        targets = optimize_published(model)
        reason = {"ScaleUp": "TokenCapacityLow", "ScaleDown": "CapacitySpare"}.get(targets.reason, targets.reason)
        decided: list[State] = []
        for state, analysed in zip(running, model.variants, strict=True):
            target = targets.replicas[state.name]
            if not analysed.variant.replicas:
                text = f"no replica of the variant reports metrics; replicas are kept instead of {target}"
                state.keep("MetricsUnavailable", text)
                state.metrics = ("False", "MetricsUnavailable", text)
                continue
            text = (
                f"token analysis: {Action.of(target, state.current or 0)} (target: {target} replicas): {targets.why}; "
                f"demand {model.demand:.0f} tokens, supply {model.supply:.0f}, anticipated {model.anticipated:.0f}"
            )
            state.propose(target, reason, text)
            if analysed.history != state.memory.compute_limits:
                state.updates["compute_limits"] = analysed.history
            decided.append(state)
        evidence = _evidence(running, model)
        return Verdict(decided, scale_down_safe=evidence.scale_down_safe, evidence=evidence)

    def _input(self, state: State) -> VariantInput:
        replicas = []
        for signal, _ in state.units:
            seen = self._performance.get((signal.namespace, signal.pod, signal.model))
            total = (seen.kv_tokens if seen is not None else None) or 0
            replicas.append(
                Replica(
                    total,
                    tokens_in_use(signal.kv or 0.0, total),
                    float(int(signal.waiting or 0.0)),
                    (seen.prompt_tokens if seen is not None else None) or 0.0,
                    (seen.output_tokens if seen is not None else None) or 0.0,
                )
            )
        return VariantInput(
            state.name,
            state.variant.cost,
            state.current or 0,
            state.pending,
            tuple(replicas),
            arguments_of(state),
            f"{state.accelerator}/{state.gpus}",
            state.memory.compute_limits,
        )


def _evidence(running: Sequence[State], model: ModelTokens) -> Evidence:
    signals = [signal for state in running for signal, _ in state.units]
    return Evidence(
        len(signals),
        sum(c.saturated for a in model.variants for c in a.replicas),
        max_kv=max((s.kv for s in signals if s.kv is not None), default=None),
        total_waiting=sum(s.waiting or 0.0 for s in signals),
        scale_up=model.required > 0,
        scale_down_safe=not model.required and model.spare > 0,
    )
