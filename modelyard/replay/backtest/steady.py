"""A steady load of equal requests on replicas of one engine, in virtual time: what its clients see."""

from __future__ import annotations

import dataclasses

import numpy as np

from modelyard.engine import EngineConfig
from modelyard.objects import Key
from modelyard.replay.backtest.simulate import simulate
from modelyard.replay.policies import Fixed
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulation import VariantSpec
from modelyard.traffic.traces import Results, Trace, from_rates


def steady_load(rate: float, prompt: int, output: int, seconds: float) -> Trace:
    """Poisson arrivals at ``rate`` per second, of at least one request, all of these lengths in tokens."""
    trace = from_rates([0.0, seconds], [rate], prompt, output)
    at = trace.at if len(trace) else np.zeros(1)
    return dataclasses.replace(
        trace, at=at, prompt=np.full(len(at), prompt, np.int64), output=np.full(len(at), output, np.int64)
    )


def steady(engine: EngineConfig, replicas: int, trace: Trace) -> Results:
    """What becomes of the requests where so many replicas are there all along."""
    variant = VariantSpec(Key("", "steady"), "", engine, initial=replicas)
    return simulate(trace, [variant], Fixed(replicas), SimulationSettings(pre_roll=0.0)).results
