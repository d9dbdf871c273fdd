"""What the program leaves behind, read with limits, and told as a ``MeasuredRun``; or why there is nothing to tell.

The program counts its errors after it has divided by them, ends well where most requests failed, and loses requests
whose answers it cannot read: the share of errors is computed here, of all three.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modelyard.benchmarks.records.program import BATCHED, FOLDER, MeasureError, refuse_constant, without
from modelyard.benchmarks.records.values import (
    FASTEST_TOKEN,
    LARGEST_FILE,
    MOST,
    LatencySpread,
    MeasuredRun,
    Measurement,
)

METADATA = "experiment_metadata.json"
IMPLAUSIBLE, BUFFERED = "ImplausibleResult", "StreamBuffered"
"""Reasons: figures that cannot be true; answers that do not arrive token by token."""
MOST_WHOLE = 0.2
"""Share of a run's answers that may arrive in one piece, as short ones do while the client lacks CPU for a moment."""
_LOST = 0
"""The code of requests that the program has lost."""


def load(path: Path) -> dict[str, Any]:
    """A JSON object of the program. Raises ``MeasureError``."""
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise MeasureError(
            "ResultTooLarge",
            f"{path.name} has {size} bytes, more than {LARGEST_FILE}; lower maxRequestsPerIteration or look at what the"
            " endpoint answers",
        )
    try:
        found = json.loads(path.read_bytes(), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise MeasureError("ResultInvalid", f"{path.name} cannot be read: {str(error)[:200]}", retryable=True) from None
    if not isinstance(found, dict):
        raise MeasureError("ResultInvalid", f"{path.name} holds no object", retryable=True)
    return found


def cleaned(value: Any, hidden: tuple[str, ...]) -> Any:
    """The same without secrets in any text; the command line and what the program knows of credentials emptied."""
    if isinstance(value, dict):
        given = {without(str(name), hidden): cleaned(one, hidden) for name, one in value.items()}
        return given | {name: type(given[name])() for name in ("cmd", "auth_config") if name in given}
    if isinstance(value, list):
        return [cleaned(one, hidden) for one in value]
    return without(value, hidden) if isinstance(value, str) else value


def result_file(folder: Path) -> Path | None:
    """The one file of a run in the program's folder."""
    found = sorted((folder / FOLDER).glob("*_time_*s.json"))
    return found[0] if len(found) == 1 and found[0].is_file() and not found[0].is_symlink() else None


def failures(found: Mapping[str, Any], lost: int = 0) -> tuple[int, Counter[int], str]:
    """Of the requests in a file of the program: how many were answered, which errors, and the first one's message."""
    answered, codes, first = 0, Counter({_LOST: lost} if lost else {}), ""
    requests = found.get("individual_request_metrics")
    if not isinstance(requests, list):
        raise MeasureError("ResultInvalid", "the program's file has no individual_request_metrics", retryable=True)
    for one in requests:
        code = one.get("error_code") if isinstance(one, dict) else -1
        if code is None:
            answered += 1
            continue
        codes[code if isinstance(code, int) else -1] += 1
        first = first or str(one.get("error_message") or "")[:300] if isinstance(one, dict) else first
    return answered, codes, first


def told(codes: Mapping[int, int]) -> str:
    """Errors for people, the most frequent first."""
    names = {_LOST: "unreadable", -1: "error in the stream", 503: "503 (or no connection)"}
    by_count = sorted(codes.items(), key=lambda one: -one[1])
    return ", ".join(f"{count} x {names.get(code, code)}" for code, count in by_count[:5])


def check_errors(asked: Measurement, answered: int, codes: Counter[int], first: str) -> None:
    """Raises ``MeasureError`` where more requests failed than may."""
    failed = sum(codes.values())
    total = answered + failed
    if total and failed / total <= asked.errors:
        return
    what = f"{failed} of {total} requests failed ({told(codes)})" if total else "no request was answered"
    said = f": {first}" if first else ""
    # What the client did wrong it does wrong again.
    lasting = sum(count for code, count in codes.items() if 400 <= code < 500 and code not in (408, 425, 429))
    allowed = f"; at most {asked.errors:.3g} of them may" if answered else ""
    remedy = "look at the service's logs, or measure at a lower concurrency"
    if lasting * 2 > failed:
        remedy = "check model name, key, scenario and additionalRequestParams"
    reason = "TooManyErrors" if answered else "EndpointRefused" if lasting * 2 > failed else "EndpointFailing"
    raise MeasureError(reason, f"{what}{allowed}; {remedy}{said}", retryable=lasting * 2 <= failed)


def check_stream(asked: Measurement, found: Mapping[str, Any]) -> None:
    """Refuse answers that arrive in one piece: neither TTFT nor ITL is of the engine. Raises ``MeasureError``.

    The program leaves their time per token out of its means, or divides what a buffer took by their tokens.
    """
    if not _streams(asked):
        return
    whole = counted = 0
    for one in found.get("individual_request_metrics") or ():
        if not isinstance(one, dict) or one.get("error_code"):
            continue
        tokens, after = one.get("num_output_tokens"), one.get("output_latency")
        if isinstance(tokens, int | float) and isinstance(after, int | float) and tokens >= 2:
            counted += 1
            whole += after < (tokens - 1) * FASTEST_TOKEN
    if counted and whole > MOST_WHOLE * counted:
        raise MeasureError(
            BUFFERED,
            f"{whole} of {counted} answers arrived in one piece, all tokens with the first; measure where no proxy or"
            " gateway buffers the stream, and check that the engine streams token by token",
        )


def _streams(asked: Measurement) -> bool:
    return asked.task not in BATCHED and not asked.task.endswith("embeddings")


def measured(asked: Measurement, found: Mapping[str, Any], started: str, lost: int = 0) -> MeasuredRun:
    """The run that a file of the program holds. Raises ``MeasureError`` for too many errors, and for figures that are
    missing or cannot be true."""
    answered, codes, first = failures(found, lost)
    check_errors(asked, answered, codes, first)
    check_stream(asked, found)
    figures = _object(found, "aggregated_metrics")
    stats = _object(figures, "stats")
    if figures.get("scenario") != asked.scenario:
        raise MeasureError("ResultInvalid", "the program's file is of another scenario", retryable=True)
    seconds = _number(figures, "run_duration")
    if seconds <= 0:
        raise MeasureError("ResultInvalid", "the program's file has a run of no duration", retryable=True)
    streams = _streams(asked)
    run = MeasuredRun(
        scenario=asked.scenario,
        concurrency=asked.concurrency,
        started=started,
        seconds=seconds,
        requests=answered + sum(codes.values()),
        failed=sum(codes.values()),
        requests_rate=answered / seconds,
        output_rate=_number(figures, "mean_output_throughput_tokens_per_s"),
        prompt_tokens=_number(_object(stats, "num_input_tokens"), "mean"),
        output_tokens=_number(_object(stats, "num_output_tokens"), "mean"),
        latency=_spread(stats, "e2e_latency"),
        ttft=_spread(stats, "ttft") if streams else None,
        itl=_spread(stats, "tpot") if streams else None,
    )
    if run.implausible:
        raise MeasureError(IMPLAUSIBLE, f"the figures cannot be true: {run.implausible}; measure again")
    return run


def _object(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    if not isinstance(value, dict):
        raise MeasureError("ResultInvalid", f"the program's file has no {name}", retryable=True)
    return value


def _number(found: Mapping[str, Any], name: str) -> float:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:
        shown = "missing" if value is None else repr(value)[:60]
        raise MeasureError("ResultInvalid", f"the program's file: {name} is {shown}", retryable=True)
    return float(value)


def _spread(stats: Mapping[str, Any], name: str) -> LatencySpread:
    given = _object(stats, name)
    try:
        return LatencySpread(**{one: _number(given, one) for one in LatencySpread.model_fields})
    except MeasureError as error:
        raise MeasureError("ResultInvalid", f"{error} (of {name})", retryable=True) from None
