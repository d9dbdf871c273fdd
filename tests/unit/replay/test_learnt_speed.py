"""The saturation form, which has no profile: what it learns of its engines, and what its decisions are then."""

from __future__ import annotations

from pathlib import Path

import pytest
from replay_fleets import poisson

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.decision import TickDecision
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.sizing.learning import LearntSpeed
from modelyard.replay.backtest.report import Summary, summarize
from modelyard.replay.backtest.scenario import read_fleet
from modelyard.replay.backtest.simulate import simulate
from modelyard.replay.policies.modelyard import ModelyardPolicy
from modelyard.replay.settings import SimulationSettings
from modelyard.traffic.traces.latency import SLO

MANIFESTS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama, namespace: chat, labels: {inference.optimization/acceleratorName: L40S}}
spec:
  replicas: 2
  selector: {matchLabels: {app: llama}}
  template:
    metadata: {labels: {app: llama}}
    spec: {containers: [{name: engine, image: vllm, args: [--model, llama]}]}
---
apiVersion: llmd.ai/v1alpha1
kind: VariantAutoscaling
metadata: {name: llama, namespace: chat, labels: {inference.optimization/acceleratorName: L40S}}
spec:
  scaleTargetRef: {kind: Deployment, name: llama}
  modelID: llama
"""
TARGETS = SLO(2.0, 0.06)
Seen = list[tuple[Fleet, TickDecision]]


def replayed(tmp_path: Path, rate: float, minutes: float, **settings: object) -> tuple[Summary, Seen]:
    file = tmp_path / "fleet.yaml"
    file.write_text(MANIFESTS)
    fleet = read_fleet([file], startup=60)
    seen: Seen = []
    policy = ModelyardPolicy(
        fleet.manifests,
        FleetSettings.model_validate({"target_itl": 60.0, **settings}),
        on_decision=lambda before, after: seen.append((before, after)),
    )
    trace = poisson(rate, 60 * minutes, prompt=1000, output=200, seed=5)
    run = simulate(trace, fleet.variants, policy, SimulationSettings(warm_up=1800))
    return summarize(run, TARGETS), seen


def conditions(seen: Seen) -> dict[str, tuple[str, str, str]]:
    (decision,) = seen[-1][1].decisions
    return {one.type: (one.status, one.reason, one.message) for one in decision.conditions}


def test_targets_hold_without_a_profile(tmp_path: Path) -> None:
    """Saturation sees caches and queues, which are far from full when tokens are late already."""
    aimed, seen = replayed(tmp_path, 4.0, 70)
    alone, unaimed = replayed(tmp_path, 4.0, 70, aim="mean")
    assert aimed.attainment > 0.99 > 0.97 > alone.attainment
    told = conditions(seen)
    assert told["ProfileValid"][:2] == ("True", "ProfileLearnt")
    assert told["OptimizationReady"][1] == "OptimizationSucceeded"
    assert "would have held" in told["OptimizationReady"][2]
    assert conditions(unaimed)["OptimizationReady"][1] == "SaturationOnlyMode"
    assert "ProfileValid" not in conditions(unaimed)


def test_what_is_learnt_is_the_engine(tmp_path: Path) -> None:
    _, seen = replayed(tmp_path, 4.0, 70)
    memory = seen[-1][0].variants[0].memory.slo
    assert memory is not None
    assert memory.speed is not None
    speed = LearntSpeed(*memory.speed).speed
    assert speed is not None
    alpha, beta, _, delta = speed
    assert alpha == pytest.approx(22.6, rel=0.1)
    assert beta * 200 + delta * 1000 == pytest.approx(0.18 * 200 + 0.105 * 1000, rel=0.15)


@pytest.mark.parametrize("target", [{"target_itl": 20.0}, {"target_itl": 0.0, "target_ttft": 40.0}])
def test_targets_that_no_engine_could_meet_leave_the_decision_to_saturation(tmp_path: Path, target: dict) -> None:
    """Nobody asked for them in so many words: a fleet of idle replicas would be no help."""
    aimed, seen = replayed(tmp_path, 2.0, 50, **target)
    alone, _ = replayed(tmp_path, 2.0, 50, aim="mean")
    assert aimed.replica_hours == alone.replica_hours
    assert conditions(seen)["ProfileValid"][1] == "ProfileLearnt"
    assert conditions(seen)["SLOFeasible"][0] == "False"
    assert conditions(seen)["OptimizationReady"][1] == "SaturationOnlyMode"
