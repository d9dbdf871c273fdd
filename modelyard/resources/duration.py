"""Durations as Kubernetes writes them (``metav1.Duration``, Go's ``time.Duration``): ``15s``, ``1m30s``, ``100ms``.

Nanosecond exact; printing gives Go's form (``60s`` prints as ``1m0s``).
"""

from __future__ import annotations

from functools import total_ordering
from typing import Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from modelyard.objects import LONGEST, PATTERN, UNITS, nanoseconds

_MAX: Final = 2**63 - 1


@total_ordering
class Duration:
    """A length of time in whole nanoseconds. Immutable; equal and ordered by length."""

    __slots__ = ("_nanoseconds",)
    _nanoseconds: int

    def __init__(self, text: str) -> None:
        """Parse Go's notation: a sign, then numbers each with a unit (h, m, s, ms, us, ns), or ``0``.

        Raises ``ValueError``: the text is no duration, or longer than Go can hold (about 292 years).
        """
        self._nanoseconds = _parse(text)

    @classmethod
    def of(cls, *, seconds: float = 0, nanoseconds: int = 0) -> Duration:
        """From numbers, rounded to nanoseconds. Raises ``ValueError``: not finite, or longer than Go can hold."""
        try:
            total = round(seconds * 10**9) + nanoseconds
        except (OverflowError, ValueError):
            raise ValueError(f"{seconds} seconds is not a finite duration") from None
        if abs(total) > _MAX:
            raise ValueError(f"{seconds} seconds is longer than a duration can hold (about 292 years)")
        duration = cls.__new__(cls)
        duration._nanoseconds = total
        return duration

    @property
    def nanoseconds(self) -> int:
        return self._nanoseconds

    @property
    def seconds(self) -> float:
        return self._nanoseconds / 10**9

    def __str__(self) -> str:
        return _print(self._nanoseconds)

    def __repr__(self) -> str:
        return f"Duration({str(self)!r})"

    def __hash__(self) -> int:
        return hash(self._nanoseconds)

    def __eq__(self, other: object) -> bool:
        return self._nanoseconds == other._nanoseconds if isinstance(other, Duration) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self._nanoseconds < other._nanoseconds if isinstance(other, Duration) else NotImplemented

    def __bool__(self) -> bool:
        return bool(self._nanoseconds)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _validate, serialization=core_schema.plain_serializer_function_ser_schema(str, when_used="always")
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "pattern": PATTERN, "maxLength": LONGEST}


def _validate(value: Any) -> Duration:
    if isinstance(value, Duration):
        return value
    if isinstance(value, str):
        return Duration(value)
    raise ValueError(f'a duration is a string such as "30s" or "1m30s", not {type(value).__name__}')


def _parse(text: str) -> int:
    found = nanoseconds(text)
    if found is None:
        raise ValueError(
            f"{text[:LONGEST]!r} is not a duration; write numbers with units, such as 100ms, 30s, 1m30s, 2h"
        )
    if abs(found) > _MAX:
        raise ValueError(f"{text!r} is longer than a duration can hold (about 292 years)")
    return found


def _print(nanoseconds: int) -> str:
    if nanoseconds == 0:
        return "0s"
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if rest < 10**9:
        unit = "ns" if rest < 10**3 else "µs" if rest < 10**6 else "ms"
        return f"{sign}{_fixed(rest, UNITS[unit])}{unit}"
    minutes, small = divmod(rest, UNITS["m"])
    text = f"{_fixed(small, 10**9)}s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{minutes}m{text}"
        if hours:
            text = f"{hours}h{text}"
    return sign + text


def _fixed(value: int, scale: int) -> str:
    whole, fraction = divmod(value, scale)
    if not fraction:
        return str(whole)
    width = len(str(scale)) - 1
    return f"{whole}.{str(fraction).rjust(width, '0').rstrip('0')}"
