"""Annotations of a VariantAutoscaling: bounds, actuation, algorithm. Invalid ones keep the fleet default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from modelyard.autoscaling.configuration.settings import Compatibility, FleetSettings, Mode
from modelyard.objects import LARGEST_INTEGER, Notice, shown

MIN_REPLICAS = "modelyard.dev/min-replicas"
MAX_REPLICAS = "modelyard.dev/max-replicas"
ACTUATION = "modelyard.dev/actuation"
COMPATIBILITY = "modelyard.dev/compatibility"


class CompatibilityRules(NamedTuple):
    """The way a compatibility mode reads a variant, its configuration and its status."""

    counts_surge: bool = False
    """Pods beyond ``spec.replicas``, as a rolling update creates them, are replicas to plan with."""
    heeds_scalers: bool = True
    """The bounds of the HPA or ScaledObject that acts on the gauge hold here too."""
    uses_load: bool = True
    """The offered load bounds and precedes scaling, and engines' speed is learnt from it."""
    class_by_reference: bool = True
    """An SLO class is looked up where the variant refers to, in its namespace too, and may stand for any model."""
    needs_price: bool = False
    """A variant in SLO form cannot be decided on while its accelerator has no price."""
    needs_objective: bool = False
    """A variant in SLO form that cannot be sized is not decided on at all."""
    status_batch: int | None = None
    """The batch limit that the status shows; then costs are those of one accelerator per replica."""


READINGS: Mapping[Compatibility, CompatibilityRules] = {
    Compatibility.REPAIRED: CompatibilityRules(),
    Compatibility.PUBLISHED: CompatibilityRules(True, False, False, False, True, True, 256),
}


class Handling(NamedTuple):
    """How one variant or binding is handled. ``lower`` and ``upper`` are replicas, ``None`` when not annotated."""

    mode: Mode
    compatibility: Compatibility
    lower: int | None = None
    upper: int | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def reading(self) -> CompatibilityRules:
        return READINGS[self.compatibility]


def fleet_handling(settings: FleetSettings) -> Handling:
    """How an object without annotations is handled."""
    return Handling(settings.actuation, settings.compatibility)


def handling_of(annotations: Mapping[str, str], default: Handling) -> Handling:
    """The fleet's handling with the object's annotations over it."""
    if not annotations or not any(key in annotations for key in (MIN_REPLICAS, MAX_REPLICAS, ACTUATION, COMPATIBILITY)):
        return default
    notices: list[Notice] = []

    def refuse(name: str, must: str) -> None:
        text = f"annotation {name}: {shown(annotations[name])} {must}; the fleet default is kept"
        notices.append(Notice("InvalidConfiguration", text, "Warning"))

    def count(name: str, least: int) -> int | None:
        text = annotations.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= LARGEST_INTEGER):
            refuse(name, f"must be a whole number from {least} to {LARGEST_INTEGER}")
            return None
        return int(text)

    lower, upper = count(MIN_REPLICAS, 0), count(MAX_REPLICAS, 1)
    if lower is not None and upper is not None and lower > upper:
        text = f"annotation {MIN_REPLICAS} = {lower} is above {MAX_REPLICAS} = {upper}; both are ignored"
        notices.append(Notice("InvalidConfiguration", text, "Warning"))
        lower = upper = None
    mode, compatibility = default.mode, default.compatibility
    if ACTUATION in annotations:
        try:
            mode = Mode(annotations[ACTUATION])
        except ValueError:
            refuse(ACTUATION, "must be 'direct' or 'signal'")
    if COMPATIBILITY in annotations:
        try:
            compatibility = Compatibility(annotations[COMPATIBILITY])
        except ValueError:
            refuse(COMPATIBILITY, "must be 'repaired' or 'published'")
    return Handling(mode, compatibility, lower, upper, tuple(notices))
