"""Real processes that a test may kill, forked from one that has imported the product: they start at once."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "modelyard.autoscaling.live.controller",
        "modelyard.workloads.roll_out.lifecycle",
        "modelyard.onboarding.execution.start",
    ]
)

pipe = _CONTEXT.Pipe


def start(target: Callable[..., None], *arguments: object) -> ForkServerProcess:
    """A process that runs ``target``, a function of a module, under this process's environment."""
    process = _CONTEXT.Process(target=_run, args=(dict(os.environ), target, *arguments), daemon=True)
    process.start()
    return process


def _run(environment: dict[str, str], target: Callable[..., None], *arguments: object) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)
