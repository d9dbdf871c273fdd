"""Rich ModelRoutes and ModelServers, and what becomes of requests with them: routing decisions, bodies, budgets."""

from __future__ import annotations

import copy
from itertools import product
from random import Random
from typing import Any

import orjson
from field_mutations import InvalidObject, Scenario

from modelyard.objects import Key
from modelyard.objects.parse import pod as read_pod
from modelyard.router.process.gauges import wanted
from modelyard.routing import objects
from modelyard.routing.decide import Arrival, Decider, Question, most_attempts, pause
from modelyard.routing.errors import ErrorAnswer
from modelyard.routing.explain import explain
from modelyard.routing.limits import TokenLimits

NAMESPACE = "shop"
GROUP = "example.com/group"
_BODY = {"prompt": "The quick brown fox jumps over the lazy dog", "max_tokens": 16}


def _metadata(name: str) -> dict[str, Any]:
    created = "2026-01-01T00:00:00Z"
    return {"name": name, "namespace": NAMESPACE, "uid": name, "generation": 1, "creationTimestamp": created}


def _match(**conditions: Any) -> dict[str, Any]:
    return {"modelMatch": conditions}


def _rule(server: str, **more: Any) -> dict[str, Any]:
    return {"targetModels": [{"modelServerName": server}], **more}


ROUTE: dict[str, Any] = {
    "apiVersion": "networking.volcano.sh/v1alpha1",
    "kind": "ModelRoute",
    "metadata": _metadata("route"),
    "spec": {
        "modelName": "chat",
        "loraAdapters": ["chat-legal"],
        "rules": [
            {"name": "beta", **_rule("exact"), **_match(headers={"x-tier": {"exact": "beta"}})},
            _rule("prefix", **_match(headers={"x-tier": {"prefix": "gold"}})),
            _rule("regex", **_match(headers={"x-tier": {"regex": "^silver-[0-9]+$"}})),
            _rule("exact", **_match(uri={"exact": "/v1/completions"}, headers={"x-path": {"exact": "exact"}})),
            _rule("prefix", **_match(uri={"prefix": "/v1/emb"})),
            _rule("regex", **_match(uri={"regex": "rerank$"})),
            _rule("body", **_match(body={"model": "chat-legal"})),
            {
                "targetModels": [
                    {"modelServerName": "large", "weight": 3},
                    {"modelServerName": "small", "weight": 1},
                ]
            },
        ],
        "rateLimit": {
            "inputTokensPerUnit": 50,
            "outputTokensPerUnit": 200,
            "unit": "minute",
            "global": {"redis": {"address": "redis.shop:6379"}},
        },
        "parentRefs": [
            {
                "group": "gateway.example.com",
                "kind": "Listener",
                "namespace": "edge",
                "name": "inference",
                "sectionName": "https",
                "port": 8443,
            }
        ],
    },
}
OTHER_ROUTE: dict[str, Any] = {**copy.deepcopy(ROUTE)}
"""A route with a target of a kind that is not served."""
OTHER_ROUTE["spec"] = {
    "modelName": "chat",
    "rules": [{"targetModels": [{"modelServerName": "large"}, {"externalModelProviderName": "cloud"}]}],
}
REQUESTS = (
    ("chat", "/v1/completions", {}),
    ("chat-legal", "/v1/completions", {}),
    *(("chat", "/v1/completions", {"x-tier": tier}) for tier in ("beta", "golden", "silver-7")),
    ("chat", "/v1/completions", {"x-path": "exact"}),
    ("chat", "/v1/chat/completions", {"x-path": "exact"}),
    ("chat", "/v1/embeddings", {}),
    ("chat", "/v1/rerank", {}),
)


def _pod(name: str, address: int, **labels: str) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T01:00:00Z"}
    status = {"phase": "Running", "podIP": f"10.0.0.{address}", "conditions": [ready]}
    return {"kind": "Pod", "metadata": {**_metadata(name), "labels": labels}, "spec": {}, "status": status}


def _server(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "networking.volcano.sh/v1alpha1",
        "kind": "ModelServer",
        "metadata": _metadata(name),
        "spec": {"inferenceEngine": "vLLM", "workloadSelector": {"matchLabels": {"app": name}}, **spec},
    }


