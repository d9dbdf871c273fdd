"""Kubernetes objects of the demonstration: engines, their autoscaling resources and configuration; flow parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from deployments.demo.scenario import MODEL, PORT, Copy, DemoVariant, Form, Scenario
from deployments.profile import ROOT

POLICY = "llama"
PREREQUISITES = ROOT / "config" / "samples" / "local" / "onboarding.yaml"


def manifest(
    api_version: str, kind: str, copy: Copy, name: str, spec: dict[str, Any], **metadata: Any
) -> dict[str, Any]:
    """Return an object in the namespace of a fleet."""
    metadata = {"name": name, "namespace": copy.namespace, **metadata}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def target(variant: DemoVariant) -> dict[str, str]:
    """Return the reference to a variant's Deployment."""
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": variant.name}


def deployment(variant: DemoVariant, copy: Copy, scenario: Scenario) -> dict[str, Any]:
    """Return a Deployment of simulated engines on nodes with the variant's accelerator."""
    labels = {"app": variant.name}
    scrape = {"scrape": "true", "port": str(PORT), "path": "/metrics"}
    template = {
        "metadata": {
            "labels": {**labels, "modelyard.dev/model": "llama-3.3-70b"},
            "annotations": {f"prometheus.io/{key}": value for key, value in scrape.items()},
        },
        "spec": {
            "nodeSelector": {"nvidia.com/gpu.product": variant.product},
            "terminationGracePeriodSeconds": 30,
            "containers": [engine(variant, scenario, f"--model={MODEL}")],
        },
    }
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return manifest("apps/v1", "Deployment", copy, variant.name, spec, labels=labels)


def engine(variant: DemoVariant, scenario: Scenario, *model: str) -> dict[str, Any]:
    """Return the container of a simulated engine."""
    options = {
        "port": PORT,
        "startup-delay": scenario.startup_seconds,
        "time-compression": scenario.compression,
        **dict(zip(("alpha", "beta", "gamma", "delta"), (*variant.decode, *variant.prefill), strict=True)),
        "kv-cache-tokens": variant.kv_tokens,
        "max-num-seqs": 2 * variant.batch,
        "max-model-len": 32768,
    }
    return {
        "name": "engine",
        "image": "modelyard.dev/simulated-engine:latest",
        "args": [*model, *(f"--{name}={value}" for name, value in options.items())],
        "ports": [{"containerPort": PORT, "name": "http"}],
        "resources": {"limits": {"nvidia.com/gpu": str(variant.gpus)}},
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 1, "failureThreshold": 1},
        # Keeps answering until routers and clients have observed that the pod terminates.
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "1"]}}},
    }


def before_onboarding(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Yield the sample prerequisites of an onboarding, with the runtimes' engines replaced by the scenario's."""
    variants = {f"on-{variant.accelerator.lower()}": variant for variant in scenario.variants}
    for document in yaml.safe_load_all(PREREQUISITES.read_text(encoding="utf-8")):
        if variant := variants.get(document["metadata"]["name"]):
            runner = engine(variant, scenario, "--model=$(MODEL_PATH)", "--served-model-name={{.Name}}")
            document["spec"]["engineConfig"]["runner"] = runner
        yield document


def autoscaling(copy: Copy, scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Yield the objects that scale a pair of Deployments."""
    if copy.form is Form.POLICY:
        yield policy(copy, scenario)
        yield binding(copy, scenario)
    else:
        yield from (variant_autoscaling(variant, copy) for variant in scenario.variants)


def variant_autoscaling(variant: DemoVariant, copy: Copy) -> dict[str, Any]:
    """Return a VariantAutoscaling in saturation form."""
    spec = {"scaleTargetRef": target(variant), "modelID": MODEL, "variantCost": variant.cost}
    more = {
        "labels": {"inference.optimization/acceleratorName": variant.accelerator},
        "annotations": {"modelyard.dev/max-replicas": str(variant.max_replicas)},
    }
    return manifest("llmd.ai/v1alpha1", "VariantAutoscaling", copy, variant.name, spec, **more)


def policy(copy: Copy, scenario: Scenario) -> dict[str, Any]:
    """Return a policy that keeps running requests and KV use at target values; scales up at once and down slowly."""
    minute, window = (f"{round(seconds / scenario.compression * 1000)}ms" for seconds in (60, 180))
    panic = {"period": minute, "percent": 200, "panicThresholdPercent": 200, "panicModeHold": minute}
    spec = {
        "tolerancePercent": 10,
        "metrics": [
            {"metricName": "vllm:num_requests_running", "targetValue": str(scenario.variants[0].batch // 2)},
            {"metricName": "vllm:kv_cache_usage_perc", "targetValue": "700m"},
        ],
        "behavior": {
            "scaleUp": {"stablePolicy": {"instances": 1, "percent": 100, "period": minute}, "panicPolicy": panic},
            "scaleDown": {"instances": 1, "percent": 50, "period": minute, "stabilizationWindow": window},
        },
    }
    return manifest("registry.volcano.sh/v1alpha1", "AutoscalingPolicy", copy, POLICY, spec)


def binding(copy: Copy, scenario: Scenario) -> dict[str, Any]:
    """Return a binding that shares one total among both Deployments, cheapest first."""
    params = [
        {
            "target": {"targetRef": target(variant), "metricEndpoint": {"uri": "/metrics", "port": PORT}},
            "minReplicas": 1,
            "maxReplicas": variant.max_replicas,
            "cost": int(float(variant.cost)),
        }
        for variant in scenario.variants
    ]
    optimizer = {"costExpansionRatePercent": 200, "params": params}
    spec = {"policyRef": {"name": POLICY}, "optimizerConfiguration": optimizer}
    return manifest("registry.volcano.sh/v1alpha1", "AutoscalingPolicyBinding", copy, POLICY, spec)


def flow_parameters(scenario: Scenario, prometheus_url: str) -> dict[str, Any]:
    """Return the parameters of the deployed flow for compressed time."""
    return {
        "interval_seconds": round(scenario.tick_seconds / scenario.compression, 3),
        "shift_seconds": scenario.shift_seconds,
        "prometheus_url": prometheus_url,
        "namespaces": scenario.namespaces,
        "time_compression": scenario.compression,
    }
