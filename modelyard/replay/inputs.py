"""Reading what stands on the command line of ``modelyard replay``: durations, times and lists of numbers."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from modelyard.objects.durations import parse_go_duration


class InputError(ValueError):
    """An option that cannot be used; the message names it and says what can be written."""


def duration(option: str, text: str) -> float:
    """Seconds of a duration such as ``2s``, ``60ms`` or ``1m30s``; a bare number is seconds. Raises ``InputError``."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parse_go_duration(text)
        except ValueError as error:
            raise InputError(f"{option} {text}: {error}; write for example 2s or 60ms") from error
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InputError(f"{option} {text}: must be a duration >= 0")
    return seconds


def moment(option: str, text: str, now: float) -> float:
    """Epoch seconds of a time: ISO 8601 (UTC unless it says otherwise), ``now``, or how long ago, as in ``6h``.

    Raises ``InputError``.
    """
    if text == "now":
        return now
    try:
        ago = parse_go_duration(text)
    except ValueError:
        pass
    else:
        return now - ago
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{option} {text}: write a time (2026-01-31T08:00Z), now, or how long ago (6h)") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def numbers(option: str, text: str) -> dict[str, float]:
    """``name=number`` pairs separated by commas. Raises ``InputError``."""
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        try:
            if not equals:
                raise ValueError
            found[name] = float(value)
        except ValueError:
            raise InputError(f"{option} {part}: write NAME=NUMBER, separated by commas") from None
    return found
