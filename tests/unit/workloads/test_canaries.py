"""Canaries: a share of the pods is new, beside what serves, until it is promoted, taken away or found worse."""

from __future__ import annotations

from typing import Any

import pytest
from service_world import ENGINE, NOW, Fleet, serving

from modelyard.metrics.vocabulary.values import ServedRequests
from modelyard.objects import Key
from modelyard.workloads.roll_out.canaries import share, shares
from modelyard.workloads.roll_out.gates import GateReading
from modelyard.workloads.roll_out.returning import USUAL

LATEST = "LatestDeploymentReady"


@pytest.mark.parametrize(
    ("replicas", "percent", "expected"),
    [(1, 10, 1), (1, 50, 1), (4, 20, 1), (9, 10, 1), (10, 25, 3), (3, 90, 27), (4, 0, 0), (0, 20, 0)],
)
def test_how_many_pods_are_a_share(replicas: int, percent: int, expected: int) -> None:
    assert share(replicas, percent) == expected


def test_what_knative_says_of_its_shares_is_told_as_it_stands() -> None:
    traffic = [{"revisionName": "a-2", "percent": 30, "latestRevision": True}, {"revisionName": "a-1", "percent": 70}]
    body = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "a"}}
    assert shares([{**body, "status": {"traffic": traffic}}], {}) == traffic
    assert shares([body], {}) is None


def asked(fleet: Fleet, percent: int | None, image: str = "engine:2", **engine: Any) -> None:
    """An update with this share of the requests, made."""
    more = {} if percent is None else {"canaryTrafficPercent": percent}
    fleet.service(engine={"runner": {"name": "ome-container", "image": image}, **more, **engine})
    fleet.settle()


def images(fleet: Fleet) -> dict[str, str]:
    return {
        name: obj["spec"]["template"]["spec"]["containers"][0]["image"]
        for (kind, _, name), obj in fleet.objects.items()
        if kind == "Deployment"
    }


def trying(percent: int = 20) -> Fleet:
    """One whose canary is ready beside four pods."""
    fleet = serving()
    fleet.objects["Deployment", "shop", "chat-engine"]["spec"]["replicas"] = 4  # by its autoscaler
    fleet.up("chat-engine", ready=4)
    asked(fleet, percent)
    return fleet


def test_a_canary_stands_beside_what_serves_behind_the_same_service() -> None:
    fleet = trying()
    assert images(fleet) == {"chat-engine": "engine:1", "chat-engine-canary": "engine:2"}
    assert fleet.condition("Ready")[0] == "True", "what is not ready yet is missed by nobody"
    assert fleet.condition(LATEST)[1] == "RollingOut"
    canary = fleet.objects["Deployment", "shop", "chat-engine-canary"]["spec"]
    assert canary["replicas"] == 1
    labels = canary["template"]["metadata"]["labels"]
    for name in ("chat-engine", "chat"):
        selector = fleet.objects["Service", "shop", name]["spec"]["selector"]
        assert selector.items() <= labels.items()
    stable = fleet.objects["Deployment", "shop", "chat-engine"]["spec"]
    assert not canary["selector"]["matchLabels"].items() <= stable["template"]["metadata"]["labels"].items()
    fleet.up("chat-engine-canary")
    fleet.settle()
    status, reason, message = fleet.condition(LATEST)
    assert (status, reason) == ("True", "Canary")
    assert message.startswith("engine: 1 pod of what was asked for last beside what served before")
    assert fleet.status()["components"]["engine"]["traffic"] == [
        {"revisionName": "chat-engine", "percent": 80, "latestRevision": False, "tag": "prev"},
        {"revisionName": "chat-engine-canary", "percent": 20, "latestRevision": True},
    ]
    stable["replicas"] = 12
    fleet.up("chat-engine", ready=12)
    fleet.settle()
    assert fleet.objects["Deployment", "shop", "chat-engine-canary"]["spec"]["replicas"] == 3


@pytest.mark.parametrize("percent", [100, None])
def test_it_is_promoted(percent: int | None) -> None:
    fleet = trying()
    fleet.up("chat-engine-canary")
    fleet.settle()
    asked(fleet, percent)
    assert images(fleet) == {"chat-engine": "engine:2", "chat-engine-canary": "engine:2"}, "it serves until then"
    fleet.up("chat-engine", ready=4)
    fleet.settle()
    assert images(fleet) == {"chat-engine": "engine:2"}
    assert fleet.condition(LATEST)[:2] == ("True", "RolledOut")
    assert "traffic" not in fleet.status()["components"]["engine"]


def test_it_is_taken_away() -> None:
    fleet = trying()
    asked(fleet, 20, image="engine:1")
    assert images(fleet) == {"chat-engine": "engine:1"}
    asked(fleet, 0, image="engine:2")
    assert fleet.objects["Deployment", "shop", "chat-engine-canary"]["spec"]["replicas"] == 0
    assert images(fleet)["chat-engine"] == "engine:1"


def test_one_that_does_not_become_ready_goes() -> None:
    fleet = trying()
    fleet.settle(now=NOW + USUAL)
    assert images(fleet) == {"chat-engine": "engine:1"}
    assert fleet.condition(LATEST)[1] == "RolledBack"
    fleet.settle(now=NOW + 2 * USUAL)
    assert images(fleet) == {"chat-engine": "engine:1"}


@pytest.mark.parametrize(("ttft", "reason"), [(0.3, "Canary"), (0.6, "RolledBack")])
def test_it_is_compared_with_what_is_beside_it(ttft: float, reason: str) -> None:
    fleet = trying()
    fleet.lifecycle.prometheus, fleet.lifecycle.readings = "http://prometheus:9090", {}
    fleet.up("chat-engine-canary")
    for name in ("chat-engine-5d8f-abcde", "chat-engine-canary-77c4-fghij"):
        fleet.pod(name, conditions=[{"type": "Ready", "status": "True"}])
    fleet.settle()
    watch = fleet.standing().watch
    assert watch is not None
    assert watch.beside
    assert watch.pods == {"chat-engine-canary-77c4-fghij"}
    assert watch.before.fullmatch("chat-engine-5d8f-abcde")
    reading = GateReading(NOW + 120, ServedRequests(100, 0, ttft), ServedRequests(400, 0, 0.3))
    fleet.lifecycle.readings = {Key("shop", "chat"): reading}
    fleet.settle(now=NOW + 120)
    assert fleet.condition(LATEST)[1] == reason
    fleet.lifecycle.readings = {}
    fleet.settle(now=NOW + 500)
    assert fleet.condition(LATEST)[1] == reason, "it is compared once"
    assert images(fleet)["chat-engine"] == "engine:1"


def test_the_first_roll_out_is_none_and_groups_have_none() -> None:
    fleet = Fleet()
    fleet.model()
    fleet.runtime()
    asked(fleet, 20)
    assert images(fleet) == {"chat-engine": "engine:2"}
    part = {"runner": ENGINE}
    fleet.service("large", engine={"leader": part, "worker": {"size": 1, **part}, "canaryTrafficPercent": 20})
    fleet.settle("large")
    for kind, _, name in list(fleet.objects):
        if kind == "StatefulSet":
            fleet.up(name, kind=kind)
    fleet.settle("large")
    status, _, message = fleet.condition(LATEST, "large")
    assert status == "True"
    assert "engine: canaryTrafficPercent has no effect on groups of pods" in message
