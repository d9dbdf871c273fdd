"""A container's environment variables: literals, fields of the pod, ConfigMaps and Secrets."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from modelyard.cluster import CONFIG_MAPS, SECRETS, Cluster, ClusterError, NotFound, Object
from modelyard.local.agent.launch import CannotRun, expand

_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


@dataclass(frozen=True)
class PodPlace:
    """Where a pod runs: what `fieldRef` can ask for beside the object itself."""

    address: str
    host_address: str
    node: str


def field(pod: Object, path: str, place: PodPlace) -> str:
    """Value of a `fieldRef`.

    Raises:
        CannotRun: the downward API has no such field.
    """
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


async def resolve(cluster: Cluster, pod: Object, container: Object, place: PodPlace) -> dict[str, str]:
    """The variables of `env` and `envFrom`, later ones winning and able to use earlier ones as `$(NAME)`.

    Raises:
        CannotRun: a reference has no target (and is not optional), or cannot be read now.
    """
    namespace = pod["metadata"]["namespace"]
    sources = _Sources(cluster, namespace)
    env: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        prefix = source.get("prefix", "")
        for kind, read in (("configMapRef", sources.config_map), ("secretRef", sources.secret)):
            if kind in source:
                data = await read(source[kind]["name"], bool(source[kind].get("optional")))
                env |= {prefix + key: value for key, value in data.items()}
    for variable in container.get("env") or []:
        name = variable["name"]
        if "valueFrom" not in variable:
            env[name] = expand(str(variable.get("value") or ""), env)
            continue
        value = await _value_from(variable["valueFrom"], pod, container, place, sources)
        if value is not None:
            env[name] = value
    return env


async def _value_from(source: Object, pod: Object, container: Object, place: PodPlace, sources: _Sources) -> str | None:
    if "fieldRef" in source:
        return field(pod, str(source["fieldRef"]["fieldPath"]), place)
    if "resourceFieldRef" in source:
        kind, _, resource = str(source["resourceFieldRef"]["resource"]).partition(".")
        return str((container.get("resources") or {}).get(kind, {}).get(resource, "0"))
    readers: dict[str, Callable[[str, bool], Awaitable[dict[str, str]]]] = {
        "configMapKeyRef": sources.config_map,
        "secretKeyRef": sources.secret,
    }
    for kind, read in readers.items():
        if kind in source:
            reference = source[kind]
            optional = bool(reference.get("optional"))
            data = await read(reference["name"], optional)
            if reference["key"] not in data and not optional:
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
        self._read: dict[tuple[str, str], dict[str, str]] = {}

    async def config_map(self, name: str, optional: bool) -> dict[str, str]:
        return await self._get("ConfigMap", name, optional)

    async def secret(self, name: str, optional: bool) -> dict[str, str]:
        found = await self._get("Secret", name, optional)
        try:
            return {key: base64.b64decode(value).decode("utf-8") for key, value in found.items()}
        except (binascii.Error, UnicodeDecodeError) as error:
            raise CannotRun(
                "CreateContainerConfigError", f"secret {name!r} is not text: {error}", permanent=False
            ) from error

    async def _get(self, kind: str, name: str, optional: bool) -> dict[str, str]:
        key = (kind, name)
        if key not in self._read:
            try:
                found = await self._cluster.get(SECRETS if kind == "Secret" else CONFIG_MAPS, name, self._namespace)
            except NotFound as error:
                if not optional:
                    raise CannotRun(
                        "CreateContainerConfigError", f"{kind} {self._namespace}/{name} does not exist", permanent=False
                    ) from error
                found = {}
            except ClusterError as error:
                raise CannotRun("CreateContainerConfigError", str(error), permanent=False) from error
            self._read[key] = dict(found.get("data") or {})
        return self._read[key]
