"""A fleet of compiled engines: replicas that start, serve, drain and end, moved by a schedule or tick by tick."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from quality import engines

from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulation.variants import VariantSpec
from modelyard.traffic.traces.latency import SLO
from modelyard.traffic.traces.trace import Trace

Change = tuple[float, int]
"""From a time on, so many replicas are asked for."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Which requests were within both targets, and the replica-seconds from ``begin`` to the trace's end."""

    met: NDArray[np.bool_]
    seconds: float

    @property
    def hours(self) -> float:
        """Replica-hours."""
        return self.seconds / 3600

    @property
    def attainment(self) -> float:
        """The share within both."""
        return float(self.met.mean())


class FastFleet:
    """One variant's replicas on one trace. ``begin``: what comes before does not count.

    Raises ``ValueError`` for an engine with rules that are not compiled.
    """

    def __init__(
        self,
        trace: Trace,
        spec: VariantSpec,
        slo: SLO,
        settings: SimulationSettings,
        begin: float = 0.0,
        pods: int = 2048,
    ) -> None:
        config = spec.engine
        left_out = (config.jitter, config.prefix_hit_ratio, config.prefix_segment, config.max_waiting is not None)
        if any(left_out) or config.block_size != engines.BLOCK:
            raise ValueError(f"no compiled engine with jitter, prefix cache, queue limit or other blocks: {config}")
        self.trace, self.spec, self.slo, self.settings, self.begin = trace, spec, slo, settings, begin
        self.world = engines.world(trace.at, trace.prompt, trace.output, pods, settings.queue_limit)
        self.pods = 0
        self.now = 0.0
        self.asked = 0
        self._created: list[float] = []
        self._removed: list[float] = []
        for _ in range(spec.initial):
            self._create(0.0, warm=True)
        self.asked = spec.initial

    def _create(self, now: float, warm: bool = False) -> None:
        w, p = self.world, self.pods
        if p == len(w.pod):
            raise RuntimeError(f"more than {p} replicas were made")
        config = self.spec.engine
        w.speed[p] = (config.alpha / 1000, config.beta / 1000, config.gamma / 1000, config.delta / 1000)
        w.limits[p] = (config.max_num_seqs, config.num_blocks, config.max_num_batched_tokens, config.context_limit)
        w.pod[p, engines.FREE] = config.num_blocks
        w.pod[p, engines.LIFE] = engines.STARTING
        w.clock[p, engines.READY_AT] = now if warm else now + self.settings.drawn_startup(self.spec.startup, p)
        self._created.append(now)
        self._removed.append(math.inf)
        self.pods += 1

    def scale(self, replicas: int) -> None:
        """Ask for so many now."""
        if replicas == self.asked:
            return
        w = self.world
        self.asked = replicas
        active = [p for p in range(self.pods) if w.pod[p, engines.LIFE] <= engines.READY]
        for _ in range(replicas - len(active)):
            self._create(self.now)
        if len(active) > replicas:
            ready = engines.READY
            active.sort(
                key=lambda p: (
                    w.pod[p, engines.LIFE] == ready,
                    -w.clock[p, engines.READY_AT] if w.pod[p, engines.LIFE] == ready else -self._created[p],
                    -p,
                )
            )
            for p in active[: len(active) - replicas]:
                engines.remove(w, p, self.now, self.spec.grace)

    def advance(self, to: float) -> None:
        """Go on to ``to``."""
        engines.run(self.world, self.pods, to)
        self.now = to

    def in_flight(self) -> float:
        """Requests that run, and those that wait at the router."""
        w = self.world
        alive = (w.pod[: self.pods, engines.LIFE] == engines.READY) | (
            w.pod[: self.pods, engines.LIFE] == engines.DRAINING
        )
        running = (w.pod[: self.pods, engines.OUTSTANDING] - w.waiting[: self.pods])[alive].sum()
        return float(running + w.router[engines.TAIL] - w.router[engines.HEAD])

    def outcome(self) -> Outcome:
        """Follow what is being served to its end."""
        trace = self.trace
        end = trace.duration
        if self.now < end:
            self.advance(end)
        self.advance(end + self.settings.drain_limit)
        w = self.world
        with np.errstate(invalid="ignore"):
            first, output = w.moment[:, engines.FIRST], w.request[:, engines.OUTPUT]
            ttft = first - trace.at <= self.slo.ttft + 1e-9
            itl = (output <= 1) | (w.moment[:, engines.END] - first <= (self.slo.itl + 1e-9) * (output - 1))
        met = (w.request[:, engines.STATE] == engines.DONE) & ttft & itl
        created = np.array(self._created)
        ended = np.fmin(
            np.where(np.isnan(w.clock[: self.pods, engines.ENDED]), end, w.clock[: self.pods, engines.ENDED]), end
        )
        seconds = np.maximum(0.0, ended - np.maximum(created, self.begin)).sum()
        return Outcome(met[trace.at >= self.begin], float(seconds))


def follow(fleet: FastFleet, schedule: Sequence[Change]) -> Outcome:
    """Scale by a schedule made beforehand."""
    for at, replicas in schedule:
        if at > fleet.now:
            fleet.advance(at)
        fleet.scale(replicas)
    return fleet.outcome()


def ticked(
    fleet: FastFleet, decide: Callable[[float, FastFleet], int], tick: float = 15.0, delay: float = 1.0
) -> Outcome:
    """Scale by what ``decide`` says at every tick, which takes effect after the delay."""
    now = 0.0
    while now < fleet.trace.duration:
        fleet.advance(now)
        wanted = decide(now, fleet)
        fleet.advance(now + delay)
        fleet.scale(wanted)
        now += tick
    return fleet.outcome()
