"""Go duration strings (``10m``, ``1h30m``, ``1.5s``), as they stand in ConfigMaps and in resources."""

from __future__ import annotations

import re
from typing import Final

from modelyard.objects.documents import shown

UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
"""The nanoseconds of each unit."""
PATTERN: Final = r"^[+-]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$"
"""What a duration looks like, for the schema of a CRD."""
LONGEST: Final = 256
"""Characters of a duration."""
YEAR: Final = 366 * 24 * UNITS["h"]
"""Nanoseconds."""
_WHOLE = re.compile(PATTERN, re.ASCII)
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


def nanoseconds(text: str) -> int | None:
    """The nanoseconds of a Go duration string, by the rules of Go's ``time.ParseDuration``; none when it is none."""
    if len(text) > LONGEST or _WHOLE.fullmatch(text) is None:
        return None
    total = 0
    for whole, fraction, unit in _PART.findall(text):
        total += int(whole or "0") * UNITS[unit] + int(fraction or "0") * UNITS[unit] // 10 ** len(fraction)
    return -total if text.startswith("-") else total


def parse_go_duration(text: str) -> float:
    """Seconds of a Go duration string; ``ValueError`` when it is none, or longer than a year."""
    found = nanoseconds(text)
    if found is None:
        raise ValueError(f"{shown(text)} is not a Go duration such as 10m or 1h30m")
    if abs(found) > YEAR:
        raise ValueError(f"{shown(text)} is longer than a year")
    return found / 10**9
