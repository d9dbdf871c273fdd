"""Scenario of the main demonstration: one model, a cheap and an expensive accelerator, a busy stretch of real traffic.

Engines, traffic, ticks, scrapes and every policy duration run ``compression`` times faster than in production.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

CONTROLLER_NAMESPACE = "workload-variant-autoscaler-system"
PORT = 8000
NAMESPACE, SERVICE = "shop", "chat"
SLO_TTFT = 2500
SLO_ITL = 75
"""Targets in milliseconds."""
FLOOR = 3
"""Minimum replicas of the service, whose full load begins at once."""


class DemoVariant(NamedTuple):
    """One way to serve the model. ``decode`` is (alpha, beta) and ``prefill`` (gamma, delta), in milliseconds.

    ``batch`` is how many requests of this traffic fit the KV cache at once, as the performance profile states.
    """

    accelerator: str
    product: str
    gpus: int
    cost: str
    max_replicas: int
    decode: tuple[float, float]
    prefill: tuple[float, float]
    kv_tokens: int
    batch: int

    @property
    def name(self) -> str:
        return f"llama-{self.accelerator.lower()}"


# A 70-billion-parameter model in FP8. α: reading the weights at the cards' joint bandwidth; δ: 140 GFLOP per prompt
# token at a realistic share of peak. The KV caches are made small, so that one real hour needs a handful of replicas.
VARIANTS = (
    DemoVariant("L40S", "NVIDIA-L40S-48GB", 4, "4.0", 3, (40, 0.3), (30, 0.23), kv_tokens=48000, batch=32),
    DemoVariant("H100", "NVIDIA-H100-SXM5-80GB", 2, "10.0", 4, (18, 0.15), (20, 0.12), kv_tokens=64000, batch=44),
)


@dataclass(frozen=True)
class Scenario:
    """Times are times of the trace, before compression, unless stated otherwise.

    The stretch rises from 5.7 to 8.4 requests/s, falls to 5.2, and four quiet minutes follow.
    """

    compression: float = 10.0
    start_minute: float = 21.0
    minutes: float = 18.0
    quiet_minutes: float = 4.0
    rate: float = 1.0
    tick_seconds: float = 15.0
    startup_seconds: float = 90.0
    shift_seconds: float = 120.0
    """Wall seconds of one run of the flow; twice the interval between starts."""

    @property
    def longest_gap(self) -> float:
        """Minutes of the trace between two samples that still count as observed: five wall seconds."""
        return 5 * self.compression / 60

    def flow_parameters(self, prometheus_url: str, *namespaces: str) -> dict[str, Any]:
        """Return the parameters of the deployed flow ``autoscale`` for compressed time."""
        return {
            "interval_seconds": round(self.tick_seconds / self.compression, 3),
            "shift_seconds": self.shift_seconds,
            "prometheus_url": prometheus_url,
            "namespaces": [*namespaces],
            "time_compression": self.compression,
        }

    def engine(self, variant: DemoVariant, *model: str) -> dict[str, Any]:
        options = {
            "port": PORT,
            "startup-delay": self.startup_seconds,
            "time-compression": self.compression,
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
            "readinessProbe": {
                "httpGet": {"path": "/health", "port": PORT},
                "periodSeconds": 1,
                "failureThreshold": 1,
            },
            # Keeps answering until routers and clients have observed that the pod terminates.
            "lifecycle": {"preStop": {"exec": {"command": ["sleep", "1"]}}},
        }
