"""What the demonstration deploys and replays: one model on a cheap and an expensive accelerator, one busy hour.

Everything runs ``compression`` times faster than life: engines, traffic, ticks, scrapes and every policy duration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NAMESPACE = "demo"
CONTROLLER_NAMESPACE = "workload-variant-autoscaler-system"
MODEL = "meta-llama/Llama-3.3-70B-Instruct"
PORT = 8000


@dataclass(frozen=True)
class DemoVariant:
    """One way to serve the model."""

    name: str
    accelerator: str
    product: str
    gpus: int
    cost: str
    start_replicas: int
    max_replicas: int
    engine_args: tuple[str, ...]


# A 70-billion-parameter model in FP8. α: reading the weights at the cards' joint bandwidth; δ: 140 GFLOP per prompt
# token at a realistic share of peak. The KV caches are made small, so that one real hour needs a handful of replicas.
VARIANTS = (
    DemoVariant(
        name="llama-l40s",
        accelerator="L40S",
        product="NVIDIA-L40S-48GB",
        gpus=4,
        cost="4.0",
        start_replicas=1,
        max_replicas=3,
        engine_args=(
            *("--alpha", "40", "--beta", "0.3", "--gamma", "30", "--delta", "0.23"),
            *("--kv-cache-tokens", "48000", "--max-num-seqs", "64", "--max-model-len", "32768"),
        ),
    ),
    DemoVariant(
        name="llama-h100",
        accelerator="H100",
        product="NVIDIA-H100-SXM5-80GB",
        gpus=2,
        cost="10.0",
        start_replicas=1,
        max_replicas=4,
        engine_args=(
            *("--alpha", "18", "--beta", "0.15", "--gamma", "20", "--delta", "0.12"),
            *("--kv-cache-tokens", "64000", "--max-num-seqs", "96", "--max-model-len", "32768"),
        ),
    ),
)


@dataclass(frozen=True)
class Scenario:
    """Times are those of the trace, that is before compression, where nothing else is said."""

    compression: float = 10.0
    start_minute: float = 14.0
    minutes: float = 36.0
    quiet_minutes: float = 6.0
    rate: float = 1.0
    tick_seconds: float = 15.0
    startup_seconds: float = 90.0
    shift_seconds: float = 60.0
    """Wall seconds of one run of the flow."""
    variants: tuple[DemoVariant, ...] = VARIANTS


def namespace(name: str) -> dict[str, Any]:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def deployment(variant: DemoVariant, scenario: Scenario) -> dict[str, Any]:
    """A Deployment of simulated engines on nodes with the variant's accelerator."""
    labels = {"app": variant.name}
    args = [
        *("--model", MODEL),
        *("--startup-delay", f"{scenario.startup_seconds:g}"),
        *("--time-compression", f"{scenario.compression:g}"),
        *variant.engine_args,
    ]
    container = {
        "name": "engine",
        "image": "modelyard.dev/simulated-engine:latest",
        "args": args,
        "ports": [{"containerPort": PORT, "name": "http"}],
        "resources": {"limits": {"nvidia.com/gpu": str(variant.gpus)}},
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 1, "failureThreshold": 1},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": variant.name, "namespace": NAMESPACE, "labels": labels},
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


def variant_autoscaling(variant: DemoVariant) -> dict[str, Any]:
    """The VariantAutoscaling in saturation form."""
    return {
        "apiVersion": "llmd.ai/v1alpha1",
        "kind": "VariantAutoscaling",
        "metadata": {
            "name": variant.name,
            "namespace": NAMESPACE,
            "labels": {"inference.optimization/acceleratorName": variant.accelerator},
            "annotations": {"modelyard.dev/max-replicas": str(variant.max_replicas)},
        },
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": variant.name},
            "modelID": MODEL,
            "variantCost": variant.cost,
        },
    }


def flow_parameters(scenario: Scenario, prometheus_url: str) -> dict[str, Any]:
    """The parameters of the deployed flow, so that it keeps up with compressed time."""
    return {
        "interval_seconds": round(scenario.tick_seconds / scenario.compression, 3),
        "shift_seconds": scenario.shift_seconds,
        "loop": {
            "prometheus_url": prometheus_url,
            "namespaces": [NAMESPACE],
            "time_compression": scenario.compression,
        },
    }
