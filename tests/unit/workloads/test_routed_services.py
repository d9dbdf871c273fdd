"""Services behind the router: what is made for it, exact weights beside a canary, and what is left alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from service_world import ENGINE, NOW, SERVED, Fleet
from test_canaries import LATEST, asked

from modelyard.objects.deployment_modes import MODE
from modelyard.reconcile.plans.plan import ServedKind
from modelyard.resources import ModelRoute, ModelServer
from modelyard.routing.objects import route, server
from modelyard.workloads.rendering.model_routes import ROUTED, engine_of
from modelyard.workloads.rendering.names import fitting
from modelyard.workloads.rendering.settings import CONFIG_MAP, ServingSettings
from modelyard.workloads.roll_out.returning import USUAL

NETWORKING = frozenset(ServedKind(one.api_version, one.__name__) for one in (ModelServer, ModelRoute))
URL = "http://router.gateway.svc"
BEHIND = {ROUTED: "true"}


def a_fleet(ingress: str = "{}", served: frozenset[ServedKind] = SERVED | NETWORKING) -> Fleet:
    fleet = Fleet(served=served)
    fleet.put("ConfigMap", CONFIG_MAP, "home", data={"ingress": ingress})
    fleet.model()
    fleet.runtime()
    return fleet


def routed(*args: str, annotations: Mapping[str, str] = BEHIND, **given: Any) -> Fleet:
    """One service that answers, whose engine has these arguments."""
    fleet = a_fleet(**given)
    fleet.service(engine=_engine("engine:1", *args), annotations=annotations)
    fleet.settle()
    fleet.up("chat-engine")
    fleet.settle()
    return fleet


def _engine(image: str, *args: str, **more: Any) -> dict[str, Any]:
    return {"runner": {"name": "ome-container", "image": image, **({"args": list(args)} if args else {})}, **more}


def updated(fleet: Fleet, percent: int | None, *args: str, image: str = "engine:2") -> None:
    """An update with this share of the requests, made."""
    more = {} if percent is None else {"canaryTrafficPercent": percent}
    fleet.service(engine=_engine(image, *args, **more), annotations=BEHIND)
    fleet.settle()


def route_of(fleet: Fleet, name: str = "chat") -> dict[str, int]:
    """The weights of a route that the router can follow."""
    found = route(fleet.objects["ModelRoute", "shop", name])
    assert found.problem is None, found.problem
    return {one.server: one.weight for one in found.rules[0].targets}


def pods_of(fleet: Fleet, name: str) -> list[str]:
    """The Deployments whose pods a ModelServer has."""
    found = server(fleet.objects["ModelServer", "shop", name])
    assert found.problem is None, found.problem
    return sorted(
        deployment
        for (kind, _, deployment), obj in fleet.objects.items()
        if kind == "Deployment" and found.labels.items() <= obj["spec"]["template"]["metadata"]["labels"].items()
    )


def behind(fleet: Fleet) -> set[str]:
    return {one for one in fleet.names() if one.startswith("Model")}


@pytest.mark.parametrize(
    ("annotations", "ingress", "made"),
    [
        ({}, "{}", False),
        (BEHIND, "{}", True),
        ({ROUTED: "yes"}, "{}", False),
        ({}, '{"routed": true}', True),
        ({ROUTED: "false"}, '{"routed": true}', False),
    ],
)
def test_a_service_says_so_else_the_settings_do(annotations: dict[str, str], ingress: str, made: bool) -> None:
    fleet = routed(annotations=annotations, ingress=ingress)
    assert behind(fleet) == ({"ModelServer chat-engine", "ModelRoute chat"} if made else set())
    assert fleet.condition("Ready")[0] == "True"
    assert "RouterNotServed" not in str(fleet.status())


@pytest.mark.parametrize(
    ("args", "asked_for", "known"),
    [
        ((), "chat", ""),
        (("--served-model-name={{.Name}}",), "chat", "chat"),
        (("--served-model-name", "Org/Llama"), "Org/Llama", "Org/Llama"),
        (("--model=/mnt/models/llama",), "chat", "/mnt/models/llama"),
        (("--model=$(WHERE)",), "chat", ""),
        (("--served-model-name", "a" * 257), "chat", ""),
    ],
)
def test_clients_ask_by_the_name_that_the_engine_serves(args: tuple[str, ...], asked_for: str, known: str) -> None:
    fleet = routed(*args)
    name = "chat" if asked_for == "chat" else fitting(f"chat-{asked_for}")
    made, pods = route(fleet.objects["ModelRoute", "shop", name]), fleet.objects["ModelServer", "shop", "chat-engine"]
    assert (made.model, server(pods).model) == (asked_for, known)
    assert (server(pods).port, server(pods).engine, pods_of(fleet, "chat-engine")) == (8080, "vLLM", ["chat-engine"])
    assert route_of(fleet, name) == {"chat-engine": 100}


def test_another_name_of_the_model_is_another_route() -> None:
    fleet = routed("--served-model-name=a")
    updated(fleet, None, "--served-model-name=b")
    assert {"ModelRoute chat-b"} == {one for one in behind(fleet) if one.startswith("ModelRoute")}


@pytest.mark.parametrize(
    ("container", "engine"),
    [
        ({"image": "lmsysorg/sglang:v1"}, "SGLang"),
        ({"image": "a", "command": ["python3", "-m", "sglang.launch_server"]}, "SGLang"),
        ({"image": "vllm/vllm-openai"}, "vLLM"),
        ({}, "vLLM"),
    ],
)
def test_which_engine_it_is(container: dict[str, Any], engine: str) -> None:
    assert engine_of(container) == engine


@pytest.mark.parametrize(("router", "url"), [(URL, URL), ("", "http://chat.shop.svc.cluster.local:8080")])
def test_its_url_is_the_routers_where_the_settings_have_it(router: str, url: str) -> None:
    status = routed(ingress=f'{{"routerUrl": "{router}"}}').status()
    assert status["url"] == url
    # What measures and checks the service itself goes to its pods.
    assert status["address"]["url"] == "http://chat.shop.svc.cluster.local:8080"


def test_while_an_older_route_has_its_name_its_url_leads_to_its_own_pods() -> None:
    """Names are the router's, whoever took them first: nobody's requests go to another tenant's pods unawares."""
    fleet = routed(ingress=f'{{"routerUrl": "{URL}"}}')
    assert fleet.status()["url"] == URL
    told = {"type": "Conflicted", "reason": "ModelNameInUse", "message": "'chat' belongs to evil/first"}
    route_ = fleet.objects["ModelRoute", "shop", "chat"]
    for status, url in (("True", "http://chat.shop.svc.cluster.local:8080"), ("False", URL)):
        route_["status"] = {"conditions": [{**told, "status": status}]}
        fleet.settle()
        assert fleet.status()["url"] == url
        assert ("evil/first" in fleet.condition(LATEST)[2]) is (status == "True")


