"""The monitoring that ships: every expression asks for metrics and labels that exporter and engines really have."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client.core import Metric

from modelyard.autoscaling.fleet.fleet import Variant
from modelyard.autoscaling.live.controller_gauges import (
    MAX_REASON,
    ControllerCollector,
    LeaseState,
    Told,
    bounds_of,
    lease_state,
)
from modelyard.autoscaling.live.exporter import GaugeCollector
from modelyard.autoscaling.memory.variants import AUTOSCALING_STATE
from modelyard.autoscaling.reading import observe
from modelyard.autoscaling.reading.bindings.gauges import Gauges, PolicyCollector
from modelyard.engine.config import PROFILES
from modelyard.engine.core import EngineCore
from modelyard.engine.metrics import EngineCollector, buckets
from modelyard.engine.stats import EngineStats
from modelyard.metrics.vocabulary.vocabulary import ENGINES, Kind
from modelyard.monitoring import __main__ as generator, rules as monitoring
from modelyard.monitoring.dashboards import DASHBOARDS
from modelyard.objects import Condition, Key
from modelyard.router.process.telemetry import RequestRecord, RouterMetrics
from modelyard.routing.fleet import RoutedFleet

ROOT = Path(__file__).resolve().parents[3]
SCRAPED = {"job", "instance"}
Labels = frozenset[str]


def variant(**more: Any) -> Variant:
    """The sample in SLO form, decided."""
    body = yaml.safe_load((ROOT / "config/samples/variantautoscaling-slo.yaml").read_text(encoding="utf-8"))
    told = '{"ttft": 400, "itl": 20, "ttft_target": 2000, "itl_target": 60}'
    body["metadata"] |= {"namespace": "chat", "annotations": {"modelyard.dev/prediction": told}}
    body["metadata"]["annotations"][AUTOSCALING_STATE] = '{"scalings": {"up/LoadAboveCapacity": 1}}'
    body["status"] = {
        "desiredOptimizedAlloc": {"lastRunTime": "2026-01-01T00:00:00Z", "accelerator": "H100", "numReplicas": 3},
        **more,
    }
    return observe.variant(body)


@dataclass
class Fleet:
    """What ``Fleetwatch`` gives."""

    shown: list[Variant] = field(default_factory=lambda: [variant()])
    said: list[Told] = field(default_factory=list)
    held: list[LeaseState] = field(default_factory=list)
    instance: str | None = None

    def published(self) -> Iterator[tuple[Variant, int | None]]:
        yield from ((one, 2) for one in self.shown)

    def published_bindings(self) -> Iterator[Gauges]:
        yield Gauges(Key("chat", "bound"), "bound", 2, 1, False)

    def told(self) -> list[Told]:
        return self.said

    def leases(self) -> list[LeaseState]:
        return self.held


CONDITION = Told("VariantAutoscaling", Key("chat", "a"), [Condition("CapacityLimited", "True", "Out", "")])
LEASE = LeaseState(Key("system", "modelyard-autoscale"), True, 1.0)


def samples_of(*metrics: Iterable[Metric]) -> dict[str, Labels]:
    """Labels by the name of samples."""
    found: dict[str, Labels] = {}
    for metric in itertools.chain(*metrics):
        for sample in metric.samples:
            found[sample.name] = frozenset(sample.labels) | found.get(sample.name, frozenset())
    return found


def known() -> dict[str, Labels]:
    """Every series that Prometheus gets: of the exporter, of engines behind a PodMonitor, of the recording rules."""
    fleet: Any = Fleet(said=[CONDITION], held=[LEASE])
    collectors = (GaugeCollector(fleet), PolicyCollector(fleet), ControllerCollector(fleet))
    found = samples_of(*(collector.collect() for collector in collectors))
    found = {name: labels | SCRAPED for name, labels in found.items()}
    for engine in ENGINES.values():
        shown = samples_of(EngineCollector(EngineCore(PROFILES["h100"]), engine, "llama").collect())
        for family in engine.families:
            for suffix in ("_bucket", "_sum", "_count") if family.kind is Kind.HISTOGRAM else ("",):
                for name in (family.name, *family.former):
                    labels = shown.get(f"{family.name}{suffix}", frozenset())
                    found[f"{name}{suffix}"] = labels | SCRAPED | {"namespace", "pod", "container"}
    metrics = RouterMetrics(RoutedFleet())
    metrics.over(RequestRecord("POST", "/v1/completions", 0.0, model="m", tokens_in=1, tokens_out=1), 1.0)
    metrics.waits("shop/m", "m", "m")
    routed = samples_of(metrics.registry.collect())
    found |= {name: labels | SCRAPED | {"namespace", "pod", "container"} for name, labels in routed.items()}
    for rule in monitoring.recordings():
        found[rule["record"]] = frozenset({"namespace", "model_name", *rule["labels"]})
    return {**found, "up": frozenset(SCRAPED)}


SERIES = known()


def labels_of(node: Any) -> Labels:
    """The labels of an expression's result. Asserts that all it names are there."""
    if isinstance(node, promql.ParenExpr):
        return labels_of(node.expr)
    if isinstance(node, promql.MatrixSelector):
        return labels_of(node.vector_selector)
    if isinstance(node, promql.VectorSelector):
        return _selected(node)
    if isinstance(node, promql.AggregateExpr):
        inner, by = labels_of(node.expr), frozenset(node.modifier.labels if node.modifier else ())
        assert by <= inner, f"{node.prettify()}: by {sorted(by - inner)}"
        return inner if str(node.op) in ("bottomk", "topk") else by
    if isinstance(node, promql.BinaryExpr):
        return _joined(node)
    if isinstance(node, promql.Call):
        found = [labels_of(argument) for argument in node.args]
        if node.func.name == "histogram_quantile":
            assert "le" in found[1], node.prettify()
            return found[1] - {"le"}
        return frozenset[str]().union(*found)
    assert isinstance(node, promql.NumberLiteral | promql.StringLiteral), type(node)
    return frozenset()


