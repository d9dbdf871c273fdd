"""AcceleratorClasses of ``ome.io``, which newer peers serve: which one a component runs on, and what fits there. Pure.

Source: the specification of the kind by its published fields; memory, bandwidth and versions are compared as numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from modelyard.models.detection import Facts, MemoryFit, fit
from modelyard.objects import mapping
from modelyard.resources import Quantity

_GIB = 2**30
_TIERS = {"low": 0.0, "medium": 1.0, "high": 2.0}


@dataclass(frozen=True, slots=True)
class AcceleratorClass:
    """One class of accelerators. Numbers are 0 and prices ``None`` where the object does not say."""

    name: str
    family: str = ""
    memory: int = 0
    """Bytes of one device."""
    bandwidth: float = 0.0
    compute: float = 0.0
    """TFLOPS at 16 bits, else at 32."""
    capability: tuple[int, ...] = ()
    features: frozenset[str] = frozenset()
    per_hour: float | None = None
    per_million_tokens: float | None = None
    tier: str = ""

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> AcceleratorClass:
        """The object as the API or a file has it; what cannot be read counts as not said."""
        spec = mapping(obj.get("spec"))
        able, cost = mapping(spec.get("capabilities")), mapping(spec.get("cost"))
        performance = mapping(able.get("performance"))
        features = able.get("features")
        spot, hour = _number(cost.get("spotPerHour")), _number(cost.get("perHour"))
        return cls(
            str(mapping(obj.get("metadata")).get("name", "")),
            str(spec.get("family") or ""),
            _memory(able.get("memoryGB")),
            _number(able.get("memoryBandwidthGBps")) or 0.0,
            _number(performance.get("fp16Tflops")) or _number(performance.get("fp32Tflops")) or 0.0,
            numeric(able.get("computeCapability")),
            frozenset(map(str, features[:100])) if isinstance(features, list) else frozenset(),
            hour if spot is None else spot,
            _number(cost.get("perMillionTokens")),
            str(cost.get("tier") or ""),
        )


class Constraints(NamedTuple):
    """What a class must be like. Memory in bytes of one device; 0 and empty mean anything."""

    smallest: int = 0
    largest: int = 0
    compute: float = 0.0
    capability: tuple[int, ...] = ()
    features: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    families: frozenset[str] = frozenset()

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Constraints | None:
        if not found:
            return None
        lists = [found.get(name) for name in ("requiredFeatures", "excludedClasses", "architectureFamilies")]
        sets = [frozenset(map(str, one[:100])) if isinstance(one, list) else frozenset() for one in lists]
        return cls(
            _memory(found.get("minMemory")),
            _memory(found.get("maxMemory")),
            _number(found.get("minComputePerformanceTFLOPS")) or 0.0,
            numeric(found.get("minArchitectureVersion")),
            *sets,
        )

    def breaches(self, one: AcceleratorClass) -> list[str]:
        found = []
        if self.smallest and one.memory < self.smallest:
            found.append(f"has {one.memory / _GIB:g} GiB, less than {self.smallest / _GIB:g}")
        if self.largest and one.memory > self.largest:
            found.append(f"has {one.memory / _GIB:g} GiB, more than {self.largest / _GIB:g}")
        if self.compute and one.compute < self.compute:
            found.append(f"has {one.compute:g} TFLOPS, less than {self.compute:g}")
        if self.capability and one.capability < self.capability:
            found.append(f"has version {_dotted(one.capability)}, below {_dotted(self.capability)}")
        if missing := self.features - one.features:
            found.append(f"lacks {', '.join(sorted(missing))}")
        if one.name in self.excluded:
            found.append("is excluded")
        if self.families and one.family not in self.families:
            found.append(f"is of family {one.family or 'unknown'}, not of {', '.join(sorted(self.families))}")
        return found


class Placed(NamedTuple):
    """The class a component would run on, or none with the reasons why, a line for each class."""

    chosen: AcceleratorClass | None
    fit: MemoryFit | None
    reasons: tuple[str, ...]


def place(
    facts: Facts,
    devices: int,
    classes: Sequence[AcceleratorClass],
    constraints: Constraints | None = None,
    policy: str = "",
    tokens: int = 1,
) -> Placed:
    """Choose a class for a model on ``devices`` of it: by policy, of those that keep the constraints and hold it.

    ``classes`` are those that the runtime can use, in its order. A class whose memory nobody states is not refused.
    """
    reasons, left = [], []
    for one in classes:
        wrong = constraints.breaches(one) if constraints else []
        held = fit(facts, one.memory, devices, tokens) if one.memory and devices else None
        if held is not None and held.fits is False:
            wrong.append(held.reason)
        if wrong:
            reasons.append(f"accelerator class {one.name} {', '.join(wrong)}")
        else:
            left.append((one, held))
    if not left:
        return Placed(None, None, tuple(reasons))
    needed = (facts.weight_bytes or 0) / max(devices, 1)
    order = _POLICIES.get(policy, _first)([one for one, _ in left], needed)
    best = min(range(len(left)), key=lambda index: (order[index], index))
    return Placed(*left[best], tuple(reasons))


def _first(classes: Sequence[AcceleratorClass], needed: float) -> list[float]:
    return [0.0] * len(classes)


def _best_fit(classes: Sequence[AcceleratorClass], needed: float) -> list[float]:
    top = max(one.compute for one in classes) or 1.0
    return [-(0.7 * (min(needed / one.memory, 1) if one.memory else 0) + 0.3 * one.compute / top) for one in classes]


def _cheapest(classes: Sequence[AcceleratorClass], needed: float) -> list[Any]:
    costs = ((one.per_hour, one.per_million_tokens, _TIERS.get(one.tier)) for one in classes)
    return [tuple(math.inf if cost is None else cost for cost in of_class) for of_class in costs]


def _most_capable(classes: Sequence[AcceleratorClass], needed: float) -> list[float]:
    tops = [max(values) or 1 for values in zip(*((c.memory, c.bandwidth, c.compute) for c in classes), strict=True)]
    return [
        -(0.5 * one.memory / tops[0] + 0.3 * one.bandwidth / tops[1] + 0.2 * one.compute / tops[2]) for one in classes
    ]


_POLICIES: Mapping[str, Callable[[Sequence[AcceleratorClass], float], list[Any]]] = {
    "BestFit": _best_fit,
    "Cheapest": _cheapest,
    "MostCapable": _most_capable,
    "FirstAvailable": _first,
}


def numeric(version: object) -> tuple[int, ...]:
    """``10.0`` as numbers, so that it is above ``9.0``; empty for what has none."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version[:64])) if isinstance(version, str) else ()


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version)) or "unknown"


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        found = float(Quantity(str(value)))
    except (ValueError, ArithmeticError):
        return None
    return found if math.isfinite(found) and found >= 0 else None


def _memory(value: object) -> int:
    """Bytes: a plain number is in gigabytes as devices are sold, which are binary ones; ``80Gi`` is said in full."""
    found = _number(value) or 0.0
    return int(found * _GIB if found < 10**6 else found)
