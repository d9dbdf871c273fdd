"""One variant in a closed loop of virtual time: Poisson arrivals, engines that batch and queue, pods that start late.

The engines are fluid: profile P's service time at the present batch decides how much leaves each second. What waits in
an engine stays there, as in a real one.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from builders import NOW, SATURATION, records
from slo_builders import OUTPUT, PROMPT, SLO, P, slo_fleet

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.memory.variants import AUTOSCALING_STATE, VariantMemory
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.metrics.vocabulary.values import PodPerformance, PodSignal
from modelyard.objects import Condition, Key, OwnerRef, Pod
from modelyard.reconcile.plans.memory import parse_memory, render_memory

TICK = 15
BATCH, CACHE = 96, 70_000


@dataclass(eq=False)
class Engine:
    """One replica; ``batch`` and ``queue`` are requests, the windows hold one value per second."""

    name: str
    born: float
    ready: float
    batch: float = 0.0
    queue: float = 0.0
    cache: deque[float] = field(default_factory=lambda: deque(maxlen=60))
    waiting: deque[float] = field(default_factory=lambda: deque(maxlen=60))
    done: deque[float] = field(default_factory=lambda: deque(maxlen=300))

    def second(self, arrivals: int) -> None:
        alpha, beta, gamma, delta = P
        seconds = (gamma + delta * PROMPT * self.batch + (OUTPUT - 1) * (alpha + beta * self.batch)) / 1000
        left = min(self.batch, self.batch / seconds)
        self.queue += arrivals
        admitted = min(self.queue, BATCH - self.batch + left)
        self.batch += admitted - left
        self.queue -= admitted
        self.cache.append(min(1.0, self.batch * (PROMPT + OUTPUT / 2) / CACHE))
        self.waiting.append(self.queue)
        self.done.append(left)


@dataclass
class History:
    """Replicas asked for, tick by tick."""

    sizes: list[int]

    @property
    def moves(self) -> int:
        return sum(a != b for a, b in pairwise(self.sizes))

    @property
    def turns(self) -> int:
        """Changes of direction."""
        signs = [b > a for a, b in pairwise(self.sizes) if a != b]
        return sum(a != b for a, b in pairwise(signs))


def live(
    form: str,
    rate: Callable[[int], float],
    seconds: int,
    replicas: int = 1,
    startup: float = 120.0,
    settings: FleetSettings | None = None,
    seed: int = 1,
) -> History:
    """``form`` is slo, saturation or token; ``rate`` gives requests per second at a second."""
    chance = random.Random(seed)
    settings = settings or FleetSettings()
    names = iter(range(10**6))
    engines = [Engine(f"v1-{next(names)}", NOW - 3600 - startup, NOW - 3600) for _ in range(replicas)]
    memory, conditions = VariantMemory(), tuple[Condition, ...]()
    desired, sizes = replicas, [replicas]
    arrived: deque[int] = deque(maxlen=60)
    loads: deque[tuple[float, float]] = deque(maxlen=300 // TICK)
    config = {SATURATION: {"default": "analyzerName: saturation"}} if form == "token" else {}
    for second in range(seconds):
        now = NOW + second
        ready = [engine for engine in engines if engine.ready <= now]
        arrivals = _poisson(chance, rate(second))
        arrived.append(arrivals)
        chance.shuffle(ready)
        for i, engine in enumerate(ready):
            engine.second(arrivals // len(ready) + (i < arrivals % len(ready)))
        if second % TICK:
            continue
        load = sum(arrived) / len(arrived) if second >= 60 else rate(0)
        loads.append((now, load))
        variant = SLO(replicas=len(engines), serving={"desired": desired, "memory": memory, "ready": len(ready)})
        fleet = slo_fleet(variant, load=load, now=now, history=tuple(loads), config_maps=config)
        of_form = {} if form == "slo" else {"form": "saturation", "slo": None}
        fleet = replace(
            fleet,
            variants=tuple(replace(v, conditions=conditions, created=NOW - 9999, **of_form) for v in fleet.variants),
        )
        signals, performance = _reports(ready, fleet.variants[0].model_id, now)
        fleet = replace(
            fleet,
            pods=tuple(_pod(engine, now) for engine in engines),
            signals=replace(fleet.signals, pods=signals, performance=performance),
        )
        record = records(decide(fleet, settings))["v1"]
        memory, _ = parse_memory(VariantMemory, AUTOSCALING_STATE, render_memory(record.memory))
        conditions, desired = record.conditions, record.target.replicas
        sizes.append(desired)
        if record.writes.scale is not None:
            engines.sort(key=lambda engine: engine.born)
            del engines[record.writes.scale :]
            engines += [
                Engine(f"v1-{next(names)}", now, now + startup) for _ in range(record.writes.scale - len(engines))
            ]
    return History(sizes)


def _reports(ready: list[Engine], model: str, now: float) -> tuple[tuple[PodSignal, ...], tuple[PodPerformance, ...]]:
    signals, performance = [], []
    for engine in ready:
        rate = sum(engine.done) / max(60, len(engine.done))
        peak = round(max(engine.waiting))
        signals.append(
            PodSignal("chat", engine.name, model, max(engine.cache), peak, round(engine.batch), rate, now - 5)
        )
        count = sum(list(engine.done)[-60:])
        sizes = (PROMPT, OUTPUT) if count else (None, None)
        performance.append(PodPerformance("chat", engine.name, model, count, *sizes, kv_tokens=CACHE))
    return tuple(signals), tuple(performance)


def _pod(engine: Engine, now: float) -> Pod:
    owner = OwnerRef("apps/v1", "ReplicaSet", "v1-rs", "rs-chat-v1")
    since = engine.ready if engine.ready <= now else None
    return Pod(Key("chat", engine.name), engine.name, owner, engine.born, since, "Running")


def _poisson(chance: random.Random, mean: float) -> int:
    if mean > 30:
        return max(0, round(chance.gauss(mean, math.sqrt(mean))))
    limit, count, product = math.exp(-mean), 0, chance.random()
    while product > limit:
        count += 1
        product *= chance.random()
    return count
