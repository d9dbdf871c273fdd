"""Revisions, shares, addresses and routes of components, as a service's status has them."""

from __future__ import annotations

from typing import Any

import pytest
from service_world import ENGINE, NOW, SERVED, Fleet, serving

from modelyard.reconcile.plans.plan import ServedKind
from modelyard.workloads.roll_out.returning import UNOBSERVED, USUAL

KNATIVE = frozenset((*SERVED, ServedKind("serving.knative.dev/v1", "Service")))
SETS = frozenset((*SERVED, ServedKind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")))
REVISION = "deployment.kubernetes.io/revision"


def revised(fleet: Fleet, number: int, now: float = NOW, ready: bool = True) -> dict[str, Any]:
    """The Deployment's controller has made this revision, whose pods are ready or come; the status of the engine."""
    fleet.objects["Deployment", "shop", "chat-engine"]["metadata"]["annotations"][REVISION] = str(number)
    fleet.up("chat-engine")
    if not ready:
        fleet.objects["Deployment", "shop", "chat-engine"]["status"] |= {"updatedReplicas": 1, "replicas": 2}
    fleet.settle(now=now)
    engine: dict[str, Any] = fleet.status()["components"]["engine"]
    return engine


def image(fleet: Fleet, tag: int, now: float = NOW, **engine: Any) -> None:
    fleet.service(engine={"runner": {"name": "ome-container", "image": f"engine:{tag}"}, **engine})
    fleet.settle(now=now)


def names(engine: dict[str, Any]) -> dict[str, str]:
    """Newest, ready, rolled-out and previous revision."""
    kinds = ("latestCreated", "latestReady", "latestRolledout", "previousRolledout")
    return {kind: engine[f"{kind}Revision"] for kind in kinds if f"{kind}Revision" in engine}


def test_the_revision_of_before_is_kept_when_another_one_is_accepted() -> None:
    fleet = serving()
    assert names(revised(fleet, 1)) == dict.fromkeys(("latestCreated", "latestReady", "latestRolledout"), "1")
    image(fleet, 2)
    during = names(revised(fleet, 2, ready=False))
    assert during == {"latestCreated": "2", "latestReady": "1", "latestRolledout": "1"}
    after = {**dict.fromkeys(("latestCreated", "latestReady", "latestRolledout"), "2"), "previousRolledout": "1"}
    assert names(revised(fleet, 2)) == after
    fleet.objects["Deployment", "shop", "chat-engine"]["spec"]["replicas"] = 3  # which is no revision
    fleet.settle(now=NOW + 10)
    assert names(revised(fleet, 2, NOW + 20)) == after
    image(fleet, 3, NOW + 30)
    assert names(revised(fleet, 3, NOW + 40))["previousRolledout"] == "2"


def test_a_roll_back_gives_the_same_pods_another_number_and_no_other_predecessor() -> None:
    fleet = serving()
    revised(fleet, 1)
    image(fleet, 2)
    revised(fleet, 2)
    image(fleet, 3, NOW + 10)
    revised(fleet, 3, NOW + 10, ready=False)
    fleet.settle(now=NOW + 10 + USUAL)
    back = names(revised(fleet, 4, NOW + 20 + USUAL))
    assert fleet.condition("LatestDeploymentReady")[1] == "RolledBack"
    assert back == {**dict.fromkeys(("latestCreated", "latestReady", "latestRolledout"), "4"), "previousRolledout": "1"}


def test_a_canary_is_the_newest_revision_and_not_rolled_out() -> None:
    fleet = serving()
    revised(fleet, 1)
    image(fleet, 2, canaryTrafficPercent=20)
    fleet.up("chat-engine-canary", ready=0)
    started = names(revised(fleet, 1))
    assert started == {"latestCreated": "chat-engine-canary", "latestReady": "1", "latestRolledout": "1"}
    fleet.up("chat-engine-canary")
    assert names(revised(fleet, 1)) == {**started, "latestReady": "chat-engine-canary"}
    traffic = fleet.status()["components"]["engine"]["traffic"]
    assert [target["revisionName"] for target in traffic if target["latestRevision"]] == ["chat-engine-canary"]
    assert [target["percent"] for target in traffic if target.get("tag") == "prev"] == [50]
    image(fleet, 2)
    revised(fleet, 2)
    assert names(revised(fleet, 2)) == {
        **dict.fromkeys(("latestCreated", "latestReady", "latestRolledout"), "2"),
        "previousRolledout": "1",
    }


def grouped(fleet: Fleet, tag: int, now: float = NOW) -> None:
    part = {"runner": {**ENGINE, "image": f"engine:{tag}"}}
    fleet.service(engine={"minReplicas": 2, "leader": part, "worker": {"size": 1, **part}})
    fleet.settle(now=now)


@pytest.mark.parametrize("served", [SERVED, SETS])
def test_groups_have_one_revision_by_what_makes_their_pods(served: frozenset[ServedKind]) -> None:
    def up(now: float) -> dict[str, str]:
        for _ in range(2):  # without a controller one group after the other
            for kind, _, name in list(fleet.objects):
                if kind in ("StatefulSet", "LeaderWorkerSet"):
                    fleet.up(name, kind=kind, ready=fleet.objects[kind, "shop", name]["spec"]["replicas"])
            fleet.settle(now=now)
            fleet.settle(now=now + UNOBSERVED)
        return names(fleet.status()["components"]["engine"])

    fleet = Fleet(served=served)
    fleet.model()
    fleet.runtime()
    grouped(fleet, 1)
    first = up(NOW)
    assert first["latestCreated"].startswith("chat-engine-")
    assert set(first.values()) == {first["latestCreated"]}
    grouped(fleet, 2, NOW + 100)
    during = names(fleet.status()["components"]["engine"])
    assert during["latestCreated"] != during["latestRolledout"] == first["latestRolledout"]
    second = up(NOW + 100)
    assert second == {
        **dict.fromkeys(("latestCreated", "latestReady", "latestRolledout"), during["latestCreated"]),
        "previousRolledout": first["latestCreated"],
    }


def knative_status(fleet: Fleet, ready: str, shares: dict[str, int], **more: Any) -> dict[str, Any]:
    """Knative has these revisions with these shares; the status of the engine."""
    key = next(key for key in fleet.objects if key[0] == "Service" and key[2] == "chat-engine")
    targets = [{"revisionName": name, "percent": percent} for name, percent in shares.items()]
    up = [{"type": kind, "status": "True"} for kind in ("Ready", "RoutesReady", "ConfigurationsReady")]
    fleet.objects[key]["status"] = {
        "observedGeneration": fleet.objects[key]["metadata"]["generation"],
        "latestCreatedRevisionName": ready,
        "latestReadyRevisionName": ready,
        "traffic": targets,
        "conditions": up,
        "url": "https://chat-engine.example.com",
        "address": {"url": "http://chat-engine.shop.svc.cluster.local"},
        **more,
    }
    fleet.settle()
    engine: dict[str, Any] = fleet.status()["components"]["engine"]
    return engine


def on_knative(**engine: Any) -> Fleet:
    fleet = Fleet(served=KNATIVE)
    fleet.model()
    fleet.runtime()
    fleet.service(engine={"minReplicas": 0, **engine})
    fleet.settle()
    return fleet


def test_what_knative_says_of_its_revisions_routes_and_addresses_is_told() -> None:
    fleet = on_knative()
    assert fleet.condition("EngineRouteReady")[0] == fleet.condition("EngineConfigurationReady")[0] == "Unknown"
    engine = knative_status(fleet, "chat-1", {"chat-1": 100})
    assert names(engine) == dict.fromkeys(("latestCreated", "latestReady", "latestRolledout"), "chat-1")
    assert engine["url"] == engine["restURL"] == "https://chat-engine.example.com"
    assert engine["address"] == {"url": "http://chat-engine.shop.svc.cluster.local"}
    assert fleet.condition("EngineRouteReady")[0] == fleet.condition("EngineConfigurationReady")[0] == "True"
    assert fleet.condition("EngineReady")[1] == "ScaledToZero", "no request, no pod"
    assert fleet.status()["modelStatus"]["modelRevisionStates"]["activeModelState"] == "Standby"


def test_a_revision_with_a_part_of_the_requests_is_not_rolled_out_and_gets_no_more_by_being_ready() -> None:
    fleet = on_knative()
    knative_status(fleet, "chat-1", {"chat-1": 100})
    new = {"name": "ome-container", "image": "engine:2"}
    fleet.service(engine={"minReplicas": 0, "canaryTrafficPercent": 20, "runner": new})
    fleet.settle()
    engine = knative_status(fleet, "chat-2", {"chat-2": 20, "chat-1": 80})
    assert names(engine) == {"latestCreated": "chat-2", "latestReady": "chat-2", "latestRolledout": "chat-1"}
    assert fleet.status()["modelStatus"]["transitionStatus"] == "InProgress"
    key = next(key for key in fleet.objects if key[0] == "Service" and key[2] == "chat-engine")
    latest, before = fleet.objects[key]["spec"]["traffic"]
    assert (latest["percent"], before["percent"], before["revisionName"]) == (20, 80, "chat-1")
    fleet.service(engine={"minReplicas": 0, "runner": new})
    fleet.settle()
    assert fleet.condition("LatestDeploymentReady")[0] == "False", "Knative has not seen it yet"
    engine = knative_status(fleet, "chat-2", {"chat-2": 100})
    assert names(engine) == {
        **dict.fromkeys(("latestCreated", "latestReady", "latestRolledout"), "chat-2"),
        "previousRolledout": "chat-1",
    }
    assert fleet.status()["modelStatus"]["transitionStatus"] == "UpToDate"


def test_a_revision_of_knative_that_fails_without_a_pod_says_why() -> None:
    fleet = on_knative()
    bad = {"type": "ConfigurationsReady", "status": "False", "reason": "RevisionFailed", "message": "no such image"}
    knative_status(
        fleet, "", {}, conditions=[{"type": "Ready", "status": "False"}, bad], latestCreatedRevisionName="c-1"
    )
    assert fleet.condition("EngineReady")[1] == "RevisionFailed"
    assert fleet.condition("EngineConfigurationReady")[:2] == ("False", "RevisionFailed")
    failed = fleet.status()["modelStatus"]["lastFailureInfo"]
    assert (failed["reason"], failed["location"], failed["message"]) == ("RuntimeUnhealthy", "engine", "no such image")


def test_a_component_has_its_addresses_and_route_while_it_is_ready() -> None:
    fleet = Fleet()
    fleet.model()
    fleet.runtime(decoderConfig={"runner": ENGINE}, routerConfig={"runner": ENGINE})
    fleet.service(decoder={}, router={})
    fleet.settle()
    routes = ("EngineRouteReady", "DecoderRouteReady", "RouterRouteReady")
    assert {fleet.condition(kind)[:2] for kind in routes} == {("False", "ComponentNotReady")}
    for name in ("engine", "decoder", "router"):
        fleet.up(f"chat-{name}")
    fleet.settle()
    assert {fleet.condition(kind)[0] for kind in (*routes, "RoutesReady")} == {"True"}
    for name, status in fleet.status()["components"].items():
        url = f"http://chat-{name}.shop.svc.cluster.local:8080"
        assert (status["url"], status["restURL"], status["address"]) == (url, url, {"url": url})
    fleet.up("chat-decoder", ready=0)
    fleet.settle()
    assert fleet.condition("DecoderRouteReady")[:2] == ("False", "ComponentNotReady")
    assert fleet.condition("EngineRouteReady")[0] == "True"
    assert fleet.condition("RoutesReady")[0] == "False"
    assert {"url", "restURL", "address"}.isdisjoint(fleet.status()["components"]["decoder"])


def test_a_route_is_not_ready_without_its_service_though_the_pods_are() -> None:
    fleet = serving()
    del fleet.objects["Service", "shop", "chat-engine"]
    plan = fleet.look()
    assert plan is not None
    fleet.carry(plan, most=1)  # the status, before the Service is made again
    assert fleet.condition("EngineReady")[0] == "True"
    assert fleet.condition("EngineRouteReady")[:2] == ("False", "Applying")
    assert fleet.condition("RoutesReady")[:2] == ("False", "Applying")
    fleet.settle()
    assert fleet.condition("EngineRouteReady")[0] == fleet.condition("RoutesReady")[0] == "True"
