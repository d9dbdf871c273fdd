"""Model sizes as users write them: corrected where only one size can be meant, else refused with a remedy. Pure.

An invalid size must not count as unknown: the size ranges of runtimes would not be checked, and a model of 8B would get
a runtime for 100B to 200B.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from typing import NamedTuple

from modelyard.models.detection import Facts, parse_size
from modelyard.objects import cut, printable

SMALLEST = 1000
"""Parameters: a plain number below it has lost its unit."""
_LONGEST = 40
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15}"
_GROUPED = r"[0-9]{1,3}(?:,[0-9]{3}){2,4}|[0-9]{1,3}(?:_[0-9]{3}){1,4}|[0-9]{1,3}(?: [0-9]{3}){2,4}"
_UNITS = {
    **dict.fromkeys(("k", "thousand"), 10**3),
    **dict.fromkeys(("m", "mn", "mio", "million", "millions"), 10**6),
    **dict.fromkeys(("b", "bn", "billion", "billions"), 10**9),
    **dict.fromkeys(("t", "tn", "trillion", "trillions"), 10**12),
    "": 1,
}
_SIZE = re.compile(
    rf"\+?(?P<number>{_GROUPED}|{_NUMBER})(?:e\+?(?P<power>[0-9]{{1,2}}))?[ -]?(?P<unit>{'|'.join(_UNITS)})"
    r"(?: ?(?:parameters?|params?))?",
    re.IGNORECASE,
)
_BYTES = re.compile(rf"(?:{_NUMBER}) ?[kmgt]i?b(?:ytes)?|(?:{_NUMBER}) ?[kmgt]i|(?:{_NUMBER}) ?g", re.IGNORECASE)
_EXPERTS = re.compile(rf"[0-9]+ ?[x×] ?(?:{_NUMBER}) ?[mbt]?", re.IGNORECASE)
_COMMA = re.compile(r"(?P<whole>[0-9]{1,3}),(?P<rest>[0-9]{1,3}) ?(?P<unit>[kmbt])", re.IGNORECASE)


class ModelSize(NamedTuple):
    """A size that was read. ``text`` is its canonical form; ``remark`` says what was corrected (empty: nothing)."""

    parameters: Decimal
    text: str
    remark: str


def read_size(text: str, *, least: int = 0) -> ModelSize:
    """Read a number of parameters; a plain one below ``least`` lacks its unit. ``ValueError`` names the remedy."""
    try:
        count = parse_size(text)
    except ValueError:
        count = _corrected(text)
        plain = _plain(count)
        return ModelSize(count, plain, f"{_shown(text)} is read as {plain}; write {plain}")
    if count < least:
        raise ValueError(
            f"{_shown(text)} would be a model of {int(count)} parameters - write the unit, such as {text.strip()}B"
            if count
            else f"{_shown(text)} is no model size - leave it out, and it is counted in the files"
        )
    return ModelSize(count, text, "")


def _corrected(text: str) -> Decimal:
    clean = " ".join(unicodedata.normalize("NFKC", text[: _LONGEST + 1]).split())
    size = _SIZE.fullmatch(clean) if len(text) <= _LONGEST else None
    if size is not None:
        number = re.sub("[,_ ]", "", size["number"]).rstrip(".")
        count = Decimal(number).scaleb(int(size["power"] or 0)) * _UNITS[size["unit"].lower()]
        if SMALLEST <= count < 10**17:
            return count
    raise ValueError(f"{_shown(text)} is no model size - {_remedy(clean)}")


def _plain(count: Decimal) -> str:
    """The shortest text of exactly this many parameters; specs have no thousands."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if count >= size:
            return f"{(count / size).normalize():f}{unit}"
    return str(int(count))


def _remedy(text: str) -> str:
    if _BYTES.fullmatch(text):
        return "it reads like bytes: write the number of parameters, such as 7B or 1.1T"
    if _EXPERTS.fullmatch(text):
        return "write all parameters of the experts together, such as 46.7B"
    if comma := _COMMA.fullmatch(text):
        return f"write {comma['whole']}.{comma['rest']}{comma['unit'].upper()} if the comma is a decimal point"
    return "write a number with T, B or M behind it, such as 7B or 1.1T"


def _shown(text: str) -> str:
    return repr(cut(printable(text[:200]), _LONGEST))


class SpecSize(NamedTuple):
    """The size by spec and files. ``parameters``: ``None`` if unknown; ``problem``: why the spec's own is invalid."""

    parameters: Decimal | None
    text: str
    remark: str = ""
    problem: str = ""


def size_of(written: str | None, facts: Facts) -> SpecSize:
    """Return the size to use: the one in the spec if it is valid, else the one counted in the files."""
    counted = Decimal(facts.parameters) if facts.parameters else None
    if not written or written == facts.size:
        return SpecSize(counted, facts.size or "")
    try:
        size = read_size(written, least=SMALLEST)
    except ValueError as error:
        problem = f"spec.modelParameterSize: {error}"
        if counted is None:
            return SpecSize(None, cut(printable(written), _LONGEST), problem=problem)
        return SpecSize(counted, facts.size or "", f"{problem}; used instead: {facts.size}, counted in the files")
    return SpecSize(size.parameters, size.text, f"spec.modelParameterSize: {size.remark}" if size.remark else "")
