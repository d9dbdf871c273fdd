"""A pod's status as a kubelet would report it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from modelyard.cluster import Object
from modelyard.local.agent.records import ContainerRecord, Termination


def timestamp(moment: datetime) -> str:
    """A time as the Kubernetes API writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class ContainerView:
    """One container, as far as its status depends on it."""

    name: str
    image: str
    record: ContainerRecord
    waiting: tuple[str, str] | None
    started: bool
    ready: bool
    restarts: bool
    """Whether it will be started again after its end."""
    init: bool = False


def container_status(view: ContainerView, pod_uid: str) -> Object:
    """Entry of `status.containerStatuses`."""
    record = view.record
    status: Object = {
        "name": view.name,
        "image": view.image,
        "imageID": view.image,
        "ready": view.ready,
        "restartCount": record.restarts,
        "state": {},
        "lastState": {},
    }
    if record.process is not None:
        status["containerID"] = f"process://{pod_uid}/{view.name}/{record.process.pid}"
    if record.process is not None and record.started_at is not None:
        status["state"] = {"running": {"startedAt": timestamp(record.started_at)}}
    elif view.waiting is not None:
        reason, message = view.waiting
        status["state"] = {"waiting": {"reason": reason, "message": message} if message else {"reason": reason}}
    elif record.terminated is not None:
        status["state"] = {"terminated": _terminated(record.terminated)}
    last = record.terminated if view.waiting is not None and record.terminated is not None else record.last
    if last is not None:
        status["lastState"] = {"terminated": _terminated(last)}
    if not view.init:
        status["started"] = view.started
    elif record.terminated is not None:
        status["ready"] = record.terminated.exit_code == 0
    return status


def _terminated(ended: Termination) -> Object:
    state: Object = {"exitCode": ended.exit_code, "reason": ended.reason, "finishedAt": timestamp(ended.finished_at)}
    if ended.started_at is not None:
        state["startedAt"] = timestamp(ended.started_at)
    if ended.exit_code > 128:
        state["signal"] = ended.exit_code - 128
    if ended.message:
        state["message"] = ended.message
    return state


def phase(init: Sequence[ContainerView], main: Sequence[ContainerView], restart_policy: str) -> str:
    """The pod's phase."""
    for view in init:
        ended = view.record.terminated
        if ended is not None and ended.exit_code != 0 and restart_policy == "Never":
            return "Failed"
        if ended is None or ended.exit_code != 0:
            return "Pending"
    if any(view.record.process is not None for view in main):
        return "Running"
    ends = [view.record.terminated for view in main]
    if all(ended is not None and not view.restarts for ended, view in zip(ends, main, strict=True)):
        return "Failed" if any(ended is not None and ended.exit_code != 0 for ended in ends) else "Succeeded"
    if any(ended is not None or view.record.last is not None for ended, view in zip(ends, main, strict=True)):
        return "Running"
    return "Pending"


def conditions(
    pod: Object, init: Sequence[ContainerView], main: Sequence[ContainerView], pod_phase: str, moment: datetime
) -> list[Object]:
    """The pod's conditions: a kubelet's computed anew, others' kept; times change with the status only."""
    kept = {entry["type"]: entry for entry in (pod.get("status") or {}).get("conditions") or []}
    not_initialized = [v.name for v in init if v.record.terminated is None or v.record.terminated.exit_code != 0]
    not_ready = [view.name for view in main if not view.ready]
    done = pod_phase in ("Succeeded", "Failed")
    gates = [str(gate["conditionType"]) for gate in pod["spec"].get("readinessGates") or []]
    closed = [gate for gate in gates if (kept.get(gate) or {}).get("status") != "True"]

    containers = (True, "", "")
    if done:
        containers = (False, "PodCompleted" if pod_phase == "Succeeded" else "PodFailed", "")
    elif not_ready:
        containers = (False, "ContainersNotReady", f"containers with unready status: [{' '.join(not_ready)}]")
    ready = containers
    if containers[0] and closed:
        ready = (False, "ReadinessGatesNotReady", f"readiness gates not met: {', '.join(closed)}")
    computed: dict[str, tuple[bool, str, str]] = {
        "PodScheduled": (True, "", ""),
        "Initialized": (True, "PodCompleted" if pod_phase == "Succeeded" else "", "")
        if not not_initialized
        else (False, "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(not_initialized)}]"),
        "ContainersReady": containers,
        "Ready": ready,
    }
    result: list[Object] = []
    for kind, (holds, reason, message) in computed.items():
        value = "True" if holds else "False"
        old = kept.pop(kind, {})
        since = old.get("lastTransitionTime") if old.get("status") == value else None
        entry: Object = {"type": kind, "status": value, "lastProbeTime": None}
        entry["lastTransitionTime"] = since or timestamp(moment)
        if reason:
            entry["reason"] = reason
        if message:
            entry["message"] = message
        result.append(entry)
    return result + list(kept.values())


def pod_status(
    pod: Object,
    init: Sequence[ContainerView],
    main: Sequence[ContainerView],
    *,
    address: str,
    host_address: str,
    started_at: datetime,
    moment: datetime,
) -> Object:
    """The whole status, as a merge patch for the status subresource."""
    uid = pod["metadata"]["uid"]
    pod_phase = phase(init, main, str(pod["spec"].get("restartPolicy", "Always")))
    status: Object = {
        "phase": pod_phase,
        "conditions": conditions(pod, init, main, pod_phase, moment),
        "containerStatuses": [container_status(view, uid) for view in main],
        "hostIP": host_address,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": timestamp(started_at),
    }
    if init:
        status["initContainerStatuses"] = [container_status(view, uid) for view in init]
    return status
