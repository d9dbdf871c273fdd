"""A Prefect server with the profile ``config/prefect/server.env`` as a child process.

``python -m deployments.server`` runs one in this terminal; ``PrefectServer`` is for the demo and the tests.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from deployments.child import Child, Service
from deployments.profile import SERVER_PROFILE, environment, free_port


class PrefectServer(Service):
    """One server on loopback, with its database in ``home``. Use as a context manager, sync or async.

    ``extra`` holds settings over the profile's. After ``kill``, ``start`` brings
    the same server back on the same port and data.
    """

    start_timeout = 120.0
    """Importing the server takes six seconds, the first start's migrations eight more."""
    stop_grace = 15.0

    def __init__(
        self,
        home: Path,
        *,
        profile: Path = SERVER_PROFILE,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home
        self.port = free_port()
        self.ui_url = f"http://127.0.0.1:{self.port}"
        self.api_url = f"{self.ui_url}/api"
        settings = {
            "PREFECT_HOME": str(home),
            # A server that inherits somebody's API URL would talk to that one.
            "PREFECT_API_URL": self.api_url,
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            **(extra or {}),
        }
        child = Child(
            "the Prefect server",
            _arguments("127.0.0.1", self.port),
            env=environment(profile, settings),
            log=home / "server.log",
        )
        super().__init__(child, f"{self.api_url}/health", f"is not healthy at {self.api_url}")


def _arguments(host: str, port: int) -> list[str]:
    return ["-m", "prefect", "server", "start", "--host", host, "--port", str(port)]


def main() -> None:
    """Become a Prefect server with the profile, in this process."""
    options = argparse.ArgumentParser(prog="python -m deployments.server", description=__doc__)
    options.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    options.add_argument("--port", type=int, default=4200, help="port to listen on (default: %(default)s)")
    options.add_argument("--home", type=Path, help="where its database is (default: PREFECT_HOME or ~/.prefect)")
    given = options.parse_args()
    env = environment(SERVER_PROFILE, {"PREFECT_HOME": str(given.home)} if given.home else None)
    print(f"export PREFECT_API_URL=http://{given.host}:{given.port}/api PREFECT_SERVER_ALLOW_EPHEMERAL_MODE=false")
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *_arguments(given.host, given.port)], env)


if __name__ == "__main__":
    main()
