"""A pod's volumes as folders of this machine, and where the paths of its containers really are.

Processes share the machine's file system, so a path under a mount is found by replacing it, wherever a command, an
argument or a variable of the spec names it. Each Node has a folder that stands for its disk (hostPath), each claim one
of its own. Nothing keeps a process from other paths, nor from writing where a mount is read-only; the agent itself
follows no name and no link out of them, and opens nothing that could hold it up.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path

from modelyard.cluster import (
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    SECRETS,
    AlreadyExists,
    Cluster,
    ClusterError,
    Invalid,
    NotFound,
    Object,
)

logger = logging.getLogger(__name__)

TERMINATION_LOG = "/dev/termination-log"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_MOST_MESSAGE = 4096
_MOST_LOG = 2048
_MOST_LINES = 80
_CLASSES = (None, "", "modelyard-local")


class CannotMount(Exception):
    """A volume is not there (yet); the message says why."""


def relocated(text: str, paths: Mapping[str, Path]) -> str:
    """The text with every path that is, or is below, one of `paths` replaced by where it is on this machine."""
    if not paths:
        return text
    longest = sorted(paths, key=len, reverse=True)
    # Not within another path, nor as the beginning of a longer name; after "//" it is the path of a URL.
    pattern = rf"(?<![\w.$}}~-])(?<![^/]/)({'|'.join(map(re.escape, longest))})(?![\w.-])"
    return re.sub(pattern, lambda found: str(paths[found[1]]), text)


def _within(folder: Path, name: str, what: str) -> Path:
    """A path below a folder. Raises `CannotMount`: it leads out, by itself or by a link on its way."""
    path = folder / name.lstrip("/")
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise CannotMount(f"{what} {name!r} leads out of its folder")
    return path


class PodVolumes:
    """The folders of one pod. `root` holds those of all Nodes (`nodes`), pods (`pods`) and claims (`claims`)."""

    def __init__(self, cluster: Cluster, root: Path, pod: Object, field: Callable[[str], str]) -> None:
        """`field` gives the value of a field of the downward API."""
        self._cluster = cluster
        self._pod = pod
        self._field = field
        self._node = root / "nodes" / str(pod["spec"]["nodeName"])
        self._claims = root / "claims" / str(pod["metadata"]["namespace"])
        self._own = root / "pods" / str(pod["metadata"]["uid"])

    def remove(self) -> None:
        """What lives as long as the pod: empty directories, and copies of ConfigMaps and Secrets."""
        shutil.rmtree(self._own, ignore_errors=True)

    async def mount(self, container: Object) -> dict[str, Path]:
        """Where each mount of a container is, and its termination log, anew. Raises `CannotMount`."""
        volumes = {volume["name"]: volume for volume in self._pod["spec"].get("volumes") or []}
        paths = {}
        for mount in container.get("volumeMounts") or []:
            at = mount["mountPath"].rstrip("/")
            if not at or at == _ACCOUNT:  # our pods have no API server at the address that a cluster's have
                continue
            folder = await self._folder(volumes[mount["name"]])
            inside = _within(folder, str(mount.get("subPath") or ""), f"volume {mount['name']}: subPath")
            if mount.get("subPath") and not inside.exists():
                inside.mkdir(parents=True)
            paths[at] = inside
        log = self._termination_log(container)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)  # the last run may have left a link or a pipe there
        log.touch()
        return {**paths, str(container.get("terminationMessagePath") or TERMINATION_LOG): log}

    def last_words(self, container: Object, exit_code: int, log: Path, since: int) -> str:
        """What the container left as its termination message; where it asks for that, the end of its output."""
        with suppress(OSError):
            if text := _beginning(self._termination_log(container)):
                return text.decode("utf-8", "replace")
        if exit_code == 0 or container.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            return ""
        with suppress(OSError), log.open("rb") as stream:
            stream.seek(max(since, log.stat().st_size - _MOST_LOG))
            lines = stream.read().decode("utf-8", "replace").splitlines(keepends=True)
            return "".join(lines[-_MOST_LINES:])
        return ""

    def _termination_log(self, container: Object) -> Path:
        return self._own / "containers" / str(container["name"]) / "termination-log"

    async def _folder(self, volume: Object) -> Path:
        name = str(volume["name"])
        own = self._own / "volumes" / name
        if "hostPath" in volume:
            return self._host_path(volume["hostPath"])
        if "persistentVolumeClaim" in volume:
            return _within(self._claims, str(volume["persistentVolumeClaim"]["claimName"]), "claim")
        if "emptyDir" in volume:
            own.mkdir(parents=True, exist_ok=True)
            return own
        files: dict[str, bytes] = {}
        for kind in ("configMap", "secret", "downwardAPI"):
            if kind in volume:
                files = await self._files(kind, volume[kind])
                break
        else:
            if "projected" not in volume:
                kinds = sorted(set(volume) - {"name"})
                raise CannotMount(f"volume {name}: the local cluster has no volumes of the kind {kinds}")
            for source in volume["projected"].get("sources") or []:
                for kind in source.keys() & {"configMap", "secret", "downwardAPI"}:
                    files |= await self._files(kind, source[kind])
        await asyncio.to_thread(_write, own, files)
        return own

    def _host_path(self, source: Object) -> Path:
        path = _within(self._node, str(source["path"]), "hostPath")
        kind = source.get("type") or "DirectoryOrCreate"
        if kind.endswith("OrCreate"):
            (path if kind.startswith("Directory") else path.parent).mkdir(parents=True, exist_ok=True)
            if kind == "FileOrCreate":
                path.touch()
        elif not path.exists():
            raise CannotMount(f"hostPath {source['path']} is not on node {self._pod['spec']['nodeName']}")
        return path

    async def _files(self, kind: str, source: Object) -> dict[str, bytes]:
        """The content of a volume made of API objects, by path in it."""
        if kind == "downwardAPI":
            items = source.get("items") or ()
            if odd := [item["path"] for item in items if "fieldRef" not in item]:
                raise CannotMount(f"downwardAPI {', '.join(odd)}: the local cluster knows fieldRef only")
            return {item["path"]: self._field(item["fieldRef"]["fieldPath"]).encode() for item in items}
        namespace, name = self._pod["metadata"]["namespace"], str(source.get("secretName") or source.get("name"))
        try:
            found = await self._cluster.get(SECRETS if kind == "secret" else CONFIG_MAPS, name, namespace)
            binary = found.get("data" if kind == "secret" else "binaryData") or {}
            data = {key: base64.b64decode(value) for key, value in binary.items()}
            if kind == "configMap":
                data |= {key: str(value).encode() for key, value in (found.get("data") or {}).items()}
        except NotFound:
            if source.get("optional"):
                return {}
            raise CannotMount(f"{kind} {namespace}/{name} does not exist") from None
        except (ClusterError, binascii.Error) as error:
            raise CannotMount(str(error)) from error
        if source.get("items") is None:
            return data
        missing = [item["key"] for item in source["items"] if item["key"] not in data]
        if missing and not source.get("optional"):
            raise CannotMount(f"{kind} {namespace}/{name} has no key {', '.join(missing)}")
        return {item["path"]: data[item["key"]] for item in source["items"] if item["key"] in data}


def _beginning(log: Path) -> bytes:
    """What a termination message may be, of a file; empty for a link, a pipe or whatever else a process put there."""
    descriptor = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read(_MOST_MESSAGE) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = _within(folder, name, "file")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(content)


async def keep_claims(cluster: Cluster, root: Path) -> None:
    """Give every claim of no class (or of the class modelyard-local) a volume and a folder, without end.

    Kubernetes binds the two; when a claim is deleted, its volume and its folder go as well.
    """
    while True:
        try:
            async with aclosing(cluster.watch(PERSISTENT_VOLUME_CLAIMS)) as events:
                async for event in events:
                    if event.kind in ("ADDED", "MODIFIED", "DELETED"):
                        try:
                            await _keep_claim(cluster, root, event.object, event.kind == "DELETED")
                        except (Invalid, OSError) as error:  # this one's own fault: the others have theirs
                            logger.warning("claim %s: %s", event.object["metadata"]["name"], error)
        except ClusterError as error:
            logger.warning("claims cannot be followed: %s", error)
        await asyncio.sleep(1.0)


async def _keep_claim(cluster: Cluster, root: Path, claim: Object, gone: bool) -> None:
    metadata, spec = claim["metadata"], claim["spec"]
    name, folder = f"local-{metadata['uid']}", root / "claims" / metadata["namespace"] / metadata["name"]
    if gone:
        with suppress(NotFound):
            await cluster.delete(PERSISTENT_VOLUMES, name)
            await asyncio.to_thread(shutil.rmtree, folder, True)
        return
    if spec.get("volumeName") or spec.get("storageClassName") not in _CLASSES:
        return
    folder.mkdir(parents=True, exist_ok=True)
    volume = {
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "storageClassName": spec.get("storageClassName") or "",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                **{key: metadata[key] for key in ("namespace", "name", "uid")},
            },
            "hostPath": {"path": str(folder)},
        },
    }
    with suppress(AlreadyExists):
        await cluster.create(PERSISTENT_VOLUMES, volume)
