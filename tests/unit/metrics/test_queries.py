"""PromQL texts: durations, escaping, grouping."""

import pytest
from hypothesis import given, strategies as st

from modelyard.metrics.vocabulary.queries import duration, finished_over, fleet_queries, namespace_matcher, quoted
from modelyard.metrics.vocabulary.values import PodSignal


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (600, "10m"),
        (3600, "1h"),
        (172800, "2d"),
        (30, "30s"),
        (5400, "90m"),
        (0, "1s"),
        (0.4, "1s"),
        (7.5, "7500ms"),
        (86400 + 1, "86401s"),
    ],
)
def test_retention_is_rendered_in_the_largest_exact_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "literal"),
    [("plain", '"plain"'), ('a"b', '"a\\"b"'), ("a\\b", '"a\\\\b"'), ('\\"', '"\\\\\\""'), ("a\nb", '"a\\nb"')],
)
def test_matcher_values_are_escaped_backslash_first(value: str, literal: str) -> None:
    assert quoted(value) == literal


@given(st.text())
def test_a_quoted_value_never_ends_its_own_literal(value: str) -> None:
    inner = quoted(value)[1:-1]
    assert "\n" not in inner
    unescaped = inner.replace("\\\\", "")
    assert '"' not in unescaped.replace('\\"', "")


def test_namespaces_are_matched_as_text_not_as_pattern() -> None:
    assert namespace_matcher(["b", "a.c"]) == '{namespace=~"a\\\\.c|b"}'
    assert namespace_matcher([]) == ""


def test_both_generations_of_engine_names_are_asked_for_in_one_query() -> None:
    queries = fleet_queries(60)
    for name in ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"):
        assert f"max_over_time({name}[1m])" in queries[PodSignal.measures()["kv"].purpose]
    assert "[1m]" in queries[PodSignal.measures()["waiting"].purpose]
    assert "request_success_total[5m]" in queries[PodSignal.measures()["completed_rate"].purpose]
    assert "increase(vllm:request_success_total[10m])" in finished_over(600)


def test_no_query_names_a_model() -> None:
    queries = fleet_queries(60, ["chat"])
    assert "model_name=" not in "".join(
        [
            queries[PodSignal.measures()["kv"].purpose],
            queries[PodSignal.measures()["waiting"].purpose],
            queries[PodSignal.measures()["running"].purpose],
            queries[PodSignal.measures()["completed_rate"].purpose],
        ]
    )
