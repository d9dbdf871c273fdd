"""Fields with an effect make a difference when they are dropped, fields without one do not, and are warned of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args, get_origin

import base_model_scenarios
import benchmark_scenarios
import pytest
import runtime_scenarios
from autoscaling_scenarios import AUTOSCALING
from field_mutations import InvalidObject, Scenario, makes_a_difference, mutants
from model_scenarios import MODELS
from routing_scenarios import ROUTING
from service_scenarios import SERVICES

from modelyard.resources import KINDS
from modelyard.resources.field_effects import Effect, effect_of, field_effects, field_tree, ineffective

BY_NAME = {kind.kind: kind for kind in KINDS.values()}
SCENARIOS: dict[str, Sequence[Scenario]] = {
    "InferenceService": SERVICES,
    **base_model_scenarios.SCENARIOS,
    **benchmark_scenarios.SCENARIOS,
    **runtime_scenarios.SCENARIOS,
    **AUTOSCALING,
    **MODELS,
    **ROUTING,
}


def fields(kind: str, *effects: Effect) -> list[str]:
    """Return the paths of the fields of a kind's spec with one of these effects."""
    nodes = field_tree(BY_NAME[kind]).walk()
    leaves = [node.path for node in nodes if node.fields is None and node.path.startswith("spec")]
    return [path for path in leaves if (entry := effect_of(kind, path)) is not None and entry.effect in effects]


def other_values_are_refused(kind: str, path: str, scenario: Scenario) -> bool:
    """Return whether a field allows one value only, and the object is refused with another."""
    node = next(node for node in field_tree(BY_NAME[kind]).walk() if node.path == path)
    if get_origin(node.info.annotation) is not Literal or len(get_args(node.info.annotation)) > 1:
        return False
    changed = list(mutants(replace(scenario, alternatives={path: "another"}), path))
    for mutant in changed:
        with pytest.raises(InvalidObject):
            scenario.outcome(mutant)
    return bool(changed)


def is_noticed(kind: str, path: str) -> bool:
    """Return whether any scenario shows the effect of a field."""
    return any(
        makes_a_difference(scenario, path) or other_values_are_refused(kind, path, scenario)
        for scenario in SCENARIOS[kind]
    )


def test_every_kind_has_scenarios() -> None:
    assert SCENARIOS.keys() == BY_NAME.keys()


@pytest.mark.parametrize("kind", SCENARIOS)
def test_every_field_with_an_effect_makes_a_difference(kind: str) -> None:
    unnoticed = [path for path in fields(kind, Effect.ACTED, Effect.CONVERTED) if not is_noticed(kind, path)]
    assert unnoticed == []


@pytest.mark.parametrize("kind", SCENARIOS)
def test_fields_without_effect_make_no_difference(kind: str) -> None:
    for path in fields(kind, Effect.NONE, Effect.INFORMATIVE):
        results = [makes_a_difference(scenario, path) for scenario in SCENARIOS[kind]]
        assert True not in results, f"{path} has an effect"
        assert False in results, f"no scenario sets {path}"


@pytest.mark.parametrize("kind", SCENARIOS)
def test_the_warning_names_the_fields_without_effect(kind: str) -> None:
    for path in (path for path, entry in field_effects(kind).items() if entry.effect is Effect.NONE):
        for scenario in SCENARIOS[kind]:
            warned = {str(field) for field in ineffective(BY_NAME[kind], scenario.obj)}
            for mutant in mutants(scenario, path):
                left = {str(field) for field in ineffective(BY_NAME[kind], mutant)}
                assert left != warned, path


@pytest.mark.parametrize("kind", SCENARIOS)
def test_no_field_with_an_effect_is_warned_of(kind: str) -> None:
    silent = {path: effect_of(kind, path) for path in fields(kind, Effect.NONE)}
    for scenario in SCENARIOS[kind]:
        reasons = {field.reason for field in ineffective(BY_NAME[kind], scenario.obj)}
        assert reasons <= {entry.text.removesuffix(".") for entry in silent.values() if entry is not None}
