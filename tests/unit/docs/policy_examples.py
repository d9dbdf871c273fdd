"""Decides the policy bindings of config/samples/autoscaling, tick by tick. Used by the tests of docs/autoscaling.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from binding_decisions import decide_bindings

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.decision import BindingDecision
from modelyard.autoscaling.fleet.binding_view import TargetView
from modelyard.autoscaling.memory.bindings import BindingMemory
from modelyard.autoscaling.plans.binding_plans import policy_plan, status_of as binding_status
from modelyard.autoscaling.reading.bindings.objects import binding, policy
from modelyard.reconcile.plans.status import patch

SAMPLES = Path(__file__).resolve().parents[3] / "config" / "samples" / "autoscaling"
WAITING = "vllm:num_requests_waiting"
BEGIN = 1_767_607_200.0
"""2026-01-05T10:00:00Z."""


def manifests(name: str) -> dict[str, Mapping[str, Any]]:
    """The objects of a sample file by kind."""
    documents = yaml.safe_load_all((SAMPLES / name).read_text(encoding="utf-8"))
    return {document["kind"]: document for document in documents if document["kind"] != "Deployment"}


class Example:
    """One binding of a sample, its workloads, and what it remembers. ``at`` is seconds since the beginning."""

    def __init__(self, folder: str, policy_file: str = "", **annotations: str) -> None:
        found = manifests(f"{folder}/manifests.yaml")
        if policy_file:
            found |= manifests(f"{folder}/{policy_file}")
        self.policy = policy(found["AutoscalingPolicy"])
        body = dict(found["AutoscalingPolicyBinding"])
        body["metadata"] = {**body["metadata"], "generation": 1, "annotations": annotations}
        self.spec = binding(body)
        self.memory = BindingMemory()
        self.replicas = {target.name: target.minimum for target in self.spec.targets}

    def decide(
        self, at: float, values: Mapping[str, Sequence[float]], unready: int = 0, demand: float | None = 1.0
    ) -> BindingDecision:
        """One tick: ``values`` are the waiting requests of each ready instance, by target."""
        targets = tuple(
            TargetView(
                target.name,
                target.workload,
                target.minimum,
                target.maximum,
                target.cost,
                current=self.replicas[target.name],
                ready=len(values.get(target.name, ())),
                unready=unready,
                instances=tuple({WAITING: value} for value in values.get(target.name, ())),
                demand=demand,
            )
            for target in self.spec.targets
        )
        view = replace(self.spec.view, targets=targets, policy=self.policy.view, memory=self.memory)
        (decision,), errors = decide_bindings([view], FleetSettings(), BEGIN + at)
        assert not errors
        self.memory = decision.memory
        for record in decision.records:
            if record.writes.scale is not None and record.identity.variant_id is not None:
                self.replicas[record.identity.variant_id] = record.writes.scale
        return decision

    def follow(self, name: str, demands: Mapping[float, float], until: float, tick: float = 15.0) -> dict[int, int]:
        """Replicas of one target from the moments they changed; ``demands``: waiting in all, in replicas' worth."""
        changes = {0: self.replicas[name]}
        at = 0.0
        while at <= until:
            load = 10 * next(load for since, load in sorted(demands.items(), reverse=True) if at >= since)
            count = self.replicas[name]
            self.decide(at, {name: [load / count] * count})
            if self.replicas[name] != changes[max(changes)]:
                changes[int(at)] = self.replicas[name]
            at += tick
        return changes


def status_of(decision: BindingDecision, at: float = 0.0) -> dict[str, Any]:
    """The status as it is written."""
    return {key: value for key, value in patch(binding_status(decision), {}, BEGIN + at).items() if value is not None}


def effective(example: Example) -> dict[str, Any]:
    """The status of the policy."""
    status = policy_plan(example.policy, BEGIN).status
    assert status is not None
    return patch(status, {}, BEGIN)
