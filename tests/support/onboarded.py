"""Requests and runs of engines whose speed is known."""

from __future__ import annotations

from typing import Any

from modelyard.benchmarks.values import LatencySpread, MeasuredRun
from modelyard.onboarding.request import OnboardRequest, ServingCandidate

FAST, SLOW = (8.0, 0.1, 5.0, 0.01), (20.0, 0.4, 10.0, 0.05)
"""Alpha, beta, gamma, delta in ms."""
CANDIDATES = (
    ServingCandidate(runtime="fast", accelerator="H100", price=10),
    ServingCandidate(runtime="slow", accelerator="L40S", price=1),
)


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


def runs(speed: tuple[float, float, float, float], levels: tuple[int, ...] = (1, 8, 16, 32)) -> list[MeasuredRun]:
    """What an engine of this speed measures, without noise, at 100 tokens of prompt."""
    alpha, beta, gamma, delta = speed

    def spread(ms: float) -> LatencySpread:
        return LatencySpread(mean=ms / 1000, p50=ms / 1000, p90=ms / 1000, p95=ms / 1000, p99=ms / 1000)

    return [
        MeasuredRun(
            scenario="D(100,50)",
            concurrency=n,
            started="2026-01-01T00:00:00Z",
            seconds=60,
            requests=100,
            failed=0,
            requests_rate=1,
            output_rate=50,
            prompt_tokens=100,
            output_tokens=50,
            latency=spread(1000),
            ttft=spread(gamma + delta * 100 * n),
            itl=spread(alpha + beta * n),
        )
        for n in levels
    ]


MEASURED = {"fast": runs(FAST), "slow": runs(SLOW)}
