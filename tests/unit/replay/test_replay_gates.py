"""Requirements on a replay: how they are written, what they mean, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from command_line import modelyard
from hypothesis import given, strategies as st
from pydantic import ValidationError

from modelyard.replay.backtest.gates import (
    COMPARISONS,
    LATENCIES,
    METRICS,
    SHARES,
    RequirementInvalid,
    parse,
    unmet,
    unmet_requirements,
    value,
)
from modelyard.replay.backtest.output import as_csv
from modelyard.replay.backtest.report import Summary
from modelyard.replay.request import ReplayRequest
from modelyard.traffic.traces.latency import Percentiles

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "config/samples/plan/manifests.yaml"
TRACE = ROOT / "benchmarks/data/azure-llm-inference-2023-conversation.csv"
LATENCY = Percentiles(0.2, 0.8, 1.5)
SUMMARY = Summary(
    policy="default", requests=100, replica_hours=2.0, cost=24.0, attainment=0.985, ttft_attainment=0.99,
    itl_attainment=0.995, ttft=LATENCY, itl=Percentiles(0.02, 0.04, 0.05), itl_max=LATENCY, scale_ups=1, scale_downs=0,
    peak_replicas=3, minutes=10, minutes_below=1, rejected=0, killed=0, unfinished=0, waited=2, hours_by_variant={},
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("attainment>=0.985", True),
        ("attainment >= 98.5%", True),
        ("attainment>=0.99", False),
        ("attainment>0.985", False),
        ("ttft_p95<=800ms", True),
        ("ttft_p95<0.8", False),
        ("itl_p99<=50ms", True),
        ("itl_max_p50<=0.1s", False),
        ("cost<=24", True),
        ("cost<24", False),
        ("rejected==0", True),
        ("waited==0", False),
        ("peak_replicas<=2", False),
    ],
)
def test_a_requirement_is_met_or_not(text: str, met: bool) -> None:
    assert parse(text).met(SUMMARY) is met
    said = unmet([parse(text)], [SUMMARY])
    assert bool(said) is not met
    assert all(one.startswith("default at rate 1 has ") and one.endswith(f"{text} is needed") for one in said)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write METRIC>=NUMBER"),
        ("attainment", "write METRIC>=NUMBER"),
        ("attainment=>0.99", "write METRIC>=NUMBER"),
        ("attainment=0.99", "write METRIC>=NUMBER"),
        ("attainment>=0.99 and cost<=5", "write METRIC>=NUMBER"),
        ("cost<=5" + " " * 200, "write METRIC>=NUMBER"),
        ("p95<=2s", "no metric p95; there are attainment, ttft_attainment"),
        ("__class__<=1", "no metric __class__"),
        ("policy==1", "no metric policy"),
        ("attainment>=99", "attainment is a share from 0 to 1; write for example 0.99 or 99%"),
        ("attainment>=101%", "101% is no attainment"),
        ("attainment>=1s", "1s is no attainment"),
        ("cost<=5s", "5s is no cost; write for example 12.5"),
        ("cost<=-5", "-5 is no cost"),
        ("cost<=nan", "nan is no cost"),
        ("cost<=inf", "inf is no cost"),
        ("cost<=1e3", "1e3 is no cost"),
        ("cost<=__import__('os')", "is no cost"),
        ("ttft_p95<=soon", "soon is no ttft_p95; write for example 800ms"),
        ("ttft_p95<=-2s", "-2s is no ttft_p95"),
    ],
)
def test_what_is_no_requirement_is_refused_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises(RequirementInvalid) as caught:
        parse(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 600


@given(st.text(max_size=120))
def test_any_text_is_a_requirement_or_refused(text: str) -> None:
    try:
        found = parse(text)
    except RequirementInvalid:
        return
    assert found.metric in METRICS
    assert found.sign in COMPARISONS
    assert 0 <= found.limit < math.inf


def test_metrics_are_called_as_in_the_report() -> None:
    columns = set(as_csv([SUMMARY]).splitlines()[0].split(","))
    assert set(METRICS) == columns - {"policy", "minutes", "problems", "bound", "rate"}
    assert {*SHARES, *LATENCIES} <= set(METRICS)
    assert (value(SUMMARY, "itl_max_p99"), value(SUMMARY, "itl_p95"), value(SUMMARY, "cost")) == (1.5, 0.04, 24)


@pytest.mark.parametrize("sign", COMPARISONS)
def test_what_is_not_known_meets_nothing(sign: str) -> None:
    silent = dataclasses.replace(SUMMARY, ttft=Percentiles(math.nan, math.nan, math.nan), attainment=math.nan)
    for metric in ("ttft_p95", "attainment"):
        (said,) = unmet([parse(f"{metric}{sign}1")], [silent])
        assert f"no known {metric}" in said


def request(**changes: Any) -> ReplayRequest:
    return ReplayRequest.model_validate({"manifests": [str(SAMPLE)], "trace": str(TRACE), **changes})


def test_requirements_hold_for_all_policies_or_for_those_that_are_judged() -> None:
    dear = dataclasses.replace(SUMMARY, policy="fixed:2", cost=90.0, rate=3.0)
    everybody = request(policies=["default", "fixed:2"], max_cost=50)
    assert unmet_requirements(everybody, [SUMMARY, dear]) == [
        "fixed:2 at rate 3 has cost 90, a cost of at most 50 is needed"
    ]
    assert (
        unmet_requirements(request(policies=["default", "fixed:2"], max_cost=50, judge=["default"]), [SUMMARY, dear])
        == []
    )
    assert unmet_requirements(request(), [dear]) == []
    with pytest.raises(ValidationError, match="--judge hpa: is not replayed; there are default, fixed:2"):
        request(policies=["default", "fixed:2", "clairvoyant"], judge=["hpa"])
    with pytest.raises(ValidationError, match="no metric speed"):
        request(require=["speed>=1"])


def test_the_command_fails_and_prints_its_table_all_the_same(tmp_path: Path) -> None:
    scope = ("replay", "-f", SAMPLE, "--trace", TRACE, "--minutes", 2, "--policy", "fixed,fixed:1")
    good = modelyard(*scope, "--require", "attainment>=0.5", "--max-cost", 1000)
    assert (good.code, good.err) == (0, "")
    bad = modelyard(
        *scope, "--require", "attainment<0.5", "--max-cost", 0.01, "--judge", "fixed", "--out", tmp_path / "r"
    )
    assert bad.code == 1
    assert bad.out == good.out
    assert (tmp_path / "r" / "report.json").is_file()
    first, second = bad.err.splitlines()
    assert first.startswith("error: not as required: fixed at rate 1 has attainment ")
    assert second.endswith("a cost of at most 0.01 is needed")
    refused = modelyard(*scope, "--require", "attainment>=2")
    assert (refused.code, refused.out) == (2, "")
    assert "--require: 'attainment>=2': attainment is a share" in refused.err
