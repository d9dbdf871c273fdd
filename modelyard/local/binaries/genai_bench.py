"""genai-bench in its own virtual environment, made once: it patches the standard library and needs other packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from modelyard.local import paths
from modelyard.local.binaries import store
from modelyard.local.binaries.store import Stages
from modelyard.local.paths import BinaryNotFound

_LATEST = (3, 12)
_INTERPRETERS = ("python3.12", "python3.11")


def ensure(version: str, progress: Callable[[str], None]) -> Path:
    """Program of this version, installed into our cache if missing. Raises `BinaryNotFound`, saying what was tried."""
    folder = paths.cache_dir() / f"genai-bench-{version}"
    executable, whole = folder / "bin" / "genai-bench", folder / "whole"
    if whole.exists():
        return executable
    with store.exclusively(lambda: progress("another process is obtaining programs; waiting for it")):
        if not whole.exists():
            # Its programs hold the path of the folder, so it is made in its place.
            shutil.rmtree(folder, ignore_errors=True)
            stages, uv, python = Stages(progress, 2), Path(sys.executable).with_name("uv"), _interpreter()
            with stages.stage(f"a virtual environment in {folder}"):
                _call(*((uv, "venv", "--python", python) if uv.exists() else (python, "-m", "venv")), folder)
            with stages.stage(f"genai-bench {version} and what it needs (800 MB)"):
                own = folder / "bin" / "python"
                installer = (uv, "pip", "install", "--python", own) if uv.exists() else (own, "-m", "pip", "install")
                _call(*installer, "--quiet", f"genai-bench=={version}")
            whole.touch()
    return executable


def _interpreter() -> str:
    """A Python that genai-bench has been made for: up to 3.12."""
    if tuple(sys.version_info[:2]) <= _LATEST:
        return str(getattr(sys, "_base_executable", sys.executable))
    for name in _INTERPRETERS:
        if found := shutil.which(name):
            return found
    raise BinaryNotFound(f"genai-bench needs {' or '.join(_INTERPRETERS)}; install one of them")


def _call(*command: object) -> None:
    parts = list(map(str, command))
    done = subprocess.run(parts, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise BinaryNotFound(
            f"{' '.join(parts)} ended with {done.returncode}: {' '.join(said)[:600]}; mend that, or set GENAI_BENCH to"
            " the program of a virtual environment that has genai-bench"
        )
