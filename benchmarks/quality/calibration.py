"""How well the misses that ``attainment`` predicts are those that come: by load of a replica, minute by minute.

Predicted is ``Holding.missing`` of what arrived in a minute for the replicas that were ready in it, with sizes told
apart as the product tells them, and nothing learnt of the engines. What waits from minutes before is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from quality.workloads import fluid

from modelyard.autoscaling.sizing.stalls import Sizes, Speed, sizes_of
from modelyard.autoscaling.variants.attainment import Holding, holding_of
from modelyard.engine.config import EngineConfig
from modelyard.engine.metrics import one_two_five
from modelyard.metrics.vocabulary.queries import SIZED
from modelyard.replay.backtest.report import MINUTE, Timeline
from modelyard.traffic.traces.latency import SLO
from modelyard.traffic.traces.trace import Trace

TENTHS = 11
"""The last one is a load of 1 and more, at which all are taken to miss."""


class Tenth(NamedTuple):
    """Minutes in which a replica's load was in this tenth: how many, their requests, and those that were predicted to
    miss and did."""

    minutes: float
    requests: float
    predicted: float
    missed: float


def holdings(trace: Trace, engine: EngineConfig, slo: SLO) -> list[Holding]:
    """What replicas hold of the requests that came, minute by minute: sizes are told apart by ``SIZED`` minutes."""
    speed = Speed(engine.alpha, engine.beta, engine.gamma, engine.delta, 1000 * slo.ttft, 1000 * slo.itl)
    bounds = one_two_five(engine.context_limit)
    length = max(1, int(np.ceil(trace.duration / MINUTE)))
    found: list[Holding] = []
    for begin in range(0, length, SIZED):
        inside = slice(*np.searchsorted(trace.at, (MINUTE * begin, MINUTE * (begin + SIZED))))
        if inside.start == inside.stop:
            inside = slice(None)
        prompts, outputs = (_sizes(tokens[inside], bounds) for tokens in (trace.prompt, trace.output))
        found += SIZED * [holding_of(speed, prompts, outputs, 1.0)]
    return found[:length]


def _sizes(tokens: NDArray[np.int64], bounds: Sequence[float]) -> Sizes:
    counts = np.bincount(np.searchsorted(bounds, tokens), minlength=len(bounds) + 1)
    upper = (*bounds, np.inf)
    return sizes_of(tuple(zip(upper, counts / len(tokens), strict=True)), float(tokens.mean()))


def tenths(line: Timeline, load: NDArray[np.float64], held: Iterable[Holding], begin: float) -> list[Tenth]:
    """Predicted and seen, by tenth of the load of a replica. ``load`` in engines and ``held`` by minute; what comes
    before ``begin`` seconds does not count."""
    found = np.zeros((TENTHS, len(Tenth._fields)))
    counted = (line.minute * MINUTE >= begin) & (line.arrivals > 0) & (line.ready > 0)
    for minute, holding in enumerate(held):
        if not counted[minute]:
            continue
        replicas, requests = line.ready[minute], line.arrivals[minute]
        predicted = float(holding.missing(load[minute], replicas))
        place = min(int(10 * load[minute] / replicas), TENTHS - 1)
        found[place] += 1, requests, requests * predicted, requests * (1 - line.attainment[minute])
    return [Tenth(*row) for row in found.tolist()]


def columns(line: Timeline, trace: Trace, engine: EngineConfig, slo: SLO, begin: float) -> dict[str, float]:
    """The tenths of one replay as columns of its row."""
    rows = tenths(line, fluid(trace, engine, slo, MINUTE), holdings(trace, engine, slo), begin)
    return {f"load_{n}_{name}": value for n, row in enumerate(rows) for name, value in row._asdict().items()}


def of_row(row: dict[str, float]) -> list[Tenth]:
    """The tenths from a row's columns."""
    return [Tenth(*(row[f"load_{n}_{name}"] for name in Tenth._fields)) for n in range(TENTHS)]