def _selected(node: promql.VectorSelector) -> Labels:
    asked = {matcher.name: matcher.value for matcher in node.matchers.matchers}
    names = [node.name] if node.name else asked.pop("__name__").split("|")
    missing = [name for name in names if name not in SERIES]
    assert not missing, f"nobody shows {missing}"
    for name in names:
        assert set(asked) <= SERIES[name], f"{name} has no {set(asked) - SERIES[name]}"
    return frozenset.intersection(*(SERIES[name] for name in names))


def _joined(node: promql.BinaryExpr) -> Labels:
    left, right = labels_of(node.lhs), labels_of(node.rhs)
    if isinstance(node.lhs, promql.NumberLiteral) or node.lhs.prettify() == "time()":
        return right
    if isinstance(node.rhs, promql.NumberLiteral):
        return left
    how = node.modifier
    on = frozenset(how.matching.labels) if how is not None and how.matching is not None else None
    assert on is None or on <= left & right, f"{node.prettify()}: on {sorted(on or ())}"
    if str(node.op) == "or":
        return left & right
    if str(node.op) in ("and", "unless") or (how is not None and "ManyToOne" in str(how.card)):
        return left
    assert on is not None or left == right, f"{node.prettify()}: nothing would match"
    return left if on is None else on


def panels() -> Iterator[tuple[str, str, str]]:
    """Panel, expression and legend of every query of every dashboard, as they are in the files."""
    for name in DASHBOARDS:
        board = json.loads((ROOT / f"config/dashboards/{name}.json").read_text(encoding="utf-8"))
        assert board["uid"] == f"modelyard-{name}"
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", target["expr"], target["legendFormat"]


@pytest.mark.parametrize(("title", "expression", "legend"), list(panels()), ids=lambda text: text[:30])
def test_monitoring_panels_ask_for_what_there_is(title: str, expression: str, legend: str) -> None:
    result = labels_of(promql.parse(expression.replace("$__rate_interval", "1m")))
    assert set(re.findall(r"{{(\w+)}}", legend)) <= result, title


