"""Stopping what an instance left running: engines on an ordinary stop, everything after a supervisor was killed."""

from __future__ import annotations

from modelyard.local import processes
from modelyard.local.agent.records import RecordStore
from modelyard.local.paths import InstancePaths
from modelyard.local.state import StackState

_COMPONENT_GRACE = 10.0
_CONTAINER_GRACE = 3.0


def stop_leftovers(previous: StackState | None, paths: InstancePaths) -> int:
    """Stop recorded processes that still run; returns how many there were.

    Args:
        previous: state a dead supervisor left behind; its components are stopped before the containers, in the
            reverse of their starting order, so that no agent starts containers again.
        paths: the instance's files; the containers are those of the agent's records.
    """
    count = 0
    for identity in previous.processes() if previous is not None else []:
        if identity.alive():
            processes.stop([identity], _COMPONENT_GRACE)
            count += 1
    containers = [
        identity for record in RecordStore(paths.agent).all() for identity in record.processes() if identity.alive()
    ]
    processes.stop(containers, _CONTAINER_GRACE)
    return count + len(containers)
