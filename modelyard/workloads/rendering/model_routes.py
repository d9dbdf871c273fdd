"""A service behind the router: a ModelServer for each revision that serves, a ModelRoute with their weights. Pure.

A ModelServer takes the pods that the Service of the entry component takes. Source: kthena-routing, 2, 3 and 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from modelyard.objects import LONGEST_MODEL_NAME, conditions, cut
from modelyard.workloads.rendering import metadata, names
from modelyard.workloads.rendering.command_line import literals, words
from modelyard.workloads.rendering.request_limits import duration
from modelyard.workloads.rendering.routes import Backend, RoutedService
from modelyard.workloads.rendering.settings import IngressSettings
from modelyard.workloads.rendering.values import Abilities, Body, ChildObject, Refusal, StoredChild

ROUTED: Final = "modelyard.dev/routed"
"""Annotation of a service: ``true`` has the router share its requests, ``false`` has not, whatever the settings say."""
NETWORKING: Final = "networking.volcano.sh/v1alpha1"
KINDS: Final = ("ModelServer", "ModelRoute")
MAX_ADAPTERS: Final = 10
"""Names of adapters in one ModelRoute."""
_DEFAULT: Final = "default"
"""Name of the rule that all requests take for which there is no other."""
_MODEL_FLAGS = ("--served-model-name", "--model", "--model-path")


class ServiceRouting(NamedTuple):
    """Router objects of a service, its clients' URL, why it has none, and adapters without a place (``surplus``)."""

    children: tuple[ChildObject, ...] = ()
    url: str = ""
    hindrance: str = ""
    surplus: str = ""


def routing(
    of: RoutedService,
    entry: Backend,
    engine: Backend,
    made: Iterable[ChildObject],
    settings: IngressSettings,
    abilities: Abilities,
) -> ServiceRouting:
    """For a service that wishes it: by its annotation, else by the settings. ``made`` is what is made of its entry."""
    if of.annotations.get(ROUTED, str(settings.routed).lower()) != "true":
        return ServiceRouting()
    if missing := [kind for kind in KINDS if not abilities.version(kind, NETWORKING)]:
        return ServiceRouting(
            hindrance=f"{' and '.join(missing)}: not served here; install the CustomResourceDefinitions"
        )
    spec: Body = next(one.body["spec"] for one in made if one.kind == "Service" and one.name == entry.name)
    if "selector" not in spec:
        return ServiceRouting(hindrance="Knative itself leads requests to the pods of a Knative Service")
    surplus = engine.adapters[MAX_ADAPTERS:]
    text = f"a ModelRoute has at most {MAX_ADAPTERS} adapters; not routed: {', '.join(surplus)}" if surplus else ""
    return ServiceRouting(_behind(of, entry, engine, spec["selector"]), settings.router_url, surplus=text)


def _behind(of: RoutedService, entry: Backend, engine: Backend, selector: Body) -> tuple[ChildObject, ...]:
    known = engine.model if len(engine.model) <= LONGEST_MODEL_NAME and "$(" not in engine.model else ""
    asked = known if known and not known.startswith("/") else of.name  # a path is nothing that clients would send
    mine = {names.SERVICE: names.label_value(of.name)}
    spec: Body = {
        "inferenceEngine": engine.engine,
        "workloadPort": {"port": entry.port, "protocol": "http"},
        "workloadSelector": {"matchLabels": {**metadata.selector(of.name, entry.kind), **selector}},
    }
    if known:
        spec["model"] = known
    if entry.seconds:
        spec["trafficPolicy"] = {"timeout": duration(entry.seconds)}
    route_name = names.fitting(of.name if asked == of.name else f"{of.name}-{asked}")  # modelName is immutable
    server = _made(
        "ModelServer", metadata.of(entry.name, of.namespace, {**mine, names.COMPONENT: entry.kind}, {}), spec
    )
    adapters = engine.adapters[:MAX_ADAPTERS]
    if asked in adapters:
        problem = f"{asked} is the name of an adapter and the name that clients of the service ask for"
        remedy = "give the engine another --served-model-name, or rename the adapter"
        raise Refusal("AdapterNameInUse", f"metadata.annotations[{ROUTED}]", problem, remedy)
    routed: Body = {"modelName": asked, "rules": [_rule(_DEFAULT, [_target(entry.name, 100)])]}
    if adapters:
        routed["loraAdapters"] = list(adapters)
    route = _made("ModelRoute", metadata.of(route_name, of.namespace, mine, {}), routed)
    return ChildObject(server, entry.kind), ChildObject(route, "ingress")


