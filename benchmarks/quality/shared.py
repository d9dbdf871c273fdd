"""Cells of several models that share GPUs which do not suffice for all of their peaks at once."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from quality import calibration, workloads
from quality.cells import SLO_AIM, Cell, told, tuned_keda
from quality.fleets import COSTS, shared_fleet
from quality.search import Search

from modelyard.autoscaling.variants.attainment import needed
from modelyard.engine.config import PROFILES
from modelyard.objects import Key
from modelyard.replay.backtest.simulate import Run, simulate
from modelyard.replay.policies.base import Fixed, Policy
from modelyard.replay.policies.horizontal import SYNC, KEDAPolicy
from modelyard.replay.policies.parse import make, split
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulation.fleet import SimulatedFleet
from modelyard.replay.simulation.metrics import Metrics
from modelyard.replay.simulation.variants import VariantSpec
from modelyard.traffic.traces.trace import Trace

MODELS = ("first", "second", "third")
"""The most important first."""
PRODUCT = {"attainment": "default:aim=attainment", "SLO": "default:aim=mean"}
KEDA, SPLIT = "KEDA, tuned", "best split"
ROWS = (*PRODUCT, KEDA, SPLIT)


class Stream(NamedTuple):
    """The traffic of one model."""

    workload: str
    rate: float


@dataclasses.dataclass(frozen=True)
class SharedCell:
    """``streams`` are the models' traffic, the most important first, all of one length."""

    streams: tuple[Stream, ...]
    card: str
    gpus: int
    seed: int
    startup: float = 120.0

    @property
    def name(self) -> str:
        """Its name, in files too."""
        streams = "+".join(f"{s.workload}-{s.rate:g}" for s in self.streams)
        return f"{streams}-{self.gpus}{self.card}-seed{self.seed}-start{self.startup:g}"

    @cached_property
    def alone(self) -> tuple[Cell, ...]:
        """Each model as if it had the cluster to itself."""
        return tuple(Cell(s.workload, s.rate, (self.card,), self.seed, self.startup) for s in self.streams)

    @cached_property
    def trace(self) -> Trace:
        """All requests."""
        traces = [cell.trace for cell in self.alone]
        at = np.concatenate([trace.at for trace in traces])
        order = np.argsort(at, kind="stable")
        prompt, output = (np.concatenate([getattr(t, name) for t in traces])[order] for name in ("prompt", "output"))
        model = np.repeat(np.arange(len(traces)), [len(trace) for trace in traces])[order]
        return Trace(at[order], prompt, output, traces[0].duration, model, MODELS[: len(traces)])

    @property
    def settings(self) -> SimulationSettings:
        """As each model's own."""
        return self.alone[0].settings

    @property
    def short(self) -> float:
        """The share of what counts in which the loads of five minutes need more replicas than there are GPUs."""
        engine = PROFILES[self.card]
        total = np.zeros(0, dtype=np.int64)
        for cell in self.alone:
            counted = cell.trace.since(cell.begin)
            load = workloads.fluid(counted, engine, SLO_AIM, 300.0)
            held = calibration.holdings(counted, engine, SLO_AIM)[::5]
            each = [needed(h.capacities(1 - SLO_AIM.attainment), x) for h, x in zip(held, load, strict=True)]
            total = np.array(each) + (total if len(total) else 0)
        return float((total > self.gpus).mean())


class KedaByModel:
    """KEDA with a threshold of running requests for each model."""

    interval, keep = SYNC, 0.0

    def __init__(self, name: str, thresholds: Mapping[str, float], maximum: int) -> None:
        self.name = name
        self._scalers = {model: KEDAPolicy("running", per, 1, maximum) for model, per in thresholds.items()}

    def initial(self, variants: Sequence[VariantSpec]) -> Mapping[Key, int]:
        """As the manifests say."""
        found: dict[Key, int] = {}
        for model, scaler in self._scalers.items():
            found |= scaler.initial([spec for spec in variants if spec.model == model])
        return found

    def tick(self, now: float, fleet: SimulatedFleet, metrics: Metrics) -> Mapping[Key, int]:
        """One poll and one sync of each."""
        found: dict[Key, int] = {}
        for scaler in self._scalers.values():
            found |= scaler.tick(now, fleet, metrics)
        return found


