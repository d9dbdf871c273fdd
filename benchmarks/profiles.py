"""How well profiles are recovered, and what they predict.

    python benchmarks/profiles.py [means] [engines] [loads] [sizing]

``means``: lines through run means that are off by normal noise of 10 %. ``engines``: simulated engines whose every step
is off by 10 %, found by replaying the loads of their runs. ``loads``: predicted percentiles against those of loads that
were not measured. ``sizing``: the rate a replica is given against the highest at which it keeps its target.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from modelyard.autoscaling.sizing.answers import Targets
from modelyard.autoscaling.sizing.experiment import PlannedRun, next_run, smallest
from modelyard.autoscaling.sizing.fit import Fit, Point, fit
from modelyard.autoscaling.sizing.profiles import Profiles
from modelyard.autoscaling.sizing.sizes import size
from modelyard.engine.config import PROFILES, EngineConfig
from modelyard.profiles.fitting.closed_loop import PredictedPoint, serve
from modelyard.profiles.fitting.engine_fit import fit_engine, predicted, sizing_profile

ENGINES, NOISE, OUTPUT = 200, 0.1, 128
NAMES = ("alpha", "beta", "gamma", "delta")


def engine_of(number: int) -> EngineConfig:
    """A random engine."""
    chance = random.Random(number)
    alpha, beta = chance.uniform(5, 25), chance.uniform(0.03, 0.3)
    gamma, delta = chance.uniform(10, 60), chance.uniform(0.002, 0.1)
    batch = chance.choice((64, 128, 256))
    return EngineConfig(alpha, beta, gamma, delta, max_num_seqs=batch, kv_cache_tokens=4_000_000, jitter=NOISE)


def errors(found: Fit, engine: EngineConfig) -> list[float]:
    """Of the parameters, relative."""
    return [getattr(found, name).estimate / getattr(engine, name) - 1 for name in NAMES]


def table(title: str, rows: list[tuple[str, list[list[float]]]]) -> None:
    """Errors of engines, a line each."""
    print(f"| {title} | " + " | ".join(f"{name}: median, worst, bias" for name in NAMES) + " |")
    print("| ---: |" + " --- |" * len(NAMES))
    for what, found in rows:
        each = np.array(found).T
        cells = (f"{np.median(abs(one)):.1%}, {abs(one).max():.0%}, {np.mean(one):+.1%}" for one in each)
        print(f"| {what} | " + " | ".join(cells) + " |", flush=True)


def noisy(engine: EngineConfig, run: PlannedRun, chance: random.Random) -> Point:
    """Means of an engine that follows the reference model, off by the noise."""
    ttft = engine.gamma + engine.delta * run.prompt_tokens * run.concurrency
    itl = engine.alpha + engine.beta * run.concurrency
    return Point(*run, OUTPUT, ttft * chance.gauss(1, NOISE), itl * chance.gauss(1, NOISE))


def means() -> None:
    """By rounds of the planned runs, by runs chosen one after the other, and what no choice of runs can do better."""
    engines = [engine_of(number) for number in range(ENGINES)]
    rows = []
    for repeats in (1, 2, 5, 10, 25, 50, 100):
        found = []
        for number, engine in enumerate(engines):
            chance = random.Random(number)
            runs = smallest(engine.max_num_seqs, (128, 1024)) * repeats
            found.append(errors(fit([noisy(engine, run, chance) for run in runs]), engine))
        rows.append((str(4 * repeats), found))
    for tight in (0.05, 0.02):
        found, counts = [], []
        for number, engine in enumerate(engines):
            chance, plan = random.Random(number), smallest(engine.max_num_seqs, (128, 1024))
            points = [noisy(engine, run, chance) for run in plan]
            while (now := next_run(fit(points), plan, tight)) is not None and len(points) < 400:
                points += [noisy(engine, now, chance) for _ in range(1 + len(points) // 20)]
            counts.append(len(points))
            found.append(errors(fit(points), engine))
        rows.append((f"until ±{tight:.0%}: {np.median(counts):.0f}, at most {max(counts)}", found))
    table("Runs", rows)
    needed = []
    for engine in engines:
        batch = engine.max_num_seqs
        both = NOISE * (2 * engine.alpha + engine.beta * (batch + 1))
        needed.append((3 * both / ((batch - 1) * engine.beta * 0.1)) ** 2)
    print(f"\nRuns for beta within 10 % at three deviations, at 1 and at the batch: median {np.median(needed):.0f},")
    print(f"90 % of engines {np.percentile(needed, 90):.0f}, all {max(needed):.0f}")


def measured(engine: EngineConfig, run: PlannedRun, seed: int, spread: bool = False) -> Point:
    """What a benchmark of an engine finds."""
    point = Point(*run, OUTPUT, 1, 1, requests=max(8 * run.concurrency, 100))
    if spread:
        point = point._replace(prompt_spread=run.prompt_tokens / 4, output_spread=OUTPUT / 4)
    times = np.array([one[:2] for one in serve(engine, point, seed)]).T
    parts = [float(np.percentile(one, part)) for one in times for part in (50, 95)]
    ttft, itl = times.mean(axis=1).tolist()
    named = zip(PredictedPoint._fields, parts, strict=True)
    return point._replace(ttft=ttft, itl=itl, **dict(named))


def engines() -> None:
    """By the four planned runs."""
    found = []
    for number in range(ENGINES):
        engine = engine_of(number)
        plan = smallest(engine.max_num_seqs, (128, 1024))
        points = [measured(engine, run, 1000 * number + index) for index, run in enumerate(plan)]
        found.append(errors(fit_engine(points), engine))
    table("Runs", [("4", found)])


def loads() -> None:
    """Of three engines, fitted to the four planned runs."""
    print(
        "| Lengths of requests | " + " | ".join(f"{name}: within 10 %, worst" for name in PredictedPoint._fields) + " |"
    )
    print("| --- |" + " --- |" * 4)
    for spread in (False, True):
        off = []
        for number, card in enumerate(PROFILES.values()):
            engine = replace(card, max_num_seqs=64, kv_cache_tokens=4_000_000, jitter=NOISE)
            plan = smallest(64, (128, 1024))
            found = fit_engine([measured(engine, run, 10 * number + index) for index, run in enumerate(plan)])
            for level in (1, 4, 8, 16, 32, 48, 64):
                for prompt in (128, 256, 512, 1024, 2048):
                    point = measured(engine, PlannedRun(level, prompt), 999 + level, spread)
                    between = predicted(found, point)
                    off.append([between.off(name, getattr(point, name)) for name in PredictedPoint._fields])
        each = abs(np.array(off)).T
        cells = (f"{np.mean(one <= 0.1):.0%}, {one.max():.0%}" for one in each)
        print(f"| {'differ' if spread else 'are one'} | " + " | ".join(cells) + " |", flush=True)


def highest_rate(engine: EngineConfig, lengths: tuple[int, int], ttft: float, itl: float) -> float:
    """Requests per second at which mean TTFT and ITL are still within the target."""
    low, high = 0.1, 300.0
    point = Point(1, *lengths, 1, 1, requests=1500, prompt_spread=lengths[0] / 3, output_spread=lengths[1] / 3)
    for _ in range(10):
        middle = (low * high) ** 0.5
        means = np.array([one[:2] for one in serve(engine, point, 3, middle)[150:]]).mean(axis=0)
        low, high = (middle, high) if means[0] <= ttft and means[1] <= itl else (low, middle)
    return low


def sizing() -> None:
    """By the engine's own parameters, by lines through the runs, and by the profile laid through the engine."""
    print("| Prompt + output | engine's parameters | straight lines | profile |")
    print("| --- | --- | --- | --- |")
    for prompt, output in ((128, 128), (512, 256), (1024, 128), (2048, 256)):
        ratios: list[list[float]] = [[], [], []]
        for number, card in enumerate(PROFILES.values()):
            engine = replace(card, max_num_seqs=64, kv_cache_tokens=4_000_000, jitter=NOISE)
            plan = smallest(64, (128, 1024))
            points = [measured(engine, run, 10 * number + index) for index, run in enumerate(plan)]
            found = fit_engine(points)
            for ttft, factor in ((500, 2), (1000, 3), (2000, 5)):
                best = highest_rate(engine, (prompt, output), ttft, factor * engine.alpha)
                target = Targets.each(1, ttft=ttft, itl=factor * engine.alpha)
                kinds = found, fit(points), sizing_profile(found, prompt, output, max_batch=64)
                for one, ratio in zip(kinds, ratios, strict=True):
                    row = [*(getattr(one, name).estimate for name in NAMES), 64, prompt, output]
                    ratio.append(float(size(Profiles.of([row]), target).rate[0]) / best)
        cells = (f"{min(one):.2f} to {max(one):.2f}" for one in ratios)
        print(f"| {prompt} + {output} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    parts: dict[str, Callable[[], None]] = {one.__name__: one for one in (means, engines, loads, sizing)}
    for name in sys.argv[1:] or parts:
        print(f"\n{name}\n", flush=True)
        parts[name]()
