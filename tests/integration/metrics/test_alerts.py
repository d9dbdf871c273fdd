"""The alerts that ship, by Prometheus' own tool: each fires where it should, and not where it should not."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_server import PrometheusServer, free_port

from modelyard.local.binaries.obtain import ensure
from modelyard.monitoring import rules as monitoring

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
JOB = 'job="modelyard-exporter"'
DECIDED = f'modelyard_variant_decided_timestamp_seconds{{{JOB}, variant_name="llama", namespace="chat"}}'
HELD = f'modelyard_lease_held{{{JOB}, lease_name="modelyard-autoscale", namespace="system"}}'
RENEWED = f'modelyard_lease_renewed_timestamp_seconds{{{JOB}, lease_name="modelyard-autoscale", namespace="system"}}'
LIMITED = f'modelyard_condition{{{JOB}, name="llama", namespace="chat", type="CapacityLimited", status="%s"}}'
UP = f"up{{{JOB}}}"


@pytest.fixture(scope="session")
def promtool() -> Path:
    return ensure(["promtool"], print)["promtool"]


def told(promtool: Path, *arguments: str | Path) -> str:
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def target(seconds: float, le: str, variant: str = "llama", job: str = "modelyard-exporter", name: str = "ttft") -> str:
    labels = f'job="{job}", variant_name="{variant}", namespace="chat", model_name="m", latency="{name}"'
    return f'modelyard_slo_target_seconds{{{labels}, engine="vllm", le="{le}"}}'


def requests(
    within: Mapping[str, int], family: str = "vllm:time_to_first_token_seconds", pod: str = "a"
) -> dict[str, str]:
    """Cumulative buckets that grow so much every minute."""
    where = f'namespace="chat", pod="{pod}", model_name="m"'
    series = {f'{family}_bucket{{{where}, le="{le}"}}': f"0+{count}x120" for le, count in within.items()}
    return {**series, f"{family}_count{{{where}}}": f"0+{within['+Inf']}x120"}


STEADY = "1x120"
CASES: Sequence[tuple[str, str, Mapping[str, str], int, Sequence[str]]] = [
    ("decided lately", "ModelyardDecisionsStale", {DECIDED: "0+60x120"}, 100, []),
    ("not yet stale", "ModelyardDecisionsStale", {DECIDED: "0x120"}, 18, []),
    ("stale", "ModelyardDecisionsStale", {DECIDED: "0x120"}, 25, ["warning"]),
    ("somebody else's series", "ModelyardDecisionsStale", {DECIDED.replace("exporter", "x"): "0x120"}, 25, []),
    ("held", "ModelyardNoLeaseHolder", {HELD: STEADY, RENEWED: "0+60x120"}, 60, []),
    ("a change of hands", "ModelyardNoLeaseHolder", {HELD: "1x9 0 1x100", RENEWED: "0+60x120"}, 12, []),
    ("released", "ModelyardNoLeaseHolder", {HELD: "1x9 0x100", RENEWED: "0+60x9 540x100"}, 15, ["critical"]),
    ("no such Lease", "ModelyardNoLeaseHolder", {HELD: "0x120"}, 5, ["critical"]),
    ("its holder died", "ModelyardNoLeaseHolder", {HELD: STEADY, RENEWED: "0+60x9 540x100"}, 15, ["critical"]),
    ("scraped", "ModelyardExporterAbsent", {UP: STEADY}, 60, []),
    ("not answering", "ModelyardExporterAbsent", {UP: "0x120"}, 60, ["critical"]),
    ("not discovered", "ModelyardExporterAbsent", {}, 60, ["critical"]),
    ("short of accelerators", "ModelyardCapacityLimited", {LIMITED % "True": STEADY}, 20, ["warning"]),
    ("short for a moment", "ModelyardCapacityLimited", {LIMITED % "True": "1x10"}, 20, []),
    ("enough of them", "ModelyardCapacityLimited", {LIMITED % "False": STEADY}, 60, []),
    (
        "within the budget",
        "ModelyardSLOBurn",
        {target(2.5, "2.5"): "2.5x120", **requests({"1.0": 10, "2.5": 95, "5.0": 99, "+Inf": 100})},
        110,
        [],
    ),
    (
        "slow",
        "ModelyardSLOBurn",
        {target(2.5, "2.5"): "2.5x120", **requests({"1.0": 10, "2.5": 50, "5.0": 99, "+Inf": 100})},
        110,
        ["warning"],
    ),
    (
        "very slow",
        "ModelyardSLOBurn",
        {
            target(2.5, "2.5"): "2.5x120",
            **requests({"2.5": 20, "+Inf": 100}),
            **requests({"2.5": 10, "+Inf": 90}, pod="b"),
        },
        110,
        ["critical", "warning"],
    ),
    ("slow, and nobody set a target", "ModelyardSLOBurn", requests({"2.5": 10, "+Inf": 100}), 110, []),
    (
        "slow for a target that a tenant made up",
        "ModelyardSLOBurn",
        {target(2.5, "2.5", job="chat/pods"): "2.5x120", **requests({"2.5": 10, "+Inf": 100})},
        110,
        [],
    ),
    (
        "the strictest of two classes counts",
        "ModelyardSLOBurn",
        {
            target(2.5, "2.5"): "2.5x120",
            target(5, "5.0", "other"): "5x120",
            **requests({"2.5": 50, "5.0": 100, "+Inf": 100}),
        },
        110,
        ["warning"],
    ),
    (
        "tokens, under their older name",
        "ModelyardSLOBurn",
        {
            target(0.075, "0.075", name="itl"): "0.075x120",
            **requests({"0.075": 10, "+Inf": 100}, "vllm:time_per_output_token_seconds"),
        },
        110,
        ["critical", "warning"],
    ),
    (
        "nothing arrives",
        "ModelyardSLOBurn",
        {target(2.5, "2.5"): "2.5x120", **requests({"2.5": 0, "+Inf": 0})},
        110,
        [],
    ),
]


def test_monitoring_alerts_fire_when_they_should_and_only_then(promtool: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(monitoring.rules()), encoding="utf-8")

    def case(title: str, alert: str, series: Mapping[str, str], minute: int, severities: Sequence[str]) -> Any:
        firing = f'count by (severity) (ALERTS{{alertname="{alert}", alertstate="firing"}})'
        expected = [{"labels": f'{{severity="{severity}"}}', "value": 1} for severity in severities]
        return {
            "name": f"{alert}: {title}",
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [{"expr": firing, "eval_time": f"{minute}m", "exp_samples": expected}],
        }

    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [case(*one) for one in CASES]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    told(promtool, "check", "rules", tmp_path / "rules.yaml")
    told(promtool, "test", "rules", tmp_path / "tests.yaml")
    fired = {alert for _, alert, _, _, severities in CASES if severities}
    quiet = {alert for _, alert, _, _, severities in CASES if not severities}
    assert fired == quiet == {rule["alert"] for rule in monitoring.alerts()}


def test_monitoring_alerts_say_what_it_is_about(promtool: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(monitoring.rules()), encoding="utf-8")
    rule = {one["alert"]: one for one in monitoring.alerts()}["ModelyardDecisionsStale"]
    annotations = {**rule["annotations"], "summary": "chat/llama was last decided 25m 0s ago"}
    labels = {"severity": "warning", "job": "modelyard-exporter", "variant_name": "llama", "namespace": "chat"}
    test = {
        "interval": "1m",
        "input_series": [{"series": DECIDED, "values": "0x120"}],
        "alert_rule_test": [
            {
                "eval_time": "25m",
                "alertname": rule["alert"],
                "exp_alerts": [{"exp_labels": labels, "exp_annotations": annotations}],
            }
        ],
    }
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    told(promtool, "test", "rules", tmp_path / "tests.yaml")


def test_monitoring_shows_decisions_whose_series_begins_with_them(promtool: Path, tmp_path: Path) -> None:
    board = json.loads((ROOT / "config/dashboards/decisions.json").read_text(encoding="utf-8"))
    expression = board["panels"][0]["targets"][0]["expr"].replace("$namespace", ".*")
    series = 'wva_replica_scaling_total{job="modelyard-exporter", namespace="chat", variant_name="a", direction="%s"%s}'
    up, down = series % ("up", ', reason="LoadAboveCapacity"'), series % ("down", ', reason="SpareCapacity"')

    def expected(minute: int, **counts: int) -> dict[str, Any]:
        labels = {"up": "LoadAboveCapacity", "down": "SpareCapacity"}
        found = [{"labels": f'{{direction="{k}", reason="{labels[k]}"}}', "value": n} for k, n in counts.items()]
        return {"expr": expression, "eval_time": f"{minute}m", "exp_samples": found}

    test = {
        "interval": "1m",
        "input_series": [{"series": up, "values": "_x9 1x49 3x200"}, {"series": down, "values": "_x39 1x200"}],
        "promql_expr_test": [expected(20, up=1), expected(65, up=3, down=1), expected(95, up=2, down=1)],
    }
    test["promql_expr_test"] += [expected(150, up=0, down=0)]
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"tests": [test]}), encoding="utf-8")
    told(promtool, "test", "rules", tmp_path / "tests.yaml")


def test_monitoring_dashboards_can_be_asked_of_a_real_prometheus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("draw_dashboards", ROOT / "docs/draw_dashboards.py")
    assert spec is not None
    assert spec.loader is not None
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    (tmp_path / "images").mkdir()
    monkeypatch.setattr(drawing, "FOLDER", tmp_path)
    server = PrometheusServer(tmp_path, free_port(), "127.0.0.1:1")
    server.start()
    try:
        monkeypatch.setattr(sys, "argv", ["draw", "--prometheus", server.url])
        drawing.main()
    finally:
        server.kill()
    drawn = {path.name for path in (tmp_path / "images").iterdir()}
    assert drawn == {f"dashboard-{path.stem}.png" for path in (ROOT / "config/dashboards").glob("*.json")}
