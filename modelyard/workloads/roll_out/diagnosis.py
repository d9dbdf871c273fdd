"""Why a pod is not ready, in words: one reason, the one to look at first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from modelyard.objects import condition, counted, cut, printable

Object = Mapping[str, Any]

_IMAGE: Final = frozenset(
    ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
)
_STARTING: Final = frozenset(("", "ContainerCreating", "PodInitializing"))
_MOST = 600
OUT_OF_MEMORY, EXITED, IMAGE, UNSCHEDULABLE, PROBE, STARTS, NODE, NO_MODEL = (
    *("OutOfMemory", "ContainerExited", "ImagePullFailed", "Unschedulable", "ProbeFailing", "Starting"),
    *("NodeNotReady", "NoNodeHasModel"),
)


_OUTSIDE: Final = frozenset((UNSCHEDULABLE, NODE, NO_MODEL, "ReadinessGatesNotReady"))


class Trouble(NamedTuple):
    """Why a pod is not ready. ``state`` is how far its model is, as published; ``final``: waiting will not mend it."""

    reason: str
    message: str
    state: str = "Pending"
    final: bool = False
    exit_code: int | None = None
    time: str = ""

    @property
    def is_outside(self) -> bool:
        """Return whether something else has to change first: an object, a quota, a node. That may take days."""
        return self.final or self.reason in _OUTSIDE


def of_pod(obj: Object) -> Trouble:
    """Return the trouble of a pod that is not ready, as the API sends it."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if status.get("phase") == "Failed":
        reason = str(status.get("reason") or "PodFailed")
        return _trouble(reason, str(status.get("message") or "the pod has failed"), "FailedToLoad")
    scheduled = condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        said = str(scheduled.get("message") or scheduled.get("reason") or "")
        return _trouble(UNSCHEDULABLE, f"{said.rstrip('. ')}; it asks for {_asked(spec)}")
    containers = {one.get("name"): one for kind in _KINDS for one in spec.get(kind) or ()}
    states = [one for kind in _KINDS for one in status.get(f"{kind[:-1]}Statuses") or ()]
    for one in states:
        if (found := _ended(one, containers.get(one.get("name")) or {})) is not None:
            return found
    for one in states:
        waiting = (one.get("state") or {}).get("waiting") or {}
        reason, said = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        if reason in _IMAGE:
            return _trouble(IMAGE, f"container {one.get('name')}: {reason}: {said or one.get('image')}", final=True)
        if waiting and reason not in _STARTING:
            return _trouble(reason, f"container {one.get('name')}: {said or reason}", final=True)
    for container in status.get("initContainerStatuses") or ():
        name, running = container.get("name"), (container.get("state") or {}).get("running")
        # A sidecar, which is always restarted, runs next to the engine for as long as that does.
        if running and (containers.get(name) or {}).get("restartPolicy") != "Always":
            return _trouble(STARTS, f"init container {name} runs since {running.get('startedAt')}", "Loading")
    for one in status.get("containerStatuses") or ():
        running = (one.get("state") or {}).get("running")
        if running and not one.get("ready"):
            probe = _probe(containers.get(one.get("name")) or {})
            said = f"container {one.get('name')} runs since {running.get('startedAt')}; {probe}"
            return _trouble(PROBE, said, "Loading")
    ready = condition(status, "Ready")
    if ready.get("reason") == "ReadinessGatesNotReady":
        return _trouble("ReadinessGatesNotReady", str(ready.get("message") or ""))
    mains = status.get("containerStatuses") or ()
    if mains and all(one.get("ready") for one in mains):  # only what looks after nodes takes it back from there
        return _trouble(NODE, f"its containers were ready when node {spec.get('nodeName')} was last heard of")
    return _trouble(STARTS, f"its containers are being created on {spec.get('nodeName') or 'no node yet'}")


_KINDS = ("initContainers", "containers")


def _ended(one: Object, container: Object) -> Trouble | None:
    """How a container ended, other than well. One that runs again may mend that; until it is ready that stays the
    reason, which would else change with every start."""
    state = one.get("state") or {}
    running = bool(state.get("running"))
    if running and one.get("ready"):
        return None
    ended = state.get("terminated") or (one.get("lastState") or {}).get("terminated")
    if not ended or (ended.get("exitCode") == 0 and ended.get("reason") == "Completed" and not state.get("waiting")):
        return None
    code, restarts = ended.get("exitCode"), one.get("restartCount") or 0
    again = f"; started again {counted(restarts, 'time')}" if restarts else ""
    name, at = one.get("name"), str(ended.get("finishedAt") or "")
    if ended.get("reason") == "OOMKilled":
        limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
        said = f"container {name} was killed: out of memory" + (f", of which it may have {limit}" if limit else "")
        return _trouble(OUT_OF_MEMORY, said + again, "FailedToLoad", not running, code, at)
    words = str(ended.get("message") or "").strip()
    how = f"container {name} exited with code {code}" + (f": {words}" if words else "")
    return _trouble(EXITED, how + again, "FailedToLoad", not running, code, at)


def _probe(container: Object) -> str:
    for kind in ("startupProbe", "readinessProbe"):
        probe = container.get(kind) or {}
        if get := probe.get("httpGet"):
            return f"its {kind}, GET :{get.get('port')}{get.get('path') or '/'}, has not succeeded yet"
        if probe:
            return f"its {kind} has not succeeded yet"
    return "it is not ready yet"


def _asked(spec: Object) -> str:
    given = [container.get("resources") or {} for container in spec.get("containers") or ()]
    asked = ({**(one.get("limits") or {}), **(one.get("requests") or {})} for one in given)
    amounts = [f"{name} {amount}" for one in asked for name, amount in one.items()]
    labels = [f"{name}={value}" for name, value in sorted((spec.get("nodeSelector") or {}).items())]
    return ", ".join(amounts) + (f" on a node with {', '.join(labels)}" if labels else "") or "nothing in particular"


def _trouble(
    reason: str, message: str, state: str = "Pending", final: bool = False, code: Any = None, time: str = ""
) -> Trouble:
    exit_code = code if isinstance(code, int) else None
    return Trouble(cut(printable(reason), 100), cut(printable(message), _MOST), state, final, exit_code, time)


def worst(troubles: Iterable[Trouble]) -> Trouble | None:
    """The one to look at first: what does not mend itself, then what hinders most; a pod that has served comes before
    one that was made up for."""
    order = {NODE: -1, UNSCHEDULABLE: 1, PROBE: 2, STARTS: 3}
    return min(troubles, key=lambda one: (not one.final, order.get(one.reason, 0)), default=None)
