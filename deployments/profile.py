"""The environment of the processes this package starts: the profile files, the server's address, where the code is."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dotenv import dotenv_values

from modelyard.objects import describe_url_problem

ROOT = Path(__file__).resolve().parents[1]
PREFECT_FILE = ROOT / "prefect.yaml"
SERVER_PROFILE = ROOT / "config" / "prefect" / "server.env"
WORKER_PROFILE = ROOT / "config" / "prefect" / "worker.env"
POOL = "modelyard"
_PORTS = range(25_000, 32_768)
"""Above those of local clusters (``modelyard.local.slots``)."""


class NoCheckout(FileNotFoundError):
    """A file of the project that an installation without its checkout does not have; the message says what to do."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is missing: this command reads files of the project; install it from its checkout, with "
            "`make install` or `pip install -c constraints.txt -e .`"
        )


def read_profile(path: Path) -> dict[str, str]:
    """The settings of an environment file. Raises ``NoCheckout`` naming it when there is none."""
    if not path.is_file():
        raise NoCheckout(path)
    return {name: value for name, value in dotenv_values(path, interpolate=False).items() if value is not None}


def environment(profile: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child process: the profile, over it what is set already, over that ``extra``.

    The child finds the same interpreter as ``python`` and the same code, whether or not the project is installed, and
    also where its working directory has packages of the same names.
    """
    env = {**read_profile(profile), **os.environ, **(extra or {})}
    # Not Path.resolve: a virtual environment's interpreter is a link, and what it links to has none of its packages.
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    env["PYTHONSAFEPATH"] = "1"
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH", "")]))
    return env


def describe_server_problem(url: str | None) -> str | None:
    """Return why PREFECT_API_URL names no server, and what to do; ``None`` when it does."""
    if not url:
        return "PREFECT_API_URL is not set; `modelyard server` starts a server and prints it"
    return f"PREFECT_API_URL {problem}" if (problem := describe_url_problem(url)) else None


def free_port() -> int:
    """Return a free TCP port below those that Linux gives out (32768 on), so that nobody else is given it meanwhile."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            port = _PORTS[secrets.randbelow(len(_PORTS))]
            probe.bind(("127.0.0.1", port))
            return port
