"""Why there is nothing to decide on: no metrics, stale metrics, or no Prometheus."""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.autoscaling.conditions import Story
from modelyard.autoscaling.variants.state import Group, State
from modelyard.metrics.values import Signals
from modelyard.objects.documents import counted

AVAILABLE: Story = ("True", "MetricsAvailable", "Saturation metrics data is available for scaling decisions")
AT_ZERO: Story = ("False", "MetricsUnavailable", "the workload is at zero replicas: there is no engine to measure")

HINT = (
    "check that (1) a ServiceMonitor or PodMonitor exists for the pods, (2) its selector matches the Service's labels, "
    "(3) the pods serve /metrics, (4) Prometheus scrapes the namespace"
)


def metrics_problem(
    group: Group, states: Sequence[State], signals: Signals, now: float, stale_after: float
) -> Story | None:
    """``None`` when at least one replica of ``states`` reports, else the condition that tells why none does."""
    if signals.error is not None:
        return ("False", "PrometheusError", f"Prometheus could not be read: {signals.error}")
    if any(state.units for state in states):
        return None
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
