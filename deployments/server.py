"""A Prefect server with the profile ``config/prefect/server.env`` as a child process.

``python -m deployments.server`` runs one in this terminal; ``PrefectServer`` is for the demo and the tests.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from deployments.child import Child, ChildFailed
from deployments.profile import SERVER_PROFILE, environment, free_port

START_TIMEOUT = 120.0
"""Seconds until healthy; importing the server takes six, the first start's migrations eight more."""
STOP_GRACE = 15.0


class PrefectServer:
    """One server on loopback, with its database in ``home``. Use as a context manager, sync or async.

    ``extra`` holds settings over the profile's. A port of ``None`` picks a free one. After ``kill``, ``start`` brings
    the same server back on the same port and data.
    """

    def __init__(
        self,
        home: Path,
        port: int | None = None,
        *,
        ui: bool = True,
        profile: Path = SERVER_PROFILE,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home
        self.port = port or free_port()
        self.ui_url = f"http://127.0.0.1:{self.port}"
        self.api_url = f"{self.ui_url}/api"
        settings = {
            "PREFECT_HOME": str(home),
            # A server that inherits somebody's API URL would talk to that one.
            "PREFECT_API_URL": self.api_url,
            "PREFECT_UI_API_URL": self.api_url,
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            **(extra or {}),
        }
        self.child = Child(
            "the Prefect server",
            ["-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
            + ([] if ui else ["--no-ui"]),
            env=environment(profile, settings),
            log=home / "server.log",
        )

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.child.start()

    def wait(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until it is healthy. Raises ``ChildFailed`` when it ends, or takes longer than ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not self.healthy():
            self.child.check()
            if time.monotonic() > deadline:
                raise ChildFailed(
                    f"the Prefect server is not healthy at {self.api_url} after {timeout:.0f} s. "
                    f"The end of {self.child.log}:\n{self.child.log_tail()}"
                )
            time.sleep(0.2)

    def start(self, timeout: float = START_TIMEOUT) -> Self:
        """Start it and wait until it is healthy."""
        self.launch()
        try:
            self.wait(timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def healthy(self) -> bool:
        """Whether the API answers."""
        try:
            return httpx.get(f"{self.api_url}/health", timeout=2, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        """SIGKILL: the crash of a server."""
        self.child.kill()

    def stop(self) -> None:
        """Stop it; safe to call twice."""
        self.child.stop(STOP_GRACE)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


def main() -> None:
    """Become a Prefect server with the profile, in this process."""
    options = argparse.ArgumentParser(prog="python -m deployments.server", description=__doc__)
    options.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    options.add_argument("--port", type=int, default=4200, help="port to listen on (default: %(default)s)")
    options.add_argument("--home", type=Path, help="where its database is (default: PREFECT_HOME or ~/.prefect)")
    given = options.parse_args()
    env = environment(SERVER_PROFILE, {"PREFECT_HOME": str(given.home)} if given.home else None)
    arguments = ["-m", "prefect", "server", "start", "--host", given.host, "--port", str(given.port)]
    print(f"export PREFECT_API_URL=http://{given.host}:{given.port}/api PREFECT_SERVER_ALLOW_EPHEMERAL_MODE=false")
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *arguments], env)


if __name__ == "__main__":
    main()
