"""ModelRoutes and ModelServers as the API sends them, turned into plain values. Nothing here raises: a bad object is
kept with what is wrong with it, so that it can be told on that object and harms no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from modelyard.objects import LONGEST_MODEL_NAME, LONGEST_PROBLEM, Pod, ResourceType, cut, epoch, stored_status
from modelyard.reconcile.plans import OfSubject, Subject
from modelyard.resources import (
    ENGINE,
    METRICS_PATH,
    MINDIE,
    MOST_RETRIES,
    Duration,
    ModelMatch,
    ModelRoute,
    ModelServer,
    Resource,
    ResourceInvalid,
    RouteRule,
    StringMatch,
    TrafficPolicy,
)
from modelyard.routing.limits import SECONDS, Budget

ROUTES = ResourceType.of_resource(ModelRoute)
SERVERS = ResourceType.of_resource(ModelServer)
PREFILL, DECODE = "prefill", "decode"

INVALID_SPEC, INVALID_REGEX, NO_TARGETS = "InvalidSpec", "InvalidRegex", "NoTargets"

_PATH = re.compile(r"/[A-Za-z0-9/._~-]{0,255}")
_TARGETS = re.compile(r"spec\.rules\[\d+\]\.targetModels")

_MOST_ADAPTERS = 10
"""As in the schema of ModelRoutes."""

_PORTS = {"vLLM": 8000, "SGLang": 30000}

Object = Mapping[str, Any]
_R = TypeVar("_R", bound=Resource)


class Fault(NamedTuple):
    """Why an object cannot be used, or why a name does not lead to a route."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Stored(OfSubject):
    """What the two kinds have in common: identity, what is wrong with the spec, and the status as it stands."""

    subject: Subject
    created: float
    problem: Fault | None
    status: Mapping[str, Any]


class TextTest(NamedTuple):
    """How to compare one text: the first of these that is given decides."""

    exact: str | None = None
    prefix: str | None = None
    regex: str | None = None


class WeightedServer(NamedTuple):
    """A ModelServer of the route's namespace and its relative weight."""

    server: str
    weight: int = 100


