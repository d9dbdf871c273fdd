"""Policy bindings in a replay: what a decision sees of the simulated pods, what is kept, what is scaled."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from replay_fleets import poisson, spec, trace_of

from modelyard.autoscaling.configuration.settings import Compatibility, FleetSettings
from modelyard.autoscaling.decisions.decision import TickDecision
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.offline.fleet import fleet_from_files
from modelyard.autoscaling.offline.manifests import Manifest, read_manifests
from modelyard.autoscaling.offline.snapshot import Snapshot
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.engine.metrics import EngineCollector
from modelyard.metrics.vocabulary.pages import parse
from modelyard.metrics.vocabulary.vocabulary import VLLM
from modelyard.objects import Key
from modelyard.replay.backtest.simulate import Run, simulate
from modelyard.replay.policies.bindings import page, remarks
from modelyard.replay.policies.modelyard import ModelyardPolicy
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulation.fleet import SimulatedFleet
from modelyard.replay.simulation.variants import VariantInputError, VariantSpec, variants_of
from modelyard.traffic.traces.trace import Trace

POLICY = """
apiVersion: registry.volcano.sh/v1alpha1
kind: AutoscalingPolicy
metadata: {name: load, namespace: chat}
spec:
  metrics: [{metricName: METRIC, targetValue: "TARGET"}]
  behavior: {scaleDown: {stabilizationWindow: 1m}}
---
"""
SCALING = (
    POLICY
    + """
apiVersion: registry.volcano.sh/v1alpha1
kind: AutoscalingPolicyBinding
metadata: {name: llama, namespace: chat, annotations: {ANNOTATIONS}}
spec:
  policyRef: {name: load}
  scalingConfiguration:
    target: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: llama}}
    minReplicas: MINIMUM
    maxReplicas: 6
---
"""
)
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: chat}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      containers:
        - name: engine
          image: example.com/engine
          args: ["--model", "llama", "--max-num-seqs", "16", "--kv-cache-tokens=16000", "--startup-delay", "30"]
          resources: {limits: {nvidia.com/gpu: "1"}}
---
"""
OPTIMIZER = (
    POLICY
    + """
apiVersion: registry.volcano.sh/v1alpha1
kind: AutoscalingPolicyBinding
metadata: {name: mixed, namespace: chat}
spec:
  policyRef: {name: load}
  optimizerConfiguration:
    params:
      - {target: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: llama-l40s}}, cost: 20, minReplicas: 1,
         maxReplicas: 3}
      - {target: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: llama-h100}}, cost: 70, minReplicas: 1,
         maxReplicas: 4}
---
"""
)


def fill(text: str, **values: object) -> str:
    chosen = {
        "METRIC": "vllm:num_requests_running",
        "TARGET": 4,
        "ANNOTATIONS": "",
        "MINIMUM": 1,
        "REPLICAS": 1,
        **values,
    }
    for name, value in chosen.items():
        text = text.replace(name, str(value))
    return text


def deployment(name: str = "llama", replicas: int = 1) -> str:
    return DEPLOYMENT.replace("NAME", name).replace("REPLICAS", str(replicas))


def read(folder: Path, text: str) -> list[Manifest]:
    path = folder / "m.yaml"
    path.write_text(textwrap.dedent(text))
    return read_manifests([path])


def variants(found: list[Manifest]) -> list[VariantSpec]:
    return variants_of(fleet_from_files(found, Snapshot(), 0.0), found)


Seen = list[tuple[Fleet, TickDecision]]


def replayed(found: list[Manifest], trace: Trace, **settings: object) -> tuple[Run, Seen]:
    seen: Seen = []
    chosen = FleetSettings.model_validate(settings)
    policy = ModelyardPolicy(found, chosen, on_decision=lambda fleet, decision: seen.append((fleet, decision)))
    return simulate(trace, variants(found), policy), seen


def test_a_page_is_what_the_engine_shows() -> None:
    fleet = SimulatedFleet(poisson(3, 60), [spec()], SimulationSettings())
    fleet.run()
    core = fleet.pods[0].core
    registry = CollectorRegistry()
    registry.register(EngineCollector(core, VLLM, "llama"))
    known = [family.base for family in VLLM.families]
    shown = parse(generate_latest(registry), known, 7.0)
    mine = page(core, known, 7.0)
    assert not shown.problems
    assert core.stats.finished["length"] + core.stats.finished["stop"] > 100
    bare = {"model_name", "engine"}
    assert sorted(
        (s.name, sorted((k, v) for k, v in s.labels.items() if k not in bare), s.value, s.type) for s in shown.samples
    ) == sorted((s.name, sorted(s.labels.items()), s.value, s.type) for s in mine.samples)
    # Each family alone, under either name of a counter.
    for name in (*known, "vllm:generation_tokens_total", "vllm:request_success_total"):
        assert page(core, [name], 0.0).samples
    assert page(core, ["vllm:made_up"], 0.0).samples == []


