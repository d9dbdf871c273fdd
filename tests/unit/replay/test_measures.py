"""What is measured of a pod is said once, in the fields of its values: each goes all the way, and so does a new one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from builders import NOW, Serving, make_fleet
from replay_fleets import ENGINE, poisson, spec

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.offline.snapshot import Snapshot, signals_of, snapshot_of
from modelyard.autoscaling.what_if.load import scale_load
from modelyard.metrics.prometheus.client import Sample
from modelyard.metrics.prometheus.signals import read_performance, read_pods
from modelyard.metrics.vocabulary import values
from modelyard.metrics.vocabulary.queries import fleet_queries, performance_queries
from modelyard.metrics.vocabulary.values import Over, PodMeasures, PodPerformance, PodSignal, Signals, UnderLoad
from modelyard.metrics.vocabulary.vocabulary import ENGINES
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulation.fleet import SimulatedFleet
from modelyard.replay.simulation.metrics import Metrics
from modelyard.replay.simulation.signals import SignalReader

both = pytest.mark.parametrize("told", [PodSignal, PodPerformance])


def numbers(one: PodMeasures) -> dict[str, float | None]:
    return {name: getattr(one, name) for name in one.measures()}


def only(signals: Signals, told: type[PodMeasures]) -> PodMeasures:
    (one,) = signals.pods if told is PodSignal else signals.performance
    return one


def answered(told: type[PodMeasures]) -> tuple[dict[str, float], Signals]:
    """A number for every value, and the signals of one pod when every query is answered accordingly."""
    expected, answers = {}, {}
    for number, (name, measure) in enumerate(told.measures().items(), start=1):
        expected[name] = NOW - 5 if measure.over is Over.TIME else number / (16 if measure.limit else 1)
        labels = {"namespace": "chat", "pod": "a-0", "model_name": "llama"}
        answers[measure.purpose] = [Sample(labels, expected[name] / measure.scale)]
    return expected, Signals(pods=read_pods(answers), performance=read_performance(answers))


def test_no_two_queries_have_one_name() -> None:
    measures = [*PodSignal.measures().values(), *PodPerformance.measures().values()]
    assert len({measure.purpose for measure in measures}) == len(measures)


@both
def test_every_value_is_asked_of_every_engine_that_has_it(told: type[PodMeasures]) -> None:
    queries = fleet_queries(60) | performance_queries(60, ["chat"])
    for measure in told.measures().values():
        for engine in ENGINES.values():
            if measure.signal in engine.of:
                names = {*engine.of[measure.signal].names, *(ratio.top for ratio in engine.ratios(measure.signal))}
                assert any(name in queries[measure.purpose] for name in names)


@both
def test_every_value_comes_from_its_query_and_survives_a_snapshot(told: type[PodMeasures]) -> None:
    expected, signals = answered(told)
    assert numbers(only(signals, told)) == expected
    text = snapshot_of(Fleet(now=NOW, signals=signals))
    again = signals_of(Snapshot.model_validate(yaml.safe_load(text)), NOW)
    assert only(again, told) == only(signals, told)


@both
def test_a_replay_has_every_value(told: type[PodMeasures]) -> None:
    metrics = Metrics(15.0)
    one = spec(engine=replace(ENGINE, prefix_hit_ratio=0.5))
    fleet = SimulatedFleet(poisson(4, 300), [one], SimulationSettings(), metrics.take)
    fleet.run()
    signals = SignalReader(metrics, 0.0, history=300).read(300, peak_window=60, load_window=60)
    assert None not in numbers(only(signals, told)).values()


@both
def test_every_value_says_what_becomes_of_it_under_another_load(told: type[PodMeasures]) -> None:
    fleet = make_fleet(Serving("a", load=[(0.25, 2.0)], running=10))
    (pod,) = fleet.signals.pods
    before = replace(only(answered(told)[1], told), namespace=pod.namespace, pod=pod.pod, model=pod.model)
    there = {"pods" if told is PodSignal else "performance": (before,)}
    fleet, _ = scale_load(replace(fleet, signals=replace(fleet.signals, **there)), FleetSettings(), "", 3.0)
    after = numbers(only(fleet.signals, told))
    for name, measure in told.measures().items():
        was = getattr(before, name)
        becomes = {UnderLoad.UNKNOWN: None, UnderLoad.SAME: was, UnderLoad.SHARED: 3 * was}
        assert after[name] == becomes.get(measure.under_load, after[name]), name


ONE_MORE = """
    preemptions: float | None = _measured(Signal.PREEMPTIONS, Over.RATE, "preemptions{0}", "preemptions per second")
"""


def test_a_new_value_is_one_more_field(tmp_path: Path) -> None:
    """The tests above pass with values that nothing but the table knows of."""
    first, *classes = Path(values.__file__).read_text("utf-8").split("(PodMeasures):\n")
    bodies = (body.replace("\n\n\n", f"\n{ONE_MORE.format(number)}\n\n", 1) for number, body in enumerate(classes))
    (tmp_path / "more_values.py").write_text("(PodMeasures):\n".join([first, *bodies]))
    (tmp_path / "one_more.py").write_text(
        "import importlib.util, sys\n"
        "class MoreValues:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'modelyard.metrics.vocabulary.values':\n"
        f"            return importlib.util.spec_from_file_location(name, {str(tmp_path / 'more_values.py')!r})\n"
        "sys.meta_path.insert(0, MoreValues)\n"
        "from modelyard.metrics.vocabulary import values\n"
        "assert 'preemptions' in {*values.PodSignal.measures()} & {*values.PodPerformance.measures()}\n"
    )
    options = "-q --noconftest -p no:xdist -p no:cacheprovider -p one_more -o addopts="
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options.split(), "-k", "not one_more_field", __file__],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "9 passed" in run.stdout
