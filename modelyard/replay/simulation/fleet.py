"""The fleet in virtual time: arrivals, router, replicas that start, serve, drain and end, and a policy that scales it.

One agenda of events; an engine is advanced only when something happens to it (a request comes, a first token or an end
is due, it is sampled), and leaps over equal steps in between. Deterministic: equal trace, variants, policy, settings
and seed give equal results.

**Which pod goes** when replicas are removed is what the ReplicaSet controller prefers: pods not ready yet, then those
ready for the shortest time. A removed pod gets no new requests, finishes what it has and is killed after its grace.
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelyard.engine import Event, EventKind, Rejected
from modelyard.objects import Key, Node
from modelyard.replay.settings import SimulationError, SimulationSettings
from modelyard.replay.simulation.pods import Life, Scheduler, SimulatedPod
from modelyard.replay.simulation.variants import VariantSpec
from modelyard.traffic import Router
from modelyard.traffic.traces import Ending, Results, Trace


class ScaleAction(NamedTuple):
    """A change of a workload's replicas that took effect at ``at``."""

    at: float
    variant: Key
    before: int
    after: int


@dataclass(frozen=True, eq=False)
class SimulatedResults(Results):
    """``itl_max``: the longest gap between two tokens. ``waited``: no replica was ready on arrival. ``pod``: the number
    of the pod that served it, -1 for none."""

    itl_max: NDArray[np.float64]
    waited: NDArray[np.bool_]
    pod: NDArray[np.int64]


class RequestLog:
    """What becomes of every request, by its number (the trace's order), while it happens."""

    def __init__(self, trace: Trace) -> None:
        count = len(trace)
        self.trace = trace
        self.first = [math.nan] * count
        self.end = [math.nan] * count
        self.itl_max = [math.nan] * count
        self.ending = [0] * count
        self.pod = [-1] * count
        self.waited = bytearray(count)

    def columns(self) -> SimulatedResults:
        """Everything as arrays."""
        return SimulatedResults(
            self.trace.at,
            self.trace.output,
            np.array(self.first),
            np.array(self.end),
            np.array(self.ending, dtype=np.int8),
            np.array(self.itl_max),
            np.frombuffer(bytes(self.waited), dtype=np.uint8).astype(bool),
            np.array(self.pod, dtype=np.int64),
        )


class _Due(IntEnum):
    ENGINE = 0
    READY = 1
    KILL = 2
    EXPIRE = 3
    SCALE = 4
    SCRAPE = 5
    TICK = 6


Tick = Callable[[float], Mapping[Key, int]]
"""Replicas wanted by variant at a time; one left out stays as it is."""


