"""Kubernetes quantities (``resource.Quantity``): ``100m``, ``1.5Gi``, ``12e6``.

Values are exact decimals; printing gives the canonical form of Kubernetes: no fraction, no lost precision, the largest
fitting suffix.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, ROUND_UP, Context, Decimal, localcontext
from enum import Enum
from functools import total_ordering
from typing import Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

PATTERN: Final = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?$"

_PARTS = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?", re.ASCII)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_BINARY_SUFFIX: Final = ("", *_BINARY)
_NANO: Final = Decimal("1e-9")
_MAX_BINARY: Final = Decimal(2**63 - 1)
_LONGEST: Final = 128
_EXACT = Context(prec=4096, rounding=ROUND_HALF_EVEN)


class Format(Enum):
    """Which family of suffixes a quantity is printed with."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


@total_ordering
class Quantity:
    """An exact number with a preferred way of printing it. Immutable; equal and ordered by value alone.

    ``Quantity("1Gi") == 1073741824``; ``str(Quantity("0.5")) == "500m"``. Parsing rounds away from zero to nano and
    caps binary values at 2^63-1, as Kubernetes does.
    """

    __slots__ = ("_format", "_value")
    _value: Decimal
    _format: Format

    def __init__(self, value: str | int | Decimal | Quantity, format: Format | None = None) -> None:
        """Parse text, or wrap a number. Raises ``ValueError``: the text is no quantity."""
        parsed, own = _parse(value)
        self._value = parsed
        self._format = format or own

    def __str__(self) -> str:
        return _print(self._value, self._format)

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __hash__(self) -> int:
        return hash(self._value)

    def __eq__(self, other: object) -> bool:
        number = _number(other)
        return NotImplemented if number is None else self._value == number

    def __lt__(self, other: object) -> bool:
        number = _number(other)
        return NotImplemented if number is None else self._value < number

    def __float__(self) -> float:
        return float(self._value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _validate, serialization=core_schema.plain_serializer_function_ser_schema(str, when_used="always")
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": PATTERN,
        }


def _validate(value: Any) -> Quantity:
    if isinstance(value, Quantity):
        return value
    if isinstance(value, str | int) and not isinstance(value, bool):
        return Quantity(value)
    if isinstance(value, float):
        raise ValueError(f"{value} is a number with a fraction, which a quantity has as text; put quotes around it")
    raise ValueError(f"a quantity is a string or an integer, not {type(value).__name__}")


def _number(other: object) -> Decimal | None:
    if isinstance(other, Quantity):
        return other._value
    if isinstance(other, Decimal):
        return other
    if isinstance(other, int) and not isinstance(other, bool):
        return Decimal(other)
    return None


def _parse(value: str | int | Decimal | Quantity) -> tuple[Decimal, Format]:
    if isinstance(value, Quantity):
        return value._value, value._format
    if isinstance(value, int | Decimal):
        number = Decimal(value)
        if not number.is_finite():
            raise ValueError(f"{value} is not a finite number")
        return _to_nano(number), Format.DECIMAL_SI
    match = _PARTS.fullmatch(value) if len(value) <= _LONGEST else None
    if match is None:
        raise ValueError(
            f"{value[:_LONGEST]!r} is not a quantity; "
            "write a number with an optional suffix, such as 100m, 2, 1.5Gi, 3e6"
        )
    digits, suffix = match[1], match[2] or ""
    number = Decimal(digits)
    if suffix in _BINARY:
        number = _to_nano(_EXACT.multiply(number, Decimal(1024 ** _BINARY[suffix])))
        number = max(-_MAX_BINARY, min(_MAX_BINARY, number))
        return number, Format.DECIMAL_SI if 0 < abs(number) < 1 else Format.BINARY_SI
    if suffix in _DECIMAL:
        return _to_nano(_EXACT.scaleb(number, _DECIMAL[suffix])), Format.DECIMAL_SI
    return _to_nano(_EXACT.scaleb(number, int(suffix[1:]))), Format.DECIMAL_EXPONENT


def _to_nano(number: Decimal) -> Decimal:
    with localcontext(_EXACT):
        exponent = number.as_tuple().exponent
        if isinstance(exponent, int) and exponent < -9:
            # Away from zero: whoever asks for some of a resource gets some.
            number = number.quantize(_NANO, rounding=ROUND_UP)
        return abs(number) if number == 0 else number


def _print(number: Decimal, format: Format) -> str:
    if number == 0:
        return "0"
    with localcontext(_EXACT):
        if format is Format.BINARY_SI and abs(number) >= 1024 and number == number.to_integral_value():
            whole, power = int(number), 0
            while whole % 1024 == 0 and power < len(_BINARY):
                whole, power = whole // 1024, power + 1
            return f"{whole}{_BINARY_SUFFIX[power]}"
        sign, digits, exponent = number.normalize().as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{number} is not a finite number")
    aligned = exponent - exponent % 3
    if format is not Format.DECIMAL_EXPONENT:
        aligned = min(aligned, 18)
    text = "-" * sign + "".join(map(str, digits)) + "0" * (exponent - aligned)
    if format is Format.DECIMAL_EXPONENT:
        return f"{text}e{aligned}" if aligned else text
    return text + _DECIMAL_SUFFIX[aligned]
