"""Onboardings as tests follow them, and requests and runs of engines whose speed is known."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from plan_details import remember_details

from modelyard.benchmarks.records.values import LatencySpread, MeasuredRun
from modelyard.cluster import Cluster
from modelyard.objects import Key
from modelyard.onboarding.planning.lifecycle import Onboarding
from modelyard.onboarding.planning.objects import order_key
from modelyard.onboarding.planning.progress import OnboardStanding
from modelyard.onboarding.request import OnboardRequest, ServingCandidate

FAST, SLOW = (8.0, 0.1, 5.0, 0.01), (20.0, 0.4, 10.0, 0.05)
"""Alpha, beta, gamma, delta in ms."""
CANDIDATES = (
    ServingCandidate(runtime="fast", accelerator="H100", price=10),
    ServingCandidate(runtime="slow", accelerator="L40S", price=1),
)


@dataclass(eq=False)
class FollowedOnboarding:
    """An onboarding, and what was seen of it last."""

    cluster: Cluster
    asked: OnboardRequest
    lifecycle: Onboarding = field(default_factory=Onboarding)

    def __post_init__(self) -> None:
        self.details = remember_details(self.lifecycle)

    @property
    def key(self) -> Key:
        return order_key(self.asked)

    @property
    def here(self) -> OnboardStanding | None:
        return self.details.get(self.key)


def request(**other: Any) -> OnboardRequest:
    """Both candidates, a target that both reach."""
    given = {
        "uri": "hf://owner/model",
        "name": "chat",
        "namespace": "shop",
        "candidates": CANDIDATES,
        "ttft": 500,
        "itl": 40,
        "rate": 10,
        "prompt_tokens": 100,
        "output_tokens": 50,
        "results": "pvc://results/chat",
    }
    return OnboardRequest.model_validate(given | other)


def measured(
    level: int, ttft: LatencySpread, itl: LatencySpread, prompt: float = 100, output: float = 50, requests: int = 100
) -> MeasuredRun:
    """The run in which requests of these latencies follow one another, so many at a time."""
    latency = ttft.mean + (output - 1) * itl.mean
    seconds = requests * latency / level
    return MeasuredRun(
        scenario=f"D({prompt:.0f},{output:.0f})",
        concurrency=level,
        started="2026-01-01T00:00:00Z",
        seconds=seconds,
        requests=requests,
        failed=0,
        requests_rate=requests / seconds,
        output_rate=requests * output / seconds,
        prompt_tokens=prompt,
        output_tokens=output,
        latency=LatencySpread.model_validate(dict.fromkeys(LatencySpread.model_fields, latency)),
        ttft=ttft,
        itl=itl,
    )


def runs(
    speed: tuple[float, float, float, float],
    levels: Iterable[int] = (1, 8, 16, 32),
    noise: float = 0.0,
    seed: int = 0,
    output: int = 50,
) -> list[MeasuredRun]:
    """What an engine of this speed measures at 100 tokens of prompt; the ``noise`` of a level is always the same."""
    alpha, beta, gamma, delta = speed

    def spread(ms: float) -> LatencySpread:
        chance = random.Random(f"{seed} {ms}")
        mean = ms / 1000 * chance.gauss(1, noise)
        return LatencySpread(mean=mean, p50=mean, p90=mean, p95=mean, p99=mean)

    return [measured(n, spread(gamma + delta * 100 * n), spread(alpha + beta * n), output=output) for n in levels]


MEASURED = {"fast": runs(FAST), "slow": runs(SLOW)}


def noisy(runtime: str, levels: Iterable[int]) -> list[MeasuredRun]:
    """What a candidate measures at these levels: exactly its speed, or so that levels 2 and 3 are to be added."""
    return runs(FAST, levels) if runtime == "fast" else runs(SLOW, levels, 0.02, 7)
