"""Kubernetes objects of the demonstration: engines, their autoscaling resources and configuration; flow parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deployments.demo.scenario import MODEL, PORT, Copy, DemoVariant, Form, Scenario

POLICY = "llama"


def deployment(variant: DemoVariant, copy: Copy, scenario: Scenario) -> dict[str, Any]:
    """Return a Deployment of simulated engines on nodes with the variant's accelerator."""
    labels = {"app": variant.name}
    container = engine(variant, scenario, f"--model={MODEL}")
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": variant.name, "namespace": copy.namespace, "labels": labels},
        "spec": {
            "replicas": variant.start_replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {
                    "labels": {**labels, "modelyard.dev/model": "llama-3.3-70b"},
                    "annotations": {
                        "prometheus.io/scrape": "true",
                        "prometheus.io/port": str(PORT),
                        "prometheus.io/path": "/metrics",
                    },
                },
                "spec": {
                    "nodeSelector": {"nvidia.com/gpu.product": variant.product},
                    "terminationGracePeriodSeconds": 30,
                    "containers": [container],
                },
            },
        },
    }


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


def before_onboarding(namespace: str, scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Yield what an onboarding needs: a namespace, a claim for benchmark results, a runtime per accelerator."""
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "results", "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    serves = {
        "modelFormat": {"name": "safetensors", "version": "1.0.0"},
        "modelFramework": {"name": "transformers", "version": "4.43.0"},
        "modelArchitecture": "MistralForCausalLM",
        "autoSelect": True,
    }
    for variant in scenario.variants:
        yield {
            "apiVersion": "ome.io/v1beta1",
            "kind": "ServingRuntime",
            "metadata": {"name": f"on-{variant.accelerator.lower()}", "namespace": namespace},
            "spec": {
                "protocolVersions": ["openAI"],
                "supportedModelFormats": [serves],
                "engineConfig": {
                    "nodeSelector": {"nvidia.com/gpu.product": variant.product},
                    "runner": engine(variant, scenario, "--model=$(MODEL_PATH)", "--served-model-name={{.Name}}"),
                },
            },
        }


def autoscaling(copy: Copy, scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Yield the objects that scale a pair of Deployments."""
    if copy.form is Form.POLICY:
        yield policy(copy, scenario)
        yield binding(copy, scenario)
    else:
        yield from (variant_autoscaling(variant, copy) for variant in scenario.variants)


def variant_autoscaling(variant: DemoVariant, copy: Copy) -> dict[str, Any]:
    """Return a VariantAutoscaling in saturation form."""
    return {
        "apiVersion": "llmd.ai/v1alpha1",
        "kind": "VariantAutoscaling",
        "metadata": {
            "name": variant.name,
            "namespace": copy.namespace,
            "labels": {"inference.optimization/acceleratorName": variant.accelerator},
            "annotations": {"modelyard.dev/max-replicas": str(variant.max_replicas)},
        },
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": variant.name},
            "modelID": MODEL,
            "variantCost": variant.cost,
        },
    }


def policy(copy: Copy, scenario: Scenario) -> dict[str, Any]:
    """Return a policy that keeps running requests and KV use at target values; scales up at once and down slowly."""

    def seconds(trace_seconds: float) -> str:
        return f"{round(trace_seconds / scenario.compression * 1000)}ms"

    return {
        "apiVersion": "registry.volcano.sh/v1alpha1",
        "kind": "AutoscalingPolicy",
        "metadata": {"name": POLICY, "namespace": copy.namespace},
        "spec": {
            "tolerancePercent": 10,
            "metrics": [
                {"metricName": "vllm:num_requests_running", "targetValue": str(scenario.variants[0].batch // 2)},
                {"metricName": "vllm:kv_cache_usage_perc", "targetValue": "700m"},
            ],
            "behavior": {
                "scaleUp": {
                    "stablePolicy": {"instances": 1, "percent": 100, "period": seconds(60)},
                    "panicPolicy": {
                        "period": seconds(60),
                        "percent": 200,
                        "panicThresholdPercent": 200,
                        "panicModeHold": seconds(60),
                    },
                },
                "scaleDown": {
                    "instances": 1,
                    "percent": 50,
                    "period": seconds(60),
                    "stabilizationWindow": seconds(180),
                },
            },
        },
    }


def binding(copy: Copy, scenario: Scenario) -> dict[str, Any]:
    """Return a binding that shares one total among both Deployments, cheapest first."""
    return {
        "apiVersion": "registry.volcano.sh/v1alpha1",
        "kind": "AutoscalingPolicyBinding",
        "metadata": {"name": POLICY, "namespace": copy.namespace},
        "spec": {
            "policyRef": {"name": POLICY},
            "optimizerConfiguration": {
                "costExpansionRatePercent": 200,
                "params": [
                    {
                        "target": {
                            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": variant.name},
                            "metricEndpoint": {"uri": "/metrics", "port": PORT},
                        },
                        "minReplicas": 1,
                        "maxReplicas": variant.max_replicas,
                        "cost": int(float(variant.cost)),
                    }
                    for variant in scenario.variants
                ],
            },
        },
    }


def flow_parameters(scenario: Scenario, prometheus_url: str) -> dict[str, Any]:
    """Return the parameters of the deployed flow for compressed time."""
    return {
        "interval_seconds": round(scenario.tick_seconds / scenario.compression, 3),
        "shift_seconds": scenario.shift_seconds,
        "prometheus_url": prometheus_url,
        "namespaces": scenario.namespaces,
        "time_compression": scenario.compression,
    }
