"""The life of a BenchmarkJob: its runs one by one, what spoils them, what is kept, what is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_world import NOW, Benchmarks, run

from modelyard.benchmarks.jobs.series import MOST_ANEW, MOST_ATTEMPTS, RETRIES
from modelyard.benchmarks.jobs.story import line
from modelyard.benchmarks.jobs.world import MEMORY, MOST_RUNS, RE_RUN, TOKENIZER, Memory
from modelyard.benchmarks.records.charts import MOST_DRAWN, PERCENTILES, THROUGHPUT, draw
from modelyard.benchmarks.records.values import MeasurementReport
from modelyard.models.delivery.legs import STARTING
from modelyard.reconcile.plans.dispatch import with_awaited_run

LATER = NOW + 3600


@pytest.fixture
def fleet() -> Benchmarks:
    found = Benchmarks()
    found.benchmark()
    return found


def test_one_run_after_the_other_until_all_are_measured(fleet: Benchmarks) -> None:
    fleet.step()
    assert fleet.said["state"] == "Running"
    assert len(fleet.jobs()) == 1
    first = fleet.asked()
    assert (first.scenario, first.concurrency, first.minutes, first.requests) == ("D(100,100)", 4, 5, 200)
    assert first.url == "http://chat.shop.svc.cluster.local:8080"
    assert (first.model, first.tokenizer, first.service) == ("llama-8b", "/mnt/models/l", "shop/chat")
    assert first.reference == "shop/bench"
    assert "2 runs of at most 5 minutes, one after the other: 10 minutes at most" in fleet.told("Accepted")[2]
    fleet.ends()
    fleet.step(NOW + 60)
    assert len(fleet.jobs()) == 1, "the log of what is measured is of no use any more"
    second = fleet.asked()
    assert second.scenario == "D(10,10)"
    assert second.output.folder == first.output.folder, "all results of a series are in one folder"
    fleet.ends(output_rate=999.0)
    plan = fleet.step(NOW + 120)
    assert plan is not None
    assert not plan.writes
    assert not plan.awaits
    assert fleet.jobs() == []
    said = fleet.said
    assert said["state"] == "Completed"
    assert said["startTime"] == "2027-01-15T08:00:00Z"
    assert said["completionTime"] == said["lastReconcileTime"] == "2027-01-15T08:02:00Z"
    assert said["details"].startswith("best: D(10,10) × 4: 999 output tokens/s, TTFT p95 250 ms, ITL p95 3 ms")
    assert "results: pvc://results/llama/x" in said["details"]
    assert fleet.told("Completed")[:2] == ("True", "AllRunsMeasured")


def test_a_killed_run_goes_on_at_every_line(fleet: Benchmarks) -> None:
    for _ in range(30):
        plan = fleet.look("bench", "shop")
        if plan is None or not plan.writes:
            if fleet.said["state"] == "Completed":
                break
            fleet.ends()
            continue
        fleet.carry(plan, most=1)
    assert fleet.said["state"] == "Completed"
    assert len(fleet.here.memory.runs) == 2
    assert fleet.jobs() == []


def test_while_its_flow_run_is_queued_the_status_says_so(fleet: Benchmarks) -> None:
    fleet.benchmark()
    plan = fleet.look("bench", "shop")
    assert plan is not None
    fleet.carry(plan)
    plan = fleet.look("bench", "shop")
    assert plan is not None
    assert plan.acts
    waiting = with_awaited_run(plan, "waiting since then for flow run 'x' of benchmark/benchmark to start", NOW)
    assert waiting.status is not None
    (accepted, done) = waiting.status.conditions
    assert (accepted.status, done.status) == ("True", "False")
    assert "is next; waiting since then for flow run 'x'" in done.message
    assert "waiting" not in accepted.message


def test_a_job_that_somebody_deletes_is_made_again(fleet: Benchmarks) -> None:
    fleet.step()
    before = fleet.job()["metadata"]
    del fleet.objects["Job", "shop", before["name"]]
    fleet.step()
    assert fleet.job()["metadata"]["uid"] != before["uid"]


@pytest.mark.parametrize("report", ["", "nonsense", "{}" * 3000], ids=["killed", "nonsense", "long"])
def test_a_run_without_a_report_is_tried_again_with_growing_pauses_and_then_given_up(
    fleet: Benchmarks, report: str
) -> None:
    now, pauses = NOW, []
    for attempt in range(MOST_ATTEMPTS):
        fleet.step(now)
        assert len(fleet.jobs()) == 1
        fleet.ends(report)
        now += 100  # beyond the time in which its word may be on its way
        plan = fleet.step(now)
        if attempt < MOST_ATTEMPTS - 1:
            assert plan is not None
            assert plan.due is not None
            assert fleet.told("Completed")[1] == "NoReport"
            assert fleet.said["state"] == "Running"
            pauses.append(plan.due - now)
            now = plan.due
    assert pauses == [RETRIES.first * 2**i for i in range(MOST_ATTEMPTS - 1)]
    assert fleet.said["state"] == "Failed"
    assert fleet.said["failureMessage"].startswith(f"D(100,100) × 4 failed, {MOST_ATTEMPTS} times: NoReport")
    assert len(fleet.jobs()) == 1, "its log may tell more"


def test_the_word_of_a_pod_may_come_after_its_job_has_ended(fleet: Benchmarks) -> None:
    fleet.step()
    fleet.finish(fleet.job(), "Complete")
    plan = fleet.step()
    assert plan is not None
    assert plan.awaits
    assert not fleet.here.memory.failing.attempts


def test_what_needs_a_change_is_not_tried_again_and_a_changed_spec_is(fleet: Benchmarks) -> None:
    fleet.step()
    fleet.ends(MeasurementReport(outcome="Failed", reason="TokenizerMissing", message="no tokenizer.json"))
    fleet.step()
    assert fleet.said["state"] == "Failed"
    assert fleet.said["failureMessage"] == "D(100,100) × 4 failed: TokenizerMissing: no tokenizer.json"
    fleet.benchmark(maxTimePerIteration=7)
    fleet.step(LATER)
    assert fleet.said["state"] == "Running"
    assert "failureMessage" not in fleet.said
    assert "completionTime" not in fleet.said
    assert fleet.asked().minutes == 7


def test_what_may_help_later_is_tried_again(fleet: Benchmarks) -> None:
    fleet.step()
    fleet.ends(MeasurementReport(outcome="Failed", reason="EndpointUnreachable", message="refused", retryable=True))
    plan = fleet.step()
    assert fleet.said["state"] == "Running"
    assert fleet.told("Completed")[1] == "EndpointUnreachable"
    assert plan is not None
    fleet.step(plan.due or 0)
    fleet.ends()
    fleet.step(LATER)
    assert len(fleet.here.memory.runs) == 1


@pytest.mark.parametrize(("failed", "state"), [(2, "Running"), (3, "Failed")])
def test_more_than_one_in_a_hundred_requests_must_not_fail(fleet: Benchmarks, failed: int, state: str) -> None:
    fleet.step()
    fleet.ends(failed=failed)
    fleet.step()
    assert fleet.said["state"] == state


@pytest.mark.parametrize("what", ["restarted", "scaled", "rolled out", "to zero"])
def test_a_run_during_which_the_service_changed_is_refused_and_said_why(fleet: Benchmarks, what: str) -> None:
    fleet.step()
    if what == "restarted":
        fleet.engine("chat-0", restarts=1)
    else:
        fleet.served(pods={"scaled": 2, "rolled out": 1, "to zero": 0}[what])
    fleet.ends()
    fleet.step()
    assert fleet.here.memory.runs == ()
    assert fleet.told("Completed")[1] in ("ServiceChanged", "ServiceScaledToZero")
    fleet.served()
    plan = fleet.step(LATER)
    assert plan is not None
    fleet.ends()
    fleet.step(LATER)
    assert len(fleet.here.memory.runs) == 1


def test_a_load_on_a_service_that_changes_is_taken_away_at_once(fleet: Benchmarks) -> None:
    fleet.step()
    fleet.served(pods=2)
    fleet.step()
    assert fleet.jobs() == []
    assert "1 engine to generation 2" in fleet.told("Completed")[2]


def test_runs_of_two_states_of_a_service_are_not_mixed(fleet: Benchmarks) -> None:
    now = NOW
    for number in range(MOST_ANEW + 1):
        fleet.step(now)
        assert fleet.here.memory.anew == number
        fleet.ends()
        fleet.step(now)
        del fleet.objects["Job", "shop", fleet.job()["metadata"]["name"]]  # between two runs
        fleet.served(pods=number + 2)
        now += 100
    fleet.step(now)
    assert fleet.said["state"] == "Failed"
    assert "ServiceChanged: 4 times" in fleet.said["failureMessage"]


def test_a_spec_that_changes_meanwhile_is_not_followed_until_it_is_asked_for(fleet: Benchmarks) -> None:
    fleet.step()
    fleet.benchmark(trafficScenarios=["D(1,2)"])
    fleet.step()
    assert fleet.told("Accepted")[:2] == ("False", "SpecChanged")
    assert RE_RUN in fleet.told("Accepted")[2]
    assert fleet.asked().scenario == "D(100,100)"
    fleet.ends()
    fleet.step()
    assert fleet.asked().scenario == "D(10,10)"
    fleet.benchmark(trafficScenarios=["D(1,2)"], annotations={RE_RUN: "1"})
    fleet.step()
    assert fleet.asked().scenario == "D(1,2)"
    assert fleet.told("Accepted")[0] == "True"
    fleet.ends()
    fleet.step()
    assert fleet.said["state"] == "Completed"
    fleet.benchmark(trafficScenarios=["D(2,2)"])
    fleet.step()
    assert fleet.said["state"] == "Completed", "as published: nothing begins by itself"
    assert fleet.told("Accepted")[1] == "SpecChanged"


def test_asked_again_after_a_failure_it_measures_only_what_is_missing(fleet: Benchmarks) -> None:
    fleet.step()
    fleet.ends()
    fleet.step()
    fleet.ends(MeasurementReport(outcome="Failed", reason="Broken", message="no"))
    fleet.step()
    assert fleet.said["state"] == "Failed"
    fleet.benchmark(annotations={RE_RUN: "again"})
    fleet.step(LATER)
    assert fleet.asked().scenario == "D(10,10)"
    fleet.ends()
    fleet.step(LATER)
    assert fleet.said["state"] == "Completed"
    fleet.benchmark(annotations={RE_RUN: "once more"})
    fleet.step(LATER)
    assert fleet.here.memory.runs == (), "what is complete is measured anew"


def test_two_benchmarks_of_one_service_take_turns(fleet: Benchmarks) -> None:
    fleet.step()
    fleet.name = "other"
    fleet.benchmark()
    fleet.step()
    assert fleet.told("Completed")[1] == "WaitsForTurn"
    assert len(fleet.jobs()) == 1
    fleet.ends()
    fleet.step()
    assert len([one for one in fleet.jobs() if not one.get("status")]) == 1


def test_of_two_that_began_at_once_one_gives_way(fleet: Benchmarks) -> None:
    def both() -> None:
        fleet.name = "other"
        fleet.benchmark()

    for name in ("bench", "other"):
        fleet.name = name
        fleet.benchmark()
        plan = fleet.look(name, "shop")
        fleet.carry(plan)
    plans = [fleet.look(name, "shop") for name in ("bench", "other")]
    for plan in plans:
        fleet.carry(plan)
    assert len(fleet.jobs()) == 2
    for name in ("bench", "other", "bench", "other"):
        fleet.carry(fleet.look(name, "shop"))
    assert len(fleet.jobs()) == 1


def test_a_forged_job_of_another_namespace_holds_nobody_up(fleet: Benchmarks) -> None:
    fleet.step()
    forged = json.loads(json.dumps(fleet.job()))
    del fleet.objects["Job", "shop", fleet.job()["metadata"]["name"]]
    fleet.put("Namespace", "evil")
    forged["metadata"] |= {"namespace": "evil", "uid": "forged"}
    fleet.objects["Job", "evil", "forged"] = forged
    fleet.step()
    assert {one["metadata"]["namespace"] for one in fleet.jobs()} == {"evil", "shop"}


def test_a_guest_that_never_ends_keeps_the_owner_of_a_service_from_nothing(fleet: Benchmarks) -> None:
    """Forged or not, its Job gives way; and while the owner measures, the guest waits."""
    fleet.put("Namespace", "shop", metadata={"annotations": {"modelyard.dev/allow-from": "guest"}})
    fleet.put("Namespace", "guest")
    fleet.put("PersistentVolumeClaim", "results", "guest", status={"phase": "Bound"})
    fleet.benchmark("guest", annotations={TOKENIZER: "meta/llama"})
    for _ in range(3):
        fleet.carry(fleet.look("bench", "guest"))
    assert [one["metadata"]["namespace"] for one in fleet.jobs()] == ["guest"]
    fleet.step()
    assert {one["metadata"]["namespace"] for one in fleet.jobs()} == {"guest", "shop"}
    for _ in range(3):
        fleet.carry(fleet.look("bench", "guest"))
    assert [one["metadata"]["namespace"] for one in fleet.jobs()] == ["shop"]


def test_reports_of_forged_pods_are_not_read(fleet: Benchmarks) -> None:
    fleet.step()
    name = fleet.job()["metadata"]["name"]
    fleet.ends()
    pod = fleet.objects.pop(("Pod", "shop", f"{name}-pod"))
    pod["metadata"]["namespace"] = "evil"
    fleet.objects["Pod", "evil", "forged"] = pod
    fleet.step(NOW + 100)
    assert fleet.here.memory.runs == ()


@pytest.mark.parametrize("figures", [{"failed": 10**400}, {"failed": -1}, {"seconds": 1e300}])
def test_a_report_with_figures_that_cannot_be_is_none(fleet: Benchmarks, figures: dict[str, Any]) -> None:
    fleet.step()
    measured = run("D(100,100)", 4).model_copy(update=figures)
    fleet.ends(MeasurementReport(outcome="Measured").model_copy(update={"run": measured}).model_dump_json())
    fleet.step(NOW + 100)
    assert fleet.here.memory.runs == ()
    assert "ended without a report" in fleet.told("Completed")[2]


def test_a_damaged_memory_begins_afresh(fleet: Benchmarks) -> None:
    fleet.benchmark(annotations={MEMORY: "{broken"})
    fleet.step()
    assert fleet.said["state"] == "Running"


def test_a_memory_with_a_scenario_that_nobody_may_ask_for_is_damaged(fleet: Benchmarks) -> None:
    """To draw one of 50,000 characters takes half a minute."""
    endless = run("D(1,2)", 1).model_copy(update={"scenario": "x" * 50_000})
    fleet.benchmark(annotations={MEMORY: Memory(began=NOW, ended=NOW, runs=(endless,)).model_dump_json()})
    fleet.step()
    assert fleet.here.memory.runs == ()


def test_a_memory_with_more_runs_than_anybody_may_ask_for_is_damaged(fleet: Benchmarks) -> None:
    """To draw several hundred takes half a minute."""
    many = tuple(run("D(1,2)", level) for level in range(1, MOST_RUNS + 2))
    forged = Memory(began=NOW, ended=NOW).model_copy(update={"runs": many})
    fleet.benchmark(annotations={MEMORY: forged.model_dump_json()})
    fleet.step()
    assert fleet.here.memory.runs == ()


def test_pictures_of_many_scenarios_show_the_first_ones(tmp_path: Path) -> None:
    """Their number is a tenant's, and each takes its time in a run that others share."""
    many = [run(f"D({length},2)", 1) for length in range(1, MOST_RUNS + 1)]
    for name, title, runs in (
        ("all", "chat", many),
        ("first", f"chat (the first {MOST_DRAWN} of {MOST_RUNS} scenarios)", many[:MOST_DRAWN]),
    ):
        (tmp_path / name).mkdir()
        draw(title, runs, tmp_path / name)
    for picture in (THROUGHPUT, PERCENTILES):
        assert (tmp_path / "all" / picture).read_bytes() == (tmp_path / "first" / picture).read_bytes()


