"""The parameters of the ``replay`` flow: a replay request, and how it is run."""

from __future__ import annotations

from pydantic import Field

from modelyard.replay.request import ReplayRequest


class ReplayParameters(ReplayRequest):
    """A replay request; policies and rates run side by side."""

    parallel: int = Field(2, ge=1, le=256, description="replays at a time, each in a process of its own")
    timeout_seconds: float = Field(1800, gt=0, le=86_400, description="time limit of one policy at one rate")
    artifact_key: str = Field(
        "replay", pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=100, description="of the table in the UI"
    )
