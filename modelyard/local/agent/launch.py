"""From a container of a pod spec to the local process that stands for it: its variables and its command line.

Only `modelyard` and images under `modelyard.dev/` are run: the agent executes on the user's own machine, without
isolation, so it must never execute what somebody meant for a container. `modelyard` is the image of
`deployments/kubernetes/Containerfile`, `modelyard.dev/simulated-engine` our engine and `modelyard.dev/simulated-router`
the router before engines for prefill and decode. Every other image under that name is an empty one, whose container's
command is run as it is. The programs `modelyard`, `prefect` and `python` are those of the agent's own installation.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modelyard.cluster import Cluster, ClusterError, NotFound, Object
from modelyard.local.agent.volumes import relocated
from modelyard.local.paths import cache_dir
from modelyard.local.processes import python_path_environment
from modelyard.objects import CONFIG_MAPS, SECRETS

_HERE = re.compile(r"(?<![\w.:-])(?:127\.0\.0\.1|localhost)(?=:(\d+)(?!\d))")
_ANYWHERE = re.compile(r"(?<![\w.:-])0\.0\.0\.0(?![\w.])")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
IMAGE = "modelyard"
IMAGE_PREFIX = "modelyard.dev/"
ENGINE_IMAGE = "modelyard.dev/simulated-engine"
_MODULES = {ENGINE_IMAGE: "modelyard.engine", "modelyard.dev/simulated-router": "modelyard.engine.router"}
_PROGRAMS = {"modelyard": ("-m", "deployments.command"), "prefect": ("-m", "prefect"), "python": ()}
"""Arguments to this interpreter for the programs of our image."""
_IMAGE_ENV = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false"}
"""Environment of the Containerfile that a local process would lack."""
_PROJECT = Path(__file__).resolve().parents[3]
_ENGINE_PORT = 8000
# What a program needs of the machine to run at all; everything else a container gets from its spec alone.
_INHERITED = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SSL_CERT_FILE"),
    "GENAI_BENCH",
)


@dataclass(frozen=True)
class Inside:
    """What a container's texts mean on this machine. Call it with one.

    `paths` says where its mounts are. `ports` are those of its pod, which has an address of its own: that is what
    127.0.0.1 and localhost with one of these ports, and 0.0.0.0, are inside a pod.
    """

    address: str
    paths: Mapping[str, Path] = field(default_factory=dict)
    ports: frozenset[int] = frozenset()

    def __call__(self, text: str) -> str:
        def own(found: re.Match[str]) -> str:
            return self.address if int(found[1]) in self.ports else found[0]

        return _ANYWHERE.sub(self.address, _HERE.sub(own, relocated(text, self.paths)))


@dataclass(frozen=True)
class Launch:
    """A process to start."""

    argv: list[str]
    env: dict[str, str]
    cwd: Path | None = None
    inside: Callable[[str], str] = str
    """For what else is run beside the process: probes and hooks."""


class CannotRun(Exception):
    """The container cannot be started: `reason` and message of its waiting state. `permanent`: retries cannot help."""

    def __init__(self, reason: str, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.reason = reason
        self.permanent = permanent


def repository(image: str) -> str:
    """An image's name without tag and digest."""
    head, slash, last = image.partition("@")[0].rpartition("/")
    return head + slash + last.partition(":")[0]


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace `$(NAME)`, up to the first `)`, by the variable, `$$` by `$`; unknown names stay, as in Kubernetes."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


def plan(container: Object, env: Mapping[str, str], inside: Inside, pod_name: str) -> Launch:
    """Plan the process of a container or init container with resolved variables. Raises `CannotRun`: it is not ours."""
    image = str(container.get("image") or "")
    argv = [inside(expand(str(part), env)) for key in ("command", "args") for part in container.get(key) or []]
    if repository(image) != IMAGE and not image.startswith(IMAGE_PREFIX):
        raise CannotRun(
            "ImageNotRunnable",
            f"container {container.get('name')}: the local cluster has no container engine and runs no {image!r}; "
            f"it runs {ENGINE_IMAGE} and commands of {IMAGE} and of images under {IMAGE_PREFIX}",
            permanent=True,
        )
    module = _MODULES.get(repository(image))
    if module and not container.get("command"):
        argv = [sys.executable, "-m", module, *_engine_address(container, argv, inside.address), *argv]
    elif not argv:
        raise CannotRun(
            "ImageNotRunnable",
            f"container {container.get('name')}: the image {image!r} has no program of its own; set its command",
            permanent=True,
        )
    elif argv[0] in _PROGRAMS:  # of the installation that runs, wherever that is
        argv = [sys.executable, *_PROGRAMS[argv[0]], *argv[1:]]
    base = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    base |= python_path_environment() | {"PYTHONUNBUFFERED": "1", "HOSTNAME": pod_name}
    if repository(image) == IMAGE:
        base |= _IMAGE_ENV
    # What was obtained once is there for every pod, wherever its HOME is.
    base["MODELYARD_CACHE"] = str(cache_dir())
    folder = Path(inside(str(container["workingDir"]))) if container.get("workingDir") else None
    if folder is None and repository(image) == IMAGE:
        folder = _PROJECT
    return Launch(argv, {**base, **env}, folder if folder and folder.is_dir() else None, inside)