def test_a_forged_memory_that_cannot_be_gone_on_with_is_written_once(fleet: Benchmarks) -> None:
    """Else every look would end it again, at another time."""
    fleet.benchmark(numConcurrency=list(range(1, MOST_RUNS + 2)))
    asked = fleet.objects["BenchmarkJob", "shop", "bench"]["spec"]
    about = fleet.objects["BenchmarkJob", "shop", "bench"]["metadata"].setdefault("annotations", {})
    about[MEMORY] = Memory(began=NOW, asked=asked).model_dump_json()
    fleet.step()
    assert fleet.said["state"] == "Failed"
    plan = fleet.look("bench", "shop", NOW + 60)
    assert plan is not None
    assert not plan.writes


def test_what_is_kept_of_the_most_runs_fits(fleet: Benchmarks) -> None:
    levels = list(range(1, MOST_RUNS + 1))
    fleet.benchmark(trafficScenarios=["D(100,100)"], numConcurrency=levels)
    fleet.step()
    fleet.ends(started="x" * 400, output_rate=123.45678901234)
    fleet.step()
    memory = fleet.here.memory
    (kept,) = memory.runs
    some = [kept.model_copy(update={"concurrency": level}) for level in levels[:-1]]
    about = fleet.objects["BenchmarkJob", "shop", "bench"]["metadata"]["annotations"]
    about[MEMORY] = memory.model_copy(update={"runs": tuple(some)}).model_dump_json()
    fleet.step()
    assert fleet.asked().concurrency == MOST_RUNS, "nothing is measured twice"
    fleet.ends()
    fleet.step()
    assert fleet.said["state"] == "Completed"
    about = fleet.objects["BenchmarkJob", "shop", "bench"]["metadata"]["annotations"]
    assert len(about[MEMORY]) < 100_000
    assert len(fleet.said["details"].splitlines()) == MOST_RUNS + 3


