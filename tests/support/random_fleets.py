"""Random fleets of all forms, modes and faults, decided tick after tick: the same for a seed on every machine."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

from builders import LABEL, NOW, SATURATION, ZERO, Serving, gpu_node, hpa, make_fleet
from policy_builders import binding, policy, target
from pydantic import BaseModel
from slo_builders import CLASSES, COSTS, H100, L40S, SLO, premium

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.decision import TickDecision
from modelyard.autoscaling.fleet.binding_view import Behaviour, BindingView, DirectionLimits, Panic, TargetView
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.memory.bindings import BindingMemory
from modelyard.autoscaling.memory.variants import SLOMemory, VariantMemory
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.metrics.vocabulary.values import ModelLoad, PodPerformance, SizeBuckets
from modelyard.objects import Condition, Key, Namespace, Pod, ReplicaLimits

RECORD = Path(__file__).parents[1] / "data" / "decisions.txt"
"""Digests of decisions, a line for each seed."""
SPACES = "chat", "code"
TICKS = 3
"""Ticks of a fleet; between two, some of what was decided takes effect."""


@dataclass
class Case:
    """A fleet with the settings under which it is decided."""

    fleet: Fleet
    settings: FleetSettings


def case_of(seed: int) -> Case:
    """Return the fleet of a seed, in its first tick."""
    return _Maker(Random(seed)).case()


def decisions_of(seed: int) -> Iterator[TickDecision]:
    """Yield the decisions of a seed's fleet, tick after tick."""
    case, random = case_of(seed), Random(f"later {seed}")
    for _ in range(TICKS):
        decision = decide(case.fleet, case.settings)
        yield decision
        case.fleet = _later(case.fleet, decision, random)


def digests(seed: int) -> tuple[str, str]:
    """Return two digests of the decisions of a seed: what was decided and is remembered, and all the words too."""
    plain, worded = hashlib.blake2b(digest_size=4), hashlib.blake2b(digest_size=4)
    for decision in decisions_of(seed):
        content = content_of(decision)
        plain.update(_json(numbers_of(content)))
        worded.update(_json(content))
    return plain.hexdigest(), worded.hexdigest()


_DECIMALS = re.compile(r"\d+\.\d+")
"""Numbers in words: the last digit of one depends on the processor."""