def test_the_targets_of_bindings_are_variants(tmp_path: Path) -> None:
    text = fill(OPTIMIZER) + deployment("llama-l40s", 2) + deployment("llama-h100")
    cheap, dear = variants(read(tmp_path, text))
    assert (cheap.key, cheap.model, cheap.initial, cheap.cost, cheap.startup) == (
        Key("chat", "llama-l40s"), "llama", 2, 20.0, 30.0,
    )  # fmt: skip
    assert (dear.cost, dear.engine.alpha, dear.engine.max_num_seqs) == (70.0, 7.0, 16)
    assert cheap.engine.alpha > dear.engine.alpha
    with pytest.raises(VariantInputError, match="Deployment chat/llama-h100 is in none of the files"):
        variants(read(tmp_path, fill(OPTIMIZER) + deployment("llama-l40s")))
    with pytest.raises(VariantInputError, match="no VariantAutoscaling and no AutoscalingPolicyBinding"):
        variants(read(tmp_path, deployment()))


def test_a_binding_holds_its_metric_and_every_decision_is_what_decide_says(tmp_path: Path) -> None:
    found = read(tmp_path, fill(SCALING) + deployment())
    run, seen = replayed(found, poisson(14, 900))
    settings = FleetSettings()
    assert any(action.after > action.before for action in run.actions)
    for fleet, decision in seen:
        assert decide(fleet, settings) == decision
        (view,) = fleet.bindings
        (target,) = view.targets
        workload = fleet.workloads[target.workload]
        assert target.current == workload.spec_replicas
        assert target.ready == workload.ready == len(target.instances)
        assert target.ready + target.unready <= max(target.current or 0, target.ready)
        assert not target.scrape_errors
        assert view.memory_problem is None
    # What is kept is what the next tick reads.
    for (_, decision), (following, _) in itertools.pairwise(seen):
        (made,), (view,) = decision.bindings, following.bindings
        assert made.memory == view.memory
        stated = {condition.type: condition.status for condition in view.conditions}
        assert stated == {condition.type: condition.status for condition in made.conditions}
    # In the second half the load is held near the target: neither half empty nor overrun.
    late = [target for fleet, _ in seen[30:60] for target in fleet.bindings[0].targets]
    mean = sum(one["vllm:num_requests_running"] for t in late for one in t.instances) / sum(t.ready or 0 for t in late)
    assert 2.0 < mean < 6.0


def test_equal_replays_are_equal(tmp_path: Path) -> None:
    found = read(tmp_path, fill(SCALING) + deployment())
    first, _ = replayed(found, poisson(10, 400))
    second, _ = replayed(found, poisson(10, 400))
    assert first.actions == second.actions
    assert first.results.end.tolist() == second.results.end.tolist()


def test_looking_at_pods_changes_nothing_for_requests(tmp_path: Path) -> None:
    """A binding that never moves its workload leaves every request as it is without any policy."""
    text = fill(SCALING, TARGET=1000, MINIMUM=2) + deployment(replicas=2)
    trace = poisson(8, 300)
    run, seen = replayed(read(tmp_path, text), trace)
    assert len(seen) >= 20
    assert not run.actions
    fleet = SimulatedFleet(trace, variants(read(tmp_path, text)), SimulationSettings())
    fleet.run()
    assert run.results.end.tolist() == pytest.approx(fleet.log.columns().end.tolist(), abs=1e-9)


@pytest.mark.parametrize("metric", ["vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"])
def test_a_percentile_is_taken_of_what_the_last_minute_brought(tmp_path: Path, metric: str) -> None:
    found = read(tmp_path, fill(SCALING, METRIC=metric, TARGET=100, MINIMUM=2) + deployment(replicas=2))
    run, seen = replayed(found, poisson(6, 600))
    assert metric not in seen[0][0].bindings[0].targets[0].instances[0], "the first look says nothing yet"
    values = [
        one[metric] for fleet, _ in seen[10:35] for one in fleet.bindings[0].targets[0].instances if metric in one
    ]
    assert len(values) == 50
    largest = np.nanmax(run.results.ttft if "first" in metric else run.results.itl_max)
    assert all(0 < value <= 2.5 * largest for value in values)
    assert len(set(values)) > 3


