"""How the version of a format or a framework in a runtime compares to the one of a model. Pure.

Not the order of Python packages: ``4.43.0.dev0`` is greater than ``4.43.0`` here, as in the published selection.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_VERSION = re.compile(
    r"(v?)(0|[1-9]\d{0,8})(?:\.(0|[1-9]\d{0,8})(?:\.(0|[1-9]\d{0,8})((?:[-+.][^\s]{1,64})?))?)?", re.ASCII
)
EQUAL, GREATER = "Equal", "GreaterThan"
"""Operators; the third is ``GreaterThanOrEqual``."""


class ParsedVersion(NamedTuple):
    """Ordered by its first six fields, as they stand."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...]
    build: tuple[str, ...]
    dev: tuple[str, ...]
    precision: int
    prefixed: bool

    @property
    def official(self) -> bool:
        return not (self.prerelease or self.build or self.dev)

    @property
    def release(self) -> tuple[int, ...]:
        return self[:3]


@lru_cache(maxsize=4096)
def parse_version(text: str) -> ParsedVersion | None:
    """The version; ``None`` for what is none, such as ``V1``, ``1.02`` and ``latest``."""
    found = _VERSION.fullmatch(text) if len(text) <= 128 else None
    if found is None:
        return None
    prefix, major, minor, patch, rest = found.groups()
    rest, plus, build = (rest or "").partition("+")
    rest, minus, prerelease = rest.partition("-")
    lists = [
        tuple(part.split(".")) if sign else ()
        for sign, part in ((minus, prerelease), (plus, build), (rest[:1], rest[1:]))
    ]
    if not all(part for one in lists for part in one):
        return None
    precision = 1 + (minor is not None) + (patch is not None)
    return ParsedVersion(
        int(major), int(minor or 0), int(patch or 0), lists[0], lists[1], lists[2], precision, prefix == "v"
    )


def versions_match(runtime: str, model: str, operator: str = EQUAL, release_only: bool = False) -> bool:
    """Whether the runtime's version fits the model's: ``runtime <operator> model``, so newer ones cover older ones.

    Where either is no release, or the operator says so, only equal ones do. ``release_only`` looks at major, minor and
    patch alone where the operator orders: what authors' machines add (``.dev0``) then says nothing.
    """
    ours, theirs = parse_version(runtime), parse_version(model)
    if ours is None or theirs is None:
        return False
    if operator == EQUAL or not (release_only or (ours.official and theirs.official)):
        return ours[:6] == theirs[:6]
    if release_only:
        return ours.release > theirs.release if operator == GREATER else ours.release >= theirs.release
    if (ours.precision, ours.prefixed) != (theirs.precision, theirs.prefixed):
        return False
    return ours[:6] > theirs[:6] if operator == GREATER else ours[:6] >= theirs[:6]
