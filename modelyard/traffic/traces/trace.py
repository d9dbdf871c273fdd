"""Traffic as columns: reading any CSV, choosing a stretch, scaling rate and sizes, stretching over a day.

Columns instead of one object per request, because a week of traffic is millions of requests. ``from_rates`` is the
seam for other sources, such as a Prometheus history.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from modelyard.traffic.copies import Copies

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COLUMNS: Final = {"time": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens"}
"""What a trace has to have, and the names of the Azure LLM inference traces."""
OPTIONAL: Final = ("model",)
DAY: Final = 86400.0
PEAK_HOUR: Final = 15.0
SWING: Final = 0.6
"""The day curve swings by this share around its mean: from 0.4 at three in the morning to 1.6 in the afternoon."""


APART: Final = {Copies.INDEPENDENT: 30.0, Copies.CLUMPED: 0.5}
"""Seconds by which a copy is moved at most."""
SIZES_WITHIN: Final = 60.0


class TraceInputError(ValueError):
    """The trace cannot be used. The message names file, line, column and remedy."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of time.

    ``at``: seconds from the start of the trace. ``prompt`` and ``output``: tokens, at least 1 each. ``model``: index
    into ``models`` for each request; empty ``models`` means that the trace does not say. ``duration`` is the seconds
    covered, at least up to the last request.
    """

    at: Floats
    prompt: Ints
    output: Ints
    duration: float
    model: Ints | None = None
    models: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.at)

    @property
    def rate(self) -> float:
        """Mean requests per second."""
        return len(self) / self.duration if self.duration else 0.0

    def _take(self, index: NDArray[np.intp] | NDArray[np.bool_], at: Floats, duration: float) -> Trace:
        order = np.argsort(at, kind="stable")
        return Trace(
            at[order],
            self.prompt[index][order],
            self.output[index][order],
            duration,
            None if self.model is None else self.model[index][order],
            self.models,
        )

    def stretch(self, start: float = 0.0, minutes: float | None = None) -> Trace:
        """The part of ``minutes`` length that begins at minute ``start``, with times from its own start.

        Raises ``TraceInputError`` when it does not lie within the trace (whose last minute counts as whole).
        """
        whole = max(1, math.ceil(self.duration / 60))
        length = whole - start if minutes is None else minutes
        if not (start >= 0 and length > 0 and start + length <= whole):
            raise TraceInputError(
                f"{length:g} minutes from minute {start:g} do not lie within the trace of {whole} minutes: choose "
                f"--start >= 0, --minutes > 0 and --start + --minutes <= {whole}"
            )
        begin = start * 60
        inside = (self.at >= begin) & (self.at < begin + length * 60)
        return self._take(inside, self.at[inside] - begin, length * 60)

    def since(self, begin: float) -> Trace:
        """What comes after ``begin`` seconds, with times from there."""
        inside = self.at >= begin
        return self._take(inside, self.at[inside] - begin, max(0.0, self.duration - begin))

    def scaled(
        self,
        *,
        rate: float = 1.0,
        prompt: float = 1.0,
        output: float = 1.0,
        seed: int = 0,
        copies: Copies = Copies.INDEPENDENT,
    ) -> Trace:
        """``rate`` times the requests, with ``prompt`` and ``output`` times the tokens; the course over time stays.

        Below 1 requests are dropped at random, above 1 ``copies`` are added. Equal seeds give equal traces. Raises
        ``TraceInputError`` for a factor that is not > 0.
        """
        for name, value in (("rate", rate), ("prompt", prompt), ("output", output)):
            if not (math.isfinite(value) and value > 0):
                raise TraceInputError(f"{name}: the factor must be a number > 0, not {value!r}")
        sized = Trace(
            self.at, _sized(self.prompt, prompt), _sized(self.output, output), self.duration, self.model, self.models
        )
        if rate == 1.0:
            return sized
        return sized._repeated(np.full(len(self), rate), np.random.default_rng(seed), copies)

    def over_days(self, hours: float, *, seed: int = 0, copies: Copies = Copies.INDEPENDENT) -> Trace:
        """The trace again and again for ``hours``, thinned and thickened by a smooth curve over the day.

        Hour 0 is midnight; the curve has mean 1 over a day, its top (1.6) at 15:00 and its bottom (0.4) at 03:00.
        Deterministic for equal seeds. Raises ``TraceInputError`` for hours that are not > 0.
        """
        if not (math.isfinite(hours) and hours > 0):
            raise TraceInputError(f"--diurnal: the hours must be a number > 0, not {hours!r}")
        if not self.duration:
            raise TraceInputError("--diurnal: the trace covers no time, so that it cannot be repeated")
        duration = hours * 3600
        rounds = math.ceil(duration / self.duration)
        at = (self.at[None, :] + np.arange(rounds)[:, None] * self.duration).ravel()
        index = np.tile(np.arange(len(self)), rounds)[at < duration]
        tiled = self._take(index, at[at < duration], duration)
        curve = 1 + SWING * np.cos(2 * np.pi * (tiled.at / DAY - PEAK_HOUR / 24))
        return tiled._repeated(curve, np.random.default_rng(seed), copies)

    def _repeated(self, factors: Floats, chance: np.random.Generator, copies: Copies) -> Trace:
        whole = np.floor(factors)
        counts = (whole + (chance.random(len(self)) < factors - whole)).astype(np.intp)
        index = np.repeat(np.arange(len(self)), counts)
        first = np.ones(len(index), dtype=bool)
        first[1:] = index[1:] != index[:-1]
        apart = APART[copies]
        moved = self.at[index] + np.where(first, 0.0, chance.uniform(-apart, apart, len(index)))
        # What would lie outside is reflected: a limit would heap it up there.
        moved = np.clip(np.where(moved > self.duration, 2 * self.duration - moved, np.abs(moved)), 0.0, self.duration)
        if copies is Copies.INDEPENDENT:
            begin = np.searchsorted(self.at, self.at[index] - SIZES_WITHIN)
            end = np.searchsorted(self.at, self.at[index] + SIZES_WITHIN, side="right")
            others = begin + (chance.random(len(index)) * (end - begin)).astype(np.intp)
            index = np.where(first, index, others)
        return self._take(index, moved, self.duration)


def _sized(tokens: Ints, factor: float) -> Ints:
    return tokens if factor == 1.0 else np.maximum(1, np.rint(tokens * factor)).astype(np.int64)


def from_rates(
    edges: Sequence[float],
    rates: Sequence[float],
    prompt: float | Sequence[float],
    output: float | Sequence[float],
    *,
    seed: int = 0,
) -> Trace:
    """A trace with Poisson arrivals at ``rates[i]`` per second between ``edges[i]`` and ``edges[i+1]`` (seconds).

    ``prompt`` and ``output`` are mean tokens, of all or of each interval; sizes are geometric. For histories that only
    know rates and means. Raises ``TraceInputError`` naming the interval whose rate is unknown (NaN) or negative.
    """
    if len(edges) != len(rates) + 1 or any(b <= a for a, b in itertools.pairwise(edges)):
        raise TraceInputError(f"{len(rates)} rates need {len(rates) + 1} rising interval edges, not {len(edges)}")
    means = {name: _means(name, value, len(rates)) for name, value in (("prompt", prompt), ("output", output))}
    chance = np.random.default_rng(seed)
    parts: list[Floats] = []
    for (begin, end), rate in zip(itertools.pairwise(edges), rates, strict=True):
        if not (math.isfinite(rate) and rate >= 0):
            raise TraceInputError(f"the rate from {begin:g} s to {end:g} s is {rate!r}: give a number >= 0")
        parts.append(np.sort(chance.uniform(begin, end, chance.poisson(rate * (end - begin)))))
    at = np.concatenate(parts) - edges[0] if parts else np.empty(0)
    place = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    sizes = [chance.geometric(1 / mean[place]) for mean in means.values()]
    return Trace(at, sizes[0].astype(np.int64), sizes[1].astype(np.int64), float(edges[-1] - edges[0]))


def _means(name: str, value: float | Sequence[float], count: int) -> Floats:
    means = np.broadcast_to(np.asarray(value, dtype=np.float64), (count,)) if np.ndim(value) == 0 else np.array(value)
    if len(means) != count:
        raise TraceInputError(f"{count} intervals need {count} mean {name} tokens, not {len(means)}")
    wrong = ~(np.isfinite(means) & (means >= 1))
    if wrong.any():
        raise TraceInputError(f"mean {name} tokens must be a number >= 1, not {float(means[wrong][0])!r}")
    return means


def parse_columns(text: str) -> dict[str, str]:
    """``time=...,prompt=...,output=...,model=...`` as a mapping; what is left out keeps its default name.

    Raises ``TraceInputError``.
    """
    columns = dict(COLUMNS)
    for part in filter(None, (part.strip() for part in text.split(","))):
        role, equals, name = (piece.strip() for piece in part.partition("="))
        if not equals or not name or role not in (*COLUMNS, *OPTIONAL):
            raise TraceInputError(
                f"--columns {part}: write time=NAME,prompt=NAME,output=NAME and, where there is one, model=NAME"
            )
        columns[role] = name
    return columns


def read_trace(path: Path, columns: dict[str, str] | None = None) -> Trace:
    """Read a CSV file with a header.

    ``columns`` maps ``time``, ``prompt``, ``output`` and optionally ``model`` to column names. Times are ISO 8601 (UTC
    unless they say otherwise) or numbers of seconds; rows need not be in order; times count from the earliest. Token
    counts of 0 become 1, which an engine needs. Raises ``TraceInputError`` naming file, line and column.
    """
    import pandas as pd

    columns = dict(COLUMNS) if columns is None else columns
    try:
        header = pd.read_csv(path, nrows=0, dtype=str, encoding="utf-8-sig", skipinitialspace=True)
        names = {str(name).strip(): str(name) for name in header.columns}
        missing = [name for name in columns.values() if name not in names]
        if missing:
            raise TraceInputError(
                f"{path}: no column {', '.join(missing)}; found: {', '.join(names) or 'nothing'}; name them with "
                "--columns time=NAME,prompt=NAME,output=NAME"
            )
        wanted = [names[name] for name in columns.values()]
        table = pd.read_csv(
            path, usecols=wanted, dtype=str, keep_default_na=False, skip_blank_lines=False, encoding="utf-8-sig",
            skipinitialspace=True,
        )  # fmt: skip
    except TraceInputError:
        raise
    except OSError as error:
        raise TraceInputError(f"{path}: {error.strerror or error}; give a readable CSV file with --trace") from error
    except pd.errors.EmptyDataError as error:
        raise TraceInputError(f"{path}: the file is empty; give a CSV file with a header") from error
    except (pd.errors.ParserError, UnicodeDecodeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise TraceInputError(f"{path}: not a CSV file in UTF-8: {text}; correct it") from error
    data = {role: table[names[name]].astype(str).str.strip() for role, name in columns.items()}
    # An empty line is not a request without values.
    blank = data["time"].eq("") & data["prompt"].eq("") & data["output"].eq("")
    if blank.any():
        data = {role: column[~blank] for role, column in data.items()}
    if not len(data["time"]):
        raise TraceInputError(f"{path}: the trace has no requests")
    at = _times(path, columns["time"], data["time"])
    tokens = {role: _tokens(path, columns[role], data[role]) for role in ("prompt", "output")}
    at -= at.min()
    model: Ints | None = None
    models: tuple[str, ...] = ()
    if "model" in data:
        codes, uniques = pd.factorize(data["model"], sort=True)
        model, models = codes.astype(np.int64), tuple(str(name) for name in uniques)
    whole = Trace(at, tokens["prompt"], tokens["output"], float(at.max()), model, models)
    return whole._take(np.arange(len(at)), at, whole.duration)


def _times(path: Path, name: str, column: pd.Series[str]) -> Floats:
    import pandas as pd

    seconds = pd.to_numeric(column, errors="coerce")
    if seconds.isna().all():
        moments = pd.to_datetime(column, errors="coerce", utc=True, format="ISO8601")
        _refuse(path, name, column, moments.isna().to_numpy(), "is not a time: write ISO 8601, or seconds, in all rows")
        return np.array((moments - pd.Timestamp(0, tz="UTC")).dt.total_seconds(), dtype=np.float64)
    numbers = np.array(seconds, dtype=np.float64)
    _refuse(path, name, column, ~np.isfinite(numbers), "is not a number of seconds, as in other rows")
    return numbers


def _tokens(path: Path, name: str, column: pd.Series[str]) -> Ints:
    import pandas as pd

    values = np.array(pd.to_numeric(column, errors="coerce"), dtype=np.float64)
    _refuse(path, name, column, column.eq("").to_numpy(), "is missing: every request needs a number of tokens")
    _refuse(path, name, column, ~(np.isfinite(values) & (values == np.floor(values))), "is not a whole number")
    _refuse(path, name, column, values < 0, "is negative")
    _refuse(path, name, column, values > 1e9, "is more than a thousand million tokens")
    return np.maximum(1, values).astype(np.int64)


def _refuse(path: Path, name: str, column: pd.Series[str], wrong: NDArray[np.bool_], why: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        line = int(column.index.to_numpy()[row]) + 2
        more = int(wrong.sum()) - 1
        others = f" (and {more} more rows)" if more else ""
        raise TraceInputError(f"{path}, line {line}: {name} {column.iloc[row]!r} {why}{others}")
