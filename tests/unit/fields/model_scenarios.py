"""Rich Models, and the objects that they are rendered to."""

from __future__ import annotations

from typing import Any

from kthena_models import LWS, a_backend, a_model, a_worker, render_model

from modelyard.workloads.values import Refused, canonical

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
    modelMatch=MATCH,
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
        workers=[a_worker(pods=2, image="lmsysorg/sglang:v0.5.9")],
    ),
    modelMatch={"uri": {"regex": "^/v1/(chat|embeddings)"}},
)
"""A backend of groups, as a cluster with LeaderWorkerSet has them."""
IDLE = a_model(
    a_backend(minReplicas=0, maxReplicas=3, scaleToZeroGracePeriod="45s", autoscalingPolicy=POLICY),
    modelMatch={"uri": {"exact": "/v1/chat/completions"}},
)
"""A backend that goes to zero."""


def model_outcome(obj: dict[str, Any]) -> list[str]:
    """Render the Model's objects."""
    found = render_model(obj, LWS)
    if isinstance(found, Refused):
        return [str(found)]
    return sorted(f"{child.component} {canonical(child.body)}" for child in found.children)
