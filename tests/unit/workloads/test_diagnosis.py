"""Why a pod is not ready: one reason and its words, whatever a kubelet or a tenant says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from modelyard.workloads.roll_out.diagnosis import Trouble, of_pod, worst

NAME = "ome-container"
SPEC = {
    "nodeName": "gpu-1",
    "nodeSelector": {"gpu": "a100"},
    "containers": [
        {
            "name": NAME,
            "resources": {"limits": {"nvidia.com/gpu": 2, "memory": "16Gi"}},
            "readinessProbe": {"httpGet": {"path": "/health", "port": 8080}},
        }
    ],
}


def said(status: dict[str, Any], spec: dict[str, Any] | None = None) -> Trouble:
    return of_pod({"metadata": {"name": "p"}, "spec": spec or SPEC, "status": status})


def state(restarts: int = 0, last: dict[str, Any] | None = None, **now: Any) -> dict[str, Any]:
    one = {"name": NAME, "image": "engine:1", "restartCount": restarts, "ready": False, "state": now}
    return {"phase": "Running", "containerStatuses": [{**one, **({"lastState": {"terminated": last}} if last else {})}]}


@pytest.mark.parametrize(
    ("status", "reason", "words", "final"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes: 3 Insufficient gpu."}]},
            "Unschedulable",
            "0/3 nodes: 3 Insufficient gpu; it asks for nvidia.com/gpu 2, memory 16Gi on a node with gpu=a100",
            False,
        ),
        (
            state(waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image"}),
            "ImagePullFailed",
            f"container {NAME}: ImagePullBackOff: Back-off pulling image",
            True,
        ),
        (
            state(waiting={"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}),
            "CreateContainerConfigError",
            f'container {NAME}: secret "x" not found',
            True,
        ),
        (
            state(3, {"exitCode": 1, "reason": "Error", "message": "no CUDA"}, waiting={"reason": "CrashLoopBackOff"}),
            "ContainerExited",
            f"container {NAME} exited with code 1: no CUDA; started again 3 times",
            True,
        ),
        (
            state(1, {"exitCode": 137, "reason": "OOMKilled"}, waiting={"reason": "CrashLoopBackOff"}),
            "OutOfMemory",
            f"container {NAME} was killed: out of memory, of which it may have 16Gi; started again 1 time",
            True,
        ),
        (
            state(3, {"exitCode": 1, "reason": "Error", "message": "no CUDA"}, running={"startedAt": "2026-01-01"}),
            "ContainerExited",
            f"container {NAME} exited with code 1: no CUDA; started again 3 times",
            False,
        ),
        (
            state(running={"startedAt": "2026-01-01T00:00:00Z"}),
            "ProbeFailing",
            f"container {NAME} runs since 2026-01-01T00:00:00Z; its readinessProbe, GET :8080/health, has not"
            " succeeded yet",
            False,
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"},
            "Evicted",
            "The node was low on memory",
            False,
        ),
        (
            {"phase": "Running", "containerStatuses": [{"name": NAME, "ready": True, "state": {"running": {}}}]},
            "NodeNotReady",
            "its containers were ready when node gpu-1 was last heard of",
            False,
        ),
        (
            state(waiting={"reason": "ContainerCreating"}),
            "Starting",
            "its containers are being created on gpu-1",
            False,
        ),
    ],
)
def test_the_reason_in_words(status: dict[str, Any], reason: str, words: str, final: bool) -> None:
    found = said(status)
    assert (found.reason, found.message, found.final) == (reason, words, final)


def test_an_init_container_comes_before_the_engine() -> None:
    status = state(waiting={"reason": "PodInitializing"})
    ended = {"name": "fetch", "state": {"terminated": {"exitCode": 2, "reason": "Error"}}, "restartCount": 0}
    found = said({**status, "initContainerStatuses": [ended]})
    assert (found.reason, found.state, found.exit_code) == ("ContainerExited", "FailedToLoad", 2)
    done = {"name": "fetch", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}, "restartCount": 0}
    assert said({**status, "initContainerStatuses": [done]}).reason == "Starting"


def test_a_model_is_loading_while_an_init_container_runs_that_ends() -> None:
    status = state(waiting={"reason": "PodInitializing"})
    running = {"name": "fetch", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    found = said({**status, "initContainerStatuses": [running]})
    assert (found.reason, found.state, found.final) == ("Starting", "Loading", False)
    assert found.message == "init container fetch runs since 2026-01-01T00:00:00Z"
    sidecar = {**SPEC, "initContainers": [{"name": "fetch", "restartPolicy": "Always"}]}
    assert said({**status, "initContainerStatuses": [running]}, sidecar).state == "Pending"


def test_what_does_not_mend_itself_is_looked_at_first() -> None:
    dead, full = Trouble("ContainerExited", "", final=True), Trouble("Unschedulable", "")
    assert worst([Trouble("Starting", ""), full, dead]) is dead
    assert worst([Trouble("Starting", ""), full]) is full
    lost, evicted = Trouble("NodeNotReady", ""), Trouble("Evicted", "")
    assert worst([evicted, lost]) is lost
    assert worst([evicted, full]) is evicted
    assert worst([]) is None


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)
text = st.text(max_size=8) | st.none()
ended = st.fixed_dictionaries({}, optional={"exitCode": anything, "reason": anything, "message": anything})
container = st.fixed_dictionaries(
    {"name": text},
    optional={
        "state": st.fixed_dictionaries({}, optional={"waiting": ended, "running": ended, "terminated": ended}),
        "lastState": st.fixed_dictionaries({}, optional={"terminated": ended}),
        "restartCount": st.integers(),
        "ready": st.booleans(),
    },
)


@given(
    st.fixed_dictionaries({}, optional={"phase": text, "reason": anything, "containerStatuses": st.lists(container)})
)
def test_whatever_a_status_says_there_is_a_reason(status: dict[str, Any]) -> None:
    found = said(status)
    assert found.reason
    assert len(found.message) <= 600
