"""The engine behind a benchmark's runs, and the profile by which its replicas are sized."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from modelyard.autoscaling.sizing.answers import Targets
from modelyard.autoscaling.sizing.experiment import PlannedRun, smallest
from modelyard.autoscaling.sizing.fit import Fit, FitError, Point, fit
from modelyard.autoscaling.sizing.profiles import Profiles
from modelyard.autoscaling.sizing.sizes import size
from modelyard.engine.config import PROFILES, EngineConfig
from modelyard.profiles.fitting import engine_fit
from modelyard.profiles.fitting.closed_loop import PredictedPoint, ServedRequest, serve
from modelyard.profiles.fitting.engine_fit import fit_engine, predicted, sizing_profile

NAMES = ("alpha", "beta", "gamma", "delta")
ENGINE = replace(PROFILES["a100"], jitter=0.1)
PLAN = smallest(32, (128, 1024))


def measured(config: EngineConfig, run: PlannedRun, seed: int = 1000, output: int = 64) -> Point:
    point = Point(*run, output, 1, 1, requests=max(8 * run.concurrency, 64))
    served = serve(config, point, seed)
    ttft, itl = [one.ttft for one in served], [one.itl for one in served]
    percentiles = [float(np.percentile(times, part)) for times in (ttft, itl) for part in (50, 95)]
    return Point(*run, output, float(np.mean(ttft)), float(np.mean(itl)), *percentiles, len(served))


def off(found: Fit, config: EngineConfig) -> list[float]:
    return [getattr(found, name).estimate / getattr(config, name) - 1 for name in NAMES]


RUNS = [measured(ENGINE, run, 1000 + number) for number, run in enumerate(PLAN)]
FOUND = fit_engine(RUNS)


@given(st.integers(1, 40), st.integers(1, 3000), st.integers(1, 40), st.none() | st.floats(0.5, 20))
@settings(max_examples=40, deadline=None)
def test_latencies_are_sums_of_what_was_computed(flying: int, prompt: int, output: int, rate: float | None) -> None:
    """Chunked or not, in a closed loop or not, with prompts of one length or several."""
    config = replace(PROFILES["h100"], jitter=0.0, max_num_seqs=16)
    point = Point(flying, prompt, output, 1, 1, requests=50, prompt_spread=prompt / 3)
    for one in serve(config, point, rate=rate):
        parameters = [getattr(config, name) for name in NAMES]
        assert one.ttft == pytest.approx(np.dot(parameters, one.in_ttft), rel=1e-6, abs=1e-6)
        assert one.itl == pytest.approx(np.dot(parameters, one.in_itl), rel=1e-6, abs=1e-6)


def test_an_engine_is_found_from_four_runs_where_straight_lines_are_far_off() -> None:
    """Half of the runs have more prompts in flight than fit into a step."""
    assert max(map(abs, off(FOUND, ENGINE))) < 0.1
    assert max(map(abs, off(fit(RUNS), ENGINE))) > 0.5
    assert FOUND.warnings == ()
    assert FOUND.itl.r_squared > 0.99


def test_loads_that_were_not_measured_are_predicted() -> None:
    for run in (PlannedRun(4, 512), PlannedRun(16, 300), PlannedRun(32, 512)):
        seen = measured(ENGINE, run, 77)
        between = predicted(FOUND, seen)
        far = [between.off(name, getattr(seen, name)) for name in PredictedPoint._fields]
        assert max(map(abs, far[2:])) < 0.1
        assert abs(far[1]) < 0.3


def test_another_engine_is_not_what_is_predicted() -> None:
    seen = measured(replace(ENGINE, alpha=2 * ENGINE.alpha), PlannedRun(16, 300))
    assert abs(predicted(FOUND, seen).off("itl_p50", seen.itl_p50 or 0)) > 0.3


def test_errors_of_a_third_and_outliers_move_little() -> None:
    runs = [measured(ENGINE, run, 10 * again + number) for again in range(3) for number, run in enumerate(PLAN)]
    chance = random.Random(4)
    noisy = [run._replace(ttft=run.ttft * chance.gauss(1, 0.05), itl=run.itl * chance.gauss(1, 0.02)) for run in runs]
    for wrong, factor in ((0, 1.3), (5, 0.7), (10, 1.3), (3, 8.0)):
        broken = list(noisy)
        broken[wrong] = broken[wrong]._replace(ttft=broken[wrong].ttft * factor, itl=broken[wrong].itl * factor)
        found = off(fit_engine(broken), ENGINE)
        assert max(abs(one) for one in (found[0], found[2], found[3])) < 0.15
        assert abs(found[1]) < 0.6


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (RUNS[:1], "1 different concurrency level"),
        ([RUNS[0], RUNS[3]], "about 128 tokens.*32 or 512 tokens is missing"),
        ([RUNS[0]._replace(concurrency=0), *RUNS], "concurrency is 0"),
        ([RUNS[0]._replace(ttft=float("nan")), *RUNS], "ttft is nan"),
        ([RUNS[0], RUNS[3]._replace(prompt_tokens=1e9, requests=None)], "would take .* steps"),
        ([RUNS[0], RUNS[3]._replace(concurrency=1e6, prompt_tokens=1000)], "would take .* steps"),
        ([RUNS[0], RUNS[3]._replace(concurrency=9000, output_tokens=1, requests=1e6)], "would take .* requests"),
        ([*RUNS[:3], RUNS[3]._replace(itl=1.0), RUNS[3]._replace(itl=1.1)], "ITL falls by"),
    ],
)
def test_what_determines_nothing_is_refused(runs: Sequence[Point], message: str) -> None:
    with pytest.raises(FitError, match=message):
        fit_engine(runs)


@pytest.mark.parametrize(("prompt", "output"), [(512, 64), (128, 64), (2048, 128)])
def test_replicas_are_sized_as_the_engine_can_take(prompt: int, output: int) -> None:
    """At the rate that the queueing model gives a replica it keeps the target; at a third more it does not."""
    ttft, itl = 400.0, 2 * ENGINE.alpha
    profile = sizing_profile(FOUND, prompt, output, max_batch=32)
    row = [*(getattr(profile, name).estimate for name in NAMES), 32, prompt, output]
    rate = float(size(Profiles.of([row]), Targets.each(1, ttft=ttft, itl=itl)).rate[0])
    config = replace(ENGINE, max_num_seqs=32)

    def seen(rate: float) -> tuple[float, float]:
        served = serve(config, Point(1, prompt, output, 1, 1, requests=1500), 5, rate)[100:]
        return float(np.mean([one.ttft for one in served])), float(np.mean([one.itl for one in served]))

    kept, beyond = seen(rate), seen(1.33 * rate)
    assert kept[0] < 1.1 * ttft
    assert kept[1] < 1.1 * itl
    assert beyond[0] > ttft or beyond[1] > itl


def test_watching_an_engine_takes_no_longer_for_the_longest_answers_that_a_tenant_may_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their lengths are in an annotation of the tenant's, and other tenants' profiles are fitted after its own."""
    tokens: list[float] = []

    def counted(config: EngineConfig, point: Point, seed: int = 0, rate: float | None = None) -> list[ServedRequest]:
        if rate is not None:
            tokens.append((point.requests or 0) * point.output_tokens)
        return serve(config, point._replace(prompt_tokens=8, output_tokens=8, output_spread=0), seed, rate)

    monkeypatch.setattr(engine_fit, "serve", counted)
    for output in (64, 1000, 30_000):
        with suppress(FitError):
            sizing_profile(FOUND, 128, output, max_batch=2)
    assert len(tokens) == 3 * len(engine_fit.SHARES)
    assert max(tokens) <= 2 * engine_fit.WATCHED_TOKENS


def test_the_cache_bounds_the_batch() -> None:
    found = fit_engine(RUNS, kv_tokens=4096)
    assert sizing_profile(found, 960, 64, max_batch=32).ranges["concurrency"][1] <= 4