def test_one_that_goes_needs_nothing_but_the_published_finalizer_taken_off(fleet: Benchmarks) -> None:
    about = fleet.objects["BenchmarkJob", "shop", "bench"]["metadata"]
    about["deletionTimestamp"] = "2027-01-01T00:00:00Z"
    assert fleet.look("bench", "shop") is None
    about["finalizers"] = ["benchmarkjob.finalizers"]
    plan = fleet.look("bench", "shop")
    assert plan is not None
    assert (plan.finalizer, plan.finalizer_name) == (False, "benchmarkjob.finalizers")


def test_a_run_in_words() -> None:
    silent = run("E(64)", 2, ttft=None, itl=None, output_rate=0.0, requests_rate=12.5)
    assert line(silent) == "E(64) × 2: 12.5 requests/s, latency p95 450 ms; 0 of 200 failed"


def test_the_time_of_the_last_reconciliation_is_that_of_the_last_status(fleet: Benchmarks) -> None:
    fleet.benchmark()
    fleet.step(NOW)
    assert fleet.said["lastReconcileTime"] == "2027-01-15T08:00:00Z"
    fleet.step(NOW + 5)
    before = fleet.said["lastReconcileTime"]
    fleet.step(NOW + 600)
    assert fleet.said["lastReconcileTime"] == before, "a status that says the same is not written again"
    fleet.ends(now=NOW + 900)
    fleet.step(NOW + 900)
    assert fleet.said["state"] == "Running"
    assert fleet.said["lastReconcileTime"] == "2027-01-15T08:15:00Z", "the state is the same, what was measured is not"