def work(cell: SharedCell, name: str) -> dict[str, Any]:
    """One task; what it found, as a row of the table."""
    begin = time.process_time()
    initial = {model: one.initial()[cell.card] for model, one in zip(MODELS, cell.alone, strict=False)}
    policy: Policy
    if name == SPLIT:
        initial = dict(zip(MODELS, best_split(cell), strict=False))
    fleet = shared_fleet(initial, cell.card, cell.gpus, cell.startup)
    tuned = ""
    if name == KEDA:
        thresholds = dict(zip(MODELS, map(tuned_keda, cell.alone), strict=False))
        policy, tuned = KedaByModel(name, thresholds, cell.gpus), "+".join(f"{n:g}" for n in thresholds.values())
    elif name == SPLIT:
        policy, tuned = Fixed(), "+".join(map(str, initial.values()))
    else:
        (text,) = split(PRODUCT[name])
        policy = make(text, fleet.manifests, fleet.fleet_settings)
    run = simulate(cell.trace, fleet.variants, policy, cell.settings, nodes=fleet.nodes)
    hours = gpu_hours(run, cell.gpus)
    return {
        "cell": cell.name, "streams": ", ".join(f"{s.workload} {s.rate:g}" for s in cell.streams), "cards": cell.card,
        "gpus": cell.gpus, "short": cell.short, "seed": cell.seed, "startup": cell.startup, "held_out": True,
        "policy": name, **told(run), "hours": hours, "cost": hours * COSTS[cell.card], **_by_model(run),
        "tuned_each": tuned,
        "cpu_seconds": time.process_time() - begin,
    }  # fmt: skip


def gpu_hours(run: Run, gpus: int) -> float:
    """Hours of GPUs that replicas held: of those that exist as many as there are GPUs."""
    times, counts = run.replicas()
    edges = np.clip([*times, run.duration], run.begin, run.duration)
    return float(np.diff(edges) @ np.minimum(counts, gpus)) / 3600


def _by_model(run: Run) -> dict[str, float]:
    """The share of each model's requests within the targets."""
    results = run.results.since(run.begin)
    met = np.logical_and(*results.within(SLO_AIM))
    assert run.trace.model is not None
    model = run.trace.model[run.results.at >= run.begin]
    return {f"attained_{name}": float(met[model == place].mean()) for place, name in enumerate(run.trace.models)}


def best_split(cell: SharedCell) -> tuple[int, ...]:
    """With all arrivals known, the fewest replicas that hold the target for every model, if there are GPUs for them;
    else the split with which most requests are within the targets, of equals the one with more for the first."""
    most = cell.gpus - len(cell.alone) + 1
    met = np.array([_met(one, most) for one in cell.alone])
    counts = np.array([len(one.trace.since(one.begin)) for one in cell.alone])
    best: tuple[int, ...] = ()
    least = (math.inf, math.inf)
    for shares in itertools.product(range(most, 0, -1), repeat=len(counts)):
        if sum(shares) > cell.gpus:
            continue
        mine = met[range(len(counts)), np.array(shares) - 1]
        held = bool((mine >= SLO_AIM.attainment * counts).all())
        price = (-math.inf, float(sum(shares))) if held else (-float(mine.sum()), float(sum(shares)))
        if price < least:
            best, least = shares, price
    return best


def _met(cell: Cell, most: int) -> NDArray[np.float64]:
    """Requests within the targets with one, two ... replicas, all the time."""
    search = Search(cell.trace.since(cell.begin), cell.spec(), SLO_AIM, cell.settings)
    found = np.full(most, np.nan)
    for replicas in range(1, most + 1):
        met = search.run((), replicas).met
        found[replicas - 1 :] = met.sum()
        if met.all():
            break
    return found


SHARED = (
    SharedCell((Stream("burst", 1), Stream("ramp", 1), Stream("morning", 2)), "l40s", 7, 41),
    SharedCell((Stream("waves", 2), Stream("spikes", 1), Stream("batch", 2)), "l40s", 9, 42),
    SharedCell((Stream("evening", 3), Stream("burst", 3), Stream("ramp", 3)), "h100", 4, 43),
)
SHARED_SMALL = SharedCell((Stream("step", 0.5), Stream("step", 0.5)), "l40s", 3, 44)
