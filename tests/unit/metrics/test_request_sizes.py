"""Histograms of request sizes by model: what is believed of what a pod may show."""

from __future__ import annotations

import math

import pytest

from modelyard.metrics.prometheus.client import Sample
from modelyard.metrics.prometheus.signals import MOST_BUCKETS, cache_sizes, request_sizes, together
from modelyard.metrics.vocabulary.queries import SIZES, size_queries
from modelyard.metrics.vocabulary.values import PodPerformance

PROMPTS, OUTPUTS = SIZES.values()


def buckets(*pairs: tuple[str, float | None], model: str = "m") -> list[Sample]:
    return [Sample({"namespace": "chat", "model_name": model, "le": bound}, value) for bound, value in pairs]


def test_shares_of_what_was_observed() -> None:
    found = request_sizes({PROMPTS: buckets(("+Inf", 4.0), ("10.0", 1.0), ("100", 3.0))})
    assert found["chat", "m"].prompt == ((10.0, 0.25), (100.0, 0.5), (math.inf, 0.25))
    assert found["chat", "m"].output == ()


@pytest.mark.parametrize(
    "bad",
    [
        buckets(("10", 3.0), ("+Inf", 2.0)),
        buckets(("ten", 1.0), ("+Inf", 2.0)),
        buckets(("10", None), ("+Inf", 2.0)),
        buckets(("10", 0.0), ("+Inf", 0.0)),
        buckets(("10", 1.0), ("+Inf", math.inf)),
        buckets(("10", -1.0), ("+Inf", 2.0)),
        buckets(("10", 1.5e308), ("20", -1.5e308), ("+Inf", 1.5e308)),
        buckets(*((str(bound), float(bound)) for bound in range(MOST_BUCKETS + 1))),
        [Sample({"namespace": "chat", "model_name": "m"}, 1.0)],
    ],
)
def test_what_is_no_histogram_is_left_out_and_nobody_elses_with_it(bad: list[Sample]) -> None:
    found = request_sizes({OUTPUTS: [*bad, *buckets(("10", 1.0), ("+Inf", 2.0), model="fine")]})
    assert set(found) == {("chat", "fine")}
    assert found["chat", "fine"].output == ((10.0, 0.5), (math.inf, 0.5))


def test_sizes_of_a_model_are_over_what_its_pods_finished() -> None:
    pods = [
        PodPerformance("chat", name, "m", completed=count, prompt_tokens=prompt, output_tokens=output)
        for name, count, prompt, output in (("a", 3.0, 100.0, 10.0), ("b", 1.0, 500.0, 50.0), ("c", None, 9e9, 1.0))
    ]
    assert together(pods) == {("chat", "m"): (200.0, 20.0)}
    assert together(pods[2:]) == {}


def test_counters_that_fall_below_nothing_are_left_out() -> None:
    pods = [
        PodPerformance("evil", name, "m", completed=count, prompt_tokens=10.0, output_tokens=1.0)
        for name, count in (("a", 5.0), ("b", -5.0))
    ]
    assert together(pods) == {("evil", "m"): (10.0, 1.0)}


def test_a_cache_beyond_belief_is_left_out_and_nobody_elses_with_it() -> None:
    def shown(pod: str, blocks: str) -> Sample:
        return Sample({"namespace": "chat", "pod": pod, "num_gpu_blocks": blocks, "block_size": "16"}, 1.0)

    samples = [shown("long", "9" * 5000), shown("huge", "9" * 19), shown("fine", "10")]
    samples.append(Sample({"namespace": "chat", "pod": "plain"}, 1.7e308))
    assert cache_sizes(samples) == {("chat", "fine"): 160}


def test_where_no_shares_are_aimed_at_nothing_is_asked() -> None:
    assert size_queries(60, []) == {}
    for text in size_queries(60, ["chat"]).values():
        assert "[30m]" in text
        assert "by (namespace, model_name, le)" in text
