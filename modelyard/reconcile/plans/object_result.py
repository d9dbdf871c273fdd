"""State of an object at the end of a run, in the same terms for every lifecycle. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class ResultState(StrEnum):
    """State of an object at the end of a run. Only one that is ``PENDING`` may still become ``DONE`` by waiting."""

    DONE = "done"
    PENDING = "pending"
    FAILED = "failed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class ObjectResult:
    """An object's state at the end of a run, and the sentence about it in the run's final state."""

    state: ResultState
    text: str


def failures(results: Iterable[ObjectResult], waits: bool) -> list[str]:
    """Return why a run fails: with what has failed, and where it ``waits``, with all that is not done."""
    wanted = {ResultState.DONE} if waits else set(ResultState) - {ResultState.FAILED}
    return [result.text for result in results if result.state not in wanted]