@pytest.mark.parametrize("text", ["router:8080", "http://router/", "file:///etc", "http://a b"])
def test_what_is_no_address_of_a_router_is_told(text: str) -> None:
    settings, problems = ServingSettings.read({"ingress": f'{{"routerUrl": "{text}"}}'})
    assert settings.ingress.router_url == ""
    assert "routerUrl" in problems[0]


def test_without_the_kinds_it_is_served_all_the_same_and_told() -> None:
    fleet = routed(served=SERVED)
    assert behind(fleet) == set()
    status, reason, message = fleet.condition(LATEST)
    assert (status, reason) == ("True", "RolledOut")
    assert "ModelServer and ModelRoute: not served here" in message


def test_what_is_asked_for_no_more_goes() -> None:
    fleet = routed(ingress=f'{{"routerUrl": "{URL}"}}')
    fleet.service(engine=_engine("engine:1"))
    fleet.settle()
    assert behind(fleet) == set()
    assert fleet.status()["url"] == "http://chat.shop.svc.cluster.local:8080"


@pytest.mark.parametrize(("kind", "name"), [("ModelRoute", "chat"), ("ModelServer", "chat-engine")])
def test_what_is_not_its_own_is_left_alone(kind: str, name: str) -> None:
    fleet = a_fleet()
    theirs = fleet.put(kind, name, "shop", spec={"theirs": 1}, metadata={"labels": {"ome.io/inferenceservice": "chat"}})
    fleet.service(annotations=BEHIND)
    fleet.settle()
    assert fleet.condition(LATEST)[1] == "ChildConflict"
    assert fleet.objects[kind, "shop", name] is theirs
    assert not behind(fleet), "of that service nothing is written"


def trying(percent: int = 20, *args: str) -> Fleet:
    """One whose canary is ready beside one pod."""
    fleet = routed(*args)
    updated(fleet, percent, *args)
    fleet.up("chat-engine-canary")
    fleet.settle()
    return fleet


@pytest.mark.parametrize("percent", [1, 20, 50, 99])
def test_a_canary_has_exactly_its_percentage(percent: int) -> None:
    fleet = trying(percent)
    weights = {"chat-engine": 100 - percent, "chat-engine-canary": percent}
    assert route_of(fleet) == weights
    assert [pods_of(fleet, name) for name in weights] == [[name] for name in weights], "no pod is of both"
    told = fleet.status()["components"]["engine"]["traffic"]
    assert {one["revisionName"]: one["percent"] for one in told} == weights
    assert fleet.condition(LATEST)[:2] == ("True", "Canary")


def test_the_service_leads_to_both() -> None:
    fleet = trying()
    for name in ("chat-engine", "chat"):
        selector = fleet.objects["Service", "shop", name]["spec"]["selector"]
        for pods in ("chat-engine", "chat-engine-canary"):
            labels = fleet.objects["Deployment", "shop", pods]["spec"]["template"]["metadata"]["labels"]
            assert selector.items() <= labels.items(), (name, pods)


def test_without_pods_of_its_own_a_side_has_no_share() -> None:
    fleet = routed()
    updated(fleet, 20)
    told = fleet.status()["components"]["engine"]["traffic"]
    assert [one["percent"] for one in told if one["latestRevision"]] == [0]
    updated(fleet, 0)
    assert route_of(fleet) == {"chat-engine": 100, "chat-engine-canary": 0}


