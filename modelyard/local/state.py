"""What the supervisor tells the outside: one file, replaced at every change."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from modelyard.local import processes
from modelyard.local.agent import RecordStore
from modelyard.local.paths import InstancePaths, write_atomically
from modelyard.local.processes import ProcessIdentity
from modelyard.local.settings import Component

_EVENTS = 50
_COMPONENT_GRACE = 10.0
_CONTAINER_GRACE = 3.0


def now() -> datetime:
    """The present moment in UTC, to the second, as Kubernetes writes times."""
    return datetime.now(UTC).replace(microsecond=0)


class Phase(StrEnum):
    """Where the whole cluster stands."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class ComponentPhase(StrEnum):
    """Where one component stands."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not ready"
    BACK_OFF = "back-off"
    STOPPED = "stopped"


class ComponentState(BaseModel):
    """One component as the supervisor sees it."""

    phase: ComponentPhase = ComponentPhase.WAITING
    process: ProcessIdentity | None = None
    started_at: datetime | None = None
    restarts: int = 0
    last_exit: str = Field("", description="how it last ended, and when")
    message: str = ""
    address: str = ""
    version: str = ""
    log: str = ""


class StackEvent(BaseModel):
    """Something worth telling that happened to a component."""

    at: datetime
    component: str
    message: str


class StackState(BaseModel):
    """The whole cluster as the supervisor sees it."""

    phase: Phase = Phase.STARTING
    message: str = ""
    supervisor: ProcessIdentity
    started_at: datetime
    slot: int | None = None
    kubeconfig: str = ""
    components: dict[Component, ComponentState] = Field(default_factory=dict)
    events: list[StackEvent] = Field(default_factory=list, description="the latest, oldest first")

    def ended(self, component: Component, returncode: int) -> str:
        """Remember how a component's process ended (a `Popen.returncode`: negative for a signal); that in words."""
        how = f"exit code {returncode}" if returncode >= 0 else signal.Signals(-returncode).name
        own = self.components[component]
        own.process, own.last_exit = None, f"{how} at {now():%H:%M:%S}"
        return how

    def record(self, component: str, message: str) -> None:
        self.events = [*self.events, StackEvent(at=now(), component=component, message=message)][-_EVENTS:]

    def save(self, path: Path) -> None:
        write_atomically(path, self.model_dump_json(indent=1))

    def processes(self) -> list[ProcessIdentity]:
        """Components' processes that may run, in stopping order (the reverse of starting)."""
        states = [self.components[component] for component in reversed(Component) if component in self.components]
        return [state.process for state in states if state.process is not None]


def load(path: Path) -> StackState | None:
    """The last written state; None when there is none (or it is not readable as one)."""
    try:
        return StackState.model_validate_json(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValidationError):
        return None


def stop_leftovers(previous: StackState | None, paths: InstancePaths) -> int:
    """Stop recorded processes that still run; returns how many there were.

    The components of `previous`, the state a dead supervisor left behind, are stopped before the containers (those
    of the agent's records), in the reverse of their starting order, so that no agent starts containers again.
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
