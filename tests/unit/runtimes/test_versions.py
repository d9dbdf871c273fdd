"""Versions of formats and frameworks: what is one, their order, and when a runtime's fits a model's."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from modelyard.runtimes.versions import EQUAL, GREATER, parse_version, versions_match

AT_LEAST = "GreaterThanOrEqual"


@pytest.mark.parametrize(
    ("runtime", "operator", "model", "match"),
    [
        ("1.8.0", GREATER, "1.7.0", True),
        ("1.7.0", GREATER, "1.8.0", False),
        ("1.0", GREATER, "1.0.0", False),
        ("v1.0.0", GREATER, "1.0.0", False),
        ("1.8.0-dev", GREATER, "1.8.0-dev", True),
        ("4.51.0", AT_LEAST, "4.46.0.dev0", False),
        ("1", EQUAL, "1.0.0", True),
        ("v1", EQUAL, "1.0.0", True),
        ("1.0.0", EQUAL, "1.0.1", False),
        ("1.8.0", GREATER, "1.8.0", False),
        ("1.8.0", AT_LEAST, "1.8.0", True),
        ("4.33.1", AT_LEAST, "4.46.3", False),
        ("4.46.3", AT_LEAST, "4.33.1", True),
        ("1.2", AT_LEAST, "1.1", True),
        ("1.2", AT_LEAST, "1.1.0", False),
        ("v1.2", AT_LEAST, "v1.1", True),
        ("1.8.0-dev", AT_LEAST, "1.7.0", False),
        ("1.8.0+cu", GREATER, "1.7.0", False),
        ("latest", EQUAL, "latest", False),
        ("1.0.0", EQUAL, "V1.0.0", False),
    ],
)
def test_whether_versions_match(runtime: str, operator: str, model: str, match: bool) -> None:
    assert versions_match(runtime, model, operator) is match


@pytest.mark.parametrize(
    ("runtime", "operator", "model", "match"),
    [
        ("4.51.0", AT_LEAST, "4.46.0.dev0", True),
        ("4.51.0", AT_LEAST, "4.51.0.dev0", True),
        ("4.51.0", GREATER, "4.51.0.dev0", False),
        ("4.51.0", AT_LEAST, "4.52.0.dev0", False),
        ("4.51", AT_LEAST, "v4.46.0", True),
        ("4.51.0", EQUAL, "4.51.0.dev0", False),
    ],
)
def test_releases_alone_are_compared_where_a_runtime_says_so(
    runtime: str, operator: str, model: str, match: bool
) -> None:
    assert versions_match(runtime, model, operator, release_only=True) is match


@pytest.mark.parametrize(
    "text",
    [
        *("V1", "1.02", "1.2.3rc1", "latest", "", "1.", "1..2", "1.2.3.", "1.2.3-", "1.2.3+"),
        *("01", "1.2.3-a..b", "v", "1.2.3 ", "1.2.3\n", "٣.0.0", "9" * 10, "1.2.3-" + "x" * 65),
    ],
)
def test_what_is_no_version(text: str) -> None:
    assert parse_version(text) is None


def test_a_build_for_development_is_above_its_release() -> None:
    below, above = parse_version("4.43.0"), parse_version("4.43.0.dev0")
    assert below is not None
    assert above is not None
    assert below < above
    fourth = parse_version("1.0.0.0")
    assert fourth is not None
    assert not fourth.official


@given(st.text(max_size=200), st.text(max_size=200), st.sampled_from([EQUAL, GREATER, AT_LEAST]), st.booleans())
def test_no_text_does_harm(runtime: str, model: str, operator: str, release_only: bool) -> None:
    versions_match(runtime, model, operator, release_only)


_numbers = st.tuples(*[st.integers(0, 99)] * 3)


@given(_numbers, _numbers)
def test_numbers_are_compared_as_numbers(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    ours, theirs = (".".join(map(str, version)) for version in (one, other))
    assert versions_match(ours, theirs, GREATER) is (one > other)
    assert versions_match(ours, theirs, AT_LEAST) is (one >= other)
    assert versions_match(ours, theirs) is (one == other)
