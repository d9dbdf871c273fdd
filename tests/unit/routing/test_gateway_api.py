"""Routes and servers as the kinds of an inference gateway: what they say there is what they say here."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st
from routing_world import a_route, a_server
from typer.testing import CliRunner

from modelyard.cli.main import app
from modelyard.routing.gateway_api import MODEL_HEADER, Gateway, GatewayObjects, render
from modelyard.routing.objects import route, server
from modelyard.routing.table import Asked, takes

GATEWAY = Gateway("inference", "gateways")


def rendered(*objects: dict[str, Any], gateway: Gateway = GATEWAY) -> GatewayObjects:
    servers = [server(one) for one in objects if one["kind"] == "ModelServer"]
    return render(
        [route(one) for one in objects if one["kind"] == "ModelRoute"], {one.key: one for one in servers}, gateway
    )


def test_a_server_and_a_route() -> None:
    given_server = a_server()
    given_server["spec"] |= {
        "model": "org/llama",
        "workloadPort": {"port": 8080},
        "trafficPolicy": {"timeout": "1m30s"},
    }
    targets = [{"modelServerName": "server", "weight": 90}, {"modelServerName": "server", "weight": 0}]
    tests = {"headers": {"x-tier": {"prefix": "go(ld"}}, "uri": {"regex": "chat|x"}}
    rules = [{"modelMatch": tests, "targetModels": targets}]
    found = rendered(given_server, a_route(adapters=("poet",), rules=rules), gateway=GATEWAY._replace(rewrites=True))
    assert found.remarks == ()
    pool, http, rewrite = found.objects
    assert pool["spec"] == {
        "selector": {"matchLabels": {"app": "llama"}},
        "targetPorts": [{"number": 8080}],
        "endpointPickerRef": {"name": "modelyard-router", "port": {"number": 9002}, "failureMode": "FailClose"},
    }
    assert http["metadata"] == {"name": "route", "namespace": "shop"}
    assert http["spec"]["parentRefs"] == [{"name": "inference", "namespace": "gateways"}]
    (rule,) = http["spec"]["rules"]
    assert [one["headers"][0]["value"] for one in rule["matches"]] == ["llama", "poet"]
    assert rule["matches"][0]["headers"][1]["value"] == r"^go\(ld.*"
    assert rule["matches"][0]["path"] == {"type": "RegularExpression", "value": ".*(?:chat|x).*"}
    assert [(one["kind"], one["name"], one["weight"]) for one in rule["backendRefs"]] == [
        ("InferencePool", "server", 90), ("InferencePool", "server", 0)
    ]  # fmt: skip
    assert rule["timeouts"] == {"backendRequest": "90000ms"}
    assert rewrite["spec"]["rules"] == [
        {"matches": [{"model": {"type": "Exact", "value": "llama"}}], "targets": [{"modelRewrite": "org/llama"}]}
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rateLimit": {"inputTokensPerUnit": 5}}, "rateLimit"),
        ({"rules": [{"targetModels": [{"modelServerName": "other"}]}]}, "no ModelServer other"),
        ({"rules": []}, "left out"),
        (
            {"rules": [
                {"modelMatch": {"headers": {"x": {"exact": ""}}}, "targetModels": [{"modelServerName": "server"}]}
            ]},
            "left out.*without it",
        ),
        (
            {"rules": [
                {"targetModels": [{"modelServerName": "server"}]},
                {"modelMatch": {"uri": {"prefix": "/v1"}}, "targetModels": [{"modelServerName": "server"}]},
            ]},
            "left out.*more specific",
        ),
        (
            {"rules": [
                {"modelMatch": {"uri": {"prefix": "/"}}, "targetModels": [{"modelServerName": "server"}]},
                {"modelMatch": {"headers": {"x": {"exact": "1"}}}, "targetModels": [{"modelServerName": "server"}]},
            ]},
            "left out.*more specific",
        ),
        (
            {"rules": [
                {"modelMatch": {"uri": {"prefix": "/v1/cha"}}, "targetModels": [{"modelServerName": "server"}]}
            ]},
            "whole segments",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_told(change: dict[str, Any], told: str) -> None:
    found = rendered(a_server(), a_route(**change))
    assert any(re.search(told, why) for _, why in found.remarks)
    assert ("left out" in told) == (len(found.objects) == 1)


def test_many_names_are_dealt_out_over_rules() -> None:
    model = a_route(adapters=tuple(f"adapter-{index}" for index in range(10)))
    made = route(model)
    many = [f"adapter-{index}" for index in range(200)]
    object.__setattr__(made, "adapters", tuple(many))
    found = render([made], {}, GATEWAY)
    rules = found.objects[0]["spec"]["rules"]
    assert [len(one["matches"]) for one in rules] == [64, 64, 64, 9]


MODELS, PATHS, TIERS = ("llama", "poet"), ("/v1/chat/x", "/v1/chat", "/v1", "/other"), ("gold", "silver", "")
texts = st.one_of(
    st.builds(lambda text: {"exact": text}, st.sampled_from(["gold", "silver"])),
    st.builds(lambda text: {"prefix": text}, st.sampled_from(["g", "s"])),
    st.builds(lambda text: {"regex": text}, st.sampled_from(["^g", "l", "er$"])),
)
paths = st.one_of(
    st.builds(lambda text: {"exact": text}, st.sampled_from(PATHS)),
    st.builds(lambda text: {"prefix": text}, st.sampled_from(["/v1/chat/", "/v1/", "/"])),
)
conditions = st.fixed_dictionaries(
    {},
    optional={
        "headers": st.dictionaries(st.sampled_from(["x-tier", "x-other"]), texts, min_size=1),
        "uri": paths,
        "body": st.builds(lambda model: {"model": model}, st.sampled_from(MODELS)),
    },
)


def precedence(match: dict[str, Any]) -> tuple[int, int, int]:
    """Source: the Gateway API's description of HTTPRouteRule.matches."""
    path = match.get("path", {"type": "PathPrefix", "value": "/"})
    kind = {"Exact": 2, "PathPrefix": 1, "RegularExpression": 0}[path["type"]]
    return kind, len(path["value"]), len(match["headers"])


