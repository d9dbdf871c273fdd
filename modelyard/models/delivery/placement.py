"""Which nodes a model goes to: selector and affinity, by the rules of Kubernetes' scheduler. Pure.

A pod that uses the model is placed by these very rules, so model and pod never miss each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from modelyard.objects import REQUIRED, cut, few, items_of, mapping, required_terms

MOST_EXPRESSIONS, MOST_VALUES = 100, 1000
"""Of an affinity, in all: each is looked at for every node."""
_SHOWN_VALUES = 3


def excess(affinity: Any) -> str:
    """What there is too much of in a core/v1 NodeAffinity; ``""``: it may be evaluated for every node."""
    expressions = values = 0
    for term in required_terms(affinity):
        ones = [one for part in ("matchExpressions", "matchFields") for one in items_of(mapping(term).get(part))]
        expressions += max(1, len(ones))
        values += sum(len(items_of(mapping(one).get("values"))) for one in ones)
    for count, most, what in ((expressions, MOST_EXPRESSIONS, "expressions"), (values, MOST_VALUES, "values")):
        if count > most:
            return f"has {count} {what}: write {most} at most, or label the nodes and name that label in nodeSelector"
    return ""


class Exclusion(NamedTuple):
    """Why a node is not chosen: ``cause`` is the same for all such nodes, ``detail`` is of this one."""

    cause: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.cause} (it has {self.detail})" if self.detail else self.cause


def exclusion_by_labels(selector: Mapping[str, str] | None, field: str, labels: Mapping[str, str]) -> Exclusion | None:
    """Name the first label of a selector that a node lacks. ``field`` is where the selector is written."""
    for key, value in (selector or {}).items():
        if labels.get(key) != value:
            detail = f"{key}={labels[key]}" if key in labels else ""
            return Exclusion(f"without the label {_short(f'{key}={value}')} of {field}", detail)
    return None


def exclusion_by_affinity(affinity: Any, field: str, name: str, labels: Mapping[str, str]) -> Exclusion | None:
    """Name the expression of the nearest required term of a core/v1 NodeAffinity that does not hold for a node.

    Only its required part counts. Whatever cannot be read matches nothing, as an invalid term does in the scheduler.
    """
    if mapping(affinity).get(REQUIRED) is None:
        return None
    terms = required_terms(affinity)
    if not terms:
        return Exclusion(f"excluded by {field}, which has no nodeSelectorTerms")
    number, failing = min(
        ((number, _failing(term, name, labels)) for number, term in enumerate(terms, 1)), key=lambda one: len(one[1])
    )
    if not failing:
        return None
    first, values = failing[0]
    cause = f"excluded by term {number} of {field}"
    if values is None:
        return Exclusion(f"{cause}: it is empty, and an empty term matches no node")
    expression = mapping(first)
    key = expression.get("key")
    value = values.get(key) if isinstance(key, str) and values is labels else None
    return Exclusion(f"{cause}: {_expression_text(expression)}", f"{key}={value}" if value is not None else "")


def _expression_text(expression: Mapping[str, Any]) -> str:
    key, operator, values = (expression.get(part) for part in ("key", "operator", "values"))
    if operator not in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"):
        return f"{_short(key)} has the operator {_short(operator)}, which does not exist"
    count = len(items_of(values))
    texts = [_short(value) for value in items_of(values)[:_SHOWN_VALUES]]
    texts += [f"and {count - _SHOWN_VALUES} more"] if count > _SHOWN_VALUES else []
    return f"{_short(key)} {operator}" + (f" [{', '.join(texts)}]" if texts else "")


def _short(value: object) -> str:
    """A value in few characters; of a list or an object, which none of these may be, the type alone."""
    return f"({type(value).__name__})" if isinstance(value, Mapping | list) else cut(str(value), 80)


def describe_exclusions(exclusions: Iterable[Exclusion]) -> str:
    """Say why none of these nodes is chosen, the most frequent cause first."""
    excluded = list(exclusions)
    if not excluded:
        return "the cluster has no nodes"
    counts = Counter(item.cause for item in excluded)
    details: dict[str, Counter[str]] = {}
    for item in excluded:
        details.setdefault(item.cause, Counter())[item.detail] += bool(item.detail)
    causes = []
    for cause, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        had = [f"{times} with {_short(detail)}" for detail, times in details[cause].most_common(2) if times]
        causes.append(f"{count} {cause}" + (f" ({', '.join(had)})" if had else ""))
    none = f"none of {len(excluded)} nodes is chosen" if len(excluded) > 1 else "the node is not chosen"
    return f"{none}: {'; '.join(few(causes, 3))}"


def _failing(term: Any, name: str, labels: Mapping[str, str]) -> list[tuple[Any, Mapping[str, str] | None]]:
    """The expressions of a term that do not hold, each with the values that it is about (``None``: an empty term)."""
    expressions, fields = (items_of(mapping(term).get(part)) for part in ("matchExpressions", "matchFields"))
    if not expressions and not fields:
        return [({}, None)]
    by_name = {"metadata.name": name}
    false: list[tuple[Any, Mapping[str, str] | None]] = [
        (one, labels) for one in expressions if not _expression(one, labels)
    ]
    return false + [(one, by_name) for one in fields if not _expression(one, by_name, fields=True)]


def _expression(one: Any, values_of: Mapping[str, str], fields: bool = False) -> bool:
    expression = mapping(one)
    key, operator, values = expression.get("key"), expression.get("operator"), items_of(expression.get("values"))
    if not isinstance(key, str):
        return False
    found = values_of.get(key)
    if fields and (found is None or operator not in ("In", "NotIn") or len(values) != 1):
        return False
    match operator:
        case "In":
            return bool(values) and found in values
        case "NotIn":
            return bool(values) and found not in values
        case "Exists":
            return not values and found is not None
        case "DoesNotExist":
            return not values and found is None
        case "Gt" | "Lt":
            limit, number = _whole(values[0]) if len(values) == 1 else None, _whole(found)
            if limit is None or number is None:
                return False
            return number > limit if operator == "Gt" else number < limit
    return False


def _whole(text: Any) -> int | None:
    """A 64-bit whole number as Go reads one."""
    if not isinstance(text, str) or not 0 < len(text) <= 20 or not text.lstrip("+-").isdecimal() or not text.isascii():
        return None
    try:
        number = int(text)
    except ValueError:
        return None
    return number if -(2**63) <= number < 2**63 else None
