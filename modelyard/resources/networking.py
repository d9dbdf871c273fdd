"""``networking.volcano.sh/v1alpha1``: ModelRoute and ModelServer, which say how requests reach engines.

Source: the published networking.volcano.sh/v1alpha1 reference. The statuses, empty there, carry conditions here.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, TypeVar

import re2
from pydantic import AfterValidator, Field

from modelyard.resources.base import AGE, Column, Part, Resource
from modelyard.resources.duration import Duration
from modelyard.resources.fields import Int32, Int64, NonNegativeDuration, optional, unique
from modelyard.resources.references import ConditionedStatus
from modelyard.resources.rules import Rule, one_of, unless

LABEL_VALUE = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
_LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]",
    re.ASCII,
)
_LONGEST_LABEL_KEY = 317
_LONGEST_SHOWN = 60


_Keys = TypeVar("_Keys", str, dict[str, str])


def _is_legal(key: str) -> bool:
    name = key.rpartition("/")[2]
    return _LABEL_KEY.fullmatch(key) is not None and len(key) <= _LONGEST_LABEL_KEY and len(name) <= 63


def _legal(labels: _Keys) -> _Keys:
    keys = [labels] if isinstance(labels, str) else labels
    illegal = [key for key in keys if not _is_legal(key)]
    if illegal:
        shown = ", ".join(repr(key if len(key) <= _LONGEST_SHOWN else f"{key[:_LONGEST_SHOWN]}...") for key in illegal)
        raise ValueError(
            f"not legal in Kubernetes as a label key: {shown}; use at most 63 letters, digits, '-', '_' and '.', with a"
            " letter or digit first and last, after an optional DNS prefix and '/'"
        )
    return labels


LabelKey = Annotated[str, AfterValidator(_legal)]
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)]
Labels = Annotated[dict[str, LabelValue], AfterValidator(_legal)]
MatchLabels = Annotated[dict[str, str], AfterValidator(_legal)]
"""Labels to look for: a value that is not legal is found nowhere."""


_LONGEST_REGEX = 1024
_RE2 = re2.Options()
_RE2.log_errors = False
_RE2.max_mem = 1 << 20  # the last 128 are kept, and tenants write them


def _compiles(text: str | None) -> bool:
    """Whether RE2, which matches in linear time, takes this regular expression."""
    if text is None:
        return True
    if len(text) > _LONGEST_REGEX:
        return False
    try:
        re2.compile(text, _RE2)
    except (re2.error, UnicodeEncodeError):
        return False
    return True


class StringMatch(Part):
    """How to compare one string. At most one of the three; none matches anything."""

    schema_extras: ClassVar = {"maxProperties": 1}
    invariants: ClassVar = (
        Rule(
            "more than one of exact, prefix and regex is set",
            "keep the one that is meant",
            lambda m: sum(v is not None for v in (m.exact, m.prefix, m.regex)) <= 1,
            None,  # maxProperties says the same
        ),
        Rule(
            f"not a regular expression (RE2, at most {_LONGEST_REGEX} characters)",
            "correct it, or use exact or prefix",
            lambda m: _compiles(m.regex),
            None,  # the cost of matching by an unbounded expression has no useful limit
            "regex",
        ),
    )

    exact: str | None = optional("Matches when the value is exactly this.")
    prefix: str | None = optional("Matches when the value begins with this.")
    regex: str | None = optional("Matches when this regular expression (RE2) is found in the value.")


class BodyMatch(Part):
    """What to compare in the request's JSON body."""

    model: str | None = optional("The model or LoRA adapter a request asks for. Default: any model matches.")


class ModelMatch(Part):
    """Which requests a rule takes. All given conditions must hold."""

    headers: dict[str, StringMatch] | None = optional(
        "Conditions on request headers, by header name; all must hold. Default: any headers."
    )
    uri: StringMatch | None = optional("Condition on the request's path. Default: any path.")
    body: BodyMatch | None = optional("Condition on the request's body. Default: any body.")


class TargetModel(Part):
    """Where a rule sends requests to."""

    schema_extras: ClassVar = unless(
        {"oneOf": [{"required": ["modelServerName"]}, {"required": ["externalModelProviderName"]}]}
    )
    invariants: ClassVar = (one_of("modelServerName", "externalModelProviderName", "name the ModelServer to send to"),)

    model_server_name: str | None = optional(
        "Name of the ModelServer to send to, in the namespace of the route.", min_length=1
    )
    external_model_provider_name: str | None = optional(
        "Name of an ExternalModelProvider to send to. Kept, without effect.", min_length=1
    )
    weight: Int32 = Field(
        100,
        ge=0,
        le=100,
        description="Share of the requests relative to the other targets of the rule (not a percentage). Default: 100.",
    )


