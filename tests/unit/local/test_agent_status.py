"""The status of a pod, by table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from modelyard.local.agent.records import ContainerRecord, Termination
from modelyard.local.agent.status import ContainerView, conditions, container_status, phase, pod_status
from modelyard.local.processes import ProcessIdentity

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
POD: dict[str, Any] = {"metadata": {"uid": "u", "name": "p", "namespace": "n"}, "spec": {"containers": []}}


def running(ready: bool = True) -> ContainerView:
    record = ContainerRecord(process=ProcessIdentity(pid=7, started=1), started_at=NOW)
    return ContainerView("c", "image", record, None, True, ready, True)


def ended(code: int, *, restarts: bool = False, waiting: bool = False, init: bool = False) -> ContainerView:
    end = Termination(exit_code=code, reason="Error" if code else "Completed", started_at=NOW, finished_at=NOW)
    record = ContainerRecord(terminated=end)
    held = ("CrashLoopBackOff", "back-off 10s") if waiting else None
    return ContainerView("c", "image", record, held, False, False, restarts, init)


def creating(init: bool = False) -> ContainerView:
    return ContainerView("c", "image", ContainerRecord(), ("ContainerCreating", ""), False, False, True, init)


@pytest.mark.parametrize(
    ("init", "main", "policy", "expected"),
    [
        ([], [creating()], "Always", "Pending"),
        ([], [running()], "Always", "Running"),
        ([], [running(), creating()], "Always", "Running"),
        ([], [ended(1, restarts=True, waiting=True)], "Always", "Running"),
        ([], [ended(0)], "Never", "Succeeded"),
        ([], [ended(0), ended(2)], "Never", "Failed"),
        ([], [ended(0), running()], "Never", "Running"),
        ([creating(init=True)], [creating()], "Always", "Pending"),
        ([ended(1, init=True)], [creating()], "Never", "Failed"),
        ([ended(1, init=True)], [creating()], "Always", "Pending"),
        ([ended(0, init=True)], [running()], "Always", "Running"),
    ],
)
def test_phase(init: list[ContainerView], main: list[ContainerView], policy: str, expected: str) -> None:
    assert phase(init, main, policy) == expected


def by_type(entries: list[dict[str, Any]]) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in entries}


def test_conditions_of_a_ready_pod() -> None:
    found = by_type(conditions(POD, [], [running()], "Running", NOW))
    assert found == {"PodScheduled": "True", "Initialized": "True", "ContainersReady": "True", "Ready": "True"}


def test_one_unready_container_makes_the_pod_unready() -> None:
    entries = conditions(POD, [], [running(), running(ready=False)], "Running", NOW)
    found = by_type(entries)
    assert found["ContainersReady"] == found["Ready"] == "False"
    assert {e["reason"] for e in entries if e["status"] == "False"} == {"ContainersNotReady"}


def test_transition_times_move_with_the_status_only() -> None:
    earlier = "2020-01-01T00:00:00Z"
    old = [{"type": kind, "status": "True", "lastTransitionTime": earlier} for kind in ("PodScheduled", "Ready")]
    pod = {**POD, "status": {"conditions": old}}
    entries = {e["type"]: e for e in conditions(pod, [], [running(ready=False)], "Running", NOW)}
    assert entries["PodScheduled"]["lastTransitionTime"] == earlier
    assert entries["Ready"]["lastTransitionTime"] == "2026-01-02T03:04:05Z"


def test_conditions_of_others_are_kept_and_gates_obeyed() -> None:
    pod = {
        **POD,
        "spec": {"containers": [], "readinessGates": [{"conditionType": "example.com/warm"}]},
        "status": {"conditions": [{"type": "example.com/warm", "status": "False"}]},
    }
    entries = conditions(pod, [], [running()], "Running", NOW)
    found = by_type(entries)
    assert found["ContainersReady"] == "True"
    assert found["Ready"] == "False"
    assert found["example.com/warm"] == "False"
    pod["status"]["conditions"][0]["status"] = "True"
    assert by_type(conditions(pod, [], [running()], "Running", NOW))["Ready"] == "True"


def test_a_crashing_container_waits_with_its_last_end_shown() -> None:
    status = container_status(ended(137, restarts=True, waiting=True), "u")
    assert status["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    assert status["lastState"]["terminated"]["exitCode"] == 137
    assert status["lastState"]["terminated"]["signal"] == 9
    assert status["ready"] is False


def test_the_whole_status_names_the_addresses() -> None:
    status = pod_status(
        POD, [], [running()], address="127.20.1.1", host_address="127.20.0.1", started_at=NOW, moment=NOW
    )
    assert status["phase"] == "Running"
    assert status["podIP"] == "127.20.1.1"
    assert status["podIPs"] == [{"ip": "127.20.1.1"}]
    assert status["hostIP"] == "127.20.0.1"
    assert status["containerStatuses"][0]["containerID"] == "process://u/c/7"
    assert "initContainerStatuses" not in status
