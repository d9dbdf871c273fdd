"""Nodes with GPUs: what does not fit waits, and gets its place when another replica ends."""

from __future__ import annotations

import dataclasses
import math

from replay_fleets import Script, poisson, spec

from modelyard.objects import Node
from modelyard.replay.backtest.simulate import Run, simulate
from modelyard.replay.settings import SimulationSettings

QUICK = SimulationSettings(pre_roll=60, actuation_delay=0)
GPU = "nvidia.com/gpu"


def node(name: str, gpus: int, *, ready: bool = True, **labels: str) -> Node:
    return Node(name, labels, {GPU: gpus}, ready=ready)


def run(steps: Script, *nodes: Node, gpus: int = 2, parts: int = 1, **selector: str) -> Run:
    variant = dataclasses.replace(
        spec(initial=1, startup=10), gpus=gpus, gpu_resource=GPU, pods_per_replica=parts, node_selector=selector
    )
    return simulate(poisson(0.5, 200), [variant], steps, QUICK, nodes=nodes)


def test_replicas_beyond_the_gpus_wait_and_are_counted() -> None:
    result = run(Script((20, 4)), node("a", 4), node("b", 3), node("down", 8, ready=False))
    assert [pod.node for pod in result.pods] == ["a", "b", "a", ""]
    last = result.pods[-1]
    assert "GPUs" in last.unschedulable
    assert math.isnan(last.ready_at)
    assert result.replicas()[1][-1] == 4
    assert result.replicas(ready=True)[1][-1] == 3


def test_a_place_that_becomes_free_is_taken() -> None:
    cheap = dataclasses.replace(spec("cheap", initial=2, startup=10), gpus=2, gpu_resource=GPU)
    other = dataclasses.replace(spec("other", initial=0, startup=10), gpus=2, gpu_resource=GPU)

    class Swap(Script):
        def tick(self, now, fleet, metrics):  # type: ignore[no-untyped-def]
            return {other.key: 1} if now == 20 else {cheap.key: 1} if now == 50 else {}

    result = simulate(poisson(0.5, 200), [cheap, other], Swap(), QUICK, nodes=[node("a", 4)])
    (late,) = [pod for pod in result.pods if pod.variant is other or pod.variant.key == other.key]
    freed = next(pod.ended for pod in result.pods if not math.isnan(pod.ended))
    assert late.created == 20
    assert late.ready_at == freed + 10
    assert late.node == "a"


def test_labels_and_groups_of_pods() -> None:
    chosen = run(Script((20, 3)), node("a", 8, zone="x"), node("b", 4, zone="y"), zone="y")
    assert [pod.node for pod in chosen.pods] == ["b", "b", ""]
    # A group of two pods with two GPUs each needs two places of two, not one of four.
    group = run(Script((20, 2)), node("a", 3), node("b", 3), gpus=4, parts=2)
    assert [pod.node for pod in group.pods] == ["a", ""]


def test_removing_a_replica_that_waits_frees_nothing() -> None:
    result = run(Script((20, 3), (60, 1), (100, 2)), node("a", 4))
    assert [pod.node for pod in result.pods] == ["a", "a", "", "a"]
    assert result.results.answered.all()
