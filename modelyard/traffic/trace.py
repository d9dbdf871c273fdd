"""Recorded traffic: reading a trace file, choosing a stretch of it, scaling it.

The file format is that of the Azure LLM inference traces: CSV with the columns ``TIMESTAMP`` (UTC), ``ContextTokens``
and ``GeneratedTokens``.
"""

from __future__ import annotations

import csv
import math
import random
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class TraceError(ValueError):
    """The trace file is not usable; the message names file, line and column."""


class TraceRequest(NamedTuple):
    """One recorded request: ``at`` in seconds from the start of its trace, and its tokens (at least 1 each)."""

    at: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of time, and the seconds that the trace covers (at least up to the last request)."""

    requests: tuple[TraceRequest, ...]
    duration: float

    @property
    def rate(self) -> float:
        """Mean requests per second."""
        return len(self.requests) / self.duration if self.duration else 0.0

    def stretch(self, start_minute: float, minutes: float) -> Trace:
        """The part of ``minutes`` length beginning at ``start_minute``, with times from its own start.

        Raises ``ValueError`` when it does not lie within the trace.
        """
        start, end = start_minute * 60, (start_minute + minutes) * 60
        # A trace ends with its last request, so its last minute is rarely whole: allow up to that whole minute.
        limit = math.ceil(self.duration / 60)
        if not (start >= 0 and minutes > 0 and end <= limit * 60):
            raise ValueError(
                f"the stretch of {minutes:g} min from minute {start_minute:g} does not lie within the trace "
                f"of {limit} min: choose start_minute >= 0, minutes > 0 and start_minute + minutes <= {limit}"
            )
        first = bisect_left(self.requests, start, key=attrgetter("at"))
        last = bisect_left(self.requests, end, key=attrgetter("at"))
        return Trace(
            tuple(request._replace(at=request.at - start) for request in self.requests[first:last]), minutes * 60
        )

    def scaled(
        self,
        *,
        rate: float = 1.0,
        prompt: float = 1.0,
        output: float = 1.0,
        max_tokens: int | None = None,
        seed: int = 0,
    ) -> Trace:
        """More or less of the same: ``rate`` times the requests, of ``prompt``/``output`` times the length.

        The course over time stays. A rate below 1 drops requests at random; above 1 it repeats them, each copy moved by
        up to half a second so that copies do not arrive as one. Requests whose prompt and output exceed ``max_tokens``
        together get a shorter prompt, then a shorter output. Equal seeds give equal traces.
        """
        for name, value in (("rate", rate), ("prompt", prompt), ("output", output)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a finite number > 0, not {value!r}")
        if max_tokens is not None and max_tokens < 2:
            raise ValueError(f"max_tokens must be >= 2, not {max_tokens!r}")
        chance = random.Random(seed)
        whole, part = divmod(rate, 1)
        requests: list[TraceRequest] = []
        for request in self.requests:
            copies = int(whole) + (chance.random() < part)
            sized = _sized(request, prompt, output, max_tokens)
            for copy in range(copies):
                at = request.at if copy == 0 else request.at + chance.uniform(-0.5, 0.5)
                requests.append(sized._replace(at=min(max(at, 0.0), self.duration)))
        requests.sort(key=attrgetter("at"))
        return Trace(tuple(requests), self.duration)


def read_trace(path: Path) -> Trace:
    """Read a trace file. Times count from its first request; token counts of 0 become 1, which an engine needs.

    Raises ``TraceError`` for a missing column, a value that is no time or token count, or times out of order, and
    ``OSError`` when the file cannot be read.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = [name.strip() for name in next(reader, [])]
        missing = [name for name in COLUMNS if name not in header]
        if missing:
            raise TraceError(f"{path}: no column {', '.join(missing)}; found: {', '.join(header) or 'nothing'}")
        requests = tuple(_read_rows(path, reader, [header.index(name) for name in COLUMNS]))
    if not requests:
        raise TraceError(f"{path}: the trace has no requests")
    return Trace(requests, requests[-1].at)


def _read_rows(path: Path, rows: Iterable[list[str]], columns: list[int]) -> Iterable[TraceRequest]:
    time_column, prompt_column, output_column = columns
    origin: float | None = None
    previous = -math.inf
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        if len(row) <= max(columns):
            raise TraceError(f"{path}, line {line}: {len(row)} values, fewer than the header's columns")
        text = row[time_column].strip()
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise TraceError(f"{path}, line {line}: TIMESTAMP is not a time: {text!r}") from None
        at = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        if at < previous:
            raise TraceError(f"{path}, line {line}: TIMESTAMP {text} is before the line above; sort the file by time")
        previous = at
        origin = at if origin is None else origin
        yield TraceRequest(
            at - origin,
            _tokens(path, line, "ContextTokens", row[prompt_column]),
            _tokens(path, line, "GeneratedTokens", row[output_column]),
        )


def _tokens(path: Path, line: int, column: str, text: str) -> int:
    try:
        tokens = int(text)
    except ValueError:
        raise TraceError(f"{path}, line {line}: {column} is not a whole number: {text!r}") from None
    if tokens < 0:
        raise TraceError(f"{path}, line {line}: {column} is negative: {tokens}")
    return max(1, tokens)


def _sized(request: TraceRequest, prompt: float, output: float, max_tokens: int | None) -> TraceRequest:
    prompt_tokens = max(1, round(request.prompt_tokens * prompt))
    output_tokens = max(1, round(request.output_tokens * output))
    if max_tokens is not None:
        prompt_tokens = max(1, min(prompt_tokens, max_tokens - output_tokens))
        output_tokens = min(output_tokens, max_tokens - prompt_tokens)
    return TraceRequest(request.at, prompt_tokens, output_tokens)
