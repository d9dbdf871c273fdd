"""A profile that does not hold: what is next for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_engine_fit import ENGINE, PLAN, measured

from modelyard.autoscaling.fleet.provenance import PROVENANCE
from modelyard.autoscaling.memory.variants import AUTOSCALING_STATE
from modelyard.benchmarks.jobs.world import MEMORY, RE_RUN, Memory
from modelyard.benchmarks.measuring.profiles import LIBRARY, ProfileKey, library_patch, read_library
from modelyard.benchmarks.records.values import LatencySpread, MeasuredRun
from modelyard.objects import Key, Namespace
from modelyard.profiles.refitting.refit import (
    MOST_SAID,
    KeptAs,
    RefitFailed,
    benchmark_of,
    drift_of,
    kept_as,
    refit,
    same_profile,
)
from modelyard.reconcile.plans.memory import render_memory
from modelyard.reconcile.plans.reach import ALLOW_FROM

SINCE = 1_767_225_600.0


def variant(status: str = "True", memory: str = "", **told: Any) -> dict[str, Any]:
    annotations = {PROVENANCE: json.dumps({"source": "shop/chat-speed", **told}), AUTOSCALING_STATE: memory}
    profile = {
        "perfParms": {"decodeParms": {"alpha": "1", "beta": "1"}, "prefillParms": {"gamma": "1", "delta": "1"}},
        "maxBatchSize": 64,
    }
    drift = {"type": "ProfileDrift", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return {
        "metadata": {"name": "chat", "namespace": "shop", "annotations": annotations},
        "spec": {"variantProfile": profile},
        "status": {"conditions": [{"type": "Other", "status": "True"}, drift]},
    }


def run(number: int) -> MeasuredRun:
    point = measured(ENGINE, PLAN[number], number)

    def spread(mean: float, p50: float | None, p95: float | None) -> LatencySpread:
        middle, late = (p50 or mean) / 1000, (p95 or mean) / 1000
        return LatencySpread(mean=mean / 1000, p50=middle, p90=late, p95=late, p99=late)

    return MeasuredRun(
        scenario=f"D({PLAN[number].prompt_tokens},64)",
        concurrency=PLAN[number].concurrency,
        started="2026-01-02T00:00:00Z",
        seconds=600,
        requests=int(point.requests or 0),
        failed=0,
        requests_rate=(point.requests or 0) / 600,
        output_rate=64 * (point.requests or 0) / 600,
        prompt_tokens=point.prompt_tokens,
        output_tokens=64,
        latency=spread(point.ttft + 63 * point.itl, None, None),
        ttft=spread(point.ttft, point.ttft_p50, point.ttft_p95),
        itl=spread(point.itl, point.itl_p50, point.itl_p95),
    )


def job(re_run: str = "", **memory: Any) -> dict[str, Any]:
    annotations = {RE_RUN: re_run, MEMORY: render_memory(Memory(**memory)) or ""}
    metadata = {"name": "chat-speed", "namespace": "shop", "uid": "u", "annotations": annotations}
    return {"apiVersion": "ome.io/v1beta1", "kind": "BenchmarkJob", "metadata": metadata, "spec": {}}


RUNS = tuple(run(number) for number in range(len(PLAN)))


def test_only_profiles_that_do_not_hold_and_come_from_a_benchmark_are_looked_at() -> None:
    drift = drift_of(variant())
    assert drift is not None
    assert (drift.since, drift.benchmark) == (SINCE, Key("shop", "chat-speed"))
    assert drift_of(variant("False")) is None
    assert drift_of({**variant(), "status": None}) is None
    assert benchmark_of(variant()) == Key("shop", "chat-speed")
    no_names = ("shop/..", "shop/a/status", "shop/" + "x" * 254, "shop/")
    for source in ("other/chat-speed", "results/summary.csv", "chat-speed", 7, None, *no_names):
        assert benchmark_of(variant(source=source)) is None


def test_a_variant_that_lives_on_keeps_its_profile_until_somebody_gives_it_another() -> None:
    before, later = variant(), variant("False", memory="{}")
    later["metadata"]["resourceVersion"] = "7"
    assert same_profile(before, later)
    assert not same_profile(before, variant(runs=9))
    later["spec"]["variantProfile"] = {**later["spec"]["variantProfile"], "maxBatchSize": 8}
    assert not same_profile(before, later)
    assert not same_profile(before, {**before, "metadata": {**before["metadata"], "uid": "another"}})


def test_what_was_measured_before_is_measured_again_once() -> None:
    drift = drift_of(variant())
    assert drift is not None
    before = job(began=SINCE - 900, ended=SINCE - 100, runs=RUNS)
    assert not drift.is_measured(before)
    assert drift.request(before) == {RE_RUN: f"drift-{SINCE:.0f}"}
    waiting = refit(variant(), before, SINCE)
    assert (waiting.message, waiting.patch) == ("shop/chat-speed is being measured again", None)
    assert drift.request(job(began=SINCE + 5)) == {}, "it is under way, whoever requested it"
    assert drift.is_measured(job(began=SINCE + 5, ended=SINCE + 9))


def test_what_was_measured_since_becomes_the_profile_for_the_requests_that_are_served() -> None:
    memory = json.dumps({"startup_seconds": 95.0, "slo": {"prompt_tokens": 300.0, "output_tokens": 100.0}})
    found = refit(variant(memory=memory, kvTokens=9000), job(began=SINCE + 5, ended=SINCE + 600, runs=RUNS), SINCE)
    assert found.patch is not None, found.message
    told = json.loads(found.patch["metadata"]["annotations"][PROVENANCE])
    assert told["engine"]["alpha"] == pytest.approx(ENGINE.alpha, rel=0.03)
    assert told["for"] == {"prompt_tokens": 300, "output_tokens": 100}
    assert (told["startupSeconds"], told["kvTokens"], told["source"]) == (95, 9000, "shop/chat-speed")
    assert told["measured"] == "2026-01-02T00:00:00Z"
    profile = found.patch["spec"]["variantProfile"]
    assert profile["maxBatchSize"] == 9000 // 400
    assert float(profile["perfParms"]["decodeParms"]["alpha"]) == pytest.approx(ENGINE.alpha, rel=0.03)


def test_a_run_with_too_many_failed_requests_is_left_out_and_told() -> None:
    spoilt = RUNS[0].model_copy(update={"scenario": "D(1,2)", "requests": 10, "failed": 3})
    found = refit(variant(), job(began=SINCE + 5, ended=SINCE + 600, runs=(*RUNS, spoilt)), SINCE)
    assert found.patch is not None, found.message
    assert f"fitted to {len(RUNS)} runs of shop/chat-speed; run D(1,2) at 1 of shop/chat-speed" in found.message
    assert "is left out: 3 of 10 requests failed" in found.message
    many = tuple(spoilt.model_copy(update={"scenario": f"{n:064}"}) for n in range(20))
    with pytest.raises(RefitFailed) as failure:
        refit(variant(), job(began=SINCE + 5, ended=SINCE + 600, runs=many), SINCE)
    assert len(str(failure.value)) <= MOST_SAID


@pytest.mark.parametrize(
    ("spec", "told", "kept"),
    [
        ({}, {}, ("llama-H100-2-vllm", "llama-H100-2-sglang")),
        ({"acceleratorCount": 1}, {}, ()),
        ({"modelID": "qwen"}, {}, ()),
        ({}, {"measured": "later"}, ()),
    ],
)
def test_what_the_library_has_of_the_same_origin_is_told_from_the_rest(
    spec: dict[str, Any], told: dict[str, Any], kept: tuple[str, ...]
) -> None:
    about = {"modelID": "llama", "accelerator": "H100", "acceleratorCount": 2}
    origin = variant()
    data: dict[str, str] = {}
    for runtime in ("vllm", "sglang"):
        data |= library_patch(ProfileKey("llama", "H100", 2, runtime), origin)["data"]
    data |= library_patch(ProfileKey("llama", "L40S", 2, "vllm"), origin)["data"]
    library, wrong = read_library(Key("home", LIBRARY), data)
    assert not wrong
    mine = variant(**told)
    mine["spec"] |= about | spec
    assert {one.name for one in kept_as(mine, library, "shop", {}).keys} == {*kept}
    mine["metadata"]["annotations"] = {}
    assert kept_as(mine, library, "shop", {}) == KeptAs()


def test_another_namespaces_library_is_written_where_that_lets_the_variant_in() -> None:
    """Else whoever writes what his own benchmark has measured would write what all others size by."""
    mine, named = variant(), ProfileKey("llama", "H100", 1, "")
    mine["spec"] |= {"modelID": "llama", "accelerator": "H100"}
    library, _ = read_library(Key("home", LIBRARY), library_patch(named, mine)["data"])
    for told in ({}, {ALLOW_FROM: "other"}):
        found = kept_as(mine, library, "home", {"home": Namespace("home", {}, told)})
        assert found.keys == ()
        assert "llama-H100-1: namespace home does not let in references from namespace shop" in found.refused
    lets_in = {"home": Namespace("home", {}, {ALLOW_FROM: "other, shop"})}
    assert kept_as(mine, library, "home", lets_in) == KeptAs((named,))
    under_another_name = {"by-hand": library["llama-H100-1"]}
    assert kept_as(mine, under_another_name, "home", lets_in) == KeptAs(), "an entry of that name may be another's"


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ({"runs": RUNS[:1]}, "determines no profile: 1 different concurrency"),
        ({"runs": ()}, "determines no profile: .*no run has a TTFT"),
        (
            {"runs": [one.model_copy(update={"failed": 30}) for one in RUNS]},
            "no run can be used; the last one: 30 of .*; run D.1024,64. at 8 of shop/chat-speed is left out: 30 of 64",
        ),
        ({"runs": RUNS, "failed": "the endpoint is away"}, "could not be measured again: the endpoint is away"),
        (
            {"runs": (*RUNS, RUNS[0].model_copy(update={"prompt_tokens": 1e9}))},
            "determines no profile: replaying the loads",
        ),
    ],
)
def test_what_cannot_be_fitted_is_told(memory: dict[str, Any], message: str) -> None:
    with pytest.raises(RefitFailed, match=message):
        refit(variant(), job(began=SINCE + 5, ended=SINCE + 600, **memory), SINCE)
