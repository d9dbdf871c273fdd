"""A Prefect server with the profile ``config/prefect/server.env``, as a child process or in place of this one."""

from __future__ import annotations

import ipaddress
import os
import secrets
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from deployments.child import ChildProcess
from deployments.profile import SERVER_PROFILE, environment, free_port
from modelyard.local import home_dir
from modelyard.ports import check_listenable, describe_listen_error, find_holder

AUTHENTICATION = "PREFECT_SERVER_API_AUTH_STRING"
"""The setting with what a client must know, as user:password. Without it anybody may do anything."""


class CannotListen(RuntimeError):
    """The address cannot be listened on; the message says why and what to do."""


class _Server(ChildProcess):
    start_timeout = 300.0
    """Importing the server takes six seconds, the first start's migrations eight more, and a busy machine twenty times
    as long. One that ended is told at once."""
    stop_grace = 15.0

    def __init__(self, host: str, port: int, env: Mapping[str, str], log: Path) -> None:
        self.ui_url = f"http://{reachable(host)}:{port}"
        self.api_url = f"{self.ui_url}/api"
        super().__init__(
            "the Prefect server", _arguments(host, port), env=env, log=log, health=f"{self.api_url}/health"
        )


class PrefectServer(_Server):
    """One server on loopback, with its database in ``home``. Use as a context manager, sync or async.

    ``extra`` holds settings over the profile's; without ``AUTHENTICATION`` there, every process of this machine may use
    it. After ``kill``, ``start`` brings the same server back on the same port and data.
    """

    def __init__(self, home: Path, *, profile: Path = SERVER_PROFILE, extra: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.port = free_port()
        settings = {
            "PREFECT_HOME": str(home),
            # A server that inherits somebody's API URL would talk to that one.
            "PREFECT_API_URL": f"http://127.0.0.1:{self.port}/api",
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            **(extra or {}),
        }
        env = environment(profile, settings)
        if AUTHENTICATION not in settings:
            env.pop(AUTHENTICATION, None)  # of another server, for which its clients have the password
        super().__init__("127.0.0.1", self.port, env, home / "server.log")


def _arguments(host: str, port: int) -> list[str]:
    return ["-m", "prefect", "server", "start", "--host", host, "--port", str(port)]


def reachable(host: str) -> str:
    """As what this machine, its browsers included, reaches a server that listens on ``host``."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return str(address) if address.version == 4 else f"[{address}]"


def authentication(file: Path) -> str:
    """The user and password in the file; made up and written, for its owner's eyes only, if there is none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError), os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as new:
        new.write(f"modelyard:{secrets.token_urlsafe(24)}")
    return file.read_text("ascii").strip()


def default_home() -> Path:
    """Folder of the database: PREFECT_HOME, else one of ours, since ``~/.prefect`` is used with other servers."""
    chosen = os.environ.get("PREFECT_HOME")
    return Path(chosen).expanduser().absolute() if chosen else home_dir() / "prefect"


def become(host: str, port: int, home: Path | None, without_authentication: bool, background: bool = False) -> None:
    """Become a Prefect server with the profile, in this process; or start one that stays, and wait until it answers.

    Prints what its clients export to standard output, for ``eval``, and what people need to standard error. Raises
    ``CannotListen``, and ``ChildFailed`` when the one in the background does not come up.
    """
    folder = home.expanduser().absolute() if home else default_home()
    env = environment(SERVER_PROFILE, {"PREFECT_HOME": str(folder)})
    exports = f"export PREFECT_API_URL=http://{reachable(host)}:{port}/api PREFECT_SERVER_ALLOW_EPHEMERAL_MODE=false\n"
    login = ""
    if without_authentication:
        env.pop(AUTHENTICATION, None)
    elif env.get(AUTHENTICATION):
        login = f"The UI asks for a password once: the value of {AUTHENTICATION}, the user before the colon included"
    else:
        file = folder / "api-auth"
        env[AUTHENTICATION] = authentication(file)
        exports += f'export PREFECT_API_AUTH_STRING="$(cat {shlex.quote(str(file))})"\n'
        login = f"The UI asks for a password once: `cat {shlex.quote(str(file))}` prints it, paste the whole line"
    server = _Server(host, port, env, folder / "server.log")
    try:
        check_listenable(host, port)
    except (OSError, OverflowError) as error:
        why = describe_listen_error(host, port, error)
        if server.healthy():
            holder = find_holder(host, port) or "it"
            use = " && ".join(exports.splitlines())
            ways = f"use it by `{use}`, end {holder}, or choose another --port"
            why = f"a Prefect server answers at {server.api_url} already: {ways}"
        raise CannotListen(why) from None
    if background:
        server.start()
        ended = f"its data is in {folder}, its output in {server.log}; it ends with `kill {server.pid}`"
        print(f"Prefect is ready at {server.ui_url}; {ended}", file=sys.stderr)
    else:
        print(f"Starting Prefect at {server.ui_url}; its data is in {folder}", file=sys.stderr)
    if login:
        print(login, file=sys.stderr)
    print(exports, end="", flush=True)
    if not background:
        os.execve(sys.executable, [sys.executable, *_arguments(host, port)], env)
