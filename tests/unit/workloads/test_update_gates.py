"""Updates that are compared with what served before: measured, judged within a window, and returned where worse."""

from __future__ import annotations

import json
import re

import pytest
from service_world import NOW, Fleet, serving

from modelyard.metrics.vocabulary.values import ServedRequests
from modelyard.objects import Key
from modelyard.workloads.rendering.settings import GateSettings
from modelyard.workloads.roll_out.gates import GATE, GateReading, GateWatch, pods_of, settings, verdict

LATEST = "LatestDeploymentReady"
KEY = Key("shop", "chat")
GOOD, SLOW = ServedRequests(100, 1, 0.3), ServedRequests(100, 1, 0.5)


def watch(beside: bool = False) -> GateWatch:
    return GateWatch("shop", frozenset(("new",)), re.compile("old.*"), 0, 100, GateSettings(), beside)


@pytest.mark.parametrize(
    ("new", "old", "at", "worse", "words"),
    [
        (GOOD, GOOD, 219, None, ""),
        (GOOD, GOOD, 220, False, "1.0% of 100 requests failed, of those it is compared with 1.0%; TTFT 0.3 s"),
        (ServedRequests(100, 7, 0.3), GOOD, 130, True, "7.0% of 100 requests failed"),
        (ServedRequests(100, 6, 0.3), GOOD, 130, None, ""),
        (ServedRequests(100, 6, 0.3), GOOD, 220, False, ""),
        (SLOW, GOOD, 219, None, ""),
        (SLOW, GOOD, 220, True, "TTFT 0.5 s, of those 0.3 s; 1.5 times as much is allowed"),
        (ServedRequests(100, 1, 0.44), GOOD, 220, False, ""),
        (ServedRequests(100, 1), GOOD, 220, False, "1.0% of 100 requests failed, of those it is compared with 1.0%"),
        (ServedRequests(49, 49, 9.9), GOOD, 130, None, ""),
        (
            ServedRequests(49, 49, 9.9),
            GOOD,
            220,
            False,
            "not compared: 49 requests, and 100 to the others, 50 are needed",
        ),
        (GOOD, ServedRequests(49, 0, 0.1), 101, False, "not compared: 49 requests before it, 50 are needed"),
    ],
)
def test_what_is_worse(new: ServedRequests, old: ServedRequests, at: float, worse: bool | None, words: str) -> None:
    found = verdict(watch(), GateReading(at, new, old))
    assert (found.worse if found is not None else None) == worse
    assert words in (found.words if found is not None else "")


def test_without_an_answer_it_is_waited_for_and_not_for_ever() -> None:
    assert verdict(watch(), None) is None
    assert verdict(watch(), GateReading(99, GOOD, GOOD)) is None, "of the roll-out before"
    assert verdict(watch(), GateReading(219, problem="away")) is None
    found = verdict(watch(), GateReading(220, problem="away"))
    assert found is not None
    assert not found.worse
    assert found.words.endswith("away")


def test_what_serves_beside_may_be_slow_to_have_requests() -> None:
    few = GateReading(150, GOOD, ServedRequests(3))
    assert verdict(watch(), few) is not None
    assert verdict(watch(beside=True), few) is None


def test_whose_pods_are_counted() -> None:
    pods = {
        "new": ServedRequests(10, 1, 1.0),
        "old-1": ServedRequests(30, 0, 2.0),
        "old-2": ServedRequests(10, 0, 6.0),
        "else": ServedRequests(9, 9, 9),
    }
    assert watch().sides(pods, pods) == (ServedRequests(10, 1, 1.0), ServedRequests(40, 0, 3.0))
    names = pods_of(["chat-engine", "chat-engine-0-0"])
    for name in ("chat-engine-5d8f-abcde", "chat-engine-0-0-0", "chat-engine-0"):
        assert names.fullmatch(name), name
    for name in ("chat-engine-x-engine-5d8f-abcde", "chat-enginex-5d8f-abcde", "chat-engine"):
        assert not names.fullmatch(name), name


@pytest.mark.parametrize(
    ("text", "expected", "problem"),
    [
        ("", GateSettings(), ""),
        ("off", GateSettings(enabled=False), ""),
        ('{"windowSeconds": 60, "ttftRatio": 2}', GateSettings(window_seconds=60, ttft_ratio=2), ""),
        ("{promServerAddress: 'http://inside:1'}", GateSettings(), ""),
        ("windowSeconds: 1", GateSettings(), "windowSeconds: Input should be greater than or equal to 10"),
        ("windowSeconds: 3601", GateSettings(), "windowSeconds: Input should be less than or equal to 3600"),
        ("fast", GateSettings(), "neither off nor a map"),
        ("[" * 100, GateSettings(), f"annotation {GATE}: "),
    ],
)
def test_what_a_service_says_of_it(text: str, expected: GateSettings, problem: str) -> None:
    found, said = settings(text, GateSettings())
    assert found == expected
    assert problem in said
    assert bool(problem) == bool(said)