def test_a_canary_by_another_name_is_asked_by_that() -> None:
    fleet = routed("--served-model-name=chat")
    updated(fleet, 20, "--served-model-name=next")
    known = {name: server(fleet.objects["ModelServer", "shop", name]).model for name in route_of(fleet)}
    assert known == {"chat-engine": "chat", "chat-engine-canary": "next"}
    assert route(fleet.objects["ModelRoute", "shop", "chat"]).model == "chat"


def test_promoted_it_serves_with_what_is_rolled_out_until_that_is_all_there() -> None:
    fleet = trying(90)
    updated(fleet, 100)
    assert behind(fleet) == {"ModelServer chat-engine", "ModelRoute chat"}
    assert route_of(fleet) == {"chat-engine": 100}
    assert pods_of(fleet, "chat-engine") == ["chat-engine", "chat-engine-canary"]
    fleet.up("chat-engine")
    fleet.settle()
    assert pods_of(fleet, "chat-engine") == ["chat-engine"]
    assert server(fleet.objects["ModelServer", "shop", "chat-engine"]).labels["app"] == "chat-engine"
    assert fleet.condition(LATEST)[:2] == ("True", "RolledOut")
    assert "traffic" not in fleet.status()["components"]["engine"]


def test_one_that_goes_back_has_no_request_any_more() -> None:
    fleet = routed()
    updated(fleet, 20)
    fleet.settle(now=NOW + USUAL)
    assert fleet.condition(LATEST)[1] == "RolledBack"
    assert route_of(fleet) == {"chat-engine": 100}
    assert behind(fleet) == {"ModelServer chat-engine", "ModelRoute chat"}
    assert server(fleet.objects["ModelServer", "shop", "chat-engine"]).labels["app"] == "chat-engine"


def test_with_a_router_of_its_own_that_has_the_requests() -> None:
    fleet = a_fleet()
    runner = {"name": "router", "image": "router:1", "ports": [{"containerPort": 9000}]}
    fleet.service(engine=_engine("engine:1", "--served-model-name=it"), router={"runner": runner}, annotations=BEHIND)
    fleet.settle()
    for name in ("chat-engine", "chat-router"):
        fleet.up(name)
    fleet.settle()
    assert behind(fleet) == {"ModelServer chat-router", "ModelRoute chat-it"}
    assert pods_of(fleet, "chat-router") == ["chat-router"]
    assert server(fleet.objects["ModelServer", "shop", "chat-router"]).port == 9000
    spec = {"engine": _engine("engine:2", canaryTrafficPercent=20), "router": {"runner": runner}}
    fleet.service(**spec, annotations=BEHIND)
    fleet.settle()
    assert "Deployment chat-engine-canary" in fleet.names()
    assert "ModelServer chat-engine-canary" not in fleet.names(), "its own router shares what engines get"


def test_of_groups_the_leaders_have_the_requests() -> None:
    fleet = a_fleet()
    part = {"runner": {**ENGINE, "args": ["--served-model-name=big"]}}
    fleet.service(engine={"leader": part, "worker": {"size": 1, **part}}, annotations=BEHIND)
    fleet.settle()
    made = server(fleet.objects["ModelServer", "shop", "chat-engine"])
    assert made.labels["leaderworkerset.sigs.k8s.io/worker-index"] == "0"


def test_virtual_ones_are_left_to_whoever_brings_their_pods() -> None:
    fleet = a_fleet()
    fleet.service(annotations={**BEHIND, MODE: "VirtualDeployment"})
    fleet.settle()
    assert behind(fleet) == set()


def test_without_the_router_nothing_of_a_canary_is_for_it() -> None:
    fleet = a_fleet()
    fleet.service()
    fleet.settle()
    fleet.up("chat-engine")
    fleet.settle()
    asked(fleet, 20)
    assert behind(fleet) == set()


@pytest.mark.parametrize(("before", "then"), [(BEHIND, {}), ({}, BEHIND)])
def test_said_otherwise_beside_a_canary(before: dict[str, str], then: dict[str, str]) -> None:
    fleet = routed(annotations=before, ingress=f'{{"routerUrl": "{URL}"}}')
    fleet.service(engine=_engine("engine:2", canaryTrafficPercent=20), annotations=before)
    fleet.settle()
    fleet.service(engine=_engine("engine:2", canaryTrafficPercent=20), annotations=then)
    fleet.settle()
    assert behind(fleet) == set(), "what is new comes when the canary has ended"
    assert fleet.status()["url"] == "http://chat.shop.svc.cluster.local:8080"
    assert "Deployment chat-engine-canary" in fleet.names()
    fleet.up("chat-engine-canary")
    fleet.service(engine=_engine("engine:2"), annotations=then)
    fleet.settle()
    fleet.up("chat-engine")
    fleet.settle()
    assert behind(fleet) == ({"ModelServer chat-engine", "ModelRoute chat"} if then else set())
