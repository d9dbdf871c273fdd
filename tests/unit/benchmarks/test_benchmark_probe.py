"""A benchmark whose service is gone, as an onboarding's is: it makes one for itself, and takes it away at the end."""

from __future__ import annotations

import pytest
from benchmark_world import NOW, Benchmarks

from modelyard.benchmarks.jobs.probe import MADE, READY_WITHIN
from modelyard.benchmarks.jobs.world import PROBE_OF, RE_RUN

GONE = {"endpoint": {"inferenceService": {"name": "chat-probe-fast", "namespace": "shop"}}}
NAME = "InferenceService", "shop", "chat-probe-fast"


@pytest.fixture
def fleet() -> Benchmarks:
    """A service that serves, and the benchmark that was made for its probe."""
    fleet = Benchmarks()
    service = fleet.objects["InferenceService", "shop", "chat"]
    service["spec"] |= {"runtime": {"name": "fast"}, "engine": {"minReplicas": 3, "maxReplicas": 9}}
    service["metadata"]["annotations"] = {
        "ome.io/enable-prometheus-scraping": "true", "ome.io/deploymentMode": "RawDeployment", "modelyard.dev/run": "x",
    }  # fmt: skip
    fleet.benchmark(annotations={PROBE_OF: "chat"}, **GONE)
    return fleet


def rolled_out(fleet: Benchmarks) -> None:
    """The service that was made becomes ready."""
    made = fleet.objects[NAME]
    fleet.engine("chat-probe-fast-0", "chat-probe-fast")
    made["status"] = {
        **fleet.objects["InferenceService", "shop", "chat"]["status"],
        "url": "http://chat-probe-fast.shop.svc.cluster.local:8080",
        "observedGeneration": made["metadata"]["generation"],
    }


def measured(fleet: Benchmarks) -> None:
    while fleet.said["state"] != "Completed":
        fleet.ends()
        fleet.step()


def test_a_service_that_is_gone_is_made_measured_and_taken_away(fleet: Benchmarks) -> None:
    fleet.step()
    made = fleet.objects[NAME]
    assert made["spec"]["engine"] == {"minReplicas": 1, "maxReplicas": 1}
    assert (made["spec"]["runtime"]["name"], made["spec"]["model"]["name"]) == ("fast", "llama")
    annotations = made["metadata"]["annotations"]
    assert annotations.keys() == {"ome.io/autoscalerClass", "ome.io/deploymentMode", MADE}
    assert annotations["ome.io/autoscalerClass"] == "external", "nothing scales it"
    assert fleet.told("Completed")[1] == "ServiceNotReady"
    assert fleet.jobs() == []
    rolled_out(fleet)
    fleet.step()
    assert fleet.asked().url == "http://chat-probe-fast.shop.svc.cluster.local:8080"
    assert NAME in fleet.objects, "as long as it is measured"
    measured(fleet)
    fleet.step()
    assert NAME not in fleet.objects
    assert ("InferenceService", "shop", "chat") in fleet.objects
    fleet.step()
    assert NAME not in fleet.objects, "and it is not made again"


def test_measured_again_it_is_made_again(fleet: Benchmarks) -> None:
    fleet.step()
    rolled_out(fleet)
    fleet.step()
    measured(fleet)
    fleet.step()
    fleet.benchmark(annotations={RE_RUN: "drift-1"}, **GONE)
    fleet.step()
    assert NAME in fleet.objects
    rolled_out(fleet)
    fleet.step()
    assert fleet.said["state"] == "Running"


def test_one_that_does_not_become_ready_is_given_up_and_taken_away(fleet: Benchmarks) -> None:
    fleet.step()
    plan = fleet.look("bench", "shop", NOW + 1)
    assert plan is not None
    assert plan.due == NOW + READY_WITHIN
    fleet.step(NOW + READY_WITHIN - 1)
    assert fleet.said["state"] == "Pending"
    fleet.step(NOW + READY_WITHIN)
    assert fleet.said["state"] == "Failed"
    assert "not ready within 30 minutes" in fleet.said["failureMessage"]
    assert NAME not in fleet.objects
    fleet.step(NOW + 2 * READY_WITHIN)
    assert NAME not in fleet.objects
    fleet.benchmark(annotations={RE_RUN: "again"}, **GONE)
    fleet.step(NOW + 2 * READY_WITHIN)
    assert NAME in fleet.objects, "asked for again"


def test_a_service_of_others_is_not_taken_away(fleet: Benchmarks) -> None:
    fleet.served("chat-probe-fast")
    fleet.objects[NAME]["metadata"]["annotations"] = {MADE: "another-uid 1800000000"}
    fleet.step()
    measured(fleet)
    fleet.step()
    assert NAME in fleet.objects


@pytest.mark.parametrize("lack", ["no annotation", "no service to copy", "another namespace"])
def test_without_a_service_to_copy_it_waits(fleet: Benchmarks, lack: str) -> None:
    about = fleet.objects["BenchmarkJob", "shop", "bench"]
    if lack == "no annotation":
        about["metadata"]["annotations"] = {}
    elif lack == "no service to copy":
        about["metadata"]["annotations"] = {PROBE_OF: "nowhere"}
    else:
        about["spec"]["endpoint"]["inferenceService"]["namespace"] = "bank"
    fleet.step()
    assert not [one for one in fleet.objects if "probe" in one[2]]
    assert fleet.told("Completed")[0] == "False"