class RouteRule(Part):
    """One line of the routing table."""

    invariants: ClassVar = (
        Rule(
            "the weights of all targets are 0, so no request could be sent anywhere",
            "give at least one target a weight above 0, or remove the rule",
            lambda r: not r.target_models or any(target.weight > 0 for target in r.target_models),
            "self.targetModels.exists(t, !has(t.weight) || t.weight > 0)",
            "targetModels",
        ),
    )

    name: str | None = optional("A label for people.")
    model_match: ModelMatch | None = optional("Which requests this rule takes. Default: all that reach it.")
    target_models: list[TargetModel] = Field(
        min_length=1, max_length=16, description="Where to send the requests; one target is drawn by weight."
    )


class RedisConfig(Part):
    """The Redis server that shared rate limits are counted in."""

    address: str = Field(
        pattern=r"^(\[[^\[\]\s]+\]|[^\[\]\s:]+):[0-9]{1,5}$",
        description="Address of the server as host:port; an IPv6 address in brackets.",
    )


class GlobalRateLimit(Part):
    """Rate limits shared by all router replicas."""

    redis: RedisConfig = Field(description="Where the shared counters are kept.")


class RateLimit(Part):
    """A budget of tokens for one route."""

    input_tokens_per_unit: Int64 | None = optional("Most prompt tokens per time unit. Default: no limit.", ge=1)
    output_tokens_per_unit: Int64 | None = optional("Most generated tokens per time unit. Default: no limit.", ge=1)
    unit: Literal["second", "minute", "hour", "day", "month"] = Field(
        "second", description="The time unit of both limits. Default: second."
    )
    global_: GlobalRateLimit | None = optional(
        "Count over all router replicas together. Default: each replica counts for itself.", alias="global"
    )


class ParentReference(Part):
    """A Gateway, as in the Gateway API. Newer than the published reference."""

    group: str = Field(
        "gateway.networking.k8s.io", description="API group of the parent. Default: gateway.networking.k8s.io."
    )
    kind: str = Field("Gateway", description="Kind of the parent. Default: Gateway.")
    namespace: str | None = optional("Namespace of the parent. Default: that of the route.")
    name: str = Field(min_length=1, description="Name of the parent.")
    section_name: str | None = optional("One of the parent's listeners. Default: all.")
    port: Int32 | None = optional("One of the parent's ports. Default: all.", ge=1, le=65535)


class ModelRouteSpec(Part):
    """Which model names are served, and by which ModelServers."""

    schema_extras: ClassVar = unless(
        {
            "anyOf": [
                {"required": ["modelName"], "properties": {"modelName": {"minLength": 1}}},
                {"required": ["loraAdapters"], "properties": {"loraAdapters": {"minItems": 1}}},
            ]
        }
    )
    invariants: ClassVar = (
        Rule(
            "modelName and loraAdapters are both empty",
            "name the model, or at least one adapter, that this route serves",
            lambda s: bool(s.model_name or s.lora_adapters),
            "(has(self.modelName) && self.modelName != '') || (has(self.loraAdapters) && size(self.loraAdapters) > 0)",
        ),
        Rule(
            "an adapter has the same name as the model",
            "remove it from loraAdapters",
            lambda s: s.model_name is None or s.model_name not in (s.lora_adapters or ()),
            "!has(self.modelName) || !has(self.loraAdapters) || !(self.modelName in self.loraAdapters)",
            "loraAdapters",
        ),
        Rule(
            "modelName cannot be changed",
            "create a second route and delete this one",
            None,
            "!has(oldSelf.modelName) || !has(self.modelName) || self.modelName == oldSelf.modelName",
            "modelName",
        ),
    )

    model_name: str | None = optional(
        "The model name clients send: a base model, a LoRA adapter or an invented name."
        " May be absent only when loraAdapters is given. Cannot be changed later.",
        max_length=256,
    )
    lora_adapters: list[Annotated[str, Field(min_length=1, max_length=256)]] | None = optional(
        "Names of LoRA adapters that clients may send as the model name and this route serves too.",
        max_length=10,
        json_schema_extra=unique(),
    )
    parent_refs: list[ParentReference] | None = optional(
        "The Gateways that requests must have come through. Kept, without effect."
    )
    rules: list[RouteRule] = Field(
        max_length=16,
        description="Tried in order; the first that takes the request decides. With none left the answer is 404.",
    )
    rate_limit: RateLimit | None = optional("Budget of tokens of this route. Default: no limit.")


class ModelRouteStatus(ConditionedStatus):
    """Whether the route is accepted and its targets exist."""


class ModelRoute(Resource):
    """Which ModelServers serve a model name. Source: networking.volcano.sh/v1alpha1."""

    api_version: ClassVar = "networking.volcano.sh/v1alpha1"
    plural: ClassVar = "modelroutes"
    columns: ClassVar = (
        Column("Model", ".spec.modelName"),
        Column("Adapters", ".spec.loraAdapters", priority=1),
        Column("Accepted", '.status.conditions[?(@.type=="Accepted")].status'),
        Column("Resolved", '.status.conditions[?(@.type=="ResolvedRefs")].status'),
        Column("Conflicted", '.status.conditions[?(@.type=="Conflicted")].status'),
        Column("Conflict", '.status.conditions[?(@.type=="Conflicted")].message', priority=1),
        AGE,
    )

    spec: ModelRouteSpec = Field(description="What is served and by whom.")
    status: ModelRouteStatus | None = optional("What Modelyard found. Written by Modelyard.")