@pytest.mark.parametrize(
    "rule", [rule for group in monitoring.rules()["groups"] for rule in group["rules"]], ids=lambda rule: str(rule)[:40]
)
def test_monitoring_rules_ask_for_what_there_is(rule: dict[str, Any]) -> None:
    result = labels_of(promql.parse(rule["expr"])) | set(rule.get("labels", ()))
    texts = " ".join(rule.get("annotations", {}).values())
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= result
    if "record" in rule:
        routed = rule["record"].startswith("modelyard:router_")
        assert "namespace" in result
        assert result & ({"model_route", "model_server"} if routed else {"model_name"})


@pytest.mark.parametrize(
    "wrong",
    [
        "wva_desired_replica",
        'wva_desired_replicas{model_name="x"}',
        "sum by (pod) (wva_desired_replicas)",
        "wva_desired_replicas * on (pod) wva_current_replicas",
        "wva_desired_replicas / vllm:num_requests_waiting",
        'sum({__name__=~"vllm:num_requests_waiting|vllm:gone"})',
    ],
)
def test_monitoring_expressions_that_ask_for_something_else_are_found(wrong: str) -> None:
    with pytest.raises(AssertionError):
        labels_of(promql.parse(wrong))


def test_monitoring_files_are_current_and_a_changed_one_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generator.main(["--check"]) == 0, "run: python -m modelyard.monitoring"
    assert generator.main(["--out", str(tmp_path)]) == 0
    assert generator.main(["--out", str(tmp_path), "--check"]) == 0
    (tmp_path / "config/dashboards/fleet.json").write_text("{}", encoding="utf-8")
    (tmp_path / "deployments/kubernetes/monitoring.yaml").unlink()
    assert generator.main(["--out", str(tmp_path), "--check"]) == 1
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == [
        "deployments/kubernetes/monitoring.yaml",
        "config/dashboards/fleet.json",
    ]


