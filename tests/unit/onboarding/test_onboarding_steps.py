"""An onboarding goes on from what is there, wherever it was killed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from onboarded import MEASURED, noisy, request

from modelyard.benchmarks.records.values import MeasuredRun
from modelyard.onboarding.planning import objects
from modelyard.onboarding.planning.plan import Findings, Name, benchmarks, name_of, next_steps
from modelyard.onboarding.request import OnboardRequest

READY = {"conditions": [{"type": "Ready", "status": "True"}]}


class Site:
    """A cluster whose lifecycles do what they are there for, one object a turn."""

    def __init__(self) -> None:
        self.objects: dict[Name, dict[str, Any]] = {}
        self.runs: dict[str, list[MeasuredRun]] = {}
        self.applied: list[Name] = []

    @property
    def found(self) -> Findings:
        return Findings(self.objects, self.runs)

    def proceed(self, asked: OnboardRequest, which: int) -> None:
        waiting = [one for name, one in sorted(self.objects.items()) if "status" not in one]
        if not waiting:
            return
        one = waiting[which % len(waiting)]
        kind, _ = name_of(one)
        one["status"] = {"BaseModel": {"state": "Ready"}, "BenchmarkJob": {"state": "Completed"}}.get(kind, READY)
        for candidate in asked.candidates:
            service = objects.probe_name(asked, candidate)
            if kind == "BenchmarkJob" and one["spec"]["endpoint"]["inferenceService"]["name"] == service:
                assert ("InferenceService", service) in self.objects, "measured without its service"
                levels = one["spec"]["numConcurrency"]
                self.runs.setdefault(candidate.runtime, []).extend(noisy(candidate.runtime, levels))

    def act(self, asked: OnboardRequest, most: int) -> bool:
        """At most so many of the steps are done before it is killed. Whether nothing was left."""
        steps = next_steps(asked, self.found)
        for document in steps.apply[:most]:
            assert name_of(document) not in self.objects
            self.objects[name_of(document)] = dict(document)
            self.applied.append(name_of(document))
        for name in steps.remove[:most]:
            del self.objects[name]
        assert not steps.problem
        return steps.done


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60))
def test_killed_anywhere_it_ends_as_if_it_were_not(kills: list[tuple[int, int]]) -> None:
    asked, site = request(), Site()
    for most, which in [*kills, *[(9, 0)] * 40]:
        if site.act(asked, most):
            break
        site.proceed(asked, which)
    assert len(site.applied) == len(set(site.applied)), "something was made or measured twice"
    jobs = {name for kind, name in site.applied if kind == "BenchmarkJob"}
    assert jobs == {"chat-probe-fast", "chat-probe-slow", "chat-probe-slow-at-2", "chat-probe-slow-at-3"}
    kept = {name for name in site.objects if name[0] != "BenchmarkJob"}
    assert kept == {
        ("BaseModel", "chat"),
        ("ConfigMap", "chat-slo"),
        ("InferenceService", "chat"),
        ("VariantAutoscaling", "chat"),
    }
    assert next_steps(asked, site.found).done


@pytest.mark.parametrize("other", ["small.v1", "small-v1-at-3"])
def test_runtimes_whose_benchmarks_would_have_one_name_are_not_taken_for_each_other(other: str) -> None:
    told = [{"runtime": name, "accelerator": "H100", "price": 1} for name in ("small-v1", other)]
    refused = next_steps(request(candidates=told), Findings())
    assert not refused.apply
    assert refused.problem.startswith("two runtimes would have a BenchmarkJob chat-probe-small-v1")
    told[1]["runtime"] = "other"
    assert not next_steps(request(candidates=told), Findings()).problem


def test_two_onboardings_of_one_name_refuse_each_other() -> None:
    asked, site = request(), Site()
    site.act(asked, 9)
    site.proceed(asked, 0)
    site.act(asked, 9)
    other = next_steps(request(itl=30), site.found)
    assert other.done
    assert "another onboarding" in other.problem


def test_a_stranger_of_the_name_is_not_touched() -> None:
    asked = request()
    stranger = objects.base_model(request(uri="hf://owner/other"))
    stranger["metadata"] = {"name": "chat", "namespace": "shop"}
    found = next_steps(asked, Findings({name_of(stranger): stranger}))
    assert found.done
    assert "made by no onboarding" in found.problem
    stranger["spec"]["storage"]["storageUri"] = asked.uri
    assert not next_steps(asked, Findings({name_of(stranger): stranger})).problem, "anybody's model of this URI will do"


def test_a_failed_delivery_ends_it() -> None:
    model = objects.base_model(request()) | {"status": {"state": "Failed"}}
    found = next_steps(request(), Findings({name_of(model): model}))
    assert found.done
    assert "cannot be delivered" in found.problem


@pytest.mark.parametrize("end", ["Failed", None])
def test_an_added_benchmark_that_comes_to_nothing_is_left_out_and_the_candidate_stays(end: str | None) -> None:
    asked, site = request(), Site()
    while ("BenchmarkJob", "chat-probe-slow-at-2") not in site.objects:
        site.act(asked, 9)
        site.proceed(asked, 0)
    begun = site.objects["BenchmarkJob", "chat-probe-slow-at-2"]
    begun["metadata"]["creationTimestamp"] = "2027-01-15T08:00:00Z"
    begun["status"] = {"state": end}
    began = 1_800_000_000.0
    waits = next_steps(asked, replace(site.found, now=began))
    late = next_steps(asked, replace(site.found, now=began + 60 * (30 + 2 * 5) + 1))
    assert ("BenchmarkJob chat-probe-slow-at-2: its results" in waits.awaits) == (end is None)
    assert not late.given_up
    assert [name_of(one) for one in late.apply] == [("BenchmarkJob", "chat-probe-slow-at-3")]


def test_a_candidate_that_fails_is_left_out_and_its_probe_removed() -> None:
    asked, site = request(), Site()
    for _ in range(6):
        site.act(asked, 9)
        site.proceed(asked, 0)
    failed = objects.probe_name(asked, asked.candidates[1])
    job = benchmarks(asked, asked.candidates[1])[0]
    site.objects["BenchmarkJob", failed] = job | {"status": {"state": "Failed", "failureMessage": "UsageMissing"}}
    site.objects.setdefault(("InferenceService", failed), objects.probe(asked, asked.candidates[1]))
    site.runs = {"fast": MEASURED["fast"]}
    assert ("InferenceService", failed) in next_steps(asked, site.found).remove
    without = {
        name: one for name, one in site.objects.items() if "-probe-" not in name[1] or name[0] != "InferenceService"
    }
    found = next_steps(asked, replace(site.found, there=without))
    assert found.verdict is not None
    assert found.verdict.chosen is not None
    assert found.verdict.chosen.candidate.runtime == "fast"
    assert "UsageMissing" in found.verdict.assessed[1].problem
