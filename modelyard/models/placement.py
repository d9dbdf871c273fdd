"""Which nodes a model goes to: selector and affinity, by the rules of Kubernetes' scheduler. Pure.

A pod that uses the model is placed by these very rules, so model and pod never miss each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modelyard.objects.documents import mapping

MOST_EXPRESSIONS, MOST_VALUES = 100, 1000
"""Of an affinity, in all: each is looked at for every node."""


def excess(affinity: Any) -> str:
    """What there is too much of in a core/v1 NodeAffinity; ``""``: it may be evaluated for every node."""
    expressions = values = 0
    required = mapping(mapping(affinity).get("requiredDuringSchedulingIgnoredDuringExecution"))
    for term in _list(required.get("nodeSelectorTerms")):
        ones = [one for part in ("matchExpressions", "matchFields") for one in _list(mapping(term).get(part))]
        expressions += max(1, len(ones))
        values += sum(len(_list(mapping(one).get("values"))) for one in ones)
    for count, most, what in ((expressions, MOST_EXPRESSIONS, "expressions"), (values, MOST_VALUES, "values")):
        if count > most:
            return f"has {count} {what}: write {most} at most, or label the nodes and name that label in nodeSelector"
    return ""


def selects(selector: Mapping[str, str] | None, affinity: Any, name: str, labels: Mapping[str, str]) -> bool:
    """Whether a node of this name and these labels is meant. ``affinity`` is a core/v1 NodeAffinity.

    Only its required part counts. Whatever cannot be read matches nothing, as an invalid term does in the scheduler.
    """
    if selector and any(labels.get(key) != value for key, value in selector.items()):
        return False
    if affinity is None:
        return True
    required = mapping(affinity).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    terms = _list(mapping(required).get("nodeSelectorTerms"))
    return any(_term(term, name, labels) for term in terms)


def _term(term: Any, name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = (_list(mapping(term).get(part)) for part in ("matchExpressions", "matchFields"))
    if not expressions and not fields:  # an empty term matches nothing
        return False
    return all(_expression(one, labels) for one in expressions) and all(
        _expression(one, {"metadata.name": name}, fields=True) for one in fields
    )


def _expression(one: Any, values_of: Mapping[str, str], fields: bool = False) -> bool:
    expression = mapping(one)
    key, operator, values = expression.get("key"), expression.get("operator"), _list(expression.get("values"))
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
            limit = _whole(values[0]) if len(values) == 1 else None
            number = _whole(found)
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


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
