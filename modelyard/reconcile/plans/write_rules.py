"""Rules for the children of an object, applied by the write path right before each write.

A lifecycle decides what to write from objects that tenants may have forged. So that no mistake there gives a tenant
more than it may have, a plan names the kinds of its children and a check of each manifest. A plan without rules
writes no children.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from modelyard.objects import ResourceType


@dataclass(frozen=True, slots=True)
class WriteRules:
    """API group and kind of the children that may be written, and a check that names what is wrong with a manifest."""

    kinds: frozenset[tuple[str, str]] = frozenset()
    check: Callable[[Mapping[str, Any]], str] | None = None

    @classmethod
    def of(cls, kinds: Iterable[ResourceType], check: Callable[[Mapping[str, Any]], str] | None = None) -> Self:
        """Return the rules of a lifecycle that creates these kinds."""
        return cls(frozenset((kind.group, kind.kind) for kind in kinds), check)

    def refusal(self, manifest: Mapping[str, Any]) -> str:
        """Return why a manifest must not be written; empty if it may be."""
        group, kind = str(manifest.get("apiVersion") or "").rpartition("/")[0], str(manifest.get("kind") or "")
        if (group, kind) not in self.kinds:
            return f"{kind}{f'.{group}' if group else ''} is no kind that is created for such an object"
        return self.check(manifest) if self.check is not None else ""


NO_CHILDREN: Final = WriteRules()
