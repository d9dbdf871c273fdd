"""Spec fields of Models, routes, servers, policies, bindings and variants: a change of each makes a difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import autoscaling_scenarios
import model_scenarios
import pytest
import routing_scenarios
from field_mutations import makes_a_difference
from pydantic import BaseModel

from modelyard import resources

SCENARIOS = {**model_scenarios.SCENARIOS, **routing_scenarios.SCENARIOS, **autoscaling_scenarios.SCENARIOS}
WITHOUT_EFFECT = ("targetRef.resourceVersion", "targetRef.fieldPath", "parentRefs", "externalModelProviderName")


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _leaves(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """The paths of the fields that hold no others."""
    for name, info in model.model_fields.items():
        path, text = f"{prefix}{info.alias or name}", str(info.annotation)
        inside = list(_models(info.annotation))
        if not inside:
            yield path
        for one in inside:
            yield from _leaves(one, path + ("[]." if "list[" in text else ".*." if "dict[" in text else "."))


def _fields() -> Iterator[tuple[str, str]]:
    for kind in SCENARIOS:
        (spec,) = _models(getattr(resources, kind).model_fields["spec"].annotation)
        for path in _leaves(spec, "spec."):
            yield kind, path


@pytest.mark.parametrize(("kind", "path"), list(_fields()))
def test_a_field_has_an_effect_unless_it_is_documented_to_have_none(kind: str, path: str) -> None:
    has_effect = not any(name in path for name in WITHOUT_EFFECT)
    assert any(makes_a_difference(scenario, path) for scenario in SCENARIOS[kind]) is has_effect
