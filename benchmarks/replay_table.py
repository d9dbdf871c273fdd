"""The comparison of docs/replay.md: every policy on the second half of the shipped trace, at several rates.

    python benchmarks/replay.py --table [--rates 1 5 20] [--write] [--out s3://bucket/prefix]

The first half of the trace is for tuning, the second half is reported. Equal from run to run. Each row runs in a
process of its own, as many at a time as there are processors.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from modelyard import reports
from modelyard.engine.config import PROFILES
from modelyard.replay.compare import Batch, BatchResult, replay
from modelyard.replay.policies.parse import split
from modelyard.replay.scenario import ReplayedFleet, Scenario, read_fleet
from modelyard.replay.settings import SimulationSettings
from modelyard.traffic.latency import SLO
from modelyard.traffic.trace import Trace, read_trace

ROOT = Path(__file__).resolve().parent.parent
TRACE = ROOT / "benchmarks/data/azure-llm-inference-2023-conversation.csv"
PAGE = ROOT / "docs/replay.md"
REPORT = "comparison.md"
BEGIN, END = "<!-- comparison -->", "<!-- end of comparison -->"
RATES = (1.0, 5.0, 20.0)
MODEL = "llama-8b"
ACCELERATORS = (("l40s", 12.0), ("h100", 40.0))


class Entry(NamedTuple):
    """One row: what it is called, whose objects scale the fleet, and the policy."""

    name: str
    form: str
    policy: str


ENTRIES = (
    Entry("saturation", "saturation", "default"),
    Entry("saturation, published", "saturation", "published"),
    Entry("tokens", "tokens", "default"),
    Entry("tokens, published", "tokens", "published"),
    Entry("SLO", "slo", "default"),
    Entry("SLO, published", "slo", "published"),
    Entry("policy binding, queue 2", "scaling", "default"),
    Entry("policy binding, queue 2, published", "scaling", "published"),
    Entry("optimizer binding, queue 2", "optimizer", "default"),
    Entry("optimizer binding, queue 2, published", "optimizer", "published"),
    Entry("HPA, queue 2", "saturation", "hpa:queue=2"),
    Entry("HPA, KV 60 %", "saturation", "hpa:kv=0.6"),
    Entry("KEDA, running 20", "saturation", "keda:running=20"),
    Entry("fixed", "saturation", "fixed"),
)
EXCERPT = tuple(entry for entry in ENTRIES if entry.name in ("HPA, queue 2", "fixed"))
"""Quick to make again, and untouched by what is tuned: a test compares them with the page."""


def manifests(form: str, rate: float) -> str:
    """One model on two accelerators, scaled in one of the forms; the replicas at the beginning fit the rate."""
    documents: list[dict[str, Any]] = []
    fixed = max(1, math.ceil(rate / 2))
    names = [f"{MODEL}-{accelerator}" for accelerator, _ in ACCELERATORS]
    for (accelerator, cost), name in zip(ACCELERATORS, names, strict=True):
        documents.append(_deployment(name, accelerator, fixed))
        if form in ("saturation", "tokens", "slo"):
            documents.append(_variant(name, accelerator, cost, form))
    if form in ("tokens", "slo"):
        documents += _configuration(form)
    if form in ("scaling", "optimizer"):
        documents.append(
            {
                **_head("registry.volcano.sh/v1alpha1", "AutoscalingPolicy", "queue"),
                "spec": {"metrics": [{"metricName": "vllm:num_requests_waiting", "targetValue": "2"}]},
            }
        )
    bounds = {"minReplicas": 1, "maxReplicas": 60}
    refs = [{"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}} for name in names]
    if form == "scaling":
        documents += [
            _binding(name, {"scalingConfiguration": {"target": ref, **bounds}})
            for name, ref in zip(names, refs, strict=True)
        ]
    elif form == "optimizer":
        params = [
            {"target": ref, "cost": round(cost), **bounds} for ref, (_, cost) in zip(refs, ACCELERATORS, strict=True)
        ]
        documents.append(_binding("mixed", {"optimizerConfiguration": {"params": params}}))
    return yaml.safe_dump_all(documents, sort_keys=False)


def _head(version: str, kind: str, name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": "chat", **({"labels": dict(labels)} if labels else {})},
    }


def _deployment(name: str, accelerator: str, replicas: int) -> dict[str, Any]:
    container = {
        "name": "engine",
        "image": "vllm/vllm-openai:latest",
        "args": ["--model", MODEL],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    head = _head("apps/v1", "Deployment", name, {"inference.optimization/acceleratorName": accelerator.upper()})
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    return {**head, "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}}


def _variant(name: str, accelerator: str, cost: float, form: str) -> dict[str, Any]:
    head = _head(
        "llmd.ai/v1alpha1", "VariantAutoscaling", name, {"inference.optimization/acceleratorName": accelerator.upper()}
    )
    spec: dict[str, Any] = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "modelID": MODEL,
    }
    if form == "slo":
        return {**head, "spec": {**spec, **_slo(accelerator)}}
    return {**head, "spec": {**spec, "variantCost": str(cost)}}


def _binding(name: str, configuration: dict[str, Any]) -> dict[str, Any]:
    head = _head("registry.volcano.sh/v1alpha1", "AutoscalingPolicyBinding", name)
    return {**head, "spec": {"policyRef": {"name": "queue"}, **configuration}}


def _slo(accelerator: str) -> dict[str, Any]:
    profile = PROFILES[accelerator]
    return {
        "variantID": f"{MODEL}-{accelerator.upper()}-1",
        "accelerator": accelerator.upper(),
        "acceleratorCount": 1,
        "sloClassRef": {"name": "service-classes-config", "key": "premium.yaml"},
        "variantProfile": {
            "maxBatchSize": profile.max_num_seqs,
            "perfParms": {
                "decodeParms": {"alpha": str(profile.alpha), "beta": str(profile.beta)},
                "prefillParms": {"gamma": str(profile.gamma), "delta": str(profile.delta)},
            },
        },
    }


def _configuration(form: str) -> list[dict[str, Any]]:
    def config(name: str, data: dict[str, str]) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "workload-variant-autoscaler-system"}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    if form == "tokens":
        text = "analyzerName: saturation\nscaleUpThreshold: 0.85\nscaleDownBoundary: 0.70\n"
        return [config("wva-saturation-scaling-config", {"default": text})]
    costs = {name.upper(): f'{{"device": "{name}", "cost": "{cost:g}"}}' for name, cost in ACCELERATORS}
    target = {"model": MODEL, "slo-tpot": 60, "slo-ttft": 2000}
    premium = yaml.safe_dump({"name": "Premium", "priority": 1, "data": [target]}, sort_keys=False)
    return [
        config("accelerator-unit-costs", costs),
        config("service-classes-config", {"premium.yaml": premium}),
    ]


def half() -> Trace:
    """The part that is reported."""
    whole = read_trace(TRACE)
    minutes = math.ceil(whole.duration / 60)
    begin = minutes // 2
    return whole.stretch(begin, minutes - begin)


def batches(entries: Sequence[Entry], rates: Sequence[float], trace: Trace, folder: Path) -> Iterator[Batch]:
    """What to replay, row by row."""
    prices = dict(ACCELERATORS)
    for rate in rates:
        for entry in entries:
            file = folder / f"{entry.form}-{rate:g}.yaml"
            file.write_text(manifests(entry.form, rate))
            fleet = read_fleet([file])
            # The same price for the same replica, whoever scales it.
            variants = tuple(
                dataclasses.replace(spec, cost=prices[spec.key.name.rpartition("-")[2]]) for spec in fleet.variants
            )
            fleet = ReplayedFleet(fleet.manifests, variants, fleet.nodes, fleet.fleet_settings, fleet.warnings)
            (policy,) = split(entry.policy)
            yield Batch(Scenario(fleet, trace, SLO(), SimulationSettings()), policy, rate, bound=True)


def table(entries: Sequence[Entry], rates: Sequence[float], trace: Trace, processes: int = 0) -> str:
    """The table as Markdown, made in so many processes (0: in this one)."""
    with tempfile.TemporaryDirectory() as folder:
        work = list(batches(entries, rates, trace, Path(folder)))
    if processes:
        with ProcessPoolExecutor(min(len(work), processes), get_context("spawn")) as pool:
            results = list(pool.map(replay, work))
    else:
        results = [replay(batch) for batch in work]
    lines = [
        "| rate | policy | replica-h | cost | × bound | within SLO | TTFT p95 | ITL p95 | up | down | minutes below |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for number, result in enumerate(results):
        lines.append(_line(entries[number % len(entries)], result))
    return "\n".join(lines)


def _line(entry: Entry, result: BatchResult) -> str:
    s = result.summary
    ratio = f"{s.cost / s.bound:.2f}" if s.bound is not None and 0 < s.bound < math.inf else "-"
    cells = [
        *(f"{s.rate:g}", entry.name, f"{s.replica_hours:.2f}", f"{s.cost:.1f}", ratio, f"{s.attainment:.2%}"),
        *(f"{s.ttft.p95:.2f} s", f"{1000 * s.itl.p95:.1f} ms", str(s.scale_ups), str(s.scale_downs)),
        f"{s.minutes_below}/{s.minutes}",
    ]
    return "| " + " | ".join(cells) + " |"


def published(page: str) -> str:
    """The table that stands in the page."""
    return page.partition(BEGIN)[2].partition(END)[0].strip()


def main(rates: Sequence[float], write: bool, out: str | None = None) -> None:
    """Print the table, and put it into the page, or a report with it into a folder or bucket."""
    if out is not None:
        reports.check(out, REPORT)
    begin = time.perf_counter()
    text = table(ENTRIES, rates, half(), os.cpu_count() or 1)
    print(text)
    print(f"\n{len(ENTRIES) * len(rates)} replays in {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    if out is not None:
        with reports.written(out, REPORT) as folder:
            (folder / REPORT).write_text(f"{text}\n", encoding="utf-8")
        print(f"written: {reports.link(reports.within(out, REPORT))}", file=sys.stderr)
    if write:
        page = PAGE.read_text(encoding="utf-8")
        head, found, rest = page.partition(BEGIN)
        if not found:
            raise SystemExit(f"{PAGE}: no {BEGIN}")
        temporary = PAGE.with_name(f".{PAGE.name}.new")
        temporary.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
        temporary.replace(PAGE)