def test_monitoring_panels_lie_side_by_side_and_not_on_each_other() -> None:
    for name in DASHBOARDS:
        board = json.loads((ROOT / f"config/dashboards/{name}.json").read_text(encoding="utf-8"))
        taken = [
            (x, y)
            for place in (panel["gridPos"] for panel in board["panels"])
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(taken) == len(set(taken))
        assert max(x for x, _ in taken) < 24


def test_monitoring_selects_the_exporter_the_router_and_the_engines_that_ship() -> None:
    service, engines, routers, rules = monitoring.manifests()
    (router,) = (
        one
        for one in yaml.safe_load_all((ROOT / "deployments/kubernetes/router.yaml").read_text(encoding="utf-8"))
        if one["kind"] == "Deployment"
    )
    template = router["spec"]["template"]
    assert routers["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert routers["spec"]["podMetricsEndpoints"][0]["port"] in ports
    (exporter,) = (
        one
        for one in yaml.safe_load_all((ROOT / "deployments/kubernetes/exporter.yaml").read_text(encoding="utf-8"))
        if one["kind"] == "Service"
    )
    assert service["spec"]["selector"]["matchLabels"].items() <= exporter["metadata"]["labels"].items()
    assert service["spec"]["endpoints"][0]["port"] in {port["name"] for port in exporter["spec"]["ports"]}
    # The operator calls the job as the Service.
    assert f'job="{exporter["metadata"]["name"]}"' in rules["spec"]["groups"][1]["rules"][0]["expr"]
    assert "honorLabels" not in str(engines), "tenants' pods must not choose their namespace"


@pytest.mark.parametrize(
    ("latency", "seconds", "bounds"),
    [
        ("ttft", 2.5, {"vllm": "2.5", "sglang": "4.0", "tensorrt-llm": "2.5"}),
        ("ttft", 2.501, {"vllm": "5.0", "sglang": "4.0", "tensorrt-llm": "5.0"}),
        ("itl", 0.06, {"vllm": "0.075", "sglang": "0.06", "tensorrt-llm": "0.075"}),
        ("itl", 1e6, {"vllm": "+Inf", "sglang": "+Inf", "tensorrt-llm": "+Inf"}),
    ],
)
def test_monitoring_targets_fall_into_a_bucket_of_each_engine(
    latency: str, seconds: float, bounds: dict[str, str]
) -> None:
    assert dict(bounds_of(latency, seconds)) == bounds


def test_monitoring_buckets_are_written_as_engines_write_them() -> None:
    for engine in ENGINES.values():
        core = EngineCore(PROFILES["h100"], stats=EngineStats(buckets(engine, 4096)))
        shown = EngineCollector(core, engine, "llama").collect()
        bounds = {sample.labels["le"] for metric in shown for sample in metric.samples if "le" in sample.labels}
        for latency in ("ttft", "itl"):
            for target in (0.02, 0.5, 3.0, 1e6):
                assert dict(bounds_of(latency, target)).get(engine.name, "+Inf") in bounds


def exposed(fleet: Fleet) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {
        metric.name: [(dict(sample.labels), sample.value) for sample in metric.samples]
        for metric in ControllerCollector(fleet).collect()
    }


def test_monitoring_gauges_say_when_a_variant_was_decided_and_what_a_replica_costs() -> None:
    found = exposed(Fleet())
    (labels, decided), ((priced, cost),) = (
        found["modelyard_variant_decided_timestamp_seconds"][0],
        found["modelyard_variant_cost"],
    )
    assert (labels["namespace"], decided) == ("chat", 1_767_225_600.0)
    assert (priced["model_name"], priced["accelerator_type"], cost) == (variant().model_id, "H100", variant().cost)


@pytest.mark.parametrize(
    ("allocation", "cost"),
    [
        ({"numReplicas": 4, "variantCost": "160.00"}, 40.0),
        ({"numReplicas": 0, "variantCost": "0.00"}, None),
        ({"numReplicas": 4}, None),
        ({"numReplicas": 4, "variantCost": "dear"}, None),
    ],
)
def test_monitoring_cost_is_what_the_status_paid(allocation: dict[str, Any], cost: float | None) -> None:
    one = variant(currentAlloc=allocation)
    ((_, shown),) = exposed(Fleet([one]))["modelyard_variant_cost"]
    assert shown == (one.cost if cost is None else cost)


def test_monitoring_shows_our_conditions_alone_each_once_and_cut_off() -> None:
    made_up = [Condition(f"Tenant{n}", "True", "Mine", "") for n in range(1000)]
    twice = [Condition("Ready", "True", "A", ""), Condition("Ready", "False", "B" * 999, "")]
    found = exposed(Fleet(said=[Told("AutoscalingPolicyBinding", Key("chat", "b"), [*made_up, *twice])]))
    ((labels, value),) = found["modelyard_condition"]
    assert (labels["type"], labels["status"], len(labels["reason"]), value) == ("Ready", "False", MAX_REASON, 1)


def test_monitoring_shows_a_lease_that_nobody_holds_or_that_is_not_there() -> None:
    metadata = {"name": "modelyard-autoscale", "namespace": "system"}
    taken = {"holderIdentity": "a", "renewTime": "2026-01-01T00:00:00.250000Z"}
    free = {"holderIdentity": "", "renewTime": "2026-01-01T00:00:00.000000Z"}
    states = [lease_state({"metadata": metadata, "spec": spec}) for spec in (taken, free, {})]
    assert [(one.held, one.renewed) for one in states] == [
        (True, 1_767_225_600.25),
        (False, 1_767_225_600.0),
        (False, None),
    ]
    found = exposed(Fleet(held=[LeaseState(states[0].key)]))
    assert [value for _, value in found["modelyard_lease_held"]] == [0]
    assert "modelyard_lease_renewed_timestamp_seconds" not in found


def test_monitoring_gauges_name_their_installation() -> None:
    fleet = Fleet(said=[CONDITION], held=[LEASE], instance="blue")
    for name, samples in exposed(fleet).items():
        assert {labels["controller_instance"] for labels, _ in samples} == {"blue"}, name