SERVER = _server(
    "pairs",
    inferenceEngine="SGLang",
    model="llama-served",
    workloadSelector={
        "matchLabels": {"app": "pairs", "release": "stable"},
        "pdGroup": {"groupKey": GROUP, "prefillLabels": {"role": "prefill"}, "decodeLabels": {"role": "decode"}},
    },
    workloadPort={"port": 9443, "protocol": "https"},
    trafficPolicy={"timeout": "45s", "retry": {"attempts": 3, "retryInterval": "250ms"}},
    kvConnector={"type": "nixl"},
)
PLAIN_SERVER = _server("pairs", inferenceEngine="SGLang")
"""A server whose port follows from its engine."""
_NAMES = ("exact", "prefix", "regex", "body", "large", "small")
POD_OBJECTS = [
    *(_pod(name, number, app=name) for number, name in enumerate(_NAMES, 1)),
    *(
        _pod(f"{role}-{group}", address, app="pairs", release="stable", role=role, **{GROUP: group})
        for address, (role, group) in enumerate(product(("prefill", "decode"), ("one", "two")), 20)
    ),
    _pod("canary", 30, app="pairs", release="canary", role="decode", **{GROUP: "one"}),
]
_PODS = [read_pod(obj) for obj in POD_OBJECTS]


def _ask(decider: Decider, model: str, path: str, headers: dict[str, str]) -> Question:
    body = orjson.dumps({"model": model, **_BODY})
    question = decider.question(Arrival("POST", path, {"content-type": "application/json", **headers}, body))
    assert isinstance(question, Question), question
    return question


def _decider(route: objects.Route, *servers: objects.Server) -> Decider:
    decider = Decider(random=Random(5))
    decider.fleet.update([route], lambda _: servers, lambda _: _PODS, [NAMESPACE])
    return decider


def route_outcome(obj: dict[str, Any]) -> list[str]:
    """Decide on some requests under a route: the rule, the server, and what its budget admits."""
    route = objects.route(obj)
    if route.problem is not None:
        raise InvalidObject(route.problem)
    decider = _decider(route, *(objects.server(_server(name)) for name in _NAMES))
    lines: list[str] = []
    for request in (*REQUESTS, *REQUESTS[:1] * 40):
        destination = decider.destination(_ask(decider, *request))
        if isinstance(destination, ErrorAnswer):
            lines.append(f"{request}: {destination.status}")
        else:
            lines.append(f"{request}: rule {destination.rule}, {destination.server}, adapter: {destination.lora}")
    explained = explain(decider, _ask(decider, *REQUESTS[2]), 0.0)
    lines += [line.partition("(")[0] for line in explained if "takes it" in line]
    limits = TokenLimits()
    limits.configure(route.key, route.budget if route.names else None, 0.0)
    for at in (0.0, 1.0, 61.0):
        lines.append(f"admit {limits.admit(route.key, 30, at)}")
        limits.settle(route.key, 30, 30, 250, at)
    return [*lines, f"counted in {route.redis or 'the router'}"]


def server_outcome(obj: dict[str, Any]) -> list[str]:
    """Decide on requests that go to a server: pods, addresses, bodies, attempts and their limits."""
    route = objects.route({**ROUTE, "spec": {"modelName": "chat", "rules": [_rule("pairs")]}})
    server = objects.server(obj)
    if server.problem is not None:
        raise InvalidObject(server.problem)
    decider = _decider(route, server)
    question = _ask(decider, *REQUESTS[0])
    lines = [f"metrics {wanted(server.engine)}"]
    forward = decider.forward(question, _destination(decider, question), 0.0)
    if isinstance(forward, ErrorAnswer):
        return [*lines, str(forward)]
    for attempt in sorted(forward.attempts, key=lambda attempt: attempt.pod.url):
        calls = decider.calls(forward, attempt)
        lines.append(f"{attempt.pod.url} {attempt.pod.key} {attempt.prefill and attempt.prefill.key} {calls}")
    limit = f"{most_attempts(forward)} attempts, {pause(forward, 1, 0.0)} s apart, {forward.server.timeout} s each"
    return [*lines, limit]


def _destination(decider: Decider, question: Question) -> Any:
    result = decider.destination(question)
    assert not isinstance(result, ErrorAnswer), result
    assert result.server == Key(NAMESPACE, "pairs")
    return result


ROUTING = {
    "ModelRoute": (
        Scenario(
            ROUTE,
            route_outcome,
            {
                "spec.rules[].targetModels[].modelServerName": "small",
                "spec.rateLimit.global.redis.address": "other.shop:6379",
            },
        ),
        Scenario(OTHER_ROUTE, route_outcome),
    ),
    "ModelServer": (
        Scenario(
            SERVER,
            server_outcome,
            {
                "spec.inferenceEngine": "vLLM",
                "spec.workloadSelector.matchLabels": {"app": "pairs"},
                "spec.workloadSelector.pdGroup.groupKey": "example.com/other",
                "spec.workloadSelector.pdGroup.prefillLabels": {"role": "none"},
                "spec.workloadSelector.pdGroup.decodeLabels": {"role": "none"},
                "spec.workloadPort.port": 9444,
            },
        ),
        Scenario(PLAIN_SERVER, server_outcome, {"spec.inferenceEngine": "vLLM"}),
    ),
}
