"""One value per metric from what a pod shows now and showed before."""

from __future__ import annotations

from math import inf, nan

import pytest

from modelyard.autoscaling.bindings.histogram import Buckets, quantile_of_difference
from modelyard.autoscaling.bindings.samples import PodHistory, PodValues, joined, pod_values
from modelyard.metrics.vocabulary.pages import PageSample


def gauge(name: str, value: float, **labels: str) -> PageSample:
    return PageSample(name, labels, value, "gauge")


def counter(value: float, name: str = "tokens_total", **labels: str) -> PageSample:
    return PageSample(name, labels, value, "counter")


def histogram(
    *cumulative: float, path: str = "a", bounds: tuple[str, ...] = ("1", "2", "4", "+Inf")
) -> list[PageSample]:
    lines = [
        PageSample("ttft_bucket", {"le": bound, "path": path}, value, "histogram")
        for bound, value in zip(bounds, cumulative, strict=True)
    ]
    return [*lines, PageSample("ttft_count", {"path": path}, cumulative[-1], "histogram")]


def look(samples: list[PageSample], previous: PodHistory, now: float, *wanted: str, start: str = "1") -> PodValues:
    return pod_values(wanted, samples, previous, start, now)


EMPTY = PodHistory()


def test_label_sets_add_up_and_shares_are_averaged() -> None:
    shown = [
        gauge("waiting", 3, model="a"),
        gauge("waiting", 4, model="b"),
        gauge("vllm:gpu_cache_usage_perc", 0.2, engine="0"),
        gauge("vllm:gpu_cache_usage_perc", 0.6, engine="1"),
        gauge("Token_Usage", 0.5),
    ]
    found = look(shown, EMPTY, 0, "waiting", "vllm:gpu_cache_usage_perc", "Token_Usage", "absent")
    assert found.values == pytest.approx({"waiting": 7, "vllm:gpu_cache_usage_perc": 0.4, "Token_Usage": 0.5})
    assert "absent" in found.problems


@pytest.mark.parametrize("value", [nan, inf, -inf, 1.7e308])
def test_what_is_no_number_is_missing(value: float) -> None:
    found = look([gauge("waiting", 1, model="a"), gauge("waiting", value, model="b")], EMPTY, 0, "waiting")
    assert found.values == {}
    assert "shows" in found.problems["waiting"]


@pytest.mark.parametrize("wanted", ["tokens_total", "tokens"])
def test_counters_become_rates(wanted: str) -> None:
    first = look([counter(100), counter(50, model="b")], EMPTY, 1000, wanted)
    assert first.values == {}
    assert "first time" in first.problems[wanted]
    second = look([counter(160), counter(50, model="b")], first.history, 1015, wanted)
    assert second.values == {wanted: 4.0}


def test_rates_are_over_the_newest_look_older_than_a_minute() -> None:
    history = EMPTY
    for now in range(0, 91, 15):
        found = look([counter(now * 2 if now < 30 else 60 + (now - 30) * 4)], history, now, "tokens_total")
        history = found.history
    assert found.values["tokens_total"] == pytest.approx((60 + 60 * 4 - 30) / 75)


@pytest.mark.parametrize(("value", "start"), [(5, "1"), (500, "2")], ids=["counter fell", "another start"])
def test_a_restart_begins_anew(value: float, start: str) -> None:
    first = look([counter(100)], EMPTY, 0, "tokens_total")
    again = look([counter(value)], first.history, 15, "tokens_total", start=start)
    assert again.values == {}
    assert len(again.history.looks) == 1
    assert look([counter(value + 30)], again.history, 30, "tokens_total", start=start).values == {"tokens_total": 2.0}


def test_percentile_of_the_last_minute_over_all_label_sets() -> None:
    past = histogram(60, 100, 105, 105) + histogram(40, 90, 95, 95, path="b")
    now = histogram(70, 160, 180, 180, path="b") + histogram(50, 100, 120, 120)
    first = look(past, EMPTY, 0, "ttft")
    assert first.values == {}
    found = look(now, first.history, 61, "ttft")
    assert found.values["ttft"] == pytest.approx(3.667, abs=5e-4)


def test_what_was_seen_long_ago_says_nothing_of_the_last_minute() -> None:
    """Two hours of refused pages: neither a percentile nor a rate of those two hours."""
    shown = [*histogram(60, 100, 105, 105), counter(100)]
    first = look(shown, EMPTY, 0, "ttft", "tokens_total")
    later = look([*histogram(60, 100, 999, 999), counter(9000)], first.history, 7200, "ttft", "tokens_total")
    assert later.values == {}
    assert all("seen for the first time" in problem for problem in later.problems.values())
    documented = pod_values(["ttft"], histogram(0, 0, 999, 999), first.history, "1", 7200, from_start=True)
    assert documented.values["ttft"] == pytest.approx(3.9, abs=0.1), "everything the histogram ever took in"
    assert look([*shown, counter(130)], first.history, 300, "tokens_total").values != {}, "within its limit it counts"


