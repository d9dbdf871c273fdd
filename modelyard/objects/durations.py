"""Go duration strings (``10m``, ``1h30m``, ``1.5s``) as they stand in ConfigMaps."""

from __future__ import annotations

import re

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")


def parse_go_duration(text: str) -> float:
    """Seconds of a Go duration string, by the rules of Go's ``time.ParseDuration``; ``ValueError`` when it is none."""
    rest = text[1:] if text[:1] in "+-" and text else text
    if rest == "0":
        return 0.0
    position, seconds = 0, 0.0
    while position < len(rest):
        part = _PART.match(rest, position)
        if part is None:
            break
        seconds += float(part[1]) * _UNITS[part[2]]
        position = part.end()
    if not rest or position < len(rest):
        raise ValueError(f"{text!r} is not a Go duration such as 10m or 1h30m")
    return -seconds if text.startswith("-") else seconds
