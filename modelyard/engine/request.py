"""The state of one request inside the engine core, and the events that tell of it.

All times are virtual seconds.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple


class State(Enum):
    """Where a request is."""

    ARRIVING = "arriving"
    """In the front end (tokenization and the like, γ); neither waiting nor running."""
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    ABORTED = "aborted"


class Request:
    """One request being served. Treat as read-only outside the core, ``tag`` excepted.

    ``output_tokens`` is how many tokens it will generate in all; ``tokens`` how many it had generated when it last was
    *not* decoding (ask ``EngineCore.generated`` for the number now). ``number`` rises in order of submission.
    ``tag`` belongs to the caller. Times not reached yet are NaN.
    """

    __slots__ = (
        "arrived_at",
        "cached_tokens",
        "eligible_at",
        "finish_step",
        "finished_at",
        "first_token_at",
        "last_token_at",
        "max_tokens",
        "number",
        "offset",
        "output_tokens",
        "preemptions",
        "prompt_tokens",
        "reason",
        "scheduled_at",
        "state",
        "tag",
        "to_prefill",
        "tokens",
    )

    def __init__(
        self, number: int, prompt_tokens: int, output_tokens: int, max_tokens: int, reason: str, tag: object
    ) -> None:
        self.number = number
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.max_tokens = max_tokens
        self.reason = reason
        self.tag = tag
        self.state = State.ARRIVING
        self.tokens = 0
        self.to_prefill = 0
        self.cached_tokens = 0
        self.preemptions = 0
        # While decoding: generated tokens = the engine's count of decode steps - offset.
        self.offset = 0
        self.finish_step = -1
        self.arrived_at = math.nan
        self.eligible_at = math.nan
        self.scheduled_at = math.nan
        self.first_token_at = math.nan
        self.last_token_at = math.nan
        self.finished_at = math.nan

    def __repr__(self) -> str:
        return f"<Request {self.number} {self.state.value} {self.prompt_tokens}+{self.tokens}/{self.output_tokens}>"


class EventKind(Enum):
    """What happened to a request. There is no event per token: ask ``EngineCore.generated``."""

    FIRST_TOKEN = "first-token"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Event(NamedTuple):
    """Something happened to ``request`` at virtual time ``at``."""

    kind: EventKind
    request: Request
    at: float
