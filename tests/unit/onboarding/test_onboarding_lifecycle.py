"""An onboarding as a plan of the kernel: what is selected, given up, kept, told, and what it cost to find out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, strategies as st
from onboarded import MEASURED, request
from plan_details import remember_details

from modelyard.benchmarks.jobs.world import BENCHMARK_JOBS, MEMORY as BENCHMARK_MEMORY, EnginePod, Memory
from modelyard.models.delivery.names import BASE_MODELS
from modelyard.objects import Key, Node
from modelyard.objects.kinds import CONFIG_MAPS, NODES, PODS
from modelyard.onboarding.planning import objects
from modelyard.onboarding.planning.expected import class_targets, expected
from modelyard.onboarding.planning.fits import MEMORY_LABEL
from modelyard.onboarding.planning.lifecycle import MEMORY, Onboarding
from modelyard.onboarding.planning.plan import Findings, added, name_of
from modelyard.onboarding.planning.progress import step_phases
from modelyard.onboarding.planning.report import conclusion, load_check, markdown, row, spent, table
from modelyard.onboarding.request import OnboardRequest
from modelyard.reconcile.plans.memory import render_memory
from modelyard.reconcile.plans.plan import Plan, StepId
from modelyard.traffic.traces.latency import Ending, Results
from modelyard.traffic.traces.trace import Trace
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES, RUNTIMES, RUNTIMES_WANTED, VARIANTS

NOW, CREATED = 1_800_000_000.0, "2027-01-15T07:50:00Z"
"""The second is ten minutes before the first."""
FORMAT = {
    "modelFormat": {"name": "safetensors", "version": "1.0.0"},
    "modelFramework": {"name": "transformers", "version": "4.43.0"},
    "modelArchitecture": "LlamaForCausalLM",
}
PRODUCTS = {"fast": "NVIDIA-H100-SXM5-80GB", "slow": "NVIDIA-L40S-48GB"}


def runtime(name: str, **engine: Any) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": 1}}
    runner = {"name": "ome-container", "image": "example.invalid/engine:1", "resources": resources}
    selector = {"nvidia.com/gpu.product": PRODUCTS[name]} if name in PRODUCTS else {}
    spec = {
        "supportedModelFormats": [{**FORMAT, "autoSelect": True}],
        "engineConfig": {"nodeSelector": selector, "runner": runner, **engine},
    }
    return {"metadata": {"name": name, "namespace": "shop", "generation": 1}, "spec": spec}


class Store(dict[Key, Any]):
    """The objects of one kind."""

    def all(self) -> Iterable[Any]:
        return [self[key] for key in sorted(self)]

    def by(self, index: str, value: object) -> Iterable[Any]:
        assert index == "namespace"
        return [self[key] for key in sorted(self) if key.namespace == value]


class Site:
    """A namespace in which every plan is carried out at once, and what is made comes to be when it is told so."""

    def __init__(self, asked: OnboardRequest, *runtimes: dict[str, Any], nodes: Iterable[Node] = ()) -> None:
        kinds = (CONFIG_MAPS, BASE_MODELS, INFERENCE_SERVICES, BENCHMARK_JOBS, VARIANTS, *RUNTIMES, NODES, PODS)
        self.world: dict[Any, Store] = {kind: Store() for kind in kinds}
        self.kinds = {kind.kind: kind for kind in kinds}
        for one in runtimes or (runtime("fast"), runtime("slow")):
            self.world[RUNTIMES[0]][Key("shop", one["metadata"]["name"])] = RUNTIMES_WANTED[0].parse(one)
        for node in nodes:
            self.world[NODES][Key("", node.name)] = node
        self.lifecycle, self.asked = Onboarding(), asked
        self.details = remember_details(self.lifecycle)
        self.key = objects.order_key(asked)
        self.store(objects.order(asked))

    def store(self, document: dict[str, Any]) -> None:
        metadata = {**document["metadata"], "uid": f"uid-{len(self.world)}", "creationTimestamp": CREATED}
        kind, name = document["kind"], metadata["name"]
        self.world[self.kinds[kind]][Key("shop", name)] = {**document, "metadata": metadata}

    def turn(self, now: float = NOW) -> Plan:
        """One look, and all that follows."""
        plan = self.lifecycle.plan(self.key, self.world, now)
        assert plan is not None
        kept = self.world[CONFIG_MAPS][self.key]["metadata"]["annotations"]
        kept.update({name: text for name, text in plan.annotations.items() if text is not None})
        for child in plan.delete:
            assert self.world[child.kind].pop(child.key)["metadata"]["uid"] == child.uid
        for document in plan.apply:
            assert not plan.rules.refusal(document)
            self.store(json.loads(json.dumps(document)))
        return plan

    def told(self, kind: Any, name: str, **status: Any) -> None:
        self.world[kind][Key("shop", name)]["status"] = status

    def ready(self, name: str, word: str = "True", **more: Any) -> None:
        self.told(INFERENCE_SERVICES, name, conditions=[{"type": "Ready", "status": word, **more}])

    def delivered(self, **spec: Any) -> None:
        self.turn()
        self.world[BASE_MODELS][Key("shop", "chat")]["spec"] |= {**FORMAT, **spec}
        self.told(BASE_MODELS, "chat", state="Ready")

    def measured(self, name: str) -> None:
        job = self.world[BENCHMARK_JOBS][Key("shop", f"chat-probe-{name}")]
        job["metadata"]["annotations"][BENCHMARK_MEMORY] = render_memory(Memory(runs=tuple(MEASURED[name])))
        job["status"] = {"state": "Completed", "details": f"best: of {name}\nand the rest"}

    @property
    def here(self) -> Any:
        return self.details[self.key]

    @property
    def states(self) -> dict[str, str]:
        return {str(step): str(state.phase) for step, state in step_phases(self.here).items()}


def test_an_onboarding_goes_through_its_steps_and_tells_them() -> None:
    site = Site(request(candidates=(), prices={"H100": 10, "L40S": 1}))
    site.turn()
    assert site.states == {"deliver": "Active", "select": "Blocked", "compare": "Blocked", "serve": "Blocked"}
    site.delivered()
    plan = site.turn()
    assert [one["metadata"]["name"] for one in plan.apply] == ["chat-probe-fast", "chat-probe-slow"]
    assert all("ownerReferences" not in one["metadata"] for one in plan.apply), "they go with the onboarding"
    assert json.loads(plan.annotations[MEMORY] or "")["candidates"][0]["accelerator"] == "H100"
    site.world[RUNTIMES[0]].clear()
    site.ready("chat-probe-fast")
    site.turn()
    assert site.states["roll out slow"] == "Active"
    site.turn()
    assert (site.states["roll out fast"], site.states["measure fast"]) == ("Done", "Active")
    site.measured("fast")
    site.ready("chat-probe-slow")
    site.turn()
    site.turn()
    site.measured("slow")
    site.turn(NOW + 60)
    plan = site.turn(NOW + 60)
    assert [one["kind"] for one in plan.apply] == ["InferenceService"]
    assert plan.apply[0]["metadata"]["ownerReferences"] == [], "it stays"
    site.turn()
    assert set(site.states.values()) == {"Done", "Active"}
    site.ready("chat")
    assert site.turn().awaits == ("InferenceService chat: its pod",)
    site.world[PODS][Key("shop", "chat-engine-1")] = EnginePod(
        Key("shop", "chat-engine-1"), "chat", "engine", True, "", "/mnt/models/shop/chat"
    )
    plan = site.turn()
    assert [one["kind"] for one in plan.apply] == ["ConfigMap", "VariantAutoscaling"]
    assert all(one["metadata"]["ownerReferences"] == [] for one in plan.apply)
    assert plan.apply[1]["spec"]["modelID"] == "/mnt/models/shop/chat", "as its engine calls it"
    assert yaml.safe_load(plan.apply[0]["data"]["class.yaml"])["data"][0]["model"] == "/mnt/models/shop/chat"
    site.turn()
    assert set(site.states.values()) == {"Done"}
    minutes, cost = spent(site.here.asked, site.here.memory)
    assert minutes == pytest.approx(10 + 11)
    assert cost == pytest.approx(10 / 60 * 10 + 11 / 60 * 1)
    assert conclusion(site.here, []).startswith("chosen: slow, replicas: 1, for 1 an hour")
    text = markdown(site.here, [])
    for cell in row(site.here.steps.verdict.chosen)[:6]:
        assert f"| `{cell}` |" in text
    assert "21.0 replica-minutes" in text
    lines = table(site.here.steps.verdict.assessed)
    assert lines[1].index("L40S:1") == lines[0].index("ACCELERATOR") == lines[2].index("H100:1")
    assert text.count("apiVersion: ") == 4 + 1, "the four objects, and the target of the one"


def test_a_candidate_that_is_not_ready_in_time_is_given_up_and_the_others_go_on() -> None:
    site = Site(request(patience=10))
    site.delivered()
    site.turn()
    site.ready("chat-probe-fast")
    site.ready("chat-probe-slow", "False", reason="Unschedulable", message="no node has an L40S")
    site.turn()
    site.measured("fast")
    site.turn(NOW)
    assert site.states["roll out slow"] == "Active"
    plan = site.turn(NOW + 1)
    assert [child.key.name for child in plan.delete] == ["chat-probe-slow"]
    site.turn(NOW + 2)
    steps = site.here.steps
    assert steps.verdict.chosen.candidate.runtime == "fast"
    why = "not ready within 10 minutes: Unschedulable: no node has an L40S"
    assert steps.verdict.assessed[1].problem == why
    told = step_phases(site.here)[StepId("roll out", "slow")]
    assert (str(told.phase), told.message) == ("Failed", why)


def test_a_benchmark_that_nobody_carries_out_ends_too() -> None:
    site = Site(request(patience=1, minutes=1, levels=(1, 2)))
    site.delivered()
    site.turn()
    for name in ("fast", "slow"):
        site.ready(f"chat-probe-{name}")
    site.turn()
    site.told(BENCHMARK_JOBS, "chat-probe-fast", state="Failed", failureMessage="the tokenizer is missing")
    site.turn(NOW)
    assert site.here.steps.problem == ""
    problem = ""
    for _ in range(3):
        site.turn(NOW + 1)
        problem = site.here.steps.problem
    assert "fast: benchmark failed: the tokenizer is missing" in problem
    assert "slow: not measured within 5 minutes: it is not begun" in problem
    assert not site.world[INFERENCE_SERVICES], "the probes are removed"


@pytest.mark.parametrize(
    ("candidate", "why"),
    [
        ({"runtime": "fast", "accelerator": "L40S"}, "its nodeSelector asks for accelerator H100, not L40S"),
        ({"runtime": "fast", "accelerator": "H100", "count": 2}, "one replica of it takes accelerators: 1, not 2"),
        ({"runtime": "none", "accelerator": "H100"}, "runtime none not found in namespace shop"),
        ({"runtime": "slow", "accelerator": "L40S"}, "it does not fit L40S: weights take"),
    ],
)
def test_a_candidate_that_cannot_serve_the_model_is_refused_before_anything_runs(
    candidate: dict[str, Any], why: str
) -> None:
    nodes = [Node("l40s-0", {"nvidia.com/gpu.product": PRODUCTS["slow"], MEMORY_LABEL: "46068"}, {})]
    site = Site(request(candidates=[{"price": 1, **candidate}]), nodes=nodes)
    site.delivered(modelParameterSize="70B")
    site.turn()
    assert not site.world[INFERENCE_SERVICES]
    assert why in site.here.steps.problem
    assert site.states["roll out " + candidate["runtime"]] == "Failed"


def test_of_what_fits_all_that_have_a_price_are_tried_and_the_reason_for_each_other_is_told() -> None:
    hostile = runtime("x" * 200)
    broken = {"metadata": {"name": "broken", "namespace": "shop"}, "spec": {"engineConfig": 7}}
    hostile["spec"]["engineConfig"]["nodeSelector"] = {"nvidia.com/gpu.product": PRODUCTS["fast"]}
    asked = request(candidates=(), prices={"H100": 10})
    site = Site(asked, runtime("fast"), runtime("slow"), hostile, broken)
    site.delivered()
    site.turn()
    assert [one.runtime for one in site.here.asked.candidates] == ["fast"]
    refused = site.here.found.refused
    assert "asks for accelerator L40S, which has no price" in refused["slow"]
    assert "runtime cannot be read" in refused["broken"]
    assert "at most 63 characters" in refused["x" * 200]
    assert site.here.asked.digest == asked.digest, "what was found is not what was asked"
    alone = Site(request(candidates=(), prices={"B200": 1}))
    alone.delivered()
    alone.turn()
    assert "no runtime serves the model on an accelerator that has a price" in alone.here.steps.problem


@given(st.one_of(st.text(max_size=50), st.just("{}"), st.just('{"probed":{"fast":[1e99,2]}}')))
def test_whatever_stands_in_its_memory_it_goes_on(text: str) -> None:
    site = Site(request())
    site.world[CONFIG_MAPS][site.key]["metadata"]["annotations"][MEMORY] = text
    site.delivered()
    plan = site.turn()
    assert len(plan.apply) == 2


def test_the_expected_load_of_a_trace_is_its_busiest_minute() -> None:
    at = np.concatenate([np.linspace(0, 59, 60), np.linspace(60, 119, 120)])
    trace = Trace(at, np.full(180, 100), np.full(180, 21), 120.0)
    assert expected(trace) == {"rate": 2.0, "prompt_tokens": 100, "output_tokens": 21}
    assert expected(trace.stretch(0, 1))["rate"] == pytest.approx(1.0)


def test_the_targets_of_a_service_class_are_those_of_the_model_or_of_any() -> None:
    entries = ("{model: chat, slo-ttft: 900, slo-tpot: 30}", "{model: default/default, slo-tpot: 80}")
    text = "\n- ".join(("name: gold\npriority: 1\ndata:", *entries))
    maps = {Key("home", "classes"): {"gold.yaml": text}}
    given = ("shop", "home", "classes", "gold.yaml")
    assert class_targets(maps, *given, "chat") == ({"ttft": 900, "itl": 30}, "")
    assert class_targets(maps, *given, "other") == ({"itl": 80}, "")
    assert "no such class" in class_targets(maps, "shop", "home", "classes", "silver.yaml", "x")[1]
    assert "no ConfigMap shop/none" in class_targets(maps, "shop", "home", "none", "x", "chat")[1]


@pytest.mark.parametrize(
    ("ttft", "itl", "failed", "percentile", "problem"),
    [
        (400, 30, 0, None, ""),
        (600, 30, 0, None, "TTFT 600 ms is above the target of 500 ms"),
        (400, 50, 0, None, "ITL 50 ms is above the target of 40 ms"),
        (400, 30, 1, None, ""),
        (400, 30, 2, None, "2 of 100 requests failed"),
        (400, 30, 100, None, "100 of 100 requests failed"),
        (501, 30, 0, 95.0, "TTFT p95 501 ms is above the target of 500 ms"),
    ],
)
def test_a_check_holds_only_within_both_targets(
    ttft: float, itl: float, failed: int, percentile: float | None, problem: str
) -> None:
    at, output = np.arange(100.0), np.full(100, 11)
    first = at + ttft / 1000
    ending = np.array([Ending.BROKEN] * failed + [Ending.OK] * (100 - failed))
    found = load_check(
        "x", request(percentile=percentile), 1, 1, 100, Results(at, output, first, first + itl / 100, ending)
    )
    assert found.problem == problem
    assert (problem or "within the target") in str(found)


def test_a_child_run_that_failed_for_good_fails_its_step_alone() -> None:
    site = Site(request())
    site.turn()
    site.delivered()
    site.turn()
    site.ready("chat-probe-fast")
    site.turn()
    site.lifecycle.failed[site.key, ("BenchmarkJob", "chat-probe-fast")] = "flow run 'x' was cancelled"
    plan = site.turn()
    assert [child.key.name for child in plan.delete] == ["chat-probe-fast"]
    assert site.states["measure fast"] == "Failed"
    assert site.here.memory.given_up == {"fast": "flow run 'x' was cancelled"}
    site.ready("chat-probe-slow")
    site.turn()
    site.measured("slow")
    for _ in range(2):
        site.turn()
    assert site.here.steps.verdict.chosen.candidate.runtime == "slow"
    site.lifecycle.failed[site.key, ("InferenceService", "chat")] = "flow run 'y' was cancelled"
    site.turn()
    assert site.here.steps.problem == "InferenceService chat: flow run 'y' was cancelled"
    assert site.states["serve"] == "Failed"


def test_a_step_whose_child_run_has_no_turn_says_so() -> None:
    site = Site(request())
    site.turn()
    deliver = site.turn().steps[StepId("deliver")]
    site.lifecycle.waiting[site.key, ("BaseModel", "chat")] = "waits for its turn: x"
    waiting = site.turn().steps[StepId("deliver")]
    assert waiting == replace(deliver, message="waits for its turn: x")
    site.lifecycle.waiting[site.key, ("BaseModel", "chat")] = ""
    assert site.turn().steps[StepId("deliver")] == deliver


def test_an_object_that_is_deleted_after_its_child_run_failed_for_good_is_not_made_again() -> None:
    site = Site(request())
    site.turn()
    del site.world[BASE_MODELS][Key("shop", "chat")]
    site.lifecycle.failed[site.key, ("BaseModel", "chat")] = "too many"
    plan = site.turn()
    assert (plan.apply, site.here.steps.problem) == ((), "BaseModel chat: too many")
    assert site.states["deliver"] == "Failed"
    site.lifecycle.failed.clear()
    site.delivered()
    site.turn()
    site.lifecycle.failed[site.key, ("InferenceService", "chat-probe-fast")] = "too many"
    del site.world[INFERENCE_SERVICES][Key("shop", "chat-probe-fast")]
    assert "chat-probe-fast" not in {name_of(body)[1] for body in site.turn().apply}
    assert site.here.memory.given_up == {"fast": "too many"}


def test_an_added_level_whose_run_failed_for_good_is_left_out() -> None:
    asked, name = request(), ("BenchmarkJob", "chat-probe-slow-at-2")
    service = objects.probe(asked, asked.candidates[1])
    job = objects.benchmark(asked, asked.candidates[1], [2], added=True)
    found = Findings({name_of(service): service, name: job}, MEASURED)
    assert added(asked, found, asked.candidates[1]).begun == name[1]
    assert not added(asked, replace(found, failed={name: "cancelled"}), asked.candidates[1]).begun


def test_the_failure_of_a_model_whose_delivery_is_retried_is_from_before() -> None:
    site, name = Site(request()), ("BaseModel", "chat")
    site.turn()
    site.told(BASE_MODELS, "chat", state="Failed")
    site.lifecycle.retried.add((site.key, name))
    site.turn()
    assert (site.states["deliver"], site.here.steps.problem) == ("Active", "")
    site.lifecycle.retried.discard((site.key, name))
    site.turn()
    assert site.states["deliver"] == "Failed"
