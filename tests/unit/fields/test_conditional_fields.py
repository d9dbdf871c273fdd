"""Spec fields of Models, routes, servers, bindings and variants that have an effect only together with others."""

from __future__ import annotations

import copy
from typing import Any

import autoscaling_scenarios
import model_scenarios
import pytest
import routing_scenarios

from modelyard.resources import KINDS
from modelyard.resources.field_effects import field_effects, ineffective

OF = {kind.kind: kind for kind in KINDS.values()}


def _changed(obj: Any, *changes: tuple[str, Any]) -> dict[str, Any]:
    """The object with other values at places such as ``spec.retry.attempts``; ``None`` removes one."""
    changed: dict[str, Any] = copy.deepcopy(obj)
    for place, value in changes:
        *outer, last = place.split(".")
        inside = changed
        for name in outer:
            inside = inside.setdefault(name, {})
        if value is None:
            inside.pop(last, None)
        else:
            inside[last] = value
    return changed


VARIANT, SLO = autoscaling_scenarios.SATURATION, autoscaling_scenarios.SLO
BINDING, ROUTE = autoscaling_scenarios.OPTIMIZER, routing_scenarios.OTHER_ROUTE
SERVER, MODEL = routing_scenarios.PLAIN_SERVER, model_scenarios.SHARED
PARAMETERS, GROUPS = "spec.variantProfile.perfParms", "spec.workloadSelector.pdGroup"
OPTIMIZER, RATE = "modelyard.dev/optimizer", "spec.optimizerConfiguration.costExpansionRatePercent"
KINDS_WITH_RULES = ("AutoscalingPolicyBinding", "Model", "ModelRoute", "ModelServer", "VariantAutoscaling")
PAIRS = {"groupKey": "g", "prefillLabels": {"role": "p"}, "decodeLabels": {"role": "d"}}


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (
            _changed(VARIANT, ("spec.accelerator", "H100"), ("spec.acceleratorCount", 2)),
            ["accelerator", "acceleratorCount"],
        ),
        (_changed(VARIANT, ("spec.sloClassRef", {"name": "a", "key": "b"})), ["sloClassRef"]),
        (_changed(SLO), []),
        (_changed(SLO, ("spec.variantProfile", None)), ["variantID", "accelerator", "acceleratorCount", "sloClassRef"]),
        (_changed(SLO, (f"{PARAMETERS}.decodeParms.delta", "1")), ["variantProfile.perfParms.decodeParms.delta"]),
        (_changed(SLO, (f"{PARAMETERS}.prefillParms.Gamma", "1")), ["variantProfile.perfParms.prefillParms.Gamma"]),
        (_changed(BINDING, ("metadata.annotations", {OPTIMIZER: "exact"})), [RATE.removeprefix("spec.")]),
        (_changed(BINDING, ("metadata.annotations", {OPTIMIZER: "exact"}), (RATE, 200)), []),
        (_changed(BINDING, ("metadata.annotations", {OPTIMIZER: "greedy"})), []),
        (_changed(ROUTE, ("spec.rateLimit", {"unit": "hour"})), ["rateLimit"]),
        (_changed(ROUTE, ("spec.rateLimit", {"outputTokensPerUnit": 5})), []),
        (_changed(SERVER, ("spec.kvConnector", {"type": "http"})), ["kvConnector"]),
        (_changed(SERVER, ("spec.kvConnector", {"type": "http"}), (GROUPS, PAIRS)), []),
        (
            _changed(SERVER, (GROUPS, {**PAIRS, "prefillLabels": {"role": "d", "a": "b"}})),
            [f"{GROUPS}.prefillLabels"[5:]],
        ),
        (_changed(SERVER, ("spec.trafficPolicy.retry.attempts", 21)), ["trafficPolicy.retry.attempts"]),
        (_changed(SERVER, ("spec.trafficPolicy.retry.attempts", 20)), []),
        (_changed(MODEL, ("spec.modelMatch.body", {"model": "x"})), ["modelMatch.body.model"]),
        (
            _changed(MODEL, ("spec.modelMatch.body", {"model": "x"}), ("spec.backends", MODEL["spec"]["backends"][:1])),
            [],
        ),
        *(
            ({"kind": kind, "spec": {"rateLimit": 3, "backends": {}, "kvConnector": []}}, None)
            for kind in KINDS_WITH_RULES
        ),
    ],
)
def test_fields_that_need_others_are_named_without_them(obj: dict[str, Any], expected: list[str] | None) -> None:
    fields = ineffective(OF[obj["kind"]], obj)
    if expected is None:  # an object of another form: there is an answer
        assert all(field.reason for field in fields)
        return
    listed = [entry.text.removesuffix(".") for entry in field_effects(obj["kind"]).values()]
    named = [field.path for field in fields if field.reason not in listed]
    assert named == [f"spec.{path}" for path in expected]
