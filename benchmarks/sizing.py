"""What sizing a fleet costs: 10,000 (variant, accelerator) pairs with two latency targets each, on one core.

    python benchmarks/sizing.py [--rows 10000] [--batch 64 256] [--rounds 3] [--sample 5]
                                [--percentile 95]

Prints the CPU seconds of ``size`` in repaired mode and the ratio to a reference in this file: the documented algorithm
(chain over all states, bisection to 1e-6) in plain double-precision Python, one row after the other. The reference is
timed on ``--sample`` rows and scaled to all; the rates of both are compared on those rows.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import gc
import math
import statistics
import time
from collections.abc import Callable

import numpy as np

from modelyard.autoscaling.sizing.answers import Targets
from modelyard.autoscaling.sizing.profiles import Profiles
from modelyard.autoscaling.sizing.sizes import size

Row = tuple[float, float, float, float, int, float, float]


def build(rows: int, batch: int) -> tuple[Profiles, Targets]:
    """Accelerators of different speed, requests of different size, targets that bind somewhere in between."""
    random = np.random.default_rng(7)
    slow = random.uniform(0.5, 3.0, rows)
    alpha, beta = 7.5 * slow, 0.05 * slow * 96 / batch
    gamma, delta = 12 * slow, 0.002 * slow * 96 / batch
    prompt, output = random.uniform(64, 2048, rows), random.uniform(32, 768, rows)
    profiles = Profiles.from_columns(alpha, beta, gamma, delta, batch, prompt, output)
    itl = alpha + beta * batch * random.uniform(0.1, 0.9, rows)
    ttft = (gamma + delta * prompt * batch) * random.uniform(0.5, 6.0, rows)
    return profiles, Targets(ttft=ttft, itl=itl, tps=np.zeros(rows))


def reference_measures(row: Row, rate: float) -> tuple[float, float, float]:
    """TTFT, ITL and throughput at a rate per ms: the chain state by state."""
    alpha, beta, gamma, delta, batch, prompt, output = row
    steps = output - 1
    top = batch + 10 * batch
    logs, log = [0.0], 0.0
    for n in range(1, top + 1):
        busy = min(n, batch)
        log += math.log(rate * (gamma + delta * prompt * busy + steps * (alpha + beta * busy)) / busy)
        logs.append(log)
    peak = max(logs)
    weights = [math.exp(value - peak) for value in logs]
    total = sum(weights)
    throughput = rate * (1 - weights[-1] / total)
    response = sum(n * w for n, w in enumerate(weights)) / total / throughput
    service = sum(min(n, batch) * w for n, w in enumerate(weights)) / total / throughput
    seen = (service - (gamma + alpha * steps)) / (delta * prompt + beta * steps)
    seen = min(max(seen, 0.0), batch)
    wait = max(response - service, 0.0)
    return wait + gamma + delta * prompt * seen, alpha + beta * seen, throughput


def reference_rate(row: Row, target: float, which: int, low: float, high: float) -> float:
    """Highest rate per ms within a target: the documented search for a rising latency."""
    at_low, at_high = reference_measures(row, low)[which], reference_measures(row, high)[which]
    for end, value in ((low, at_low), (high, at_high)):
        if abs(value - target) <= 1e-6 * target:
            return end
    if target < at_low:
        return math.nan
    if target > at_high:
        return high
    middle = low
    for _ in range(100):
        middle = 0.5 * (low + high)
        value = reference_measures(row, middle)[which]
        if abs(value - target) <= 1e-6 * target:
            break
        low, high = (middle, high) if value < target else (low, middle)
    return middle


def reference(row: Row, ttft: float, itl: float) -> float:
    """Requests per second of one replica, as documented."""
    alpha, beta, gamma, delta, batch, prompt, output = row
    base, slope = gamma + (output - 1) * alpha, delta * prompt + (output - 1) * beta
    low, high = 0.001 / (base + slope), 0.999 * batch / (base + slope * batch)
    rate = min(reference_rate(row, ttft, 0, low, high), reference_rate(row, itl, 1, low, high))
    return reference_measures(row, rate)[2] * 1000


def seconds(call: Callable[[], object], rounds: int) -> float:
    """Median CPU seconds of a call."""
    times = []
    for _ in range(rounds):
        gc.collect()
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description="CPU seconds of sizing a fleet of replicas within two latency targets."
    )
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sample", type=int, default=5)
    parser.add_argument("--percentile", type=float, help="also time sizing for this percentile of TTFT")
    options = parser.parse_args()
    for batch in options.batch:
        profiles, targets = build(options.rows, batch)
        taken = seconds(lambda p=profiles, t=targets: size(p, t), options.rounds)  # type: ignore[misc]
        ours = size(profiles, targets).rate
        print(
            f"max batch {batch}, {options.rows} rows: {taken:.3f} s of CPU, {taken / options.rows * 1e6:.0f} µs per row"
        )
        if options.percentile is not None:
            took = seconds(lambda p=profiles, t=targets: size(p, t, percentile=options.percentile), options.rounds)  # type: ignore[misc]
            print(f"  for the {options.percentile:g}th percentile of TTFT: {took:.3f} s of CPU")
        columns = (profiles.alpha, profiles.beta, profiles.gamma, profiles.delta)
        sample = np.linspace(0, options.rows - 1, options.sample).astype(int)
        theirs = []
        start = time.process_time()
        for i in sample:
            a, b, g, d = (float(column[i]) for column in columns)
            row = (a, b, g, d, batch, float(profiles.prompt_tokens[i]), float(profiles.output_tokens[i]))
            theirs.append(reference(row, float(targets.ttft[i]), float(targets.itl[i])))
        whole = (time.process_time() - start) / len(sample) * options.rows
        worst = float(np.max(np.abs(ours[sample] / np.array(theirs) - 1)))
        print(f"  scalar reference: {whole:.0f} s of CPU (timed on {len(sample)} rows and scaled to {options.rows})")
        print(f"  ratio reference/size: {whole / taken:.0f}; largest relative difference of rates: {worst:.1e}")


if __name__ == "__main__":
    main()