def matches(match: dict[str, Any], asked: Asked) -> bool:
    sent = {**asked.headers, MODEL_HEADER.lower(): asked.model}
    for one in match["headers"]:
        value = sent.get(one["name"].lower())
        if value is None:
            return False
        exact = one["type"] == "Exact"
        if not (value == one["value"] if exact else re.fullmatch(one["value"], value)):
            return False
    path = match.get("path", {"type": "PathPrefix", "value": "/"})
    if path["type"] == "Exact":
        return bool(asked.path == path["value"])
    prefix = path["value"].rstrip("/")
    return asked.path == prefix or asked.path.startswith(prefix + "/")


@given(st.lists(conditions, min_size=1, max_size=4))
def test_a_route_that_is_rendered_sends_every_request_where_it_sends_it_here(told: list[dict[str, Any]]) -> None:
    names = [f"server-{index}" for index in range(len(told))]
    rules = [
        {**({"modelMatch": one} if one else {}), "targetModels": [{"modelServerName": name}]}
        for one, name in zip(told, names, strict=True)
    ]
    given_route = a_route(adapters=("poet",), rules=rules)
    found = rendered(*(a_server(name) for name in names), given_route)
    http = [one for one in found.objects if one["kind"] == "HTTPRoute"]
    if not http:
        assert any("left out" in why for _, why in found.remarks)
        return
    read = route(given_route)
    for model, path, tier, other in product(MODELS, PATHS, TIERS, TIERS):
        headers = {name: value for name, value in (("x-tier", tier), ("x-other", other)) if value}
        asked = Asked(model, path, headers)
        # A path that a prefix of whole segments ends with is the one difference, and is told.
        here = next((rule for rule in read.rules if takes(rule, asked._replace(path=path + "/x"))), None)
        asked = asked._replace(path=path + "/x")
        candidates = [
            (precedence(match), -index, rule)
            for index, rule in enumerate(http[0]["spec"]["rules"])
            for match in rule["matches"]
            if matches(match, asked)
        ]
        there = max(candidates, key=lambda one: one[:2])[2] if candidates else None
        assert (here and here.targets[0].server) == (there and there["backendRefs"][0]["name"])


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all([a_server(), a_route(rateLimit={"inputTokensPerUnit": 5})]))
    done = CliRunner().invoke(app, ["gateway", "--gateway", "gateways/inference", "-f", str(path)])
    assert done.exit_code == 0, done.output
    assert "rateLimit" in done.stderr
    assert [one["kind"] for one in yaml.safe_load_all(done.stdout)] == ["InferencePool", "HTTPRoute"]


def test_a_name_that_another_namespace_holds_is_left_out() -> None:
    theirs = a_route("chat", "llama", namespace="bank", age=9)
    ours = a_route("ours", "own", adapters=("llama",), age=1)
    thief = a_route("thief", "llama", namespace="evil", age=5)
    found = rendered(theirs, ours, thief)
    matched = {
        one["metadata"]["namespace"]: [
            header["value"] for rule in one["spec"]["rules"] for match in rule["matches"] for header in match["headers"]
        ]
        for one in found.objects
        if one["kind"] == "HTTPRoute"
    }
    assert matched == {"bank": ["llama"], "shop": ["own"]}
    told = dict(found.remarks)
    assert told["ModelRoute evil/thief"].startswith("left out: other routes get the requests for all of its names")
    assert "the name 'llama' is left out: other routes get its requests" in {why for _, why in found.remarks}
