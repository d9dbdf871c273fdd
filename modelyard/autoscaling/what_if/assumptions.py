"""Assumptions of the command line, put into effect. Source: WVA SLO reference, "Suggested shape" (what-if)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.what_if.absence import without
from modelyard.autoscaling.what_if.errors import WhatIfError
from modelyard.autoscaling.what_if.inventory import with_capacity
from modelyard.autoscaling.what_if.load import scale_load
from modelyard.autoscaling.what_if.targets import LatencyTarget, with_targets
from modelyard.objects import parse_go_duration

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Assumptions:
    """A question. ``load`` holds (model or binding, factor), ``""`` for all; ``capacity`` GPUs by accelerator.

    ``ttft`` and ``itl`` hold (service class, target), ``""`` for all classes. ``without`` names variants.
    """

    load: tuple[tuple[str, float], ...] = ()
    ttft: tuple[tuple[str, LatencyTarget], ...] = ()
    itl: tuple[tuple[str, LatencyTarget], ...] = ()
    capacity: tuple[tuple[str, int], ...] = ()
    without: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.load or self.ttft or self.itl or self.capacity or self.without)


class Imagined(NamedTuple):
    """The fleet and settings as assumed, and in words what was assumed."""

    fleet: Fleet
    settings: FleetSettings
    said: tuple[str, ...]


def imagine(fleet: Fleet, settings: FleetSettings, assumptions: Assumptions) -> Imagined:
    """Put all assumptions into effect: absences, load, targets, accelerators. Raises ``WhatIfError``: unknown name."""
    said: list[str] = []
    for name in assumptions.without:
        fleet, told = without(fleet, settings, name)
        said += told
    for subject, factor in assumptions.load:
        fleet, told = scale_load(fleet, settings, subject, factor)
        said += told
    for kind, wanted in (("TTFT", assumptions.ttft), ("ITL", assumptions.itl)):
        for subject, target in wanted:
            fleet, told = with_targets(fleet, settings, kind, subject, target)
            said += told
    if assumptions.capacity:
        fleet, settings, told = with_capacity(fleet, settings, dict(assumptions.capacity))
        said += told
    return Imagined(fleet, settings, tuple(said))


def parse(
    load: Sequence[str] = (),
    slo_ttft: Sequence[str] = (),
    slo_itl: Sequence[str] = (),
    capacity: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Assumptions:
    """What stands on the command line. Raises ``WhatIfError`` naming the option and how to write it."""
    return Assumptions(
        load=_once("--load", [_load(text) for text in load]),
        ttft=_once("--slo-ttft", [_slo("--slo-ttft", text) for text in slo_ttft]),
        itl=_once("--slo-itl", [_slo("--slo-itl", text) for text in slo_itl]),
        capacity=_once("--capacity", [_capacity(text) for text in capacity]),
        without=tuple(dict.fromkeys(without)),
    )


def _once(option: str, pairs: Sequence[tuple[str, T]]) -> tuple[tuple[str, T], ...]:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise WhatIfError(f"{option}: {f'{name} is' if name else 'all are'} given twice; give it once")
        seen.add(name)
    if "" in seen and len(seen) > 1:
        raise WhatIfError(f"{option}: given for all and for {', '.join(sorted(seen - {''}))}; give one of the two")
    return tuple(pairs)


def _load(text: str) -> tuple[str, float]:
    subject, _, factor = text.rpartition("=")
    value = _factor(factor)
    if value is None:
        raise WhatIfError(
            f"--load {text}: {factor!r} is no factor; write for example 2x, 1.5 or 150%, or MODEL=2x for one model"
        )
    return subject.strip(), value


def _factor(text: str) -> float | None:
    """``2x``, ``2``, ``200%`` as 2.0; ``None`` for anything else."""
    text = text.strip()
    share = text.endswith("%")
    try:
        value = float(text.removesuffix("%") if share else text.removesuffix("x"))
    except ValueError:
        return None
    value = value / 100 if share else value
    return value if math.isfinite(value) and value >= 0 else None


def _slo(option: str, text: str) -> tuple[str, LatencyTarget]:
    subject, _, value = text.rpartition("=")
    written = value.strip()
    if written.endswith(("%", "x")):
        factor = _factor(written)
        if factor:
            return subject.strip(), LatencyTarget(factor=factor)
    else:
        try:
            seconds = parse_go_duration(written)
        except ValueError:
            seconds = 0.0
        if seconds > 0 and math.isfinite(seconds) and written != "0":
            return subject.strip(), LatencyTarget(milliseconds=round(seconds * 1000, 6))
    raise WhatIfError(
        f"{option} {text}: {value!r} is no target; write a duration with its unit (300ms), or a share of what is set "
        "(80%), or CLASS=300ms for one service class"
    )


def _capacity(text: str) -> tuple[str, int]:
    name, equals, count = (part.strip() for part in text.partition("="))
    if not (equals and name and count.isascii() and count.isdigit()):
        raise WhatIfError(f"--capacity {text}: write ACCELERATOR=GPUS with a whole number, for example H100=16")
    return name, int(count)
