"""Alerts, recording rules and the objects with which a Prometheus operator scrapes Modelyard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modelyard.autoscaling.live import LATENCIES
from modelyard.metrics.vocabulary import GATEWAY_QUEUE
from modelyard.monitoring.dashboards import JOB, exported, names

NAMESPACE = "workload-variant-autoscaler-system"
OBJECTIVE = 0.95
"""Share of requests (TTFT) and tokens (ITL) that should be within their targets. These are aimed at as means, so that a
right-sized fleet has some beyond."""
BURNS = (("critical", 14.4, "1h", "5m"), ("warning", 6.0, "6h", "30m"))
"""Severity; how many times faster than allowed the budget burns; over which windows, a long and a short one."""


def misses(latency: str, window: str) -> str:
    """Share of what is beyond its target, by namespace and model: of the strictest class of a model."""
    every = []
    for engine, families in names(LATENCIES[latency]).items():
        every += [_misses(latency, engine, family, window) for family in families]
    return "\nor\n".join(every)


def _misses(latency: str, engine: str, family: str, window: str) -> str:
    target = f'modelyard_slo_target_seconds{{{JOB}, latency="{latency}", engine="{engine}"}}'
    strictest = f"bottomk by (namespace, model_name) (1, {target})"
    within = f"rate({family}_bucket[{window}]) and on (namespace, model_name, le) {strictest}"
    return (
        f"1 - sum by (namespace, model_name) ({within})\n"
        f"  / (sum by (namespace, model_name) (rate({family}_count[{window}])) > 0)"
    )


def recordings() -> Iterator[dict[str, Any]]:
    """The rules that burn alerts and the dashboard of a model read."""
    windows = dict.fromkeys(window for _, _, *both in BURNS for window in reversed(both))
    for window in windows:
        for latency in LATENCIES:
            yield {
                "record": f"modelyard:slo_misses:ratio_rate{window}",
                "labels": {"latency": latency},
                "expr": misses(latency, window),
            }


def routed() -> Iterator[dict[str, Any]]:
    """What routers were asked for, what it came to in tokens, and what waits, as series of the namespaces that it was
    for: so that policies there may read it."""
    where = f'namespace="{NAMESPACE}"'
    shown = {
        "requests:rate1m": (f'rate(kthena_router_requests_total{{{where}, model_route!=""}}[1m])', "model_route", ""),
        "tokens:rate1m": (
            f'rate(kthena_router_tokens_total{{{where}, model_route!=""}}[1m])',
            "model_route",
            "token_type",
        ),
        "waiting": (f'{GATEWAY_QUEUE}{{{where}, model_server!=""}}', "model_server", ""),
    }
    for name, (series, about, more) in shown.items():
        own = f'label_replace({series}, "namespace", "$1", "{about}", "(.+)/.+")'
        own = f'label_replace({own}, "{about}", "$1", "{about}", ".+/(.+)")'
        labels = ", ".join(filter(None, ("namespace", about, more)))
        yield {"record": f"modelyard:router_{name}", "expr": f"sum by ({labels}) ({own})"}


def alerts(objective: float = OBJECTIVE) -> Iterator[dict[str, Any]]:
    """What somebody should look at; ``severity`` critical: now."""
    since = f"time() - {exported('modelyard_lease_renewed_timestamp_seconds', '')}"
    yield alert(
        "ModelyardExporterAbsent",
        f"absent(up{{{JOB}}} == 1)",
        "5m",
        "critical",
        "The exporter is not scraped",
        "The other alerts are blind; an HPA or KEDA that follows the gauges keeps what it has. See whether its pod is "
        "ready, and whether your Prometheus selects the ServiceMonitor.",
    )
    yield alert(
        "ModelyardNoLeaseHolder",
        f"{exported('modelyard_lease_held', '')} == 0 or {since} > 60",
        "2m",
        "critical",
        "Nobody holds the Lease {{ $labels.lease_name }}",
        "Nothing is decided. See whether a Prefect worker runs, whether its runs fail, and whether the API server lets "
        "it update Leases.",
    )
    yield alert(
        "ModelyardDecisionsStale",
        f"time() - {exported('modelyard_variant_decided_timestamp_seconds', '')} > 900",
        "5m",
        "warning",
        "{{ $labels.namespace }}/{{ $labels.variant_name }} was last decided {{ $value | humanizeDuration }} ago",
        "Its status is written every five minutes at least. See the last run of the deployment autoscale, and whether "
        "writing the object's status is refused.",
    )
    yield alert(
        "ModelyardCapacityLimited",
        exported("modelyard_condition", 'type="CapacityLimited", status="True"') + " == 1",
        "15m",
        "warning",
        "{{ $labels.namespace }}/{{ $labels.name }} gets fewer replicas than its load needs",
        "The condition says why. Add nodes, raise its maximum, or lower the priority of others.",
    )
    for severity, factor, long, short in BURNS:
        limit = f"{factor * (1 - objective):.4g}"
        over = [f"modelyard:slo_misses:ratio_rate{window} > {limit}" for window in (long, short)]
        yield alert(
            "ModelyardSLOBurn",
            f"{over[0]} and {over[1]}",
            "2m",
            severity,
            "{{ $labels.namespace }} {{ $labels.model_name }}: {{ $value | humanizePercentage }} are beyond their "
            "{{ $labels.latency }} target",
            f"For {long}, {factor:g} times the share that an objective of {objective:.4g} allows. See the dashboard of "
            "the model: load, replicas still to come, capacity.",
        )


def alert(name: str, expression: str, hold: str, severity: str, summary: str, remedy: str) -> dict[str, Any]:
    """An alerting rule. ``remedy``: what it means and where to look."""
    return {
        "alert": name,
        "expr": expression,
        "for": hold,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "description": remedy},
    }


def rules(objective: float = OBJECTIVE) -> dict[str, Any]:
    """A Prometheus rule file."""
    return {
        "groups": [
            {"name": "modelyard-slo", "rules": list(recordings())},
            {"name": "modelyard", "rules": list(alerts(objective))},
            {"name": "modelyard-router", "interval": "15s", "rules": list(routed())},
        ]
    }


def manifests(objective: float = OBJECTIVE) -> Iterator[dict[str, Any]]:
    """What the Prometheus operator takes."""

    def manifest(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        metadata = {"name": name, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/part-of": "modelyard"}}
        return {"apiVersion": "monitoring.coreos.com/v1", "kind": kind, "metadata": metadata, "spec": spec}

    exporter = {
        "selector": {"matchLabels": {"app.kubernetes.io/name": "modelyard-exporter"}},
        # What it shows is about other namespaces than its own.
        "endpoints": [{"port": "metrics", "interval": "15s", "honorLabels": True}],
    }
    engines = {
        "namespaceSelector": {"any": True},
        "selector": {"matchLabels": {"modelyard.dev/scrape": "true"}},
        "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "interval": "15s"}],
    }
    yield manifest("ServiceMonitor", "modelyard-exporter", exporter)
    yield manifest("PodMonitor", "modelyard-engines", engines)
    routers = {
        "selector": {"matchLabels": {"app.kubernetes.io/name": "modelyard-router"}},
        "podMetricsEndpoints": [{"port": "metrics", "path": "/metrics", "interval": "5s"}],
    }
    yield manifest("PodMonitor", "modelyard-router", routers)
    yield manifest("PrometheusRule", "modelyard", rules(objective))
