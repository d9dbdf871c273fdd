"""Why there is nothing to decide on: no metrics, stale metrics, or no Prometheus."""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.conditions import Story
from modelyard.autoscaling.variants.state import Group, State
from modelyard.metrics.values import Signals
from modelyard.objects.documents import counted, cut, few

AVAILABLE: Story = ("True", "MetricsAvailable", "Saturation metrics data is available for scaling decisions")
AT_ZERO: Story = ("False", "MetricsUnavailable", "the workload is at zero replicas: there is no engine to measure")

RENAME = "set spec.modelID to what the engine reports, or the engine's --served-model-name to spec.modelID"
UNNAMED = "add the label model_name where Prometheus scrapes them"
HINT = (
    "check that (1) a ServiceMonitor or PodMonitor exists for the pods, (2) its selector matches the Service's labels, "
    "(3) the pods serve /metrics, (4) Prometheus scrapes the namespace"
)


def other_name(states: Sequence[State]) -> str | None:
    """Return the sentence about pods whose engines name another model than their variant; ``None`` where none does."""
    state = next((state for state in states if state.other_models and not state.units), None)
    if state is None:
        return None
    names = sorted(state.other_models)
    if names == [""]:
        return f"its pods report no model name, the variant says {state.variant.model_id}; {UNNAMED}"
    shown = ", ".join(few([name for name in names if name], 3))
    return f"its pods report {cut(shown, 300)}, the variant says {state.variant.model_id}; {RENAME}"


def available(state: State) -> Story:
    """Return whether a decided variant has metrics: its model may have them from other variants alone."""
    if (text := other_name([state])) is not None:
        return ("False", "MetricsUnavailable", text)
    return AVAILABLE


def metrics_problem(
    group: Group, states: Sequence[State], signals: Signals, now: float, stale_after: float
) -> Story | None:
    """``None`` when at least one replica of ``states`` reports, else the condition that tells why none does."""
    if signals.error is not None:
        return ("False", "PrometheusError", f"Prometheus could not be read: {signals.error}")
    if any(state.units for state in states):
        return None
    if (text := other_name(states)) is not None:
        return ("False", "MetricsUnavailable", text)
    ready = sum(state.ready or 0 for state in states)
    wanted = sum(state.current or 0 for state in states)
    seen = signals.last_seen.get((group.namespace, group.model_id))
    if seen is not None and now - seen > stale_after:
        text = f"newest metrics of {group.name} are {now - seen:.0f} s old, older than {stale_after:.0f} s"
        return ("False", "MetricsStale", text)
    if problems := signals.problems(group.namespace):
        text = f"no metrics for {group.name}: {'; '.join(problems)}"
        return ("False", "PrometheusError", text)
    if not ready:
        return ("False", "MetricsUnavailable", f"no replica of {group.name} is ready yet (0 of {wanted})")
    if seen is not None:
        text = f"metrics of {group.name} come from no ready pod of its variants; are all its workloads registered?"
        return ("False", "MetricsUnavailable", text)
    return ("False", "MetricsUnavailable", f"no metrics for {group.name}, {counted(ready, 'replica')} ready: {HINT}")
