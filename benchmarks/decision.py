"""How long one tick's decision takes: 10,000 variants with ten pods each, on one core.

    python benchmarks/decision.py [--variants 10000] [--pods 10] [--rounds 5] [--reference 1000] [--models 1000]

Prints the seconds of ``decide`` in repaired mode, and the ratio to a naive reference in this file, measured in the
same run on a fleet of ``--reference`` variants: the documented algorithm written down variant by variant, looking
through all pods for each, without records, conditions or memory. The reference grows with the square of the fleet.

Then the CPU seconds of ``decide`` over ``--models`` models in SLO form with 90 minutes of history each, the mean of a
turn of eight ticks (in which every model tries all rules once), with both aims in the same run.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np
from builders import records
from slo_builders import SLO, carry_on, premium, slo_fleet

from modelyard.autoscaling.configuration.settings import Compatibility, FleetSettings, SizingAim
from modelyard.autoscaling.fleet.fleet import Fleet, Variant
from modelyard.autoscaling.memory.variants import VariantMemory
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.variants.slo.aim import TURNS
from modelyard.metrics.vocabulary.values import ModelLoad, PodSignal, Signals, SizeBuckets
from modelyard.objects import Condition, Key, OwnerRef, Pod, TargetRef, Workload, WorkloadId

NOW = 1_700_000_000.0
MODEL_VARIANTS = 2
NAMESPACES = 50
L40S = (22.6, 0.18, 25.0, 0.105)
BOUNDS = (64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)
SIZES = ("prompt_tokens", "output_tokens", "steady_prompt", "steady_output")


def build(variants: int, pods_each: int) -> Fleet:
    """Models of two variants; a third is short of capacity, a third could shrink, a third is in between."""
    made: list[Variant] = []
    workloads: dict[WorkloadId, Workload] = {}
    pods: list[Pod] = []
    signals: list[PodSignal] = []
    owners: dict[tuple[str, str, str], OwnerRef] = {}
    conditions = tuple(
        Condition(type_, "True", reason, "as before", 1, NOW - 600)
        for type_, reason in (
            ("TargetResolved", "TargetFound"),
            ("MetricsAvailable", "MetricsAvailable"),
            ("OptimizationReady", "SaturationOnlyMode"),
        )
    )
    for i in range(variants):
        model = i // MODEL_VARIANTS
        namespace, name = f"ns-{model % NAMESPACES}", f"variant-{i}"
        id_ = WorkloadId(namespace, "apps", "Deployment", name)
        memory = VariantMemory(startup_seconds=60)
        made.append(
            Variant(
                Key(namespace, name), f"u{i}", 1, "1", NOW - 86_400, f"model-{model}",
                TargetRef("apps/v1", "Deployment", name), 10.0 + i % MODEL_VARIANTS,
                labels={"inference.optimization/acceleratorName": "H100"}, status_replicas=pods_each,
                status_accelerator="H100", last_run=NOW - 30, conditions=conditions, memory=memory,
            )
        )  # fmt: skip
        workloads[id_] = Workload(id_, f"w{i}", pods_each, pods_each, pods_each, NOW - 86_400, gpus=1)
        owners[(namespace, "ReplicaSet", name)] = OwnerRef("apps/v1", "Deployment", name, f"w{i}")
        owner = OwnerRef("apps/v1", "ReplicaSet", name, f"r{i}")
        kv = (0.75, 0.30, 0.66)[model % 3]
        for j in range(pods_each):
            pod = f"{name}-{j}"
            pods.append(Pod(Key(namespace, pod), pod, owner, NOW - 7260, NOW - 7200, "Running", node="n", gpus=1))
            signals.append(PodSignal(namespace, pod, f"model-{model}", kv, 0.0, 1.0, 0.5, NOW - 5))
    return Fleet(
        now=NOW, variants=tuple(made), workloads=workloads, pods=tuple(pods), owners=owners,
        signals=Signals(pods=tuple(signals)),
    )  # fmt: skip


def naive(fleet: Fleet) -> dict[Key, int]:
    """The documented algorithm, straightforwardly: for every variant look through all pods and all signals."""
    targets: dict[Key, int] = {}
    states: dict[tuple[str, str], list[tuple[Variant, Workload, list[PodSignal]]]] = {}
    for variant in fleet.variants:
        assert variant.target is not None
        namespace = variant.key.namespace
        workload = fleet.workloads[WorkloadId(namespace, "apps", variant.target.kind, variant.target.name)]
        mine = set()
        for pod in fleet.pods:
            if pod.key.namespace == namespace and pod.owner is not None:
                owner = fleet.owners.get((namespace, pod.owner.kind, pod.owner.name))
                if owner is not None and owner.name == workload.id.name:
                    mine.add(pod.key.name)
        found = [s for s in fleet.signals.pods if s.namespace == namespace and s.pod in mine]
        states.setdefault((namespace, variant.model_id), []).append((variant, workload, found))
    for group in states.values():
        spare_kv, spare_queue = [], []
        for _, _, found in group:
            for signal in found:
                kv, queue = signal.kv or 0.0, signal.waiting or 0.0
                if kv < 0.8 and queue < 5:
                    spare_kv.append(0.8 - kv)
                    spare_queue.append(5 - queue)
        n = len(spare_kv)
        mean_kv = sum(spare_kv) / n if n else 0.0
        mean_queue = sum(spare_queue) / n if n else 0.0
        moving = False
        for variant, workload, found in group:
            targets[variant.key] = workload.status_replicas
            if variant.status_replicas not in (0, workload.status_replicas) or len(found) != workload.status_replicas:
                moving = True
        if moving:
            continue
        if mean_kv < 0.1 or mean_queue < 3:
            cheapest = min(group, key=lambda g: (g[0].cost, g[0].key.name))
            targets[cheapest[0].key] += 1
        elif n >= 2 and 0.8 - (0.8 - mean_kv) * n / (n - 1) >= 0.1 and 5 - (5 - mean_queue) * n / (n - 1) >= 3:
            dearest = max(group, key=lambda g: (g[0].cost, g[0].key.name))
            if targets[dearest[0].key] > 1:
                targets[dearest[0].key] -= 1
    return targets


class Models:
    """Models in SLO form, and what is measured of them tick by tick: loads of 0.1 to 13 engines that swing and scatter,
    a third of which jump at times, and sizes that scatter. Sizes of the past are there for the aim that asks for them.
    """

    def __init__(self, count: int, settings: FleetSettings) -> None:
        chance = np.random.default_rng(5)
        self.settings = settings
        self.points = int(settings.load_history / settings.tick)
        self.names = [f"model-{i}" for i in range(count)]
        # Both aims see the same.
        last = int(FleetSettings().load_history / settings.tick) + TURNS + 1
        at = settings.tick * np.arange(TURNS + 1 - last, TURNS + 1)
        rate = np.exp(chance.uniform(np.log(0.4), np.log(50), (count, 1)))
        period, phase = chance.uniform(1200, 20_000, (count, 1)), chance.uniform(0, 7, (count, 1))
        jumps = 1 + 2 * (np.sin(3 * at / period + phase) > 0.9) * (np.arange(count)[:, None] % 3 == 0)
        swing = (1 + 0.4 * np.sin(at / period + phase)) * jumps
        mean = np.array([1100.0, 200.0]) * np.exp(chance.normal(0, 0.4, (count, 1, 2)))
        self.times = (NOW + at).tolist()
        self.rates = (rate * swing * chance.normal(1, 0.08, (count, last)).clip(0.5)).tolist()
        self.sizes = (mean * chance.normal(1, 0.05, (count, last, 2)).clip(0.5)).tolist()
        shares = chance.dirichlet(np.ones(len(BOUNDS)), (count, 2)).tolist()
        self.buckets = [SizeBuckets(*(tuple(zip(BOUNDS, one, strict=True)) for one in both)) for both in shares]
        made = [
            SLO(name, int(one) // 3 + 1, L40S, "L40S", model=name, class_key=f"{name}.yaml", itl=35.0)
            for name, one in zip(self.names, rate[:, 0], strict=True)
        ]
        classes = {f"{name}.yaml": premium(60, 2000, name, name) for name in self.names}
        self.fleet = slo_fleet(*made, classes=classes)

    def measured(self, tick: int) -> Fleet:
        """The fleet as the next tick finds it."""
        end = len(self.times) - TURNS + tick
        times, attained = self.times[end - self.points : end], self.settings.aim is SizingAim.ATTAINMENT
        loads, sizes = {}, {}
        for name, rates, tokens in zip(self.names, self.rates, self.sizes, strict=True):
            history = tuple(zip(times, rates[end - self.points : end], strict=True))
            seen = tuple((at, *both) for at, both in zip(times, tokens[end - self.points : end], strict=True))
            loads["chat", name] = ModelLoad(history[-1][1], history, seen if attained else ())
            sizes["chat", name] = (*tokens[end - 1], *np.mean(tokens[end - 20 : end], axis=0).tolist())
        performance = [
            replace(pod, **dict(zip(SIZES, sizes["chat", pod.model], strict=True)))
            for pod in self.fleet.signals.performance
        ]
        known = {pair: buckets for pair, buckets in zip(loads, self.buckets, strict=True) if attained}
        signals = replace(self.fleet.signals, loads=loads, performance=tuple(performance), sizes=known)
        return replace(self.fleet, signals=signals)


def slo_seconds(count: int) -> dict[SizingAim, float]:
    """CPU seconds of a tick over so many models in SLO form, by aim."""
    spent = dict.fromkeys(SizingAim, 0.0)
    models = {aim: Models(count, FleetSettings(aim=aim)) for aim in SizingAim}
    for tick in range(TURNS + 1):
        for aim, of in models.items():
            fleet = of.measured(tick)
            gc.collect()
            begin = time.process_time()
            decision = decide(fleet, of.settings)
            if tick:  # in the first one no model follows a rule yet
                spent[aim] += (time.process_time() - begin) / TURNS
            of.fleet = carry_on(fleet, records(decision), of.settings.tick)
    return spent


def seconds(call: Callable[[], object], rounds: int) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(rounds):
        gc.collect()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Seconds of one decision over a large fleet.")
    parser.add_argument("--variants", type=int, default=10_000)
    parser.add_argument("--pods", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reference", type=int, default=1000)
    parser.add_argument("--models", type=int, default=1000)
    options = parser.parse_args()
    settings, published = FleetSettings(), FleetSettings(compatibility=Compatibility.PUBLISHED)
    fleet = build(options.variants, options.pods)
    taken = seconds(lambda: decide(fleet, settings), options.rounds)
    print(f"variants {options.variants}, pods {options.variants * options.pods}")
    print(f"decide: {taken:.3f} s, {taken / options.variants * 1e6:.1f} µs per variant")
    sample = build(options.reference, options.pods)
    agree = {r.identity.key: r.target.replicas for r in decide(sample, published).records} == naive(sample)
    ours = seconds(lambda: decide(sample, settings), options.rounds)
    reference = seconds(lambda: naive(sample), 1)
    print(f"at {options.reference} variants: decide {ours:.3f} s, naive reference {reference:.3f} s")
    print(f"ratio reference/decide: {reference / ours:.1f} (same targets in published mode: {agree})")
    spent = slo_seconds(options.models)
    mean, attainment = spent[SizingAim.MEAN], spent[SizingAim.ATTAINMENT]
    print(
        f"{options.models} models in SLO form, CPU of a tick: aim mean {mean:.2f} s, attainment {attainment:.2f} s, "
        f"{attainment - mean:.2f} s more, ratio {attainment / mean:.2f}"
    )


if __name__ == "__main__":
    main()
