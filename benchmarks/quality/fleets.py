"""The fleets of the comparison as manifests: one model on one or two accelerators, scaled in any of the forms."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from modelyard.engine.config import PROFILES
from modelyard.replay.scenario import ReplayedFleet, read_fleet

MODEL = "llama-8b"
COSTS = {"l40s": 12.0, "h100": 40.0}
"""An hour of a replica."""


def fleet_of(form: str, initial: Mapping[str, int], startup: float) -> ReplayedFleet:
    """The fleet of a form. The same price for the same replica, whoever scales it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.yaml"
        file.write_text(manifests(form, initial))
        fleet = read_fleet([file], startup=startup)
    variants = tuple(dataclasses.replace(spec, cost=COSTS[spec.key.name.rpartition("-")[2]]) for spec in fleet.variants)
    return dataclasses.replace(fleet, variants=variants)


def manifests(form: str, initial: Mapping[str, int]) -> str:
    """One model on these accelerators, with so many replicas each at the beginning, scaled in one of the forms."""
    documents: list[dict[str, Any]] = []
    names = {accelerator: f"{MODEL}-{accelerator}" for accelerator in initial}
    for accelerator, replicas in initial.items():
        documents.append(_deployment(names[accelerator], accelerator, replicas))
        documents.append(_variant(names[accelerator], accelerator, COSTS[accelerator], form))
    if form == "slo":
        documents += _configuration()
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


def _configuration() -> list[dict[str, Any]]:
    def config(name: str, data: dict[str, str]) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "workload-variant-autoscaler-system"}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    costs = {name.upper(): f'{{"device": "{name}", "cost": "{cost:g}"}}' for name, cost in COSTS.items()}
    target = {"model": MODEL, "slo-tpot": 60, "slo-ttft": 2000}
    premium = yaml.safe_dump({"name": "Premium", "priority": 1, "data": [target]}, sort_keys=False)
    return [
        config("accelerator-unit-costs", costs),
        config("service-classes-config", {"premium.yaml": premium}),
    ]
