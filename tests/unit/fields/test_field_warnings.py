"""Objects of the OME kinds name their fields without effect, in a condition and once in an Event."""

from __future__ import annotations

from typing import Any

import pytest
from base_model_scenarios import MODELS, WEIGHTS
from benchmark_scenarios import SPEC as BENCHMARK, UNUSED
from benchmark_world import Benchmarks
from model_world import Cluster
from runtime_scenarios import CHOICE
from service_scenarios import world
from service_world import NOW

from modelyard.objects import Key
from modelyard.reconcile.kernel.mirror import Store
from modelyard.reconcile.plans.plan import Plan
from modelyard.reconcile.plans.status import patch
from modelyard.workloads.roll_out.runtime_status import RUNTIME_STATUSES


def warned(plan: Plan | None) -> tuple[str, int]:
    """The message of the condition that a plan writes, and the number of Events about it."""
    assert plan is not None
    assert plan.status is not None
    (message,) = [condition.message for condition in plan.status.conditions if condition.type == "SpecWarning"]
    events = [notice for notice in plan.notices if notice.reason == "FieldsIgnored"]
    assert all(notice.message == message for notice in events)
    return message, len(events)


def test_a_service_names_them() -> None:
    fleet = world()
    keda = {"enableKeda": True, "scalingOperator": "GreaterThan", "promServerAddress": "http://prometheus:9090"}
    fleet.service(kedaConfig=keda, engine={"tomorrow": 1})
    message, events = warned(fleet.look())
    assert message.startswith(
        "without effect: spec.engine.tomorrow: unknown field; spec.kedaConfig.scalingOperator: KEDA"
    )
    assert events == 1
    fleet.settle()
    assert fleet.condition("SpecWarning")[:2] == ("True", "FieldsIgnored")
    fleet.service(engine={})
    plan = fleet.look()
    assert plan is not None
    assert plan.notices == ()
    fleet.settle()
    assert fleet.condition("SpecWarning") == ("", "", "")


@pytest.mark.parametrize("lifecycle", RUNTIME_STATUSES, ids=lambda lifecycle: lifecycle.about.kind)
def test_a_runtime_names_them(lifecycle: Any) -> None:
    namespace = "shop" if lifecycle.about.namespaced else ""
    metadata = {"name": "small", "uid": "uid", "generation": 4, **({"namespace": namespace} if namespace else {})}
    obj: dict[str, Any] = {"metadata": metadata, "spec": {**CHOICE, "later": 1}}

    def look() -> Plan | None:
        store = Store(lifecycle.wants[0])
        store.put(obj)
        plan: Plan | None = lifecycle.plan(Key(namespace, "small"), {lifecycle.about: store}, NOW)
        return plan

    plan = look()
    message, events = warned(plan)
    assert "spec.supportedModelFormats[0].acceleratorConfig: " in message
    assert message.endswith("; spec.later: unknown field") or "; spec.later: unknown field;" in message
    assert events == 1
    assert plan is not None
    assert plan.status is not None
    obj["status"] = patch(plan.status, {}, NOW)
    assert obj["status"]["observedGeneration"] == 4
    again = look()
    assert again is not None
    assert not again.writes
    obj["spec"] = {"engineConfig": CHOICE["engineConfig"]}
    gone = look()
    assert gone is not None
    assert gone.status is not None
    assert patch(gone.status, obj["status"], NOW)["conditions"] == []
    metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert look() is None


@pytest.mark.parametrize(
    ("kind", "namespace"), [("BaseModel", "shop"), ("ClusterBaseModel", ""), ("FineTunedWeight", "")]
)
def test_a_model_names_them(kind: str, namespace: str) -> None:
    cluster = Cluster("node-1", pool="gpu", zone="a")
    metadata = {"name": "tested", "uid": "uid", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    metadata |= {"namespace": namespace} if namespace else {}
    spec = WEIGHTS[0] if kind == "FineTunedWeight" else MODELS[3]
    obj = cluster.put(kind, {"kind": kind, "metadata": metadata, "spec": spec})
    message, events = warned(cluster.plan(obj))
    assert message == "without effect: spec.storage.schemaPath: Modelyard reads no schema files"
    assert events == 1


def test_a_benchmark_names_them() -> None:
    fleet = Benchmarks()
    fleet.benchmark(**BENCHMARK)
    message, events = warned(fleet.look(fleet.name, "shop"))
    assert message.startswith("without effect: ")
    fields = [f"spec.{place}.{name}: " for place in ("dataset", "outputLocation") for name in UNUSED]
    assert [field for field in fields if field not in message] == []
    assert events == 1
