"""Metrics and wake-up demand from a real Prometheus, by constant expressions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from metric_endpoints import page
from policy_world import PolicyWorld
from prometheus_server import PrometheusServer

from modelyard.autoscaling.fleet.kinds import BINDINGS
from modelyard.autoscaling.live.policy_state import PolicyState
from modelyard.metrics.prometheus.client import Prometheus, PrometheusSettings

pytestmark = pytest.mark.integration

T0 = 1_800_000_000.0
SOURCES = "modelyard.dev/metric-sources"
WAKE = "modelyard.dev/wake-query"


@pytest.fixture
async def asked(world: PolicyWorld, constants: PrometheusServer) -> AsyncIterator[PolicyWorld]:
    async with Prometheus(PrometheusSettings(base_url=constants.url, timeout=30)) as prometheus:
        world.prometheus = prometheus
        yield world


@pytest.mark.parametrize("query", ["vector(45)", "45", "scalar(vector(45)) # forty-five", "sum(vector(40) + 5)"])
async def test_a_total_from_prometheus_needs_no_pods(asked: PolicyWorld, state: PolicyState, query: str) -> None:
    await asked.deploy("chat", 1)
    await asked.policy()
    await asked.bind("chat", annotations={SOURCES: json.dumps({"vllm:num_requests_waiting": query})})
    ticked = await asked.tick(state, T0)
    (target,) = ticked.view("chat").targets
    assert target.external == {"vllm:num_requests_waiting": 45.0}
    assert target.instances == ({},)
    assert target.scrape_errors == ()
    assert asked.endpoints.asked == []
    assert await asked.replicas("chat") == 5


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("absent(vector(1))", "gives nothing"),
        ("vector(0) / 0", "no finite number"),
        ("1 / 0", "no finite number"),
        ('label_replace(vector(1), "a", "1", "", "") or label_replace(vector(2), "a", "2", "", "")', "gives 2 series"),
        ("vector(1)[1m:]", "Prometheus"),
        ('"text"', "Prometheus"),
        ("sum(", "Prometheus"),
    ],
)
async def test_what_is_no_single_finite_number_is_not_available(
    asked: PolicyWorld, state: PolicyState, query: str, why: str
) -> None:
    await asked.deploy("chat", 2)
    await asked.policy()
    await asked.bind("chat", annotations={SOURCES: json.dumps({"vllm:num_requests_waiting": query})})
    ticked = await asked.tick(state, T0)
    (target,) = ticked.view("chat").targets
    assert target.external == {}
    assert why in target.scrape_errors[0]
    assert await asked.replicas("chat") == 2
    assert (await asked.condition("chat", "MetricsAvailable"))["status"] == "False"


async def test_pods_and_prometheus_side_by_side(asked: PolicyWorld, state: PolicyState) -> None:
    await asked.deploy("chat", 1, load=20)
    metrics = [{"metricName": name, "targetValue": "10"} for name in ("vllm:num_requests_waiting", "gateway")]
    await asked.policy(metrics=metrics)
    await asked.bind("chat", annotations={SOURCES: "gateway: vector(30)"})
    ticked = await asked.tick(state, T0)
    (target,) = ticked.view("chat").targets
    assert (target.instances, target.external) == (({"vllm:num_requests_waiting": 20.0},), {"gateway": 30.0})
    assert await asked.replicas("chat") == 3


async def test_a_source_of_a_metric_that_the_policy_does_not_have_is_an_error_on_the_binding(
    asked: PolicyWorld, state: PolicyState
) -> None:
    """The total was meant; without it, the pods' own number would scale the workload."""
    await asked.deploy("chat", 1, load=90)
    await asked.policy()
    await asked.bind("chat", annotations={SOURCES: '{"vllm:num_request_waiting": "vector(30)"}'})
    ticked = await asked.tick(state, T0)
    assert ticked.view("chat").targets[0].instances == ({},), "its pods are not asked"
    assert await asked.replicas("chat") == 1
    ready = await asked.condition("chat", "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ReconcileFailed")
    assert (
        "has no metric 'vllm:num_request_waiting'; name one of its metrics (vllm:num_requests_waiting)"
        in (ready["message"])
    )


