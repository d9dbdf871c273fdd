"""Scenario of the demonstration: one model on a cheap and an expensive accelerator, and a busy stretch of real traffic.

The same traffic goes to three fleets ("copies"), each scaled in its own way. Engines, traffic, ticks, scrapes and every
policy duration run ``compression`` times faster than in production. The objects are in ``manifests``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

CONTROLLER_NAMESPACE = "workload-variant-autoscaler-system"
MODEL = "meta-llama/Llama-3.3-70B-Instruct"
PORT = 8000


class Form(StrEnum):
    """Kinds of autoscaling in the demonstration."""

    SATURATION = "saturation"
    SLO = "slo"
    POLICY = "policy"


@dataclass(frozen=True)
class Copy:
    """One fleet in a namespace of its own, with its own copy of the traffic.

    By default a pair of Deployments, one per accelerator. With a ``service`` it is an InferenceService that the
    onboarding creates: it answers at ``url`` and runs on the accelerator of the variant ``chosen``.
    """

    form: Form
    namespace: str
    title: str
    service: str = ""
    url: str = ""
    chosen: str = ""

    @property
    def label(self) -> str:
        """Namespace and what scales it."""
        return f"{self.namespace} ({self.form})"

    def variant(self, workload: str) -> str:
        """Return the variant that a workload, or a VariantAutoscaling, belongs to."""
        return self.chosen if self.service in (workload, workload.removesuffix("-engine")) else workload


NAMESPACE = "demo"
PAIRS = (
    Copy(Form.SATURATION, NAMESPACE, "VariantAutoscaling, saturation form: scaled by KV-cache use and queue length"),
    Copy(Form.POLICY, "demo-policy", "AutoscalingPolicyBinding: keeps metrics at target values, cheap replicas first"),
)
SERVICE = Copy(Form.SLO, "shop", "The onboarded service: sized for its latency targets by its measured profile", "chat")
SHOWN = (SERVICE, *PAIRS)
"""Fleets of ``make demo``: the onboarded service, and the pairs of Deployments for comparison."""
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
        """Name of its Deployment and its VariantAutoscaling."""
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

    The stretch rises from 5.7 to 8.4 requests/s, falls to 5.2, and six quiet minutes follow.
    """

    compression: float = 10.0
    start_minute: float = 21.0
    minutes: float = 18.0
    quiet_minutes: float = 6.0
    rate: float = 1.0
    tick_seconds: float = 15.0
    startup_seconds: float = 90.0
    shift_seconds: float = 120.0
    """Wall seconds of one run of the flow; twice the interval between starts."""
    variants: tuple[DemoVariant, ...] = VARIANTS
    copies: tuple[Copy, ...] = PAIRS

    @property
    def longest_gap(self) -> float:
        """Minutes of the trace between two samples that still count as observed: five wall seconds."""
        return 5 * self.compression / 60

    @property
    def namespaces(self) -> list[str]:
        """Namespaces of the fleets."""
        return [copy.namespace for copy in self.copies]
