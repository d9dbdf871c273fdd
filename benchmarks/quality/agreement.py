"""Agreement of the compiled engines with the replay's, request by request, on random small fleets.

The compiled engines repeat the rules of ``modelyard.engine`` and ``modelyard.replay.simulation`` for speed. A benchmark
therefore checks one scenario before it trusts them, and the test suite checks many.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from quality import engines
from quality.fleet import Change, FastFleet, follow

from modelyard.engine.config import EngineConfig
from modelyard.objects import Key
from modelyard.replay.backtest.simulate import Run, simulate
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulation.fleet import SimulatedFleet
from modelyard.replay.simulation.metrics import Metrics
from modelyard.replay.simulation.variants import VariantSpec
from modelyard.traffic.traces.latency import SLO, Ending
from modelyard.traffic.traces.trace import Trace

TOLERANCE = 1e-6
"""Seconds by which a first or last token may differ: sums of floats in another order."""
ENDINGS = {
    engines.DONE: {Ending.OK},
    engines.BROKEN: {Ending.BROKEN},
    engines.REFUSED: {Ending.REJECTED, Ending.NO_ENDPOINT},
}
"""Endings in the replay by state in the compiled engines; any other state is that of an unfinished request."""


class Disagreement(AssertionError):
    """The compiled engines and the replay differ; the message names the scenario and the first difference."""


@dataclass(frozen=True)
class SmallFleet:
    """One variant, its traffic, and replicas by time (multiples of a tick)."""

    trace: Trace
    spec: VariantSpec
    settings: SimulationSettings
    changes: tuple[Change, ...] = ()


class _Schedule:
    """A policy that sets replicas at given times."""

    name, interval, keep = "schedule", 5.0, 0.0

    def __init__(self, key: Key, changes: Sequence[Change]) -> None:
        self._key, self._changes = key, dict(changes)

    def initial(self, variants: Sequence[VariantSpec]) -> dict[Key, int]:
        return {}

    def tick(self, now: float, fleet: SimulatedFleet, metrics: Metrics) -> Mapping[Key, int]:
        return {self._key: self._changes[now]} if now in self._changes else {}


def random_fleet(seed: int) -> SmallFleet:
    """Draw a fleet of few replicas: overload, small caches and batches, long prompts, late starts, short graces."""
    draw = random.Random(seed)
    count, length = draw.randint(1, 400), draw.uniform(20, 240)
    longest = draw.choice((40, 400, 3000))
    context = draw.choice((None, 2 * longest, longest))
    config = EngineConfig(
        alpha=draw.uniform(0, 40) + 0.1,
        beta=draw.choice((0.0, draw.uniform(0, 2))),
        gamma=draw.choice((0.0, draw.uniform(0, 50))),
        delta=draw.choice((0.0, draw.uniform(0, 1))),
        max_num_seqs=draw.choice((1, 2, 8, 64)),
        kv_cache_tokens=max(draw.choice((64, 1000, 8000, 100_000)), 2 * longest),
        max_num_batched_tokens=draw.choice((64, 512, 2048)),
        max_model_len=context,
    )
    at = sorted(draw.choice((draw.uniform(0, length), draw.randint(0, int(length)))) for _ in range(count))
    prompt = [max(1, int(longest * draw.random() ** 2)) for _ in at]
    output = [max(1, int(longest * draw.random() ** 3)) for _ in at]
    trace = Trace(np.array(at, dtype=np.float64), np.array(prompt), np.array(output), length)
    times = sorted({5.0 * draw.randint(1, int(length / 5)) for _ in range(draw.randint(0, 6))})
    spec = VariantSpec(
        Key("chat", "llama"), "llama", config, draw.randint(0, 3), draw.uniform(1, 60), draw.choice((2.0, 30.0, 600.0))
    )
    settings = SimulationSettings(
        seed=draw.randrange(1000), startup_spread=draw.choice((0.0, 0.3)), queue_limit=draw.choice((10.0, 300.0))
    )
    return SmallFleet(trace, spec, settings, tuple((time, draw.randint(0, 5)) for time in times))


def check(small: SmallFleet, name: str = "") -> Run:
    """Run both; return the replay. Raises ``Disagreement``."""
    trace, spec, settings = small.trace, small.spec, small.settings
    run = simulate(trace, [spec], _Schedule(spec.key, small.changes), settings)
    fast = FastFleet(trace, spec, SLO(), settings)
    outcome = follow(fast, [(at + settings.actuation_delay, count) for at, count in small.changes])
    slow, request, moment = run.results, fast.world.request, fast.world.moment
    for number in range(len(trace)):
        expected = ENDINGS.get(int(request[number, engines.STATE]), {Ending.UNFINISHED})
        if Ending(int(slow.ending[number])) not in expected:
            raise Disagreement(f"{name}: request {number} ended {Ending(int(slow.ending[number])).name} in the replay")
    for token, compiled, replayed in (
        ("first", moment[:, engines.FIRST], slow.first),
        ("last", moment[:, engines.END], slow.end),
    ):
        same = np.isclose(compiled, replayed, rtol=0, atol=TOLERANCE, equal_nan=True)
        if not same.all():
            number = int(np.argmin(same))
            times = f"{compiled[number]} s compiled, {replayed[number]} s replayed"
            raise Disagreement(f"{name}: {token} token of request {number}: {times}")
    if not np.array_equal(outcome.met, np.logical_and(*slow.within(SLO()))):
        raise Disagreement(f"{name}: requests within the targets differ")
    if not math.isclose(outcome.seconds, run.replica_seconds(spec.key), abs_tol=1e-3):
        raise Disagreement(f"{name}: {outcome.seconds} replica-seconds, {run.replica_seconds(spec.key)} replayed")
    return run