def updated(fleet: Fleet, image: str = "engine:2") -> None:
    """An update that has become ready."""
    fleet.service(engine={"runner": {"name": "ome-container", "image": image}})
    fleet.settle()
    fleet.up("chat-engine")
    fleet.pod("chat-engine-2-b", conditions=[{"type": "Ready", "status": "True"}])
    fleet.settle()


def compared() -> Fleet:
    fleet = serving()
    fleet.lifecycle.prometheus = "http://prometheus:9090"
    fleet.lifecycle.readings = {}
    updated(fleet)
    return fleet


def image_of(fleet: Fleet) -> str:
    body = fleet.objects["Deployment", "shop", "chat-engine"]
    return str(body["spec"]["template"]["spec"]["containers"][0]["image"])


def test_an_update_that_serves_as_well_is_taken() -> None:
    fleet = compared()
    assert fleet.condition(LATEST)[:2] == ("False", "Comparing")
    assert fleet.condition("Ready")[0] == "True"
    here = fleet.standing().watch
    assert here is not None
    assert here.pods == {"chat-engine-2-b"}
    plan = fleet.look(now=NOW + 500)
    assert plan is not None
    assert plan.awaits
    assert not plan.acts, "who measures has not done so yet"
    fleet.lifecycle.readings = {KEY: GateReading(NOW + 120, GOOD, GOOD)}
    fleet.settle(now=NOW + 120)
    status, reason, message = fleet.condition(LATEST)
    assert (status, reason) == ("True", "RolledOut")
    assert "TTFT 0.3 s" in message
    fleet.lifecycle.readings = None
    fleet.settle(now=NOW + 200)
    assert "TTFT 0.3 s" in fleet.condition(LATEST)[2], "it is told from then on"


def test_an_update_that_serves_worse_goes_back() -> None:
    fleet = compared()
    fleet.lifecycle.readings = {KEY: GateReading(NOW + 120, SLOW, GOOD)}
    fleet.settle(now=NOW + 120)
    assert image_of(fleet) == "engine:1"
    fleet.lifecycle.readings = None
    fleet.up("chat-engine")
    fleet.settle(now=NOW + 200)
    status, reason, message = fleet.condition(LATEST)
    assert (status, reason) == ("False", "RolledBack")
    assert message.startswith("generation 2 served worse (1.0% of 100 requests failed")
    assert image_of(fleet) == "engine:1"
    assert fleet.standing().stuck


def test_a_shift_does_not_decide_and_has_a_run_started_in_the_end() -> None:
    fleet = compared()
    fleet.lifecycle.readings = None
    plan = fleet.look(now=NOW + 119)
    assert plan is not None
    assert not plan.acts
    plan = fleet.look(now=NOW + 120)
    assert plan is not None
    assert plan.acts
    assert plan.status is None, "it is not accepted"


@pytest.mark.parametrize("how", ["no Prometheus", "switched off", "by the cluster"])
def test_without_a_gate_an_update_is_taken_when_it_is_ready(how: str) -> None:
    fleet = serving()
    fleet.lifecycle.readings = {}
    if how != "no Prometheus":
        fleet.lifecycle.prometheus = "http://prometheus:9090"
    if how == "by the cluster":
        fleet.put("ConfigMap", "inferenceservice-config", "home", data={"gate": json.dumps({"enabled": False})})
    updated(fleet)
    if how == "switched off":
        assert fleet.condition(LATEST)[1] == "Comparing"
        fleet.objects["InferenceService", "shop", "chat"]["metadata"]["annotations"] = {GATE: "off"}
        fleet.settle()
    assert fleet.condition(LATEST)[:2] == ("True", "RolledOut")


def test_the_first_roll_out_and_other_replicas_are_not_compared() -> None:
    fleet = serving()
    fleet.lifecycle.prometheus = "http://prometheus:9090"
    fleet.service(engine={"minReplicas": 1, "maxReplicas": 9})
    fleet.settle()
    fleet.settle()
    assert fleet.condition(LATEST)[:2] == ("True", "RolledOut")
