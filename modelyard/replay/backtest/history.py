"""Past traffic out of Prometheus: arrivals and token means step by step, as a trace.

Each step's rate is taken over a window around the step that holds several scrapes. What was not recorded is missing,
never zero: a gap is an error unless the caller says what it stands for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from modelyard.metrics.prometheus import Prometheus, Series
from modelyard.metrics.vocabulary import METRIC, MODEL, Signal, duration, namespace_matcher, offered_load, ratios
from modelyard.objects import timestamp
from modelyard.replay.request import ReplayRequest, moment
from modelyard.replay.settings import Gaps
from modelyard.traffic.traces import Trace, TraceInputError, from_rates

if TYPE_CHECKING:
    import pandas as pd

WINDOW: Final = 60.0
"""Seconds over which a rate is taken at least: four scrapes at the usual interval."""
POINTS: Final = 10_000
"""Points asked for in one query; Prometheus refuses more than 11,000."""


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """Which past: one model's traffic from ``start`` to ``end`` (epoch seconds) in steps of ``step`` seconds.

    ``prompt`` and ``output`` are mean tokens of a request, over what was recorded; ``None``: as recorded.
    """

    namespace: str
    model: str
    start: float
    end: float
    step: float = 15.0
    gaps: Gaps = Gaps.FAIL
    prompt: float | None = None
    output: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.step) and self.step >= 1):
            raise TraceInputError(f"--step: must be at least 1s, not {self.step:g}s")
        if not (math.isfinite(self.start) and math.isfinite(self.end) and self.end - self.start >= self.step):
            raise TraceInputError(
                f"--from {_when(self.start)} --to {_when(self.end)}: --to must be at least one step ({self.step:g}s) "
                "after --from"
            )

    @property
    def window(self) -> float:
        """Seconds over which each rate is taken."""
        return max(self.step, WINDOW)


def requested_past(request: ReplayRequest, now: float) -> HistoryRequest:
    """Return which past a request asks of Prometheus. Raises ``TraceInputError``."""
    begin, end = (moment(text, now) for text in (request.begin, request.end))
    return HistoryRequest(
        request.namespace,
        request.model,
        begin,
        end,
        request.step,
        request.gaps,
        request.prompt_tokens,
        request.output_tokens,
    )


async def read_history(prometheus: Prometheus, request: HistoryRequest) -> pd.DataFrame:
    """What was recorded: a row per step, by its beginning (seconds from ``start``); columns ``rate`` (requests per
    second), ``prompt`` and ``output`` (mean tokens of the requests finished), NaN where nothing was recorded.

    Raises ``PrometheusError`` when a query fails, ``TraceInputError`` when there is nothing of this model at all.
    """
    import pandas as pd

    spaces = (request.namespace,)
    window = request.window
    loads = await _ask(prometheus, offered_load(window, spaces), "arrivals", request)
    mine = [one for one in loads if _is(one, request)]
    if not any(one.points for one in mine):
        found = sorted({one.labels.get("model_name", "") for one in loads if one.points})
        there = (
            f"; models with data there: {', '.join(found)}" if found else f"; nothing of namespace {spaces[0]} at all"
        )
        raise TraceInputError(
            f"Prometheus {prometheus.settings.base_url} has no traffic of model {request.model} in namespace "
            f"{request.namespace} from {_when(request.start)} to {_when(request.end)}{there}; correct --namespace, "
            "--model, --from or --to"
        )
    columns = {"rate": _column(mine, request)}
    grown = f"increase({METRIC}{namespace_matcher(spaces)}[{duration(window)}])"
    for name, signal in (("prompt", Signal.REQUEST_PROMPT_TOKENS), ("output", Signal.REQUEST_OUTPUT_TOKENS)):
        answer = await _ask(prometheus, ratios(signal, MODEL, grown, some=True), f"{name} tokens", request)
        columns[name] = _column([one for one in answer if _is(one, request)], request)
    return pd.DataFrame(columns, index=pd.Index(_edges(request)[:-1], name="seconds"))


def trace_of(history: pd.DataFrame, request: HistoryRequest, seed: int = 0) -> tuple[Trace, list[str]]:
    """A trace with the history's rates and token means, and what had to be filled in.

    Raises ``TraceInputError`` for gaps that nobody said how to fill, and when nothing says how many tokens requests
    have.
    """
    remarks: list[str] = []
    rate = history["rate"]
    missing = rate.isna().to_numpy()
    if missing.any():
        first = _when(request.start + int(np.argmax(missing)) * request.step)
        where = f"{int(missing.sum())} of {len(rate)} steps have no data, first from {first}"
        if request.gaps is Gaps.FAIL:
            raise TraceInputError(
                f"model {request.model} in namespace {request.namespace}: {where}; choose --from and --to without "
                "gaps, a longer --step, or say what they stand for: --gaps zero (the model was at zero) or "
                "--gaps interpolate"
            )
        rate = rate.fillna(0.0) if request.gaps is Gaps.ZERO else _bridged(rate, request)
        remarks.append(
            f"{where}: taken as {'no requests' if request.gaps is Gaps.ZERO else 'between their neighbours'}"
        )
    tokens: dict[str, list[float]] = {}
    for name, given in (("prompt", request.prompt), ("output", request.output)):
        means = history[name]
        if given is not None:
            means = means.mask(means.index == means.index, given)
        elif means.isna().all():
            raise TraceInputError(
                f"model {request.model} in namespace {request.namespace}: Prometheus has no {name} tokens of its "
                f"requests; give their mean with --{name}-tokens"
            )
        unknown = int((means.isna().to_numpy() & (rate > 0).to_numpy()).sum())
        if unknown:
            remarks.append(f"{unknown} of {len(means)} steps have no {name} tokens: taken from the steps around them")
        tokens[name] = means.ffill().bfill().clip(lower=1.0).tolist()
    trace = from_rates(_edges(request).tolist(), rate.tolist(), tokens["prompt"], tokens["output"], seed=seed)
    zeros = np.zeros(len(trace), dtype=np.int64)
    return dataclasses.replace(trace, model=zeros, models=(request.model,)), remarks


def _bridged(rate: pd.Series[float], request: HistoryRequest) -> pd.Series[float]:
    """Gaps filled from around them. Steps whose window reaches into a gap saw only a part of their requests."""
    reach = math.ceil(request.window / request.step)
    near = rate.isna().astype(float).rolling(2 * reach + 1, center=True, min_periods=1).max() > 0
    bridged = rate.mask(near).interpolate(limit_direction="both")
    return bridged if not bridged.isna().any() else rate.interpolate(limit_direction="both")


async def _ask(prometheus: Prometheus, query: str, purpose: str, request: HistoryRequest) -> list[Series]:
    # The window of each point lies around its step.
    ahead = request.step + (request.window - request.step) / 2
    span = POINTS * request.step
    found: list[Series] = []
    steps = len(_edges(request)) - 1
    for number in range(math.ceil(steps / POINTS)):
        first = request.start + ahead + number * span
        last = request.start + ahead + (min(steps, (number + 1) * POINTS) - 1) * request.step
        found += await prometheus.query_range(query, f"{purpose} of the past", first, last, request.step)
    return found


def _is(series: Series, request: HistoryRequest) -> bool:
    labels = series.labels
    return labels.get("namespace") == request.namespace and labels.get("model_name") == request.model


def _edges(request: HistoryRequest) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    count = int((request.end - request.start) / request.step + 1e-6)
    return np.arange(count + 1, dtype=np.float64) * request.step


def _column(series: Iterable[Series], request: HistoryRequest) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    ahead = request.step + (request.window - request.step) / 2
    values = np.full(len(_edges(request)) - 1, np.nan)
    for one in series:
        for at, value in one.points:
            place = round((at - request.start - ahead) / request.step)
            if 0 <= place < len(values):
                values[place] = value
    return values


def _when(epoch: float) -> str:
    try:
        return timestamp(epoch)
    except (OverflowError, OSError, ValueError):
        return str(epoch)
