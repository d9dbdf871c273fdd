"""Prometheus: configuration and command line.

Pods are discovered through the API server (or, if Prometheus is built without that, through the agent, which gives
the same labels: `modelyard.local.agent.discovery`). A pod is scraped when it says so by the usual annotation
`prometheus.io/scrape: "true"` (with `prometheus.io/port`, `prometheus.io/path` and `prometheus.io/scheme`) or by the
label `modelyard.dev/scrape: "true"`; without a port annotation every declared container port is a target. Pods are
scraped from their start, ready or not, as the usual configurations do: start-up is a part of what one wants to see.
"""

from __future__ import annotations

from typing import Any

import yaml

from modelyard.local.components.spec import ClusterContext, ComponentSpec, contains, http_ok, printable, version
from modelyard.local.paths import write_atomically
from modelyard.local.settings import Component

_KUBERNETES_DISCOVERY = b"prometheus/discovery/kubernetes"
_META = "__meta_kubernetes_pod_"
_ANNOTATION = f"{_META}annotation_prometheus_io_"


def configuration(cluster: ClusterContext) -> dict[str, Any]:
    """The content of `prometheus.yml`."""
    jobs: list[dict[str, Any]] = [
        {
            "job_name": "kubernetes-pods",
            **_discovery(cluster),
            "relabel_configs": [
                {
                    "action": "keep",
                    "source_labels": [f"{_ANNOTATION}scrape", f"{_META}label_modelyard_dev_scrape"],
                    "regex": "true;.*|.*;true",
                },
                # An explicit "false" wins over the label.
                {"action": "drop", "source_labels": [f"{_ANNOTATION}scrape"], "regex": "false"},
                {"action": "drop", "source_labels": [f"{_META}phase"], "regex": "Succeeded|Failed"},
                {"action": "drop", "source_labels": [f"{_META}container_init"], "regex": "true"},
                {
                    "action": "replace",
                    "source_labels": [f"{_META}ip", f"{_ANNOTATION}port"],
                    "regex": r"(.+);(\d+)",
                    "replacement": "$1:$2",
                    "target_label": "__address__",
                },
                {
                    "action": "replace",
                    "source_labels": [f"{_ANNOTATION}path"],
                    "regex": "(.+)",
                    "target_label": "__metrics_path__",
                },
                {
                    "action": "replace",
                    "source_labels": [f"{_ANNOTATION}scheme"],
                    "regex": "(https?)",
                    "target_label": "__scheme__",
                },
                {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
                {"source_labels": [f"{_META}name"], "target_label": "pod"},
                {"source_labels": [f"{_META}node_name"], "target_label": "node"},
            ],
        }
    ]
    if cluster.settings.scrape_targets:
        jobs.append(
            {"job_name": "modelyard-exporter", "static_configs": [{"targets": cluster.settings.scrape_targets}]}
        )
    interval = cluster.settings.scrape_interval
    return {
        "global": {
            "scrape_interval": interval,
            # Prometheus refuses a timeout longer than the interval.
            "scrape_timeout": min(interval, "10s", key=_seconds),
            "evaluation_interval": interval,
        },
        "scrape_configs": jobs,
    }


def _discovery(cluster: ClusterContext) -> dict[str, Any]:
    if contains(cluster.program("prometheus"), _KUBERNETES_DISCOVERY):
        kubeconfig = str(cluster.paths.kubeconfigs / "prometheus")
        return {"kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": kubeconfig}]}
    url = f"{cluster.ports.address(Component.AGENT)}/discovery/pods"
    return {"http_sd_configs": [{"url": url, "refresh_interval": "1s"}]}


def _seconds(duration: str) -> float:
    for unit, seconds in (("ms", 0.001), ("s", 1.0), ("m", 60.0)):
        if duration.endswith(unit):
            return float(duration.removesuffix(unit)) * seconds
    raise ValueError(f"duration {duration!r} has no unit ms, s or m")


def prometheus(cluster: ClusterContext) -> ComponentSpec:
    """Write the configuration and give the command line."""
    program = cluster.program("prometheus")
    write_atomically(cluster.paths.prometheus_config, yaml.safe_dump(configuration(cluster), sort_keys=False))
    url = f"http://127.0.0.1:{cluster.ports.prometheus}"
    argv = [
        program,
        f"--config.file={cluster.paths.prometheus_config}",
        f"--storage.tsdb.path={cluster.paths.prometheus}",
        f"--storage.tsdb.retention.time={cluster.settings.retention}",
        f"--web.listen-address=127.0.0.1:{cluster.ports.prometheus}",
        "--web.enable-lifecycle",
        "--log.level=warn",
    ]
    return ComponentSpec(
        Component.PROMETHEUS,
        argv + cluster.extra(Component.PROMETHEUS),
        http_ok(f"{url}/-/ready"),
        version=printable(version(program)),
    )
