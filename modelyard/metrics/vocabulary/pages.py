"""The wanted metric families out of what a pod's metrics endpoint shows. Pure.

Engines expose thousands of series and one or two are wanted: the wanted lines are picked out in one pass and only they
are parsed, by the parser of ``prometheus_client``. Its time grows with the square of a line's length and a page comes
from a tenant's pod: lines, their number and their length have limits. Understands the Prometheus text format, and of
OpenMetrics what differs there (exemplars, ``_total`` left out of a counter's family name, ``# EOF``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from modelyard.metrics.vocabulary.vocabulary import repeated_labels

SUFFIXES = ("_bucket", "_count", "_sum", "_total", "")
MAX_PAGE_LINES = 100_000
"""Lines of a page beyond which nothing of it is read: a vLLM page has some hundred for each rank."""
MAX_LINES = 5_000
MAX_TEXT = 2**19
"""Wanted lines of a page, and their bytes, beyond which the metric they belong to is not read."""
MAX_LINE = 2048
"""Bytes of a wanted line beyond which its metric is not read."""
MAX_KEPT = 512
"""Characters of a series that is remembered."""


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
def _metrics(wanted: frozenset[str]) -> tuple[dict[bytes, str], frozenset[bytes], int]:
    """The wanted metric by the names its lines may have, how lines about them begin, and how long a beginning that is.

    What is asked for itself is no part of another.
    """
    ordered = sorted(wanted)
    names = {f"{name}{suffix}".encode(): name for suffix in SUFFIXES for name in ordered}
    length = min(len(name.removesuffix("_total").encode()) for name in ordered)
    heads = {line[:length] for name in names for line in (name, b"# TYPE " + name)}
    return names, frozenset(heads), length


def parse(body: bytes, wanted: Iterable[str], at: float = 0.0) -> Page:
    """The samples of the families that were asked for. A counter is found with and without its ``_total``.

    What cannot be parsed, or is beyond a limit, spoils its family only (``problems``); what was not asked for is not
    looked at, so a page of something else is simply a page without the metrics. Raises ``ValueError`` for a page with
    too many lines.
    """
    shown = body.split(b"\n", MAX_PAGE_LINES + 1)
    if len(shown) > MAX_PAGE_LINES + 1:
        raise ValueError(f"the page has more than {MAX_PAGE_LINES} lines; is it a metrics endpoint?")
    page = Page(at=at)
    if not (names := frozenset(wanted)):
        return page
    metrics, heads, length = _metrics(names)
    lines: dict[str, list[bytes]] = {}
    kinds: dict[str, str] = {}
    foreign: set[bytes] = set()
    count = size = 0
    for raw in [line for line in shown if line[:length] in heads]:
        parts = raw.partition(b"{")[0].split(None, 3)
        name = parts[0] if parts else b""
        if name == b"#" and len(parts) == 4:
            kind = parts[3].strip().decode("ascii", "replace")
            if metric := _declared(parts[2].decode("utf-8", "replace"), kind, names):
                kinds[metric] = kind
            elif parts[2] in metrics:
                # A gauge ``x_count`` beside a wanted ``x`` is another family, no part of it.
                foreign.add(parts[2])
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
    for metric, found in lines.items():
        if metric not in page.problems:
            try:
                page.samples += distinct(metric, _samples(found, kinds.get(metric, "untyped")))
            except ValueError as error:
                page.problems[metric] = str(error)
    return page


def _declared(name: str, kind: str, names: frozenset[str]) -> str | None:
    """Which wanted metric a ``# TYPE`` line is about: a counter is declared with or without its ``_total``."""
    either = (name, f"{name}_total", name.removesuffix("_total")) if kind == "counter" else (name,)
    return next((one for one in either if one in names), None)


def _samples(lines: Iterable[bytes], kind: str) -> list[PageSample]:
    found: list[PageSample] = []
    seen: set[_Series] = set()
    for line in lines:
        text = line.decode("utf-8", "replace").strip()
        try:
            series, value = _parsed(text)
        except (ValueError, LookupError, ArithmeticError):
            raise ValueError(f"the line {text[:120]!r} is not in the exposition format") from None
        if series in seen:
            raise ValueError(f"shows the series {text[:120]!r} more than once")
        seen.add(series)
        found.append(PageSample(series.name, dict(series.labels), value, kind))
    return found


def distinct(metric: str, samples: list[PageSample]) -> list[PageSample]:
    """Return the samples of a metric, of those that differ only in the rank of a parallel engine the highest."""
    repeated = repeated_labels(metric)
    if not any(label in sample.labels for sample in samples for label in repeated):
        return samples
    highest: dict[_Series, PageSample] = {}
    for sample in samples:
        labels = ((label, value) for label, value in sample.labels.items() if label not in repeated)
        series = _Series(sample.name, frozenset(labels))
        before = highest.get(series)
        # NaN stays: it says that the value is not known.
        if before is None or sample.value > before.value or math.isnan(sample.value):
            highest[series] = sample
    return list(highest.values())


class _Series(NamedTuple):
    name: str
    labels: frozenset[tuple[str, str]]


def _parsed(line: str) -> tuple[_Series, float]:
    """A line's series and value. Pods of a model show the same series, tick after tick, and only the values differ."""
    series, end, value = line.rpartition("} ")
    if end and len(series) <= MAX_KEPT and "#" not in series and not {" ", "\t", "_"}.intersection(value):
        return _series(series + "} 0")[0], float(value)
    return _series.__wrapped__(line)


@lru_cache(maxsize=8192)
def _series(line: str) -> tuple[_Series, float]:
    # Without its ``# TYPE`` each line is a family to the parser.
    (family,) = text_string_to_metric_families(line)
    ((name, labels, value, *_),) = family.samples
    return _Series(name, frozenset(labels.items())), float(value)


class MetricsEndpoint(NamedTuple):
    """A pod to scrape. ``start`` changes when its containers start anew, and with it every counter."""

    uid: str
    start: str
    name: str
    ip: str
    namespace: str = ""


class Scrape(NamedTuple):
    """One page to read."""

    endpoint: MetricsEndpoint
    port: int
    uri: str
    scheme: str = "http"

    @property
    def url(self) -> str:
        """``http://host:port/path`` with IPv6 addresses in brackets."""
        host = f"[{self.endpoint.ip}]" if ":" in self.endpoint.ip else self.endpoint.ip
        return f"{self.scheme}://{host}:{self.port}{self.uri}"
