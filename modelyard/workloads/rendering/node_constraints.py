"""Node constraints of a pod from several sources, all of which must hold: a selector and an affinity each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modelyard.models.delivery import excess
from modelyard.objects import REQUIRED, mapping, shown
from modelyard.workloads.rendering.pods import PodDraft
from modelyard.workloads.rendering.values import Body, Refusal

PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_PARTS: Final = ("matchExpressions", "matchFields")


def with_nodes(
    pod: PodDraft, selector: Mapping[str, str] | None, affinity: Mapping[str, Any] | None, field: str
) -> PodDraft:
    """Return the pod for those of its nodes that a selector and a core/v1 NodeAffinity allow, too.

    ``field`` holds ``nodeSelector`` and ``nodeAffinity``. Raises ``Refusal`` for a selector that contradicts the pod's
    own, and for an affinity that is none, allows no node or has too many expressions.
    """
    spec = dict(pod.spec)
    if selector:
        own = spec.get("nodeSelector") or {}
        for label, value in selector.items():
            if own.get(label, value) != value:
                problem = f"asks for {label}={value}, and the pod already for {label}={own[label]}: no node has both"
                raise Refusal("InvalidSpec", f"{field}.nodeSelector", problem, "write the same value, or leave one out")
        spec["nodeSelector"] = {**own, **selector}
    if affinity:
        whole = spec.get("affinity") or {}
        spec["affinity"] = {**whole, "nodeAffinity": _both(whole.get("nodeAffinity") or {}, affinity, field)}
    return PodDraft(spec, pod.main)


def _both(own: Mapping[str, Any], other: Mapping[str, Any], field: str) -> Body:
    where, result = f"{field}.nodeAffinity", dict(own)
    if REQUIRED in other:
        terms = _terms(other, where)
        if REQUIRED in own:
            # Terms are alternatives, so all pairs are. An empty term matches no node, and neither does a pair with one.
            pairs = ((first, second) for first in _terms(own, where) for second in terms if any(first.values()))
            terms = [_joined(first, second) for first, second in pairs if any(second.values())] or [{}]
        result[REQUIRED] = {"nodeSelectorTerms": terms}
        if wrong := excess(result):
            raise Refusal("InvalidSpec", where, wrong, "write fewer")
    if PREFERRED in other:
        result[PREFERRED] = [*_list(own.get(PREFERRED), where), *_list(other[PREFERRED], where)]
    return result


def _terms(affinity: Mapping[str, Any], where: str) -> list[Body]:
    if wrong := excess(affinity):
        raise Refusal("InvalidSpec", where, wrong, "write fewer")
    terms = _list(mapping(affinity[REQUIRED]).get("nodeSelectorTerms"), where)
    if not terms:
        raise Refusal("InvalidSpec", where, "requires a node and names no nodeSelectorTerms", "write one or more")
    for term in terms:
        for part in _PARTS:
            _list(term.get(part), where)
    return terms


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> Body:
    parts = {part: [*(first.get(part) or ()), *(second.get(part) or ())] for part in _PARTS}
    return {part: expressions for part, expressions in parts.items() if expressions}


def _list(value: Any, where: str) -> list[Body]:
    items = [] if value is None else value
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise Refusal("InvalidSpec", where, f"{shown(value)} is no list of objects", "write it as in a pod")
    return items