class RoutingRule(NamedTuple):
    """What a rule takes, and the targets it draws from. Header names are in lower case."""

    targets: tuple[WeightedServer, ...]
    model: str | None = None
    path: TextTest | None = None
    headers: tuple[tuple[str, TextTest], ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Route(Stored):
    """A ModelRoute: its names, its rules and the ModelServers that they send to, its budget of tokens."""

    model: str = ""
    adapters: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    rules: tuple[RoutingRule, ...] = ()
    budget: Budget | None = None
    redis: str = ""
    """Where replicas of the router count it together, as ``host:port``; empty: each counts for itself."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name it takes requests for, where its namespace holds the name; none while it is not served."""
        return self.claims if self.problem is None else ()

    @property
    def claims(self) -> tuple[str, ...]:
        """Every name in its spec, until it is deleted: an edit that makes it unusable gives no name to others."""
        if self.subject.deleting:
            return ()
        return (self.model, *self.adapters) if self.model else self.adapters


@dataclass(frozen=True, slots=True)
class Groups:
    """How the pods of a server with disaggregated serving are told apart and paired."""

    key: str
    prefill: Mapping[str, str]
    decode: Mapping[str, str]


class RetryPolicy(NamedTuple):
    """How often a failed request is tried again, and after how many seconds."""

    attempts: int
    interval: float


@dataclass(frozen=True, slots=True)
class Server(Stored):
    """A ModelServer: which pods serve, and how they are paired where prefill and decode are apart."""

    labels: Mapping[str, str] = field(default_factory=dict)
    groups: Groups | None = None
    model: str = ""
    """The name the engine knows the model by; empty: the name the client sent."""
    engine: str = ""
    scheme: str = "http"
    port: int = 0
    timeout: float | None = None
    """Seconds until the response headers of one attempt; ``None``: no limit."""
    retry: RetryPolicy | None = None
    connector: str = ""
    """How the KV cache travels; empty: not said."""
    metrics_path: str = "/metrics"
    """Path of the pods' metrics page, at the same port."""


def route(obj: Object) -> Route:
    """A ModelRoute."""
    parsed, problem = _read(ModelRoute, obj)
    if parsed is None:
        model, adapters = _names(obj.get("spec"))
        return Route(**_stored(ROUTES, obj, problem), model=model, adapters=adapters)
    spec, limit = parsed.spec, parsed.spec.rate_limit
    budget = None
    if limit is not None:
        budget = Budget.of(limit.input_tokens_per_unit, limit.output_tokens_per_unit, SECONDS[limit.unit])
    servers = {t.model_server_name for rule in spec.rules for t in rule.target_models if t.model_server_name}
    if not spec.rules:
        problem = Fault(NO_TARGETS, "spec.rules is empty, so no request could be sent anywhere - add a rule")
    return Route(
        **_stored(ROUTES, obj, problem),
        model=spec.model_name or "",
        adapters=tuple(spec.lora_adapters or ()),
        servers=tuple(sorted(servers)),
        rules=tuple(map(_rule, spec.rules)),
        budget=budget if budget is not None and budget.limits else None,
        redis=limit.global_.redis.address if limit is not None and limit.global_ is not None else "",
    )


def _names(spec: Any) -> tuple[str, tuple[str, ...]]:
    spec = spec if isinstance(spec, Mapping) else {}
    model, listed = spec.get("modelName"), spec.get("loraAdapters")
    names = [name for name in listed if _is_name(name)] if isinstance(listed, list) else []
    model = model if _is_name(model) else ""
    return model, tuple(dict.fromkeys(name for name in names if name != model))[:_MOST_ADAPTERS]


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_MODEL_NAME


def _rule(rule: RouteRule) -> RoutingRule:
    match = rule.model_match or ModelMatch()
    return RoutingRule(
        # A target of another kind has no effect, so nothing is drawn for it.
        tuple(WeightedServer(t.model_server_name, t.weight) for t in rule.target_models if t.model_server_name),
        match.body.model if match.body else None,
        _test(match.uri) if match.uri else None,
        tuple((name.lower(), _test(test)) for name, test in (match.headers or {}).items()),
        rule.name or "",
    )


def _test(match: StringMatch) -> TextTest:
    return TextTest(match.exact, match.prefix, match.regex)


def server(obj: Object) -> Server:
    """A ModelServer."""
    parsed, problem = _read(ModelServer, obj)
    if parsed is None:
        return Server(**_stored(SERVERS, obj, problem))
    spec = parsed.spec
    selector, policy = spec.workload_selector, spec.traffic_policy or TrafficPolicy()
    groups, path = selector.pd_group, _annotation(obj, METRICS_PATH)
    return Server(
        **_stored(SERVERS, obj, problem),
        labels=selector.match_labels,
        groups=None if groups is None else Groups(groups.group_key, groups.prefill_labels, groups.decode_labels),
        model=spec.model or "",
        engine=MINDIE if _annotation(obj, ENGINE) == MINDIE else spec.inference_engine,
        scheme=spec.workload_port.protocol if spec.workload_port else "http",
        port=spec.workload_port.port if spec.workload_port else _PORTS[spec.inference_engine],
        timeout=_seconds(policy.timeout) or None,
        retry=None
        if policy.retry is None
        else RetryPolicy(min(policy.retry.attempts or 0, MOST_RETRIES), _seconds(policy.retry.retry_interval)),
        connector=spec.kv_connector.type if spec.kv_connector else "",
        metrics_path=path if isinstance(path, str) and _PATH.fullmatch(path) else "/metrics",
    )


def _annotation(obj: Object, name: str) -> Any:
    annotations = obj["metadata"].get("annotations")
    return annotations.get(name) if isinstance(annotations, Mapping) else None


def _seconds(duration: Duration | None) -> float:
    return 0.0 if duration is None else duration.nanoseconds / 1e9


def _read(kind: type[_R], obj: Object) -> tuple[_R | None, Fault | None]:
    body = {"metadata": {"name": obj["metadata"]["name"]}, "spec": obj.get("spec")}
    try:
        return kind.parse(body, unknown="accept"), None
    except ResourceInvalid as error:
        text = cut("; ".join(f"{path}: {text}" for path, text in error.problems), LONGEST_PROBLEM)
        return None, Fault(_reason([path for path, _ in error.problems]), text)
    except Exception as error:  # whatever a tenant has thought of
        return None, Fault(INVALID_SPEC, cut(f"cannot be read: {type(error).__name__}: {error}", LONGEST_PROBLEM))


def _reason(paths: Iterable[str]) -> str:
    paths = list(paths)
    if all(path.endswith(".regex") for path in paths):
        return INVALID_REGEX
    return NO_TARGETS if all(_TARGETS.fullmatch(path) for path in paths) else INVALID_SPEC


def _stored(kind: ResourceType, obj: Object, problem: Fault | None) -> dict[str, Any]:
    return {
        "subject": Subject.of(kind, obj),
        "created": epoch(obj["metadata"].get("creationTimestamp")),
        "problem": problem,
        "status": stored_status(obj),
    }


def serves(server: Server, pod: Pod) -> bool:
    """Return whether a pod of the server's namespace is one of its pods, and running and ready."""
    labels = server.labels.items()
    return bool(labels) and labels <= pod.labels.items() and pod.phase == "Running" and pod.ready


def role_of(server: Server, pod: Pod) -> tuple[str, str]:
    """Return the group of a server's pod and the role in it, empty where it has none."""
    groups = server.groups
    group = pod.labels.get(groups.key, "") if groups is not None else ""
    if groups is not None and group:
        # A pod that carries the labels of both is a decode pod.
        for role, labels in ((DECODE, groups.decode), (PREFILL, groups.prefill)):
            if labels and labels.items() <= pod.labels.items():
                return group, role
    return group, ""


def labels_of(pod: Pod) -> tuple[tuple[str, str, str], ...]:
    """Index of pods: namespace and every label."""
    return tuple((pod.key.namespace, name, value) for name, value in pod.labels.items())