class SimulatedFleet:
    """One simulation. Call ``run`` once; everything else may be read by policies and samplers meanwhile.

    ``sample`` is called for each pod every ``scrape_interval`` (each at its own phase) and when it ends, with the pod's
    engine advanced to that time. ``nodes`` limit how many replicas run: one that fits on none exists and waits.
    """

    def __init__(
        self,
        trace: Trace,
        variants: Sequence[VariantSpec],
        settings: SimulationSettings,
        sample: Callable[[SimulatedPod, float], None] | None = None,
        nodes: Sequence[Node] = (),
    ) -> None:
        self.trace = trace
        self.settings = settings
        self.variants = {spec.key: spec for spec in variants}
        self.log = RequestLog(trace)
        self.now = 0.0
        self.pods: list[SimulatedPod] = []
        """Every pod there ever was, by number."""
        self.spec: dict[Key, int] = {spec.key: spec.initial for spec in variants}
        """Replicas asked of each workload."""
        self.actions: list[ScaleAction] = []
        self._tick: Tick | None = None
        self._interval = math.inf
        self._sample = sample
        self._scheduler = Scheduler(nodes)
        self._homeless: list[SimulatedPod] = []
        self._router = Router(settings.routing, settings.seed)
        models = sorted({spec.model for spec in variants})
        self._models = models
        self._ready: dict[str, list[SimulatedPod]] = {model: [] for model in models}
        self._queues: dict[str, deque[int]] = {model: deque() for model in models}
        self._alive: dict[Key, list[SimulatedPod]] = {spec.key: [] for spec in variants}
        self._agenda: list[tuple[float, int, int, int, Any]] = []
        self._entries = 0
        self._open = 0
        self._model_of = _model_index(trace, models)
        for spec in variants:
            for _ in range(spec.initial):
                self._create(spec, -settings.pre_roll - spec.startup, warm=True)

    def pods_of(self, variant: Key) -> Sequence[SimulatedPod]:
        """The pods of a variant that have not ended, oldest first."""
        return self._alive[variant]

    def look(self, pod: SimulatedPod) -> None:
        """Bring a pod's engine to now, so that its metrics are what a scrape would find."""
        if not pod.gone:
            self._advance(pod)

    def queued(self, model: str) -> int:
        """Requests at the router that found no ready replica."""
        return len(self._queues[model])

    def run(self, tick: Tick | None = None, interval: float = math.inf) -> None:
        """Simulate to the last request's end, or ``drain_limit`` seconds after the trace.

        ``tick`` is asked every ``interval`` seconds, until the trace ends or the last request is done, whichever is
        later.
        """
        self._tick, self._interval = tick, interval
        if tick is not None and math.isfinite(interval):
            self._push(0.0, _Due.TICK, None)
        at = self.trace.at.tolist()
        count = len(at)
        end = self.trace.duration
        limit = end + self.settings.drain_limit
        agenda = self._agenda
        number = 0
        handlers: Mapping[_Due, Callable[[Any], None]] = {
            _Due.ENGINE: self._on_engine,
            _Due.READY: self._on_ready,
            _Due.KILL: self._on_kill,
            _Due.EXPIRE: self._on_expire,
            _Due.SCALE: lambda wanted: self.scale(*wanted),
            _Due.SCRAPE: self._on_scrape,
            _Due.TICK: self._on_tick,
        }
        while True:
            arrival = at[number] if number < count else math.inf
            if agenda and agenda[0][0] <= arrival:
                due, kind, _, _, subject = heapq.heappop(agenda)
                if due > limit or (number >= count and not self._open and due > end):
                    break
                self.now = due
                handlers[_Due(kind)](subject)
            elif number < count:
                self.now = arrival
                self._open += 1
                self._arrive(number)
                number += 1
            else:
                break
        self.now = max(self.now, end)

    def _push(self, at: float, kind: _Due, subject: Any, order: int = 0) -> None:
        self._entries += 1
        heapq.heappush(self._agenda, (at, int(kind), order, self._entries, subject))

    def _arrive(self, number: int) -> None:
        model = self._models[self._model_of[number]] if self._model_of is not None else self._models[0]
        ready = self._ready[model]
        if ready:
            self._submit(self._router.choose(ready), number)
            return
        queue = self._queues[model]
        queue.append(number)
        self.log.waited[number] = 1
        if len(queue) == 1:
            self._push(self.now + self.settings.queue_limit, _Due.EXPIRE, model)

    def _submit(self, pod: SimulatedPod, number: int) -> None:
        self._advance(pod)
        trace, log = self.trace, self.log
        log.pod[number] = pod.serial
        try:
            request = pod.core.submit(int(trace.prompt[number]), int(trace.output[number]), tag=number)
        except Rejected:
            self._close(number, Ending.REJECTED)
            return
        pod.inflight[number] = request
        pod.outstanding += 1
        self._reschedule(pod)

    def _advance(self, pod: SimulatedPod) -> None:
        core = pod.core
        if core.clock >= self.now:
            return
        events = core.advance(self.now)
        if events:
            self._take(pod, events)

    def _take(self, pod: SimulatedPod, events: Sequence[Event]) -> None:
        log = self.log
        for kind, request, at in events:
            number = request.tag
            assert isinstance(number, int)
            if kind is EventKind.FIRST_TOKEN:
                log.first[number] = at
                pod.first_step[number] = pod.steps.number
            elif kind is EventKind.FINISHED:
                log.end[number] = at
                first = pod.first_step.pop(number)
                if request.output_tokens > 1:
                    longest = pod.steps.longest_since(first)
                    log.itl_max[number] = max(longest, pod.steps.resumed) if request.preemptions else longest
                del pod.inflight[number]
                pod.outstanding -= 1
                self._close(number, Ending.OK)
        if not pod.outstanding:
            pod.steps.forget()
            if pod.life is Life.DRAINING:
                self._end(pod)

    def _close(self, number: int, ending: Ending) -> None:
        self.log.ending[number] = ending
        self._open -= 1

    def _reschedule(self, pod: SimulatedPod) -> None:
        core = pod.core
        # With jitter the later time would only be an estimate.
        wake = core.next_event_time() if core.config.jitter else core.next_result_time()
        pod.wake = wake
        if wake < pod.scheduled:
            pod.scheduled = wake
            self._push(wake, _Due.ENGINE, pod, pod.serial)

    def _on_engine(self, pod: SimulatedPod) -> None:
        if pod.scheduled != self.now:
            return  # an earlier entry took its place
        pod.scheduled = math.inf
        if pod.gone:
            return
        if pod.wake <= self.now and (events := pod.core.advance(self.now)):
            self._take(pod, events)
        if not pod.gone:
            self._reschedule(pod)

    def _create(self, spec: VariantSpec, at: float, warm: bool = False) -> None:
        serial = len(self.pods)
        pod = SimulatedPod(spec, serial, at, self.settings.seed + serial)
        self.pods.append(pod)
        self._alive[spec.key].append(pod)
        node = self._scheduler.place(pod)
        if node is None:
            pod.unschedulable = "no node has enough free GPUs"
            self._homeless.append(pod)
            return
        pod.node = node
        if warm:
            pod.ready_at = at + spec.startup
            self._serve(pod)
        else:
            self._push(at + self._startup(pod), _Due.READY, pod, serial)

    def _startup(self, pod: SimulatedPod) -> float:
        return self.settings.drawn_startup(pod.variant.startup, pod.serial)

    def _on_ready(self, pod: SimulatedPod) -> None:
        if pod.life is not Life.STARTING:
            return
        pod.core.advance(self.now)
        pod.ready_at = self.now
        self._serve(pod)
        model = pod.variant.model
        queue, ready = self._queues[model], self._ready[model]
        while queue:
            self._submit(self._router.choose(ready), queue.popleft())

    def _serve(self, pod: SimulatedPod) -> None:
        pod.life = Life.READY
        self._ready[pod.variant.model].append(pod)
        if self._sample is not None:
            interval = self.settings.scrape_interval
            phase = zlib.crc32(f"{self.settings.seed}/{pod.name}".encode()) / 2**32 * interval
            # Samples fall on the pod's own phase, as Prometheus spreads its targets over the interval.
            behind = (pod.ready_at - phase) % interval
            first = pod.ready_at + (interval - behind if behind else 0.0)
            while first < 0:
                self._sample(pod, first)
                first += interval
            self._push(first, _Due.SCRAPE, pod, pod.serial)

    def _on_scrape(self, pod: SimulatedPod) -> None:
        if pod.gone:
            return
        self._advance(pod)
        assert self._sample is not None
        self._sample(pod, self.now)
        if not pod.gone:
            self._push(self.now + self.settings.scrape_interval, _Due.SCRAPE, pod, pod.serial)

    def _on_tick(self, _: None) -> None:
        assert self._tick is not None
        now, delay = self.now, self.settings.actuation_delay
        for key, replicas in self._tick(now).items():
            if delay:
                self._push(now + delay, _Due.SCALE, (key, replicas))
            else:
                self.scale(key, replicas)
        self._push(now + self._interval, _Due.TICK, None)

    def scale(self, variant: Key, replicas: int) -> None:
        """Set a workload's replicas now."""
        before = self.spec[variant]
        if replicas == before:
            return
        spec = self.variants[variant]
        self.spec[variant] = replicas
        self.actions.append(ScaleAction(self.now, variant, before, replicas))
        active = [pod for pod in self._alive[variant] if pod.active]
        for _ in range(replicas - len(active)):
            self._create(spec, self.now)
        if len(active) > replicas:
            # Not ready first, then the one ready for the shortest time.
            active.sort(key=lambda pod: (pod.ready, -pod.ready_at if pod.ready else -pod.created, -pod.serial))
            for pod in active[: len(active) - replicas]:
                self._remove(pod)

    def _remove(self, pod: SimulatedPod) -> None:
        pod.removed_at = self.now
        if pod.life is Life.STARTING:
            self._end(pod)
            return
        self._ready[pod.variant.model].remove(pod)
        self._advance(pod)
        pod.life = Life.DRAINING
        if pod.outstanding:
            self._push(self.now + pod.variant.grace, _Due.KILL, pod, pod.serial)
        else:
            self._end(pod)

    def _on_kill(self, pod: SimulatedPod) -> None:
        if pod.gone:
            return
        self._advance(pod)
        for number in list(pod.inflight):
            self._close(number, Ending.BROKEN)
        pod.inflight.clear()
        pod.outstanding = 0
        if not pod.gone:
            self._end(pod)

    def _end(self, pod: SimulatedPod) -> None:
        pod.life = Life.ENDED
        pod.ended = self.now
        self._alive[pod.variant.key].remove(pod)
        if pod.unschedulable:
            self._homeless.remove(pod)
            return
        self._scheduler.release(pod)
        for waiting in list(self._homeless):
            node = self._scheduler.place(waiting)
            if node is not None:
                self._homeless.remove(waiting)
                waiting.node, waiting.unschedulable = node, ""
                self._push(self.now + self._startup(waiting), _Due.READY, waiting, waiting.serial)

    def _on_expire(self, model: str) -> None:
        queue, limit = self._queues[model], self.settings.queue_limit
        at = self.trace.at
        while queue and at[queue[0]] + limit <= self.now:
            self._close(queue.popleft(), Ending.NO_ENDPOINT)
        if queue:
            self._push(float(at[queue[0]]) + limit, _Due.EXPIRE, model)


def _model_index(trace: Trace, models: Sequence[str]) -> list[int] | None:
    """Each request's position in ``models``; ``None`` when there is one model and the trace names none.

    Raises ``SimulationError`` when the trace does not say which of several models a request is for, or names another.
    """
    if trace.model is None:
        if len(models) == 1:
            return None
        raise SimulationError(
            f"the fleet serves {len(models)} models ({', '.join(models)}) and the trace does not say which request is "
            "for which: give its column with --columns model=NAME, or only one model's manifests"
        )
    places = {model: place for place, model in enumerate(models)}
    unknown = [name for name in trace.models if name not in places]
    if unknown:
        raise SimulationError(
            f"the trace has requests for {', '.join(unknown)}, which no variant serves; served: {', '.join(models)}"
        )
    table = [places[name] for name in trace.models]
    return [table[code] for code in trace.model.tolist()]
