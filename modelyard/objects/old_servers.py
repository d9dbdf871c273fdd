"""Everything that exists only for API servers older than Kubernetes 1.25.

Delete this module and its uses when no supported server is older than 1.25, the local cluster's included: Debian's
Kubernetes, which ``modelyard local`` builds where no release can be fetched, is 1.20. Flags of old control planes are
in ``local/components``.

* Before 1.25 the server ignores ``fieldValidation``, and drops fields that it does not know without a word. So what was
  sent is compared with what was stored, and a loss is logged.
* Before 1.25 it drops rules in CEL too. That is no loss: the models of the definitions evaluate them.
* Before 1.23 and 1.21 it serves HorizontalPodAutoscalers and PodDisruptionBudgets only in a beta version.
* Before 1.22 a list keeps the order of its items, in whatever order it is applied.
* Before 1.21 it merges selectors entry by entry, which are replaced as a whole since.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, Final

from modelyard.objects.documents import listed

logger = logging.getLogger(__name__)

HPA_VERSIONS: Final = ("autoscaling/v2", "autoscaling/v2beta2")
PDB_VERSIONS: Final = ("policy/v1", "policy/v1beta1")

_WRITE_ONLY = {"stringData"}
"""Fields that the server takes in but never shows."""
_CEL_RULES = "x-kubernetes-validations"
_ITEM_KEYS = ("mountPath", "containerPort", "name")


def warn_of_dropped_fields(sent: Mapping[str, Any], stored: Mapping[str, Any], shown: str) -> None:
    """Log the fields of ``sent`` that the server did not store."""
    places: dict[str, list[str]] = {}
    for path in dropped_fields({key: sent[key] for key in sent if key not in ("metadata", "status")}, stored):
        places.setdefault(path.rpartition(".")[2], []).append(path)
    if places:
        # A schema can lose the same field in dozens of places.
        dropped = (where[0] if len(where) == 1 else f"{name} ({len(where)} times)" for name, where in places.items())
        logger.warning("%s: the server dropped fields that it does not know: %s", shown, ", ".join(dropped))


def warn_of_dropped_schemas(sent: Iterable[Mapping[str, Any]], stored: Iterable[Mapping[str, Any]]) -> None:
    """Log the parts of definitions that the server did not store, in one line: most of them lose the same keywords."""
    poorer, places = 0, Counter[str]()
    for ours, theirs in zip(sent, stored, strict=True):
        dropped = dropped_fields(ours["spec"], theirs["spec"])
        paths = [path for path in dropped if _CEL_RULES not in re.split(r"[.\[]", path)]
        poorer += bool(paths)
        places.update(path.rpartition(".")[2] for path in paths)
    if poorer:
        names = listed(f"{name} ({count} times)" for name, count in sorted(places.items()))
        logger.warning("%d definitions: the server dropped fields that it does not know: %s", poorer, names)


def dropped_fields(sent: Any, stored: Any, path: str = "") -> Iterator[str]:
    """Yield paths of values that ``stored`` lacks, but for zeros (the API omits them) and lists of another length."""
    if isinstance(sent, Mapping) and isinstance(stored, Mapping):
        for key, value in sent.items():
            place = f"{path}.{key}" if path else str(key)
            if key in stored:
                yield from dropped_fields(value, stored[key], place)
            elif not _is_empty(value) and key not in _WRITE_ONLY:
                yield place
    elif isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        for index, (left, right) in enumerate(zip(sent, in_order(stored, sent), strict=True)):
            yield from dropped_fields(left, right, f"{path}[{index}]")


def _is_empty(value: Any) -> bool:
    if isinstance(value, Mapping | list):
        return all(map(_is_empty, value.values() if isinstance(value, Mapping) else value))
    return not value


def in_order(items: list[Any], model: list[Any]) -> list[Any]:
    """The items in the order of ``model`` where both name the same things, each once; else as they are."""
    for key in _ITEM_KEYS:
        named, wanted = (
            {item[key]: item for item in some if isinstance(item, Mapping) and isinstance(item.get(key), str | int)}
            for some in (items, model)
        )
        if len(named) == len(items) and named.keys() == wanted.keys():
            return [named[name] for name in wanted]
    return items


def removal_of_added_entries(
    stored: Mapping[str, Any], wanted: Mapping[str, Any], whole_maps: Set[str]
) -> dict[str, Any]:
    """Return the merge patch that removes what others added to maps which are only right as a whole."""
    patch: dict[str, Any] = {}
    for name, value in wanted.items():
        if isinstance(value, Mapping) and isinstance(present := stored.get(name), Mapping):
            if name in whole_maps:
                removal: dict[str, Any] = dict.fromkeys(present.keys() - value.keys())
            else:
                removal = removal_of_added_entries(present, value, whole_maps)
            patch |= {name: removal} if removal else {}
    return patch
