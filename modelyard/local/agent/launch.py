"""From a container of a pod spec to the local process that stands for it.

Only images under `modelyard.dev/` are run: the agent executes on the user's own machine, without isolation, so it must
never execute what somebody meant for a container. `modelyard.dev/simulated-engine` is our engine; every other image
under that name is an empty one, whose container's command is run as it is.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from modelyard.cluster import Object
from modelyard.local.processes import python_path_environment

IMAGE_PREFIX = "modelyard.dev/"
ENGINE_IMAGE = "modelyard.dev/simulated-engine"
_ENGINE_PORT = 8000
# What a program needs of the machine to run at all; everything else a container gets from its spec alone.
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SSL_CERT_FILE")


@dataclass(frozen=True)
class Launch:
    """A process to start."""

    argv: list[str]
    env: dict[str, str]


class CannotRun(Exception):
    """The container cannot be started; `reason` and the message go into its waiting state.

    `permanent`: trying again cannot help.
    """

    def __init__(self, reason: str, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.reason = reason
        self.permanent = permanent


def repository(image: str) -> str:
    """An image's name without tag and digest."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variable's value and `$$` by `$`; unknown names stay, as Kubernetes has it."""

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^()$\s]+)\)", value, text)


def plan(container: Object, env: Mapping[str, str], address: str, pod_name: str) -> Launch:
    """The process for a container.

    Args:
        container: entry of `spec.containers` or `spec.initContainers`.
        env: its resolved variables.
        address: the pod's IP.
        pod_name: becomes `HOSTNAME`.

    Raises:
        CannotRun: the image is not one of ours, or has nothing to execute.
    """
    image = str(container.get("image") or "")
    command = [expand(str(part), env) for part in container.get("command") or []]
    arguments = [expand(str(part), env) for part in container.get("args") or []]
    if not image.startswith(IMAGE_PREFIX):
        raise CannotRun(
            "ImageNotRunnable",
            f"container {container.get('name')}: the local cluster has no container engine and runs no {image!r}; "
            f"it runs {ENGINE_IMAGE} and commands of images under {IMAGE_PREFIX}",
            permanent=True,
        )
    if command:
        argv = command + arguments
    elif repository(image) == ENGINE_IMAGE:
        argv = [
            sys.executable,
            "-m",
            "modelyard.engine",
            *_engine_address(container, arguments, address),
            *arguments,
        ]
    else:
        raise CannotRun(
            "ImageNotRunnable",
            f"container {container.get('name')}: the image {image!r} has no program of its own; set its command",
            permanent=True,
        )
    base = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    base |= python_path_environment() | {"PYTHONUNBUFFERED": "1", "HOSTNAME": pod_name}
    return Launch(argv, {**base, **env})


def _engine_address(container: Object, arguments: list[str], address: str) -> list[str]:
    """`--host` and `--port`, unless the container's own arguments say them."""
    ports = container.get("ports") or []
    flags = {"--host": address, "--port": str(ports[0]["containerPort"] if ports else _ENGINE_PORT)}
    given = {argument.partition("=")[0] for argument in arguments}
    return [part for flag, value in flags.items() if flag not in given for part in (flag, value)]
