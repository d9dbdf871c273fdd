"""The pods of a component: the runner in its pod, variables, the model's files, probes, ports. Pure.

Everything here takes a pod's spec that ``checked`` has looked at, and gives a new one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from modelyard.objects import VARIABLE, container_gpus
from modelyard.resources import Quantity
from modelyard.resources.ome import MAIN, main_container
from modelyard.workloads.rendering.merge import merge
from modelyard.workloads.rendering.values import Body, Refusal, plain

PORT: Final = 8080
MODEL_PATH, PARALLELISM_SIZE = "MODEL_PATH", "PARALLELISM_SIZE"
_KINDS = ("initContainers", "containers", "ephemeralContainers")
_NAMED = ("env", "volumeMounts", "ports")
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_MOST = 1000
"""Elements of one list."""
_LONGEST = 65536
"""Characters that are filled in for placeholders: a few of them may name a long annotation thousands of times."""


@dataclass(frozen=True, slots=True)
class PodDraft:
    """A pod's ``spec`` and the name of its main container, which runs the engine."""

    spec: Body
    main: str

    @property
    def container(self) -> Body:
        return next(one for one in self.spec["containers"] if one["name"] == self.main)

    def with_container(self, change: Callable[[Body], Body]) -> PodDraft:
        containers = [change(one) if one["name"] == self.main else one for one in self.spec["containers"]]
        return PodDraft({**self.spec, "containers": containers}, self.main)


def checked(spec: Mapping[str, Any], path: str) -> Body:
    """Return a pod's spec in the shape relied on here, quantities as Kubernetes prints them. Raises ``Refusal``."""
    result: Body = plain(spec, path)
    for kind in _KINDS:
        if kind in result:
            result[kind] = [_container(one, f"{path}.{kind}[{i}]") for i, one in _elements(result, kind, path)]
    for i, one in _elements(result, "volumes", path):
        _text(one, "name", f"{path}.volumes[{i}]")
    for name in ("nodeSelector", "affinity"):
        _object(result, name, path)
    _secured(result, path)
    _elements(_object(result.get("affinity") or {}, "nodeAffinity", f"{path}.affinity"), _PREFERRED, path)
    return result


def checked_runner(runner: Mapping[str, Any], path: str) -> Body:
    """A runner, in the same way; its name may be empty."""
    found: Body = plain(runner, path)
    named = bool(found.get("name"))
    result = _container({"name": found.get("name") or MAIN, **{k: v for k, v in found.items() if k != "name"}}, path)
    return result if named else {key: value for key, value in result.items() if key != "name"}


def _container(found: Any, path: str) -> Body:
    _text(found, "name", path)
    for name in _NAMED:
        for i, one in _elements(found, name, path):
            if name == "env":
                _text(one, "name", f"{path}.env[{i}]")
    for name in ("lifecycle", "readinessProbe", "livenessProbe", "startupProbe", "resources"):
        _object(found, name, path)
    _secured(found, path)
    for name in ("args", "command"):
        if not all(isinstance(one, str) for one in found.get(name) or ()):
            raise _wrong(f"{path}.{name}", "is not a list of texts")
    if "resources" not in found:
        return dict(found)
    resources, where = found["resources"], f"{path}.resources"
    wanted = {}
    for name, amounts in resources.items():
        if name not in ("requests", "limits"):
            wanted[name] = amounts
            continue
        if not isinstance(amounts, Mapping):
            raise _wrong(f"{where}.{name}", "is not an object")
        wanted[name] = {what: _quantity(amount, f"{where}.{name}[{what}]") for what, amount in amounts.items()}
    return {**found, "resources": wanted}


def _quantity(amount: Any, path: str) -> str:
    try:
        return str(Quantity(str(amount)))
    except ValueError as error:
        raise _wrong(path, str(error)) from None


def _elements(found: Mapping[str, Any], name: str, path: str) -> Iterable[tuple[int, Body]]:
    items = () if found.get(name) is None else found[name]
    if not isinstance(items, list | tuple) or len(items) > _MOST or not all(isinstance(i, Mapping) for i in items):
        raise _wrong(f"{path}.{name}", f"is not a list of at most {_MOST} objects")
    return enumerate(items)


def _object(found: Mapping[str, Any], name: str, path: str) -> Mapping[str, Any]:
    value = found.get(name, {})
    if not isinstance(value, Mapping):
        raise _wrong(f"{path}.{name}", "is not an object")
    return value


def _secured(found: Mapping[str, Any], path: str) -> None:
    where = f"{path}.securityContext"
    added = _object(_object(found, "securityContext", path), "capabilities", where).get("add") or []
    if not isinstance(added, list) or not all(isinstance(one, str) for one in added):
        raise _wrong(f"{where}.capabilities.add", "is not a list of texts")


def _text(found: Any, name: str, path: str) -> None:
    if not isinstance(found, Mapping) or not isinstance(found.get(name), str) or not found[name]:
        raise _wrong(path, f"has no {name}")


