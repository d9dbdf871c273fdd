"""How requests reach a Model: a ModelServer for each backend, a ModelRoute for the Model. Pure.

Source: Kthena Model controller reference, "ModelServer", "KV connector" and "ModelRoute".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from modelyard.resources import ENGINE, METRICS_PATH, MINDIE, Model, ModelBackend
from modelyard.workloads.kthena.setup import ENTRY, METRICS, OF_GROUP, OF_MODEL, Setup, client_name, labels, metadata
from modelyard.workloads.rendering import MAX_ADAPTERS, NETWORKING, Body, Problems, Refusal, engines, fitting

MOST_TARGETS = 16
"""Targets of one rule of a ModelRoute."""


def model_server(setup: Setup) -> Body:
    """The pods of a backend that take requests."""
    own = setup.labels()
    match = {name: own[name] for name in (f"{OF_MODEL}/model-uid", f"{OF_MODEL}/backend-name")}
    selector: Body = {"matchLabels": {**match, **ENTRY}}
    if setup.engine is engines.MINDIE and setup.disaggregated:
        selector["matchLabels"][f"{OF_GROUP}/role"] = "coordinator"
    elif setup.disaggregated:
        role = f"{OF_GROUP}/role"
        selector["pdGroup"] = {
            "groupKey": f"{OF_GROUP}/group-name",
            "prefillLabels": {role: "prefill"},
            "decodeLabels": {role: "decode"},
        }
    spec: Body = {
        "inferenceEngine": setup.engine.server,
        "model": setup.served,
        "trafficPolicy": {"retry": {"attempts": 5, "retryInterval": "0s"}},
        "workloadPort": {"port": setup.port, "protocol": "http"},
        "workloadSelector": selector,
    }
    if setup.connector is not None:
        spec["kvConnector"] = {"type": setup.connector}
    named = setup.metadata(server_name(setup.model, setup.backend))
    marks = {ENGINE: MINDIE} if setup.engine is engines.MINDIE else {}
    if setup.metrics_path != METRICS:
        marks[METRICS_PATH] = setup.metrics_path
    if marks:
        named["annotations"] = {**named.get("annotations", {}), **marks}
    return {"apiVersion": NETWORKING, "kind": "ModelServer", "metadata": named, "spec": spec}


def server_name(model: Model, backend: ModelBackend) -> str:
    """Return the name of a backend's ModelServer."""
    return fitting(f"{model.name}-{backend.name}")


def route_name(model: Model) -> str:
    """Name of a Model's route. ``modelName`` is immutable: a new one gets a new route before the old one goes."""
    asked = client_name(model)
    return fitting(model.name if asked == model.name else f"{model.name}-{asked}")


def model_routes(model: Model) -> list[Body]:
    """Return the routes to the backends of the Model and its adapters. Raises ``Refusal`` with all that is wrong.

    Ten adapters per ModelRoute, in the order of the spec, so that an appended adapter moves no other to another route.
    """
    backends = model.spec.backends
    serving: dict[str, list[ModelBackend]] = {}
    for backend in backends:
        for adapter in backend.lora_adapters or ():
            serving.setdefault(adapter.name, []).append(backend)
    adapters, asked = list(serving), client_name(model)
    problems = Problems()
    with problems.collect():
        if asked in adapters:
            text = f"a LoRA adapter has the name that clients ask for, {asked}"
            raise Refusal("InvalidSpec", "spec.backends", text, "rename the adapter")
    with problems.collect():
        if len(backends) > MOST_TARGETS:
            remedy = "join some of them, or make a second Model"
            raise Refusal("TooManyBackends", "spec.backends", f"a route has at most {MOST_TARGETS} targets", remedy)
    shares = [sorted(adapters[first : first + MAX_ADAPTERS]) for first in range(0, len(adapters), MAX_ADAPTERS)]
    routes = []
    for number, share in enumerate(shares or [[]]):
        with problems.collect():
            routes.append(_route(model, number, asked, {name: serving[name] for name in share}))
    problems.raise_all()
    return routes


def _route(model: Model, number: int, asked: str, adapters: Mapping[str, Sequence[ModelBackend]]) -> Body:
    """The first route is for the Model itself, all are for some ``adapters`` and the backends that serve them."""
    backends, match = model.spec.backends, _match(model)
    wanted: list[tuple[str, Body, Sequence[ModelBackend]]] = []
    if not number or len(backends) == 1:
        wanted.append(("default", match if len(backends) == 1 else _asking(match, asked), backends))
    if len(backends) > 1:
        wanted += [(name, _asking(match, name), targets) for name, targets in adapters.items()]
    rules, problems = [], Problems()
    for name, taken, targets in wanted:
        with problems.collect():
            rules.append(_rule(model, name, taken, targets))
    problems.raise_all()
    spec: Body = {"rules": rules} if number else {"modelName": asked, "rules": rules}
    if adapters:
        spec["loraAdapters"] = list(adapters)
    name = fitting(f"{route_name(model)}-adapters-{number + 1}") if number else route_name(model)
    named = metadata(model, name, labels(model))
    return {"apiVersion": NETWORKING, "kind": "ModelRoute", "metadata": named, "spec": spec}


def _match(model: Model) -> Body:
    match = model.spec.model_match
    return {} if match is None else match.model_dump(mode="json", by_alias=True, exclude_none=True)


def _asking(match: Body, name: str) -> Body:
    body: Any = match.get("body") or {}
    return {**match, "body": {**body, "model": name}}


def _rule(model: Model, name: str, match: Body, backends: Sequence[ModelBackend]) -> Body:
    if not any(backend.route_weight for backend in backends):
        path = "spec.backends" if len(model.spec.backends) > 1 else "spec.backends[0].routeWeight"
        remedy = "give one backend a routeWeight above 0"
        raise Refusal("InvalidSpec", path, f"every backend that serves {name} has the weight 0", remedy)
    targets = [{"modelServerName": server_name(model, backend), "weight": backend.route_weight} for backend in backends]
    rule: Body = {"name": name, "targetModels": targets}
    return {**rule, "modelMatch": match} if match else rule
