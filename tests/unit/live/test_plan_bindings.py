"""AutoscalingPolicyBindings from files, with what a snapshot says was measured of their targets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from modelyard.autoscaling.configuration.files import PlanInputError
from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.offline.fleet import fleet_from_files, remarks
from modelyard.autoscaling.offline.manifests import read_manifests
from modelyard.autoscaling.offline.snapshot import Snapshot, read_snapshot, snapshot_of
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.reading.bindings.objects import SOURCES
from modelyard.objects import WorkloadId

NOW = 1_780_000_000.0
METRIC = "vllm:num_requests_waiting"
POLICY = {
    "apiVersion": "registry.volcano.sh/v1alpha1",
    "kind": "AutoscalingPolicy",
    "metadata": {"name": "queue", "namespace": "chat"},
    "spec": {"metrics": [{"metricName": METRIC, "targetValue": "5"}]},
}


def reference(name: str, kind: str | None = "Deployment") -> dict[str, Any]:
    return {"targetRef": {"name": name, **({"kind": kind, "apiVersion": "apps/v1"} if kind else {})}}


def binding(name: str = "llama", kind: str | None = "Deployment", **metadata: Any) -> dict[str, Any]:
    scaling = {"target": reference(name, kind), "minReplicas": 1, "maxReplicas": 9}
    return {
        "apiVersion": "registry.volcano.sh/v1alpha1",
        "kind": "AutoscalingPolicyBinding",
        "metadata": {"name": name, "namespace": "chat", **metadata},
        "spec": {"policyRef": {"name": "queue"}, "scalingConfiguration": scaling},
    }


def pair() -> dict[str, Any]:
    params = [{"target": reference(name), "cost": 10, "minReplicas": 1, "maxReplicas": 4} for name in ("a", "b")]
    spec = {"policyRef": {"name": "queue"}, "optimizerConfiguration": {"params": params}}
    return {**binding("pair"), "spec": spec}


def deployment(name: str = "llama", replicas: int = 2, kind: str = "Deployment") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "chat"}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": {"replicas": replicas}}


def fleet_of(path: Path, manifests: list[Any], policies: list[Any], **settings: Any) -> Fleet:
    (path / "manifests.yaml").write_text(yaml.safe_dump_all(manifests))
    (path / "metrics.yaml").write_text(yaml.safe_dump({"policies": policies}))
    return fleet_from_files(
        read_manifests([path / "manifests.yaml"]),
        read_snapshot(path / "metrics.yaml"),
        NOW,
        FleetSettings(**settings),
    )


def entry(*values: float, **rest: Any) -> dict[str, Any]:
    return {"namespace": "chat", "binding": "llama", "instances": [{METRIC: value} for value in values], **rest}


def test_a_binding_is_decided_on_what_the_snapshot_says(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, [POLICY, binding(), deployment()], [entry(12, 13)])
    (decision,) = decide(fleet, FleetSettings()).bindings
    (record,) = decision.records
    assert (record.now.current, record.now.ready, record.now.reporting, record.target.replicas) == (2, 2, 2, 5)
    assert record.now.workload == WorkloadId("chat", "apps", "Deployment", "llama")


@pytest.mark.parametrize(
    ("sources", "named"),
    [
        ({f"{METRIC}s": "sum(queue)"}, repr(f"{METRIC}s")),
        ({METRIC: "sum(queue)", METRIC.upper(): "sum(queue)"}, repr(METRIC.upper())),
        ({"llama": {f"{METRIC}_total": "sum(queue)"}}, repr(f"{METRIC}_total")),
        ({str(number): "sum(queue)" for number in range(9)}, "'0', '1', '2', and 6 more"),
    ],
)
def test_a_source_of_a_metric_that_the_policy_does_not_have(
    tmp_path: Path, sources: dict[str, Any], named: str
) -> None:
    bound = binding()
    bound["metadata"]["annotations"] = {SOURCES: yaml.safe_dump(sources)}
    fleet = fleet_of(tmp_path, [POLICY, bound, deployment()], [entry(12, 13)])
    (decision,) = decide(fleet, FleetSettings()).bindings
    (record,) = decision.records
    assert (record.target.replicas, record.target.decided, record.why.reason) == (2, False, "InvalidConfiguration")
    assert f"has no metric {named}; name one of its metrics ({METRIC}), or remove the entry" in record.why.message


def test_everything_an_entry_can_say_arrives(tmp_path: Path) -> None:
    said = entry(1, unready=2, external={METRIC: 40}, demand=3, startupSeconds=70, problems=["pod x: 500"])
    (view,) = fleet_of(tmp_path, [POLICY, binding(), deployment(replicas=3)], [said]).bindings
    (target,) = view.targets
    assert (target.current, target.ready, target.unready, target.demand) == (3, 1, 2, 3)
    assert (target.external, target.startup_seconds) == ({METRIC: 40}, 70)
    assert target.scrape_errors == ("pod x: 500",)
    assert view.policy is not None


def test_targets_of_an_optimizer_are_named(tmp_path: Path) -> None:
    manifests = [POLICY, pair(), deployment("a"), deployment("b", 1)]
    entries = [entry(9, 9, binding="pair", target="a"), entry(9, binding="pair", target="b")]
    (view,) = fleet_of(tmp_path, manifests, entries).bindings
    assert [(t.name, t.current, len(t.instances)) for t in view.targets] == [("a", 2, 2), ("b", 1, 1)]


@pytest.mark.parametrize("kind", [None, "ModelServing", "StatefulSet"])
def test_whatever_serves_under_the_name_is_found(tmp_path: Path, kind: str | None) -> None:
    found = "StatefulSet" if kind == "StatefulSet" else "Deployment"
    (view,) = fleet_of(tmp_path, [POLICY, binding(kind=kind), deployment(kind=found)], [entry(5)]).bindings
    assert (view.targets[0].workload.kind, view.targets[0].current) == (found, 2)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([entry(1, binding="lama")], ["policies[0]", "no AutoscalingPolicyBinding chat/lama", "chat/llama"]),
        ([entry(1, target="lama")], ["policies[0].target", "'lama' is no target of chat/llama"]),
        ([entry(1), entry(2)], ["policies[1]", "given twice"]),
        ([entry(1, binding="pair")], ["policies[0].target", "name one of a, b"]),
        ([{**entry(), "instances": [{"wait": 1}]}], ["policies[0].instances[0]", "no metric 'wait'", METRIC]),
        ([entry(external={"wait": 1})], ["policies[0].external", "no metric 'wait'"]),
        ([entry(unready=-1)], ["policies[0].unready"]),
        ([entry(demand=-1)], ["policies[0].demand"]),
        ([{**entry(), "instances": [{METRIC: "many"}]}], ["policies[0].instances[0]", "'many' is no number"]),
        ([{**entry(), "instances": [{METRIC: float("nan")}]}], ["policies[0].instances[0]"]),
        ([entry(instance=[1])], ["policies[0].instance", "unknown field"]),
        ([{"namespace": "chat"}], ["policies[0].binding", "required"]),
    ],
)
def test_a_bad_entry_is_named_by_field(tmp_path: Path, entries: list[Any], said: list[str]) -> None:
    with pytest.raises(PlanInputError) as caught:
        fleet_of(tmp_path, [POLICY, binding(), pair(), deployment()], entries)
    for part in said:
        assert part in str(caught.value)


def test_what_is_missing_is_said_with_the_remedy(tmp_path: Path) -> None:
    manifests = [POLICY, binding(), binding("lost"), deployment()]
    fleet = fleet_of(tmp_path, manifests, [])
    said = sorted(remarks(fleet, read_manifests([tmp_path / "manifests.yaml"])))
    assert len(said) == 2
    assert "chat/llama: Deployment chat/llama: the metrics snapshot says nothing about it" in said[0]
    assert "Deployment chat/lost is in none of the files; add its manifest with -f" in said[1]
    assert [b.records[0].target.decided for b in decide(fleet, FleetSettings()).bindings] == [False, False]


def test_a_policy_that_is_not_there_and_one_that_is_wrong(tmp_path: Path) -> None:
    (decision,) = decide(fleet_of(tmp_path, [binding(), deployment()], [entry(1)]), FleetSettings()).bindings
    assert decision.records[0].why.reason == "PolicyNotFound"
    wrong = {**POLICY, "spec": {"metrics": []}}
    (view,) = fleet_of(tmp_path, [wrong, binding(), deployment()], [entry(1)]).bindings
    assert view.problem


def test_bindings_of_another_controller_or_namespace_are_not_ours(tmp_path: Path) -> None:
    labels = {"wva.llmd.ai/controller-instance": "other"}
    assert fleet_of(tmp_path, [POLICY, binding(labels=labels), deployment()], []).bindings == ()
    assert fleet_of(tmp_path, [POLICY, binding(), deployment()], [], watch_namespace="else").bindings == ()
    ours = fleet_of(tmp_path, [POLICY, binding(labels=labels), deployment()], [], controller_instance="other")
    assert len(ours.bindings) == 1


def abroad() -> list[dict[str, Any]]:
    """A binding of namespace chat whose target is in shop, and the target."""
    grab, web = binding(), deployment()
    grab["spec"]["scalingConfiguration"]["target"]["targetRef"]["namespace"] = "shop"
    web["metadata"]["namespace"] = "shop"
    return [POLICY, grab, web]


def shop(allowed: str = "") -> dict[str, Any]:
    annotations = {"modelyard.dev/allow-from": allowed}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "annotations": annotations}}


@pytest.mark.parametrize("beside", [[], [shop()], [shop("chats")]])
def test_a_target_in_a_namespace_that_does_not_let_it_in_is_not_planned_for(tmp_path: Path, beside: list[Any]) -> None:
    (decision,) = decide(fleet_of(tmp_path, [*abroad(), *beside], []), FleetSettings()).bindings
    assert decision.records == ()
    found = next(one for one in decision.conditions if one.type == "TargetFound")
    assert (found.status, found.reason) == ("False", "RefNotPermitted")
    assert "modelyard.dev/allow-from: chat on Namespace shop" in found.message
    with pytest.raises(PlanInputError, match="does not let in references"):
        fleet_of(tmp_path, [*abroad(), *beside], [entry(50)])


def test_a_target_in_a_namespace_that_lets_it_in_is_planned_for(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, [*abroad(), shop("chat")], [entry(12, 13)])
    (decision,) = decide(fleet, FleetSettings()).bindings
    assert [record.target.replicas for record in decision.records] == [5]


def test_a_variant_on_the_same_workload_is_seen_as_a_rival(tmp_path: Path) -> None:
    variant = {
        "apiVersion": "llmd.ai/v1alpha1",
        "kind": "VariantAutoscaling",
        "metadata": {"name": "v", "namespace": "chat"},
        "spec": {"modelID": "m", "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"}},
    }
    fleet = fleet_of(tmp_path, [POLICY, binding(), deployment(), variant], [entry(50)])
    (decision,) = decide(fleet, FleetSettings()).bindings
    assert decision.records[0].why.reason == "ConflictingScaler"


def test_bindings_survive_the_file(tmp_path: Path) -> None:
    manifests = [POLICY, pair(), binding(), deployment(), deployment("a"), deployment("b", 1)]
    entries = [
        entry(3, 4.5, unready=1, demand=0, external={METRIC: 7}, startupSeconds=33.5, problems=["late"]),
        entry(9, 9, binding="pair", target="a"),
        {**entry(binding="pair", target="b"), "instances": [{}]},
    ]
    fleet = fleet_of(tmp_path, manifests, entries)
    (tmp_path / "again.yaml").write_text(snapshot_of(fleet))
    again = fleet_from_files(
        read_manifests([tmp_path / "manifests.yaml"]), read_snapshot(tmp_path / "again.yaml"), 0, FleetSettings()
    )
    assert again.bindings == fleet.bindings
    assert dataclasses.replace(again, signals=fleet.signals) == fleet


def test_a_snapshot_without_bindings_has_no_such_section() -> None:
    assert "policies" not in yaml.safe_load(snapshot_of(Fleet(NOW)))
    assert Snapshot().policies == []