def _wrong(path: str, problem: str) -> Refusal:
    return Refusal("InvalidSpec", path, problem, "write it as in a pod")


def assembled(spec: Mapping[str, Any], runner: Mapping[str, Any] | None, path: str) -> PodDraft:
    """The pod with its runner merged into the container of the same name; without one, that is appended.

    Arguments of the container come before those of the runner. Without a runner the main container is the one that
    ``main_container`` chooses. Raises ``Refusal`` where there is no container at all.
    """
    found = checked(spec, path)
    containers: list[Body] = list(found.get("containers") or ())
    if runner is None:
        if not containers:
            remedy = "give it a runner or containers, or a runtime that has them"
            raise Refusal("InvalidSpec", path, "has neither a runner nor containers", remedy)
        return PodDraft({**found, "containers": containers}, containers[main_container(containers)]["name"])
    given = checked_runner(runner, f"{path}.runner")
    name = given.get("name") or MAIN
    known = next((one for one in containers if one["name"] == name), None)
    merged = merge(known or {}, {**given, "name": name}, f"{path}.runner")
    if known is not None and known.get("args") and given.get("args"):
        merged["args"] = [*known["args"], *given["args"]]
    if known is None:
        containers.append(merged)
    else:
        containers = [merged if one is known else one for one in containers]
    return PodDraft({**found, "containers": containers}, name)


def with_env(container: Body, values: Mapping[str, str | Mapping[str, Any]], *, replace: bool = False) -> Body:
    """Put variables (values or sources) first, so that others may refer to them; own ones stay unless ``replace``."""
    there = list(container.get("env") or ())
    names = {one["name"] for one in there}
    new = {k: {"name": k, "value" if isinstance(v, str) else "valueFrom": v} for k, v in values.items()}
    kept = [new[one["name"]] if replace and one["name"] in new else one for one in there]
    return {**container, "env": [*(one for name, one in new.items() if name not in names), *kept]}


_PARALLELISM: Final = re.compile(r"(?<!\$)(?:\$\$)*\$\(PARALLELISM_SIZE\)")


def with_parallelism(container: Body, pods: int, path: str) -> Body:
    """Set ``PARALLELISM_SIZE`` to the accelerators of a group of so many pods like this one.

    Raises ``Refusal`` where the container uses the variable and nothing sets it: Kubernetes would pass the reference on
    as it stands, and the engine would not start.
    """
    devices = sum(container_gpus(container).values()) * pods
    if devices:
        return with_env(container, {PARALLELISM_SIZE: str(devices)}, replace=True)
    variables = container.get("env") or ()
    texts = (*(container.get("command") or ()), *(container.get("args") or ()), *(v.get("value") for v in variables))
    is_set = container.get("envFrom") or any(variable["name"] == PARALLELISM_SIZE for variable in variables)
    if is_set or not any(isinstance(text, str) and _PARALLELISM.search(text) for text in texts):
        return container
    resources = container.get("resources") or {}
    amounts = sorted({name for part in ("requests", "limits") for name in resources.get(part) or ()})
    raise Refusal(
        "InvalidSpec",
        f"{path}.containers[{container['name']}].resources",
        f"names no accelerator ({', '.join(amounts) or 'nothing'}), and the container uses $({PARALLELISM_SIZE})",
        f"ask for accelerators, set {PARALLELISM_SIZE} in env, or list the resource in the worker's {VARIABLE}",
    )


def isolated(spec: Mapping[str, Any]) -> Body:
    """Unset Services' variables unless asked for: engines read ``VLLM_PORT=tcp://...``, set by a Service ``vllm``."""
    return {"enableServiceLinks": False, **spec}


def probed(container: Body) -> Body:
    """The container with a readiness probe: where it has none, of its first port."""
    if container.get("readinessProbe"):
        return container
    ports = [one["containerPort"] for one in container.get("ports") or () if "containerPort" in one]
    probe = {"tcpSocket": {"port": ports[0] if ports else PORT}, "timeoutSeconds": 1, "periodSeconds": 10}
    return {**container, "readinessProbe": {**probe, "successThreshold": 1, "failureThreshold": 3}}


def service_ports(container: Mapping[str, Any]) -> list[Body]:
    """The ports of a Service for the container: all of its own, else 8080. With several each has a name."""
    found = [one for one in container.get("ports") or () if isinstance(one.get("containerPort"), int)]
    if not found:
        found = [{"name": container["name"], "containerPort": PORT}]
    result = []
    for one in found:
        number, name = one["containerPort"], one.get("name") or (f"port-{one['containerPort']}" if found[1:] else "")
        port = {"port": number, "targetPort": number, "protocol": one.get("protocol") or "TCP"}
        result.append({"name": name, **port} if name else port)
    return result


_PLACEHOLDER = re.compile(
    r"""\{\{-?\s*(?:\.(?P<plain>Name|Namespace)
    |\.(?P<map>Labels|Annotations)\.(?P<key>[A-Za-z0-9][-A-Za-z0-9_./]*)
    |index\s+\.(?P<imap>Labels|Annotations)\s+"(?P<ikey>[^"{}]+)")\s*-?\}\}""",
    re.VERBOSE,
)


