"""Which pods Prometheus scrapes: our discovery labels and relabeling, by the rules of Prometheus applied in Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from modelyard.local.agent.discovery import target_groups
from modelyard.local.components.prometheus import configuration
from modelyard.local.components.spec import ClusterContext
from modelyard.local.paths import InstancePaths
from modelyard.local.settings import StackSettings
from modelyard.local.slots import Ports


def context(tmp_path: Path, program: bytes = b"plain", **settings: Any) -> ClusterContext:
    # What a program contains is remembered by its path, so each content has a path of its own.
    path = tmp_path / f"prometheus-{len(program)}"
    path.write_bytes(program)
    wanted = StackSettings(binaries={"prometheus": str(path)}, **settings)
    return ClusterContext(wanted, InstancePaths(tmp_path), Ports(base=20000), "127.20")


def relabel(labels: dict[str, str], rules: list[dict[str, Any]]) -> dict[str, str] | None:
    """What Prometheus makes of a target; None when it is dropped."""
    labels = dict(labels)
    for rule in rules:
        text = ";".join(labels.get(name, "") for name in rule["source_labels"])
        found = re.fullmatch(rule.get("regex", "(.*)"), text)
        action = rule.get("action", "replace")
        if action in ("keep", "drop"):
            if (found is not None) != (action == "keep"):
                return None
        elif found is not None:
            labels[rule["target_label"]] = found.expand(re.sub(r"\$(\d)", r"\\\1", rule.get("replacement", "$1")))
    return labels


def pod(
    labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **status: str
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "p",
            "namespace": "n",
            "uid": "u",
            "labels": labels or {},
            "annotations": annotations or {},
        },
        "spec": {
            "nodeName": "h100-0",
            "containers": [{"name": "c", "ports": [{"containerPort": 8000}, {"containerPort": 9}]}],
        },
        "status": {"podIP": "127.20.1.1", "phase": "Running", **status},
    }


def targets(tmp_path: Path, thing: dict[str, Any]) -> set[str]:
    """Addresses with their paths, after relabeling."""
    rules = configuration(context(tmp_path))["scrape_configs"][0]["relabel_configs"]
    found = set()
    for group in target_groups([thing]):
        for address in group["targets"]:
            start = {"__address__": address, "__metrics_path__": "/metrics", "__scheme__": "http", **group["labels"]}
            after = relabel(start, rules)
            if after is not None:
                assert (after["namespace"], after["pod"], after["node"]) == ("n", "p", "h100-0")
                found.add(f"{after['__scheme__']}://{after['__address__']}{after['__metrics_path__']}")
    return found


YES = {"prometheus.io/scrape": "true"}
LABEL = {"modelyard.dev/scrape": "true"}


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        (pod(), set()),
        (pod(annotations=YES), {"http://127.20.1.1:8000/metrics", "http://127.20.1.1:9/metrics"}),
        (pod(annotations={**YES, "prometheus.io/port": "8000"}), {"http://127.20.1.1:8000/metrics"}),
        (
            pod(
                annotations={
                    **YES,
                    "prometheus.io/port": "1",
                    "prometheus.io/path": "/m",
                    "prometheus.io/scheme": "https",
                }
            ),
            {"https://127.20.1.1:1/m"},
        ),
        (pod(labels=LABEL, annotations={"prometheus.io/port": "8000"}), {"http://127.20.1.1:8000/metrics"}),
        (pod(labels=LABEL, annotations={"prometheus.io/scrape": "false"}), set()),
        (pod(labels={"modelyard.dev/scrape": "false"}), set()),
        (pod(annotations=YES, phase="Succeeded"), set()),
        (pod(annotations={**YES, "prometheus.io/port": "8000"}, phase="Pending"), {"http://127.20.1.1:8000/metrics"}),
        (pod(annotations=YES, podIP=""), set()),
    ],
)
def test_which_pods_are_scraped(tmp_path: Path, thing: dict[str, Any], expected: set[str]) -> None:
    assert targets(tmp_path, thing) == expected


def test_prometheus_asks_the_api_server_itself_if_it_can(tmp_path: Path) -> None:
    able = b"...github.com/prometheus/prometheus/discovery/kubernetes.(*Pod)..."
    job = configuration(context(tmp_path, able))["scrape_configs"][0]
    assert job["kubernetes_sd_configs"][0]["role"] == "pod"
    assert "http_sd_configs" not in job
    job = configuration(context(tmp_path))["scrape_configs"][0]
    assert job["http_sd_configs"][0]["url"] == "http://127.0.0.1:20005/discovery/pods"
    assert "kubernetes_sd_configs" not in job


@pytest.mark.parametrize(("interval", "timeout"), [("500ms", "500ms"), ("1s", "1s"), ("15s", "10s"), ("1m", "10s")])
def test_the_timeout_is_never_longer_than_the_interval(tmp_path: Path, interval: str, timeout: str) -> None:
    found = configuration(context(tmp_path, scrape_interval=interval))["global"]
    assert (found["scrape_interval"], found["scrape_timeout"]) == (interval, timeout)


def test_further_targets(tmp_path: Path) -> None:
    jobs = configuration(context(tmp_path, scrape_targets=["127.0.0.1:9999"]))["scrape_configs"]
    assert jobs[1]["static_configs"] == [{"targets": ["127.0.0.1:9999"]}]