class Behind(NamedTuple):
    """What a rendering has for the router."""

    server: ChildObject
    route: ChildObject

    @classmethod
    def of(cls, children: Iterable[ChildObject]) -> Behind | None:
        found = {one.kind: one for one in children if one.kind in KINDS}
        return cls(*(found[kind] for kind in KINDS)) if len(found) == len(KINDS) else None

    def beside(self, new: Behind, canary: Body, percent: int) -> tuple[ChildObject, ...]:
        """What serves with ``percent`` of the requests for the pods of a canary's Deployment, as the new one's are."""
        about, name = new.server.body["metadata"], canary["metadata"]["name"]
        twin = ChildObject({**new.server.body, "metadata": {**about, "name": name}}, new.server.component)
        targets = [_target(self.server.name, 100 - percent), _target(name, percent)]
        served, tried = (side.route.body["spec"].get("loraAdapters", []) for side in (self, new))
        # Only one of the two revisions has such an adapter: the other would answer that there is no such model.
        rules = [
            {**_rule(f"adapter-{i}", [_target(server, 100)]), "modelMatch": {"body": {"model": adapter}}}
            for i, adapter in enumerate(sorted({*served} ^ {*tried}))
            for server in (self.server.name if adapter in served else name,)
        ]
        spec = {**self.route.body["spec"], "rules": [*rules, _rule(_DEFAULT, targets)]}
        if served or tried:
            spec["loraAdapters"] = sorted({*served, *tried})[:MAX_ADAPTERS]
        body = {**self.route.body, "spec": spec}
        return self.server, selecting(twin, canary["spec"]["selector"]["matchLabels"]), ChildObject(body, "ingress")


def selecting(server: ChildObject, labels: Mapping[str, str]) -> ChildObject:
    """A ModelServer of the pods of its component that have these labels."""
    own = server.body["metadata"]["labels"]
    match = {**{name: own[name] for name in (names.SERVICE, names.COMPONENT)}, **labels}
    spec = {**server.body["spec"], "workloadSelector": {"matchLabels": match}}
    return ChildObject({**server.body, "spec": spec}, server.component)


def weights(children: Iterable[ChildObject]) -> dict[str, int]:
    """The weight of each ModelServer of a service's route."""
    rules = [rule for child in children if child.kind == "ModelRoute" for rule in child.body["spec"]["rules"]]
    targets = [target for rule in rules if rule["name"] == _DEFAULT for target in rule["targetModels"]]
    return {one["modelServerName"]: one["weight"] for one in targets}


def taken(there: Iterable[StoredChild], owner: str) -> str:
    """Why the router gives the requests for a service's model to somebody else; ``""`` where it does not."""
    for child in there:
        if child.kind.kind == "ModelRoute" and child.owner == owner:
            told = conditions((child.body.get("status") or {}).get("conditions"))
            found = next((one for one in told if one.type == "Conflicted" and one.status == "True"), None)
            if found is not None:
                return f"ModelRoute {child.key.name}: {found.message}"
    return ""


def _made(kind: str, about: Body, spec: Body) -> Body:
    return {"apiVersion": NETWORKING, "kind": kind, "metadata": about, "spec": spec}


def _rule(name: str, targets: Sequence[Body]) -> Body:
    return {"name": name, "targetModels": list(targets)}


def _target(server: str, weight: int) -> Body:
    return {"modelServerName": server, "weight": weight}


def engine_of(container: Mapping[str, Any]) -> str:
    """Which engine a container runs, of those that a ModelServer knows."""
    words = (container.get("image"), *(container.get("command") or ()), *(container.get("args") or ()))
    return "SGLang" if any("sglang" in str(word).lower() for word in words) else "vLLM"


def served_name(container: Mapping[str, Any]) -> str:
    """The name by which a container's engine serves its model, of its command line; ``""`` where that says none."""
    given, line = literals(container), words(container)
    flags: dict[str, str] = {}
    for word, after in zip(line, [*line[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name in _MODEL_FLAGS:
            flags.setdefault(name, value if equals else after)
        elif word == "serve" and not after.startswith("-"):
            flags.setdefault("--model", after)
    named = flags.get("--served-model-name") or given.get("SERVED_MODEL_NAME")
    return cut(named or flags.get("--model") or flags.get("--model-path") or "", 512)
