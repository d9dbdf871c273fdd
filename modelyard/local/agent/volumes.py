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
import tempfile
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path

from modelyard.cluster import AlreadyExists, Cluster, ClusterError, Invalid, NotFound, Object
from modelyard.local.agent.service_accounts import ACCOUNT_PATH, credential_files, request_token
from modelyard.objects import (
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    SECRETS,
    TERMINATION_MESSAGE_BYTES,
)

logger = logging.getLogger(__name__)

TERMINATION_LOG = "/dev/termination-log"
_MOST_LOG = 2048
_MOST_LINES = 80
_OBJECTS = frozenset(("configMap", "secret", "downwardAPI"))
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

    def __init__(
        self, cluster: Cluster, root: Path, kubeconfig: Path, pod: Object, field: Callable[[str], str]
    ) -> None:
        """`field` gives the value of a field of the downward API; `kubeconfig` names the cluster for the pod's own."""
        self._cluster = cluster
        self._kubeconfig = kubeconfig
        self._pod = pod
        self._field = field
        self._node = root / "nodes" / str(pod["spec"]["nodeName"])
        self._claims = root / "claims" / str(pod["metadata"]["namespace"])
        self._own = root / "pods" / str(pod["metadata"]["uid"])

    def remove(self) -> None:
        """What lives as long as the pod: empty directories, and copies of ConfigMaps and Secrets."""
        shutil.rmtree(self._own, ignore_errors=True)

    def mounts(self, kind: str, name: str) -> bool:
        """Whether a volume is made of this object; `kind` as a volume names it."""
        return any(
            source.get("secretName") == name or source.get("name") == name
            for volume in self._pod["spec"].get("volumes") or []
            for place in (volume, *(volume.get("projected") or {}).get("sources", ()))
            if (source := place.get(kind))
        )

    async def mount(self, container: Object, *, anew: bool = True) -> dict[str, Path]:
        """Where each mount of a container is, and its termination log.

        For a new run (`anew`) the log is empty; what is made of API objects is as they are now in any case. Raises
        `CannotMount`.
        """
        volumes = {volume["name"]: volume for volume in self._pod["spec"].get("volumes") or []}
        folders: dict[str, tuple[Path, Object]] = {}
        for mount in container.get("volumeMounts") or []:
            at = mount["mountPath"].rstrip("/")
            if at and at != ACCOUNT_PATH:
                folders[at] = (self._folder(volumes[mount["name"]], container), mount)
        log = self._termination_log(container)
        paths = {at: folder / str(mount.get("subPath") or "").lstrip("/") for at, (folder, mount) in folders.items()}
        paths[str(container.get("terminationMessagePath") or TERMINATION_LOG)] = log
        if any(mount["mountPath"].rstrip("/") == ACCOUNT_PATH for mount in container.get("volumeMounts") or []):
            paths[ACCOUNT_PATH] = await self._account(container, anew)
        for folder, mount in folders.values():
            files = await self._content(volumes[mount["name"]], paths)
            if files is not None:
                await asyncio.to_thread(_write, folder, files)
        for folder, mount in folders.values():
            inside = _within(folder, str(mount.get("subPath") or ""), f"volume {mount['name']}: subPath")
            if mount.get("subPath") and not inside.exists():
                inside.mkdir(parents=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        if anew:
            log.unlink(missing_ok=True)  # the last run may have left a link or a pipe there
            log.touch()
        return paths

    def last_words(self, container: Object, exit_code: int, log: Path, since: int) -> str:
        """What the container left as its termination message; where it asks for that, the end of its output."""
        with suppress(OSError):
            if text := _beginning(self._termination_log(container)):
                return text.decode("utf-8", "replace")
        if exit_code == 0 or container.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            return ""
        with suppress(OSError), log.open("rb") as stream:
            stream.seek(max(since, log.stat().st_size - _MOST_LOG))
            return "".join(stream.read().decode("utf-8", "replace").splitlines(keepends=True)[-_MOST_LINES:])
        return ""

    async def _account(self, container: Object, renew: bool) -> Path:
        """The folder of the ServiceAccount's credentials, with a token of its own for each run of a container."""
        folder = self._own / "containers" / str(container["name"]) / "account"
        if renew:
            try:
                token = await request_token(self._cluster, self._pod)
            except ClusterError as error:
                raise CannotMount(str(error)) from error
            files = credential_files(self._kubeconfig, self._pod["metadata"]["namespace"], token)
            await asyncio.to_thread(_write, folder, files)
        return folder

    def _termination_log(self, container: Object) -> Path:
        return self._own / "containers" / str(container["name"]) / "termination-log"

    def _folder(self, volume: Object, container: Object) -> Path:
        """Where a volume is. What is made of API objects is each container's own: paths in it are as it sees them."""
        name = str(volume["name"])
        if "hostPath" in volume:
            return self._host_path(volume["hostPath"])
        if "persistentVolumeClaim" in volume:
            return _within(self._claims, str(volume["persistentVolumeClaim"]["claimName"]), "claim")
        if "emptyDir" in volume:
            own = self._own / "volumes" / name
            own.mkdir(parents=True, exist_ok=True)
            return own
        if not volume.keys() & {*_OBJECTS, "projected"}:
            kinds = sorted(set(volume) - {"name"})
            raise CannotMount(f"volume {name}: the local cluster has no volumes of the kind {kinds}")
        return self._own / "containers" / str(container["name"]) / "volumes" / name

    async def _content(self, volume: Object, paths: Mapping[str, Path]) -> dict[str, bytes] | None:
        """The files of a volume made of API objects, by path in it; None of another volume."""
        sources = (volume.get("projected") or {}).get("sources") or [] if "projected" in volume else [volume]
        files: dict[str, bytes] = {}
        for source in sources:
            for kind in source.keys() & _OBJECTS:
                found = await self._files(kind, source[kind])
                if kind == "configMap":
                    found = {name: _relocated_text(content, paths) for name, content in found.items()}
                files |= found
        return files if volume.keys() & {*_OBJECTS, "projected"} else None

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
        return stream.read(TERMINATION_MESSAGE_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""


def _relocated_text(content: bytes, paths: Mapping[str, Path]) -> bytes:
    try:
        return relocated(content.decode("utf-8"), paths).encode()
    except UnicodeDecodeError:
        return content


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """The folder's files, each replaced in one step: who reads meanwhile sees the old content or the new."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = _within(folder, name, "file")
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        Path(temporary).replace(path)
    for path in sorted(folder.rglob("*"), reverse=True):
        if str(path.relative_to(folder)) not in files and not (path.is_dir() and not path.is_symlink()):
            path.unlink(missing_ok=True)


async def keep_claims(cluster: Cluster, root: Path) -> None:
    """Without end, give claims of no class (or of modelyard-local) a volume and a folder, removed with them."""
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
