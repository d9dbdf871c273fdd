"""What the agent remembers of its pods on disk, so that a restarted agent finds their addresses and processes again.

One file per pod, written by the agent; also read when a cluster is stopped without (or after) its agent.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from modelyard.local.paths import write_atomically
from modelyard.local.processes import ProcessIdentity


class Termination(BaseModel):
    """How a container's process ended (`terminated` of a container state)."""

    exit_code: int
    reason: str
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime


class ContainerRecord(BaseModel):
    """One container of a pod, across the agent's restarts."""

    process: ProcessIdentity | None = None
    started_at: datetime | None = None
    restarts: int = 0
    terminated: Termination | None = Field(None, description="how it ended, while it does not run")
    last: Termination | None = Field(None, description="how the run before ended")
    failures: int = Field(0, description="ends in a row, which the back-off grows with")
    log: str = ""
    log_start: int = Field(0, description="bytes of the log that are of earlier runs")


class PodRecord(BaseModel):
    """One pod this agent runs."""

    uid: str
    namespace: str
    name: str
    node: str
    address: str = ""
    started_at: datetime
    containers: dict[str, ContainerRecord] = Field(default_factory=dict, description="init containers included")

    def processes(self) -> list[ProcessIdentity]:
        return [container.process for container in self.containers.values() if container.process is not None]


class RecordStore:
    """The folder of records."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, uid: str) -> Path:
        return self._folder / f"{uid}.json"

    def save(self, record: PodRecord) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(record.uid), record.model_dump_json())

    def remove(self, uid: str) -> None:
        self._path(uid).unlink(missing_ok=True)

    def all(self) -> Iterator[PodRecord]:
        """Every readable record."""
        for path in sorted(self._folder.glob("*.json")):
            try:
                yield PodRecord.model_validate_json(path.read_text(encoding="utf-8"))
            except (ValidationError, FileNotFoundError):
                # Removed meanwhile, or written by another version: there is nothing to adopt from it.
                continue
