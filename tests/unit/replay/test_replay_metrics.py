"""What Prometheus would have: samples, windows, extrapolation, staleness, and the signals made of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from replay_fleets import ENGINE, KEY, Script, poisson, spec

from modelyard.metrics.vocabulary.vocabulary import Signal
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulation.fleet import SimulatedFleet
from modelyard.replay.simulation.metrics import SCRAPED, Metrics, PodSample, delta, field_of, increase
from modelyard.replay.simulation.signals import SignalReader

finished, running = field_of(Signal.FINISHED), field_of(Signal.RUNNING)


def samples(*pairs: tuple[float, int]) -> list[PodSample]:
    """Every metric has the same value."""
    return [PodSample(at, (value,) * len(SCRAPED)) for at, value in pairs]


@pytest.mark.parametrize(
    ("pairs", "now", "window", "expected"),
    [
        # Worked by hand from the algorithm: 90 over 45 s, carried on to both edges, 5 and 10 s away.
        ([(5, 100), (20, 130), (35, 160), (50, 190)], 60, 60, 90 * 60 / 45),
        # The first sample is far from the edge: only half an interval (7.5 s) before it, 10 s after the last.
        ([(35, 100), (50, 130)], 60, 60, 30 * (15 + 7.5 + 10) / 15),
        # A counter is not carried on below zero: it started 5 s before its first sample.
        ([(35, 10), (50, 40)], 60, 60, 30 * (15 + 5 + 10) / 15),
        # Both ends far away.
        ([(20, 100), (30, 110)], 60, 60, 10 * (10 + 5 + 5) / 10),
        # Nothing happened.
        ([(5, 7), (20, 7), (35, 7), (50, 7)], 60, 60, 0.0),
    ],
)
def test_increase_is_extrapolated_as_prometheus_does(
    pairs: list[tuple[float, int]], now: float, window: float, expected: float
) -> None:
    assert increase(samples(*pairs), finished, now, window) == pytest.approx(expected)


def test_a_gauge_may_fall_and_one_sample_says_nothing() -> None:
    falling = samples((5, 40), (20, 30), (35, 20), (50, 10))
    assert delta(falling, running, 60, 60) == pytest.approx(-40)
    assert math.isnan(delta(falling[:1], running, 60, 60))
    assert math.isnan(increase([], finished, 60, 60))


def run(steps: Script, seconds: float = 600.0, rate: float = 4.0) -> tuple[SimulatedFleet, Metrics]:
    metrics = Metrics(15.0, keep=600.0)
    settings = SimulationSettings(pre_roll=600, actuation_delay=0, seed=5)
    fleet = SimulatedFleet(poisson(rate, seconds), [spec(initial=2, startup=20)], settings, metrics.take)
    fleet.run(lambda now: steps.tick(now, fleet, metrics), 1.0)
    return fleet, metrics


def test_every_pod_is_sampled_at_its_own_phase() -> None:
    _, metrics = run(Script((100, 4)))
    phases = set()
    for series in metrics.series(600):
        gaps = {round(b.at - a.at, 6) for a, b in itertools.pairwise(series.samples)}
        assert gaps == {15.0}
        assert all(sample.at >= series.pod.ready_at for sample in series.samples)
        phases.add(round(series.samples[0].at % 15, 3))
    assert len(phases) == 4


def test_windows_hold_the_samples_of_a_half_open_interval() -> None:
    _, metrics = run(Script())
    series = next(metrics.series(600))
    last = series.samples[-1].at
    assert [sample.at for sample in series.window(last, 30)] == [last - 15, last]
    assert [sample.at for sample in series.window(last, 30.001)] == [last - 30, last - 15, last]


def test_the_signals_agree_with_what_happened() -> None:
    fleet, metrics = run(Script(), rate=4.0)
    now = 600.0
    signals = SignalReader(metrics, 1000.0, history=300).read(
        now, peak_window=60, load_window=120, retentions=[300], gateway_queue={("chat", "llama"): 2.0}
    )
    assert [signal.pod for signal in signals.pods] == ["llama-0", "llama-1"]
    load = signals.loads["chat", "llama"].arrivals
    assert load == pytest.approx(4.0, rel=0.25)
    inside = int(((fleet.trace.at > 300) & (fleet.trace.at <= 600)).sum())
    assert signals.request_counts["chat", "llama", 300] == pytest.approx(inside, rel=0.08)
    total = sum(signal.completed_rate or 0 for signal in signals.pods)
    assert total == pytest.approx(inside / 300, rel=0.08)
    assert signals.gateway_queue == {("chat", "llama"): 2.0}
    assert signals.last_seen["chat", "llama"] == pytest.approx(1600, abs=15)
    for one in signals.performance:
        assert one.prompt_tokens == pytest.approx(100, rel=0.2)
        assert one.output_tokens == pytest.approx(50, rel=0.2)
        assert one.kv_tokens == ENGINE.kv_capacity
        assert one.itl is not None
        assert 10 < one.itl < 40
        assert one.ttft is not None
        assert 10 < one.ttft < 200


def test_a_count_needs_a_model_that_was_there_when_the_window_began() -> None:
    metrics = Metrics(15.0, keep=600.0)
    settings = SimulationSettings(pre_roll=100)
    fleet = SimulatedFleet(poisson(4, 300), [spec()], settings, metrics.take)
    fleet.run()
    reader = SignalReader(metrics, 0.0, history=300)
    # Since second -100 there are samples: five minutes before second 300 there were some, ten minutes before none.
    counts = reader.read(300, peak_window=60, load_window=60, retentions=[300, 900]).request_counts
    assert set(counts) == {("chat", "llama", 300)}


def test_a_pod_that_ended_fades() -> None:
    fleet, metrics = run(Script((300, 1)))
    gone = next(pod for pod in fleet.pods if not math.isnan(pod.ended))
    series = next(one for one in metrics.series(600) if one.pod is gone)
    last = series.samples[-1].at
    assert last <= gone.ended
    assert metrics.instant(series, gone.ended + 30) is series.samples[-1]
    assert metrics.instant(series, gone.ended + 34) is None, "marked stale after two scrapes and a bit"
    assert len(series.window(gone.ended + 50, 60)) > 0, "a window still holds its samples"


def test_samples_nobody_asks_for_are_dropped() -> None:
    metrics = Metrics(15.0, keep=60.0)
    fleet = SimulatedFleet(poisson(1, 3000), [spec()], SimulationSettings(), metrics.take)
    fleet.run()
    (series,) = metrics.series(3000)
    assert len(series.samples) <= (300 + 300) / 15 + 2


def test_load_rises_with_the_queue_when_the_engines_are_saturated() -> None:
    metrics = Metrics(15.0)
    slow = replace(ENGINE, max_num_seqs=2)
    fleet = SimulatedFleet(poisson(10, 300), [spec(engine=slow)], SimulationSettings(), metrics.take)
    seen: list[float | None] = []
    reader = SignalReader(metrics, 0.0, history=120)

    def tick(now: float) -> dict[object, int]:
        signals = reader.read(now, peak_window=60, load_window=60)
        load = signals.loads.get((KEY.namespace, "llama"))
        seen.append(load.arrivals if load else None)
        assert load is None or all(now - at <= 120 for at, _ in load.history)
        return {}

    fleet.run(tick, 15.0)  # type: ignore[arg-type]
    assert seen[10] == pytest.approx(10, rel=0.2), "arrivals, not completions"
