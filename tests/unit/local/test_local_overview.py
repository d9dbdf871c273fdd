"""Lines of `status` for Nodes and pods."""

from __future__ import annotations

from typing import Any

import pytest

from modelyard.local.overview import node_row, pod_row


def pod(spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "n", **metadata},
        "spec": {"containers": [{"name": "c"}], **(spec or {})},
        "status": status or {},
    }


def gpus(number: int, kind: str = "limits") -> dict[str, Any]:
    return {"name": "c", "resources": {kind: {"nvidia.com/gpu": str(number)}}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, 0),
        ({"containers": [gpus(2), gpus(1, "requests")]}, 3),
        ({"containers": [gpus(1)], "initContainers": [gpus(4), gpus(2)]}, 4),
    ],
)
def test_gpus_are_counted_as_the_scheduler_does(spec: dict[str, Any], expected: int) -> None:
    assert pod_row(pod(spec), "").gpus == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, ""),
        ({"containerStatuses": [{"state": {"running": {}}}]}, ""),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}}]},
            "CrashLoopBackOff: back-off 10s",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/5 nodes are available"}]},
            "0/5 nodes are available",
        ),
    ],
)
def test_the_reason_why_a_pod_does_not_run(status: dict[str, Any], expected: str) -> None:
    assert pod_row(pod(status=status), "").reason == expected


def test_a_pod_that_is_deleted_is_terminating() -> None:
    row = pod_row(pod(status={"phase": "Running"}, deletionTimestamp="2026-01-01T00:00:00Z"), "")
    assert row.phase == "Terminating"


def test_a_node_with_its_gpus() -> None:
    node = {
        "metadata": {"name": "a", "labels": {"nvidia.com/gpu.product": "NVIDIA-L4"}},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "Unknown"}]},
    }
    row = node_row(node, 3)
    assert (row.product, row.gpus, row.gpus_allocated, row.ready) == ("NVIDIA-L4", 8, 3, False)
