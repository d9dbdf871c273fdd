"""How many requests at a time a candidate is measured with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from onboarded import SLOW, request, runs

from modelyard.autoscaling.sizing.experiment import doubt
from modelyard.benchmarks.records.values import MeasuredRun
from modelyard.onboarding.planning.choose import fitted
from modelyard.onboarding.planning.levels import certainty, first_levels, more_levels, next_level
from modelyard.onboarding.request import OnboardRequest


def series(asked: OnboardRequest, noise: float, seed: int) -> tuple[list[int], list[MeasuredRun]]:
    """The levels that are added to the first ones, in order, and all runs."""
    found, tried = runs(SLOW, first_levels(asked), noise, seed), list[int]()
    while (level := next_level(asked, found, tried)) is not None:
        tried.append(level)
        found += runs(SLOW, [level], noise, seed)
    return tried, found


def widest(found: list[MeasuredRun]) -> float:
    return max(doubt(fitted(found)).values())


@pytest.mark.parametrize(
    ("given", "first", "more"),
    [
        ({}, (1, 8, 16, 32), (2, 3, 4, 6, 12, 24)),
        ({"max_level": 2}, (1, 2), ()),
        ({"max_level": 5}, (1, 2, 5), (3, 4)),
        ({"levels": (1, 32)}, (1, 32), ()),
    ],
)
def test_it_begins_with_few_levels_and_what_was_asked_for_is_all(
    given: dict[str, Any], first: tuple[int, ...], more: tuple[int, ...]
) -> None:
    asked = request(**given)
    assert (first_levels(asked), more_levels(asked)) == (first, more)


@given(st.floats(0, 0.05), st.integers(0, 1000), st.sampled_from([0.05, 0.1, 0.3]), st.integers(2, 256))
def test_levels_are_added_until_the_figures_are_certain_or_none_would_help(
    noise: float, seed: int, precision: float, most: int
) -> None:
    asked = request(precision=precision, max_level=most)
    tried, found = series(asked, noise, seed)
    assert len(set(tried)) == len(tried), "no level is measured twice"
    assert {*tried} <= {*more_levels(asked)}
    said = certainty(asked, found)
    assert ("would not reach it" in said) == (widest(found) > precision and len(found) > 2)
    assert "next is" not in said


def test_noise_takes_more_levels_and_where_they_are_is_where_the_doubt_is() -> None:
    assert series(request(), 0.0, 0)[0] == []
    low, found = series(request(), 0.02, 7)
    assert low == [2, 3], "gamma is that of an idle engine"
    assert widest(found) <= 0.1
    assert series(request(), 0.02, 3)[0] == [24], "beta shows under load"
    assert series(request(max_level=3), 0.0, 0)[0] == [2], "of two levels nothing is certain"
    begun = runs(SLOW, first_levels(request()), 0.02, 7)
    assert certainty(request(), begun).endswith("and 0.1 was asked for: next is 2")


def test_where_an_engine_is_not_like_the_lines_no_accelerator_is_used_in_vain() -> None:
    bent = [
        one.model_copy(update={"ttft": one.ttft.model_copy(update={"mean": 0.1 * one.concurrency**0.4})})
        for one in runs(SLOW)
        if one.ttft is not None
    ]
    assert next_level(request(), bent, ()) is None
    assert "more levels would not reach it" in certainty(request(), bent)


def test_runs_that_tell_nothing_are_not_added_to() -> None:
    silent = [one.model_copy(update={"ttft": None}) for one in runs(SLOW)]
    assert next_level(request(), silent, ()) is None
    assert certainty(request(), silent) == ""
    two = runs(SLOW, (1, 32))
    assert certainty(request(levels=(1, 32)), two) == "measured at 1, 32: too few levels to say how certain that is"


@pytest.mark.parametrize("prompts", [(0.3, 0.3, 0.3), (400, 200, 100)])
def test_loads_that_tell_nothing_of_prompts_are_measured_at_another_level(prompts: tuple[float, ...]) -> None:
    """Figures are what a BenchmarkJob says, and that may be anything."""
    found = [
        one.model_copy(update={"prompt_tokens": prompt})
        for one, prompt in zip(runs(SLOW, (1, 2, 4), 0.02, 1), prompts, strict=True)
    ]
    assert next_level(request(max_level=4), found, ()) in (3, None)