def test_a_benchmark_that_is_refused_has_ended_until_its_spec_is_corrected(fleet: Benchmarks) -> None:
    fleet.benchmark(resultFolderName="../up")
    fleet.step(NOW)
    assert (fleet.said["state"], fleet.said["completionTime"]) == ("Failed", "2027-01-15T08:00:00Z")
    fleet.benchmark(resultFolderName="../down")
    fleet.step(NOW + 60)
    assert fleet.said["completionTime"] == "2027-01-15T08:00:00Z"
    fleet.benchmark()
    fleet.step(NOW + 120)
    assert fleet.said["state"] == "Running"
    assert not fleet.said.get("completionTime")


@pytest.mark.parametrize(
    "status", [{}, {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}]
)
def test_a_flow_run_does_not_stay_for_a_pod_that_does_not_begin(fleet: Benchmarks, status: dict[str, Any]) -> None:
    fleet.step()
    job = fleet.job()
    job["metadata"]["creationTimestamp"] = "2027-01-15T08:00:00Z"
    plan = fleet.step()
    assert plan is not None
    assert plan.awaits
    owner = {"kind": "Job", "uid": job["metadata"]["uid"], "name": "j", "controller": True}
    metadata = {"labels": job["metadata"]["labels"], "ownerReferences": [owner]}
    fleet.put("Pod", "p", "shop", spec={}, status={"phase": "Pending", **status}, metadata=metadata)
    plan = fleet.step(NOW + STARTING)
    assert plan is not None
    assert not plan.awaits
    assert not plan.acts
    fleet.put("Pod", "p", "shop", spec={}, status={"phase": "Running"}, metadata=metadata)
    plan = fleet.step(NOW + STARTING)
    assert plan is not None
    assert plan.awaits
    fleet.ends()
    plan = fleet.look("bench", "shop", NOW + STARTING)
    assert plan is not None
    assert plan.acts, "what was measured is kept, and the next run of the series made"


def test_a_flow_run_does_not_stay_for_a_job_that_does_not_go(fleet: Benchmarks) -> None:
    fleet.step()
    (name,) = [key for key in fleet.objects if key[0] == "Job"]
    job = fleet.objects[name]
    job["metadata"]["creationTimestamp"] = "2027-01-15T08:00:00Z"
    job["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:01Z"
    plan = fleet.step(NOW + 1)
    assert plan is not None
    assert plan.awaits == ("the run before",)
    plan = fleet.step(NOW + STARTING)
    assert plan is not None
    assert not plan.awaits
    del fleet.objects[name]
    plan = fleet.look("bench", "shop", NOW + STARTING)
    assert plan is not None
    assert plan.needs_run
