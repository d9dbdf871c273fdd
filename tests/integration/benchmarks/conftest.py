"""Simulated engines as processes, the real program, and a tokenizer that counts as they do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deployments.demo.sources import tokenizer
from modelyard.benchmarks.records.program import VERSION
from modelyard.local.binaries import genai_bench

StartEngine = Callable[..., str]


@pytest.fixture
def engine() -> Iterator[StartEngine]:
    """Starts an engine with these options, and tells its URL."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> str:
        command = [sys.executable, "-m", "modelyard.engine", "--model", "demo", "--port", "0", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process.stdout.readline().split()[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def program() -> Path:
    """genai-bench, in the virtual environment that a local cluster makes."""
    return genai_bench.ensure(VERSION, print)


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    for name, body in tokenizer().items():
        (folder / name).write_bytes(body)
    return folder
