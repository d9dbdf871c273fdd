"""Picking wanted families out of a metrics page: against a complete parser, and on pages that lie."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from modelyard.metrics.vocabulary.pages import MAX_LINES, parse

VLLM = b"""# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta/llama"} 3.0
vllm:num_requests_waiting{engine="1",model_name="meta/llama"} 4.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{reason="capacity"} 99.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0"} 1.5e+06 1700000000000
"""


def values(body: bytes, *wanted: str) -> list[tuple[str, float, str]]:
    return [(sample.name, sample.value, sample.type) for sample in parse(body, wanted).samples]


def test_only_what_was_asked_for() -> None:
    assert values(VLLM, "vllm:num_requests_waiting") == [
        ("vllm:num_requests_waiting", 3.0, "gauge"),
        ("vllm:num_requests_waiting", 4.0, "gauge"),
    ]
    page = parse(VLLM, ["vllm:num_requests_waiting"], 12.0)
    assert page.at == 12.0
    assert page.samples[1].labels == {"engine": "1", "model_name": "meta/llama"}
    assert values(VLLM) == []
    assert values(VLLM, "vllm:unheard_of") == []


@pytest.mark.parametrize("asked", ["vllm:prompt_tokens", "vllm:prompt_tokens_total"])
@pytest.mark.parametrize("declared", ["vllm:prompt_tokens", "vllm:prompt_tokens_total"])
def test_a_counter_is_found_with_and_without_total(asked: str, declared: str) -> None:
    body = f"# TYPE {declared} counter\nvllm:prompt_tokens_total 5\nvllm:prompt_tokens_created 1.7e9\n".encode()
    assert values(body, asked) == [("vllm:prompt_tokens_total", 5.0, "counter")]


def test_another_family_whose_name_only_begins_the_same_is_no_part() -> None:
    body = b"# TYPE queue gauge\nqueue 1\n# TYPE queue_count gauge\nqueue_count 50\n"
    assert values(body, "queue") == [("queue", 1.0, "gauge")]
    assert values(body, "queue", "queue_count") == [("queue", 1.0, "gauge"), ("queue_count", 50.0, "gauge")]


def test_labels_with_everything_in_them() -> None:
    body = rb'x{a="}",b="a \"quote\", a comma",c="back\\slash\nline", d = "sp # ace"} 7 # {trace="y"} 1' + b"\r\n"
    (sample,) = parse(body, ["x"]).samples
    assert sample.labels == {"a": "}", "b": 'a "quote", a comma', "c": "back\\slash\nline", "d": "sp # ace"}
    assert (sample.value, sample.type) == (7.0, "untyped")


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-Inf", "1e3", "-0.5", ".5", "3."])
def test_values_as_they_stand(text: str) -> None:
    ((_, value, _),) = values(f"x {text}\n".encode(), "x")
    expected = float(text)
    assert value == expected or (math.isnan(value) and math.isnan(expected))


@pytest.mark.parametrize(
    "line", ["x", "x ", "x{", 'x{a="b} 1', "x{a=b} 1", "x one", 'x{a="b"}', "x 1_000", "x 0x10", "x 1,5", "x{} --1"]
)
def test_a_broken_line_spoils_its_family_only(line: str) -> None:
    page = parse(f"x 5\n{line}\ny 2\n".encode(), ["x", "y"])
    assert [(s.name, s.value) for s in page.samples if s.name == "y"] == [("y", 2.0)]
    if line.strip() != "x":
        assert "not in the exposition format" in page.problems["x"]
        assert not [s for s in page.samples if s.name == "x"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\xff\xfe" * 100,
        b"<html><body>x is fine</body></html>",
        b'{"x": 1}',
        b"# TYPE x gauge\n",
        b"\n\n#\n# \n",
    ],
)
def test_pages_of_something_else_have_no_metrics(body: bytes) -> None:
    assert parse(body, ["x"]).samples == []


@given(st.binary(max_size=300), st.sampled_from(["x", "vllm:waiting", "a_total", "b_bucket"]))
def test_garbage_never_raises(body: bytes, name: str) -> None:
    parse(name.encode() + body + b"\n" + name.encode() + b"{" + body, [name])


@given(st.lists(st.tuples(st.text(max_size=8), st.floats(width=32)), max_size=5, unique_by=lambda pair: pair[0]))
def test_gauges_read_like_by_a_complete_parser(series: list[tuple[str, float]]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("load", "help with load 1", ["pod"], registry=registry)
    for label, value in series:
        gauge.labels(label.encode("utf-8", "ignore").decode()).set(value)
    body = generate_latest(registry)
    expected = [s for f in text_string_to_metric_families(body.decode()) for s in f.samples if f.name == "load"]
    found = parse(body, ["load"]).samples
    assert [(s.name, dict(s.labels), repr(s.value)) for s in found] == [
        (s.name, s.labels, repr(float(s.value))) for s in expected
    ]


@pytest.mark.parametrize("openmetrics", [False, True])
def test_real_expositions_of_every_kind(openmetrics: bool) -> None:
    registry = CollectorRegistry()
    Gauge("load", "help", registry=registry).set(1.5)
    Counter("served", "help", ["code"], registry=registry).labels("200").inc(7, exemplar={"trace": "a # b"})
    histogram = Histogram("wait", "help", ["engine"], buckets=(1, 2), registry=registry)
    histogram.labels("0").observe(1.5, exemplar={"trace": "}"})
    body = generate_openmetrics(registry) if openmetrics else generate_latest(registry)
    found = parse(body, ["load", "served", "wait"]).samples
    assert [(s.name, s.labels.get("le"), s.value, s.type) for s in found] == [
        ("load", None, 1.5, "gauge"),
        ("served_total", None, 7.0, "counter"),
        ("wait_bucket", "1.0", 0.0, "histogram"),
        ("wait_bucket", "2.0", 1.0, "histogram"),
        ("wait_bucket", "+Inf", 1.0, "histogram"),
        ("wait_count", None, 1.0, "histogram"),
        ("wait_sum", None, 1.5, "histogram"),
    ]


def test_an_exemplar_without_labels_before_it() -> None:
    body = b'# TYPE served counter\nserved_total 5 # {trace="y"} 1\n'
    assert values(body, "served") == [("served_total", 5.0, "counter")]


HOSTILE = {
    b"x{" + b",".join(b'a%d="b"' % n for n in range(4_500)) + b"} 1": "a line of",
    b'x{a="' + b'\\"' * 200_000 + b'"} 1': "a line of",
    b'x{a="' + b"\\" * 40_000: "a line of",
    b"x " + b"9" * 2_000: "not in the exposition format",
    b"x 1 " + b"9" * 2_000: "not in the exposition format",
    b'x{a="1"} 1\nx{a="1"} 2': "more than once",
    b'x{a="\xff"} 1\nx{a="\xfe"} 2': "more than once",
    b"\n".join(b'x{a="%d"} 1' % n for n in range(MAX_LINES + 1)): "too many lines",
    b"\n".join(b'x{a="%d%s"} 1' % (n, b"-" * 1_900) for n in range(400)): "too many lines",
}


@pytest.mark.parametrize(("lines", "why"), HOSTILE.items(), ids=range(len(HOSTILE)))
def test_what_exceeds_a_limit_or_is_said_twice_spoils_its_metric_only(lines: bytes, why: str) -> None:
    page = parse(b"# TYPE y gauge\ny 2\n" + lines + b"\n", ["x", "y"])
    assert [(sample.name, sample.value) for sample in page.samples] == [("y", 2.0)]
    assert why in page.problems["x"]


def test_long_lines_about_other_things_do_not_matter() -> None:
    assert values(b'other{a="' + b"\\" * 400_000 + b'"} 1\n# ' + b" " * 400_000 + b"\nx 5\n", "x") == [
        ("x", 5.0, "untyped")
    ]


def test_a_page_of_a_million_lines_is_not_read() -> None:
    with pytest.raises(ValueError, match="more than 100000 lines"):
        parse(b"x 1\n" * 1_000_000, ["x"])


@pytest.mark.parametrize("name", ["", " ", "#", "x{", "{", "x\n", "_total"])
def test_names_that_no_metric_has(name: str) -> None:
    page = parse(b'\n\n# TYPE x gauge\nx{a="b"} 5\nx 6\n_total 3\n  \n', [name, "y"])
    assert not [sample for sample in page.samples if sample.name not in (name, "x")]


@pytest.mark.parametrize(
    ("ranks", "shown"),
    [
        # Tensor- and pipeline-parallel ranks show one queue.
        ({'tp_rank="0",pp_rank="0"': 3, 'tp_rank="1",pp_rank="0"': 3, 'tp_rank="0",pp_rank="1"': 4}, [4]),
        # Data-parallel ranks have one each.
        ({'dp_rank="0",tp_rank="0"': 3, 'dp_rank="0",tp_rank="1"': 3, 'dp_rank="1",tp_rank="2"': 5}, [3, 5]),
        # A queue and its part of one priority.
        ({'priority=""': 7, 'priority="2"': 4}, [7]),
        ({'tp_rank="0"': math.nan, 'tp_rank="1"': 2}, [math.nan]),
        ({'tp_rank="0"': 2, 'tp_rank="1"': math.nan}, [math.nan]),
    ],
)
def test_ranks_that_repeat_each_other_are_one_series(ranks: dict[str, float], shown: list[float]) -> None:
    name = "sglang:num_queue_reqs"
    lines = [f'{name}{{model_name="m",{labels}}} {value}' for labels, value in ranks.items()]
    body = "\n".join([f"# TYPE {name} gauge", *lines, ""]).encode()
    assert [value for _, value, _ in values(body, name)] == pytest.approx(shown, nan_ok=True)


def test_labels_of_other_exporters_are_theirs() -> None:
    body = b'# TYPE flow_queue gauge\nflow_queue{priority="1"} 3\nflow_queue{priority="2"} 4\n'
    assert [value for _, value, _ in values(body, "flow_queue")] == [3, 4]