async def test_an_optimizers_total_counts_once_and_its_targets_can_have_their_own(
    asked: PolicyWorld, state: PolicyState
) -> None:
    await asked.deploy("a", 1)
    await asked.deploy("b", 1)
    await asked.policy(metrics=[{"metricName": name, "targetValue": "10"} for name in ("total", "own")])
    params = [{"target": asked.target(name), "cost": 1, "minReplicas": 1, "maxReplicas": 9} for name in ("a", "b")]
    sources = {"total": "vector(60)", "b": {"own": "vector(20)"}}
    await asked.create_binding(
        "both",
        {"policyRef": {"name": "queue"}, "optimizerConfiguration": {"params": params}},
        {SOURCES: json.dumps(sources)},
    )
    ticked = await asked.tick(state, T0)
    assert [target.external for target in ticked.view("both").targets] == [{"total": 60.0}, {"own": 20.0}]
    assert sum(record.target.replicas or 0 for record in ticked.decision("both").records) == 6


async def test_pending_demand_wakes_from_zero(asked: PolicyWorld, state: PolicyState) -> None:
    await asked.deploy("chat", 0)
    await asked.policy()
    await asked.bind("chat", least=0, annotations={WAKE: "vector(0)"})
    ticked = await asked.tick(state, T0)
    assert ticked.view("chat").targets[0].demand == 0.0
    assert await asked.replicas("chat") == 0
    await asked.cluster.merge_patch(
        BINDINGS, "chat", {"metadata": {"annotations": {WAKE: "vector(3)"}}}, asked.namespace
    )
    ticked = await asked.tick(state, T0 + 15)
    assert ticked.view("chat").targets[0].demand == 3.0
    assert await asked.replicas("chat") == 1


async def test_demand_outside_is_added_and_an_unknown_one_is_never_idle(asked: PolicyWorld, state: PolicyState) -> None:
    await asked.deploy("chat", 1, load=2)
    await asked.policy()
    await asked.bind("chat", least=0, annotations={WAKE: "vector(3)"})

    async def demand(query: str) -> float | None:
        patch = {"metadata": {"annotations": {WAKE: query}}}
        await asked.cluster.merge_patch(BINDINGS, "chat", patch, asked.namespace)
        return (await asked.look(state))[0].targets[0].demand

    assert await demand("vector(3)") == 5.0
    assert await demand("vector(-3)") == 2.0
    assert await demand("sum(") == 2.0
    await asked.load("chat", 0)
    assert await demand("vector(0)") == 0.0
    assert await demand("sum(") is None
    await asked.show("chat", page("", "500 Internal Server Error"))
    assert await demand("vector(0)") is None
    assert await demand("vector(1)") == 1.0
    await asked.show("chat", page("other 1\n"))
    assert await demand("vector(0)") == 0.0


async def test_prometheus_down_leaves_the_pods_own_metrics(asked: PolicyWorld, state: PolicyState) -> None:
    async with Prometheus(PrometheusSettings(base_url="http://127.0.0.1:9", timeout=1)) as nowhere:
        asked.prometheus = nowhere
        await asked.deploy("chat", 1, load=30)
        metrics = [{"metricName": name, "targetValue": "10"} for name in ("vllm:num_requests_waiting", "gateway")]
        await asked.policy(metrics=metrics)
        await asked.bind("chat", annotations={SOURCES: "gateway: vector(30)"})
        ticked = await asked.tick(state, T0)
    assert "metric gateway: Prometheus" in ticked.view("chat").targets[0].scrape_errors[0]
    assert await asked.replicas("chat") == 3
