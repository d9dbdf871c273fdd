"""How the stages of a tick run as Prefect tasks, and how they hand each other a fleet that Prefect does not keep."""

from __future__ import annotations

import time
from typing import Any, Generic, TypedDict, TypeVar

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext

from modelyard.cluster import Unavailable

T = TypeVar("T")

BACK_OFF = (0.5, 2.0)
"""Seconds before the first and the second retry of a stage that reads."""


class StageOptions(TypedDict):
    """Keyword arguments of ``prefect.task`` for whatever touches the outside world.

    No tags for the tasks of a tick: Prefect asks its server for a slot for each tag of every task run, which
    costs two calls and makes a tick wait while the server is away.
    """

    cache_policy: Any
    persist_result: bool


STAGE = StageOptions(cache_policy=NO_CACHE, persist_result=False)
"""Never cached and never stored."""


async def _was_away(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether another try may help: the cluster was away. What has failed for itself fails again."""
    return isinstance(await state.aresult(raise_on_failure=False), Unavailable)


RETRIED: dict[str, Any] = {
    **STAGE,
    "retries": 3,
    "retry_delay_seconds": [1, 5, 15],
    "retry_condition_fn": _was_away,
}
"""For the steps of a lifecycle that talk to the cluster."""


class Handle(Generic[T]):
    """A value that can be taken once.

    Prefect keeps what a task returns, and walks through what it is given, for as long as the run lasts. Of a handle it
    keeps the shell.
    """

    def __init__(self, value: T) -> None:
        self._value = [value]

    def take(self) -> T:
        """The value, which is then gone from here. Raises ``LookupError`` the second time."""
        if not self._value:
            raise LookupError("the value of this handle has been taken already")
        return self._value.pop()


async def in_time(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether a retry could still end before the moment given to the task as ``until`` (a monotonic clock's reading).

    After it the next tick is the retry.
    """
    context = TaskRunContext.get()
    return context is not None and time.monotonic() + BACK_OFF[-1] < context.parameters["until"]
