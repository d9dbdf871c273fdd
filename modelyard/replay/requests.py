"""What became of every request: one row each, in columns. Filled by ``fleet``."""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from modelyard.replay.settings import SLACK, SLO
from modelyard.replay.trace import Trace


class Outcome(IntEnum):
    """How a request ended."""

    UNFINISHED = 0
    """Still waiting or being served when the simulation stopped."""
    OK = 1
    NO_REPLICA = 2
    """Rejected by the router: no replica became ready in time."""
    REFUSED = 3
    """The engine does not take it: too long for its context, or its queue is full."""
    KILLED = 4
    """Its pod was ended before it was done."""


class RequestLog:
    """Results by request number (the trace's order). Times are seconds from the start of the trace, NaN if never.

    ``ttft`` counts from the arrival and holds the time at the router; ``itl`` is (end - first token) / (tokens - 1),
    NaN for one token; ``itl_max`` the longest gap between two tokens. ``waited`` tells that no replica was ready on
    arrival. ``pod`` is the number of the pod that served it, -1 for none.
    """

    def __init__(self, trace: Trace) -> None:
        count = len(trace)
        self.trace = trace
        self.first = [math.nan] * count
        self.end = [math.nan] * count
        self.itl_max = [math.nan] * count
        self.outcome = [0] * count
        self.pod = [-1] * count
        self.waited = bytearray(count)

    def __len__(self) -> int:
        return len(self.end)

    def columns(self) -> Results:
        """Everything as arrays."""
        return Results(self)


class Results:
    """A finished log as arrays."""

    def __init__(self, log: RequestLog) -> None:
        trace = log.trace
        self.at = trace.at
        self.prompt = trace.prompt
        self.output = trace.output
        self.first = np.array(log.first)
        self.end = np.array(log.end)
        self.outcome = np.array(log.outcome, dtype=np.int8)
        self.pod = np.array(log.pod, dtype=np.int64)
        self.waited = np.frombuffer(bytes(log.waited), dtype=np.uint8).astype(bool)
        self.ttft = self.first - self.at
        with np.errstate(divide="ignore", invalid="ignore"):
            self.itl = np.where(self.output > 1, (self.end - self.first) / (self.output - 1), np.nan)
        self.itl_max = np.array(log.itl_max)

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which requests were answered completely."""
        return np.equal(self.outcome, Outcome.OK)

    def within(self, slo: SLO) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which requests were within the TTFT target, and which within the ITL target; failed ones are in neither."""
        answered = self.answered
        with np.errstate(invalid="ignore"):
            ttft = answered & (self.ttft <= slo.ttft + SLACK)
            itl = answered & ((self.output <= 1) | (self.itl <= slo.itl + SLACK))
        return ttft, itl
