"""Replica bounds of InferenceServices and Models hold for whatever scales their workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from builders import Serving, make_fleet
from hypothesis import given, strategies as st

from modelyard.autoscaling.configuration.handling import MAX_REPLICAS, MIN_REPLICAS, Handling, fleet_handling
from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.bounds import variant_bounds
from modelyard.autoscaling.decisions.decision import VariantDecision
from modelyard.autoscaling.decisions.explain import lines
from modelyard.autoscaling.fleet import owners
from modelyard.autoscaling.fleet.fleet import Consumer
from modelyard.autoscaling.fleet.kinds import CLUSTER_RUNTIMES, RUNTIMES
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.objects import Key, ReplicaLimits, Workload, parse

BUSY = (0.95, 9.0)
IDLE = (0.0, 0.0)
LWS = ("leaderworkerset.x-k8s.io", "LeaderWorkerSet")
APPS = ("apps", "Deployment")
OF_BACKEND, OF_ROLE = "registry.volcano.sh/backend-name", "modelinfer.volcano.sh/role"


def service(spec: Mapping[str, Any], namespace: str = "chat", uid: str = "u1", **more: Any) -> owners.ServiceReplicas:
    return owners.service({"metadata": {"name": "llama", "namespace": namespace, "uid": uid}, "spec": spec, **more})


def model(namespace: str = "chat", uid: str = "u1", **spec: Any) -> owners.ModelReplicas:
    return owners.model({"metadata": {"name": "llama", "namespace": namespace, "uid": uid}, "spec": spec})


def runtime(name: str, namespace: str = "", **spec: Any) -> owners.RuntimeReplicas:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return owners.runtime({"metadata": metadata, "spec": spec}, RUNTIMES if namespace else CLUSTER_RUNTIMES)


def known(
    *services: owners.ServiceReplicas,
    models: tuple[owners.ModelReplicas, ...] = (),
    runtimes: tuple[owners.RuntimeReplicas, ...] = (),
    errors: Mapping[tuple[str, str], str] | None = None,
) -> owners.Owners:
    return owners.Owners(
        {service.key: service for service in services},
        {model.key: model for model in models},
        {runtime.key: runtime for runtime in runtimes},
        errors or {},
    )


def workload(
    name: str = "llama-engine",
    labels: Mapping[str, str] | None = None,
    kind: tuple[str, str] = APPS,
    namespace: str = "chat",
    reference: Mapping[str, Any] | None = None,
) -> Workload:
    """A workload with one controller reference, that of InferenceService llama unless it says otherwise."""
    owner = {
        "apiVersion": "ome.io/v1beta1",
        "kind": "InferenceService",
        "name": "llama",
        "uid": "u1",
        "controller": True,
        **(reference or {}),
    }
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}, "ownerReferences": [owner]}
    return parse.workload({"metadata": metadata, "spec": {}}, *kind)


def bounds(stored: owners.Owners, target: Workload) -> tuple[int, int | None] | None:
    limits = stored.bound(target).limits
    return None if limits is None else (limits.lower, limits.upper)


ENGINE = {"component": "engine"}


@pytest.mark.parametrize(
    ("spec", "labels", "kind", "expected"),
    [
        ({"engine": {"minReplicas": 2, "maxReplicas": 5}}, ENGINE, APPS, (2, 5)),
        ({"engine": {"minReplicas": 0, "maxReplicas": 4}}, ENGINE, APPS, (0, 4)),
        ({"engine": {}}, ENGINE, APPS, (1, None)),
        ({"engine": {"maxReplicas": 0}}, ENGINE, APPS, (1, None)),
        ({"engine": {"minReplicas": 5, "maxReplicas": 3}}, ENGINE, APPS, (5, 5)),
        ({"engine": {"minReplicas": 2, "maxReplicas": 5}}, ENGINE, LWS, (2, 5)),
        ({"engine": {}, "decoder": {"maxReplicas": 7}}, {"component": "decoder"}, APPS, (1, 7)),
        ({"engine": {}, "router": {"maxReplicas": 2}}, {"component": "router"}, APPS, (1, 2)),
        ({"predictor": {"minReplicas": 1, "maxReplicas": 6}}, {"component": "predictor"}, APPS, (1, 6)),
        ({"predictor": {"minReplicas": 1, "maxReplicas": 6}}, ENGINE, APPS, (1, 6)),
        ({"engine": {"maxReplicas": "3"}}, ENGINE, APPS, (1, None)),
        # One pod of one group: its replicas are not those of the component.
        ({"engine": {"minReplicas": 2, "maxReplicas": 5}}, ENGINE, ("apps", "StatefulSet"), None),
        ({"engine": {"maxReplicas": 5}}, {"component": "prober"}, APPS, None),
        ("nothing", ENGINE, APPS, None),
    ],
)
def test_a_component_bounds_the_workload_that_it_owns(
    spec: Any, labels: Mapping[str, str], kind: tuple[str, str], expected: tuple[int, int | None] | None
) -> None:
    assert bounds(known(service(spec)), workload(labels=labels, kind=kind)) == expected


@pytest.mark.parametrize("name", ["llama-engine", "lws-llama-engine"])
def test_an_unlabelled_workload_is_the_component_of_its_name(name: str) -> None:
    spec = {"engine": {"maxReplicas": 5}, "decoder": {"maxReplicas": 7}}
    assert bounds(known(service(spec)), workload(name)) == (1, 5)
    assert bounds(known(service(spec)), workload("llama-other")) is None


@pytest.mark.parametrize(
    ("engine", "config", "expected"),
    [
        ({}, {"minReplicas": 2, "maxReplicas": 8}, (2, 8)),
        ({"minReplicas": 1, "maxReplicas": 4}, {"minReplicas": 2, "maxReplicas": 8}, (1, 4)),
        ({"maxReplicas": 3}, {"minReplicas": 5}, (3, 3)),
        ({"minReplicas": 0}, {"minReplicas": 2, "maxReplicas": 8}, (0, 8)),
    ],
)
def test_a_runtime_bounds_where_its_service_says_nothing(
    engine: Mapping[str, int], config: Mapping[str, int], expected: tuple[int, int]
) -> None:
    named = service({"engine": engine, "runtime": {"name": "small"}})
    rolled_out = service({"engine": engine}, status={"annotations": {owners.RUNTIME: "ClusterServingRuntime/small@4"}})
    for owner in (named, rolled_out):
        stored = known(owner, runtimes=(runtime("small", engineConfig=config),))
        assert bounds(stored, workload(labels=ENGINE)) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ({}, (6, "engineConfig.maxReplicas of ServingRuntime chat/small")),
        ({"kind": "ServingRuntime"}, (6, "engineConfig.maxReplicas of ServingRuntime chat/small")),
        ({"kind": "ClusterServingRuntime"}, (8, "engineConfig.maxReplicas of ClusterServingRuntime small")),
    ],
)
def test_a_runtime_is_looked_up_by_kind_and_never_in_another_namespace(
    kind: dict[str, str], expected: tuple[int, str]
) -> None:
    runtimes = (
        runtime("small", engineConfig={"maxReplicas": 8}),
        runtime("small", "chat", engineConfig={"maxReplicas": 6}),
        runtime("small", "other", engineConfig={"maxReplicas": 2}),
    )
    owner = service({"engine": {}, "runtime": {"name": "small", **kind}})
    limits = known(owner, runtimes=runtimes).bound(workload(labels=ENGINE)).limits
    assert limits is not None
    assert (limits.upper, limits.upper_from) == expected
    unserved = known(owner, runtimes=runtimes[2:]).bound(workload(labels=ENGINE)).limits
    assert unserved is not None
    assert unserved.upper is None


@pytest.mark.parametrize(
    "reference",
    [
        {"uid": "u2"},
        {"uid": ""},
        {"controller": False},
        {"kind": "Deployment"},
        {"apiVersion": "example.com/v1"},
        {"name": "qwen"},
    ],
)
def test_a_reference_that_names_another_owner_bounds_nothing(reference: Mapping[str, Any]) -> None:
    stored = known(service({"engine": {"maxReplicas": 5}}))
    assert bounds(stored, workload(labels=ENGINE, reference=reference)) is None


def test_a_forged_reference_or_label_never_bounds_in_another_namespace() -> None:
    tenant = service({"engine": {"maxReplicas": 1}}, namespace="evil")
    labels = {**ENGINE, "ome.io/inferenceservice": "llama"}
    assert bounds(known(tenant), workload(labels=labels)) is None
    unowned = parse.workload({"metadata": {"name": "llama-engine", "namespace": "evil", "labels": labels}}, *APPS)
    assert bounds(known(tenant), unowned) is None


BACKEND = {"name": "main", "minReplicas": 1, "maxReplicas": 4, "workers": [{"type": "server"}]}
POLICY = {"autoscalingPolicy": {"metrics": []}}
SPLIT = {**BACKEND, "workers": [{"type": "prefill", "replicas": 2}, {"type": "decode", "replicas": 3}]}


@pytest.mark.parametrize(
    ("backend", "labels", "expected"),
    [
        (BACKEND, {OF_BACKEND: "main", OF_ROLE: "leader"}, (1, 4)),
        (BACKEND, {OF_BACKEND: "other"}, None),
        ({**BACKEND, "minReplicas": 0}, {OF_BACKEND: "main"}, (0, 4)),
        ({**BACKEND, "workers": [{"replicas": 2}]}, {OF_BACKEND: "main", OF_ROLE: "leader"}, (2, 8)),
        ({**SPLIT, **POLICY}, {OF_BACKEND: "main", OF_ROLE: "prefill"}, (2, 8)),
        ({**SPLIT, **POLICY}, {OF_BACKEND: "main", OF_ROLE: "decode"}, (3, 12)),
        # Without a policy there is a workload of each role for every group.
        ({**SPLIT, "minReplicas": 2, "maxReplicas": 2}, {OF_BACKEND: "main", OF_ROLE: "decode"}, (3, 3)),
    ],
)
def test_a_backend_bounds_the_workload_that_its_model_owns(
    backend: Mapping[str, Any], labels: Mapping[str, str], expected: tuple[int, int] | None
) -> None:
    stored = known(models=(model(backends=[backend]),))
    owned = {"apiVersion": "registry.volcano.sh/v1alpha1", "kind": "Model"}
    assert bounds(stored, workload("llama-main", labels, reference=owned)) == expected
    assert bounds(stored, workload("llama-main", labels, namespace="other", reference=owned)) is None
    assert bounds(stored, workload("llama-main", labels, reference={**owned, "uid": "u2"})) is None


# The tightest of all


DEFAULT = fleet_handling(FleetSettings())


@pytest.mark.parametrize(
    ("annotated", "scaler", "limits", "expected", "named"),
    [
        ((None, 6), None, (1, 4), (1, 4), ("minReplicas of it", "maxReplicas of it")),
        ((2, 3), None, (1, 4), (2, 3), (f"annotation {MIN_REPLICAS}", f"annotation {MAX_REPLICAS}")),
        ((None, None), (1, 2), (0, 4), (1, 2), ("minimum of HorizontalPodAutoscaler chat/h", "maximum of")),
        ((None, None), (1, 9), (3, 4), (3, 4), ("minReplicas of it", "maxReplicas of it")),
        # The minimum of one above the maximum of another: the smaller number.
        ((5, None), None, (1, 3), (3, 3), ("maxReplicas of it", "maxReplicas of it")),
        ((None, 2), None, (4, 8), (2, 2), (f"annotation {MAX_REPLICAS}", f"annotation {MAX_REPLICAS}")),
    ],
)
def test_the_tightest_bound_wins_and_is_named(
    annotated: tuple[int | None, int | None],
    scaler: tuple[int, int] | None,
    limits: tuple[int, int],
    expected: tuple[int, int],
    named: tuple[str, str],
) -> None:
    handling = DEFAULT._replace(lower=annotated[0], upper=annotated[1])
    target = Serving().id
    consumers = [Consumer(Key("chat", "h"), "HorizontalPodAutoscaler", target, *scaler)] if scaler else []
    stored, notices = variant_bounds(
        handling, consumers, ReplicaLimits(*limits, "minReplicas of it", "maxReplicas of it")
    )
    assert (stored.lower, stored.upper) == expected
    assert stored.lower_from.startswith(named[0])
    assert stored.upper_from.startswith(named[1])
    contradicting = max(annotated[0] or 0, limits[0]) > min(annotated[1] or 99, limits[1])
    assert [notice.reason for notice in notices] == (["InvalidConfiguration"] if contradicting else [])


_COUNT = st.none() | st.integers(0, 12)


@given(_COUNT, _COUNT, st.integers(0, 12), _COUNT)
def test_no_combination_passes_any_maximum(lower: int | None, upper: int | None, limit: int, most: int | None) -> None:
    handling: Handling = DEFAULT._replace(lower=lower, upper=upper)
    stored, _ = variant_bounds(handling, (), ReplicaLimits(limit, most, "a", "b"))
    for replicas in range(15):
        after = stored.clamp(replicas)
        assert after <= min(99 if upper is None else upper, 99 if most is None else most)
        assert after >= min(max(lower or 0, limit), 99 if stored.upper is None else stored.upper)


# Decisions


def limited(lower: int = 0, upper: int | None = None, required: bool = False, problem: str = "") -> dict[str, Any]:
    name = "InferenceService chat/llama"
    limits = ReplicaLimits(
        lower, upper, f"spec.engine.minReplicas of {name}", f"spec.engine.maxReplicas of {name}", required, problem
    )
    return {"limits": limits}


def decided(*serving: Serving, **fleet: Any) -> VariantDecision:
    settings = fleet.pop("settings", FleetSettings())
    (decision,) = decide(make_fleet(*serving, **fleet), settings).variants
    return decision


@pytest.mark.parametrize("compatibility", ["repaired", "published"])
def test_growth_ends_at_the_maximum_of_the_component(compatibility: str) -> None:
    settings = FleetSettings(compatibility=compatibility)
    free = decided(Serving(load=[BUSY] * 3), settings=settings).record
    assert free.target.replicas is not None
    assert free.target.replicas > 3
    bound = decided(Serving(load=[BUSY] * 3, workload=limited(upper=3)), settings=settings)
    assert bound.record.target.replicas == 3
    told = "spec.engine.maxReplicas of InferenceService chat/llama"
    assert told in bound.record.why.message
    assert any(f"at most 3 ({told})" in line for line in lines(bound.record))
    (limit,) = [c for c in bound.conditions if c.type == "CapacityLimited"]
    assert limit.message.startswith("Cannot scale v1 3 -> ")
    assert f"{told} is 3" in limit.message
    assert told in next(c for c in bound.conditions if c.type == "OptimizationReady").message


def test_a_lowered_maximum_takes_replicas_away() -> None:
    bound = decided(Serving(load=[(0.6, 1.0)] * 5, workload=limited(upper=2))).record
    assert (bound.target.replicas, bound.why.reason) == (2, "AboveMaximum")
    assert "lowered from 5 to 2 by spec.engine.maxReplicas of InferenceService chat/llama" in bound.why.message


def test_the_minimum_of_the_component_is_kept() -> None:
    bound = decided(Serving(load=[(0.6, 1.0)], workload=limited(lower=3))).record
    assert (bound.target.replicas, bound.why.reason) == (3, "BelowMinimum")


ZERO = {"default": "enable_scale_to_zero: true\nretention_period: 1m\n"}
QUIET = {"zero": ZERO, "counts": {("chat", "meta/llama", 60): 0.0}}


def test_only_a_minimum_of_zero_lets_a_component_go_to_zero() -> None:
    assert decided(Serving(load=[IDLE], workload=limited(lower=0)), **QUIET).record.target.replicas == 0
    kept = decided(Serving(load=[IDLE], workload=limited(lower=1)), **QUIET).record
    assert kept.target.replicas == 1
    assert "spec.engine.minReplicas of InferenceService chat/llama" in kept.why.message


@pytest.mark.parametrize(("required", "expected"), [(True, 2), (False, 0)])
def test_a_workload_at_zero_is_raised_to_a_minimum_that_is_written_down(required: bool, expected: int) -> None:
    record = decided(Serving(current=0, spec=0, ready=0, workload=limited(lower=2, required=required))).record
    assert record.target.replicas == expected


def test_contradicting_bounds_are_resolved_to_the_smaller_and_told() -> None:
    serving = Serving(load=[BUSY] * 3, variant={"annotations": {MIN_REPLICAS: "6"}}, workload=limited(upper=4))
    bound = decided(serving)
    assert bound.record.target.replicas == 4
    (notice,) = [event for event in bound.notices if event.reason == "InvalidConfiguration"]
    assert notice.message == (
        f"annotation {MIN_REPLICAS} (6) is above spec.engine.maxReplicas of InferenceService chat/llama (4); "
        "the smaller number 4 is used"
    )


def test_limits_that_may_not_be_read_are_told() -> None:
    stored = known(errors={("InferenceService", "chat"): "no list"})
    limits = stored.bound(workload(labels=ENGINE)).limits
    assert limits is not None
    bound = decided(Serving(load=[BUSY] * 3, workload={"limits": limits}))
    (notice,) = [event for event in bound.notices if event.reason == "OwnerLimitsUnknown"]
    assert notice.message.startswith(
        "minReplicas and maxReplicas of InferenceService chat/llama are not known: no list; grant list on "
        "inferenceservices (ome.io)"
    )
    assert (bound.record.target.replicas or 0) > 3
