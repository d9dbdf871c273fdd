"""The wanted metric families out of what a pod's metrics endpoint shows. Pure.

Engines expose thousands of series and one or two are wanted: the wanted lines are picked out in one pass and only they
are parsed, by the parser of ``prometheus_client``. Its time grows with the square of a line's length and a page comes
from a tenant's pod: lines, their number and their length have limits. Understands the Prometheus text format, and of
OpenMetrics what differs there (exemplars, ``_total`` left out of a counter's family name, ``# EOF``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

SUFFIXES = ("_bucket", "_count", "_sum", "_total", "")
MAX_PAGE_LINES = 100_000
"""Lines of a page beyond which nothing of it is read: a vLLM page has some hundred for each rank."""
MAX_LINES = 5_000
MAX_TEXT = 2**19
"""Wanted lines of a page, and their bytes, beyond which the metric they belong to is not read."""
MAX_LINE = 4096
"""Bytes of a wanted line beyond which its metric is not read."""


class PageSample(NamedTuple):
    """One line of an exposition: full name (``..._bucket`` and all), labels, value and the family's declared type."""

    name: str
    labels: Mapping[str, str]
    value: float
    type: str


@dataclass(slots=True)
class Page:
    """What was asked for of one page: its samples with the declared type, and what is there but cannot be read.

    ``at`` is when the page was read, in epoch seconds.
    """

    samples: list[PageSample] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    at: float = 0.0


@lru_cache(maxsize=256)
def _metrics(wanted: frozenset[str]) -> dict[bytes, str]:
    """The wanted metric by the names its lines may have. What is asked for itself is no part of another."""
    ordered = sorted(wanted)
    return {f"{name}{suffix}".encode(): name for suffix in SUFFIXES for name in ordered}


def parse(body: bytes, wanted: Iterable[str], at: float = 0.0) -> Page:
    """The samples of the families that were asked for. A counter is found with and without its ``_total``.

    What cannot be parsed, or is beyond a limit, spoils its family only (``problems``); what was not asked for is not
    looked at, so a page of something else is simply a page without the metrics. Raises ``ValueError`` for a page with
    too many lines.
    """
    if body.count(b"\n") > MAX_PAGE_LINES:
        raise ValueError(f"the page has more than {MAX_PAGE_LINES} lines; is it a metrics endpoint?")
    names = frozenset(wanted)
    metrics = _metrics(names)
    page = Page(at=at)
    lines: dict[str, list[bytes]] = {}
    kinds: dict[str, str] = {}
    foreign: set[bytes] = set()
    count = size = 0
    for raw in BytesIO(body):
        name, brace, _ = raw.partition(b"{")
        if name not in metrics:
            if brace and b" " not in name and b"\t" not in name:
                continue
            parts = name.split(None, 3)
            if len(parts) == 4 and parts[0] == b"#" and parts[1] == b"TYPE":
                kind = parts[3].strip().decode("ascii", "replace")
                if metric := _declared(parts[2].decode("utf-8", "replace"), kind, names):
                    kinds[metric] = kind
                elif parts[2] in metrics:
                    # A gauge ``x_count`` beside a wanted ``x`` is another family, no part of it.
                    foreign.add(parts[2])
            name = parts[0] if parts else b""
        metric = metrics.get(name)
        if metric is None or metric in page.problems or name in foreign:
            continue
        count, size = count + 1, size + len(raw)
        if len(raw) > MAX_LINE:
            page.problems[metric] = f"has a line of {len(raw)} bytes; {MAX_LINE} are read at most"
        elif count > MAX_LINES or size > MAX_TEXT:
            page.problems[metric] = f"has too many lines: {MAX_LINES} with {MAX_TEXT} bytes are read of a page at most"
        else:
            lines.setdefault(metric, []).append(raw)
    for metric, wanted_lines in lines.items():
        if metric not in page.problems:
            try:
                page.samples += _samples(wanted_lines, kinds.get(metric, "untyped"))
            except ValueError as error:
                page.problems[metric] = str(error)
    return page


def _declared(name: str, kind: str, names: frozenset[str]) -> str | None:
    """Which wanted metric a ``# TYPE`` line is about: a counter is declared with or without its ``_total``."""
    either = (name, f"{name}_total", name.removesuffix("_total")) if kind == "counter" else (name,)
    return next((one for one in either if one in names), None)


def _samples(raw: Iterable[bytes], kind: str) -> list[PageSample]:
    """These lines, parsed. Without their ``# TYPE`` each is a family to the parser. Raises ``ValueError``."""
    lines = [line.decode("utf-8", "replace").strip() for line in raw]
    found: list[PageSample] = []
    try:
        for family in text_string_to_metric_families("\n".join(lines)):
            found += (PageSample(name, labels, float(value), kind) for name, labels, value, *_ in family.samples)
    except (ValueError, LookupError, ArithmeticError):
        raise ValueError(f"the line {lines[len(found)][:120]!r} is not in the exposition format") from None
    if len({(name, frozenset(labels.items())) for name, labels, *_ in found}) < len(found):
        raise ValueError("shows the same series more than once")
    return found
