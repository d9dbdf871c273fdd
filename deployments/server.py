"""A Prefect server with the profile ``config/prefect/server.env`` as a child process.

``python -m deployments.server`` runs one in this terminal; ``PrefectServer`` is for the demo and the tests.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from deployments.child import Child, Service
from deployments.profile import SERVER_PROFILE, environment, free_port

AUTHENTICATION = "PREFECT_SERVER_API_AUTH_STRING"
"""The setting with what a client must know, as user:password. Without it anybody may do anything."""


class PrefectServer(Service):
    """One server on loopback, with its database in ``home``. Use as a context manager, sync or async.

    ``extra`` holds settings over the profile's; without ``AUTHENTICATION`` there, every process of this machine may use
    it. After ``kill``, ``start`` brings the same server back on the same port and data.
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
        env = environment(profile, settings)
        if AUTHENTICATION not in settings:
            env.pop(AUTHENTICATION, None)  # of another server, for which its clients have the password
        child = Child("the Prefect server", _arguments("127.0.0.1", self.port), env=env, log=home / "server.log")
        super().__init__(child, f"{self.api_url}/health", f"is not healthy at {self.api_url}")


def _arguments(host: str, port: int) -> list[str]:
    return ["-m", "prefect", "server", "start", "--host", host, "--port", str(port)]


def authentication(file: Path) -> str:
    """The user and password in the file; made up and written, for its owner's eyes only, if there is none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError), os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as new:
        new.write(f"modelyard:{secrets.token_urlsafe(24)}")
    return file.read_text("ascii").strip()


def main() -> None:
    """Become a Prefect server with the profile, in this process."""
    options = argparse.ArgumentParser(prog="python -m deployments.server", description=__doc__)
    options.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    options.add_argument("--port", type=int, default=4200, help="port to listen on (default: %(default)s)")
    options.add_argument("--home", type=Path, help="where its database is (default: PREFECT_HOME or ~/.prefect)")
    options.add_argument(
        "--without-authentication",
        action="store_true",
        help="let everybody in who reaches the port; whoever gets in can run any command where the worker runs",
    )
    given = options.parse_args()
    env = environment(SERVER_PROFILE, {"PREFECT_HOME": str(given.home)} if given.home else None)
    print(f"export PREFECT_API_URL=http://{given.host}:{given.port}/api PREFECT_SERVER_ALLOW_EPHEMERAL_MODE=false")
    if given.without_authentication:
        env.pop(AUTHENTICATION, None)
    elif not env.get(AUTHENTICATION):
        file = Path(env.get("PREFECT_HOME") or "~/.prefect").expanduser().absolute() / "api-auth"
        env[AUTHENTICATION] = authentication(file)
        print(f'export PREFECT_API_AUTH_STRING="$(cat {file})"', "  # which the UI asks for, too")
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *_arguments(given.host, given.port)], env)


if __name__ == "__main__":
    main()
