"""The fleets of the comparison as manifests: one model on one or two accelerators, or several models on the GPUs of one
node."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from modelyard.engine.config import PROFILES
from modelyard.replay.backtest.scenario import ReplayedFleet, read_fleet

MODEL = "llama-8b"
COSTS = {"l40s": 12.0, "h100": 40.0}
"""An hour of a replica."""
PRODUCTS = {"l40s": "NVIDIA-L40S", "h100": "NVIDIA-H100-80GB-HBM3"}
"""The accelerators in the words of a node's label."""
PRIORITIES = (1, 5, 10)
"""Of service classes, the most important first."""


def fleet_of(form: str, initial: Mapping[str, int], startup: float) -> ReplayedFleet:
    """The fleet of a form. The same price for the same replica, whoever scales it."""
    return _read(manifests(form, initial), startup)


def shared_fleet(initial: Mapping[str, int], accelerator: str, gpus: int, startup: float) -> ReplayedFleet:
    """Models with so many replicas each at the beginning, the most important first, on so many GPUs."""
    return _read(shared_manifests(initial, accelerator, gpus), startup)


def _read(documents: Sequence[Mapping[str, Any]], startup: float) -> ReplayedFleet:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.yaml"
        file.write_text(yaml.safe_dump_all(documents, sort_keys=False))
        fleet = read_fleet([file], startup=startup)
    variants = tuple(dataclasses.replace(spec, cost=COSTS[spec.key.name.rpartition("-")[2]]) for spec in fleet.variants)
    return dataclasses.replace(fleet, variants=variants)


def manifests(form: str, initial: Mapping[str, int]) -> list[dict[str, Any]]:
    """One model on these accelerators, with so many replicas each at the beginning, scaled in one of the forms."""
    documents: list[dict[str, Any]] = []
    for accelerator, replicas in initial.items():
        documents += [_deployment(MODEL, accelerator, replicas), _variant(MODEL, accelerator, form)]
    return [*documents, *_configuration([MODEL])]


def shared_manifests(initial: Mapping[str, int], accelerator: str, gpus: int) -> list[dict[str, Any]]:
    """Several models in SLO form, a service class each, under the GPU limiter."""
    documents: list[dict[str, Any]] = []
    for model, replicas in initial.items():
        documents += [_deployment(model, accelerator, replicas), _variant(model, accelerator, "slo")]
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "gpus", "labels": {"nvidia.com/gpu.product": PRODUCTS[accelerator]}},
        "status": {
            "allocatable": {"nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    limiter = _config("wva-saturation-scaling-config", {"default": "enableLimiter: true"})
    return [*documents, node, limiter, *_configuration(list(initial))]


def _head(version: str, kind: str, name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": "chat", **({"labels": dict(labels)} if labels else {})},
    }


def _deployment(model: str, accelerator: str, replicas: int) -> dict[str, Any]:
    name = f"{model}-{accelerator}"
    container = {
        "name": "engine",
        "image": "vllm/vllm-openai:latest",
        "args": ["--model", model],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    head = _head("apps/v1", "Deployment", name, {"inference.optimization/acceleratorName": accelerator.upper()})
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    return {**head, "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}}


def _variant(model: str, accelerator: str, form: str) -> dict[str, Any]:
    name = f"{model}-{accelerator}"
    head = _head(
        "llmd.ai/v1alpha1", "VariantAutoscaling", name, {"inference.optimization/acceleratorName": accelerator.upper()}
    )
    spec: dict[str, Any] = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "modelID": model,
    }
    if form == "slo":
        return {**head, "spec": {**spec, **_slo(model, accelerator)}}
    return {**head, "spec": {**spec, "variantCost": str(COSTS[accelerator])}}


def _slo(model: str, accelerator: str) -> dict[str, Any]:
    profile = PROFILES[accelerator]
    return {
        "variantID": f"{model}-{accelerator.upper()}-1",
        "accelerator": accelerator.upper(),
        "acceleratorCount": 1,
        "sloClassRef": {"name": "service-classes-config", "key": f"{model}.yaml"},
        "variantProfile": {
            "maxBatchSize": profile.max_num_seqs,
            "perfParms": {
                "decodeParms": {"alpha": str(profile.alpha), "beta": str(profile.beta)},
                "prefillParms": {"gamma": str(profile.gamma), "delta": str(profile.delta)},
            },
        },
    }


def _configuration(models: Sequence[str]) -> list[dict[str, Any]]:
    costs = {name.upper(): f'{{"device": "{name}", "cost": "{cost:g}"}}' for name, cost in COSTS.items()}
    classes = {
        f"{model}.yaml": yaml.safe_dump(
            {"name": model, "priority": priority, "data": [{"model": model, "slo-tpot": 60, "slo-ttft": 2000}]},
            sort_keys=False,
        )
        for model, priority in zip(models, PRIORITIES, strict=False)
    }
    return [_config("accelerator-unit-costs", costs), _config("service-classes-config", classes)]


def _config(name: str, data: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "workload-variant-autoscaler-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