def test_the_lifetime_counts_at_first_as_documented() -> None:
    found = pod_values(["ttft"], histogram(0, 100, 100, 100), EMPTY, "1", 0, from_start=True)
    assert found.values["ttft"] == pytest.approx(1.95)


def test_label_sets_with_other_buckets_are_missing() -> None:
    other = histogram(1, 2, 3, 3, path="b", bounds=("1", "3", "4", "+Inf"))
    found = look(histogram(1, 2, 3, 3) + other, EMPTY, 0, "ttft")
    assert "different buckets" in found.problems["ttft"]


def test_looks_are_bounded() -> None:
    history = EMPTY
    for now in range(0, 2000, 5):
        history = look([counter(now)], history, now, "tokens_total").history
    assert history.looks[-1].time - history.looks[0].time <= 65
    late = look([counter(9999)], history, 5000, "tokens_total")
    assert [one.time for one in late.history.looks] == [5000]


def test_instances_of_several_pods() -> None:
    assert joined([{"waiting": 1, "x_usage": 0.2}, {"waiting": 2, "x_usage": 0.4, "more": 1}]) == pytest.approx(
        {"waiting": 3, "x_usage": 0.3}
    )
    assert joined([]) == {}


@pytest.mark.parametrize(
    ("now", "past", "percentile", "message"),
    [
        (Buckets(1, ((1, 1),)), Buckets(0, ()), 0, "outside 1 to 100"),
        (Buckets(1, ((1, 1),)), Buckets(2, ((1, 2),)), 95, "fell"),
        (Buckets(3, ((1, 3),)), Buckets(2, ((1, 1), (2, 2))), 95, "buckets changed"),
        (Buckets(9, ((1, 5), (2, 6))), Buckets(4, ((1, 1), (2, 4))), 95, "fewer observations"),
        (Buckets(9, ((1, 2),)), Buckets(0, ()), 95, "hold 2 of 9"),
    ],
)
def test_histograms_that_say_nothing(now: Buckets, past: Buckets, percentile: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quantile_of_difference(now, past, percentile)


def test_the_infinite_bucket_counts_as_twice_the_last_bound() -> None:
    assert quantile_of_difference(Buckets(10, ((1, 0), (4, 0), (inf, 10))), percentile=100) == 8
    assert quantile_of_difference(Buckets(5, ((1, 5),)), Buckets(5, ((1, 5),))) == 0


def test_a_load_below_zero_is_none() -> None:
    found = look([gauge("waiting", -1)], EMPTY, 0.0, "waiting")
    assert found.values == {}
    assert found.problems == {"waiting": "shows -1, which is no load"}
    assert not found.absent


def test_times_are_not_added_up() -> None:
    lines = [PageSample("ttft_seconds", {"engine": str(n)}, value, "gauge") for n, value in enumerate((0.2, 0.9, 0.4))]
    found = look(lines, EMPTY, 0.0, "ttft_seconds")
    assert found.values == {"ttft_seconds": 0.9}
    assert found.times == {"ttft_seconds"}
    pods: list[dict[str, float]] = [
        {"ttft_seconds": 0.2, "waiting": 3.0, "kv_usage": 0.4},
        {"ttft_seconds": 0.6, "waiting": 5.0, "kv_usage": 0.8},
    ]
    assert joined(pods, found.times) == pytest.approx({"ttft_seconds": 0.6, "waiting": 8.0, "kv_usage": 0.6})


def test_percentiles_of_several_pods_are_not_added_up() -> None:
    buckets = [PageSample("ttft_bucket", {"le": bound}, 10.0, "histogram") for bound in ("0.1", "0.5", "+Inf")]
    first = pod_values(["ttft"], buckets, PodHistory(), "s", 0.0)
    more = [
        PageSample("ttft_bucket", {"le": bound}, 10.0 + add, "histogram")
        for bound, add in zip(("0.1", "0.5", "+Inf"), (0.0, 100.0, 100.0), strict=True)
    ]
    second = pod_values(["ttft"], more, first.history, "s", 15.0)
    assert second.times == {"ttft"}
    assert joined([second.values, second.values], second.times) == second.values


def test_a_clock_set_back_starts_a_rate_anew_and_not_after_that_time() -> None:
    def served(count: float, history: PodHistory, now: float) -> PodValues:
        return pod_values(["served_total"], [PageSample("served_total", {}, count, "counter")], history, "s", now)

    before = served(100.0, PodHistory(), 36_000.0)
    back = served(160.0, before.history, 0.0)
    assert back.values == {}
    assert served(250.0, back.history, 15.0).values == {"served_total": 6.0}
