"""Install CustomResourceDefinitions and wait until they are served.

Created or replaced rather than applied, and not strictly: API servers before CEL rules, and before the paths of these,
drop the schema parts they do not know on a plain write, but refuse them otherwise.

A definition of somebody else's that knows more than ours is not replaced: the server would drop what it stores in those
fields at the next write of each object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from modelyard.cluster.client import Cluster
from modelyard.cluster.errors import WRITE_ATTEMPTS, AlreadyExists, ClusterError, Conflict, NotFound
from modelyard.cluster.objects import Object
from modelyard.objects import CRDS, listed, warn_of_dropped_schemas

ESTABLISHED_TIMEOUT = 60.0
_ANY = ".*"
"""Stands for every key of a map."""
_UNTYPED = "x-kubernetes-preserve-unknown-fields"
_STRUCTURE = {"properties", "items", "additionalProperties", _UNTYPED}
_PROSE = {"description", "x-kubernetes-validations", "allOf", "anyOf", "oneOf", "not"}


class WouldLose(ClusterError):
    """The cluster's definitions hold what ours lack."""

    remedy = "'modelyard crds --diff' shows all differences; --force installs them all the same"


class Difference(NamedTuple):
    """How a definition in the cluster differs from ours: ``-`` only there, ``+`` only ours, ``~`` changed."""

    sign: str
    text: str

    def __str__(self) -> str:
        return f"{self.sign} {self.text}"


def differences(installed: Object, ours: Object) -> Iterator[Difference]:
    """How a definition in the cluster and ours differ: versions, conversion, subresources and fields. Pure.

    Fields below one that keeps everything are no difference. Rules and descriptions are not compared: no stored value
    depends on them, and old servers drop the former.
    """
    conversion = (installed["spec"].get("conversion") or {}).get("strategy", "None")
    if conversion != "None":
        yield Difference("-", f"conversion by {conversion}")
    theirs, mine = ({version["name"]: version for version in one["spec"]["versions"]} for one in (installed, ours))
    yield from _named(theirs, mine, "version ")
    for name in theirs.keys() & mine.keys():
        there, here = theirs[name], mine[name]
        yield from _named(there.get("subresources") or {}, here.get("subresources") or {}, f"{name} subresource ")
        yield from _fields(_schema(there), _schema(here), name)


def _named(theirs: Mapping[str, Any], mine: Mapping[str, Any], what: str) -> Iterator[Difference]:
    yield from (Difference("-", f"{what}{name}") for name in sorted(theirs.keys() - mine.keys()))
    yield from (Difference("+", f"{what}{name}") for name in sorted(mine.keys() - theirs.keys()))


def _schema(version: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (version.get("schema") or {}).get("openAPIV3Schema") or {_UNTYPED: True}
    return found


def _fields(theirs: Mapping[str, Any], mine: Mapping[str, Any], path: str) -> Iterator[Difference]:
    for keyword in sorted((theirs.keys() | mine.keys()) - _STRUCTURE - _PROSE):
        there, here = theirs.get(keyword), mine.get(keyword)
        if sorted(there or ()) != sorted(here or ()) if keyword == "required" else there != here:
            yield Difference("~", f"{path}: {keyword} {there} → {here}")
    if theirs.get(_UNTYPED) and not mine.get(_UNTYPED):
        yield Difference("-", f"{path}: whatever is not declared")
    yield from _children(theirs, mine, path)


def _children(theirs: Mapping[str, Any], mine: Mapping[str, Any], path: str) -> Iterator[Difference]:
    there, here = _inside(theirs), _inside(mine)
    for name, child in sorted(there.items()):
        ours = here.get(name) or (here.get(_ANY) if name != "[]" else None)
        if ours is not None:
            yield from _fields(child, ours, f"{path}{name}")
        elif not mine.get(_UNTYPED):
            yield Difference("-", f"{path}{name}")
    if not theirs.get(_UNTYPED):
        yield from (Difference("+", f"{path}{name}") for name in sorted(here.keys() - there.keys()))


def _inside(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    found = {f".{name}": child for name, child in (schema.get("properties") or {}).items()}
    if isinstance(schema.get("items"), Mapping):
        found["[]"] = schema["items"]
    if isinstance(schema.get("additionalProperties"), Mapping):
        found[_ANY] = schema["additionalProperties"]
    return found


async def crd_differences(cluster: Cluster, manifests: Iterable[Object]) -> dict[str, list[Difference]]:
    """By name, how the definitions in the cluster differ from these."""
    found = {}
    for manifest in manifests:
        name: str = manifest["metadata"]["name"]
        try:
            found[name] = list(differences(await cluster.get(CRDS, name), manifest))
        except NotFound:
            found[name] = [Difference("+", "the whole definition")]
    return found


async def install_crds(cluster: Cluster, manifests: Iterable[Object], *, force: bool = False) -> list[str]:
    """Make the cluster serve these definitions; their names.

    Raises ``WouldLose``, with nothing written, when one in the cluster has versions, a conversion, subresources or
    fields that these lack and ``force`` is not given; ``ClusterError`` when one is refused, or not established within a
    minute (with the server's reason).
    """
    manifests = list(manifests)
    if not force:
        found = await crd_differences(cluster, manifests)
        lost = {name: [one.text for one in some if one.sign == "-"] for name, some in found.items()}
        if told := [f"\n{name}: {listed(texts)}" for name, texts in lost.items() if texts]:
            why = "what the cluster stores in these would be lost, because the definitions to install lack them:"
            raise WouldLose(f"{why}{''.join(told)}\n")
    warn_of_dropped_schemas(manifests, [await _put(cluster, manifest) for manifest in manifests])
    names: list[str] = [manifest["metadata"]["name"] for manifest in manifests]
    for name in names:
        await _established(cluster, name)
    return names


async def _put(cluster: Cluster, manifest: Object) -> Object:
    name: str = manifest["metadata"]["name"]
    for attempt in range(WRITE_ATTEMPTS):
        try:
            current = await cluster.get(CRDS, name)
        except NotFound:
            try:
                return await cluster.create(CRDS, manifest, strict=False)
            except AlreadyExists:
                continue
        metadata = {
            **{key: current["metadata"][key] for key in ("labels", "annotations") if key in current["metadata"]},
            **manifest["metadata"],
            "resourceVersion": current["metadata"]["resourceVersion"],
        }
        try:
            return await cluster.replace(CRDS, {**manifest, "metadata": metadata})
        except Conflict:
            if attempt + 1 == WRITE_ATTEMPTS:
                raise
    raise ClusterError(f"CustomResourceDefinition {name} appears and vanishes; is somebody else installing it?")


async def _established(cluster: Cluster, name: str) -> None:
    refusal = "no condition yet"
    try:
        async with asyncio.timeout(ESTABLISHED_TIMEOUT):
            while True:
                found = await cluster.get(CRDS, name)
                for condition in (found.get("status") or {}).get("conditions") or ():
                    if condition["type"] == "Established" and condition["status"] == "True":
                        return
                    if condition["status"] == "False":
                        refusal = f"{condition['type']}: {condition.get('message') or condition.get('reason')}"
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise ClusterError(f"CustomResourceDefinition {name} is not established: {refusal}") from None
