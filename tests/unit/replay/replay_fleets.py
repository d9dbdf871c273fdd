"""Small fleets and traces for the replay's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from modelyard.engine.config import EngineConfig
from modelyard.objects import Key
from modelyard.replay.simulation.fleet import SimulatedFleet
from modelyard.replay.simulation.metrics import Metrics
from modelyard.replay.simulation.variants import VariantSpec
from modelyard.traffic.traces.trace import Trace

KEY = Key("chat", "llama")
ENGINE = EngineConfig(alpha=10, beta=0.5, gamma=10, delta=0.1, max_num_seqs=16, kv_cache_tokens=16_000)


def trace_of(rows: Sequence[tuple[float, int, int]], duration: float | None = None) -> Trace:
    ordered = sorted(rows)
    at = np.array([row[0] for row in ordered], dtype=np.float64)
    return Trace(
        at,
        np.array([row[1] for row in ordered], dtype=np.int64),
        np.array([row[2] for row in ordered], dtype=np.int64),
        float(at[-1]) if duration is None else duration,
    )


def poisson(rate: float, seconds: float, prompt: int = 100, output: int = 50, seed: int = 0) -> Trace:
    chance = np.random.default_rng(seed)
    at = np.sort(chance.uniform(0, seconds, chance.poisson(rate * seconds)))
    return Trace(
        at,
        chance.integers(1, 2 * prompt, len(at)).astype(np.int64),
        chance.integers(1, 2 * output, len(at)).astype(np.int64),
        seconds,
    )


def spec(
    name: str = "llama",
    *,
    engine: EngineConfig = ENGINE,
    initial: int = 1,
    startup: float = 30.0,
    grace: float = 30.0,
    cost: float = 10.0,
    model: str = "llama",
) -> VariantSpec:
    return VariantSpec(Key("chat", name), model, engine, initial, startup, grace, cost)


class Script:
    """Replicas by a timetable: (second, replicas) of every variant, in order."""

    interval = 1.0
    keep = 0.0
    name = "script"

    def __init__(self, *steps: tuple[float, int]) -> None:
        self.steps = list(steps)

    def initial(self, variants: Sequence[VariantSpec]) -> Mapping[Key, int]:
        return {}

    def tick(self, now: float, fleet: SimulatedFleet, metrics: Metrics) -> Mapping[Key, int]:
        due = [replicas for at, replicas in self.steps if at <= now]
        return dict.fromkeys(fleet.variants, due[-1]) if due else {}
