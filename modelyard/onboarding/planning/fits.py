"""Which runtimes can serve a model, and whether it fits the accelerators of a candidate. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from modelyard.autoscaling.fleet import product_of, short_name
from modelyard.models.detection import fit
from modelyard.objects import Node, count, cut, printable
from modelyard.onboarding.request import MOST_CANDIDATES, OnboardRequest, ServingCandidate
from modelyard.reconcile.plans import World
from modelyard.resources.ome import engine_spec
from modelyard.runtimes import ModelView, parse_model
from modelyard.workloads.roll_out import OfferedRuntime, offered_runtimes, rank

MEMORY_LABEL = "nvidia.com/gpu.memory"
"""MiB of one accelerator of a node."""


class Fits(NamedTuple):
    """The candidates, and by runtime why one is none."""

    candidates: tuple[ServingCandidate, ...]
    refused: Mapping[str, str]


def fits(asked: OnboardRequest, model: Mapping[str, Any], world: World, nodes: Iterable[Node]) -> Fits:
    """What may serve the model (as the API sends it): those that are named, or all that fit and have a price."""
    view, there = parse_model(model), list(nodes)
    # The namespace's own runtime, which comes first, is the one that a service names.
    by_name = {runtime.choice.name: runtime for runtime in reversed(offered_runtimes(asked.namespace, world))}
    if asked.candidates:
        found = {one.runtime: _against(asked, one, view, by_name, world, there) for one in asked.candidates}
        return Fits(asked.candidates, {name: why for name, why in found.items() if why})
    candidates, refused = [], {}
    for verdict in rank(view, asked.namespace, world).verdicts:
        name = verdict.runtime.name
        if not verdict.accepted:
            refused[name] = verdict.why
            continue
        accelerator, devices = _accelerator(by_name[name]), max(1, verdict.runtime.devices)
        if (price := asked.prices.get(accelerator)) is None:
            refused[name] = f"it asks for accelerator {accelerator or 'of any kind'}, which has no price"
            continue
        try:
            one = ServingCandidate(runtime=name, accelerator=accelerator, count=devices, price=price)
        except ValueError as error:  # anybody may call a runtime what he likes
            refused[name] = cut(printable(str(error)), 500)
            continue
        if why := _against(asked, one, view, by_name, world, there):
            refused[name] = why
        else:
            candidates.append(one)
    return Fits(tuple(candidates[:MOST_CANDIDATES]), refused)


def _against(
    asked: OnboardRequest,
    one: ServingCandidate,
    model: ModelView,
    by_name: Mapping[str, OfferedRuntime],
    world: World,
    nodes: list[Node],
) -> str:
    if (problem := rank(model, asked.namespace, world, named=one.runtime).problem) is not None:
        return cut(problem.message, 500)
    runtime = by_name[one.runtime]
    if (wants := _accelerator(runtime)) and wants != one.accelerator:
        return f"its nodeSelector asks for accelerator {wants}, not {one.accelerator}"
    if runtime.choice.devices and runtime.choice.devices != one.count:
        return f"one replica of it takes accelerators: {runtime.choice.devices}, not {one.count}"
    able = [node.labels for node in nodes if short_name(product_of(node.labels) or "") == one.accelerator]
    memory = max((count(labels.get(MEMORY_LABEL, 0)) << 20 for labels in able), default=0)
    held = fit(model.facts, memory, one.count, asked.prompt_tokens + asked.output_tokens) if memory else None
    return f"it does not fit {one.accelerator}: {held.reason}" if held is not None and held.fits is False else ""


def _accelerator(runtime: OfferedRuntime) -> str:
    engine = engine_spec(runtime.resource.spec) if runtime.resource is not None else None
    product = product_of((engine.node_selector if engine is not None else None) or {})
    return short_name(product) if product else ""
