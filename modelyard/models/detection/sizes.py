"""Numbers of parameters and of bytes as text, in the form of model specs. Pure."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal

_UNITS = {"": 1, "M": 10**6, "B": 10**9, "T": 10**12}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([TBM]?)")
_HUNDREDTH = Decimal("0.01")


def size_text(parameters: int) -> str:
    """``8030261248`` as ``8.03B``: rounded to two decimals, without zeros at the end."""
    value, unit = Decimal(parameters), ""
    for following in ("K", "M", "B", "T"):
        if _rounded(value) < 1000:
            break
        value, unit = value / 1000, following
    return f"{_rounded(value):f}".rstrip("0").rstrip(".") + unit


def _rounded(value: Decimal) -> Decimal:
    return value.quantize(_HUNDREDTH, ROUND_HALF_UP)


def parse_size(text: str) -> Decimal:
    """Parse ``7B``, ``1.1T``, ``500M`` or a plain count. ``ValueError`` names the remedy: no ``K``, no lower case."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text[:40]!r} is no model size - write a number with T, B or M behind it, such as 7B or 1.1T"
        )
    return Decimal(found[1]) * _UNITS[found[2]]


def bytes_text(count: int) -> str:
    """``16060522496`` as ``14.96 GB``: binary units."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KB", "MB", "GB", "TB"):
        value /= 1024
        if value < 1024 or unit == "TB":
            break
    return f"{value:.2f} {unit}"
