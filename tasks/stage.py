"""Options of tasks, such as retries, and objects that the tasks of one flow run share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.runtime import flow_run
from prefect.tasks import exponential_backoff

from modelyard.cluster import Unavailable

T = TypeVar("T")

READ_DELAYS = exponential_backoff(0.5)(2)
"""Seconds before each retry of a stage that reads."""
_AWAY = (Unavailable, TimeoutError, httpx.TransportError)

STAGE: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
"""For every task that touches the outside world: never cached and never stored.

No tags for the tasks of a tick: Prefect asks its server for a slot for each tag of every task run, which costs two
calls and makes a tick wait while the server is away.
"""


async def _was_away(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    return state.name != "TimedOut" and isinstance(await state.aresult(raise_on_failure=False), _AWAY)


RETRIED = {**STAGE, "retries": 3, "retry_delay_seconds": exponential_backoff(3), "retry_condition_fn": _was_away}
"""For the steps of a lifecycle that talk to the cluster."""
BRIEF = {**RETRIED, "timeout_seconds": 300}
"""For tasks that read and write some objects and wait for nothing."""
REPORT = {**STAGE, "timeout_seconds": 300}
"""For the last task of a run: its artifacts are written once."""


_shared: dict[tuple[str, type], Any] = {}


@contextmanager
def share(value: object) -> Iterator[None]:
    """Let the tasks of the current flow run find ``value`` by its type: open connections and whatever they read."""
    place = str(flow_run.id), type(value)
    _shared[place] = value
    try:
        yield
    finally:
        del _shared[place]


def shared(type_: type[T]) -> T:
    """Return what the current flow run shares of this type. Raises ``LookupError`` where it shares nothing."""
    value: T = _shared[str(flow_run.id), type_]
    return value


async def in_time(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Return whether a retry could end before ``until``, a monotonic reading; after it the next tick is the retry."""
    context = TaskRunContext.get()
    return context is not None and time.monotonic() + READ_DELAYS[-1] < context.parameters["until"]