def test_a_rate_is_known_from_the_second_look_on(tmp_path: Path) -> None:
    metric = "vllm:generation_tokens_total"
    found = read(tmp_path, fill(SCALING, METRIC=metric, TARGET=100000) + deployment())
    trace = poisson(2, 600)
    _, seen = replayed(found, trace)
    values = [fleet.bindings[0].targets[0].instances[0].get(metric) for fleet, _ in seen[:40]]
    assert values[0] is None
    known = [value for value in values[1:] if value is not None]
    assert len(known) == 39
    assert sum(known) / len(known) == pytest.approx(trace.output.sum() / 600, rel=0.15)


def test_the_optimizer_adds_the_cheap_accelerator_first(tmp_path: Path) -> None:
    text = fill(OPTIMIZER, TARGET=3) + deployment("llama-l40s") + deployment("llama-h100")
    run, seen = replayed(read(tmp_path, text), poisson(14, 600))
    ups = [action for action in run.actions if action.after > action.before]
    assert ups[0].variant == Key("chat", "llama-l40s")
    assert {record.identity.form for _, decision in seen for b in decision.bindings for record in b.records} == {
        "optimizer"
    }
    for _, decision in seen:
        for record in decision.bindings[0].records:
            assert record.target.replicas is not None
            assert 1 <= record.target.replicas <= (3 if record.identity.variant_id == "llama-l40s" else 4)


def test_a_binding_sleeps_at_zero_and_is_woken_by_what_waits_at_the_router(tmp_path: Path) -> None:
    notes = 'modelyard.dev/wake-query: "sum(waiting_at_the_gateway)", modelyard.dev/scale-to-zero-grace: 30s'
    found = read(tmp_path, fill(SCALING, ANNOTATIONS=notes, MINIMUM=0) + deployment(replicas=1))
    run, _ = replayed(found, trace_of([(1.0, 100, 10), (400.0, 100, 10)], 500.0))
    assert [action.after for action in run.actions[:2]] == [0, 1]
    assert run.actions[0].at < 300
    assert 400 < run.actions[1].at < 430
    assert (run.results.ending == 1).all()


def test_in_signal_mode_an_hpa_moves_the_workload(tmp_path: Path) -> None:
    notes = "modelyard.dev/actuation: signal"
    found = read(tmp_path, fill(SCALING, ANNOTATIONS=notes) + deployment())
    run, seen = replayed(found, poisson(14, 600))
    assert all(record.writes.scale is None for _, decision in seen for b in decision.bindings for record in b.records)
    assert any(action.after > action.before for action in run.actions)


def test_the_published_mode_decides_otherwise(tmp_path: Path) -> None:
    found = read(tmp_path, fill(SCALING) + deployment())
    repaired, _ = replayed(found, poisson(14, 900))
    published, seen = replayed(found, poisson(14, 900), compatibility="published")
    assert decide(seen[5][0], FleetSettings(compatibility=Compatibility.PUBLISHED)) == seen[5][1]
    assert [a.after for a in repaired.actions] != [a.after for a in published.actions]


def test_metrics_that_a_replay_cannot_have_are_named(tmp_path: Path) -> None:
    found = read(tmp_path, fill(SCALING, METRIC="gpu_temperature") + deployment())
    (one,) = remarks(fleet_from_files(found, Snapshot(), 0.0).bindings, found)
    assert "AutoscalingPolicyBinding chat/llama: metric gpu_temperature is missing here: the simulated engine" in one
    notes = """modelyard.dev/metric-sources: '{"queue": "sum(x)"}'"""
    found = read(tmp_path, fill(SCALING, METRIC="queue", ANNOTATIONS=notes) + deployment())
    (one,) = remarks(fleet_from_files(found, Snapshot(), 0.0).bindings, found)
    assert one.endswith("metric queue is missing here: PromQL is not evaluated in a replay")
    run, seen = replayed(found, poisson(8, 200))
    assert not run.actions, "a metric that is missing moves nothing"
    assert "PromQL is not evaluated" in seen[0][0].bindings[0].targets[0].scrape_errors[0]
    found = read(tmp_path, fill(SCALING) + deployment())
    assert not list(remarks(fleet_from_files(found, Snapshot(), 0.0).bindings, found))
