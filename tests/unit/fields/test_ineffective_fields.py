"""Fields of an object without effect: which are named, with which reason, and in bounded size."""

from __future__ import annotations

from itertools import islice, permutations
from typing import Any

import pytest
from call_counts import count_calls
from hypothesis import given, strategies as st

from modelyard.objects import Condition, Key, Notice, ResourceType
from modelyard.reconcile.plans.plan import Plan, Status, Subject
from modelyard.reconcile.plans.spec_warning import with_spec_warning
from modelyard.reconcile.plans.status import patch
from modelyard.resources import KINDS, InferenceService, ModelRoute
from modelyard.resources.base import Resource
from modelyard.resources.field_effects import Effect, effect_of, field_effects, ineffective, warning
from modelyard.resources.field_effects.tables import field_tree

ROUTE = ResourceType.of_resource(ModelRoute)


def paths(kind: type[Resource], spec: Any) -> list[str]:
    return [field.path for field in ineffective(kind, {"spec": spec})]


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"parentRefs": [{"name": "gateway"}]}, ["spec.parentRefs"]),
        ({"parentRefs": []}, []),
        ({"parentRefs": None}, []),
        ({"rules": [{"targetModels": [{"zone": 1}]}]}, ["spec.rules[0].targetModels[0].zone"]),
        ({"rules": {"targetModels": 1}}, ["spec.rules.targetModels"][:0]),
        ({"rules": [{"modelMatch": {"headers": {"x": {"exact": "a", "suffix": "b"}}}}]}, None),
        ("?", []),
        ([{"parentRefs": [1]}], []),
        (None, []),
    ],
)
def test_fields_are_named_with_their_place(spec: Any, named: list[str] | None) -> None:
    expected = ["spec.rules[0].modelMatch.headers.x.suffix"] if named is None else named
    assert paths(ModelRoute, spec) == expected


def test_an_unknown_field_is_named_with_the_one_that_may_be_meant() -> None:
    assert warning(InferenceService, {"spec": {"engine": {"minReplica": 1}}}) == (
        "without effect: spec.engine.minReplica: unknown field, did you mean 'minReplicas'?"
    )
    assert warning(InferenceService, {"spec": {}, "data": {}}) == "without effect: data: unknown field"


def test_containers_may_have_any_field() -> None:
    assert paths(InferenceService, {"engine": {"runner": {"later": 1}}, "predictor": {"model": {"tty": True}}}) == []


def test_one_field_in_many_places_is_named_once() -> None:
    targets = [{"externalModelProviderName": "x"} for _ in range(3)]
    text = warning(ModelRoute, {"spec": {"rules": [{"targetModels": targets}]}})
    assert text.startswith("without effect: spec.rules[0].targetModels[0].externalModelProviderName and 2 more places:")


def test_a_default_that_the_api_server_fills_in_is_no_warning() -> None:
    entries = [
        (kind, path)
        for kind in KINDS.values()
        for path, entry in field_effects(kind.kind).items()
        if entry.effect is Effect.NONE and path.startswith("spec.")
    ]
    assert entries
    assert all(effect_of(kind.kind, path) is not None for kind, path in entries)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_no_spec_is_too_odd(spec: Any) -> None:
    for kind in KINDS.values():
        assert len(warning(kind, {"spec": spec})) <= 2000


def _at(path: str, value: Any) -> Any:
    """An object that has this value at a path of the tables, such as ``spec.rules[].name``."""
    for name in reversed(path.split(".")):
        value = value if name == "*" else {name.removesuffix("[]"): [value] if name.endswith("[]") else value}
        value = {"x": value} if name == "*" else value
    return value


@pytest.mark.parametrize("kind", sorted(KINDS.values(), key=lambda kind: kind.kind), ids=lambda kind: kind.kind)
def test_no_value_of_any_field_is_too_odd(kind: type[Resource]) -> None:
    """An object that a warning cannot be written for is one that the controller cannot read at all."""
    spec = next(node for node in field_tree(kind).walk() if node.path == "spec")
    for node in spec.walk():
        for value in ({}, [], {"a": [1]}, [{}], [None], [[]], "x", 2**70, -1, float("nan"), True):
            assert len(warning(kind, _at(node.path, value))) <= 2000, (node.path, value)


def test_a_warning_is_bounded_however_much_is_unknown() -> None:
    deep: Any = {}
    for _ in range(50_000):
        deep = {"a": deep}
    spec = {**{f"x{number}" * 5000: deep for number in range(2000)}, "y\n\u202e": 1}
    text = warning(InferenceService, {"spec": spec})
    assert len(text) <= 2000
    assert "and 1991 more fields" in text
    assert text.isprintable()


# The condition

SUBJECT = Subject(ROUTE, Key("shop", "chat"), "uid", 3, ignored="without effect: spec.later: unknown field")
WARNING = Condition("SpecWarning", "True", "FieldsIgnored", SUBJECT.ignored, 3)


def stored(plan: Plan, before: Any) -> dict[str, Any]:
    """The status after the plan was written."""
    return {**before, **patch(plan.status, before, 1.0)} if plan.status is not None else before


def test_a_warning_is_a_condition_and_one_event_and_goes_with_the_field() -> None:
    plan = with_spec_warning(Plan(SUBJECT), {})
    assert plan.status is not None
    assert plan.status.conditions == (WARNING,)
    assert plan.notices == (Notice("FieldsIgnored", SUBJECT.ignored, "Warning"),)
    status = stored(plan, {"conditions": [{"type": "Ready", "status": "True"}]})
    again = with_spec_warning(Plan(SUBJECT), status)
    assert (again.status, again.notices) == (None, ())
    gone = with_spec_warning(Plan(SUBJECT._replace(ignored="")), status)
    assert [one["type"] for one in stored(gone, status)["conditions"]] == ["Ready"]
    assert with_spec_warning(Plan(SUBJECT._replace(ignored="")), {}).status is None


def test_a_warning_keeps_the_rest_of_a_status_and_what_others_warn_of() -> None:
    status = Status({"state": "Ready"}, (Condition("Ready", "True", "Ready", ""),))
    plan = with_spec_warning(Plan(SUBJECT, status=status, wanted=status), {}, [("ParameterIgnored", "key x")])
    assert plan.status is not None
    assert plan.status == plan.wanted
    assert plan.status.fields == {"state": "Ready"}
    assert [one.type for one in plan.status.conditions] == ["Ready", "SpecWarning"]
    assert plan.status.conditions[1].reason == "ParameterIgnored"
    assert plan.status.conditions[1].message == f"key x; {SUBJECT.ignored}"


def test_an_object_that_is_being_deleted_is_not_warned_of() -> None:
    plan = Plan(SUBJECT._replace(deleting=True))
    assert with_spec_warning(plan, {}) == plan


@pytest.mark.parametrize("places", [1, 20])
def test_only_the_unknown_fields_that_are_shown_are_compared_with_the_known_ones(places: int) -> None:
    """Anagrams of a field's name are the longest to compare: thousands of them once took seconds for one object."""
    names = ["".join(name) for name in islice(permutations("minReplicas"), 400)]

    def work(count: int) -> int:
        rules = [dict.fromkeys(names[:count], 1)] * places
        return count_calls(lambda: warning(ModelRoute, {"spec": {"rules": rules}}))

    more = work(400) - work(100)
    assert more < 300 * places * 20, "steps of the walk only, for each further field"