def filled(container: Body, metadata: Mapping[str, Any], allowed: re.Pattern[str] | None = None) -> Body:
    """The container with the placeholders of a service's metadata filled in: in command, arguments and values of
    variables, unescaped. Any other braces, those of a chat template for example, stay as they are.

    Raises ``Refusal`` for a text that ``allowed`` does not match, and where all together are too long.
    """

    left = _LONGEST

    def value(found: re.Match[str]) -> str:
        nonlocal left
        if found["plain"]:
            text = str(metadata.get(found["plain"].lower()) or "")
        else:
            values = metadata.get((found["map"] or found["imap"]).lower()) or {}
            text = str(values.get(found["key"] or found["ikey"], ""))
        if allowed is not None and not allowed.match(text):
            where = f"metadata.{(found['plain'] or found['map'] or found['imap']).lower()}"
            where += f"[{found['key'] or found['ikey']}]" if not found["plain"] else ""
            problem = "is filled into pods to which the runtime gives rights, and is not one plain word"
            raise Refusal("NotPermitted", where, problem, "write letters, digits and ._:/@,+=- only")
        left -= len(text)
        if left < 0:
            problem = f"what is filled in is longer than {_LONGEST} characters"
            raise Refusal("InvalidSpec", f"containers[{container['name']}]", problem, "refer to shorter values")
        return text

    def fill(text: str) -> str:
        return _PLACEHOLDER.sub(value, text)

    result = dict(container)
    for name in ("command", "args"):
        if name in result:
            result[name] = [fill(one) for one in result[name]]
    if "env" in result:
        result["env"] = [
            {**one, "value": fill(one["value"])} if isinstance(one.get("value"), str) else one for one in result["env"]
        ]
    return result


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Files of a model (or weights) for a container: the source of a volume, and where they are mounted, read-only.

    ``label`` is what a node with them carries, empty where every node has them. Without a ``volume`` none is mounted.
    """

    volume: str
    source: Mapping[str, Any]
    path: str
    sub_path: str = ""
    label: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


REQUIRED, PREFERRED, NONE = "required", "preferred", "none"
"""Whether pods go only, or rather, or not especially, to nodes that have the model."""


def with_files(pod: PodDraft, files: ModelFiles, selection: str = REQUIRED) -> PodDraft:
    """The pod with the files: a volume, its mount in the main container, variables, and nodes that have them.

    A container that has something at that path already keeps it. Whoever else mounts the volume has it read-only, too.
    """
    mount = {"name": files.volume, "mountPath": files.path, "readOnly": True}
    if files.sub_path:
        mount["subPath"] = files.sub_path

    def mounted(container: Body) -> Body:
        mounts = list(container.get("volumeMounts") or ())
        if all(one.get("mountPath") != files.path for one in mounts):
            mounts.append(mount)
        return with_env({**container, "volumeMounts": mounts}, files.env)

    spec = dict(pod.spec)
    if files.volume:
        others = [one for one in pod.spec.get("volumes") or () if one["name"] != files.volume]
        spec["volumes"] = [*others, {"name": files.volume, **files.source}]
        for kind in _KINDS:
            if kind in spec:
                spec[kind] = [_read_only(one, files.volume) for one in spec[kind]]
    if files.label and selection == REQUIRED:
        spec["nodeSelector"] = {files.label: "Ready", **(spec.get("nodeSelector") or {})}
    elif files.label and selection == PREFERRED:
        spec["affinity"] = _preferring(spec.get("affinity") or {}, files.label)
    return PodDraft(spec, pod.main).with_container(mounted) if files.volume else PodDraft(spec, pod.main)


def _read_only(container: Body, volume: str) -> Body:
    mounts = container.get("volumeMounts")
    if not mounts:
        return container
    return {**container, "volumeMounts": [{**m, "readOnly": True} if m.get("name") == volume else m for m in mounts]}


def _preferring(affinity: Mapping[str, Any], label: str) -> Body:
    nodes = affinity.get("nodeAffinity") or {}
    term = {"matchExpressions": [{"key": label, "operator": "In", "values": ["Ready"]}]}
    return {
        **affinity,
        "nodeAffinity": {**nodes, _PREFERRED: [*nodes.get(_PREFERRED, ()), {"weight": 100, "preference": term}]},
    }


def template(pod: PodDraft, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Body:
    """The template of a workload for the pod."""
    metadata: Body = {"labels": dict(labels)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"metadata": metadata, "spec": pod.spec}


def in_group(pod: PodDraft, leader: str, size: int, index: int) -> PodDraft:
    """The pod as one of a group without LeaderWorkerSet: its containers know what they would know from that."""
    values = {"LWS_LEADER_ADDRESS": leader, "LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": str(index)}
    spec = dict(pod.spec)
    for kind in ("initContainers", "containers"):
        if kind in spec:
            spec[kind] = [with_env(one, values, replace=True) for one in spec[kind]]
    return PodDraft(spec, pod.main)
