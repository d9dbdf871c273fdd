"""The chain written down state by state, in plain numbers: what the arrays are compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Naive:
    throughput: float
    in_system: float
    in_service: float
    wait: float
    seen: float
    probabilities: tuple[float, ...]


def naive(base: float, slope: float, batch: int, queue: int, rate: float) -> Naive:
    """``rate`` per second; exact rational arithmetic, so nothing cancels and nothing overflows."""
    arrivals = Fraction(rate) / 1000
    weights = [Fraction(1)]
    for n in range(1, batch + queue + 1):
        busy = min(n, batch)
        weights.append(weights[-1] * arrivals * (Fraction(base) + Fraction(slope) * busy) / busy)
    total = sum(weights)
    states = [w / total for w in weights]
    throughput = arrivals * (1 - states[-1])
    in_system = sum(n * p for n, p in enumerate(states))
    in_service = sum(min(n, batch) * p for n, p in enumerate(states))
    accepted = 1 - states[-1]
    seen = sum(min(n + 1, batch) * p for n, p in enumerate(states[:-1])) / accepted
    return Naive(
        throughput=float(throughput * 1000),
        in_system=float(in_system),
        in_service=float(in_service),
        wait=float((in_system - in_service) / throughput),
        seen=float(seen),
        probabilities=tuple(float(p) for p in states),
    )


def latencies(row: tuple[float, ...], rate: float) -> tuple[float, float]:
    """TTFT and ITL in ms of a row of ``Profiles`` at a rate per second, in plain numbers: quick at any batch."""
    alpha, beta, gamma, delta, batch, prompt, output = row
    base, slope = gamma + (output - 1) * alpha, delta * prompt + (output - 1) * beta
    log, logs = 0.0, [0.0]
    for n in range(1, int(batch) * 11):  # what an accepted request may find: all but the last state
        busy = min(n, batch)
        log += math.log(rate / 1000 * (base + slope * busy) / busy)
        logs.append(log)
    weights = [math.exp(log - max(logs)) for log in logs]
    seen = math.fsum(min(n + 1, batch) * w for n, w in enumerate(weights)) / math.fsum(weights)
    found = math.fsum(max(0.0, n + 1 - batch) * w for n, w in enumerate(weights)) / math.fsum(weights)
    return found * (base + slope * batch) / batch + gamma + delta * prompt * seen, alpha + beta * seen


def waits_longer(base: float, slope: float, batch: int, queue: int, rate: float, time: float) -> float:
    """Probability that an accepted request waits longer than ``time`` ms: Erlang by Erlang."""
    found = naive(base, slope, batch, queue, rate).probabilities
    mean = batch / (base + slope * batch) * time
    total = 0.0
    for i in range(queue):
        erlang = sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(i + 1))
        total += found[batch + i] * erlang
    return total / (1 - found[-1])
