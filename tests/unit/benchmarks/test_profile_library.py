"""Profiles as they are written: for a VariantAutoscaling, and in the library; and read, whoever wrote them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from modelyard.autoscaling.sizing.fit import Fit, Point, fit
from modelyard.benchmarks.measuring.profiles import (
    LIBRARY,
    PROVENANCE,
    ProfileKey,
    described,
    library_patch,
    patch,
    points,
    provenance,
    read_library,
)
from modelyard.benchmarks.measuring.results import BenchmarkResults, RunRecord
from modelyard.objects import Key

WHERE = Key("tenant", LIBRARY)
KEY = ProfileKey("meta/llama-3.1-8b", "H100", 2, "vllm")


def fitted(**known: Any) -> Fit:
    runs = [
        Point(n, prompt, 128, 30 + 0.004 * prompt * n, 9 + 0.1 * n)
        for n, prompt in ((1, 128), (16, 512), (32, 512), (64, 128))
    ]
    return fit(runs, **known)


def test_what_is_kept_comes_back_as_it_was_written() -> None:
    body = patch(fitted(startup=40.0), "shop/speed", 96, engine=fitted(kv_tokens=50_000), measured="2026-01-01")
    kept = library_patch(KEY, body)
    assert list(kept["data"]) == ["meta-llama-3.1-8b-H100-2-vllm"]
    found, wrong = read_library(WHERE, kept["data"])
    assert wrong == []
    (one,) = found.values()
    assert (one.key, one.patch()["spec"]) == (KEY, body["spec"])
    assert provenance(one.patch()) == provenance(body)
    told = dict(described(provenance(body)))
    assert told["source"] == "'shop/speed'"
    assert (told["kvTokens"], told["runs"]) == ("50000", "4")
    assert body["spec"]["variantProfile"]["maxBatchSize"] == int(50_000 / (512 + 128))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variantProfile": {"maxBatchSize": 0}}, "variantProfile"),
        ({"acceleratorCount": 0}, "acceleratorCount"),
        ({"model_id": "x" * 1000}, "model_id"),
        ({"accelerator": None}, "accelerator"),
    ],
)
def test_an_entry_that_is_none_hinders_no_other(change: dict[str, Any], message: str) -> None:
    good = library_patch(KEY, patch(fitted(), "shop/speed"))["data"]
    (text,) = good.values()
    data = {**good, "bad": yaml.safe_dump(yaml.safe_load(text) | change), "worse": "{", "empty": ""}
    found, wrong = read_library(WHERE, data)
    assert list(found) == list(good)
    assert len(wrong) == 3
    assert any(f"ConfigMap tenant/{LIBRARY} key 'bad': {message}" in text for text in wrong)


@given(st.text(max_size=200))
def test_what_is_said_of_a_profile_is_read_or_not(text: str) -> None:
    told = provenance({"metadata": {"annotations": {PROVENANCE: text}}})
    assert isinstance(told, dict)
    assert all(isinstance(one, str) for pair in described(told) for one in pair)


def test_what_nobody_can_read_is_nothing() -> None:
    for text in ("[" * 100_000, "x" * 100_000, "[1]", "null", 7, None):
        assert provenance({"metadata": {"annotations": {PROVENANCE: text}}}) == {}


def test_lengths_that_differ_are_told_by_their_scenario() -> None:
    names = ("mean", "p50", "p90", "p95", "p99")
    spread, whole = dict.fromkeys(names, 0.05), dict.fromkeys(names, 0.5)
    about = {"concurrency": 4, "started": "t", "seconds": 40, "requests": 200, "failed": 2, "requests_rate": 5}
    about |= {"output_rate": 50, "prompt_tokens": 100, "output_tokens": 10}
    about |= {"latency": whole, "ttft": spread, "itl": spread}
    scenarios = {
        "D(100,10)": (None, None),
        "N(480,240)/(300,150)": (240, 150),
        "U(10,22)/(10,10)": (12 / 12**0.5, None),
    }
    for scenario, spreads in scenarios.items():
        record = RunRecord.model_validate({"run": about | {"scenario": scenario}})
        (point,) = points(BenchmarkResults("x", (record,)), pytest.fail)
        assert point.requests == 198
        assert (point.prompt_spread, point.output_spread) == (
            None if spreads[0] is None else pytest.approx(spreads[0]),
            None if spreads[1] is None else pytest.approx(spreads[1]),
        )


def test_the_provenance_is_json_of_bounded_size() -> None:
    text = patch(fitted(), "s" * 10_000)["metadata"]["annotations"][PROVENANCE]
    assert len(text) < 2000
    assert len(json.loads(text)["source"]) == 600
