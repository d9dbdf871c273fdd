"""Rich Models, and the objects that they are rendered to."""

from __future__ import annotations

from typing import Any

from field_mutations import InvalidObject, Scenario
from kthena_models import LWS, a_backend, a_model, a_worker, render_model

from modelyard.workloads.rendering.values import Refused, canonical

PREFERRED = [{"weight": 1, "preference": {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}}]
AFFINITY = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": PREFERRED}}
LIMITS = {"limits": {"nvidia.com/gpu": "2"}}
STABLE = {
    "instances": 3,
    "percent": 60,
    "period": "45s",
    "selectPolicy": "And",
    "stabilizationWindow": "20s",
}
POLICY = {
    "tolerancePercent": 15,
    "metrics": [{"metricName": "vllm:num_requests_waiting", "targetValue": "7"}],
    "behavior": {
        "scaleUp": {
            "stablePolicy": STABLE,
            "panicPolicy": {"percent": 300, "period": "5s", "panicThresholdPercent": 150, "panicModeHold": "90s"},
        },
        "scaleDown": STABLE,
    },
}
MATCH = {
    "headers": {"x-exact": {"exact": "a"}, "x-prefix": {"prefix": "b"}, "x-regex": {"regex": "c"}},
    "uri": {"prefix": "/v1/chat"},
    "body": {"model": "llama"},
}

SHARED = a_model(
    a_backend(
        name="fast",
        cacheURI="pvc://cache",
        env=[{"name": "HF_ENDPOINT", "value": "https://hub.example.com"}],
        envFrom=[{"secretRef": {"name": "hub"}}],
        minReplicas=1,
        maxReplicas=6,
        scalingCost=30,
        routeWeight=70,
        scaleToZeroGracePeriod="90s",
        workers=[a_worker(replicas=2, resources=LIMITS, affinity=AFFINITY, config={"max_model_len": 8192})],
        loraAdapters=[{"name": "legal", "artifactURL": "hf://acme/legal"}],
    ),
    a_backend(name="slow", minReplicas=0, maxReplicas=4, scalingCost=10, scaleToZeroGracePeriod="60s"),
    client_name="llama",
    owner="team-chat",
    autoscalingPolicy=POLICY,
    costExpansionRatePercent=150,
    modelMatch={name: MATCH[name] for name in ("headers", "uri")},
)
"""Two backends that one policy scales."""
OWN = a_model(
    a_backend(
        "vLLMDisaggregated",
        minReplicas=1,
        maxReplicas=4,
        workers=[a_worker("prefill", replicas=1), a_worker("decode", replicas=2, config={"port": 9000})],
        autoscalingPolicy=POLICY,
    ),
    modelMatch=MATCH,
)
OWN["spec"]["backends"][0]["workers"][0]["config"] = {"port": 9000}
"""A backend whose roles its own policy scales."""
GROUPED = a_model(
    a_backend(
        "SGLang",
        minReplicas=2,
        maxReplicas=2,
        workers=[a_worker(pods=2, image="registry.example.com/sglang:custom")],
    ),
    modelMatch={"uri": {"regex": "^/v1/(chat|embeddings)"}},
)
"""A backend of groups, as a cluster with LeaderWorkerSet has them."""
COORDINATED = a_model(
    a_backend(
        "MindIEDisaggregated",
        workers=[
            a_worker(role, image="registry.example.com/mindie:custom")
            for role in ("prefill", "decode", "coordinator", "controller")
        ],
    )
)
"""A backend with every role."""
IDLE = a_model(
    a_backend(minReplicas=0, maxReplicas=3, scaleToZeroGracePeriod="45s", autoscalingPolicy=POLICY),
    modelMatch={"uri": {"exact": "/v1/chat/completions"}},
)
"""A backend that goes to zero."""


def model_outcome(obj: dict[str, Any]) -> list[str]:
    """Render the Model's objects."""
    result = render_model(obj, LWS)
    if isinstance(result, Refused):
        raise InvalidObject(str(result))
    return sorted(f"{child.component} {canonical(child.body)}" for child in result.children)


OTHERS = {
    "spec.backends[].name": "renamed",
    "spec.backends[].type": "SGLang",
    "spec.backends[].modelURI": "hf://acme/other",
    "spec.backends[].minReplicas": 2,
    "spec.backends[].maxReplicas": 5,
    "spec.backends[].scalingCost": 77,
    "spec.backends[].workers[].type": "coordinator",
    "spec.backends[].loraAdapters[].name": "other",
    "spec.backends[].loraAdapters[].artifactURL": "hf://acme/other",
    "spec.autoscalingPolicy.metrics[].metricName": "queue",
    "spec.autoscalingPolicy.metrics[].targetValue": "8",
    "spec.autoscalingPolicy.behavior.scaleUp.panicPolicy.period": "7s",
}
OTHERS |= {path.replace("spec.", "spec.backends[].", 1): other for path, other in OTHERS.items() if "Policy" in path}
OTHERS["spec.backends[].scaleToZeroGracePeriod"] = "5m"
MODELS = {"Model": tuple(Scenario(obj, model_outcome, OTHERS) for obj in (SHARED, OWN, GROUPED, COORDINATED, IDLE))}