def _engine_address(container: Object, arguments: list[str], address: str) -> list[str]:
    """`--host` and `--port`, unless the container's own arguments say them."""
    ports = container.get("ports") or []
    flags = {"--host": address, "--port": str(ports[0]["containerPort"] if ports else _ENGINE_PORT)}
    given = {argument.partition("=")[0] for argument in arguments}
    return [part for flag, value in flags.items() if flag not in given for part in (flag, value)]


@dataclass(frozen=True)
class PodPlace:
    """Where a pod runs: what `fieldRef` can ask for beside the object itself."""

    address: str
    host_address: str
    node: str


def downward(pod: Object, path: str, place: PodPlace) -> str:
    """Value of a `fieldRef`. Raises `CannotRun`: the downward API has no such field."""
    metadata = pod["metadata"]
    keyed = _KEYED.fullmatch(path)
    if keyed is not None:
        return str((metadata.get(keyed[1]) or {}).get(keyed[2], ""))
    values = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": place.node,
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", ""),
        "status.podIP": place.address,
        "status.podIPs": place.address,
        "status.hostIP": place.host_address,
        "status.hostIPs": place.host_address,
    }
    if path not in values:
        raise CannotRun("CreateContainerConfigError", f"fieldRef {path!r} is not supported", permanent=True)
    return str(values[path])


async def resolve(
    cluster: Cluster, pod: Object, container: Object, place: PodPlace, inside: Callable[[str], str]
) -> dict[str, str]:
    """The variables of `env` and `envFrom`, later ones winning and able to use earlier ones as `$(NAME)`.

    `inside` translates what the spec itself says. Raises `CannotRun`: a reference has no target and is not optional, or
    cannot be read now.
    """
    sources = _Sources(cluster, pod["metadata"]["namespace"])
    env: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        prefix = source.get("prefix", "")
        for kind in ("configMapRef", "secretRef"):
            if kind in source:
                data = await sources.read(kind, source[kind])
                env |= {prefix + key: value for key, value in data.items()}
    for variable in container.get("env") or []:
        name = variable["name"]
        if "valueFrom" not in variable:
            env[name] = inside(expand(str(variable.get("value") or ""), env))
            continue
        value = await _value_from(variable["valueFrom"], pod, container, place, sources)
        if value is not None:
            env[name] = value
    return env


async def _value_from(source: Object, pod: Object, container: Object, place: PodPlace, sources: _Sources) -> str | None:
    if "fieldRef" in source:
        return downward(pod, str(source["fieldRef"]["fieldPath"]), place)
    if "resourceFieldRef" in source:
        kind, _, resource = str(source["resourceFieldRef"]["resource"]).partition(".")
        return str((container.get("resources") or {}).get(kind, {}).get(resource, "0"))
    for kind in ("configMapKeyRef", "secretKeyRef"):
        if kind in source:
            reference = source[kind]
            data = await sources.read(kind, reference)
            if reference["key"] not in data and not reference.get("optional"):
                raise CannotRun(
                    "CreateContainerConfigError",
                    f"{kind} {reference['name']!r} has no key {reference['key']!r}",
                    permanent=False,
                )
            return data.get(reference["key"])
    raise CannotRun("CreateContainerConfigError", f"env valueFrom {sorted(source)} is not supported", permanent=True)


class _Sources:
    """ConfigMaps and Secrets of one namespace, each read once."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._read: dict[tuple[bool, str], dict[str, str]] = {}

    async def read(self, field: str, reference: Object) -> dict[str, str]:
        """What `field` (such as secretKeyRef) refers to; empty where that is optional and not there."""
        secret, name = field.startswith("secret"), reference["name"]
        if (secret, name) in self._read:
            return self._read[secret, name]
        data: dict[str, str] = {}
        try:
            found = await self._cluster.get(SECRETS if secret else CONFIG_MAPS, name, self._namespace)
            data = dict(found.get("data") or {})
            if secret:
                data = {key: base64.b64decode(value).decode("utf-8") for key, value in data.items()}
        except NotFound as error:
            if not reference.get("optional"):
                missing = f"{'Secret' if secret else 'ConfigMap'} {self._namespace}/{name} does not exist"
                raise CannotRun("CreateContainerConfigError", missing, permanent=False) from error
        except (binascii.Error, UnicodeDecodeError) as error:
            text = f"secret {name!r} is not text: {error}"
            raise CannotRun("CreateContainerConfigError", text, permanent=False) from error
        except ClusterError as error:
            raise CannotRun("CreateContainerConfigError", str(error), permanent=False) from error
        self._read[secret, name] = data
        return data
