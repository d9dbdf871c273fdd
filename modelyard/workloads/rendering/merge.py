"""A service's fields on top of its runtime's, by Kubernetes' rules of the strategic merge patch. Pure.

One table says how lists merge, one which fields take each other's place. Everything else is replaced (scalars, other
lists) or merged (objects).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from modelyard.workloads.rendering.values import Body, Refusal

MERGE_KEYS: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "schedulingGates": "name",
    "resourceClaims": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""Lists whose elements are merged, by the field that tells them apart. All other lists are replaced whole."""

_HANDLERS = frozenset(("exec", "httpGet", "tcpSocket", "grpc", "sleep"))
ONE_OF: Final[Mapping[str, frozenset[str]]] = {
    "env": frozenset(("value", "valueFrom")),
    **dict.fromkeys(("readinessProbe", "livenessProbe", "startupProbe", "postStart", "preStop"), _HANDLERS),
}
"""Fields of which an object has one: the service's takes the place of the runtime's."""
WHOLE: Final = frozenset(("volumes", "valueFrom"))
"""Objects of which only the fields that the service gives stay: the sources of a volume, and of a variable."""

_ZERO_IS_UNSET: Final = frozenset(
    (
        *("maxReplicas", "hostNetwork", "hostIPC", "hostPID", "stdin", "stdinOnce", "tty", "readOnly"),
        *("initialDelaySeconds", "periodSeconds", "successThreshold", "failureThreshold"),
    )
)
"""Fields that Kubernetes leaves out when they are 0 or false, so that they cannot take back what a runtime says."""


def merge(base: Mapping[str, Any], over: Mapping[str, Any], path: str = "", field: str = "") -> Body:
    """``over`` on top of ``base``; ``path`` and ``field`` say where they are. Raises ``Refusal``."""
    result = dict(base)
    if field in ONE_OF and (given := ONE_OF[field] & over.keys()):
        for name in ONE_OF[field] - given:
            result.pop(name, None)
    for name, value in over.items():
        here = f"{path}.{name}" if path else name
        if _unset(name, value):
            continue
        known = base.get(name)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            result[name] = merge(known, value, here, name)
        elif name in MERGE_KEYS and isinstance(value, list) and isinstance(known, list):
            result[name] = merge_lists(known, value, MERGE_KEYS[name], here, name)
        else:
            result[name] = value
    if field in WHOLE:
        result = {name: value for name, value in result.items() if name in over}
    return result


def merge_lists(
    base: Sequence[Mapping[str, Any]], over: Sequence[Mapping[str, Any]], key: str, path: str = "", field: str = ""
) -> list[Body]:
    """Elements with the same ``key`` merged, the others of both; the order keeps what both lists say of it."""
    ours, theirs = _keys(over, key, path), _keys(base, key, path)
    places = {name: place for place, name in reversed(list(enumerate(theirs)))}
    merged = [
        merge(base[places[name]], one, f"{path}[{name}]", field) if name in places else dict(one)
        for name, one in zip(ours, over, strict=True)
    ]
    known = set(ours)
    left = [(place, one) for place, (name, one) in enumerate(zip(theirs, base, strict=True)) if name not in known]
    result: list[Body] = []
    i = j = 0
    while i < len(left) and j < len(merged):
        if left[i][0] < places.get(ours[j], -1):
            result.append(dict(left[i][1]))
            i += 1
        else:
            result.append(merged[j])
            j += 1
    return [*result, *merged[j:], *(dict(one) for _, one in left[i:])]


def _keys(items: Iterable[Any], key: str, path: str) -> list[Any]:
    found = []
    for place, item in enumerate(items):
        name = item.get(key) if isinstance(item, Mapping) else None
        if not isinstance(name, str | int) or name == "":
            remedy = f"give every element its {key}, by which it is merged"
            raise Refusal("InvalidSpec", f"{path}[{place}]", f"has no {key}", remedy)
        found.append(name)
    return found


def _unset(name: str, value: Any) -> bool:
    if value is None or value == "" or value == []:
        return True
    return name in _ZERO_IS_UNSET and (value is False or value == 0)