class PDGroup(Part):
    """How prefill and decode pods find each other."""

    group_key: LabelKey = Field(
        min_length=1, description="Label key; a prefill and a decode pod may be paired when its values are equal."
    )
    prefill_labels: Labels = Field(min_length=1, description="Labels that mark the prefill pods.")
    decode_labels: Labels = Field(min_length=1, description="Labels that mark the decode pods.")


class WorkloadSelector(Part):
    """Which pods serve the model."""

    match_labels: Labels = Field(
        min_length=1, description="Labels every serving pod carries. Pods are sought in the namespace of this object."
    )
    pd_group: PDGroup | None = optional(
        "Tells prefill pods from decode pods; its presence turns on disaggregated serving."
    )


class WorkloadPort(Part):
    """Where the engine listens."""

    port: Int32 = Field(ge=1, le=65535, description="Port of the pods on which the engine serves.")
    protocol: Literal["http", "https"] = Field("http", description="Protocol the engine speaks there. Default: http.")


MOST_RETRIES = 20
"""Most retries of one request: without a pause between them, more would keep a router from all other requests."""


class Retry(Part):
    """What to do when an engine does not answer."""

    attempts: Int32 | None = optional(
        f"Number of retries of a failed request, at most {MOST_RETRIES} times. Default: 0.", ge=0
    )
    retry_interval: NonNegativeDuration = Field(
        Duration("100ms"), description="Shortest time to wait before each retry. Default: 100ms."
    )


class TrafficPolicy(Part):
    """Timeout and retries towards the engine."""

    timeout: NonNegativeDuration | None = optional(
        "Time within which the response to each attempt must begin: a stream with its first token, any other response"
        " when it is complete. Default: no limit."
    )
    retry: Retry | None = optional("Retries of failed requests. Default: up to four, each on another pod, at once.")


class KVConnectorSpec(Part):
    """How the KV cache travels from prefill to decode pods."""

    type: Literal["http", "lmcache", "nixl", "mooncake"] = Field(
        "http", description="The transfer mechanism; used with pdGroup only. Default: http."
    )


ENGINE = "modelyard.dev/inference-engine"
"""Annotation of a ModelServer whose engine is none of those that ``inferenceEngine`` can name: only ``MindIE``."""
MINDIE = "MindIE"
METRICS_PATH = "modelyard.dev/metrics-path"
"""Annotation of a ModelServer whose pods show their metrics elsewhere than at ``/metrics``."""


class ModelServerSpec(Part):
    """The pods that serve one model, and how to talk to them."""

    model: str | None = optional(
        "The name the engine knows the model by; replaces the requested one unless that is a LoRA adapter.",
        max_length=256,
    )
    inference_engine: Literal["vLLM", "SGLang"] = Field(
        description="The engine; decides metric names, default ports and the disaggregation protocol."
    )
    workload_selector: WorkloadSelector = Field(description="Which pods serve the model.")
    workload_port: WorkloadPort | None = optional(
        "Where the engine listens. Default: http on 8000 (vLLM) or 30000 (SGLang)."
    )
    traffic_policy: TrafficPolicy | None = optional("Timeout and retries of requests to the engine.")
    kv_connector: KVConnectorSpec | None = optional(
        "How the KV cache travels in disaggregated serving; without effect when pdGroup is absent."
    )


class ModelServerStatus(ConditionedStatus):
    """Whether pods are there to serve."""

    ready_pods: Int32 | None = optional("Selected pods that run and are ready.", ge=0)
    prefill_pods: Int32 | None = optional("Ready prefill pods that are in a group. Absent without pdGroup.", ge=0)
    decode_pods: Int32 | None = optional("Ready decode pods that are in a group. Absent without pdGroup.", ge=0)
    complete_groups: Int32 | None = optional(
        "Groups with a ready prefill pod and a ready decode pod. Absent without pdGroup.", ge=0
    )


class ModelServer(Resource):
    """A set of pods that serve one model. Source: networking.volcano.sh/v1alpha1."""

    api_version: ClassVar = "networking.volcano.sh/v1alpha1"
    plural: ClassVar = "modelservers"
    columns: ClassVar = (
        Column("Model", ".spec.model"),
        Column("Engine", ".spec.inferenceEngine"),
        Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
        Column("Pods", ".status.readyPods", "integer"),
        Column("Groups", ".status.completeGroups", "integer", priority=1),
        Column("Why", '.status.conditions[?(@.type=="Ready")].message', priority=1),
        AGE,
    )

    spec: ModelServerSpec = Field(description="Which pods, and how to talk to them.")
    status: ModelServerStatus | None = optional("What Modelyard found. Written by Modelyard.")
