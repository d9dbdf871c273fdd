"""The state of one request inside the engine core, and the events that tell of it.

All times are virtual seconds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class RequestState(Enum):
    """Where a request is."""

    ARRIVING = "arriving"
    """In the front end (tokenization and the like, γ); neither waiting nor running."""
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class Request:
    """One request being served. Treat as read-only outside the core, ``tag`` excepted.

    ``output_tokens`` is how many tokens it will generate in all; ``tokens`` how many it had generated when it last was
    *not* decoding (ask ``EngineCore.generated`` for the number now). ``number`` rises in order of submission.
    ``tag`` belongs to the caller. Times not reached yet are NaN.
    """

    number: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    reason: str
    tag: object
    arrived_at: float
    eligible_at: float
    state: RequestState = RequestState.ARRIVING
    tokens: int = 0
    to_prefill: int = 0
    cached_tokens: int = 0
    # Names of the segments that the prompt begins with, and how many of those it holds in the prefix cache.
    prefix: Sequence[Hashable] = ()
    held: list[Hashable] = field(default_factory=list)
    preemptions: int = 0
    # While decoding: generated tokens = the engine's count of decode steps - offset.
    offset: int = 0
    finish_step: int = -1
    scheduled_at: float = math.nan
    first_token_at: float = math.nan
    last_token_at: float = math.nan
    finished_at: float = math.nan


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