def content_of(value: Any) -> Any:
    """Return a decision as plain values; floating point numbers have six digits, those in words are left out."""
    if isinstance(value, BaseModel):
        return content_of(value.model_dump(exclude_defaults=True))
    if isinstance(value, Enum):
        return str(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: content_of(getattr(value, f.name)) for f in fields(value) if f.name != "attainment"}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: content_of(item) for name, item in value._asdict().items() if name != "facts"}
    if isinstance(value, dict):
        return {str(key): content_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [content_of(item) for item in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value:.6g}")
    return _DECIMALS.sub("#", value) if isinstance(value, str) else value


_WORDS = frozenset(("message", "detail", "applied_message", "note", "notices", "errors", "limited_by"))


def numbers_of(content: Any) -> Any:
    """Return the content without the words that people read."""
    if isinstance(content, dict):
        return {name: numbers_of(item) for name, item in content.items() if name not in _WORDS}
    return [numbers_of(item) for item in content] if isinstance(content, list) else content


def _json(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _later(fleet: Fleet, decision: TickDecision, random: Random) -> Fleet:
    """Return the fleet some seconds later: decisions are stored, and some workloads have followed them."""
    now = fleet.now + random.choice((15.0, 15.0, 60.0, 400.0))
    variants, workloads = {v.key: v for v in fleet.variants}, dict(fleet.workloads)
    for decided in decision.variants:
        record = decided.record
        variants[decided.key] = replace(
            variants[decided.key],
            memory=decided.memory,
            status_replicas=record.target.replicas,
            last_run=fleet.now,
            conditions=decided.conditions,
        )
        id_, wanted = record.now.workload, record.target.replicas
        if id_ in workloads and wanted is not None and random.random() < 0.6:
            ready = None if workloads[id_].ready is None else min(workloads[id_].ready or 0, wanted)
            workloads[id_] = replace(workloads[id_], spec_replicas=wanted, status_replicas=wanted, ready=ready)
    bindings = {view.key: view for view in fleet.bindings}
    for bound in decision.bindings:
        view, asked = bindings[bound.key], {r.now.workload: r.writes.scale for r in bound.records}
        targets = tuple(_followed(each, asked.get(each.workload), random) for each in view.targets)
        bindings[bound.key] = replace(view, memory=bound.memory, conditions=bound.conditions, targets=targets)
    moved = [replace(p, sampled_at=None if p.sampled_at is None else now - 5) for p in fleet.signals.pods]
    if random.random() < 0.3:
        moved = [replace(p, kv=_kv(random), waiting=_waiting(random)) for p in moved]
    loads = {
        place: replace(load, arrivals=load.arrivals and load.arrivals * random.choice((1.0, 1.3, 0.5)))
        for place, load in fleet.signals.loads.items()
    }
    return replace(
        fleet,
        now=now,
        variants=tuple(variants.values()),
        workloads=workloads,
        bindings=tuple(bindings.values()),
        signals=replace(fleet.signals, pods=tuple(moved), loads=loads),
    )


def _followed(view: TargetView, asked: int | None, random: Random) -> TargetView:
    if asked is None or view.current is None or random.random() < 0.3:
        return view
    return replace(view, current=asked, instances=view.instances[:asked])


def _kv(random: Random) -> float | None:
    return random.choice((None, 0.0, 0.2, 0.5, 0.72, 0.79, 0.85, 0.95, round(random.random(), 2)))


def _waiting(random: Random) -> float | None:
    return random.choice((None, 0.0, 0.0, 0.0, 1.0, 4.0, 6.0, 30.0))


class _Maker:
    """Makes one case of the numbers that ``random`` draws."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.settings = self._settings()

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, *values: Any) -> Any:
        return self.random.choice(values)

    def case(self) -> Case:
        random = self.random
        servings: list[Serving] = []
        latent: list[SLO] = []
        models = [f"org/m{index}" for index in range(random.randint(1, 3))]
        for index, model in enumerate(models):
            space, has_targets = self.pick(*SPACES), self.chance(0.45)
            for number in range(self.pick(1, 1, 2, 3)):
                name = f"m{index}-v{number}"
                if has_targets and not self.chance(0.1):
                    latent.append(self._latent(name, model, space))
                else:
                    servings.append(self._serving(name, model, space))
        bases = [*servings, *(slo.base for slo in latent)]
        fleet = make_fleet(
            *bases,
            config_maps=self._config_maps(models),
            counts=self._counts(models),
            consumers=[self._consumer(s) for s in bases if self.chance(0.15)],
            nodes=self._nodes(),
            signals=self._signals(models, bases, latent),
            bindings=tuple(self._bindings()) if self.chance(0.4) else (),
        )
        return Case(self._faults(fleet), self.settings)

    def _settings(self) -> FleetSettings:
        given: dict[str, Any] = {}
        for name, values, share in (
            ("compatibility", ("published",), 0.25),
            ("actuation", ("signal",), 0.3),
            ("scale_to_zero", (True,), 0.3),
            ("scale_down_delay", (0.0, 30.0), 0.5),
            ("max_step_up", (1, 3), 0.3),
            ("max_step_down", (2, 10), 0.4),
            ("aim", ("mean",), 0.4),
            ("headroom", (False,), 0.3),
            ("feedback", (False,), 0.2),
            ("estimator", (True,), 0.15),
            ("ttft_percentile", (95.0,), 0.15),
            ("scale_down_margin", (0.0,), 0.3),
            ("scale_down_elasticity", (1.0,), 0.3),
            ("allocation_effort", (0,), 0.05),
            ("controller_instance", ("one",), 0.03),
            ("watch_namespace", (SPACES[0],), 0.05),
            ("node_selector", ("pool=gpu", "a b c"), 0.06),
            ("min_completions", (1, 500), 0.15),
        ):
            if self.chance(share):
                given[name] = self.pick(*values)
        return FleetSettings.model_validate(given)

    def _memory(self) -> VariantMemory:
        if self.chance(0.4):
            return VariantMemory()
        ago = lambda *seconds: self.pick(None, *(NOW - each for each in seconds))  # noqa: E731
        slo = SLOMemory(
            prompt_tokens=self.pick(None, 400.0),
            output_tokens=self.pick(None, 200.0),
            tokens_at=ago(30, 2000),
            ttft_factor=self.pick(1.0, 1.4),
            itl_factor=self.pick(1.0, 0.8),
            rule=self.pick(None, (0, 0, 0, 0), (1, 2, 0, 1)),
            speed=self.pick(None, None, (40.0, 300.0, 4000.0, 900.0, 9000.0, 21000.0)),
        )
        return VariantMemory(
            workload_uid=self.pick("", "", "another"),
            transition_since=ago(20, 900),
            transition_target=self.pick(None, 1, 3, 5),
            relax_since=ago(10, 200),
            woken_at=ago(20, 2000),
            partial_since=ago(10, 500),
            startup_seconds=self.pick(None, 40.0),
            shrunk_at=ago(60, 700),
            regrets=self.pick(0, 0, 1, 3),
            regretted=self.pick(None, 2),
            regretted_at=ago(100),
            slo=self.pick(None, slo),
            scalings={"up/KvSpareLow": 3} if self.chance(0.2) else {},
        )

    def _annotations(self) -> dict[str, str]:
        result: dict[str, str] = {}
        for name, values, share in (
            ("min-replicas", ("0", "1", "3", "x"), 0.15),
            ("max-replicas", ("1", "2", "6", "0"), 0.2),
            ("actuation", ("direct", "signal", "both"), 0.08),
            ("compatibility", ("published", "repaired", "old"), 0.08),
        ):
            if self.chance(share):
                result[f"modelyard.dev/{name}"] = self.pick(*values)
        return result

    def _common(self) -> dict[str, Any]:
        """Return the fields of any variant: its object, its workload and its pods."""
        variant: dict[str, Any] = {"annotations": self._annotations(), "memory": self._memory()}
        if self.chance(0.03):
            variant["problem"] = "spec.modelID: it does not parse"
        if self.chance(0.03):
            variant["deleting"] = True
        if self.chance(0.03):
            variant["target"] = None
        if self.chance(0.2):
            variant["conditions"] = (
                Condition("OptimizationReady", self.pick("True", "False"), self.pick("Steady", "BeyondShare"), "before",
                          3, NOW - 500),
                Condition("CapacityLimited", "True", "AtMaximum", "before", 3, NOW - 500),
            )  # fmt: skip
        workload: dict[str, Any] = {}
        if self.chance(0.15):
            limits = ReplicaLimits(self.pick(0, 1, 2), self.pick(None, 2, 4), "minReplicas of a service", "maxReplicas")
            workload["limits"] = limits._replace(required=self.chance(0.5), problem=self.pick("", "", "not readable"))
        if self.chance(0.05):
            workload["pods_per_replica"] = 2
        if self.chance(0.1):
            workload["node_selector"] = {"nvidia.com/gpu.product": "NVIDIA-L40S"}
        if self.chance(0.25):
            workload["engine_args"] = ("--max-num-seqs=16", "--max-num-batched-tokens=4096")
        pod = {"node": self.pick("n0", "n1", "gone")} if self.chance(0.5) else {}
        if self.chance(0.08):
            pod["unschedulable"] = "0/3 nodes are available"
        return {
            "variant": variant,
            "workload": workload,
            "pod": pod,
            "ready_age": self.pick(5.0, 100.0, 3600.0),
            "kind": self.pick("Deployment", "Deployment", "LeaderWorkerSet"),
        }

    def _counts_of(self) -> dict[str, Any]:
        """Return replicas in the states in which workloads are found."""
        reporting, extra = self.pick(0, 1, 1, 2, 2, 3, 5, 12, 25), self.pick(0, 0, 0, 1, 3)
        current, is_calm = reporting + extra, self.chance(0.5)
        return {
            "load": [self._pod_load(is_calm) for _ in range(reporting)],
            "current": current,
            "ready": self.pick(reporting, current),
            "spec": self.pick(None, None, None, max(0, current - 1), 0 if reporting < 2 else current),
            "desired": self.pick(None, current, current, 0, current + 1, max(0, current - 1)),
        }

    def _pod_load(self, is_calm: bool) -> tuple[float | None, float | None]:
        return (self.pick(0.0, 0.1, 0.3), 0.0) if is_calm else (_kv(self.random), _waiting(self.random))

    def _serving(self, name: str, model: str, space: str) -> Serving:
        return Serving(
            name,
            model=model,
            namespace=space,
            cost=self.pick(1.0, 5.0, 10.0),
            accelerator=self.pick("H100", "H100", "L40S", None),
            gpus=self.pick(1, 1, 2, 4),
            rate=self.pick(1.0, 1.0, 0.0, None),
            running=self.pick(0.0, 2.0, 30.0, None),
            created=NOW - self.pick(100, 86_400),
            **self._counts_of(),
            **self._common(),
        )

    def _latent(self, name: str, model: str, space: str) -> SLO:
        counts, common = self._counts_of(), self._common()
        variant = common.pop("variant")
        return SLO(
            name,
            replicas=len(counts["load"]),
            profile=self.pick(H100, L40S, L40S, ("0", "x", "1", "1"), (7.5, 0.05, 12.0, 0.0)),
            accelerator=self.pick("H100", "L40S", "L40S", "unpriced"),
            count=self.pick(1, 1, 2),
            batch=self.pick(8, 32, 96),
            class_name=self.pick("service-classes-config", "service-classes-config", "missing"),
            class_key=self.pick("premium.yaml", "premium.yaml", "batch.yaml", "broken.yaml"),
            model=model,
            running=self.pick(0.0, 1.0, 20.0),
            ttft=self.pick(None, 40.0, 900.0),
            itl=self.pick(None, 9.0, 30.0),
            completed=self.pick(None, 0.0, 3.0, 100.0, 900.0),
            prompt=self.pick(None, 128.0, 512.0, 4000.0),
            output=self.pick(None, 0.5, 64.0, 256.0),
            serving={**counts, **common, "namespace": space},
            variant=variant,
        )

    def _config_maps(self, models: list[str]) -> dict[Key, dict[str, str]]:
        maps: dict[Key, dict[str, str]] = {}
        if self.chance(0.7):
            lines = [self.pick("analyzerName: saturation", "analyzerName: ''", "kvCacheThreshold: 0.8")]
            if self.chance(0.5):
                lines.append(self.pick("enableLimiter: true", "limiters: [{type: gpu-inventory}]",
                                       "limiters: [{type: quota, quotas: {H100: 3, L40S: 2}}]",
                                       "limiters: [{type: quota, namespaceQuotas: {chat: {H100: 2}, default: {}}}]",
                                       "limiters: [{type: inventory}, {type: quota, quotas: {L40S: 1}}]"))  # fmt: skip
            if self.chance(0.2):
                lines.append(self.pick("queueSpareTrigger: 1", "kvSpareTrigger: 0.3", "kvCacheThreshold: 2", "odd: 1"))
            content = {"default": "\n".join(lines)}
            if self.chance(0.4):
                entry = self.pick("analyzerName: saturation", "queueLengthThreshold: 2", "scaleUpThreshold: 0.6")
                content["one"] = f"model_id: {models[0]}\n{entry}"
            maps[SATURATION] = content
        if self.chance(0.5):
            retention = self.pick("10m", "30s")
            maps[ZERO] = {
                "default": f"enable_scale_to_zero: {self.pick('true', 'false')}\nretention_period: {retention}"
            }
            if self.chance(0.3):
                maps[ZERO]["one"] = f"model_id: {models[-1]}\nenable_scale_to_zero: {self.pick('true', 'false')}"
        if self.chance(0.9):
            maps[COSTS] = {"H100": '{"cost": "100"}', "L40S": self.pick('{"cost": "32"}', '{"cost": "x"}')}
        classes = {"broken.yaml": "name: ["}
        entries = [
            {"model": model, "slo-tpot": self.pick(10, 24, 80, 0), "slo-ttft": self.pick(300, 2000, 0)}
            for model in models
        ]
        classes["premium.yaml"] = json.dumps({"name": "Premium", "priority": self.pick(1, 10), "data": entries})
        classes["batch.yaml"] = premium(200, 10_000, models[0], "Batch", 50)
        if self.chance(0.9):
            maps[CLASSES] = classes
        if self.chance(0.1):
            maps[Key(SPACES[0], SATURATION.name)] = {"default": "kvCacheThreshold: 0.6"}
        return maps

    def _counts(self, models: list[str]) -> dict[tuple[str, str, int], float]:
        windows = (600, 30)
        places = [(space, model, window) for space in SPACES for model in models for window in windows]
        return {place: self.pick(0.0, 0.0, 50.0) for place in places if self.chance(0.85)}

    def _consumer(self, serving: Serving) -> Any:
        scaler = hpa(serving, self.pick(None, 1, 2), self.pick(None, 1, 4, 10))
        return replace(scaler, kind=self.pick(scaler.kind, "ScaledObject"), desired=self.pick(None, 2))

    def _nodes(self) -> list[Any]:
        products = "NVIDIA-H100-SXM5-80GB", "NVIDIA-L40S"
        nodes = [gpu_node(f"n{n}", self.pick(1, 2, 8), self.pick(*products)) for n in range(self.random.randint(0, 3))]
        return [replace(node, schedulable=False) if self.chance(0.1) else node for node in nodes]

    def _signals(self, models: list[str], bases: list[Serving], latent: list[SLO]) -> dict[str, Any]:
        given: dict[str, Any] = {}
        places = sorted({(serving.namespace, serving.model) for serving in bases})
        loads: dict[tuple[str, str], ModelLoad] = {}
        for place in places:
            rate = self.pick(None, 0.0, 0.5, 5.0, 20.0, 60.0)
            length, grows, step = self.pick(0, 3, 20, 90), self.pick(0.0, 0.002, -0.002), self.pick(15, 15, 60)
            level, scatter = 5.0 if rate is None else rate, self.pick(0.0, 0.2)
            history = tuple(
                (NOW - step * n, max(0.0, level * (1 - step * n * grows) * (1 + scatter * math.sin(n))))
                for n in range(length, 0, -1)
            )
            sizes = tuple((NOW - step * n, 500.0 + 10 * (n % 7), 200.0) for n in range(self.pick(0, length), 0, -1))
            if self.chance(0.85):
                loads[place] = ModelLoad(rate, history, sizes)
        given["loads"] = loads
        performance = [pod for slo in latent for pod in slo.performance()]
        for serving in bases:
            if serving.variant.get("slo") is None and self.chance(0.5):
                performance += [self._performance(serving, pod) for pod in serving.pods() if pod.ready]
        kv_tokens = self.pick(None, 50_000, 400_000)
        given["performance"] = tuple(replace(pod, kv_tokens=kv_tokens) for pod in performance)
        queue: dict[tuple[str, str], float] = {}
        for space in ("", *SPACES):
            queue |= {(space, model): self.pick(0.0, 1.0, 40.0) for model in models if self.chance(0.2)}
        given["gateway_queue"] = queue
        given["gateway_bytes"] = {place: 4000.0 * count for place, count in queue.items() if self.chance(0.5)}
        given["gateway_unknown"] = self.chance(0.05)
        if self.chance(0.2):
            buckets = ((256.0, 0.5), (1024.0, 0.4), (math.inf, 0.1))
            given["sizes"] = {place: SizeBuckets(buckets, buckets) for place in places}
        if self.chance(0.1):
            given["wake"] = {Key(serving.namespace, serving.name): self.pick(0.0, 3.0) for serving in bases}
        if self.chance(0.3):
            given["last_seen"] = {place: NOW - self.pick(10, 1000) for place in places}
        if self.chance(0.04):
            given["error"] = "connection refused"
        if self.chance(0.06):
            given["partial_errors"] = ("requests: timeout",)
        return given

    def _performance(self, serving: Serving, pod: Pod) -> PodPerformance:
        return PodPerformance(
            serving.namespace,
            pod.key.name,
            serving.model,
            completed=self.pick(None, 2.0, 60.0, 300.0),
            prompt_tokens=self.pick(None, 300.0, 2000.0),
            output_tokens=self.pick(None, 100.0, 400.0),
            ttft=self.pick(None, 80.0, 1500.0),
            itl=self.pick(None, 12.0, 60.0),
            steady_prompt=500.0,
            steady_output=200.0,
            steady_ttft=self.pick(None, 200.0),
            steady_itl=self.pick(None, 20.0),
            prefix_hit_rate=self.pick(None, 0.3),
            mean_kv=self.pick(None, 0.4),
        )

    def _bindings(self) -> Iterator[BindingView]:
        for index in range(self.random.randint(1, 3)):
            optimizer = self.chance(0.4)
            names = [f"b{index}-w{number}" for number in range(self.pick(1, 2, 3) if optimizer else 1)]
            if self.chance(0.08):
                names[0] = "b0-w0"
            annotations = self._annotations()
            if self.chance(0.3):
                annotations["modelyard.dev/optimizer"] = self.pick("exact", "greedy", "best")
                annotations["modelyard.dev/capacity"] = ",".join(
                    f"{name}={self.pick('1', '2.5', 'x')}" for name in names
                )
            if index and self.chance(0.25):
                annotations["modelyard.dev/role-ratio"] = f"b{index - 1}={self.pick('1', '1/4..1', '2..3', 'x')}"
            behaviour = Behaviour(
                DirectionLimits(self.pick(0, 1, 4), self.pick(0, 50, 100), self.pick(0.0, 15.0, 60.0),
                                self.pick("Or", "And"), self.pick(0.0, 60.0)),
                DirectionLimits(self.pick(0, 1, 4), self.pick(0, 50, 100), self.pick(0.0, 15.0, 60.0),
                                self.pick("Or", "And"), self.pick(0.0, 300.0)),
                Panic(self.pick(0, 200), self.pick(0.0, 15.0), self.pick(None, 150, 200), self.pick(0.0, 60.0)),
            )  # fmt: skip
            metrics = self.pick({"waiting": 10.0}, {"waiting": 10.0, "kv_usage": 0.7}, {"ttft_seconds": 0.5})
            yield binding(
                *(self._target(name, metrics) for name in names),
                policy_view=policy(behaviour, metrics, self.pick(0, 10, 10)),
                optimizer=optimizer,
                key=Key(self.pick(SPACES[0], SPACES[0], SPACES[1]), f"b{index}"),
                uid=f"uid-{index}",
                expansion_percent=self.pick(100, 150, 200, 200),
                grace=self.pick(0.0, 30.0),
                annotations=annotations,
                memory=self._binding_memory(names),
                created=NOW - 1000 * index,
                problem=self.pick(*[None] * 12, "the policy does not exist"),
                deleting=self.chance(0.03),
            )

    def _binding_memory(self, names: list[str]) -> BindingMemory:
        if self.chance(0.5):
            return BindingMemory()
        mark = lambda: (NOW - self.pick(5, 50, 400), self.pick(1, 2, 6))  # noqa: E731
        history = {"newest": mark(), "past": tuple(mark() for _ in range(self.pick(0, 2)))}
        works = [f"Deployment ns/{name}" for name in names]
        return BindingMemory.model_validate(
            {
                "subject": self.pick("", works[0], "optimizer"),
                "recommended": history,
                "corrected": self.pick(history, {}),
                "panic_until": self.pick(None, NOW + 30, NOW - 30),
                "idle_since": {works[0]: NOW - self.pick(5, 100)} if self.chance(0.4) else {},
                "asked": {works[0]: mark()} if self.chance(0.4) else {},
            }
        )

    def _target(self, name: str, metrics: dict[str, float]) -> TargetView:
        current, low = self.pick(None, 0, 1, 1, 2, 3, 6), self.pick(0, 1, 1, 2)
        count = self.pick(current or 0, max(0, (current or 0) - 1))
        instances = tuple(
            {
                metric: value * self.pick(0.0, 0.4, 0.95, 1.0, 1.6, 4.0)
                for metric, value in metrics.items()
                if self.chance(0.93)
            }
            for _ in range(count)
        )
        return target(
            name,
            current,
            low,
            self.pick(2, 5, 20),
            cost=self.pick(1.0, 2.0, 5.0),
            ready=self.pick(None, count),
            unready=max(0, (current or 0) - count),
            instances=instances,
            external={metric: 30.0 for metric in metrics if self.chance(0.1)},
            demand=self.pick(None, 0.0, 0.0, 5.0),
            scrape_errors=("pod-0: timeout",) if self.chance(0.1) else (),
            unknown=frozenset(metric for metric in metrics if self.chance(0.05)),
            startup_seconds=self.pick(None, 30.0),
            gpus=self.pick(1, 2),
            grace=self.pick(None, None, 5.0),
        )

    def _faults(self, fleet: Fleet) -> Fleet:
        changes: dict[str, Any] = {}
        if self.chance(0.05):
            changes["nodes_error"] = "nodes is forbidden"
        if self.chance(0.05):
            changes["consumers_error"] = "horizontalpodautoscalers is forbidden"
        if self.chance(0.05) and fleet.workloads:
            lost = self.pick(*fleet.workloads)
            changes["workloads"] = {id_: workload for id_, workload in fleet.workloads.items() if id_ != lost}
            changes["workload_errors"] = {lost: "timeout"} if self.chance(0.5) else {}
        if self.chance(0.05):
            annotations = {"wva.llmd.ai/exclude": "true"}
            changes["namespaces"] = {SPACES[1]: Namespace(SPACES[1], annotations=annotations)}
        if self.chance(0.06):
            changes["pods"] = tuple(replace(pod, deleting=True) if self.chance(0.3) else pod for pod in fleet.pods)
        if self.chance(0.05):
            stale = [replace(pod, sampled_at=NOW - 1000) for pod in fleet.signals.pods]
            changes["signals"] = replace(fleet.signals, pods=tuple(stale))
        if self.chance(0.03):
            changes["variants"] = tuple(
                replace(v, labels={LABEL: "H100", "wva.llmd.ai/controller-instance": "one"}) for v in fleet.variants
            )
        return replace(fleet, **changes)


def recorded() -> list[list[str]]:
    """Return the digests on record, by seed."""
    return [line.split() for line in RECORD.read_text(encoding="ascii").splitlines()]


if __name__ == "__main__":  # write the record anew: python tests/support/random_fleets.py COUNT
    with ProcessPoolExecutor() as pool:
        lines = [" ".join(pair) for pair in pool.map(digests, range(int(sys.argv[1])), chunksize=100)]
    RECORD.write_text("\n".join(lines) + "\n", encoding="ascii")
