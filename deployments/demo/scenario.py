"""What the demonstration deploys and replays: one model on a cheap and an expensive accelerator, one busy hour.

The same traffic goes to three copies, each scaled another way: of the pair, or a service of the one that act 0 chose.
Everything runs ``compression`` times faster than life: engines, traffic, ticks, scrapes and every policy duration. The
objects are in ``manifests``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

CONTROLLER_NAMESPACE = "workload-variant-autoscaler-system"
MODEL = "meta-llama/Llama-3.3-70B-Instruct"
PORT = 8000


class Form(StrEnum):
    """By what a pair of variants is scaled."""

    SATURATION = "saturation"
    SLO = "slo"
    POLICY = "policy"


@dataclass(frozen=True)
class Copy:
    """One copy of the pair, in a namespace of its own, with its own copy of the traffic.

    With a ``service``, an InferenceService that act 0 makes: it is asked at ``url``, and is the variant ``chosen``.
    """

    form: Form
    namespace: str
    act: int
    title: str
    service: str = ""
    url: str = ""
    chosen: str = ""

    def variant(self, workload: str) -> str:
        """The variant that a workload is, or a VariantAutoscaling."""
        return self.chosen if self.service in (workload, workload.removesuffix("-engine")) else workload


NAMESPACE = "demo"
COPIES = (
    Copy(Form.SATURATION, NAMESPACE, 1, "VariantAutoscaling in saturation form: scaled by KV-cache use and queue"),
    Copy(Form.SLO, "demo-slo", 2, "VariantAutoscaling in SLO form: sized by a queueing model for TTFT and ITL targets"),
    Copy(Form.POLICY, "demo-policy", 2, "AutoscalingPolicyBinding: metrics held at targets, cheap replicas first"),
)
SHOWN = (
    Copy(
        Form.SLO, "shop", 1, "The service of act 0, by its URL: sized by its measured profile for its targets", "chat"
    ),
    Copy(Form.SATURATION, NAMESPACE, 2, COPIES[0].title),
    COPIES[2],
)
"""What ``make demo`` plays: the service that is onboarded, and two copies of the pair beside it."""
SLO_TTFT = 2500
SLO_ITL = 75
"""Targets in milliseconds."""
FLOOR = 3
"""The least replicas of the service: its load begins at once."""


@dataclass(frozen=True)
class DemoVariant:
    """One way to serve the model. ``decode`` is (alpha, beta) and ``prefill`` (gamma, delta), in milliseconds.

    ``batch`` is how many requests of this traffic fit the KV cache at once, which the performance profile states.
    """

    name: str
    accelerator: str
    product: str
    gpus: int
    cost: str
    start_replicas: int
    max_replicas: int
    decode: tuple[float, float]
    prefill: tuple[float, float]
    kv_tokens: int
    batch: int


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
        decode=(40, 0.3),
        prefill=(30, 0.23),
        kv_tokens=48000,
        batch=32,
    ),
    DemoVariant(
        name="llama-h100",
        accelerator="H100",
        product="NVIDIA-H100-SXM5-80GB",
        gpus=2,
        cost="10.0",
        start_replicas=1,
        max_replicas=4,
        decode=(18, 0.15),
        prefill=(20, 0.12),
        kv_tokens=64000,
        batch=44,
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
    shift_seconds: float = 120.0
    """Wall seconds of one run of the flow; twice as many as from one to the next."""
    variants: tuple[DemoVariant, ...] = VARIANTS
    copies: tuple[Copy, ...] = COPIES

    @property
    def longest_look(self) -> float:
        """Minutes of the trace that a look at the cluster tells of at most: five wall seconds, one look a second."""
        return 5 * self.compression / 60

    @property
    def namespaces(self) -> list[str]:
        """Where the copies live."""
        return [copy.namespace for copy in self.copies]
