"""Kubernetes objects from files, each with the place it came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from modelyard.autoscaling.configuration import PlanInputError, documents
from modelyard.objects import Key, TargetRef, describe_owner_problem
from modelyard.resources import AutoscalingPolicy, AutoscalingPolicyBinding

DUMP = "kubectl get va,autoscalingpolicies,autoscalingpolicybindings,deploy,sts,rs,pods,hpa,cm,nodes,ns -A -o yaml"
REMEDY = f"give readable manifests with -f, for example what '{DUMP}' prints"
SUFFIXES = {".yaml", ".yml", ".json"}
NAMED = {
    *("VariantAutoscaling", "Deployment", "StatefulSet", "LeaderWorkerSet", "ReplicaSet", "Pod", "Node", "Namespace"),
    *("ConfigMap", "HorizontalPodAutoscaler", "ScaledObject", AutoscalingPolicy.kind, AutoscalingPolicyBinding.kind),
}
"""Kinds a decision uses: these need a name. What has none otherwise (a Kustomization) is passed over."""


class Manifest(NamedTuple):
    """One object. ``where`` names file and document for messages; namespace and uid are filled in."""

    where: str
    body: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.body["kind"])

    @property
    def group(self) -> str:
        return TargetRef(str(self.body.get("apiVersion") or ""), self.kind, "").group

    @property
    def key(self) -> Key:
        return Key(self.body["metadata"]["namespace"], self.body["metadata"]["name"])

    def __str__(self) -> str:
        return f"{self.where}: {self.kind} {self.key}"


def read_manifests(paths: Iterable[Path], beside: Iterable[Path] = ()) -> list[Manifest]:
    """Every object in these files (folders: their YAML and JSON files); lists unpacked, repetitions dropped.

    Files ``beside`` may be no manifests. Raises ``PlanInputError`` for invalid objects, and two objects of one name.
    """
    found: dict[tuple[str, str, Key], Manifest] = {}
    for path in _files(paths, {path.resolve() for path in beside}):
        for described in _objects(path):
            identity = (described.group, described.kind, described.key)
            other = found.setdefault(identity, described)
            if other.body != described.body:
                raise PlanInputError(f"{described} stands differently in {other.where}; keep one of the two")
    return list(found.values())


def _files(paths: Iterable[Path], beside: set[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = sorted(
            p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file() and p.resolve() not in beside
        )
        if not inside:
            raise PlanInputError(f"{path}: no {', '.join(sorted(SUFFIXES))} file in this folder; {REMEDY}")
        yield from inside


def _objects(path: Path) -> Iterator[Manifest]:
    for number, document in enumerate(documents(path, REMEDY), 1):
        where = f"{path} document {number}"
        if document is None:
            continue
        if isinstance(document, dict) and str(document.get("kind")).endswith("List") and "items" in document:
            for index, item in enumerate(document["items"] or ()):
                yield from manifest(f"{where} items[{index}]", item)
        else:
            yield from manifest(where, document)


def manifest(where: str, body: Any) -> Iterator[Manifest]:
    """Yield the object of a document, none for a nameless one that no decision uses. Raises ``PlanInputError``."""
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        raise PlanInputError(f"{where}: not a Kubernetes object (no kind); {REMEDY}")
    metadata = body.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        if body["kind"] not in NAMED:
            return
        raise PlanInputError(f"{where}: {body['kind']} without metadata.name; add it, as text")
    for field in ("labels", "annotations"):
        _check_texts(f"{where}: {body['kind']} {metadata['name']}: metadata.{field}", metadata.get(field))
    if problem := describe_owner_problem(body):
        raise PlanInputError(f"{where}: {body['kind']} {metadata['name']}: {problem}")
    namespace = str(metadata.get("namespace") or "default")
    uid = filled_uid(body["kind"], Key(namespace, metadata["name"]))
    filled = {"resourceVersion": "", "uid": uid, **metadata}
    yield Manifest(where, {**body, "metadata": {**filled, "namespace": namespace}})


def filled_uid(kind: str, key: Key) -> str:
    """Return the uid of an object whose manifest has none."""
    return f"{kind}/{key}"


def _check_texts(where: str, values: Any) -> None:
    if values is None:
        return
    if not isinstance(values, Mapping):
        raise PlanInputError(f"{where}: is not a mapping; write names and values")
    for name, value in values.items():
        if not isinstance(value, str):
            raise PlanInputError(f"{where}[{name}]: {value!r} is not text; put quotes around it")
