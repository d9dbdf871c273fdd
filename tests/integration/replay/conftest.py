"""Simulated engines as real processes, started as the engine's own tests start them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def start_live_engine() -> Iterator[Callable[..., str]]:
    """A function that starts an engine process with options and gives its URL; they end with the test."""
    processes: list[subprocess.Popen[str]] = []

    def start(*options: str) -> str:
        command = [sys.executable, "-m", "modelyard.engine", "--model", "m", "--port", "0", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving "), f"the engine did not start: {line!r}"
        return line.split()[-1]

    try:
        yield start
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
